"""MLX modes mxfp4, mxfp8 and nvfp4: small floats in 32-bit words along the input axis, byte scales, no biases.

Planes: MLX (mlx/ops.cpp, python/src/ops.cpp). mxfp4 has 4 bits and groups of 32 under E8M0, mxfp8 8 bits and
32 under E8M0, nvfp4 4 bits and 16 under E4M3, and may have `global_scale`, the tensor's largest magnitude:
the scale is then scale * global_scale / 2688. Products in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.families.base import FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Equation,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Reading,
    ScaleLevel,
    Slice,
)

from quantscope_plugins.families import mlx_config, scale_grid
from quantscope_plugins.families.packed_axis import PackedAxis
from quantscope_plugins.families.stacks import experts, part_name, part_plane

GLOBAL_DIVISOR = np.float32(2688)
"""6 * 448: the largest code times the largest scale."""


class Mode(NamedTuple):
    """One mode's numbers."""

    bit_width: int
    group_size: int
    element: str
    scale_word: str
    scale_table: str


MODES = {
    "mxfp4": Mode(4, 32, "e2m1", "e8m0", "e8m0"),
    "nvfp4": Mode(4, 16, "e2m1", "e4m3", "e4m3fn"),
    "mxfp8": Mode(8, 32, "e4m3fn", "e8m0", "e8m0"),
}


class MlxFloat(FamilyBase):
    """MLX mxfp4, mxfp8 and nvfp4; the words of a group tell which."""

    name: ClassVar[str] = "mlx_float"
    title: ClassVar[str] = "MLX mxfp4, mxfp8 and nvfp4 (U32 words along in, byte scales)"

    def signature(self) -> Signature:
        """U32 weights."""
        return Signature(dtypes=("U32",))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor | Orphan]:
        """One logical tensor per U32 weight with byte scales."""
        for module in index.modules_with("weight"):
            weight, scales = index.get(module, "weight"), index.get(module, "scales")
            if weight is None or weight.dtype != "U32" or scales is None or scales.dtype != "U8":
                continue
            if len(weight.shape) not in (2, 3) or len(scales.shape) != len(weight.shape):
                continue
            for part in experts(weight.shape):
                yield self._tensor(index, module, part)

    def _tensor(self, index: TensorIndex, module: str, part: Slice | None) -> LogicalTensor:
        planes = (
            part_plane(index, "codes", module, "weight", part),
            part_plane(index, "scale", module, "scales", part),
            part_plane(index, "scale2", module, "global_scale", part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        words, groups = kept[0].shape[-1], kept[1].shape[-1]
        mode = next(
            (
                name
                for name, m in MODES.items()
                if words * 32 == groups * m.group_size * m.bit_width
            ),
            "mxfp4",
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=f"mlx_{mode}",
            shape=(kept[0].shape[-2], words * 32 // MODES[mode].bit_width),
            planes=kept,
            part=part,
            certainty=3,
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The module's entry and the global keys of every MLX section."""
        return mlx_config.claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The three modes."""
        codes, scales = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scales is None or len(codes.shape) != 2 or len(scales.shape) != 2:
            return
        for mode in MODES.values():
            levels = [ScaleLevel(dtype=mode.scale_word, name="scales")]
            if tensor.plane("scale2") is not None:
                levels.append(ScaleLevel(dtype="f32", name="global_scale", per="tensor"))
            yield Reading(
                element=mode.element,
                bit_width=mode.bit_width,
                shape=(codes.shape[0], scales.shape[1] * mode.group_size),
                group=(GroupLevel(axis="in", size=mode.group_size),),
                scale=tuple(levels),
                zero="none",
                packing=Packing(word="U32", axis="in", order="sequential"),
                arithmetic=Arithmetic(rule="code * scale"),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of weight and scales."""
        n_out, n_in = reading.shape
        width, size = reading.bit_width, reading.group_size
        return [
            demand(
                tensor.plane("codes"),
                "weight",
                "U32 [N, K*b/32]",
                (n_out, n_in * width // 32),
                dtypes=("U32",),
                substituted=f"[{n_out}, {n_in}*{width}/32]",
            ),
            demand(
                tensor.plane("scale"),
                "scales",
                "U8 [N, K/g]",
                (n_out, n_in // size),
                dtypes=("U8",),
                substituted=f"[{n_out}, {n_in}/{size}]",
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales of its groups."""
        plane, scales, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        assert plane is not None
        assert scales is not None
        axis = PackedAxis(word_bits=32, bit_width=reading.bit_width, order="sequential")
        words, skip = axis.cover(window.cols, plane.shape[1])
        packed = reader.read(plane, window.rows, words)
        codes = axis.unpack(packed, skip + len(window.cols), axis=-1)[:, skip:]
        mode = next(m for m in MODES.values() if m.scale_word == reading.scale[0].dtype)
        grid = scale_grid.read_grid(scales, reading.group[0], window, reader, mode.scale_table)
        levels = [grid.values]
        if second is not None:
            levels.append(reader.floats(second, range(1), range(1)) / GLOBAL_DIVISOR)
        return Parts(
            codes=codes,
            combine="lut",
            lut=float_table(reading.element),
            scale=tuple(levels),
            group_of_column=grid.group_of_column,
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits, the group's scale and the global one."""
        codes, scales, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        assert codes is not None
        level = reading.group[0]
        axis = PackedAxis(word_bits=32, bit_width=reading.bit_width, order="sequential")
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            per_plane["scale"] = scale_grid.grid_span(scales, level, row, col)
        if second is not None:
            per_plane["scale2"] = (element_span(second, 0),)
        spans = tuple(
            element_span(codes, row * codes.shape[1] + word, low, width)
            for word, low, width in axis.fields(col)
        )
        group = scale_grid.group_number(level, col)
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)
