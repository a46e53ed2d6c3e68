"""A reading: one full assignment of everything that decoding a tensor needs, hashable and comparable."""

from __future__ import annotations

from typing import Literal

import msgspec

from quantscope.model.claims import Json

GroupAxis = Literal["in", "out", "channel", "tensor", "block", "flat", "none"]


class GroupLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One level of grouping.

    `axis` is `in` (runs of `size` input channels within a row), `out` (runs along rows), `channel` (one
    scale a row), `tensor`, `block` (size = [rows, columns]), `flat` (runs over the row-major flattened
    weight) or `none`. `stride` is the distance between neighbours of a `flat` group where they do not lie
    side by side.
    """

    axis: GroupAxis
    size: int | tuple[int, int] | None = None
    stride: int | None = None

    def as_json(self) -> dict[str, Json]:
        """The level in contract vocabulary."""
        size = list(self.size) if isinstance(self.size, tuple) else self.size
        level: dict[str, Json] = {"axis": self.axis, "size": size}
        if self.stride is not None:
            level["stride"] = self.stride
        return level


class ScaleLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One level of scales; the first is the finest.

    `dtype` uses the words f16, bf16, f32, e8m0, e4m3, ue4m3, ue5m3, u8, u6, u4, s8, s6, s8_exponent (2**int8)
    and products such as `u6*f16` for codes scaled by a super-block value.
    """

    dtype: str
    direction: Literal["multiply", "divide"] = "multiply"
    signed: bool = False
    name: str = ""
    """The stored suffix, where the level has a plane of its own."""
    per: str = ""
    """What one value of a second level covers: tensor, channel, super_block, ..."""


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """How codes lie in stored words.

    `order` is one of: sequential (fields of a word from the lowest bits up), awq (0 2 4 6 1 3 5 7),
    bitstream (dense, fields may straddle words), planar, padded (whole fields only, top bits unused),
    low_first and high_first (two codes a byte), split_halves (low nibbles first, then high), msb_first,
    row_chunks_low_first and row_chunks_high_first (a word holds one code of every equal chunk of rows),
    tops_then_nibbles (three bytes for four 6-bit codes: top two bits, then low nibbles, the first code highest),
    tile (a named kernel order), ggml (fields of a block struct), one_per_word.
    """

    word: str
    axis: Literal["in", "out", "flat", "none"] = "in"
    order: str = "sequential"

    def as_json(self) -> dict[str, Json]:
        """The packing in contract vocabulary."""
        return {"word": self.word, "axis": self.axis, "order": self.order}


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True):
    """Types of the producer's own decode rule, with roundings in the order they happen.

    `compute` is the type of every intermediate (`f32`, or `f16` where each step is rounded to half);
    `scale_cast` names a rounding of the scale before use; `output` the type of the result.
    """

    compute: Literal["f32", "f16", "bf16"] = "f32"
    output: Literal["f32", "f16", "bf16"] = "f32"
    scale_cast: Literal["", "f16", "bf16"] = ""
    rule: str = "(code - zero) * scale"

    def as_json(self) -> dict[str, Json]:
        """The arithmetic in contract vocabulary."""
        return {
            "code": "integer",
            "scale": self.scale_cast or "as stored",
            "product": self.compute,
            "sum": self.compute,
            "output": self.output,
            "rule": self.rule,
        }


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One full assignment of a tensor's contract.

    `bit_width` is the width of a stored code; 0 where an element has no width of its own (vector
    codebooks, mixed rows). `shape` is the logical [out, in] or [experts, out, in] under this reading.
    `extra` holds family facts that decoding needs and no word of the vocabulary covers, as sorted pairs.
    """

    element: str
    bit_width: int
    shape: tuple[int, ...]
    group: tuple[GroupLevel, ...]
    scale: tuple[ScaleLevel, ...]
    zero: Literal["none", "fixed", "integer", "float_zero", "additive_min"]
    zero_convention: str = "not_applicable"
    """as_is, minus_one, minus_one_unwrapped or minus_one_word_add; not_applicable without stored zeros."""
    packing: Packing
    placement: str = "linear"
    order: str = "natural"
    basis: str = "plain"
    arithmetic: Arithmetic = Arithmetic()
    symmetric: bool | None = None
    """True or False where the format fixes it; None where bytes decide or the word does not apply."""
    midpoint: int = 0
    """The fixed zero of zero = fixed."""
    effective_bits: float = 0.0
    """Bits a weight over all planes of this reading; 0 where the engine computes it from plane bytes."""
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def group_size(self) -> int:
        """Elements one finest scale covers along the input axis; the row length where it covers a row."""
        size = self.group[0].size if self.group else None
        if isinstance(size, tuple):
            return size[1]
        return size if size else self.shape[-1]

    def fact(self, key: str, default: str = "") -> str:
        """A family fact from `extra`."""
        return dict(self.extra).get(key, default)

    def contract_values(self) -> dict[str, Json]:
        """The reading in contract vocabulary, for the fields that a reading fixes."""
        group: dict[str, Json] = (
            self.group[0].as_json() if self.group else {"axis": "none", "size": None}
        )
        if len(self.group) > 1:
            group["outer"] = [level.as_json() for level in self.group[1:]]
        scale: dict[str, Json] | str = "none"
        if self.scale:
            first = self.scale[0]
            scale = {"dtype": first.dtype, "direction": first.direction, "signed": first.signed}
            if len(self.scale) > 1:
                second = self.scale[1]
                scale["second_level"] = {
                    "name": second.name,
                    "dtype": second.dtype,
                    "direction": second.direction,
                    "per": second.per,
                }
        values: dict[str, Json] = {
            "element": self.element,
            "shape": list(self.shape),
            "group": group,
            "scale": scale,
            "zero": self.zero,
            "zero_convention": self.zero_convention,
            "packing": self.packing.as_json(),
            "placement": self.placement,
            "order": self.order,
            "arithmetic": self.arithmetic.as_json(),
            "basis": self.basis,
        }
        if self.symmetric is not None:
            values["symmetric"] = self.symmetric
        return values
