"""Weights with one code a word (FP8, int8) under a grid of scales: the part that several families share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.families.base import SCALE_WORDS, FamilyBase, demand, element_span
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Equation,
    Evidence,
    GroupLevel,
    LogicalTensor,
    Packing,
    Plane,
    Reading,
    ScaleLevel,
)

from quantscope_plugins.families import scale_grid
from quantscope_plugins.families.ct_pack import column_groups, numbers, order_evidence

ELEMENTS = {
    "F8_E4M3": "e4m3fn",
    "F8_E5M2": "e5m2",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
    "I8": "s8",
}
"""Dtype of a code plane -> element."""

FLOAT_CODES = tuple(word for word in ELEMENTS if word.startswith("F8"))
SCALES = ("F32", "F16", "BF16", "F64")
BYTES = ("U8", "F8_E8M0")


class GridWeight(FamilyBase):
    """Candidates, sizes, parts and places of a weight [N, K] with one code a word.

    Facts of the tensor, all optional: `sizes` and `blocks` declared; `directions` (`multiply` or `divide`
    first); `prefer` an axis that comes first; `transposed` where [K, N] is stored; `scale_cast`; `output`;
    `widths` of integers narrower than their byte; `factor` that multiplies the scale.
    """

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Levels of the scale grid x directions."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or len(codes.shape) != 2 or codes.dtype not in ELEMENTS:
            return
        shape = codes.shape[::-1] if tensor.fact("transposed") else codes.shape
        n_out, n_in = shape
        if scale is None:
            yield self._reading(tensor, (n_out, n_in), GroupLevel(axis="none"), "multiply", 8)
            return
        levels = scale_grid.levels_of(
            (n_out, n_in),
            _grid(tensor, scale),
            sizes=numbers(tensor, "sizes"),
            blocks=_blocks(tensor),
        )
        prefer = tensor.fact("prefer")
        if prefer:
            levels.sort(key=lambda level: level.axis != prefer)
        widths = numbers(tensor, "widths") or [8]
        for width in dict.fromkeys((*widths, 8)) if codes.dtype == "I8" else (8,):
            for level in levels:
                for direction in (tensor.fact("directions") or "multiply").split(","):
                    yield self._reading(tensor, (n_out, n_in), level, direction, width)

    def _reading(
        self,
        tensor: LogicalTensor,
        shape: tuple[int, int],
        level: GroupLevel,
        direction: str,
        width: int,
    ) -> Reading:
        codes, scale, zero = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        assert codes is not None
        scales: tuple[ScaleLevel, ...] = ()
        if scale is not None:
            word = "e8m0" if scale.dtype in BYTES else SCALE_WORDS.get(scale.dtype, scale.dtype)
            scales = (
                ScaleLevel(
                    dtype=word,
                    direction="divide" if direction == "divide" else "multiply",
                    name=scale.suffix,
                ),
            )
        integer = codes.dtype == "I8"
        element = f"s{width}" if integer else ELEMENTS[codes.dtype]
        cast = tensor.fact("scale_cast")
        rule = "code * scale" if direction == "multiply" else "code / scale"
        return Reading(
            element=element,
            bit_width=width,
            shape=shape,
            group=(level,),
            scale=scales,
            zero="none" if zero is None else "integer",
            zero_convention="not_applicable" if zero is None else "as_is",
            packing=Packing(word=codes.dtype, axis="none", order="one_per_word"),
            symmetric=(True if zero is None else None) if integer else None,
            arithmetic=Arithmetic(
                scale_cast="bf16" if cast == "bf16" else "",
                rule="(code - zero) * scale" if zero is not None else rule,
            ),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of the code plane, the scale grid and the zero grid."""
        shape = (reading.shape[0], reading.shape[1])
        codes, scale, zero = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        stored = shape[::-1] if tensor.fact("transposed") else shape
        equations = [
            demand(
                codes,
                codes.suffix if codes else "weight",
                "[K, N]" if tensor.fact("transposed") else "[N, K]",
                stored,
            )
        ]
        if scale is None:
            return equations
        grid, alternatives, symbolic = scale_grid.expected_grid(reading.group[0], shape)
        if tensor.fact("transposed"):
            alternatives = (*alternatives, grid[::-1])
        substituted = scale_grid.substituted_grid(reading.group[0], shape)
        equations.append(
            demand(
                scale,
                scale.suffix,
                symbolic,
                grid,
                dtypes=(*SCALES, *BYTES),
                substituted=substituted,
                alternatives=alternatives,
            )
        )
        if zero is not None:
            equations.append(
                demand(
                    zero,
                    zero.suffix,
                    symbolic,
                    grid,
                    substituted=substituted,
                    alternatives=alternatives,
                )
            )
        if tensor.plane("group_index") is not None:
            equations.append(
                demand(tensor.plane("group_index"), "weight_g_idx", "I32 [K]", (shape[1],))
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with its scales; codes of small floats index a table of their values."""
        plane, scale, zero = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        assert plane is not None
        if tensor.fact("transposed"):
            stored = reader.read(plane, window.cols, window.rows).T
        else:
            stored = reader.read(plane, window.rows, window.cols)
        lut = None if plane.dtype == "I8" else float_table(ELEMENTS[plane.dtype])
        combine: Literal["affine", "lut"] = "affine" if lut is None else "lut"
        if scale is None:
            return Parts(codes=stored, combine=combine, lut=lut)
        level = reading.group[0]
        spread = column_groups(tensor, reading, window.cols, reader)
        if spread is not None:
            return self._spread(tensor, reading, window, reader, stored, spread)
        values, groups = self.read_scales(tensor, reading, window, reader)
        stored_zero = None
        if zero is not None:
            stored_zero, _ = self.scales(tensor, level, zero, window, reader, raw=True)
        return Parts(
            codes=stored,
            combine=combine,
            lut=lut,
            scale=(values,),
            zero=stored_zero,
            stored_zero=None if stored_zero is None else stored_zero.astype(np.int16),
            group_of_column=groups,
            scale_divides=(reading.scale[0].direction == "divide",),
        )

    def _spread(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        window: Window,
        reader: PlaneReader,
        codes: Array,
        spread: Array,
    ) -> Parts:
        """Parts whose columns take their group from a stored g_idx."""
        scale, zero = tensor.plane("scale"), tensor.plane("zero")
        assert scale is not None
        used = range(int(spread.min(initial=0)), int(spread.max(initial=-1)) + 1)
        stored_zero = None
        if zero is not None:
            stored_zero = reader.read(zero, window.rows, used).astype(np.int16)
        return Parts(
            codes=codes,
            combine="affine",
            scale=(reader.floats(scale, window.rows, used),),
            zero=stored_zero,
            stored_zero=stored_zero,
            group_of_column=spread - used.start,
            scale_divides=(reading.scale[0].direction == "divide",),
        )

    def read_scales(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> tuple[Array, Array]:
        """Scales of a window and the group of each column."""
        scale = tensor.plane("scale")
        assert scale is not None
        return self.scales(tensor, reading.group[0], scale, window, reader)

    def scales(
        self,
        tensor: LogicalTensor,
        level: GroupLevel,
        plane: Plane,
        window: Window,
        reader: PlaneReader,
        *,
        raw: bool = False,
    ) -> tuple[Array, Array]:
        """Values of a scale or zero plane for a window, and the group of each column."""
        table = "e8m0" if plane.dtype == "U8" and not raw else ""
        if tensor.fact("transposed") and level.axis == "channel":
            plane = msgspec.structs.replace(plane, shape=(window_extent(plane),))
        grid = scale_grid.read_grid(plane, level, window, reader, table)
        return grid.values, grid.group_of_column

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The code's word, and its scale and zero."""
        codes, scale, zero, g_idx = (
            tensor.plane(r) for r in ("codes", "scale", "zero", "group_index")
        )
        assert codes is not None
        level = reading.group[0]
        group, place = scale_grid.group_number(level, col), col
        if g_idx is not None and reader is not None and isinstance(level.size, int):
            group = int(reader.read(g_idx, None, range(col, col + 1))[0, 0])
            place = group * level.size
        number = row * codes.shape[1] + col
        if tensor.fact("transposed"):
            number = col * codes.shape[1] + row
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        for role, plane in (("scale", scale), ("zero", zero)):
            if plane is not None:
                per_plane[role] = scale_grid.grid_span(plane, level, row, place)
        if g_idx is not None:
            per_plane["group_index"] = (element_span(g_idx, col),)
        return Cell(
            row=row,
            col=col,
            group=group,
            bits=(element_span(codes, number),),
            per_plane=per_plane,
        )

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Whether a stored g_idx is natural."""
        return order_evidence(tensor, reader)


def window_extent(plane: Plane) -> int:
    """Elements of a plane."""
    total = 1
    for extent in plane.shape:
        total *= extent
    return total


def _grid(tensor: LogicalTensor, scale: Plane) -> tuple[int, ...]:
    grid = scale_grid.grid_shape(scale)
    if tensor.fact("transposed"):
        return (window_extent(scale),) if 1 in grid or len(grid) < 2 else grid[::-1]
    return grid


def _blocks(tensor: LogicalTensor) -> list[tuple[int, int]]:
    pairs = (text.split("x") for text in tensor.fact("blocks").split(",") if text)
    return [(int(rows), int(cols)) for rows, cols in pairs]
