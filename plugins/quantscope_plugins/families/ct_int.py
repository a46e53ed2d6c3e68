"""compressed-tensors int-quantized: int8 values under tensor, channel or group scales, zero points unpacked.

Source: compressed-tensors, compressors/naive_quantized/base.py: (code - zero) * scale in float32.
Narrower integers (W4A8) keep a byte each.
"""

from __future__ import annotations

from typing import ClassVar

from quantscope.containers.records import StoredTensor
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex

from quantscope_plugins.families.ct_plain import CtPlain

INT_SCALES = ("F32", "F16", "BF16", "F64")


class CtInt(CtPlain):
    """int8 of compressed-tensors and of AutoRound's and other exports with the same names."""

    name: ClassVar[str] = "ct_int"
    title: ClassVar[str] = "compressed-tensors int-quantized (int8 values)"
    dtypes = ("I8",)

    def derived(self, weight: StoredTensor, scale: StoredTensor | None) -> str:
        """The one format of int8 planes."""
        return "int-quantized"

    def certainty(self, index: TensorIndex, declared: Declarations, module: str) -> int:
        """3 with a config, 1 where only an int8 weight and a float scale of its rows say so."""
        certain = super().certainty(index, declared, module)
        weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
        if certain or weight is None or scale is None or scale.dtype not in INT_SCALES:
            return certain
        fits = scale.shape in ((), (1,)) or scale.shape[0] == weight.shape[-2]
        return 1 if fits else 0
