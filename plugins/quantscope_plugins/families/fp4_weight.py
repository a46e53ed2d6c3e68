"""Small floats packed in bytes (E2M1, E2M3) under byte scales: the part that NVFP4 and MX families share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.families.base import FamilyBase, ceil_div, demand, element_span
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Equation,
    GroupLevel,
    LogicalTensor,
    Packing,
    Plane,
    Reading,
    ScaleLevel,
)

from quantscope_plugins.families import scale_grid, swizzle
from quantscope_plugins.families.ct_pack import numbers
from quantscope_plugins.families.packed_axis import PackedAxis

SWIZZLED = "cutlass_128x4"

TABLES = {"e4m3": "e4m3fn", "e8m0": "e8m0", "ue5m3": "ue5m3"}
"""Scale format -> value table."""


class ScaleKind(NamedTuple):
    """A scale format that a stored dtype can hold, with the group size that goes with it."""

    word: str
    group_size: int


KINDS: dict[str, tuple[ScaleKind, ...]] = {
    "F8_E4M3": (ScaleKind("e4m3", 16),),
    "F8_E8M0": (ScaleKind("e8m0", 32),),
    "U8": (ScaleKind("e8m0", 32), ScaleKind("ue5m3", 16), ScaleKind("e4m3", 16)),
}


class Fp4Weight(FamilyBase):
    """Candidates, sizes, parts and places of [N, K] small floats in bytes.

    Facts of the tensor, all optional: `elements` (`e2m1`, `e2m3`); `orders` of the two nibbles, default
    first; `placements` of the scales, default first; `directions` of the second level, default first;
    `sizes` declared; `output` of the producer's rule.
    """

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Elements x scale formats x nibble orders x placements x second-level directions."""
        codes, scale, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        if codes is None or scale is None or len(codes.shape) != 2:
            return
        directions = _words(tensor, "directions", "multiply") if second is not None else ("",)
        for element in _words(tensor, "elements", "e2m1"):
            width = 6 if element == "e2m3" else 4
            shape = (codes.shape[0], codes.shape[1] * 8 // width)
            orders = ("bitstream",) if width == 6 else _words(tensor, "orders", "low_first")
            for kind in _kinds(tensor, scale):
                for placement in _words(tensor, "placements", "linear"):
                    for order in orders:
                        for direction in directions:
                            yield _reading(
                                tensor, element, shape, kind, (order, placement, direction)
                            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of codes, block scales and the second level."""
        n_out, n_in = reading.shape
        size, width = reading.group_size, reading.bit_width
        codes, scale, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        groups = ceil_div(n_in, size)
        equations = [
            demand(
                codes,
                codes.suffix if codes else "weight",
                "U8 [N, K*b/8]",
                (n_out, ceil_div(n_in * width, 8)),
                dtypes=("U8", "I8"),
                substituted=f"[{n_out}, {n_in}*{width}/8]",
            )
        ]
        label = scale.suffix if scale else "weight_scale"
        if reading.placement == SWIZZLED:
            padded = swizzle.padded(n_out, groups)
            equations.append(
                demand(
                    scale,
                    label,
                    "[roundup(N, 128), roundup(K/g, 4)]",
                    padded,
                    dtypes=tuple(KINDS),
                    substituted=f"[roundup({n_out}, 128), roundup({n_in}/{size}, 4)]",
                    alternatives=((padded[0] * padded[1],),),
                )
            )
        else:
            equations.append(
                demand(
                    scale,
                    label,
                    "[N, K/g]",
                    (n_out, groups),
                    dtypes=tuple(KINDS),
                    substituted=f"[{n_out}, {n_in}/{size}]",
                )
            )
        if second is not None:
            equations.append(
                demand(
                    second,
                    second.suffix,
                    "F32 [1]",
                    (),
                    dtypes=("F32", "BF16", "F16"),
                    substituted="[1]",
                    alternatives=((1,), (1, 1)),
                )
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with its block scales and the second level."""
        plane, second = tensor.plane("codes"), tensor.plane("scale2")
        assert plane is not None
        axis = _axis(reading)
        words, skip = axis.cover(window.cols, plane.shape[1])
        packed = reader.read(plane, window.rows, words)
        codes = axis.unpack(packed, skip + len(window.cols), axis=-1)[:, skip:]
        scales, groups = self._scales(tensor, reading, window, reader)
        levels, divides = [scales], [False]
        if second is not None and len(reading.scale) > 1:
            levels.append(reader.floats(second, range(1), range(1)))
            divides.append(reading.scale[1].direction == "divide")
        return Parts(
            codes=codes,
            combine="lut",
            lut=float_table(reading.element),
            scale=tuple(levels),
            group_of_column=groups,
            scale_divides=tuple(divides),
        )

    @staticmethod
    def _scales(
        tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> tuple[Array, Array]:
        scale = tensor.plane("scale")
        assert scale is not None
        table = TABLES[reading.scale[0].dtype]
        if reading.placement != SWIZZLED:
            grid = scale_grid.read_grid(scale, reading.group[0], window, reader, table)
            return grid.values, grid.group_of_column
        size = reading.group_size
        first = window.cols.start // size
        used = range(first, ceil_div(window.cols.stop, size) if len(window.cols) else first)
        groups = ceil_div(reading.shape[1], size)
        stored = swizzle.read(scale, window.rows, used, groups, reader)
        columns = np.arange(window.cols.start, window.cols.stop) // size - first
        return float_table(table)[stored], columns

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Swizzled scales are padded to whole tiles."""
        if plane.role != "scale" or reading.placement != SWIZZLED:
            return None
        return swizzle.real(
            numbers, reading.shape[0], ceil_div(reading.shape[1], reading.group_size)
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits, the block's scale and the second level."""
        codes, scale, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        assert codes is not None
        level = reading.group[0]
        group = scale_grid.group_number(level, col)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None and reading.placement == SWIZZLED:
            groups = ceil_div(reading.shape[1], reading.group_size)
            per_plane["scale"] = (element_span(scale, swizzle.place(row, group, groups)),)
        elif scale is not None:
            per_plane["scale"] = scale_grid.grid_span(scale, level, row, col)
        if second is not None:
            per_plane["scale2"] = (element_span(second, 0),)
        spans = tuple(
            element_span(codes, row * codes.shape[1] + word, low, width)
            for word, low, width in _axis(reading).fields(col)
        )
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)


def placements(shape: tuple[int, int], scale: tuple[int, ...], sizes: tuple[int, ...]) -> list[str]:
    """Placements that a scale plane's shape allows over a weight, the plain one first.

    Args:
        shape: logical [N, K].
        scale: shape of the scale plane.
        sizes: group sizes to try.
    """
    found = []
    for size in sizes:
        groups = ceil_div(shape[1], size)
        tiles = swizzle.padded(shape[0], groups)
        if scale == (shape[0], groups):
            found.append("linear")
        if scale in (tiles, (tiles[0] * tiles[1],)):
            found.append(SWIZZLED)
    return list(dict.fromkeys(found))


def _words(tensor: LogicalTensor, key: str, default: str) -> tuple[str, ...]:
    return tuple((tensor.fact(key) or default).split(","))


def _kinds(tensor: LogicalTensor, scale: Plane) -> list[ScaleKind]:
    """Scale formats of the stored dtype; declared group sizes beside the usual ones."""
    kinds = list(KINDS.get(scale.dtype, ()))
    usual = {kind.group_size for kind in kinds}
    extra = [size for size in numbers(tensor, "sizes") if size not in usual]
    return kinds + [ScaleKind(kind.word, size) for size in extra for kind in kinds]


def _axis(reading: Reading) -> PackedAxis:
    return PackedAxis(word_bits=8, bit_width=reading.bit_width, order=reading.packing.order)


def _reading(
    tensor: LogicalTensor,
    element: str,
    shape: tuple[int, int],
    kind: ScaleKind,
    layout: tuple[str, str, str],
) -> Reading:
    codes, scale, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
    assert codes is not None
    assert scale is not None
    order, placement, direction = layout
    levels = [ScaleLevel(dtype=kind.word, name=scale.suffix)]
    if second is not None:
        levels.append(
            ScaleLevel(
                dtype={"F32": "f32", "BF16": "bf16", "F16": "f16"}.get(second.dtype, second.dtype),
                direction="divide" if direction == "divide" else "multiply",
                name=second.suffix,
                per="tensor",
            )
        )
    rule = "code * scale"
    if second is not None:
        sign = "/" if direction == "divide" else "*"
        rule = f"code * (scale {sign} {second.suffix})"
    output: Any = tensor.fact("output") or "f32"
    return Reading(
        element=element,
        bit_width=6 if element == "e2m3" else 4,
        shape=shape,
        group=(GroupLevel(axis="in", size=kind.group_size),),
        scale=tuple(levels),
        zero="none",
        packing=Packing(word=codes.dtype, axis="in", order=order),
        placement=placement,
        arithmetic=Arithmetic(output=output, rule=rule),
    )
