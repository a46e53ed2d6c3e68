"""The high-precision side: float64 weights from the inspector's own decoder, and products over them.

Nothing here is shared with any repacker of a kernel plugin: those read the stored bytes again by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.window import window_parts
from quantscope.families.base import FamilyBase
from quantscope.families.protocol import Family
from quantscope.model import Reading
from quantscope.parity.protocol import Weight

BLOCK_ELEMENTS = 1 << 21
ROW_RUN = 128
"""Row blocks are multiples of this, so that tiles of 128 rows and packed words stay whole."""

PartsBlocks = Callable[[], Iterator[tuple[range, Parts]]]


def row_blocks(n_rows: int, n_cols: int) -> list[range]:
    """Runs of rows of bounded size, whole multiples of 128 but for the last."""
    step = max(1, BLOCK_ELEMENTS // max(1, n_cols) // ROW_RUN) * ROW_RUN
    return [range(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def parts_blocks(
    family: Family, weight: Weight, n_rows: int, reader: PlaneReader
) -> Iterator[tuple[range, Parts]]:
    """Parts of the first `n_rows` rows, block by block."""
    for rows in row_blocks(n_rows, weight.n_cols):
        window = Window(rows, range(weight.n_cols))
        parts = window_parts(family, weight.tensor, weight.reading, window, reader)
        yield rows, as_engine(parts, family, weight.reading)


OWN_RULE_TOLERANCE = 1e-6
"""Relative difference below which a family's own rule is the engine's times a constant: a few float32 roundings."""


def as_engine(parts: Parts, family: Family, reading: Reading) -> Parts:
    """Parts whose weights follow from the engine's arithmetic, also where a family combines by a rule of its own.

    A rule that is the engine's times a constant (SCB / 127 of bitsandbytes) becomes a factor of the scale; any other
    one gives its weights as values without codes.
    """
    if (
        parts.combine == "vector"
        or getattr(type(getattr(family, "inner", family)), "combine", None) is FamilyBase.combine
    ):
        return parts
    with np.errstate(all="ignore"):
        own = family.combine(parts, reading, False).astype(np.float64)
        plain = weights64(parts, family, reading)
        live = (plain != 0) & np.isfinite(plain) & np.isfinite(own)
        factor = float(np.median(own[live] / plain[live])) if live.any() else 1.0
        close = np.abs(own - factor * plain) <= OWN_RULE_TOLERANCE * np.abs(own)
    if bool(close.all()) and parts.scale and parts.combine not in ("minus_min", "plus_min"):
        if factor == 1.0:
            return parts
        first = np.asarray(parts.scale[0], dtype=np.float64)
        exact = first / factor if parts.scale_divides[0] else first * factor
        kept = {name: getattr(parts, name) for name in Parts.__slots__}
        return Parts(**(kept | {"scale": (exact, *parts.scale[1:])}))
    if bool(close.all()) and factor == 1.0:
        return parts
    return Parts(codes=own.astype(np.float32), combine="value")


def scale_of(parts: Parts) -> Array:
    """All levels as one float64 [R, G]-like factor; ones where the format has no scale."""
    factor: Array = np.ones((1, 1))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for level, divides in zip(parts.scale, parts.scale_divides, strict=True):
            wide = np.asarray(level, dtype=np.float64)
            factor = factor / wide if divides else factor * wide
    return factor


def levels_of(parts: Parts) -> Array | None:
    """What the scale multiplies before any zero is taken off, float64 [R, C]; None for `vector` parts."""
    if parts.combine == "lut":
        assert parts.lut is not None
        values: Array = np.asarray(parts.lut, dtype=np.float64)[parts.codes]
        return values
    if parts.combine == "vector":
        return None
    return parts.codes.astype(np.float64)


def zero_of(parts: Parts) -> Array | None:
    """The zero per element in code steps, float64 broadcastable to [R, C]; None without one."""
    if parts.combine == "affine" and parts.zero is not None:
        return parts.per_element(np.asarray(parts.zero, dtype=np.float64))
    return None


def minimum_of(parts: Parts) -> Array | None:
    """What is added after the scale, float64 broadcastable to [R, C]; None without a minimum."""
    if parts.combine not in ("minus_min", "plus_min"):
        return None
    assert parts.minimum is not None
    minimum = parts.per_element(np.asarray(parts.minimum, dtype=np.float64))
    return -minimum if parts.combine == "minus_min" else minimum


def weights64(parts: Parts, family: Family, reading: Reading) -> Array:
    """Weights of a block in float64, without a rounding of their own.

    `vector` parts are combined by their family in float32 and widened.
    """
    levels = levels_of(parts)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if levels is None:
            combined: Array = family.combine(parts, reading, False).astype(np.float64)
            return combined
        zero = zero_of(parts)
        if zero is not None:
            levels = levels - zero
        weights: Array = levels * parts.per_element(scale_of(parts))
        minimum = minimum_of(parts)
        if minimum is not None:
            weights = weights + minimum
    return weights
