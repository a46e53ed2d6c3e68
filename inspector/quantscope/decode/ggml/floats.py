"""MXFP4 and NVFP4: FP4 E2M1 codes with an E8M0 or E4M3 scale, in ggml's reading and in the OCP reading.

The two readings differ at the edges only. ggml looks codes up in a table of doubled integers, so code 8 is
+0, and halves the scale: E8M0 0xFF is 2**127 (twice that value is not held), E4M3 0x7F is 0 and its sign bit
is ignored. In the OCP reading code 8 is -0.0, E8M0 0xFF and E4M3 0x7F are NaN, and a set sign bit of the
E4M3 scale counts.

Source: llama.cpp, ggml/src/ggml-common.h (structs, kvalues_mxfp4), ggml/src/ggml-impl.h (scales) and
ggml/src/ggml-quants.c; OCP MX v1.0.
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
    block_field,
    gather,
    split_nibbles,
)
from quantscope.decode.small_floats import Table, float_table


def _doubled() -> Table:
    table = float_table("e2m1_ggml") * np.float32(2)
    table.flags.writeable = False
    return table


def _halved(table: Table) -> Table:
    half = table * np.float32(0.5)
    half.flags.writeable = False
    return half


class _Fp4(BlockType, frozen=True, kw_only=True, eq=False):
    """Codes and byte scales of one layout; `scale_table` gives the value of each scale byte."""

    scale_table: Table
    run: int
    """Bytes whose low nibbles come before their high nibbles."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return uint8 E2M1 codes 0..15."""
        field = self.field("qs")
        out = np.empty((blocks.shape[0], self.block_size), np.uint8)
        split_nibbles(gather(blocks, field.byte_offset, field.nbytes), self.run, out)
        return out

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the scale bytes, uint8 [n, sub_blocks]."""
        field = self.fields[0]
        return gather(blocks, field.byte_offset, field.nbytes)

    def scales(self, blocks: Blocks) -> Floats:
        """Return the scale that multiplies `lut`, float32 [n, sub_blocks]."""
        return np.take(self.scale_table, self.scale_codes(blocks))

    def super_scale(self, blocks: Blocks) -> Floats:
        """Return ones, float32 [n, 1]: the second level of NVFP4 is another tensor."""
        return np.ones((blocks.shape[0], 1), np.float32)

    def super_scale_bits(self) -> BitSpans:
        """Return nothing: there is no second level in the block."""
        return ()

    def code_bits(self, element: int) -> BitSpans:
        """Return the nibble of the element."""
        chunk, rest = divmod(element, 2 * self.run)
        first = self.field("qs").byte_offset + self.run * chunk
        return ((first + rest % self.run, rest // self.run * 4, 4),)

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the scale byte of the sub-block."""
        return ((sub, 0, 8),)


def _mxfp4(reading: str, scale_rule: str, scale_table: Table, lut: Table) -> BlockType:
    return _Fp4(
        name="MXFP4",
        type_id=39,
        block_size=32,
        type_bytes=17,
        sub_block=32,
        fields=(
            block_field("e", 0, 1, "scale, E8M0"),
            block_field("qs", 1, 16, "E2M1 codes: low nibbles elements 0-15, high nibbles 16-31"),
        ),
        code_bits_width=4,
        code_kind="lut",
        scale_rule=scale_rule,
        lut=lut,
        reading=reading,
        scale_table=scale_table,
        run=16,
    )


def _nvfp4(reading: str, scale_rule: str, scale_table: Table, lut: Table) -> BlockType:
    return _Fp4(
        name="NVFP4",
        type_id=40,
        block_size=64,
        type_bytes=36,
        sub_block=16,
        fields=(
            block_field("d", 0, 4, "four scales, E4M3"),
            block_field(
                "qs", 4, 32, "E2M1 codes: of 8 bytes, low nibbles 8 elements, high the next 8"
            ),
        ),
        code_bits_width=4,
        code_kind="lut",
        scale_rule=scale_rule,
        lut=lut,
        reading=reading,
        scale_table=scale_table,
        run=8,
    )


MXFP4 = _mxfp4("ggml", "2**(code - 128)", float_table("e8m0_ggml_half"), _doubled())
MXFP4_OCP = _mxfp4("ocp", "2**(code - 127)", float_table("e8m0"), float_table("e2m1"))
NVFP4 = _nvfp4("ggml", "E4M3(code) / 2", _halved(float_table("ue4m3_ggml")), _doubled())
NVFP4_OCP = _nvfp4("ocp", "E4M3(code)", float_table("e4m3fn"), float_table("e2m1"))

TYPES: tuple[BlockType, ...] = (MXFP4, NVFP4)
OTHER_READINGS: tuple[BlockType, ...] = (MXFP4_OCP, NVFP4_OCP)
