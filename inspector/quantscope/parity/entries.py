"""Results as a report lists them, and the `kernel` gate that they execute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quantscope.evidence.gates import Gate, GateOutcome
from quantscope.parity.model import ParityResult, ParityRun

UNTIMED = ("seconds", "stderr_tail", "settings")
"""Left out of a report: what differs between two runs on the same bytes, or is said elsewhere."""


def report_entry(result: ParityResult) -> dict[str, Any]:
    """One result as an entry of the report's `parity`; no times, so that equal input gives equal bytes."""
    entry: dict[str, Any] = {
        key: value for key, value in msgspec.to_builtins(result).items() if key not in UNTIMED
    }
    execution = entry["execution"]
    entry["execution_proof"] = execution["proof"]
    execution["events"] = [
        {key: event[key] for key in ("name", "device", "count", "parent")}
        for event in execution["events"]
    ]
    execution["fallback"].pop("microseconds", None)
    if entry["failure"] is not None:
        entry["failure"].pop("stderr_tail", None)
    entry["seed"] = result.settings.seed
    return entry


def kernel_gate(run: ParityRun) -> Gate:
    """How the gate `kernel` went.

    It is executed only by kernels that run compiled code. Right results of a call that is not shown to have taken the
    kernel are inconclusive here: they say that something computed right.
    """
    real = [r for r in run.results if r.executes_kernel and r.status == "executed"]
    if not real:
        failed = [r for r in run.results if r.status == "failed"]
        if failed:
            return Gate(status="failed", reason=f"{run.backend}: {failed[0].reason}")
        return Gate(status="skipped", reason=_why_not(run))
    outcome = gate_outcome(real)
    return Gate(
        status="executed",
        outcome=outcome,
        reason=_why(real, outcome),
        scope=gate_scope(run, real),
    )


def _why(results: Sequence[ParityResult], outcome: GateOutcome) -> str | None:
    """What kept the gate from holding."""
    if outcome == "held":
        return None
    told = [r.reason for r in results if r.outcome == outcome and r.reason]
    told += [r.execution.reason for r in results if r.execution_proof != "proved"]
    return told[0] if told else None


def _why_not(run: ParityRun) -> str:
    if any(r.emulated for r in run.results):
        return "a faulty reader was emulated: no kernel was run"
    skipped = [r for r in run.results if r.status == "skipped"]
    if skipped:
        return f"{run.backend}: {skipped[0].reason}"
    return f"{run.backend} runs no compiled kernel"


def gate_outcome(results: Sequence[ParityResult]) -> GateOutcome:
    """The worst outcome; held only where every call is shown to have taken its kernel."""
    outcomes = {result.outcome for result in results}
    if "did_not_hold" in outcomes:
        return "did_not_hold"
    if outcomes != {"held"} or any(result.execution_proof != "proved" for result in results):
        return "inconclusive"
    return "held"


def gate_scope(run: ParityRun, results: Sequence[ParityResult]) -> dict[str, Any]:
    """What was compared."""
    first = results[0]
    codes = [result.readout for result in results if result.readout is not None]
    return {
        "backend": run.backend,
        "kernels": sorted({f"{r.kernel}@{r.device}" for r in results}),
        "devices": sorted({r.device_name for r in results}),
        "dtypes": sorted({r.dtype for r in results}),
        "tensors": [len(results), run.coverage.layers_in_checkpoint],
        "selection": run.selection,
        "proved": [sum(r.execution_proof == "proved" for r in results), len(results)],
        "fallback": [run.coverage.layers_fallback, len(results)],
        "codes_recovered": [sum(c.recovered for c in codes), sum(c.total for c in codes)],
        "bytes": {r.tensor: r.fingerprint for r in results},
        "seed": first.settings.seed,
        "tolerance": sorted(
            {r.error_model.statement for r in results if r.error_model is not None}
        ),
        "comparison": "approximate",
        "exact": "codes read out through the kernel",
    }
