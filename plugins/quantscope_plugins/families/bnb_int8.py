"""bitsandbytes LLM.int8: int8 rows under SCB, the largest magnitude of each row.

Planes: bitsandbytes (utils.py, nn/modules.py), GPTQModel with the name weight_scb
(gptqmodel/nn_modules/qlinear/bitsandbytes.py). Rule: code * SCB * 7.874015718698502e-3 in float32, the
constant and not a division by 127 (bitsandbytes, functional.py, int8_vectorwise_dequant); GPTQModel 7.7.0
itself computes code * (weight_scb / 127).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
import numpy as np
from quantscope.decode.parts import Array, Parts
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Claim,
    Companion,
    LogicalTensor,
    Orphan,
    Reading,
)

from quantscope_plugins.families import bnb_config
from quantscope_plugins.families.grid_weight import GridWeight

GPTQMODEL_SCALE = "weight_scb"
"""Its name in GPTQModel, whose own dequantizer computes code * (weight_scb / 127)."""

FACTOR = np.float32(7.874015718698502e-3)
LAYOUTS = {1: "col32", 2: "col_turing", 3: "col_ampere"}
"""weight_format of other than row order (bitsandbytes, utils.py, LINEAR_8BIT_WEIGHTS_FORMAT_MAPPING)."""


class BnbInt8(GridWeight):
    """bitsandbytes LLM.int8."""

    name: ClassVar[str] = "bnb_int8"
    title: ClassVar[str] = "bitsandbytes LLM.int8 (rows under SCB)"

    def signature(self) -> Signature:
        """SCB under either spelling."""
        return Signature(last_parts=("SCB", "weight_scb"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per int8 weight with SCB."""
        for suffix in ("SCB", GPTQMODEL_SCALE):
            for module in index.modules_with(suffix):
                weight, scale = index.get(module, "weight"), index.get(module, suffix)
                assert scale is not None
                if weight is None or weight.dtype != "I8" or len(weight.shape) != 2:
                    yield Orphan(
                        stored_name=scale.name,
                        module=module,
                        family=self.name,
                        missing=("weight",),
                        reason="" if weight is None else f"weight is stored as {weight.dtype}",
                    )
                    continue
                yield from self._tensor(index, module, suffix)

    def _tensor(
        self, index: TensorIndex, module: str, suffix: str
    ) -> Iterator[LogicalTensor | Companion]:
        planes = (
            index.plane("codes", module, "weight"),
            index.plane("scale", module, suffix),
            index.plane("bias", module, "bias"),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        marker = index.get(module, "weight_format")
        layout = 0
        if marker is not None:
            data = index.small(marker)
            layout = data[0] if len(data) == 1 else 0
            yield Companion(
                stored_name=marker.name,
                module=module,
                what=f"layout of the weight: {LAYOUTS.get(layout, 'row') if layout < 4 else layout}",
                family=self.name,
            )
        yield LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word="bnb_int8",
            shape=kept[0].shape,
            planes=kept,
            certainty=3,
            facts=(("layout", str(layout)),) if layout else (),
        )

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Only row order is decoded."""
        layout = tensor.fact("layout")
        if not layout:
            return None
        name = LAYOUTS.get(int(layout), "unknown")
        return f"weight_format {layout} ({name}) is a kernel's tile order, not rows"

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The config."""
        return bnb_config.claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The one reading, with its producer's rule."""
        for reading in super().candidates(tensor):
            own = reading.scale and reading.scale[0].name == GPTQMODEL_SCALE
            rule = "code * (weight_scb / 127)" if own else "code * SCB * 7.874015718698502e-3"
            arithmetic = msgspec.structs.replace(reading.arithmetic, rule=rule)
            yield msgspec.structs.replace(reading, arithmetic=arithmetic)

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """The row's maximum first, then the constant, each product rounded; GPTQModel divides the maximum first."""
        if as_producer and reading.scale[0].name == GPTQMODEL_SCALE:
            inner = parts.per_element(parts.scale[0]) / np.float32(127)
            own: Array = parts.codes.astype(np.float32) * inner
            return own
        product = parts.codes.astype(np.float32) * parts.per_element(parts.scale[0])
        weights: Array = product * FACTOR
        return weights
