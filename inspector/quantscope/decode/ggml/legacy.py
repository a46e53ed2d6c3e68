"""The 16- and 32-element types: Q4_0, Q4_1, Q4_2, Q4_3, Q5_0, Q5_1, Q8_0, Q8_1 and the 8-bit Q8_K.

Source: llama.cpp, ggml/src/ggml-common.h (structs) and ggml/src/ggml-quants.c (dequantize_row_*).
"""

from __future__ import annotations

import numpy as np

from quantscope.decode.ggml.block import (
    BitSpans,
    Blocks,
    BlockType,
    Codes,
    Floats,
    block_field,
    gather,
    half_field,
    split_nibbles,
)


class NibbleHalves(BlockType, frozen=True, kw_only=True, eq=False):
    """Q4_0, Q4_1, Q5_0, Q5_1: byte j holds element j (low nibble) and j+16 (high); bit j of `qh` is the fifth bit."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes, 0..15 or 0..31."""
        out = np.empty((blocks.shape[0], 32), np.uint8)
        split_nibbles(gather(blocks, self.field("qs").byte_offset, 16), 16, out)
        if self.code_bits_width == 5:
            high = gather(blocks, self.field("qh").byte_offset, 4)
            fifth = np.unpackbits(high.reshape(-1), bitorder="little")
            np.left_shift(fifth, np.uint8(4), out=fifth)
            out |= fifth.reshape(-1, 32)
        return out

    def minimums(self, blocks: Blocks) -> Floats | None:
        """Return m, float32 [n, 1], which is added; None for the types without one."""
        return self.super_minimum(blocks)

    def super_minimum(self, blocks: Blocks) -> Floats | None:
        """Return m, float32 [n, 1], or None."""
        if self.minimum_sign == "none":
            return None
        return half_field(blocks, self.field("m").byte_offset)

    def super_minimum_bits(self) -> BitSpans:
        """Return the bits of m; empty for the types without one."""
        return () if self.minimum_sign == "none" else self.field_bits("m")

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element, then its fifth bit."""
        byte = self.field("qs").byte_offset + element % 16
        spans = ((byte, 4 * (element // 16), 4),)
        if self.code_bits_width == 4:
            return spans
        return (*spans, (self.field("qh").byte_offset + element // 8, element % 8, 1))


class NibblePairs(NibbleHalves, frozen=True, kw_only=True, eq=False):
    """The removed Q4_2 and Q4_3: 16 elements, byte j holds elements 2j (low nibble) and 2j+1 (high)."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..15."""
        packed = gather(blocks, self.field("qs").byte_offset, 8)
        out = np.empty((blocks.shape[0], 16), np.uint8)
        np.bitwise_and(packed, np.uint8(15), out=out[:, 0::2])
        np.right_shift(packed, np.uint8(4), out=out[:, 1::2])
        return out

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element."""
        return ((self.field("qs").byte_offset + element // 2, 4 * (element % 2), 4),)


class SignedBytes(BlockType, frozen=True, kw_only=True, eq=False):
    """Q8_0, Q8_1, Q8_K: one int8 an element."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return int8 codes."""
        out = np.empty((blocks.shape[0], self.block_size), np.uint8)
        first = self.field("qs").byte_offset
        if self.block_size == 32:
            out = gather(blocks, first, 32)
        else:
            np.copyto(out, blocks[:, first : first + self.block_size])
        return out.view(np.int8)

    def super_scale(self, blocks: Blocks) -> Floats:
        """Return d, float32 [n, 1]."""
        field = self.field("d")
        if field.nbytes == 4:
            return gather(blocks, field.byte_offset, 4).view("<f4").astype(np.float32, copy=False)
        return half_field(blocks, field.byte_offset)

    def code_bits(self, element: int) -> BitSpans:
        """Return the byte of the element."""
        return ((self.field("qs").byte_offset + element, 0, 8),)


_D = block_field("d", 0, 2, "scale, f16")
_M = block_field("m", 2, 2, "minimum, f16, added")
_HALVES = "4-bit codes: low nibbles elements 0-15, high nibbles 16-31"
_FIFTH = "fifth bits, bit j of the 32-bit word is element j's"
_PAIRS = "4-bit codes: low nibble the even element, high nibble the odd one"

Q4_0 = NibbleHalves(
    name="Q4_0",
    type_id=2,
    block_size=32,
    type_bytes=18,
    sub_block=32,
    fields=(_D, block_field("qs", 2, 16, _HALVES)),
    code_bits_width=4,
    scale_rule="d",
    zero=8,
)
Q4_1 = NibbleHalves(
    name="Q4_1",
    type_id=3,
    block_size=32,
    type_bytes=20,
    sub_block=32,
    fields=(_D, _M, block_field("qs", 4, 16, _HALVES)),
    code_bits_width=4,
    scale_rule="d",
    minimum_sign="plus",
)
Q4_2 = NibblePairs(
    name="Q4_2",
    type_id=4,
    block_size=16,
    type_bytes=10,
    sub_block=16,
    fields=(_D, block_field("qs", 2, 8, _PAIRS + " (order not proved)")),
    code_bits_width=4,
    scale_rule="d",
    zero=8,
)
Q4_3 = NibblePairs(
    name="Q4_3",
    type_id=5,
    block_size=16,
    type_bytes=12,
    sub_block=16,
    fields=(_D, _M, block_field("qs", 4, 8, _PAIRS + " (order not proved)")),
    code_bits_width=4,
    scale_rule="d",
    minimum_sign="plus",
)
Q5_0 = NibbleHalves(
    name="Q5_0",
    type_id=6,
    block_size=32,
    type_bytes=22,
    sub_block=32,
    fields=(_D, block_field("qh", 2, 4, _FIFTH), block_field("qs", 6, 16, _HALVES)),
    code_bits_width=5,
    scale_rule="d",
    zero=16,
)
Q5_1 = NibbleHalves(
    name="Q5_1",
    type_id=7,
    block_size=32,
    type_bytes=24,
    sub_block=32,
    fields=(_D, _M, block_field("qh", 4, 4, _FIFTH), block_field("qs", 8, 16, _HALVES)),
    code_bits_width=5,
    scale_rule="d",
    minimum_sign="plus",
)
Q8_0 = SignedBytes(
    name="Q8_0",
    type_id=8,
    block_size=32,
    type_bytes=34,
    sub_block=32,
    fields=(_D, block_field("qs", 2, 32, "int8 codes")),
    code_bits_width=8,
    scale_rule="d",
)
Q8_1 = SignedBytes(
    name="Q8_1",
    type_id=9,
    block_size=32,
    type_bytes=36,
    sub_block=32,
    fields=(
        _D,
        block_field("s", 2, 2, "d times the sum of the codes, f16; not needed to decode"),
        block_field("qs", 4, 32, "int8 codes"),
    ),
    code_bits_width=8,
    scale_rule="d",
)
Q8_K = SignedBytes(
    name="Q8_K",
    type_id=15,
    block_size=256,
    type_bytes=292,
    sub_block=256,
    fields=(
        block_field("d", 0, 4, "scale, f32"),
        block_field("qs", 4, 256, "int8 codes"),
        block_field("bsums", 260, 32, "sums of 16 codes each, int16; not needed to decode"),
    ),
    code_bits_width=8,
    scale_rule="d",
)

TYPES: tuple[BlockType, ...] = (Q4_0, Q4_1, Q4_2, Q4_3, Q5_0, Q5_1, Q8_0, Q8_1, Q8_K)
"""Every type of this module; the element order inside Q4_2 and Q4_3 bytes is not proved by a living source."""
