"""SGLang W4AFP8: packed int4 experts with scales over 128 named weight_scale_inv.

Source: SGLang, sglang/srt/layers/quantization/w4afp8.py (planes). Which nibble holds the even column is not
proved, so nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import UndecodableError
from quantscope.families.base import SCALE_WORDS, FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Cell,
    Claim,
    Companion,
    Equation,
    LogicalTensor,
    Orphan,
    Packing,
    Reading,
    ScaleLevel,
)

from quantscope_plugins.families import scale_grid
from quantscope_plugins.families.companions import module_companions
from quantscope_plugins.families.stacks import experts, part_name, part_plane

METHODS = ("w4afp8", "w4a8_fp8")
SCALES = ("F32", "BF16", "F16")


class W4AFp8(FamilyBase):
    """int8 planes of two int4 codes, where quant_method says w4afp8."""

    name: ClassVar[str] = "w4afp8"
    title: ClassVar[str] = "SGLang W4AFP8 (int4 experts)"

    def signature(self) -> Signature:
        """`weight_scale_inv`."""
        return Signature(last_parts=("weight_scale_inv",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with int8 weight and float scales."""
        if not declared.with_method(*METHODS):
            return
        found = []
        for module in index.modules_with("weight_scale_inv"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale_inv")
            if weight is None or scale is None or weight.dtype != "I8":
                continue
            if len(weight.shape) not in (2, 3) or scale.dtype not in SCALES:
                continue
            found.append(module)
            for part in experts(weight.shape):
                planes = (
                    part_plane(index, "codes", module, "weight", part),
                    part_plane(index, "scale", module, "weight_scale_inv", part),
                )
                kept = tuple(plane for plane in planes if plane is not None)
                yield LogicalTensor(
                    name=part_name(f"{module}.weight" if module else "weight", part),
                    module=module,
                    family=self.name,
                    word="w4afp8",
                    shape=(kept[0].shape[0], kept[0].shape[1] * 2),
                    planes=kept,
                    part=part,
                    certainty=3,
                )
        yield from module_companions(index, found, self.name)

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """int4, which the method's name fixes."""
        for section in declared.with_method(*METHODS):
            yield section.claim("element", "s4", "quant_method", basis="by_definition")
            size = section.get("group_size")
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                yield section.claim("group", {"axis": "in", "size": size}, "group_size")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Both nibble orders over the group sizes that the scales allow."""
        scale = tensor.plane("scale")
        if scale is None or len(tensor.shape) != 2:
            return
        shape = (tensor.shape[0], tensor.shape[1])
        for level in scale_grid.levels_of(shape, scale.shape, sizes=(128,)):
            for order in ("low_first", "high_first"):
                yield Reading(
                    element="s4",
                    bit_width=4,
                    shape=shape,
                    group=(level,),
                    scale=(
                        ScaleLevel(
                            dtype=SCALE_WORDS.get(scale.dtype, scale.dtype),
                            name="weight_scale_inv",
                        ),
                    ),
                    zero="none",
                    packing=Packing(word="I8", axis="in", order=order),
                    symmetric=True,
                )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Two codes a byte, one scale a run."""
        n_out, n_in = reading.shape
        grid, alternatives, symbolic = scale_grid.expected_grid(reading.group[0], (n_out, n_in))
        return [
            demand(tensor.plane("codes"), "weight", "I8 [N, K/2]", (n_out, n_in // 2)),
            demand(
                tensor.plane("scale"),
                "weight_scale_inv",
                symbolic,
                grid,
                dtypes=SCALES,
                alternatives=alternatives,
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Nothing is decoded.

        Raises:
            UndecodableError: always.
        """
        raise UndecodableError(f"{tensor.name}: {self.undecodable(tensor)}", source=tensor.name)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The byte that holds the code's pair."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes is not None
        spans = (element_span(codes, row * codes.shape[1] + col // 2),)
        level = reading.group[0]
        per_plane = {"scale": scale_grid.grid_span(scale, level, row, col)} if scale else {}
        return Cell(
            row=row,
            col=col,
            group=scale_grid.group_number(level, col),
            bits=spans,
            per_plane=per_plane,
        )

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """The nibble order."""
        return "which nibble of a byte holds the even column is not proved"
