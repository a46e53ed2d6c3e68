"""Interleaved packings against the packers' description done step by step, and a real producer's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from quantscope.decode import interleaved
from quantscope.errors import UndecodableError
from safetensors import safe_open


def pack_gemv_fast(codes: NDArray[np.uint8]) -> NDArray[np.int16]:
    """The order of 32, the order of 8, four rows in strides of 64, four nibbles a word: one step a line."""
    order_32 = [
        place
        for pair in range(4)
        for base in (0, 8, 16, 24)
        for place in (base + 2 * pair, base + 2 * pair + 1)
    ]
    order_8 = [0, 2, 4, 6, 1, 3, 5, 7]
    rows, columns = codes.shape
    ordered = codes.reshape(rows, columns // 32, 32)[..., order_32]
    ordered = ordered.reshape(rows, columns // 8, 8)[..., order_8].reshape(rows, columns)
    packed = np.zeros((rows // 4, columns), np.uint16)
    for strip in range(rows // 4):
        stream = np.concatenate(
            [ordered[4 * strip + r, c : c + 64] for c in range(0, columns, 64) for r in range(4)]
        )
        for nibble in range(4):
            packed[strip] |= stream[nibble::4].astype(np.uint16) << np.uint16(4 * nibble)
    return packed.view(np.int16)


def test_gemv_fast_words_unpack_to_the_codes_that_were_packed() -> None:
    codes = np.random.default_rng(1).integers(0, 16, (8, 192)).astype(np.uint8)
    assert np.array_equal(interleaved.unpack_awq_gemv_fast(pack_gemv_fast(codes)), codes)


def test_the_bits_named_for_a_gemv_fast_code_hold_it() -> None:
    codes = np.random.default_rng(2).integers(0, 16, (8, 128)).astype(np.uint8)
    words = pack_gemv_fast(codes).view(np.uint16)
    for row in range(8):
        for column in range(128):
            packed_row, word, low_bit, _ = interleaved.gemv_fast_bits(row, column)
            assert (int(words[packed_row, word]) >> low_bit) & 15 == codes[row, column]


def test_gemv_fast_needs_whole_strides_of_64_columns() -> None:
    with pytest.raises(UndecodableError, match="multiple of 64"):
        interleaved.unpack_awq_gemv_fast(np.zeros((2, 96), np.int16))


@pytest.mark.real
def test_gemv_fast_planes_unpack_to_the_producers_own_weights(real_set: Path) -> None:
    folder = real_set / "autoawq-gemvfast-g128"
    module = "model.layers.0.self_attn.k_proj"
    with safe_open(str(folder / "model.safetensors"), "np") as planes:
        words, scales, scaled = (
            planes.get_tensor(f"{module}.{plane}") for plane in ("qweight", "scales", "qzeros")
        )
    with safe_open(str(folder / "oracle.safetensors"), "np") as oracle:
        expected = oracle.get_tensor(module + ".weight")
    codes = interleaved.unpack_awq_gemv_fast(words).astype(np.float32)
    groups = codes.shape[1] // 128
    scale = scales[:groups].astype(np.float32)
    zero = np.round(-scaled[:groups].astype(np.float32) / scale)
    spread = (np.repeat(plane.T, 128, axis=1) for plane in (zero, scale))
    weight = (codes - next(spread)) * next(spread)
    assert np.array_equal(weight.astype(np.float16).astype(np.float32), expected)


def test_quark_six_bit_codes_keep_their_tops_in_the_first_byte() -> None:
    packed = np.array([[0b00_01_10_11, 0xAB, 0xCD]], np.uint8)
    assert interleaved.unpack_quark_fp6(packed).tolist() == [[0x0A, 0x1B, 0x2C, 0x3D]]


@pytest.mark.parametrize("bit_width", range(1, 9))
def test_trellis_states_are_sixteen_bits_of_a_circular_stream(bit_width: int) -> None:
    tiles = np.frombuffer(np.random.default_rng(bit_width).bytes(64 * bit_width), np.uint16)
    tiles = tiles.reshape(2, 16 * bit_width)
    states = interleaved.trellis_states(tiles, bit_width)
    for tile, row in zip(tiles, states, strict=True):
        stream = "".join(f"{word:032b}" for word in tile.view(np.uint32).tolist())
        circle = stream[-16:] + stream
        for index, state in enumerate(row.tolist()):
            end = 16 + (index + 1) * bit_width
            assert state == int(circle[end - 16 : end], 2)


@pytest.mark.parametrize("bit_width", [2, 3, 7])
def test_the_bits_named_for_a_trellis_state_hold_it(bit_width: int) -> None:
    tile = np.frombuffer(np.random.default_rng(bit_width).bytes(32 * bit_width), np.uint16)
    words = tile.view(np.uint32).tolist()
    for index, state in enumerate(interleaved.trellis_states(tile[None], bit_width)[0].tolist()):
        value = shift = 0
        for word, low_bit, width in interleaved.trellis_bits(index, bit_width):
            value |= ((words[word] >> low_bit) & ((1 << width) - 1)) << shift
            shift += width
        assert (value, shift) == (state, 16)
