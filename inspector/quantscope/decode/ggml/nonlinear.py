"""The types whose codes index sixteen uneven levels: IQ4_NL and IQ4_XS.

Source: llama.cpp, ggml/src/ggml-common.h (structs, kvalues_iq4nl) and ggml/src/ggml-quants.c
(dequantize_row_*).
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
    bit_spans,
    block_field,
    gather,
    interleaved_nibbles,
    split_nibbles,
)
from quantscope.decode.small_floats import IQ4_NL as LEVELS


class Iq4Nl(BlockType, frozen=True, kw_only=True, eq=False):
    """4-bit indices into sixteen levels: byte j holds element j (low nibble) and j+16 (high)."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 indices 0..15."""
        out = np.empty((blocks.shape[0], 32), np.uint8)
        split_nibbles(gather(blocks, 2, 16), 16, out)
        return out

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element."""
        return ((2 + element % 16, element // 16 * 4, 4),)


class Iq4Xs(TwoLevel, frozen=True, kw_only=True, eq=False):
    """Eight chunks of 32 indices as in IQ4_NL, each with a 6-bit scale minus 32."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 indices 0..15."""
        out = np.empty((blocks.shape[0], 256), np.uint8)
        split_nibbles(gather(blocks, 8, 128), 16, out)
        return out

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 6-bit scales as stored, uint8 [n, 8]; 32 is subtracted before use."""
        high = gather(blocks, 2, 2).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
        low = interleaved_nibbles(gather(blocks, 4, 4))
        return low | ((high & np.uint16(3)).astype(np.uint8) << np.uint8(4))

    def _multiplier(self, codes: NDArray[Any]) -> Floats:
        return (codes.view(np.int8) - np.int8(32)).astype(np.float32)

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element."""
        chunk, rest = divmod(element, 32)
        return ((8 + 16 * chunk + rest % 16, rest // 16 * 4, 4),)

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the four low bits, then the two high bits of the chunk's scale."""
        return ((4 + sub // 2, sub % 2 * 4, 4), *bit_spans(2, 2 * sub, 2))


IQ4_NL = Iq4Nl(
    name="IQ4_NL",
    type_id=20,
    block_size=32,
    type_bytes=18,
    sub_block=32,
    fields=(
        block_field("d", 0, 2, "scale, f16"),
        block_field("qs", 2, 16, "4-bit indices: low nibbles elements 0-15, high nibbles 16-31"),
    ),
    code_bits_width=4,
    code_kind="lut",
    scale_rule="d",
    lut=LEVELS,
)
IQ4_XS = Iq4Xs(
    name="IQ4_XS",
    type_id=23,
    block_size=256,
    type_bytes=136,
    sub_block=32,
    fields=(
        block_field("d", 0, 2, "scale of the scales, f16"),
        block_field("scales_h", 2, 2, "high 2 bits of the eight scales"),
        block_field("scales_l", 4, 4, "low 4 bits of the eight scales, low nibble first"),
        block_field(
            "qs", 8, 128, "4-bit indices: of 16 bytes, low nibbles 16 elements, high the next 16"
        ),
    ),
    code_bits_width=4,
    code_kind="lut",
    scale_rule="d * (code - 32)",
    lut=LEVELS,
)

TYPES: tuple[BlockType, ...] = (IQ4_NL, IQ4_XS)
