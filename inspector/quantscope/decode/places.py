"""Which bits of which words hold a code: the way back from a code to the file, for every packing of `bits`."""

from __future__ import annotations

from typing import Literal

FieldLayout = Literal[
    "sequential",
    "awq",
    "bitstream",
    "planar",
    "low_first",
    "high_first",
    "msb_first",
    "row_chunks_low_first",
    "row_chunks_high_first",
]
"""How codes lie along the packed axis; `field_bits` says what each name means."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Channel held by nibble i of a word, modulo 8. Source: AutoAWQ, awq/modules/linear/gemm.py."""

PLANE_WIDTHS: dict[int, tuple[int, ...]] = {
    1: (1,),
    2: (2,),
    3: (2, 1),
    4: (4,),
    5: (4, 1),
    6: (4, 2),
    7: (4, 2, 1),
    8: (8,),
}
"""Widths of the bit planes of `gptq_p`, lowest bits first. Source: GPTQModel, gptqmodel/utils/planar_packing.py."""


def field_bits(
    layout: FieldLayout,
    index: int,
    bit_width: int,
    *,
    word_bits: int = 32,
    words: int | None = None,
) -> tuple[tuple[int, int, int], ...]:
    """Say which bits hold code `index` along the packed axis.

    Args:
        layout: `sequential` (also the padded layout), `awq`, `bitstream`, `planar`, `low_first` and
            `high_first` (two nibbles a byte), `msb_first`, `row_chunks_low_first` (quanto, BitNet) or
            `row_chunks_high_first` (HQQ).
        index: 0-based code along the packed axis.
        bit_width: bits of a code.
        word_bits: bits of a stored word; nibble layouts are always bytes.
        words: packed words along the axis; row chunks need it.

    Returns:
        Pieces (word index, lowest bit in that word, width), the lowest bits of the code first; a code that
        straddles words or lies in several planes has more than one.

    Raises:
        ValueError: row chunks without `words`.
    """
    per_word = word_bits // bit_width
    if layout == "bitstream":
        return _stream_pieces(index * bit_width, bit_width, word_bits)
    if layout == "planar":
        return _planar_pieces(index, bit_width)
    if layout in ("low_first", "high_first"):
        low_half = (index % 2 == 0) == (layout == "low_first")
        return ((index // 2, 0 if low_half else 4, 4),)
    if layout in ("row_chunks_low_first", "row_chunks_high_first"):
        if words is None:
            raise ValueError("row chunks are found by the number of packed words along the axis")
        word, field = index % words, index // words
        if layout == "row_chunks_high_first":
            field = per_word - 1 - field
        return ((word, field * bit_width, bit_width),)
    word, field = divmod(index, per_word)
    if layout == "awq":
        field = AWQ_ORDER.index(field)
    elif layout == "msb_first":
        field = per_word - 1 - field
    return ((word, field * bit_width, bit_width),)


def _stream_pieces(start: int, width: int, word_bits: int) -> tuple[tuple[int, int, int], ...]:
    word, low = divmod(start, word_bits)
    head = min(width, word_bits - low)
    if head == width:
        return ((word, low, width),)
    return ((word, low, head), (word + 1, 0, width - head))


def _planar_pieces(index: int, bit_width: int) -> tuple[tuple[int, int, int], ...]:
    run, place = divmod(index, 32)
    pieces = []
    first_word = run * bit_width
    for width in PLANE_WIDTHS[bit_width]:
        word, field = divmod(place, 32 // width)
        pieces.append((first_word + word, field * width, width))
        first_word += width
    return tuple(pieces)
