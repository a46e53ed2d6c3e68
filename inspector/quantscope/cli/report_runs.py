"""Kernel and logits runs for `quantscope report --with`, as the report lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quantscope.cli import diagnostics
from quantscope.evidence.gates import Gate, GateName

if TYPE_CHECKING:
    from quantscope.parity.model import ParityResult, ParityRun
    from quantscope.session.inspection import Inspection

KERNEL_SAMPLE = 8
"""Tensors that a kernel check looks at where none is named."""
_VOLATILE = ("seconds", "stderr_tail", "peak_rss_bytes", "microseconds")
_WORST = ("did_not_hold", "inconclusive", "held")


def run_for_report(
    inspection: Inspection,
    wanted: Sequence[str],
    tensors: Sequence[str],
    backend: str,
    base: str | None,
    tokens: str | None,
) -> dict[str, Any]:
    """What the runs put into a report: `parity`, `probes` and `gates`.

    Raises:
        MissingExtraError: a package that a run needs is not installed.
        UsageError: no backend has the name.
    """
    found: dict[str, Any] = {"parity": (), "probes": (), "gates": {}}
    if "parity" in wanted:
        entries, gate = _parity(inspection, tensors, backend)
        found["parity"] = entries
        found["gates"]["kernel"] = gate
    if "probe" in wanted:
        entries, gates = _probe(inspection, base, tokens)
        found["probes"] = entries
        found["gates"] |= gates
    return found


def _parity(
    inspection: Inspection, tensors: Sequence[str], backend: str
) -> tuple[tuple[dict[str, Any], ...], Gate]:
    from quantscope.parity.run import run_checkpoint

    run = run_checkpoint(
        inspection.checkpoint.opened.path,
        backend,
        tensors=list(tensors) or None,
        sample=None if tensors else KERNEL_SAMPLE,
        keep=False,
        progress=diagnostics.progress,
    )
    entries = tuple(
        {**steady(result), "execution_proof": result.execution_proof} for result in run.results
    )
    return entries, kernel_gate(run)


def kernel_gate(run: ParityRun) -> Gate:
    """The gate `kernel` of a run; a backend that executes no kernel leaves it skipped."""
    ran = [r for r in run.results if r.status == "executed" and r.executes_kernel]
    if not ran:
        reasons = dict.fromkeys(r.reason for r in run.results if r.reason)
        why = "; ".join(reasons) or f"the backend {run.backend} executes no kernel"
        failed = any(r.status == "failed" for r in run.results)
        return Gate(status="failed" if failed else "skipped", reason=why)
    worst = min(ran, key=lambda r: _WORST.index(r.outcome or "inconclusive"))
    return Gate(
        status="executed",
        outcome=worst.outcome or "inconclusive",
        reason=worst.reason or None,
        scope=_kernel_scope(run, ran),
    )


def _kernel_scope(run: ParityRun, ran: Sequence[ParityResult]) -> dict[str, Any]:
    return {
        "backend": run.backend,
        "kernels": sorted({r.kernel or "" for r in ran}),
        "device": sorted({r.device_name or r.device or "" for r in ran}),
        "dtype": sorted({r.dtype for r in ran}),
        "seed": ran[0].settings.seed,
        "tensors": [r.tensor for r in ran],
        "layers": steady(run.coverage),
        "comparison": ran[0].comparison,
        "execution_proof": "proved"
        if all(r.execution_proof == "proved" for r in ran)
        else "unproven",
    }


def _probe(
    inspection: Inspection, base: str | None, tokens: str | None
) -> tuple[tuple[dict[str, Any], ...], dict[GateName, Gate]]:
    from quantscope.probes.for_report import for_report

    path = inspection.checkpoint.opened.path
    entries, gates = for_report(path, (), "", base, tokens, diagnostics.progress)
    return tuple(entries), gates


def steady(value: Any) -> Any:
    """A result without what differs from run to run: times, memory peaks, log tails."""
    plain = msgspec.to_builtins(value)
    return _without_volatile(plain)


def _without_volatile(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_volatile(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list | tuple):
        return [_without_volatile(item) for item in value]
    return value
