"""Roundings of float32 to the half types, kept as float32, for decode rules that round between steps."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def round_to(values: Floats, kind: str, out: Floats | None = None) -> Floats:
    """Round float32 values to `kind`; `f32` gives `values` back as they are, without a copy.

    Raises:
        ValueError: `kind` is none of the three.
    """
    if kind == "bf16":
        return to_bf16(values, out)
    if kind == "f16":
        return to_f16(values, out)
    if kind != "f32":
        raise ValueError(f"values are rounded to f32, f16 or bf16, not {kind}")
    if out is None or out is values:
        return values
    np.copyto(out, values)
    return out


def to_bf16(values: Floats, out: Floats | None = None) -> Floats:
    """Round to bfloat16, ties to even, and keep the result as float32.

    Infinities stay, values beyond the largest bfloat16 become infinite, a NaN stays a NaN of the same
    sign (made quiet).

    Args:
        values: float32, any shape.
        out: float32 of the same shape; may be `values`.
    """
    if out is None:
        out = np.empty_like(values)
    bits = values.view(np.uint32)
    nan = np.isnan(values)
    rounded = out.view(np.uint32)
    lowest_kept = (bits >> np.uint32(16)) & np.uint32(1)
    lowest_kept += np.uint32(0x7FFF)
    quiet = bits[nan] | np.uint32(0x0040_0000) if nan.any() else None
    np.add(bits, lowest_kept, out=rounded)
    np.bitwise_and(rounded, np.uint32(0xFFFF_0000), out=rounded)
    if quiet is not None:
        rounded[nan] = quiet & np.uint32(0xFFFF_0000)
    return out


def to_f16(values: Floats, out: Floats | None = None) -> Floats:
    """Round to IEEE half, ties to even, and keep the result as float32.

    Values beyond 65504 by half a step or more become infinite, as in IEEE 754; subnormal halves are kept.

    Args:
        values: float32, any shape.
        out: float32 of the same shape; may be `values`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16)
    if out is None:
        return halves.astype(np.float32)
    np.copyto(out, halves)
    return out
