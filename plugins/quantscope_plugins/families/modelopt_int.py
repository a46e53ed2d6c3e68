"""ModelOpt INT4_AWQ and W4A8_AWQ (nibbles of two rows in a byte), INT8 SmoothQuant and W8A16.

Source: NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py (pack_int4_in_uint8, scales, pre_quant_scale),
modelopt/torch/export/convert_hf_config.py. `weight_scale_2` of W4A8_AWQ is the FP8 step that the int4 values are
rounded to inside the kernel, not a further factor of the weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode import bits
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Companion,
    Equation,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Reading,
    ScaleLevel,
    Slice,
)

from quantscope_plugins.families import modelopt_config, scale_grid
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.grid_weight import SCALES, GridWeight
from quantscope_plugins.families.stacks import experts, part_name, part_plane

INT4 = ("W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ")
INT8 = ("W8A16", "W8A8_SQ_PER_CHANNEL", "INT8_SQ", "INT8_WO")
KERNEL_STEP = "step of the kernel's FP8 rounding"


class ModeloptInt4(FamilyBase):
    """Two's complement int4: byte (r, k) holds row 2r in its low and row 2r+1 in its high nibble."""

    name: ClassVar[str] = "modelopt_int4"
    title: ClassVar[str] = "ModelOpt INT4 AWQ (two rows a byte)"

    def signature(self) -> Signature:
        """`weight_scale`."""
        return Signature(last_parts=("weight_scale",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module whose byte weight has half as many rows as its scales."""
        found = []
        for module in index.modules_with("weight_scale"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            algorithm = modelopt_config.module_algorithm(declared, module) or ""
            if scale is None or scale.dtype not in SCALES:
                continue
            if weight is None:
                if algorithm in INT4 and index.get(module, "weight_packed") is None:
                    yield Orphan(
                        stored_name=scale.name,
                        module=module,
                        family=self.name,
                        missing=("weight",),
                    )
                continue
            if not _rows_packed(weight, scale):
                continue
            found.append(module)
            for part in experts(weight.shape):
                yield self._tensor(index, module, algorithm, part)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)
            for module in found:
                step = index.get(module, "weight_scale_2")
                if step is not None:
                    yield Companion(
                        stored_name=step.name, module=module, what=KERNEL_STEP, family=self.name
                    )

    def _tensor(
        self, index: TensorIndex, module: str, algorithm: str, part: Slice | None
    ) -> LogicalTensor:
        planes = (
            part_plane(index, "codes", module, "weight", part),
            part_plane(index, "scale", module, "weight_scale", part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        rescaled = index.get(module, "pre_quant_scale") is not None
        n_out, n_in = kept[0].shape[0] * 2, kept[0].shape[1]
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=f"modelopt:{algorithm if algorithm in INT4 else 'W4A16_AWQ'}",
            shape=(n_out, n_in),
            planes=kept,
            part=part,
            basis="input channels rescaled" if rescaled else "plain",
            certainty=3,
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Both configs, and the packing that the algorithm's definition fixes."""
        yield from modelopt_config.claims(tensor.module, declared)
        for section in modelopt_config.modelopt_sections(declared):
            algorithm, keys = modelopt_config.algorithm(section, tensor.module)
            if algorithm in INT4:
                packing = {"axis": "out", "order": "low_first"}
                yield section.claim("packing", packing, *keys, basis="by_definition")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Group sizes that the number of scales a row allows."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scale is None or len(codes.shape) != 2:
            return
        shape = (codes.shape[0] * 2, codes.shape[1])
        for level in scale_grid.levels_of(shape, scale_grid.grid_shape(scale)):
            yield _reading(tensor, shape, level)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Half the rows in bytes, one scale a group."""
        n_out, n_in = reading.shape
        level = reading.group[0]
        grid, alternatives, symbolic = scale_grid.expected_grid(level, (n_out, n_in))
        return [
            demand(
                tensor.plane("codes"),
                "weight",
                "U8 [N/2, K]",
                (ceil_div(n_out, 2), n_in),
                dtypes=("U8",),
                substituted=f"[{n_out}/2, {n_in}]",
            ),
            demand(
                tensor.plane("scale"),
                "weight_scale",
                symbolic,
                grid,
                dtypes=SCALES,
                substituted=scale_grid.substituted_grid(level, (n_out, n_in)),
                alternatives=alternatives,
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Signed codes of the window with the scales of its groups."""
        plane, scale = tensor.plane("codes"), tensor.plane("scale")
        assert plane is not None
        assert scale is not None
        rows = window.rows
        first = rows.start // 2
        packed = reader.read(plane, range(first, max(first, ceil_div(rows.stop, 2))), window.cols)
        skip = rows.start - 2 * first
        codes = bits.unpack_nibbles(packed, axis=0)[skip : skip + len(rows)]
        grid = scale_grid.read_grid(scale, reading.group[0], window, reader)
        return Parts(
            codes=bits.sign_extend(np.ascontiguousarray(codes), 4),
            combine="affine",
            scale=(grid.values,),
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
        """The nibble of the row pair's byte, and the group's scale."""
        plane, scale = tensor.plane("codes"), tensor.plane("scale")
        assert plane is not None
        level = reading.group[0]
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = scale_grid.grid_span(scale, level, row, col)
        byte = row // 2 * plane.shape[1] + col
        return Cell(
            row=row,
            col=col,
            group=scale_grid.group_number(level, col),
            bits=(element_span(plane, byte, row % 2 * 4, 4),),
            per_plane=per_plane,
        )


class ModeloptInt8(GridWeight):
    """ModelOpt int8 weights, where the config says so; compressed-tensors has the same planes."""

    name: ClassVar[str] = "modelopt_int8"
    title: ClassVar[str] = "ModelOpt INT8 (SmoothQuant, weight-only)"

    def signature(self) -> Signature:
        """`weight_scale`."""
        return Signature(last_parts=("weight_scale",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with int8 weight under a ModelOpt int8 algorithm."""
        found = []
        for module in index.modules_with("weight_scale"):
            weight = index.get(module, "weight")
            algorithm = modelopt_config.module_algorithm(declared, module) or ""
            if algorithm not in INT8 or weight is None or weight.dtype != "I8":
                continue
            found.append(module)
            for part in experts(weight.shape):
                planes = (
                    part_plane(index, "codes", module, "weight", part),
                    part_plane(index, "scale", module, "weight_scale", part),
                    part_plane(index, "bias", module, "bias", part),
                )
                kept = tuple(plane for plane in planes if plane is not None)
                yield LogicalTensor(
                    name=part_name(f"{module}.weight" if module else "weight", part),
                    module=module,
                    family=self.name,
                    word=f"modelopt:{algorithm}",
                    shape=kept[0].shape,
                    planes=kept,
                    part=part,
                    certainty=3,
                )
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Both configs."""
        return modelopt_config.claims(tensor.module, declared)


def _rows_packed(weight: StoredTensor, scale: StoredTensor) -> bool:
    """A byte weight with half as many rows as its scales, and no other format's columns."""
    return (
        weight.dtype == "U8"
        and len(weight.shape) in (2, 3)
        and len(scale.shape) == len(weight.shape)
        and scale.shape[-2] == 2 * weight.shape[-2]
        and scale.shape[:-2] == weight.shape[:-2]
    )


def _reading(tensor: LogicalTensor, shape: tuple[int, int], level: GroupLevel) -> Reading:
    scale = tensor.plane("scale")
    assert scale is not None
    return Reading(
        element="s4",
        bit_width=4,
        shape=shape,
        group=(level,),
        scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="weight_scale"),),
        zero="none",
        packing=Packing(word="U8", axis="out", order="low_first"),
        basis=tensor.basis,
        symmetric=True,
        arithmetic=Arithmetic(rule="code * scale"),
    )
