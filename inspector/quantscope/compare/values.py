"""Decoded weights of a pair, streamed: errors, steps, and whether input channels are rescaled."""

from __future__ import annotations

import msgspec
import numpy as np

from quantscope.compare.model import ChannelRatio, Pair, ValueComparison
from quantscope.compare.sides import Side, row_step
from quantscope.decode.parts import Array, Parts
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.evidence.metrics import TensorAccumulator
from quantscope.model import Json

RESCALED_FACTOR = 1.1
"""A channel departs where its norm ratio is off the median's by this factor beyond what rounding explains ..."""
RESCALED_COSINE = 0.95
"""... and within it the two sides still point the same way."""
RESCALED_SHARE = 0.03
"""More departing channels than this are a rescaling. AWQ and ModelOpt's AWQ against a float base have 5% to 75%
in every weight that they rescale; plain 2- to 8-bit roundings of the same base have none, or up to 2%."""
MIN_ROWS_FOR_RATIO = 8


class ChannelSums:
    """Sums over rows for every input channel: enough for ratio and cosine within a channel."""

    def __init__(self, n_cols: int) -> None:
        self.aa = np.zeros(n_cols)
        self.bb = np.zeros(n_cols)
        self.ab = np.zeros(n_cols)
        self.rows = 0

    def add(self, a: Array, b: Array) -> None:
        """Add rows of both sides."""
        x, y = a.astype(np.float64), b.astype(np.float64)
        self.aa += np.einsum("rc,rc->c", x, x)
        self.bb += np.einsum("rc,rc->c", y, y)
        self.ab += np.einsum("rc,rc->c", x, y)
        self.rows += a.shape[0]

    @property
    def ratios(self) -> Array:
        """Least-squares B/A per channel; NaN where A is all zero."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio: Array = np.where(self.aa > 0, self.ab / self.aa, np.nan)
        return ratio

    def summary(self) -> ChannelRatio | None:
        """Quantiles over channels; None where too few rows or channels say anything."""
        live = (self.aa > 0) & (self.bb > 0)
        if self.rows < MIN_ROWS_FOR_RATIO or live.sum() < 2:
            return None
        ratio = self.ratios[live]
        cosine = self.ab[live] / np.sqrt(self.aa[live] * self.bb[live])
        norms = np.sqrt(self.bb[live] / self.aa[live])
        p05, median, p95 = np.quantile(ratio, [0.05, 0.5, 0.95])
        return ChannelRatio(
            smallest=float(ratio.min()),
            median=float(median),
            largest=float(ratio.max()),
            p05=float(p05),
            p95=float(p95),
            median_cosine=float(np.median(cosine)),
            departing=_departing(norms, cosine),
        )


def is_rescaled(ratio: ChannelRatio | None) -> bool:
    """Whether input channels of one side are those of the other times different factors."""
    return ratio is not None and ratio.departing > RESCALED_SHARE


def _departing(norms: Array, cosine: Array) -> float:
    """Share of channels that one factor for all does not explain.

    Rounding adds an error that is about orthogonal to a channel: with cosine c between the two sides, it alone
    changes the ratio of their norms by a factor of 1/c at most. Least-squares ratios shrink with that error, so
    that weak channels of a coarse rounding look rescaled by them; norms do not.
    """
    same_way = cosine >= RESCALED_COSINE
    off = np.abs(np.log(norms / np.median(norms)))
    beyond = off[same_way] + np.log(cosine[same_way]) > np.log(RESCALED_FACTOR)
    return float(beyond.sum() / norms.size)


class _Steps:
    """Differences in units of A's scale, and the worst group."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0
        self.largest = 0.0
        self.worst: dict[str, Json] | None = None
        self._worst_error = -1.0

    def add(self, first_row: int, parts: Parts, difference: Array) -> None:
        self._group(first_row, parts, difference)
        if not parts.scale or parts.combine == "vector":
            return
        scale = np.abs(np.asarray(parts.scale[0], dtype=np.float32))
        for level, divides in zip(parts.scale[1:], parts.scale_divides[1:], strict=True):
            factor = np.abs(np.asarray(level, dtype=np.float32))
            scale = scale / factor if divides else scale * factor
        spread = np.broadcast_to(parts.per_element(scale), difference.shape)
        live = spread > 0
        steps = np.abs(difference[live]) / spread[live]
        if parts.scale_divides[0]:
            steps = np.abs(difference[live]) * spread[live]
        if steps.size:
            self.total += float(steps.sum(dtype=np.float64))
            self.count += steps.size
            self.largest = max(self.largest, float(steps.max()))

    def _group(self, first_row: int, parts: Parts, difference: Array) -> None:
        index = parts.group_of_column
        if index.ndim != 1:
            return
        order = np.argsort(index, kind="stable")
        used, starts, counts = np.unique(index[order], return_index=True, return_counts=True)
        square = np.square(difference[:, order].astype(np.float64))
        errors = np.add.reduceat(square, starts, axis=1) / counts
        worst = int(np.argmax(errors))
        row, group = divmod(worst, used.size)
        if errors[row, group] > self._worst_error:
            self._worst_error = float(errors[row, group])
            self.worst = {
                "row": first_row + row,
                "group": int(used[group]),
                "mse": self._worst_error,
            }


def compare_values(
    a: Side, b: Side, pair: Pair, *, max_rows: int | None = None
) -> tuple[ValueComparison, ChannelSums | None]:
    """Stream a pair's rows through both decoders.

    Args:
        a: side A; errors are those of B against A.
        b: side B.
        pair: which rows of which weights.
        max_rows: rows to look at, spread over the weight; all by default.
    """
    try:
        return _compare(a, b, pair, max_rows)
    except CancelledError:
        raise
    except QuantscopeError as problem:
        failed = ValueComparison(elements=0, total=0, identical=False, error=problem.message)
        return failed, None


def _compare(
    a: Side, b: Side, pair: Pair, max_rows: int | None
) -> tuple[ValueComparison, ChannelSums | None]:
    n_rows, n_cols = a.extents(pair.a, pair.rows_a)
    if (n_rows, n_cols) != b.extents(pair.b, pair.rows_b):
        other = b.extents(pair.b, pair.rows_b)
        text = f"shapes differ: [{n_rows}, {n_cols}] and {list(other)}"
        return ValueComparison(elements=0, total=n_rows * n_cols, identical=False, error=text), None
    metrics, sums, steps = TensorAccumulator(), ChannelSums(n_cols), _Steps()
    identical, seen = True, 0
    for rows in row_ranges(n_rows, n_cols, max(pair.rows_a.heads, pair.rows_b.heads), max_rows):
        x = a.decode(pair.a, rows, pair.rows_a)
        y = b.decode(pair.b, rows, pair.rows_b)
        identical = identical and bool((x.view(np.uint32) == y.view(np.uint32)).all())
        metrics.add(x, y)
        sums.add(x, y)
        seen += x.size
        parts = a.parts(pair.a, rows, pair.rows_a)
        if parts is not None:
            steps.add(rows.start, parts, y - x)
    error: str | None = None
    measured = None
    try:
        measured = metrics.result()
    except QuantscopeError as problem:
        error = problem.message
    ratio = sums.summary() if not identical else None
    return (
        ValueComparison(
            elements=seen,
            total=n_rows * n_cols,
            identical=identical,
            metrics=measured,
            error=error,
            steps_mean=steps.total / steps.count if steps.count else None,
            steps_max=steps.largest if steps.count else None,
            ratio=ratio,
            like_for_like=identical or not is_rescaled(ratio),
            worst_group=steps.worst if not identical else None,
        ),
        sums,
    )


def row_ranges(n_rows: int, n_cols: int, heads: int, max_rows: int | None) -> list[range]:
    """Row ranges to stream: all rows, or runs spread evenly over them."""
    step = row_step(n_rows, n_cols, heads)
    if max_rows is None or max_rows >= n_rows:
        return [range(s, min(s + step, n_rows)) for s in range(0, n_rows, step)]
    unit = n_rows // heads if heads else 1
    runs = 8
    length = max(unit, max_rows // runs // unit * unit)
    starts = {int(i * (n_rows - length) // max(1, runs - 1)) // unit * unit for i in range(runs)}
    return [range(s, min(s + length, n_rows)) for s in sorted(starts)]


def swapped(pair: Pair) -> Pair:
    """The pair with its sides exchanged."""
    return msgspec.structs.replace(pair, a=pair.b, b=pair.a, rows_a=pair.rows_b, rows_b=pair.rows_a)
