"""Bit fields against fixed vectors, Python integers and real producers' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantscope.decode import bits
from quantscope.decode.small_floats import bf16_to_f32
from quantscope.errors import UndecodableError

C3 = [(5 * i + 3) % 8 for i in range(32)]
C5 = [(7 * i + 2) % 32 for i in range(32)]
C6 = [(11 * i + 5) % 64 for i in range(32)]

CONTINUOUS = {
    3: (C3, "43C67543 7543C675 C67543C6"),
    5: (C5, "0BEBC122 67A03A9B 8332593B 2A1F2AE3 DD1A6FE2"),
    6: (C6, "3199B405 3A1D487F A9F509FB 2158B035 360D0B7B 68F139BA"),
}
PLANAR = {
    3: (C3, "93939393 93939393 B4B4B4B4"),
    5: (C5, "3C5E7092 B4D6F81A 3C5E7092 B4D6F81A CE63319C"),
    6: (C6, "27C16B05 AF49E38D 27C16B05 AF49E38D 94F94F94 43A43A43"),
}
PADDED = {
    3: (C3, "3C67543 150F19D5 27543C67 31"),
    5: (C5, "0BEBC122 1E80EA6C 332593B6 07CAB8E0 1A6FE22A 374"),
}

WORD_DTYPES = ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"]


def words_of(text: str) -> NDArray[np.int32]:
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.int32)


def beside_noise(words: NDArray[Any], axis: int) -> NDArray[Any]:
    """The words as line 1 of three, along `axis` of a plane whose other lines are noise."""
    noise = np.random.default_rng(7).integers(-(2**31), 2**31, words.size).astype(np.int32)
    return np.stack([noise, words, ~noise], axis=1 if axis == 0 else 0)


def line(codes: NDArray[Any], axis: int) -> list[int]:
    return list((codes[:, 1] if axis == 0 else codes[1]).tolist())


def pack_words(codes: list[int], bit_width: int, word_bits: int) -> list[int]:
    """Sequential fields by Python integers, no field straddling a word."""
    per_word = word_bits // bit_width
    return [
        sum(code << (bit_width * i) for i, code in enumerate(codes[first : first + per_word]))
        for first in range(0, len(codes), per_word)
    ]


def unsigned(values: list[int], dtype: str) -> NDArray[Any]:
    kind = np.dtype(dtype)
    return np.array(values, f"u{kind.itemsize}").view(kind)


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("bit_width", [3, 5, 6])
def test_a_dense_stream_gives_the_codes_of_the_golden_words(bit_width: int, axis: int) -> None:
    codes, text = CONTINUOUS[bit_width]
    plane = beside_noise(words_of(text), axis)
    assert line(bits.unpack_bitstream(plane, bit_width, axis=axis), axis) == codes


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("bit_width", [3, 5, 6])
def test_planar_words_give_the_codes_of_the_golden_words(bit_width: int, axis: int) -> None:
    codes, text = PLANAR[bit_width]
    plane = beside_noise(words_of(text), axis)
    assert line(bits.unpack_planar(plane, bit_width, axis=axis), axis) == codes


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("bit_width", [3, 5])
def test_padded_words_give_the_codes_of_the_golden_words(bit_width: int, axis: int) -> None:
    codes, text = PADDED[bit_width]
    plane = beside_noise(words_of(text), axis)
    assert line(bits.unpack_padded(plane, bit_width, axis=axis, count=32), axis) == codes


def test_four_bit_codes_lie_lowest_nibble_first() -> None:
    assert bits.unpack_words(words_of("76543210"), 4).tolist() == list(range(8))


def test_awq_words_hold_the_even_channels_in_the_low_half() -> None:
    assert bits.unpack_awq(words_of("75316420")).tolist() == list(range(8))


def test_a_three_bit_hqq_word_holds_ten_rows_highest_field_first() -> None:
    plane = words_of("014E5DC1")[:, None]
    codes = bits.unpack_row_chunks(plane, 3, high_first=True)
    assert codes[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.parametrize("dtype", WORD_DTYPES)
@pytest.mark.parametrize("bit_width", [1, 2, 3, 4, 5, 7, 8])
def test_words_of_every_width_unpack_as_python_integers_pack(dtype: str, bit_width: int) -> None:
    rng = np.random.default_rng(bit_width)
    codes = rng.integers(0, 1 << bit_width, 101).tolist()
    words = unsigned(pack_words(codes, bit_width, np.dtype(dtype).itemsize * 8), dtype)
    assert bits.unpack_words(words, bit_width, count=101).tolist() == codes


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("bit_width", range(1, 9))
def test_streams_straddle_words_of_every_width(dtype: str, axis: int, bit_width: int) -> None:
    word_bits = np.dtype(dtype).itemsize * 8
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 1 << bit_width, 77).tolist()
    stream = sum(code << (bit_width * i) for i, code in enumerate(codes))
    n_words = -(-77 * bit_width // word_bits)
    words = [(stream >> (word_bits * i)) & ((1 << word_bits) - 1) for i in range(n_words)]
    shape = [2, 3, 2]
    shape[axis] = n_words
    plane = np.zeros(shape, dtype)
    place: list[Any] = [1, 1, 1]
    place[axis] = slice(None)
    plane[tuple(place)] = unsigned(words, dtype)
    unpacked = bits.unpack_bitstream(plane, bit_width, axis=axis, count=77)
    assert unpacked[tuple(place)].tolist() == codes
    assert unpacked.sum() == sum(codes)


@pytest.mark.parametrize("bit_width", range(1, 9))
@pytest.mark.parametrize("lines", [1, 3, 4000])
def test_whole_lines_of_a_stream_unpack_as_numpy_unpacks_their_bits(
    bit_width: int, lines: int
) -> None:
    rng = np.random.default_rng(lines)
    words = rng.integers(-(2**31), 2**31, (lines, 2 * bit_width)).astype(np.int32)
    single = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    codes = single.reshape(lines, 64, bit_width) @ (1 << np.arange(bit_width))
    assert np.array_equal(bits.unpack_bitstream(words, bit_width), codes)
    assert np.array_equal(bits.unpack_bitstream(words[:, :bit_width], bit_width), codes[:, :32])
    padded = np.concatenate([words, words[:, :1]], axis=1)
    assert np.array_equal(bits.unpack_bitstream(padded, bit_width, count=64), codes)
    if 32 % bit_width == 0:
        assert np.array_equal(bits.unpack_words(words, bit_width), codes)


@pytest.mark.parametrize(
    ("axis", "high_first", "expected"),
    [
        (-1, False, [[0x3, 0xA, 0xF, 0x0], [0x1, 0x2, 0x8, 0x7]]),
        (-1, True, [[0xA, 0x3, 0x0, 0xF], [0x2, 0x1, 0x7, 0x8]]),
        (0, False, [[0x3, 0xF], [0xA, 0x0], [0x1, 0x8], [0x2, 0x7]]),
        (0, True, [[0xA, 0x0], [0x3, 0xF], [0x2, 0x7], [0x1, 0x8]]),
    ],
)
def test_nibbles_of_a_byte_are_neighbours_along_the_axis(
    axis: int, high_first: bool, expected: list[list[int]]
) -> None:
    packed = np.array([[0xA3, 0x0F], [0x21, 0x78]], np.uint8)
    assert bits.unpack_nibbles(packed, axis=axis, high_first=high_first).tolist() == expected
    signed = packed.view(np.int8)
    assert bits.unpack_nibbles(signed, axis=axis, high_first=high_first).tolist() == expected


def test_a_flat_plane_of_odd_length_leaves_its_last_nibble() -> None:
    packed = np.array([0x12, 0x34], np.uint8)
    assert bits.unpack_nibbles(packed, axis=0, high_first=True, count=3).tolist() == [1, 2, 3]


def test_two_bit_codes_may_lie_highest_first() -> None:
    assert bits.unpack_msb_first(np.array([0b00011011], np.uint8), 2).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("bit_width", "high_first", "rows"),
    [
        (4, True, [0xA, 0x2, 0x3, 0x1]),
        (4, False, [0x3, 0x1, 0xA, 0x2]),
        (2, True, [0b10, 0b00, 0b10, 0b10, 0b00, 0b00, 0b11, 0b01]),
        (2, False, [0b11, 0b01, 0b00, 0b00, 0b10, 0b10, 0b10, 0b00]),
    ],
)
def test_row_chunks_put_halves_or_quarters_of_the_rows_in_one_byte(
    bit_width: int, high_first: bool, rows: list[int]
) -> None:
    plane = np.array([[0xA3], [0x21]], np.uint8)
    assert bits.unpack_row_chunks(plane, bit_width, high_first=high_first)[:, 0].tolist() == rows


def test_rows_beyond_the_wanted_ones_are_padding() -> None:
    plane = words_of("014E5DC1")[:, None]
    assert bits.unpack_row_chunks(plane, 3, high_first=True, rows=4).shape == (4, 1)


def test_two_complement_fields_become_negative_numbers() -> None:
    codes = np.arange(16, dtype=np.uint8)
    assert bits.sign_extend(codes, 4).tolist() == [*range(8), *range(-8, 0)]
    assert bits.sign_extend(np.array([3, 4], np.uint8), 3).tolist() == [3, -4]
    assert bits.sign_extend(np.array([128, 127], np.uint8), 8).tolist() == [-128, 127]


@pytest.mark.parametrize("axis", [0, -1])
def test_codes_may_be_written_into_floats(axis: int) -> None:
    words = np.arange(12, dtype=np.int32).reshape(3, 4) * 0x01234567
    out = np.full((24, 4) if axis == 0 else (3, 32), np.nan, np.float32)
    bits.unpack_words(words, 4, axis=axis, out=out)
    assert np.array_equal(out, bits.unpack_words(words, 4, axis=axis))


@pytest.mark.parametrize("order", [None, bits.AWQ_ORDER, (3, 0, 2, 1, 7, 6, 5, 4)])
@pytest.mark.parametrize("axis", [0, -1])
def test_planes_larger_than_a_block_unpack_by_the_rule(
    axis: int, order: tuple[int, ...] | None
) -> None:
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**32, (600, 701), np.uint32)
    expected = np.zeros((4800, 701) if axis == 0 else (600, 5608), np.uint8)
    for field, place in enumerate(order or range(8)):
        codes = (words // 16**field) % 16
        if axis == 0:
            expected[place::8] = codes
        else:
            expected[:, place::8] = codes
    assert np.array_equal(bits.unpack_words(words, 4, axis=axis, order=order), expected)
    assert np.array_equal(
        bits.unpack_words(words[:, ::-1], 4, axis=0, order=order)[:, ::-1],
        bits.unpack_words(words, 4, axis=0, order=order),
    )


def test_a_plane_that_holds_too_few_codes_is_refused() -> None:
    words = np.zeros((3, 2), np.int32)
    with pytest.raises(UndecodableError, match="holds 24 codes"):
        bits.unpack_words(words, 4, axis=0, count=25)
    with pytest.raises(UndecodableError, match="holds 32 codes"):
        bits.unpack_bitstream(words, 3, axis=0, count=33)
    with pytest.raises(UndecodableError, match="runs of 5"):
        bits.unpack_planar(words, 5, axis=0)
    with pytest.raises(UndecodableError, match="integer dtype"):
        bits.unpack_words(np.zeros(3, np.float32), 4)
    with pytest.raises(UndecodableError, match="in bytes"):
        bits.unpack_nibbles(words)


LAYOUTS: list[tuple[bits.FieldLayout, int, int]] = [
    ("sequential", 4, 32),
    ("sequential", 3, 32),
    ("sequential", 8, 16),
    ("awq", 4, 32),
    ("bitstream", 3, 32),
    ("bitstream", 5, 8),
    ("bitstream", 7, 64),
    ("planar", 3, 32),
    ("planar", 5, 32),
    ("planar", 7, 32),
    ("low_first", 4, 8),
    ("high_first", 4, 8),
    ("msb_first", 2, 8),
    ("row_chunks_low_first", 2, 8),
    ("row_chunks_high_first", 4, 8),
    ("row_chunks_high_first", 3, 32),
]


def unpack_layout(words: NDArray[Any], layout: str, bit_width: int) -> NDArray[Any]:
    if layout == "awq":
        return bits.unpack_awq(words)
    if layout in ("low_first", "high_first"):
        return bits.unpack_nibbles(words, high_first=layout == "high_first")
    if layout.startswith("row_chunks"):
        chunks = bits.unpack_row_chunks(
            words[:, None], bit_width, high_first=layout.endswith("high_first")
        )
        return chunks[:, 0]
    unpack: Any = {
        "sequential": bits.unpack_words,
        "bitstream": bits.unpack_bitstream,
        "planar": bits.unpack_planar,
        "msb_first": bits.unpack_msb_first,
    }[layout]
    codes: NDArray[Any] = unpack(words, bit_width)
    return codes


@pytest.mark.parametrize(("layout", "bit_width", "word_bits"), LAYOUTS)
def test_the_bits_named_for_a_code_hold_that_code(
    layout: bits.FieldLayout, bit_width: int, word_bits: int
) -> None:
    rng = np.random.default_rng(11)
    words = np.frombuffer(rng.bytes(2 * bit_width * word_bits // 8), f"<u{word_bits // 8}")
    codes = unpack_layout(words, layout, bit_width)
    for index, code in enumerate(codes.tolist()):
        value = shift = 0
        for word, low_bit, width in bits.field_bits(
            layout, index, bit_width, word_bits=word_bits, words=len(words)
        ):
            value |= ((int(words[word]) >> low_bit) & ((1 << width) - 1)) << shift
            shift += width
        assert (value, shift) == (code, bit_width)


def test_a_straddling_field_is_named_as_two_pieces() -> None:
    assert bits.field_bits("bitstream", 10, 3) == ((0, 30, 2), (1, 0, 1))
    assert bits.field_bits("bitstream", 21, 3) == ((1, 31, 1), (2, 0, 2))


STORED = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8"}


def planes_of(file: Path, module: str) -> dict[str, NDArray[Any]]:
    """Planes of one module by suffix, read by the container's own rules; bfloat16 is widened."""
    content = file.read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    planes = {}
    for name, entry in json.loads(content[8:first]).items():
        if name.startswith(module + "."):
            start, stop = entry["data_offsets"]
            plane = np.frombuffer(content[first + start : first + stop], STORED[entry["dtype"]])
            plane = bf16_to_f32(plane) if entry["dtype"] == "BF16" else plane
            planes[name.removeprefix(module + ".")] = plane.reshape(entry["shape"])
    return planes


def decode_real(folder: Path, module: str) -> dict[str, NDArray[Any]]:
    (file,) = [f for f in folder.glob("*.safetensors") if f.name != "oracle.safetensors"]
    oracle = planes_of(folder / "oracle.safetensors", module)["weight"]
    return planes_of(file, module) | {"oracle": oracle}


MODULE = "model.layers.0.self_attn.k_proj"


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "bit_width", "planar", "zero_offset"),
    [
        ("autogptq-w4g128-asym", 4, False, 1),
        ("gptqmodel-w4g128-asym-v2", 4, False, 0),
        ("gptqmodel-w3g128-sym", 3, False, 1),
        ("gptqmodel-w5g128-sym", 5, True, 0),
    ],
)
def test_gptq_planes_unpack_to_the_producers_own_weights(
    real_set: Path, name: str, bit_width: int, planar: bool, zero_offset: int
) -> None:
    found = decode_real(real_set / name, MODULE)
    unpack: Any = bits.unpack_planar if planar else bits.unpack_bitstream
    codes = unpack(found["qweight"], bit_width, axis=0).astype(np.float32)
    zeros = unpack(found["qzeros"], bit_width, axis=-1).astype(np.float32) + zero_offset
    group = found["g_idx"]
    weight = (codes - zeros[group]) * found["scales"].astype(np.float32)[group]
    assert np.array_equal(weight.T, found["oracle"])


@pytest.mark.real
def test_awq_planes_unpack_to_the_producers_own_weights(real_set: Path) -> None:
    found = decode_real(real_set / "autoawq-gemm-g128", MODULE)
    codes = bits.unpack_awq(found["qweight"]).astype(np.float32)
    zeros = np.repeat(bits.unpack_awq(found["qzeros"]).astype(np.float32), 128, axis=0)
    scales = np.repeat(found["scales"].astype(np.float32), 128, axis=0)
    weight = ((codes - zeros) * scales).astype(np.float16).astype(np.float32)
    assert np.array_equal(weight.T, found["oracle"])


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "bit_width"),
    [("llmcompressor-w4a16-asym-g128", 4), ("llmcompressor-w3a16-g128-asym", 3)],
)
def test_compressed_tensors_planes_unpack_to_the_producers_own_weights(
    real_set: Path, name: str, bit_width: int
) -> None:
    found = decode_real(real_set / name, MODULE)
    rows, columns = found["weight_shape"].tolist()
    codes = bits.unpack_bitstream(found["weight_packed"], bit_width, count=columns)
    zeros = bits.unpack_bitstream(found["weight_zero_point"], bit_width, axis=0, count=rows)
    difference = codes.astype(np.float32) - np.repeat(zeros.astype(np.float32), 128, axis=1)
    weight = difference * np.repeat(found["weight_scale"].astype(np.float32), 128, axis=1)
    assert np.array_equal(weight, found["oracle"])
