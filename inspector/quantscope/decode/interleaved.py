"""Packings that are no plain run of fields along an axis: interleaved rows, split bytes, tail-biting streams."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quantscope.decode.bits import (
    Codes,
    Words,
    require_bytes,
    unpack_words,
    unsigned_view,
    word_bits,
)
from quantscope.errors import UndecodableError


def unpack_quark_fp6(packed: Codes, out: Codes | None = None) -> Codes:
    """Unpack the 6-bit codes of Quark's legacy "mx" type: four codes in three bytes.

    The first byte holds the top two bits of the four codes, first code highest; the next two bytes hold
    the low nibbles, high nibble first.

    Args:
        packed: uint8 [..., 3*n]; the exponent byte of each 25-byte block already taken off.
        out: uint8 [..., 4*n].

    Source: amd-quark 0.13, quark/torch/utils/pack.py.
    """
    require_bytes(packed)
    if out is None:
        out = np.empty((*packed.shape[:-1], packed.shape[-1] // 3 * 4), np.uint8)
    top = packed[..., 0::3]
    for field in range(4):
        low = packed[..., 1 + field // 2 :: 3]
        nibble = low & np.uint8(15) if field % 2 else low >> np.uint8(4)
        tops = (top >> np.uint8(6 - 2 * field)) & np.uint8(3)
        np.bitwise_or(nibble, tops << np.uint8(4), out=out[..., field::4])
    return out


def unpack_awq_gemv_fast(words: Words, out: Codes | None = None) -> Codes:
    """Unpack AWQ GEMV-fast (llm-awq) words: four rows interleaved in strides of 64 columns.

    Args:
        words: 16-bit [N/4, K] with K a multiple of 64.
        out: uint8 [N, K].

    Returns:
        uint8 [N, K].

    Raises:
        UndecodableError: the words are not 16-bit or K is no multiple of 64.

    Source: AutoAWQ, awq/modules/linear/gemv_fast.py.
    """
    if word_bits(words) != 16 or words.shape[1] % 64:
        raise UndecodableError(
            f"GEMV-fast codes lie in 16-bit words of a multiple of 64 columns, not {words.shape}"
        )
    packed_rows, columns = words.shape
    runs = unpack_words(words, 4, axis=-1).reshape(packed_rows, columns // 64, 4, 2, 4, 2, 4)
    # Axes: row of four, stride of 64, row inside, half of 32, pair-of-eight chunk, parity, place.
    if out is None:
        out = np.empty((packed_rows * 4, columns), np.uint8)
    target = out.reshape(packed_rows, 4, columns // 64, 2, 4, 4, 2)
    # Inside 32 columns the source order is [chunk of 8][parity][place]; column = 8*place + 2*chunk + parity.
    target[...] = runs.transpose(0, 2, 1, 3, 6, 4, 5)
    return out


def trellis_states(trellis: Words, bit_width: int) -> NDArray[np.uint16]:
    """Return the 16-bit trellis state of every weight of EXL3 tiles, in stream order.

    The stream of a tile is read from its little-endian 32-bit words, highest bit first; the state of
    weight t is the 16 bits that end at bit (t+1)*bit_width, counted round the tile's 256*bit_width bits.

    Args:
        trellis: 16-bit [..., 16*bit_width].
        bit_width: 1 to 8 bits a weight.

    Returns:
        uint16 [..., 256].

    Source: exllamav3, exllamav3_ext/quant/exl3_dq.cuh.
    """
    stream = np.ascontiguousarray(unsigned_view(trellis)).view(np.uint32)
    total_bits = 256 * bit_width
    starts = (np.arange(1, 257) * bit_width - 16) % total_bits
    word = starts // 32
    following = (word + 1) % stream.shape[-1]
    pairs = (stream[..., word].astype(np.uint64) << np.uint64(32)) | stream[..., following]
    return (pairs >> (48 - starts % 32).astype(np.uint64)).astype(np.uint16)


def gemv_fast_bits(row: int, column: int) -> tuple[int, int, int, int]:
    """Say which bits of an AWQ GEMV-fast plane hold code (row, column).

    Returns:
        (packed row, 16-bit word in that row, lowest bit, 4).

    Source: AutoAWQ, awq/modules/linear/gemv_fast.py.
    """
    stride, inside = divmod(column, 64)
    half, place_in_32 = divmod(inside, 32)
    place, rest = divmod(place_in_32, 8)
    chunk, parity = divmod(rest, 2)
    position = (row % 4) * 64 + half * 32 + chunk * 8 + parity * 4 + place
    return row // 4, stride * 64 + position // 4, position % 4 * 4, 4


def trellis_bits(index: int, bit_width: int) -> tuple[tuple[int, int, int], ...]:
    """Say which bits of an EXL3 tile hold the 16-bit state of weight `index` of its stream.

    Returns:
        Pieces (32-bit word, lowest bit, width), the lowest bits of the state first.
    """
    total_bits = 256 * bit_width
    start = ((index + 1) * bit_width - 16) % total_bits
    word, offset = divmod(start, 32)
    head = min(16, 32 - offset)
    pieces = [(word, 32 - offset - head, head)]
    if head < 16:
        pieces.insert(0, ((word + 1) % (total_bits // 32), 32 - (16 - head), 16 - head))
    return tuple(pieces)
