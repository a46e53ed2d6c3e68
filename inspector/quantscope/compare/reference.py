"""A quantized side against the float base: errors, re-quantization, saturation ratios."""

from __future__ import annotations

from typing import Literal

import numpy as np

from quantscope.compare.model import Pair, ReferenceResult, Requantized, ValueComparison
from quantscope.compare.sides import Side
from quantscope.compare.values import ChannelSums, compare_values, row_ranges, swapped
from quantscope.decode.parts import Array, Parts
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.model import Reading


def against_base(
    which: Literal["a", "b"], side: Side, base: Side, pair: Pair, max_rows: int | None
) -> tuple[ReferenceResult, ChannelSums | None]:
    """One quantized weight against its float source.

    Args:
        which: name of the quantized side.
        side: the quantized side, `pair.a`.
        base: the float side, `pair.b`.
        pair: which weights.
        max_rows: rows to look at; all by default.

    Returns:
        The result, with errors of the decoded weight against the base, and channel sums (base first).
    """
    values, sums = compare_values(base, side, swapped(pair), max_rows=max_rows)
    requantized, reason = None, None
    if values.metrics is None:
        reason = values.error or "values could not be compared"
    elif not values.like_for_like:
        reason = "input channels are rescaled: the base is not what was rounded"
    else:
        try:
            requantized, reason = _requantize(side, base, pair, max_rows)
        except CancelledError:
            raise
        except QuantscopeError as problem:
            reason = problem.message
    values = _with_group(values, side, base, pair, max_rows)
    return (
        ReferenceResult(
            side=which,
            name=pair.a,
            base=pair.b,
            values=values,
            requantized=requantized,
            requantized_reason=reason,
        ),
        sums,
    )


def _with_group(
    values: ValueComparison, side: Side, base: Side, pair: Pair, max_rows: int | None
) -> ValueComparison:
    """Add steps and the worst group, which need the quantized side's parts."""
    if values.metrics is None:
        return values
    other, _ = compare_values(side, base, pair, max_rows=max_rows)
    return ValueComparison(
        elements=values.elements,
        total=values.total,
        identical=values.identical,
        metrics=values.metrics,
        error=values.error,
        steps_mean=other.steps_mean,
        steps_max=other.steps_max,
        ratio=values.ratio,
        like_for_like=values.like_for_like,
        worst_group=other.worst_group,
    )


def _requantize(
    side: Side, base: Side, pair: Pair, max_rows: int | None
) -> tuple[Requantized | None, str | None]:
    reading = side.reading(pair.a)
    if reading is None:
        return None, "no reading fits the planes"
    counts = dict.fromkeys(("rne", "fixed", "clamp", "endpoint", "range", "all"), 0)
    n_rows, n_cols = side.extents(pair.a, pair.rows_a)
    for rows in row_ranges(n_rows, n_cols, 0, max_rows):
        parts = side.parts(pair.a, rows, pair.rows_a)
        if parts is None or pair.rows_b.heads:
            return None, "rows are in another order than the base's"
        if parts.combine != "affine" or reading.bit_width > 8 or reading.bit_width < 2:
            return None, f"not an affine integer code ({parts.combine})"
        source = base.decode(pair.b, rows, pair.rows_b).astype(np.float64)
        decoded = side.decode(pair.a, rows, pair.rows_a).astype(np.float64)
        _count(counts, parts, reading, source, decoded)
    total = counts["all"]
    if not total:
        return None, "no group has a usable scale"
    return (
        Requantized(
            rne_share=counts["rne"] / total,
            fixed_point_share=counts["fixed"] / total,
            code_clamp_fraction=counts["clamp"] / total,
            endpoint_fraction=counts["endpoint"] / total,
            range_fraction=counts["range"] / total,
        ),
        None,
    )


def _count(
    counts: dict[str, int], parts: Parts, reading: Reading, source: Array, decoded: Array
) -> None:
    """Tally one piece: u = RNE(x / s) + z, code = clip(u, qmin, qmax), per spec of the three ratios."""
    signed = reading.element.startswith("s")
    qmin = -(1 << (reading.bit_width - 1)) if signed else 0
    qmax = qmin + (1 << reading.bit_width) - 1
    scale = np.asarray(parts.scale[0], dtype=np.float64)
    for level, divides in zip(parts.scale[1:], parts.scale_divides[1:], strict=True):
        scale = scale / level if divides else scale * level
    if parts.scale_divides[0]:
        scale = 1.0 / scale
    spread = np.broadcast_to(parts.per_element(scale), source.shape)
    zero: Array = np.zeros((1, 1))
    if parts.zero is not None:
        zero = parts.per_element(np.asarray(parts.zero, dtype=np.float64))
    zero = np.broadcast_to(zero, source.shape)
    live = np.isfinite(spread) & (spread != 0) & np.isfinite(source)
    s, z, x, y = spread[live], zero[live], source[live], decoded[live]
    codes = parts.codes[live].astype(np.int64)
    unclipped = np.rint(x / s) + z
    ends = np.stack([(qmin - z) * s, (qmax - z) * s])
    counts["all"] += int(codes.size)
    counts["rne"] += int((np.clip(unclipped, qmin, qmax) == codes).sum())
    counts["fixed"] += int((np.clip(np.rint(y / s) + z, qmin, qmax) == codes).sum())
    counts["clamp"] += int(((unclipped < qmin) | (unclipped > qmax)).sum())
    counts["endpoint"] += int(((codes == qmin) | (codes == qmax)).sum())
    counts["range"] += int(((x < ends.min(axis=0)) | (x > ends.max(axis=0))).sum())
