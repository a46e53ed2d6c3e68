"""Denominators of a run, and which tensors a stated sample holds."""

from __future__ import annotations

from collections.abc import Sequence

from quantscope.parity.model import Coverage, ParityResult
from quantscope.session.inspection import Inspection


def coverage_of(results: Sequence[ParityResult], in_checkpoint: int, asked: int) -> Coverage:
    """Counts of layers, of traced calls and of traced time, each with its own whole.

    Args:
        results: results so far.
        in_checkpoint: quantized layers of the checkpoint.
        asked: layers that the run was asked for.
    """
    ran = [result for result in results if result.status == "executed"]

    def outcome(word: str) -> int:
        return sum(result.outcome == word for result in ran)

    fallbacks = [result.execution.fallback for result in ran]
    return Coverage(
        layers_in_checkpoint=in_checkpoint,
        layers_asked=asked,
        layers_run=len(ran),
        layers_held=outcome("held"),
        layers_did_not_hold=outcome("did_not_hold"),
        layers_inconclusive=outcome("inconclusive"),
        layers_skipped=sum(result.status == "skipped" for result in results),
        layers_failed=sum(result.status == "failed" for result in results),
        layers_fallback=sum(bool(fallback.names) for fallback in fallbacks),
        calls=(sum(f.calls[0] for f in fallbacks), sum(f.calls[1] for f in fallbacks)),
        microseconds=(
            round(sum(f.microseconds[0] for f in fallbacks), 3),
            round(sum(f.microseconds[1] for f in fallbacks), 3),
        ),
    )


def spread(inspection: Inspection, names: Sequence[str], count: int) -> list[str]:
    """`count` of the names: first one of every contract, then the others evenly over the checkpoint."""
    wanted = set(names)
    by_signature: dict[int, str] = {}
    for state in inspection.states:
        if state.tensor.name in wanted:
            by_signature.setdefault(state.signature, state.tensor.name)
    chosen = list(by_signature.values())[:count]
    rest = [name for name in names if name not in set(chosen)]
    missing = min(count - len(chosen), len(rest))
    chosen += [rest[i * len(rest) // missing] for i in range(missing)]
    return [name for name in names if name in set(chosen)]
