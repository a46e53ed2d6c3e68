"""What every ggml block type offers: fields, codes, scales, exact decode, and the bits of each element.

A block is a struct of `type_bytes` bytes that holds `block_size` elements of one row. Arrays of blocks are
uint8 [n, type_bytes]. All arithmetic is float32 with one rounding per step in the order of llama.cpp's
`dequantize_row_*` (ggml/src/ggml-quants.c); half scales are widened first.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantscope.decode.small_floats import Table
from quantscope.errors import UndecodableError

Blocks = NDArray[np.uint8]
"""uint8 [n, type_bytes]."""

Codes = NDArray[Any]
"""uint8 or int8 [n, block_size]."""

Floats = NDArray[np.float32]

BitSpans = tuple[tuple[int, int, int], ...]
"""(byte in the block, lowest bit in that byte, width), lowest bits of the value first."""

CodeKind = Literal["integer", "grid", "lut"]

_TILE_ELEMENTS = 256 * 1024
"""Elements decoded at a time: enough to hide numpy's cost per call, few enough for the last-level cache."""


class BlockField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the block struct."""

    name: str
    byte_offset: int
    nbytes: int
    meaning: str


class BlockType(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A ggml block type; subclasses say how its fields are read.

    The value of an element is `scale * (code - zero)`, or `scale * lut[code]` where there is a `lut`, then
    minus or plus the minimum of its sub-block where `minimum_sign` says so.
    """

    name: str
    type_id: int
    """Id in a GGUF tensor info. Source: llama.cpp, ggml/include/ggml.h."""
    block_size: int
    """Elements of a block."""
    type_bytes: int
    """Bytes of a block."""
    sub_block: int
    """Elements that share a scale; sub-block i holds elements i*sub_block onwards."""
    fields: tuple[BlockField, ...]
    code_bits_width: int
    """Bits that an element's code takes, 0 where it shares an index with others."""
    scale_rule: str
    """How the effective scale follows from the stored parts."""
    code_kind: CodeKind = "integer"
    """`integer`: the stored unsigned (or int8) code; `lut`: an index into `lut`; `grid`: the signed value that
    a shared index and its signs give, since no scalar code is stored."""
    zero: int = 0
    """What is subtracted from a code; the midpoint of symmetric types."""
    lut: Table | None = None
    minimum_sign: Literal["none", "minus", "plus"] = "none"
    """`minus`: the minimum is subtracted (K types); `plus`: it is added (Q4_1, Q5_1, Q4_3)."""
    reading: str = "ggml"
    """Whose reading of the scale bytes this is, where readers differ."""

    @property
    def combine(self) -> Literal["affine", "minus_min", "plus_min", "lut"]:
        """The rule that turns codes, scales and minimums into values."""
        if self.lut is not None:
            return "lut"
        if self.minimum_sign == "none":
            return "affine"
        return "minus_min" if self.minimum_sign == "minus" else "plus_min"

    @property
    def sub_blocks(self) -> int:
        """Sub-blocks of a block."""
        return self.block_size // self.sub_block

    def field(self, name: str) -> BlockField:
        """Return the field of that name.

        Raises:
            KeyError: the struct has no such field.
        """
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def codes(self, blocks: Blocks) -> Codes:
        """Return the codes as stored, [n, block_size]: uint8, or int8 where the type stores signed bytes or a grid."""
        raise NotImplementedError

    def scales(self, blocks: Blocks) -> Floats:
        """Return the effective scale of each sub-block, float32 [n, sub_blocks]."""
        return np.repeat(self.super_scale(blocks), self.sub_blocks, axis=1)

    def scale_codes(self, blocks: Blocks) -> NDArray[Any] | None:
        """Return the stored integer scale of each sub-block, [n, sub_blocks], or None where only d is stored."""
        return None

    def super_scale(self, blocks: Blocks) -> Floats:
        """Return d of each block, float32 [n, 1]; ones where the type has none."""
        return half_field(blocks, self.field("d").byte_offset)

    def minimums(self, blocks: Blocks) -> Floats | None:
        """Return the minimum of each sub-block, float32 [n, sub_blocks], or None; see `minimum_sign`."""
        return None

    def minimum_codes(self, blocks: Blocks) -> NDArray[Any] | None:
        """Return the stored integer minimum of each sub-block, [n, sub_blocks], or None."""
        return None

    def super_minimum(self, blocks: Blocks) -> Floats | None:
        """Return dmin (or m) of each block, float32 [n, 1], or None."""
        return None

    def dequantize(self, blocks: Blocks, out: Floats | None = None) -> Floats:
        """Decode blocks to float32 [n, block_size], bit-equal to ggml's own decoder.

        Args:
            blocks: uint8 [n, type_bytes].
            out: float32 [n, block_size], C-contiguous.

        Raises:
            UndecodableError: the blocks have another width.
        """
        blocks = self.check(blocks)
        if out is None:
            out = np.empty((blocks.shape[0], self.block_size), np.float32)
        step = max(1, _TILE_ELEMENTS // self.block_size)
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, blocks.shape[0], step):
                self._dequantize_tile(blocks[start : start + step], out[start : start + step])
        return out

    def check(self, blocks: Blocks) -> Blocks:
        """Return the blocks as a C-contiguous uint8 [n, type_bytes].

        Raises:
            UndecodableError: they have another rank, width or dtype.
        """
        if blocks.ndim != 2 or blocks.shape[1] != self.type_bytes or blocks.dtype != np.uint8:
            raise UndecodableError(
                f"{self.name} blocks are {self.type_bytes} bytes each, not {blocks.dtype} {blocks.shape}"
            )
        return np.ascontiguousarray(blocks)

    def code_bits(self, element: int) -> BitSpans:
        """Return the bits that decide the code of an element of the block."""
        raise NotImplementedError

    def scale_bits(self, sub: int) -> BitSpans:
        """Return the bits of the scale of sub-block `sub` itself; those of d where it has no own."""
        return self.super_scale_bits()

    def super_scale_bits(self) -> BitSpans:
        """Return the bits of d; empty where the type has none."""
        return self.field_bits("d")

    def minimum_bits(self, sub: int) -> BitSpans:
        """Return the bits of the minimum of sub-block `sub`; empty where there is none."""
        return self.super_minimum_bits()

    def super_minimum_bits(self) -> BitSpans:
        """Return the bits of dmin or m; empty where the type has none."""
        return ()

    def field_bits(self, name: str) -> BitSpans:
        """Return every bit of a field, byte by byte."""
        field = self.field(name)
        return tuple((field.byte_offset + byte, 0, 8) for byte in range(field.nbytes))

    def _dequantize_tile(self, blocks: Blocks, out: Floats) -> None:
        codes = self.codes(blocks)
        flat = out.reshape(-1)
        if self.lut is not None:
            lookup_pairs(codes, self.lut, out)
        else:
            np.copyto(out, codes if self.zero == 0 else minus_zero(codes, self.zero))
        flat *= np.repeat(self.scales(blocks).reshape(-1), self.sub_block)
        minimums = self.minimums(blocks)
        if minimums is not None:
            spread = np.repeat(minimums.reshape(-1), self.sub_block)
            if self.minimum_sign == "minus":
                flat -= spread
            else:
                flat += spread


class TwoLevel(BlockType, frozen=True, kw_only=True, eq=False):
    """Sub-block scales are integers times d; minimums, where there are any, integers times dmin."""

    def scales(self, blocks: Blocks) -> Floats:
        """Return d times what `scale_rule` makes of the sub-block's integer, float32 [n, sub_blocks]."""
        codes = self.scale_codes(blocks)
        assert codes is not None
        return times(self.super_scale(blocks), self._multiplier(codes))

    def minimums(self, blocks: Blocks) -> Floats | None:
        """Return dmin times the sub-block's integer, float32 [n, sub_blocks], subtracted; None without one."""
        codes = self.minimum_codes(blocks)
        low = self.super_minimum(blocks)
        return None if codes is None or low is None else times(low, codes.astype(np.float32))

    def super_minimum(self, blocks: Blocks) -> Floats | None:
        """Return dmin, float32 [n, 1], or None."""
        if self.minimum_sign == "none":
            return None
        return half_field(blocks, self.field("dmin").byte_offset)

    def super_minimum_bits(self) -> BitSpans:
        """Return the bits of dmin; empty where there is none."""
        return () if self.minimum_sign == "none" else self.field_bits("dmin")

    def _multiplier(self, codes: NDArray[Any]) -> Floats:
        return codes.astype(np.float32)


def minus_zero(codes: Codes, zero: int) -> NDArray[np.int8]:
    """Subtract a midpoint from unsigned codes, int8; `codes` is used up."""
    signed = codes.view(np.int8)
    signed -= np.int8(zero)
    return signed


def lookup_pairs(codes: NDArray[np.uint8], lut: Table, out: Floats) -> None:
    """Fill `out` with lut[codes] for tables of at most 16 entries, two neighbours a look-up.

    Args:
        codes: uint8 [..., even], contiguous, below 16.
        lut: float32, at most 16 entries.
        out: float32 of the same shape, contiguous.
    """
    pairs = np.zeros((16, 256, 2), np.float32)
    pairs[: lut.size, : lut.size, 0] = lut
    pairs[: lut.size, : lut.size, 1] = lut[:, None]
    table = pairs.reshape(-1, 2).view(np.uint64).reshape(-1)
    np.take(table, codes.view("<u2"), out=out.view(np.uint64), mode="clip")


def times(left: Floats, right: Floats) -> Floats:
    """Multiply without a warning on infinities and NaN, which a file may hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        return left * right


_WIDE_WORDS = ((16, np.complex128), (8, np.uint64), (4, np.uint32), (2, np.uint16), (1, np.uint8))


def gather(blocks: Blocks, byte_offset: int, nbytes: int) -> Blocks:
    """Copy one field of every block into a contiguous uint8 [n, nbytes].

    Short fields move as one wide word each: numpy copies a strided run of words far faster than as many
    short runs of bytes.
    """
    out = np.empty((blocks.shape[0], nbytes), np.uint8)
    if nbytes > 64:
        np.copyto(out, blocks[:, byte_offset : byte_offset + nbytes])
        return out
    width, dtype = next((w, d) for w, d in _WIDE_WORDS if nbytes % w == 0)
    for first in range(0, nbytes, width):
        source: NDArray[Any] = np.ndarray(
            (blocks.shape[0],), dtype, blocks, byte_offset + first, (blocks.strides[0],)
        )
        np.copyto(out[:, first : first + width].view(dtype)[:, 0], source)
    return out


def place_runs(runs: Blocks, out: Blocks, first: int) -> None:
    """Write runs of bytes into columns `first` onwards of `out`, a wide word a move.

    Args:
        runs: contiguous uint8 [n, w], w a multiple of 8.
        out: contiguous uint8 [n, W], W a multiple of 8.
        first: a multiple of 8.
    """
    wide = runs.shape[1] % 16 == 0 and out.shape[1] % 16 == 0 and first % 16 == 0
    width, dtype = (16, np.complex128) if wide else (8, np.uint64)
    source: NDArray[Any] = runs.view(dtype)
    target: NDArray[Any] = out.view(dtype)
    for column in range(source.shape[1]):
        np.copyto(target[:, first // width + column], source[:, column])


def split_nibbles(packed: Blocks, run: int, out: Blocks) -> None:
    """Write low nibbles, then high nibbles, of every run of `run` bytes.

    Args:
        packed: contiguous uint8 [n, m*run], run a multiple of 8.
        run: bytes whose low nibbles come before their high nibbles.
        out: contiguous uint8 [n, 2*m*run].
    """
    halves = out.reshape(-1, 2 * run)
    flat = packed.reshape(-1, run)
    place_runs(flat & np.uint8(15), halves, 0)
    place_runs(flat >> np.uint8(4), halves, run)


def split_crumbs(packed: Blocks) -> Blocks:
    """Unpack 2-bit fields: element 128h + 32j + l is bits 2j of byte 32h + l.

    Args:
        packed: contiguous uint8 [n, 32*m].

    Returns:
        uint8 [n, 128*m].
    """
    halves = packed.reshape(-1, 32)
    out = np.empty((halves.shape[0], 128), np.uint8)
    part = np.empty_like(halves)
    for field in range(4):
        np.right_shift(halves, np.uint8(2 * field), out=part)
        np.bitwise_and(part, np.uint8(3), out=part)
        place_runs(part, out, 32 * field)
    return out.reshape(packed.shape[0], -1)


def split_bits(mask: Blocks, place: int) -> Blocks:
    """Unpack single bits: element 32j + l is bit j of byte l, moved to bit `place`.

    Args:
        mask: contiguous uint8 [n, 32].
        place: bit of the result that receives it.

    Returns:
        uint8 [n, 256], each 0 or 2**place.
    """
    out = np.empty((mask.shape[0], 256), np.uint8)
    part = np.empty_like(mask)
    for bit in range(8):
        if bit >= place:
            np.right_shift(mask, np.uint8(bit - place), out=part)
        else:
            np.left_shift(mask, np.uint8(place - bit), out=part)
        np.bitwise_and(part, np.uint8(1 << place), out=part)
        place_runs(part, out, 32 * bit)
    return out


def interleaved_nibbles(packed: Blocks) -> Blocks:
    """Unpack nibble pairs, low first: uint8 [n, m] to [n, 2*m]."""
    out = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
    np.bitwise_and(packed, np.uint8(15), out=out[:, 0::2])
    np.right_shift(packed, np.uint8(4), out=out[:, 1::2])
    return out


def half_field(blocks: Blocks, byte_offset: int) -> Floats:
    """Return the IEEE half at that offset of every block as float32 [n, 1]."""
    return gather(blocks, byte_offset, 2).view("<f2").astype(np.float32)


def bit_spans(byte_offset: int, low_bit: int, width: int) -> BitSpans:
    """Return bits low_bit .. low_bit+width-1 of a little-endian number at `byte_offset`, cut at byte bounds."""
    spans = []
    while width:
        byte, low = divmod(low_bit, 8)
        take = min(width, 8 - low)
        spans.append((byte_offset + byte, low, take))
        low_bit += take
        width -= take
    return tuple(spans)


def block_field(name: str, byte_offset: int, nbytes: int, meaning: str) -> BlockField:
    """Return one field of a block struct."""
    return BlockField(name=name, byte_offset=byte_offset, nbytes=nbytes, meaning=meaning)
