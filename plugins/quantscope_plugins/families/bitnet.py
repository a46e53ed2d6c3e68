"""BitNet in transformers: ternary weights, four rows a byte, one scale a tensor that divides or multiplies.

Source: transformers, integrations/bitnet.py (unpack_weights, BitLinear divides by weight_scale, AutoBitLinear
multiplies by it), utils/quantization_config.py (linear_class); llama.cpp, conversion/base.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, demand, element_span
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
    Evidence,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Reading,
    Sample,
    ScaleLevel,
)

from quantscope_plugins.families.reshaped import ReshapedMatrix

FLOATS = ("F32", "F16", "BF16")
DIRECTIONS = {"bitlinear": "divide", "autobitlinear": "multiply"}
LARGE, SMALL = 4.0, 0.25
"""A scale above is the reciprocal of a weight's magnitude, one below the magnitude itself."""


class BitNet(FamilyBase):
    """Packed ternary linears; the sense of the scale follows from `linear_class`."""

    name: ClassVar[str] = "bitnet"
    title: ClassVar[str] = "BitNet (ternary, four rows a byte)"

    def signature(self) -> Signature:
        """`weight_scale`."""
        return Signature(last_parts=("weight_scale",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with a byte weight and a single scale."""
        says = bool(declared.with_method("bitnet"))
        for module in index.modules_with("weight_scale"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            if scale is None or not _is_single(scale):
                continue
            if weight is None:
                if says:
                    yield Orphan(
                        stored_name=scale.name,
                        module=module,
                        family=self.name,
                        missing=("weight",),
                    )
            elif weight.dtype == "U8" and len(weight.shape) == 2:
                yield self._tensor(index, declared, module, says)
            elif says and weight.dtype in FLOATS:
                yield Companion(
                    stored_name=scale.name,
                    module=module,
                    what="scale of the product of an unpacked ternary weight",
                    family=self.name,
                )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, says: bool
    ) -> LogicalTensor:
        planes = (
            index.plane("codes", module, "weight"),
            index.plane("scale", module, "weight_scale"),
            index.plane("bias", module, "bias"),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        rows, n_in = kept[0].shape
        words = [_linear_class(s.get("linear_class")) for s in declared.with_method("bitnet")]
        first = next((word for word in words if word), "divide" if says else "")
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word="bitnet",
            shape=(rows * 4, n_in),
            planes=kept,
            certainty=3 if says else 2,
            facts=(("direction", first),),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The element that quant_method fixes and the sense of the scale that linear_class fixes."""
        for section in declared.with_method("bitnet"):
            yield section.claim("element", "ternary", "quant_method", basis="by_definition")
            direction = _linear_class(section.get("linear_class"))
            if direction:
                value = {"direction": direction}
                yield section.claim("scale", value, "linear_class", basis="by_definition")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Both senses of the scale, the declared one (or the default class's) first."""
        scale = tensor.plane("scale")
        if scale is None or len(tensor.shape) != 2:
            return
        first = tensor.fact("direction") or "divide"
        for direction in (first, "multiply" if first == "divide" else "divide"):
            yield Reading(
                element="ternary",
                bit_width=2,
                shape=tensor.shape,
                group=(GroupLevel(axis="tensor"),),
                scale=(
                    ScaleLevel(
                        dtype=SCALE_WORDS.get(scale.dtype, scale.dtype),
                        direction="divide" if direction == "divide" else "multiply",
                        name="weight_scale",
                    ),
                ),
                zero="fixed",
                midpoint=1,
                packing=Packing(word="U8", axis="out", order="row_chunks_low_first"),
                symmetric=True,
                arithmetic=Arithmetic(
                    rule="(code - 1) / scale" if direction == "divide" else "(code - 1) * scale"
                ),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """A quarter of the rows in bytes, one scale."""
        n_out, n_in = reading.shape
        return [
            demand(
                tensor.plane("codes"),
                "weight",
                "U8 [N/4, K]",
                (n_out // 4, n_in),
                dtypes=("U8",),
                substituted=f"[{n_out}/4, {n_in}]",
            ),
            demand(
                tensor.plane("scale"),
                "weight_scale",
                "[1]",
                (1,),
                dtypes=FLOATS,
                alternatives=((), (1, 1)),
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes 0..2 of the window with the tensor's scale."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes is not None
        assert scale is not None
        return Parts(
            codes=_matrix(reading).codes(codes, window, reader),
            combine="affine",
            scale=(reader.floats(scale).reshape(1, 1),),
            zero=np.full((1, 1), 1, np.int16),
            scale_divides=(reading.scale[0].direction == "divide",),
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The two bits of the code and the scale."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes is not None
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = (element_span(scale, 0),)
        return Cell(
            row=row,
            col=col,
            group=0,
            bits=(_matrix(reading).code_span(codes, row, col),),
            per_plane=per_plane,
        )

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Which sense of the scale gives weights of a plausible size."""
        scale = tensor.plane("scale")
        if scale is None or not readings:
            return
        value = float(abs(reader.floats(scale).ravel()[0]))
        direction = "divide" if value > LARGE else "multiply" if value < SMALL else ""
        values = [reading.contract_values()["scale"] for reading in readings]
        supports = tuple(value for value in values if value["direction"] == direction)
        yield Evidence(
            field="scale",
            method="size of the scale",
            supports=supports,
            strength="strong" if supports else None,
            numbers={"scale": value, "above_divides": LARGE, "below_multiplies": SMALL},
            sample=Sample(1, 1, "scales"),
            assumes=("ternary weights of a trained model have a magnitude between 0.001 and 0.25",),
        )


def _is_single(scale: StoredTensor) -> bool:
    return scale.dtype in FLOATS and scale.shape in ((), (1,), (1, 1))


def _linear_class(word: object) -> str:
    return DIRECTIONS.get(word, "") if isinstance(word, str) else ""


def _matrix(reading: Reading) -> ReshapedMatrix:
    return ReshapedMatrix(
        shape=(reading.shape[0], reading.shape[1]),
        group_size=reading.shape[1],
        groups_are="rows",
        bit_width=2,
        word_bits=8,
        high_first=False,
    )
