"""The 256-element K types: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

Source: llama.cpp, ggml/src/ggml-common.h (structs) and ggml/src/ggml-quants.c (dequantize_row_*,
get_scale_min_k4).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantscope.decode.ggml.block import (
    BitSpans,
    Blocks,
    BlockType,
    Codes,
    Floats,
    TwoLevel,
    block_field,
    gather,
    split_bits,
    split_crumbs,
    split_nibbles,
)

_BLOCK = 256


class Q2K(TwoLevel, frozen=True, kw_only=True, eq=False):
    """2-bit codes, 16 sub-blocks with a 4-bit scale and a 4-bit minimum each."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..3."""
        return split_crumbs(gather(blocks, 16, 64))

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the low nibbles of `scales`, uint8 [n, 16]."""
        return gather(blocks, 0, 16) & np.uint8(15)

    def minimum_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the high nibbles of `scales`, uint8 [n, 16]."""
        return gather(blocks, 0, 16) >> np.uint8(4)

    def code_bits(self, element: int) -> BitSpans:
        """Return the two bits of the element."""
        half, rest = divmod(element, 128)
        return ((16 + 32 * half + rest % 32, rest // 32 * 2, 2),)

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the scale nibble of the sub-block."""
        return ((sub, 0, 4),)

    def minimum_bits(self, sub: int) -> BitSpans:
        """Return the minimum nibble of the sub-block."""
        return ((sub, 4, 4),)


class Q3K(TwoLevel, frozen=True, kw_only=True, eq=False):
    """3-bit codes in two planes (2 low bits, 1 high bit), 16 sub-blocks with a 6-bit scale minus 32 each."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..7; the bit of `hmask` is the highest."""
        out = split_crumbs(gather(blocks, 32, 64))
        out |= split_bits(gather(blocks, 0, 32), 2)
        return out

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 6-bit scales as stored, uint8 [n, 16]; 32 is subtracted before use."""
        packed = gather(blocks, 96, 12)
        out = np.empty((blocks.shape[0], 16), np.uint8)
        out[:, :8] = packed[:, :8] & np.uint8(15)
        out[:, 8:] = packed[:, :8] >> np.uint8(4)
        for quarter in range(4):
            high = (packed[:, 8:] >> np.uint8(2 * quarter)) & np.uint8(3)
            out[:, 4 * quarter : 4 * quarter + 4] |= high << np.uint8(4)
        return out

    def _multiplier(self, codes: NDArray[Any]) -> Floats:
        return (codes.view(np.int8) - np.int8(32)).astype(np.float32)

    def code_bits(self, element: int) -> BitSpans:
        """Return the two low bits, then the bit of `hmask`."""
        half, rest = divmod(element, 128)
        low = (32 + 32 * half + rest % 32, rest // 32 * 2, 2)
        return (low, (element % 32, element // 32, 1))

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the four low bits, then the two high bits of the sub-block's scale."""
        return ((96 + sub % 8, sub // 8 * 4, 4), (104 + sub % 4, sub // 4 * 2, 2))


class _SixBitPairs(TwoLevel, frozen=True, kw_only=True, eq=False):
    """Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minimums in twelve bytes at offset 4."""

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 6-bit scales, uint8 [n, 8]."""
        packed = gather(blocks, 4, 12)
        out = np.empty((blocks.shape[0], 8), np.uint8)
        out[:, :4] = packed[:, :4] & np.uint8(63)
        out[:, 4:] = (packed[:, 8:] & np.uint8(15)) | (
            (packed[:, :4] >> np.uint8(2)) & np.uint8(48)
        )
        return out

    def minimum_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 6-bit minimums, uint8 [n, 8]."""
        packed = gather(blocks, 4, 12)
        out = np.empty((blocks.shape[0], 8), np.uint8)
        out[:, :4] = packed[:, 4:8] & np.uint8(63)
        out[:, 4:] = (packed[:, 8:] >> np.uint8(4)) | (
            (packed[:, 4:8] >> np.uint8(2)) & np.uint8(48)
        )
        return out

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the bits of the sub-block's scale, low ones first."""
        return ((4 + sub, 0, 6),) if sub < 4 else ((8 + sub, 0, 4), (sub, 6, 2))

    def minimum_bits(self, sub: int) -> BitSpans:
        """Return the bits of the sub-block's minimum, low ones first."""
        return ((8 + sub, 0, 6),) if sub < 4 else ((8 + sub, 4, 4), (4 + sub, 6, 2))


class Q4K(_SixBitPairs, frozen=True, kw_only=True, eq=False):
    """4-bit codes: 64 elements take 32 bytes, low nibbles first."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..15."""
        out = np.empty((blocks.shape[0], _BLOCK), np.uint8)
        split_nibbles(gather(blocks, 16, 128), 32, out)
        return out

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element."""
        chunk, rest = divmod(element, 64)
        return ((16 + 32 * chunk + rest % 32, rest // 32 * 4, 4),)


class Q5K(_SixBitPairs, frozen=True, kw_only=True, eq=False):
    """4-bit codes as in Q4_K with a fifth bit in `qh`."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..31."""
        out = np.empty((blocks.shape[0], _BLOCK), np.uint8)
        split_nibbles(gather(blocks, 48, 128), 32, out)
        out |= split_bits(gather(blocks, 16, 32), 4)
        return out

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element, then its fifth bit."""
        chunk, rest = divmod(element, 64)
        low = (48 + 32 * chunk + rest % 32, rest // 32 * 4, 4)
        return (low, (16 + element % 32, element // 32, 1))


class Q6K(TwoLevel, frozen=True, kw_only=True, eq=False):
    """6-bit codes in two planes (4 low bits, 2 high bits), 16 sub-blocks with an int8 scale each."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 codes 0..63."""
        out = np.empty((blocks.shape[0], _BLOCK), np.uint8)
        split_nibbles(gather(blocks, 0, 128), 64, out)
        high = split_crumbs(gather(blocks, 128, 64))
        high <<= np.uint8(4)
        out |= high
        return out

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the int8 scales, [n, 16]."""
        return gather(blocks, 192, 16).view(np.int8)

    def code_bits(self, element: int) -> BitSpans:
        """Return the four low bits, then the two high bits."""
        half, rest = divmod(element, 128)
        low = (64 * half + rest % 64, rest // 64 * 4, 4)
        return (low, (128 + 32 * half + rest % 32, rest // 32 * 2, 2))

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the byte of the sub-block's scale."""
        return ((192 + sub, 0, 8),)


_SIX_BIT_PAIRS = "eight 6-bit scales and eight 6-bit minimums"
_CRUMBS = "low 2 bits of each code: byte 32h+l holds elements 128h+l, +32, +64, +96"

Q2_K = Q2K(
    name="Q2_K",
    type_id=10,
    block_size=_BLOCK,
    type_bytes=84,
    sub_block=16,
    fields=(
        block_field(
            "scales", 0, 16, "low nibble 4-bit scale, high nibble 4-bit minimum of each sub-block"
        ),
        block_field("qs", 16, 64, "2-bit codes: byte 32h+l holds elements 128h+l, +32, +64, +96"),
        block_field("d", 80, 2, "scale of the scales, f16"),
        block_field("dmin", 82, 2, "scale of the minimums, f16"),
    ),
    code_bits_width=2,
    scale_rule="d * code",
    minimum_sign="minus",
)
Q3_K = Q3K(
    name="Q3_K",
    type_id=11,
    block_size=_BLOCK,
    type_bytes=110,
    sub_block=16,
    fields=(
        block_field("hmask", 0, 32, "high bit of each code: bit j of byte l is element 32j+l"),
        block_field("qs", 32, 64, _CRUMBS),
        block_field("scales", 96, 12, "sixteen 6-bit scales"),
        block_field("d", 108, 2, "scale of the scales, f16"),
    ),
    code_bits_width=3,
    scale_rule="d * (code - 32)",
    zero=4,
)
Q4_K = Q4K(
    name="Q4_K",
    type_id=12,
    block_size=_BLOCK,
    type_bytes=144,
    sub_block=32,
    fields=(
        block_field("d", 0, 2, "scale of the scales, f16"),
        block_field("dmin", 2, 2, "scale of the minimums, f16"),
        block_field("scales", 4, 12, _SIX_BIT_PAIRS),
        block_field(
            "qs",
            16,
            128,
            "4-bit codes: of 32 bytes, low nibbles 32 elements, high nibbles the next 32",
        ),
    ),
    code_bits_width=4,
    scale_rule="d * code",
    minimum_sign="minus",
)
Q5_K = Q5K(
    name="Q5_K",
    type_id=13,
    block_size=_BLOCK,
    type_bytes=176,
    sub_block=32,
    fields=(
        block_field("d", 0, 2, "scale of the scales, f16"),
        block_field("dmin", 2, 2, "scale of the minimums, f16"),
        block_field("scales", 4, 12, _SIX_BIT_PAIRS),
        block_field("qh", 16, 32, "fifth bit of each code: bit j of byte l is element 32j+l"),
        block_field(
            "qs",
            48,
            128,
            "low 4 bits: of 32 bytes, low nibbles 32 elements, high nibbles the next 32",
        ),
    ),
    code_bits_width=5,
    scale_rule="d * code",
    minimum_sign="minus",
)
Q6_K = Q6K(
    name="Q6_K",
    type_id=14,
    block_size=_BLOCK,
    type_bytes=210,
    sub_block=16,
    fields=(
        block_field(
            "ql",
            0,
            128,
            "low 4 bits: of 64 bytes, low nibbles 64 elements, high nibbles the next 64",
        ),
        block_field("qh", 128, 64, "high 2 bits: byte 32h+l holds elements 128h+l, +32, +64, +96"),
        block_field("scales", 192, 16, "int8 scale of each sub-block"),
        block_field("d", 208, 2, "scale of the scales, f16"),
    ),
    code_bits_width=6,
    scale_rule="d * code",
    zero=32,
)

TYPES: tuple[BlockType, ...] = (Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
