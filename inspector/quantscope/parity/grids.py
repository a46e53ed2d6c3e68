"""Types that kernels compute in: rounding to them, and how far a rounding reaches."""

from __future__ import annotations

from functools import cache

import numpy as np

from quantscope.decode.parts import Array
from quantscope.decode.roundings import to_bf16, to_f16
from quantscope.decode.small_floats import float_table

UNIT_ROUNDOFF: dict[str, float] = {
    "exact": 0.0,
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "bf16_truncated": 2.0**-7,
    "e4m3": 2.0**-4,
    "e2m1": 2.0**-2,
    "fp8_accumulate": 2.0**-13,
}
"""Largest relative error of one rounding to nearest: half a unit in the last place of 1; cutting doubles it.

`fp8_accumulate` is the sum inside FP8 tensor cores, which keep 14 bits. Source: DeepSeek-V3 technical report, section
3.3.2, on Hopper."""

UNDERFLOW: dict[str, float] = {
    "exact": 0.0,
    "f64": 2.0**-1022,
    "f32": 2.0**-126,
    "f16": 2.0**-25,
    "bf16": 2.0**-126,
    "bf16_truncated": 2.0**-126,
    "e4m3": 2.0**-10,
    "e2m1": 2.0**-2,
    "fp8_accumulate": 2.0**-126,
}
"""Largest absolute error of a rounding near zero: half the smallest subnormal; for types with the exponents of
float32 the smallest normal number, since many kernels flush subnormals to zero."""

LARGEST: dict[str, float] = {
    "f64": 1.7976931348623157e308,
    "f32": 3.4028234663852886e38,
    "f16": 65504.0,
    "bf16": 3.3895313892515355e38,
    "bf16_truncated": 3.3895313892515355e38,
    "e4m3": 448.0,
    "e2m1": 6.0,
}


def representable(values: Array, dtype: str) -> Array:
    """Values rounded to a type, float32, ties to even; beyond the largest finite one they saturate.

    `e4m3` and `e2m1` are rounded on a grid moved by the power of two that puts the largest magnitude just
    within it, which is how a kernel with a power-of-two activation scale sees them.
    """
    wide = np.asarray(values, dtype=np.float32)
    if dtype in ("f32", "f64", "exact"):
        return wide
    if dtype in ("bf16", "bf16_truncated"):
        return to_bf16(np.ascontiguousarray(wide))
    if dtype == "f16":
        return to_f16(np.clip(wide, -LARGEST["f16"], LARGEST["f16"]))
    if dtype in ("e4m3", "e2m1"):
        shift = np.float32(2.0 ** small_exponent(wide, dtype))
        return nearest_small(wide / shift, dtype) * shift
    raise ValueError(f"no kernel takes activations of type {dtype}")


def small_exponent(values: Array, dtype: str) -> int:
    """Power of two by which values are divided so that the largest magnitude fits `e4m3` or `e2m1` closely."""
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return 0
    return int(np.ceil(np.log2(largest / LARGEST[dtype])))


def nearest_small(values: Array, dtype: str) -> Array:
    """Nearest finite values of `e4m3` or `e2m1`, ties to the even code, saturating; float32."""
    grid = _magnitudes(dtype)
    codes = np.arange(grid.size)
    magnitude = np.minimum(np.abs(values), grid[-1])
    upper = np.clip(np.searchsorted(grid, magnitude), 1, grid.size - 1)
    below, above = grid[upper - 1], grid[upper]
    left, right = magnitude - below, above - magnitude
    take_above = (right < left) | ((right == left) & (codes[upper] % 2 == 0))
    rounded: Array = np.copysign(np.where(take_above, above, below), values)
    return rounded.astype(np.float32)


@cache
def _magnitudes(dtype: str) -> Array:
    """Values of the non-negative finite codes, in the order of the codes."""
    name, count = ("e4m3fn", 0x7F) if dtype == "e4m3" else ("e2m1", 8)
    return float_table(name)[:count].astype(np.float32)
