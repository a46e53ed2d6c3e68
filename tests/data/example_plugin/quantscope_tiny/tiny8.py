"""tiny8: `tiny_codes` I8 [out, in] beside `tiny_scale` F32 [out]; a weight is code * scale in float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
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
)


class Tiny8(FamilyBase):
    """Eight-bit codes with one scale a row."""

    name: ClassVar[str] = "tiny8"
    title: ClassVar[str] = "tiny8 (example of a third party)"

    def signature(self) -> Signature:
        """The code plane's name."""
        return Signature(last_parts=("tiny_codes",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One tensor per module that has codes and a scale."""
        for module in index.modules_with("tiny_codes"):
            codes = index.plane("codes", module, "tiny_codes")
            scale = index.plane("scale", module, "tiny_scale")
            if codes is None or scale is None or len(codes.shape) != 2:
                yield Orphan(
                    stored_name=f"{module}.tiny_codes",
                    module=module,
                    family=self.name,
                    missing=("tiny_scale",),
                )
                continue
            yield LogicalTensor(
                name=f"{module}.weight",
                module=module,
                family=self.name,
                word=self.name,
                shape=codes.shape,
                planes=(codes, scale),
                certainty=3,
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """`bits` of the section whose method is tiny8."""
        for section in declared.with_method("tiny8"):
            if section.get("bits") == 8:
                yield section.claim("element", "s8", "bits")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The only reading there is."""
        yield Reading(
            element="s8",
            bit_width=8,
            shape=tensor.shape,
            group=(GroupLevel(axis="channel"),),
            scale=(ScaleLevel(dtype="f32"),),
            zero="none",
            packing=Packing(word="i8", axis="none", order="one_per_word"),
            symmetric=True,
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> Sequence[Equation]:
        """A code an element, a scale a row."""
        rows, cols = reading.shape
        return (
            demand(tensor.plane("codes"), "tiny_codes", "I8 [N, K]", (rows, cols), dtypes=("I8",)),
            demand(tensor.plane("scale"), "tiny_scale", "F32 [N]", (rows,), dtypes=("F32",)),
        )

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes and scales of the window's rows."""
        codes, scale = tensor.planes
        return Parts(
            codes=reader.read(codes, window.rows, window.cols).view(np.int8),
            combine="affine",
            scale=(reader.floats(scale, cols=window.rows).reshape(-1, 1),),
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """A byte of the codes and a word of the scales."""
        codes, scale = tensor.planes
        bits = (element_span(codes, row * reading.shape[1] + col),)
        return Cell(
            row=row,
            col=col,
            group=0,
            bits=bits,
            per_plane={"codes": bits, "scale": (element_span(scale, row),)},
        )
