"""The grid types: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M.

A grid type stores an index into a table of 4 or 8 magnitudes and a sign for each, so an element has no scalar
code of its own: `codes` gives the signed grid value as int8, `code_bits` the bits of the shared index and of
the sign. The grids are read from the gguf package.

Source: llama.cpp, ggml/src/ggml-common.h (structs, grids) and ggml/src/ggml-quants.c (dequantize_row_*).
"""

from __future__ import annotations

from functools import cache
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
)

_BLOCK = 256


@cache
def grid_table(name: str) -> NDArray[np.int8]:
    """Return the grid of a type, int8 [entries, 4 or 8], read-only, from the gguf package's tables.

    IQ1_S and IQ1_M share one grid of -1, 0, 1; the others hold magnitudes.
    """
    from gguf import quants

    source = getattr(quants, name)
    source.init_grid()
    grid: NDArray[np.int8] = source.grid.reshape(source.grid_shape).astype(np.int8)
    grid.flags.writeable = False
    return grid


@cache
def _packed_grid(name: str) -> NDArray[Any]:
    grid = grid_table(name)
    return grid.view(np.uint64 if grid.shape[1] == 8 else np.uint32).reshape(-1)


@cache
def _shifted_grid() -> NDArray[np.uint64]:
    """Return the IQ1 grid as 8*g + 1, then as 8*g - 1, packed eight a word."""
    grid = grid_table("IQ1_S") * np.int8(8)
    return np.concatenate([grid + np.int8(1), grid - np.int8(1)]).view(np.uint64).reshape(-1)


@cache
def _sign_masks() -> NDArray[np.uint64]:
    """Return 0xFF in the bytes of the set bits, for every sign byte."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return (bits * np.uint8(255)).view(np.uint64).reshape(-1)


@cache
def _even_sign_masks() -> NDArray[np.uint64]:
    """Return the masks of the 128 seven-bit sign indices; the eighth sign makes the number of minuses even."""
    index = np.arange(128, dtype=np.uint8)
    minuses = np.unpackbits(index[:, None], axis=1).sum(axis=1, dtype=np.uint8)
    masks: NDArray[np.uint64] = np.take(
        _sign_masks(), index | (minuses & np.uint8(1)) << np.uint8(7)
    )
    return masks


def _signed(grid: NDArray[Any], masks: NDArray[np.uint64]) -> Codes:
    """Negate the bytes of `grid` where `masks` has 0xFF; int8 [n, 256]."""
    values, negative = grid.view(np.uint8).reshape(-1), masks.view(np.uint8).reshape(-1)
    values ^= negative
    values -= negative
    return values.view(np.int8).reshape(-1, _BLOCK)


def _words(blocks: Blocks, byte_offset: int, count: int, dtype: str) -> NDArray[Any]:
    nbytes = count * np.dtype(dtype).itemsize
    return gather(blocks, byte_offset, nbytes).view(dtype)


def _seven_bit_sign(element: int, byte_offset: int, low_bit: int) -> BitSpans:
    """Return the bit of the element's sign; for the eighth of a group all seven, whose parity it is."""
    place = element % 8
    return (
        bit_spans(byte_offset, low_bit + place, 1)
        if place < 7
        else bit_spans(byte_offset, low_bit, 7)
    )


class _HalfStep(TwoLevel, frozen=True, kw_only=True, eq=False):
    """Scale d * (0.5 + code) * factor."""

    factor: float

    def scales(self, blocks: Blocks) -> Floats:
        """Return d * (0.5 + code) * factor, float32 [n, sub_blocks]."""
        scales = super().scales(blocks)
        scales *= np.float32(self.factor)
        return scales

    def _multiplier(self, codes: NDArray[Any]) -> Floats:
        return codes.astype(np.float32) + np.float32(0.5)


def _odd(codes: NDArray[Any]) -> Floats:
    return (codes * np.uint8(2) + np.uint8(1)).astype(np.float32)


class Iq2Xxs(_HalfStep, frozen=True, kw_only=True, eq=False):
    """Per 32 elements: four grid bytes, then a word of four 7-bit sign indices and a 4-bit scale."""

    def _quads(self, blocks: Blocks) -> NDArray[np.uint32]:
        return _words(blocks, 2, 16, "<u4").reshape(-1, 8, 2)

    def codes(self, blocks: Blocks) -> Codes:
        """Return the signed grid values, int8."""
        quads = self._quads(blocks)
        index = np.ascontiguousarray(quads[..., 0]).view(np.uint8)
        shifts = np.array([0, 7, 14, 21], np.uint32)
        signs = (quads[..., 1, None] >> shifts) & np.uint32(127)
        return _signed(np.take(_packed_grid("IQ2_XXS"), index), np.take(_even_sign_masks(), signs))

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 4-bit scales, uint8 [n, 8]."""
        return (self._quads(blocks)[..., 1] >> np.uint32(28)).astype(np.uint8)

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid byte shared by eight elements, then the sign."""
        chunk, group = element // 32, element % 32 // 8
        sign = _seven_bit_sign(element, 6 + 8 * chunk, 7 * group)
        return ((2 + 8 * chunk + group, 0, 8), *sign)

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the top four bits of the chunk's word."""
        return ((9 + 8 * sub, 4, 4),)


class Iq2Xs(_HalfStep, frozen=True, kw_only=True, eq=False):
    """Per eight elements a 16-bit word: 9-bit grid index and 7-bit sign index; a 4-bit scale per 16."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return the signed grid values, int8."""
        words = _words(blocks, 2, 32, "<u2")
        grid = np.take(_packed_grid("IQ2_XS"), words & np.uint16(511))
        return _signed(grid, np.take(_even_sign_masks(), words >> np.uint16(9)))

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 4-bit scales, uint8 [n, 16]."""
        return interleaved_nibbles(gather(blocks, 66, 8))

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid index shared by eight elements, then the sign."""
        word = 2 + element // 8 * 2
        return (*bit_spans(word, 0, 9), *_seven_bit_sign(element, word, 9))

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the nibble of the sub-block."""
        return ((66 + sub // 2, sub % 2 * 4, 4),)


class Iq2S(_HalfStep, frozen=True, kw_only=True, eq=False):
    """Per eight elements a 10-bit grid index (8 bits in `qs`, 2 in `qh`) and a sign byte; a 4-bit scale per 16."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return the signed grid values, int8."""
        high = (gather(blocks, 66, 8)[..., None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
        index = gather(blocks, 2, 32) | (high.reshape(-1, 32).astype(np.uint16) << np.uint16(8))
        masks = np.take(_sign_masks(), gather(blocks, 34, 32))
        return _signed(np.take(_packed_grid("IQ2_S"), index), masks)

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 4-bit scales, uint8 [n, 16]."""
        return interleaved_nibbles(gather(blocks, 74, 8))

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid index shared by eight elements, then the sign bit."""
        group = element // 8
        high = (66 + group // 4, group % 4 * 2, 2)
        return ((2 + group, 0, 8), high, (34 + group, element % 8, 1))

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the nibble of the sub-block."""
        return ((74 + sub // 2, sub % 2 * 4, 4),)


class Iq3Xxs(_HalfStep, frozen=True, kw_only=True, eq=False):
    """Per four elements a grid byte; per 32 a word of four 7-bit sign indices and a 4-bit scale."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return the signed grid values, int8."""
        words = _words(blocks, 66, 8, "<u4")
        signs = (words[..., None] >> np.array([0, 7, 14, 21], np.uint32)) & np.uint32(127)
        grid = np.take(_packed_grid("IQ3_XXS"), gather(blocks, 2, 64))
        return _signed(grid, np.take(_even_sign_masks(), signs))

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 4-bit scales, uint8 [n, 8]."""
        return (_words(blocks, 66, 8, "<u4") >> np.uint32(28)).astype(np.uint8)

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid byte shared by four elements, then the sign."""
        sign = _seven_bit_sign(element, 66 + element // 32 * 4, 7 * (element % 32 // 8))
        return ((2 + element // 4, 0, 8), *sign)

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the top four bits of the chunk's word."""
        return ((69 + 4 * sub, 4, 4),)


class Iq3S(TwoLevel, frozen=True, kw_only=True, eq=False):
    """Per four elements a 9-bit grid index (8 bits in `qs`, 1 in `qh`), a sign byte per eight, a 4-bit scale per 32."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return the signed grid values, int8."""
        high = np.unpackbits(gather(blocks, 66, 8), axis=1, bitorder="little")
        index = gather(blocks, 2, 64) | (high.astype(np.uint16) << np.uint16(8))
        masks = np.take(_sign_masks(), gather(blocks, 74, 32))
        return _signed(np.take(_packed_grid("IQ3_S"), index), masks)

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 4-bit scales, uint8 [n, 8]."""
        return interleaved_nibbles(gather(blocks, 106, 4))

    def _multiplier(self, codes: NDArray[Any]) -> Floats:
        return _odd(codes)

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid index shared by four elements, then the sign bit."""
        quad = element // 4
        return (
            (2 + quad, 0, 8),
            (66 + quad // 8, quad % 8, 1),
            (74 + element // 8, element % 8, 1),
        )

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the nibble of the sub-block."""
        return ((106 + sub // 2, sub % 2 * 4, 4),)


class _Ternary(TwoLevel, frozen=True, kw_only=True, eq=False):
    """IQ1: values are dl * (g + 1/8) or dl * (g - 1/8), kept exactly as dl/8 times codes 8g+1 and 8g-1."""

    def scales(self, blocks: Blocks) -> Floats:
        """Return d * (1 + 2 * code) / 8, float32 [n, sub_blocks]."""
        scales = super().scales(blocks)
        scales *= np.float32(0.125)
        return scales

    def _multiplier(self, codes: NDArray[Any]) -> Floats:
        return _odd(codes)


class Iq1S(_Ternary, frozen=True, kw_only=True, eq=False):
    """Per eight elements an 11-bit grid index; per 32 a 3-bit scale and the sign of the shift by 1/8."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return 8*grid + 1 or 8*grid - 1, int8."""
        head = _words(blocks, 34, 8, "<u2")[..., None]
        high = (head >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
        high |= (head >> np.uint16(15)) << np.uint16(3)
        index = gather(blocks, 2, 32) | (high.reshape(-1, 32) << np.uint16(8))
        return np.take(_shifted_grid(), index).view(np.int8).reshape(-1, _BLOCK)

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 3-bit scales, uint8 [n, 8]."""
        return ((_words(blocks, 34, 8, "<u2") >> np.uint16(12)) & np.uint16(7)).astype(np.uint8)

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid index shared by eight elements, then the sign of the shift."""
        chunk, group = element // 32, element % 32 // 8
        word = 34 + 2 * chunk
        return ((2 + element // 8, 0, 8), *bit_spans(word, 3 * group, 3), *bit_spans(word, 15, 1))

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the three bits of the chunk's scale."""
        return ((35 + 2 * sub, 4, 3),)


class Iq1M(_Ternary, frozen=True, kw_only=True, eq=False):
    """As IQ1_S with a shift sign per eight and a 3-bit scale per 16; d lies in four spare nibbles."""

    def codes(self, blocks: Blocks) -> Codes:
        """Return 8*grid + 1 or 8*grid - 1, int8."""
        high = interleaved_nibbles(gather(blocks, 32, 16)).astype(np.uint16)
        index = gather(blocks, 0, 32) | (high << np.uint16(8))
        return np.take(_shifted_grid(), index).view(np.int8).reshape(-1, _BLOCK)

    def scale_codes(self, blocks: Blocks) -> NDArray[Any]:
        """Return the 3-bit scales, uint8 [n, 16]."""
        words = _words(blocks, 48, 4, "<u2")[..., None]
        fields = (words >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
        return fields.reshape(-1, 16).astype(np.uint8)

    def super_scale(self, blocks: Blocks) -> Floats:
        """Return d from the top nibbles of the four scale words, float32 [n, 1]."""
        tops = _words(blocks, 48, 4, "<u2") & np.uint16(0xF000)
        half = np.bitwise_or.reduce(
            tops >> np.array([12, 8, 4, 0], np.uint16), axis=1, keepdims=True
        )
        return half.view(np.float16).astype(np.float32)

    def super_scale_bits(self) -> BitSpans:
        """Return the four nibbles of d, lowest first."""
        return tuple((49 + 2 * word, 4, 4) for word in range(4))

    def code_bits(self, element: int) -> BitSpans:
        """Return the grid index shared by eight elements, then the sign of the shift."""
        group = element // 8
        byte, low = 32 + group // 2, group % 2 * 4
        return ((group, 0, 8), (byte, low, 3), (byte, low + 3, 1))

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the three bits of the sub-block's scale."""
        return bit_spans(48 + sub // 4 * 2, sub % 4 * 3, 3)


_D = block_field("d", 0, 2, "scale of the scales, f16")
_NIBBLE_SCALES = "4-bit scales, low nibble first"

IQ2_XXS = Iq2Xxs(
    name="IQ2_XXS",
    type_id=16,
    block_size=_BLOCK,
    type_bytes=66,
    sub_block=32,
    fields=(
        _D,
        block_field(
            "qs", 2, 64, "per 32: four grid bytes, then four 7-bit sign indices and a 4-bit scale"
        ),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (0.5 + code) * 0.25",
    factor=0.25,
)
IQ2_XS = Iq2Xs(
    name="IQ2_XS",
    type_id=17,
    block_size=_BLOCK,
    type_bytes=74,
    sub_block=16,
    fields=(
        _D,
        block_field("qs", 2, 64, "per 8: 9-bit grid index, 7-bit sign index"),
        block_field("scales", 66, 8, _NIBBLE_SCALES),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (0.5 + code) * 0.25",
    factor=0.25,
)
IQ2_S = Iq2S(
    name="IQ2_S",
    type_id=22,
    block_size=_BLOCK,
    type_bytes=82,
    sub_block=16,
    fields=(
        _D,
        block_field("qs", 2, 32, "low 8 bits of the grid indices, one per 8"),
        block_field("signs", 34, 32, "sign bits"),
        block_field("qh", 66, 8, "high 2 bits of the grid indices"),
        block_field("scales", 74, 8, _NIBBLE_SCALES),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (0.5 + code) * 0.25",
    factor=0.25,
)
IQ3_XXS = Iq3Xxs(
    name="IQ3_XXS",
    type_id=18,
    block_size=_BLOCK,
    type_bytes=98,
    sub_block=32,
    fields=(
        _D,
        block_field("qs", 2, 64, "grid indices, one per 4"),
        block_field("signs_scales", 66, 32, "per 32: four 7-bit sign indices and a 4-bit scale"),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (0.5 + code) * 0.5",
    factor=0.5,
)
IQ3_S = Iq3S(
    name="IQ3_S",
    type_id=21,
    block_size=_BLOCK,
    type_bytes=110,
    sub_block=32,
    fields=(
        _D,
        block_field("qs", 2, 64, "low 8 bits of the grid indices, one per 4"),
        block_field("qh", 66, 8, "high bit of the grid indices"),
        block_field("signs", 74, 32, "sign bits"),
        block_field("scales", 106, 4, _NIBBLE_SCALES),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (1 + 2 * code)",
)
IQ1_S = Iq1S(
    name="IQ1_S",
    type_id=19,
    block_size=_BLOCK,
    type_bytes=50,
    sub_block=32,
    fields=(
        _D,
        block_field("qs", 2, 32, "low 8 bits of the grid indices, one per 8"),
        block_field(
            "qh", 34, 16, "per 32: four times 3 high bits, a 3-bit scale, the sign of the shift"
        ),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (1 + 2 * code) / 8",
)
IQ1_M = Iq1M(
    name="IQ1_M",
    type_id=29,
    block_size=_BLOCK,
    type_bytes=56,
    sub_block=16,
    fields=(
        block_field("qs", 0, 32, "low 8 bits of the grid indices, one per 8"),
        block_field("qh", 32, 16, "per 8: 3 high bits and the sign of the shift"),
        block_field("scales", 48, 8, "per 64: four 3-bit scales and a nibble of d, f16"),
    ),
    code_bits_width=0,
    code_kind="grid",
    scale_rule="d * (1 + 2 * code) / 8",
)
TYPES: tuple[BlockType, ...] = (IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ3_S, IQ2_S, IQ1_M)
