"""Ascend ModelSlim W8A8: int8 weights with a scale and an offset a row, and terms of the integer product.

Source: SGLang, sglang/srt/layers/quantization/modelslim/schemes/modelslim_w8a8_int8.py (planes). Weights are
decoded where every offset is zero, as ModelSlim writes for symmetric weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from quantscope.containers.records import StoredTensor
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan, Source

from quantscope_plugins.families.grid_weight import GridWeight

FILE = "quant_model_description.json"
TERMS = {
    "input_scale": "activation scale",
    "input_offset": "activation offset",
    "quant_bias": "bias of the integer product",
    "deq_scale": "scale of the integer product, the bits of a float in an integer where it is I64",
}
_ELEMENTS = {"W8A8": "s8", "W8A8_DYNAMIC": "s8", "W8A16": "s8"}


class Ascend(GridWeight):
    """int8 [N, K] with `weight_scale` and `weight_offset` [N, 1]."""

    name: ClassVar[str] = "ascend_modelslim"
    title: ClassVar[str] = "Ascend ModelSlim (int8)"

    def signature(self) -> Signature:
        """`weight_offset`, or the terms of the integer product."""
        return Signature(last_parts=("weight_offset", "quant_bias", "deq_scale"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with weight, weight_scale and weight_offset."""
        for module in index.modules_with("weight_offset"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            offset = index.get(module, "weight_offset")
            assert offset is not None
            missing = tuple(
                suffix
                for suffix, stored in (("weight", weight), ("weight_scale", scale))
                if stored is None
            )
            if missing:
                yield Orphan(
                    stored_name=offset.name, module=module, family=self.name, missing=missing
                )
                continue
            if weight is None or weight.dtype != "I8" or len(weight.shape) != 2:
                continue
            yield self._tensor(index, module, weight, offset)
            for suffix, what in TERMS.items():
                stored = index.get(module, suffix)
                if stored is not None:
                    yield Companion(
                        stored_name=stored.name, module=module, what=what, family=self.name
                    )

    def _tensor(
        self, index: TensorIndex, module: str, weight: StoredTensor, offset: StoredTensor
    ) -> LogicalTensor:
        planes = (
            index.plane("codes", module, "weight"),
            index.plane("scale", module, "weight_scale"),
            index.plane("meta", module, "weight_offset"),
            index.plane("bias", module, "bias"),
        )
        data = index.small(offset)
        known_zero = bool(data) and not any(data)
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word="ascend_modelslim",
            shape=weight.shape,
            planes=tuple(plane for plane in planes if plane is not None),
            certainty=3,
            basis="plain" if known_zero else "weight offsets other than zero",
            facts=(("prefer", "channel"),),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The tensor's own entry in quant_model_description.json."""
        config = declared.configs.get(FILE)
        data = config.data if config is not None else None
        scheme = data.get(tensor.name) if isinstance(data, dict) else None
        element = _ELEMENTS.get(scheme) if isinstance(scheme, str) else None
        if element is not None:
            yield Claim(
                field="element",
                value=element,
                source=Source(FILE, f"/{tensor.name}"),
                basis="by_definition",
                written=scheme,
            )

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Offsets other than zero, whose sign no source here proves."""
        if tensor.basis != "plain":
            return (
                "weight_offset is not zero everywhere, and how it enters the weight is not proved"
            )
        return None
