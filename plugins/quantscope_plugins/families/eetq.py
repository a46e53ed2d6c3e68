"""EETQ: int8 weights in the order of a CUTLASS kernel, a half scale a row.

Source: transformers, integrations/eetq.py (planes). The writer hands over what its kernel's preprocessing left,
whose permutation no source states, so codes are counted and scales checked but nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan

from quantscope_plugins.families.grid_weight import GridWeight


class Eetq(GridWeight):
    """int8 [K, N] with `weight_scales` [N]."""

    name: ClassVar[str] = "eetq"
    title: ClassVar[str] = "EETQ (int8, kernel order)"

    def signature(self) -> Signature:
        """`weight_scales`."""
        return Signature(last_parts=("weight_scales",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with int8 weight and half scales of its columns."""
        for module in index.modules_with("weight_scales"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scales")
            if scale is None or len(scale.shape) != 1:
                continue
            if weight is None:
                yield Orphan(
                    stored_name=scale.name, module=module, family=self.name, missing=("weight",)
                )
            if weight is None or weight.dtype != "I8" or len(weight.shape) != 2:
                continue
            planes = (
                index.plane("codes", module, "weight"),
                index.plane("scale", module, "weight_scales"),
                index.plane("bias", module, "bias"),
            )
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="eetq",
                shape=weight.shape[::-1],
                planes=tuple(plane for plane in planes if plane is not None),
                certainty=3,
                facts=(("transposed", "yes"),),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """`weights: int8` of the config."""
        for section in declared.with_method("eetq"):
            if section.get("weights") == "int8":
                yield section.claim("element", "s8", "weights")

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """The kernel's order of codes is stated by no source."""
        return "the order in which the kernel's preprocessing leaves the codes is not proved"
