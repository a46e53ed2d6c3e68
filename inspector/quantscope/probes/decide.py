"""Which of several readings a text prefers: paired differences per target, or undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from quantscope.probes.model import ACCEPT_BELOW_UNIFORM, ACCEPT_T, Decision, SideResult


def decide(results: Sequence[SideResult], vocabulary: int, scored: bool) -> Decision | None:
    """The reading of the examined checkpoint (the last side's) that beats its others clearly.

    None where there is nothing to decide: another checkpoint is no reading of this one.

    Accepted only when its mean NLL lies ACCEPT_BELOW_UNIFORM nats below ln V and the paired t of every
    other reading against it exceeds ACCEPT_T.

    Args:
        results: sides with NLL per target over the same targets.
        vocabulary: V.
        scored: whether NLL means anything.
    """
    results = [r for r in results if r.path == results[-1].path]
    if len(results) < 2:
        return None
    if not scored:
        return Decision(accepted=None, reason="undecided: random ids give KL only, no likelihood")
    best = min(results, key=lambda r: r.nll_mean if r.nll_mean is not None else math.inf)
    if best.nll_mean is None:
        return Decision(accepted=None, reason="undecided: no likelihood was computed")
    ceiling = math.log(vocabulary) - ACCEPT_BELOW_UNIFORM
    if best.nll_mean >= ceiling:
        return Decision(
            accepted=None,
            reason=(
                f"undecided: the best reading ({best.label}) has NLL {best.nll_mean:.3f}, not below "
                f"ln {vocabulary} - {ACCEPT_BELOW_UNIFORM:g} = {ceiling:.3f}: none reads the text"
            ),
        )
    worst_t = math.inf
    rival = ""
    for other in results:
        if other is best:
            continue
        t = paired_t(other.nll_rows, best.nll_rows)
        if t < worst_t:
            worst_t, rival = t, other.label
    if worst_t > ACCEPT_T:
        return Decision(
            accepted=best.label,
            reason=(
                f"NLL {best.nll_mean:.3f} over {len(best.nll_rows)} targets; paired t of every other reading "
                f"at least {worst_t:.1f} ({rival})"
            ),
        )
    return Decision(
        accepted=None,
        reason=f"undecided: {rival} differs from {best.label} with paired t {worst_t:.1f}, not above {ACCEPT_T:g}",
    )


def paired_t(worse: Sequence[float], better: Sequence[float]) -> float:
    """T of the mean paired difference; infinite where every difference is equal and positive."""
    difference = np.asarray(worse) - np.asarray(better)
    if difference.size < 2:
        return 0.0
    mean = float(difference.mean())
    error = float(difference.std(ddof=1) / np.sqrt(difference.size))
    if error == 0.0:
        return math.inf if mean > 0 else 0.0
    return mean / error
