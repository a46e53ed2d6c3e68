"""compressed-tensors float-quantized and mxfp8-quantized: FP8 values under tensor, channel, group or block scales.

Blocks at an edge are cut: the weight is padded to whole blocks for quantization and cut back, the grid of
scales stays ceil-sized. Source: compressed-tensors, compressors/naive_quantized/base.py,
compressors/mxfp8/base.py, quantization/lifecycle/forward_helpers.py (float32 product).
"""

from __future__ import annotations

from typing import ClassVar

from quantscope.containers.records import StoredTensor

from quantscope_plugins.families.ct_plain import CtPlain
from quantscope_plugins.families.grid_weight import BYTES, FLOAT_CODES


class CtFloat(CtPlain):
    """FP8 of compressed-tensors; only where its config says so (other FP8 is the family `fp8`)."""

    name: ClassVar[str] = "ct_float"
    title: ClassVar[str] = "compressed-tensors float-quantized and mxfp8-quantized (FP8 values)"
    dtypes = FLOAT_CODES

    def derived(self, weight: StoredTensor, scale: StoredTensor | None) -> str:
        """mxfp8 where the scales are exponents."""
        exponents = scale is not None and scale.dtype in BYTES
        return "mxfp8-quantized" if exponents else "float-quantized"
