"""Logits of two models on the same token positions: KL, top-1, argmax safety, NLL and perplexity.

p is the softmax of the reference row, q of the candidate row, temperature 1, natural logarithm.
Rows are teacher-forced positions of one fixed token prefix; nothing here shifts targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quantscope.evidence.metrics import (
    CHUNK_ELEMENTS,
    FloatArray,
    NonFinite,
    NonFiniteError,
    NumericError,
    ShapeMismatchError,
    find_nonfinite,
)

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

IGNORE_INDEX = -100
"""Label of a position that is not scored (the convention of torch's cross entropy)."""

_SERIES_BELOW = 0.05
_SERIES = tuple(1.0 / math.factorial(k) for k in range(2, 11))
_SPLIT_ABOVE = 30.0
_SAFE_LOG = -690.0
"""Above this a probability and its products with log ratios stay normal numbers."""


class RowStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What each of N rows says; every array has shape [N]."""

    kl: Float64
    """KL(p || q) in nats, never negative."""
    kl_lost: Bool
    """The row's KL is not zero but too small for binary64."""
    reference_top1: Int64
    candidate_top1: Int64
    margin: Float64
    """First minus second reference logit."""
    max_abs_logit_error: Float64
    argmax_safe: Bool
    """margin > 2 * max_abs_logit_error, decided exactly: no error of that size moves the argmax."""


class Likelihood(msgspec.Struct, frozen=True, kw_only=True):
    """Negative log likelihood of the scored targets; `ppl` is exp(nll_sum / count)."""

    count: int
    nll_sum: float
    nll_mean: float
    ppl: float


class LogitsMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """All figures over the same scored rows."""

    scored_rows: int
    kl_mean: float
    kl_max: float
    top1_matches: int
    top1_agreement: float
    argmax_safe_rows: int
    max_abs_logit_error: float
    reference: Likelihood
    candidate: Likelihood


class LossMeans(msgspec.Struct, frozen=True, kw_only=True):
    """The two means of a loss over documents; they differ when documents differ in length."""

    documents: int
    tokens: int
    per_document_mean: float
    """Mean over documents of each document's mean per token."""
    per_token_mean: float
    """Total loss over total tokens."""


def row_statistics(
    reference: FloatArray, candidate: FloatArray, *, field: str = "logits"
) -> RowStatistics:
    """Statistics of each pair of rows, computed in float64 a few rows at a time.

    Args:
        reference: [N, V] logits, V >= 2, any float dtype.
        candidate: [N, V] logits of the same positions.
        field: prefix of the field names in errors.

    Raises:
        ShapeMismatchError: the shapes differ or are no [N, V].
        NonFiniteError: a logit of any row is NaN or infinite.
        NumericError: a difference of two logits overflows.
    """
    _check_pair(reference, candidate)
    rows = reference.shape[0]
    parts: list[RowStatistics] = []
    step = _rows_per_chunk(reference.shape[1])
    for start in range(0, rows, step):
        x = reference[start : start + step].astype(np.float64)
        y = candidate[start : start + step].astype(np.float64)
        with np.errstate(all="ignore"):
            parts.append(_chunk_statistics(x, y, start, field))
    names = RowStatistics.__struct_fields__
    return RowStatistics(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


def target_nll(
    logits: FloatArray, targets: npt.NDArray[np.integer[Any]], *, field: str = "logits"
) -> Float64:
    """-log softmax(row)[target] of each row, [N] in nats, never negative.

    The largest logit is taken out of the sum, so that a nearly certain target keeps its digits.

    Args:
        logits: [N, V], V >= 2, any float dtype.
        targets: [N] indices into V.
        field: prefix of the field names in errors.

    Raises:
        ShapeMismatchError: the shapes do not fit, or a target lies outside V.
        NonFiniteError: a logit of any row is NaN or infinite.
        NumericError: a difference of two logits overflows.
    """
    if logits.ndim != 2 or targets.shape != logits.shape[:1] or 0 in logits.shape:
        raise ShapeMismatchError(f"logits {logits.shape} against targets {targets.shape}")
    if int(targets.min()) < 0 or int(targets.max()) >= logits.shape[1]:
        raise ShapeMismatchError("a target lies outside the vocabulary")
    bad = find_nonfinite(logits)
    if bad is not None:
        raise NonFiniteError(reference=bad, candidate=None)
    result = np.empty(logits.shape[0], dtype=np.float64)
    step = _rows_per_chunk(logits.shape[1])
    for start in range(0, logits.shape[0], step):
        rows = logits[start : start + step].astype(np.float64)
        with np.errstate(all="ignore"):
            shifted, log_rest, _ = _shifted(rows)
        picked = np.take_along_axis(shifted, targets[start : start + step, None], axis=1)[:, 0]
        result[start : start + step] = log_rest - picked
    _require_finite(result, 0, f"{field}.nll_sum")
    return result


def likelihood(nll_rows: Float64, *, field: str) -> Likelihood:
    """Totals of the scored rows' NLL; perplexity comes from the total, never from means of parts.

    Raises:
        ShapeMismatchError: no row is scored.
        NumericError: the total or exp of its mean overflows.
    """
    count = int(nll_rows.size)
    if count == 0:
        raise ShapeMismatchError("no target is scored")
    total = _exact_sum(nll_rows, f"{field}.nll_sum")
    mean = total / count
    if mean == 0.0 and total != 0.0:
        raise NumericError(
            stage="mean", field=f"{field}.nll_mean", reason="a non-zero result becomes zero"
        )
    return Likelihood(
        count=count, nll_sum=total, nll_mean=mean, ppl=perplexity(total, count, field)
    )


def perplexity(nll_sum: float, count: int, field: str = "logits") -> float:
    """exp(nll_sum / count).

    Raises:
        NumericError: exp overflows.
    """
    try:
        return math.exp(nll_sum / count)
    except OverflowError:
        raise NumericError(
            stage="exp", field=f"{field}.ppl", reason=f"exp({nll_sum / count:.6g}) overflows"
        ) from None


def logits_metrics(
    reference: FloatArray,
    candidate: FloatArray,
    targets: npt.NDArray[np.integer[Any]],
    mask: Bool,
    *,
    field: str = "logits",
) -> LogitsMetrics:
    """All figures over the rows where `mask` is true; targets are aligned with the rows.

    Args:
        reference: [N, V] logits.
        candidate: [N, V] logits.
        targets: [N] token ids.
        mask: [N], true where a row is scored.
        field: prefix of the field names in errors.

    Raises:
        ShapeMismatchError, NonFiniteError, NumericError: as the parts say; non-finite logits are
            refused on masked rows as well.
    """
    _check_pair(reference, candidate)
    if mask.shape != targets.shape or not mask.any():
        raise ShapeMismatchError("no row is scored, or the mask does not fit the targets")
    x, y, scored = reference[mask], candidate[mask], targets[mask]
    rows = row_statistics(x, y, field=field)
    count = int(scored.size)
    total = _exact_sum(rows.kl, f"{field}.kl_mean")
    if total / count == 0.0 and (total != 0.0 or bool(rows.kl_lost.any())):
        raise NumericError(
            stage="KL sum", field=f"{field}.kl_mean", reason="a non-zero result becomes zero"
        )
    matches = int(np.count_nonzero(rows.reference_top1 == rows.candidate_top1))
    return LogitsMetrics(
        scored_rows=count,
        kl_mean=total / count,
        kl_max=float(np.max(rows.kl)),
        top1_matches=matches,
        top1_agreement=matches / count,
        argmax_safe_rows=int(np.count_nonzero(rows.argmax_safe)),
        max_abs_logit_error=float(np.max(rows.max_abs_logit_error)),
        reference=likelihood(
            target_nll(x, scored, field=f"{field}.reference"), field=f"{field}.reference"
        ),
        candidate=likelihood(
            target_nll(y, scored, field=f"{field}.candidate"), field=f"{field}.candidate"
        ),
    )


def shifted_target_count(
    labels: Sequence[int] | npt.NDArray[np.integer[Any]], *, ignore_index: int = IGNORE_INDEX
) -> int:
    """Targets of one document that are scored once labels are shifted by one.

    Position t predicts label t + 1, so the first label is no target whether it is masked or not.
    """
    values = np.asarray(labels)
    if values.ndim != 1:
        raise ShapeMismatchError("labels are one document, [T]")
    return int(np.count_nonzero(values[1:] != ignore_index))


def loss_means(losses_by_document: Iterable[Sequence[float] | Float64]) -> LossMeans:
    """Both means of per-token losses, one sequence a document.

    Raises:
        ShapeMismatchError: there is no document, or one has no token.
    """
    documents = [np.asarray(losses, dtype=np.float64) for losses in losses_by_document]
    if not documents or any(losses.size == 0 for losses in documents):
        raise ShapeMismatchError("every document needs at least one scored token")
    sums = [_exact_sum(losses, "losses") for losses in documents]
    tokens = sum(losses.size for losses in documents)
    per_document = [total / losses.size for total, losses in zip(sums, documents, strict=True)]
    return LossMeans(
        documents=len(documents),
        tokens=tokens,
        per_document_mean=math.fsum(per_document) / len(documents),
        per_token_mean=math.fsum(sums) / tokens,
    )


def _check_pair(reference: FloatArray, candidate: FloatArray) -> None:
    if reference.shape != candidate.shape:
        raise ShapeMismatchError(
            f"shapes differ: reference {reference.shape}, candidate {candidate.shape}"
        )
    if reference.ndim != 2 or reference.shape[0] < 1 or reference.shape[1] < 2:
        raise ShapeMismatchError(f"logits are [N, V] with V >= 2, not {reference.shape}")
    bad: list[NonFinite | None] = [find_nonfinite(reference), find_nonfinite(candidate)]
    if bad[0] is not None or bad[1] is not None:
        raise NonFiniteError(reference=bad[0], candidate=bad[1])


def _rows_per_chunk(vocabulary_size: int) -> int:
    return max(1, CHUNK_ELEMENTS // vocabulary_size)


def _exact_sum(values: Float64, field: str) -> float:
    try:
        return math.fsum(values.tolist())
    except OverflowError:
        raise NumericError(stage="sum", field=field, reason="the total overflows") from None


def _shifted(rows: Float64) -> tuple[Float64, Float64, Int64]:
    """Logits minus their maximum, log of the sum of their exponentials, first argmax.

    The largest term is exactly 1 and is added last, inside log1p.
    """
    top = np.argmax(rows, axis=1)
    index = np.arange(rows.shape[0])
    shifted = rows - rows[index, top][:, None]
    weights = np.exp(shifted)
    weights[index, top] = 0.0
    return shifted, np.log1p(weights.sum(axis=1)), top


def _two_difference(a: Float64, b: Float64) -> tuple[Float64, Float64]:
    """A - b as a rounded value and the exact rest (Knuth's error-free transformation)."""
    high = a - b
    back = high - a
    return high, (a - (high - back)) - (b + back)


def _chunk_statistics(x: Float64, y: Float64, start: int, field: str) -> RowStatistics:
    delta, delta_rest = _two_difference(y, x)
    shifted, log_rest, top = _shifted(x)
    error, error_rest = _largest_error(delta, delta_rest)
    for extreme in (error, shifted.min(axis=1)):
        _require_finite(extreme, start, f"{field}.kl_mean")
    log_p = shifted - log_rest[:, None]
    change = _relative_change(delta, delta_rest, top)
    log_ratio = _log_ratio(log_p, y, change, log_rest, top)
    kl = _kl_terms(log_p, log_ratio, y).sum(axis=1)
    _require_finite(kl, start, f"{field}.kl_mean")
    margin, margin_rest = _margin(x, top)
    safe = (margin > 2 * error) | ((margin == 2 * error) & (margin_rest > 2 * error_rest))
    return RowStatistics(
        kl=kl,
        kl_lost=(kl == 0.0) & (log_ratio != 0.0).any(axis=1),
        reference_top1=top.astype(np.int64),
        candidate_top1=np.argmax(y, axis=1).astype(np.int64),
        margin=margin,
        max_abs_logit_error=error,
        argmax_safe=safe,
    )


def _require_finite(row_values: Float64, start: int, field: str) -> None:
    """One number a row shows whether any difference of logits in the row overflowed."""
    bad = ~np.isfinite(row_values)
    if bad.any():
        raise NumericError(
            stage="logit difference",
            field=field,
            reason=f"a difference of logits overflows in scored row {start + int(np.argmax(bad))}",
        )


def _log_ratio(
    log_p: Float64, candidate: Float64, change: Float64, log_rest: Float64, top: Int64
) -> Float64:
    """Log q - log p of each token, accurate relative to itself where rows are nearly equal.

    With u the change of a logit relative to the change of the reference's top one, it is
    u - log(sum p exp(u)), and the sum is 1 + sum p expm1(u), which keeps its digits near 1.
    Where u is large, log p + u is taken from the candidate's own logits: of two huge numbers that
    cancel nothing would be left.
    """
    p = np.exp(log_p)
    moved = p * np.expm1(np.minimum(change, 1.0))
    log_moved = candidate - candidate[np.arange(top.size), top][:, None] - log_rest[:, None]
    far = change > 1.0
    if far.any():
        moved[far] = np.exp(log_moved[far]) - p[far]
    total = moved.sum(axis=1)
    log_norm = np.log1p(total)
    overflow = ~np.isfinite(total)
    if overflow.any():
        largest = log_moved[overflow].max(axis=1)
        rest = np.exp(log_moved[overflow] - largest[:, None]).sum(axis=1)
        log_norm[overflow] = largest + np.log(rest)
    ratio: Float64 = change - log_norm[:, None]
    return ratio


def _relative_change(delta: Float64, delta_rest: Float64, top: Int64) -> Float64:
    """Delta minus its value at the reference's top token, free of common shifts."""
    index = np.arange(top.size)
    centre = np.broadcast_to(delta[index, top][:, None], delta.shape)
    change, rest = _two_difference(delta, centre)
    result: Float64 = change + (rest + (delta_rest - delta_rest[index, top][:, None]))
    return result


def _kl_terms(log_p: Float64, log_ratio: Float64, candidate: Float64) -> Float64:
    """P * (expm1(d) - d) of each token: the same sum as p * -d, and no term is negative.

    A series near d = 0; q - p (1 + d) with q from its own row where d is large; and the product
    taken through logarithms where p alone would be lost.
    """
    d = log_ratio
    factor = np.expm1(np.minimum(d, _SPLIT_ABOVE)) - d
    near = np.abs(d) < _SERIES_BELOW
    if near.any():
        close = d[near]
        series = np.zeros_like(close)
        for coefficient in reversed(_SERIES):
            series = series * close + coefficient
        factor[near] = series * close * close
    terms: Float64 = np.exp(log_p) * factor
    split = d > _SPLIT_ABOVE
    faint = (log_p < _SAFE_LOG) & ~split & (factor > 0)
    if faint.any():
        terms[faint] = np.exp(log_p[faint] + np.log(factor[faint]))
    if split.any():
        shifted, log_rest, _ = _shifted(candidate)
        q = np.exp((shifted - log_rest[:, None])[split])
        terms[split] = q - np.exp(log_p[split] + np.log1p(d[split]))
    return terms


def _margin(rows: Float64, top: Int64) -> tuple[Float64, Float64]:
    """First minus second logit of each row, with the exact rest."""
    index = np.arange(rows.shape[0])
    others = rows.copy()
    others[index, top] = -np.inf
    return _two_difference(rows[index, top], others.max(axis=1))


def _largest_error(delta: Float64, delta_rest: Float64) -> tuple[Float64, Float64]:
    """Largest |delta| of each row, with the exact rest."""
    magnitude = np.abs(delta)
    largest = magnitude.max(axis=1)
    rest = np.where(delta < 0, -delta_rest, delta_rest)
    rest = np.where(magnitude == largest[:, None], rest, -np.inf)
    return largest, rest.max(axis=1)
