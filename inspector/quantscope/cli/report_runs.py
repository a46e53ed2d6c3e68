"""Kernel and logits runs for `quantscope report --with`, as the report lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quantscope.cli import diagnostics
from quantscope.evidence.gates import Gate, GateName

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection

KERNEL_SAMPLE = 8
"""Tensors that a kernel check looks at where none is named."""


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
    from quantscope.parity.entries import kernel_gate, report_entry
    from quantscope.parity.run import run_checkpoint

    run = run_checkpoint(
        inspection.checkpoint.opened.path,
        backend,
        tensors=list(tensors) or None,
        sample=None if tensors else KERNEL_SAMPLE,
        keep=False,
        progress=diagnostics.progress,
    )
    return tuple(report_entry(result) for result in run.results), kernel_gate(run)


def _probe(
    inspection: Inspection, base: str | None, tokens: str | None
) -> tuple[tuple[dict[str, Any], ...], dict[GateName, Gate]]:
    from quantscope.probes.for_report import for_report

    path = inspection.checkpoint.opened.path
    entries, gates = for_report(path, (), "", base, tokens, diagnostics.progress)
    return tuple(entries), gates
