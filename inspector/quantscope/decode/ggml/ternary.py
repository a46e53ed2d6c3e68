"""The one- and two-bit types: TQ1_0 and TQ2_0 (ternary), Q1_0 (signs), Q2_0.

Source: llama.cpp, ggml/src/ggml-common.h (structs) and ggml/src/ggml-quants.c (dequantize_row_*).
"""

from __future__ import annotations

import numpy as np

from quantscope.decode.bits import unpack_words
from quantscope.decode.ggml.block import (
    BitSpans,
    Blocks,
    BlockType,
    Codes,
    block_field,
    gather,
    place_runs,
    split_crumbs,
)
from quantscope.decode.small_floats import Table


def _trits(fractions: Blocks) -> Codes:
    """Return the top base-3 digit of fractions of 256, uint8 0..2."""
    codes = (fractions >= 86).view(np.uint8)
    codes += (fractions >= 171).view(np.uint8)
    return codes


class Tq1(BlockType, frozen=True, kw_only=True, eq=False):
    """Five trits a byte for 240 elements, four a byte for the last 16; code 0..2 stands for -1..1.

    A byte is ceil(256 * x / 243) for a five-digit number x; digit n is the top digit of byte * 3**n mod 256.
    """

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..2."""
        out = np.empty((blocks.shape[0], 256), np.uint8)
        wide, narrow, last = gather(blocks, 0, 32), gather(blocks, 32, 16), gather(blocks, 48, 4)
        for digit in range(5):
            place_runs(_trits(wide), out, 32 * digit)
            place_runs(_trits(narrow), out, 160 + 16 * digit)
            if digit < 4:
                out[:, 240 + 4 * digit : 244 + 4 * digit] = _trits(last)
            for fractions in (wide, narrow, last):
                np.multiply(fractions, np.uint8(3), out=fractions)
        return out

    def code_bits(self, element: int) -> BitSpans:
        """Return the whole byte that the element's base-3 digit is part of."""
        if element < 160:
            byte = element % 32
        elif element < 240:
            byte = 32 + element % 16
        else:
            byte = 48 + element % 4
        return ((byte, 0, 8),)


class Tq2(BlockType, frozen=True, kw_only=True, eq=False):
    """2-bit codes as in Q2_K; code 3 stands for +2, which no writer gives."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..3."""
        return split_crumbs(gather(blocks, 0, 64))

    def code_bits(self, element: int) -> BitSpans:
        """Return the two bits of the element."""
        half, rest = divmod(element, 128)
        return ((32 * half + rest % 32, rest // 32 * 2, 2),)


class SignBits(BlockType, frozen=True, kw_only=True, eq=False):
    """Q1_0: one bit an element, lowest bit first; set is +d, clear is -d."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0 and 1."""
        return np.unpackbits(gather(blocks, 2, 16), axis=1, bitorder="little")

    def code_bits(self, element: int) -> BitSpans:
        """Return the bit of the element."""
        return ((2 + element // 8, element % 8, 1),)


class Crumbs(BlockType, frozen=True, kw_only=True, eq=False):
    """Q2_0: 2-bit codes in order, lowest bits first; code 0..3 stands for -1..2."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..3."""
        return unpack_words(gather(blocks, 2, 16), 2)

    def code_bits(self, element: int) -> BitSpans:
        """Return the two bits of the element."""
        return ((2 + element // 4, element % 4 * 2, 2),)


def _signs() -> Table:
    table = np.array([-1, 1], np.float32)
    table.flags.writeable = False
    return table


TQ1_0 = Tq1(
    name="TQ1_0",
    type_id=34,
    block_size=256,
    type_bytes=54,
    sub_block=256,
    fields=(
        block_field("qs", 0, 48, "five trits a byte as a fraction of 256: 32 bytes, then 16 bytes"),
        block_field("qh", 48, 4, "four trits a byte, elements 240-255"),
        block_field("d", 52, 2, "scale, f16"),
    ),
    code_bits_width=0,
    scale_rule="d",
    zero=1,
)
TQ2_0 = Tq2(
    name="TQ2_0",
    type_id=35,
    block_size=256,
    type_bytes=66,
    sub_block=256,
    fields=(
        block_field("qs", 0, 64, "2-bit codes: byte 32h+l holds elements 128h+l, +32, +64, +96"),
        block_field("d", 64, 2, "scale, f16"),
    ),
    code_bits_width=2,
    scale_rule="d",
    zero=1,
)
Q1_0 = SignBits(
    name="Q1_0",
    type_id=41,
    block_size=128,
    type_bytes=18,
    sub_block=128,
    fields=(
        block_field("d", 0, 2, "scale, f16"),
        block_field("qs", 2, 16, "sign bits, set is plus"),
    ),
    code_bits_width=1,
    code_kind="lut",
    scale_rule="d",
    lut=_signs(),
)
Q2_0 = Crumbs(
    name="Q2_0",
    type_id=42,
    block_size=64,
    type_bytes=18,
    sub_block=64,
    fields=(block_field("d", 0, 2, "scale, f16"), block_field("qs", 2, 16, "2-bit codes in order")),
    code_bits_width=2,
    scale_rule="d",
    zero=1,
)

TYPES: tuple[BlockType, ...] = (TQ1_0, TQ2_0, Q1_0, Q2_0)
