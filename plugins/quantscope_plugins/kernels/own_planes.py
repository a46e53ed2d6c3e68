"""Raw 4-bit planes as the project's own kernel reads them: three layouts, no repack.

The kernel gets the stored words themselves. Only scales in bfloat16 are widened to float32 (exact), and a missing
g_idx is written out as column div group.
"""

from __future__ import annotations

import numpy as np
from quantscope.decode.parts import Array
from quantscope.parity.protocol import RawWeight, Refusal, Weight

from quantscope_plugins.kernels import layouts, unpacking

LAYOUTS = {"gptq": 0, "awq_gemm": 1, "ct_pack": 2}
"""Family -> number of the layout in the kernels' sources."""


class Operands:
    """What one launch needs beside x.

    Attributes:
        layout: number of the layout.
        words: uint32 words of codes.
        zeros: uint32 words of zeros; a single 0 where none are stored.
        scales: float16 or float32.
        g_idx: int32 [K].
        has_zeros: whether zeros are stored.
        zero_add: what is added to a stored zero.
        midpoint: the zero where none are stored.
        shape: (N, K, groups).
    """

    __slots__ = (
        "g_idx",
        "has_zeros",
        "layout",
        "midpoint",
        "scales",
        "shape",
        "words",
        "zero_add",
        "zeros",
    )

    def __init__(self, raw: RawWeight) -> None:
        n, k = raw.shape
        arrays = raw.arrays
        self.layout = LAYOUTS[raw.contract]
        words = arrays["weight_packed" if raw.contract == "ct_pack" else "qweight"]
        self.words = np.ascontiguousarray(words).view(np.uint32)
        zeros = arrays.get("weight_zero_point" if raw.contract == "ct_pack" else "qzeros")
        self.has_zeros = zeros is not None
        self.zeros = (
            np.zeros(1, np.uint32) if zeros is None else np.ascontiguousarray(zeros).view(np.uint32)
        )
        scales = arrays["weight_scale" if raw.contract == "ct_pack" else "scales"]
        if scales.dtype != np.float16:
            scales = unpacking.as_float(scales).astype(np.float32)
        self.scales = np.ascontiguousarray(scales)
        g_idx: Array = arrays.get("g_idx", np.arange(k) // raw.group_size)
        self.g_idx = np.ascontiguousarray(g_idx, dtype=np.int32)
        self.zero_add = 1 if raw.facts.get("zeros") == "minus_one" else 0
        self.midpoint = 8
        groups = scales.shape[1] if raw.contract == "ct_pack" else scales.shape[0]
        self.shape = (n, k, groups)


def problem(weight: Weight) -> Refusal | None:
    """Why the kernel does not read a weight, or None."""
    family, reading = weight.tensor.family, weight.reading
    if family not in LAYOUTS or reading.element != "u4":
        detail = f"reads 4-bit GPTQ, AWQ GEMM and compressed-tensors planes, not {family} {reading.element}"
        return Refusal(reason="contract_unsupported", detail=detail)
    other = layouts.affine_problem(weight)
    if other is not None or reading.zero_convention == "minus_one_unwrapped":
        return Refusal(reason="contract_unsupported", detail=other or "reads wrapped zeros only")
    if any(
        plane.dtype not in ("I32", "U32") for plane in weight.tensor.planes if plane.role == "codes"
    ):
        return Refusal(reason="contract_unsupported", detail="reads 32-bit words")
    if weight.n_cols % 8 or weight.n_rows % 8:
        return Refusal(reason="shape_unsupported", detail="reads whole words of eight codes")
    return None
