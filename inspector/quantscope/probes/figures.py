"""Figures of passes and of pairs of passes: likelihood, divergence, controls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from quantscope.decode.parts import Array
from quantscope.errors import QuantscopeError
from quantscope.evidence.logits import perplexity, row_statistics, target_nll
from quantscope.evidence.metrics import NumericError
from quantscope.probes.model import Control, PairResult, SideRequest, SideResult, Tokens

UNUSED_SHOWN = 8


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass: logits and what was fed."""

    logits: Array
    weights_sha256: str
    changed: int
    readings: dict[str, int]
    unused: list[str]


def side_result(side: SideRequest, passed: Pass, tokens: Tokens) -> SideResult:
    """Likelihood of the scored targets under one side; None where ids were drawn at random."""
    rows: tuple[float, ...] = ()
    total = mean = ppl = None
    error = None
    if tokens.scored:
        nll = target_nll(passed.logits, np.asarray(tokens.ids[1:]))
        rows = tuple(float(v) for v in nll)
        total = float(nll.sum())
        mean = total / len(rows)
        try:
            ppl = perplexity(total, len(rows))
        except NumericError as problem:
            error = f"perplexity: {problem.reason}"
    return SideResult(
        label=side.label,
        path=side.path,
        reading=side.reading,
        tensors_changed=passed.changed,
        nll_sum=total,
        nll_mean=mean,
        ppl=ppl,
        weights_sha256=passed.weights_sha256,
        logits_sha256=hashlib.sha256(np.ascontiguousarray(passed.logits).tobytes()).hexdigest(),
        nll_rows=rows,
        error=error,
        readings=passed.readings,
        tensors_unused=len(passed.unused),
        unused_names=tuple(passed.unused[:UNUSED_SHOWN]),
    )


def pair_result(
    base: SideResult, candidate: SideResult, x: Array, y: Array, tokens: Tokens
) -> PairResult:
    """A candidate's logits against the base's, [rows, V] each."""
    rows = row_statistics(x, y)
    delta = se = t = None
    if tokens.scored:
        differences = np.asarray(candidate.nll_rows) - np.asarray(base.nll_rows)
        delta = float(differences.mean())
        if differences.size > 1:
            se = float(differences.std(ddof=1) / np.sqrt(differences.size))
            t = delta / se if se > 0 else None
    means = None
    if base.nll_mean is not None and candidate.nll_mean is not None:
        # One document is fed, so the mean over documents is the mean over tokens.
        means = (base.nll_mean, candidate.nll_mean)
    return PairResult(
        base=base.label,
        candidate=candidate.label,
        rows=int(x.shape[0]),
        kl_mean=float(np.mean(rows.kl)),
        kl_max=float(np.max(rows.kl)),
        kl_min=float(np.min(rows.kl)),
        kl_by_position=tuple(float(v) for v in rows.kl),
        top1_matches=int(np.count_nonzero(rows.reference_top1 == rows.candidate_top1)),
        max_abs_dlogit=float(np.max(rows.max_abs_logit_error)),
        rows_margin_safe=int(np.count_nonzero(rows.argmax_safe)),
        kl_lost_rows=int(np.count_nonzero(rows.kl_lost)),
        dnll_mean=delta,
        dnll_se=se,
        t=t,
        document_means=means,
        token_means=means,
    )


def same_control(name: Literal["self_before", "base_after"], base: Array, other: Array) -> Control:
    """The base against itself: every logit equal, so that KL is exactly 0."""
    kl = float(np.max(row_statistics(base, other).kl))
    return Control(
        name=name,
        held=kl == 0.0 and bool((base == other).all()),
        numbers={"kl_max": kl, "max_abs_dlogit": float(np.max(np.abs(base - other)))},
    )


def differ_control(results: Sequence[SideResult]) -> Control:
    """Every candidate's weights differ from the base's by hash."""
    same = [r.label for r in results[1:] if r.weights_sha256 == results[0].weights_sha256]
    return Control(
        name="weights_differ",
        held=not same,
        numbers={"equal_to_base": same} if same else {"sides": len(results)},
    )


def planted_control(
    reference: Array, right: Array, wrong: Pass, result: SideResult, tokens: Tokens
) -> Control:
    """A wrong reading raises KL against the reference, and NLL where text is scored.

    Args:
        reference: logits that KL is taken against.
        right: logits of the side that the wrong reading was planted into.
        wrong: the pass with the wrong reading.
        result: of the side without it.
        tokens: what was fed.
    """
    before = float(np.mean(row_statistics(reference, right).kl))
    kl = float(np.mean(row_statistics(reference, wrong.logits).kl))
    numbers: dict[str, Any] = {
        "planted_into": result.label,
        "kl_mean": kl,
        "kl_mean_unplanted": before,
    }
    held = kl > before and wrong.weights_sha256 != result.weights_sha256
    if tokens.scored and result.nll_mean is not None:
        nll = float(np.mean(target_nll(wrong.logits, np.asarray(tokens.ids[1:]))))
        numbers |= {"nll_mean": nll, "nll_mean_unplanted": result.nll_mean}
        held = held and nll > result.nll_mean
    return Control(name="planted", held=held, numbers=numbers)


def require_finite(label: str, logits: Array) -> None:
    """Refuse logits that are NaN or infinite, on any row.

    Raises:
        QuantscopeError: with their count and the first position.
    """
    bad = ~np.isfinite(logits)
    if bad.any():
        first = int(np.argmax(bad.reshape(-1))) // logits.shape[1]
        raise QuantscopeError(
            f"{label}: {int(bad.sum())} logits are not finite, the first at position {first}",
            hint="scan the checkpoint with --deep for NaN or infinite scales",
            source=label,
        )
