"""Parts into weights, in exact float32 steps or in the producer's own arithmetic."""

from __future__ import annotations

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.decode.roundings import round_to
from quantscope.model import Arithmetic


def combine_parts(parts: Parts, arithmetic: Arithmetic | None) -> Array:
    """Weights of a window.

    Args:
        parts: codes [R, C] and their planes.
        arithmetic: the producer's types and roundings; None for plain float32 with one rounding per step.

    Returns:
        float32 [R, C]. With an arithmetic, values are rounded to its output type and held in float32.

    Raises:
        ValueError: `vector` parts, which only their family combines.
    """
    rule = arithmetic or Arithmetic()
    step = rule.compute
    scale, divides = _scale(parts, rule)
    if parts.combine == "lut":
        assert parts.lut is not None
        value = parts.lut[parts.codes]
        out = _scaled(value, scale, divides, parts, step)
    elif parts.combine == "value":
        out = _scaled(parts.codes.astype(np.float32), scale, divides, parts, step)
    elif parts.combine == "affine":
        value = parts.codes.astype(np.float32)
        if parts.zero is not None:
            value -= parts.per_element(np.asarray(parts.zero, dtype=np.float32))
        out = _scaled(round_to(value, step), scale, divides, parts, step)
    elif parts.combine in ("minus_min", "plus_min"):
        assert parts.minimum is not None
        value = _scaled(parts.codes.astype(np.float32), scale, divides, parts, step)
        minimum = parts.per_element(np.asarray(parts.minimum, dtype=np.float32))
        value = value - minimum if parts.combine == "minus_min" else value + minimum
        out = round_to(value, step)
    else:
        raise ValueError(f"parts of kind {parts.combine} are combined by their family")
    return round_to(out, rule.output) if arithmetic is not None else out


def _scale(parts: Parts, rule: Arithmetic) -> tuple[Array | None, bool]:
    """All scale levels as one float32 [R, G]-like array, and whether it divides the code."""
    if not parts.scale:
        return None, False
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = np.asarray(parts.scale[0], dtype=np.float32)
        if rule.scale_cast:
            scale = round_to(scale, rule.scale_cast)
        for level, divides in zip(parts.scale[1:], parts.scale_divides[1:], strict=True):
            other = np.asarray(level, dtype=np.float32)
            scale = scale / other if divides else scale * other
    return scale, parts.scale_divides[0]


def _scaled(value: Array, scale: Array | None, divides: bool, parts: Parts, step: str) -> Array:
    if scale is None:
        return value
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        spread = parts.per_element(scale)
        product: Array = value / spread if divides else value * spread
        return round_to(product, step)
