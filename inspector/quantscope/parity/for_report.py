"""Kernel runs for `quantscope report --with parity`."""

from __future__ import annotations

from typing import Any

from quantscope.evidence.gates import Gate, GateName
from quantscope.parity.entries import kernel_gate, report_entry
from quantscope.parity.run import run_checkpoint

SAMPLE = 4
"""Tensors that a report runs where none is named."""


def for_report(
    path: str, tensors: tuple[str, ...], backend: str
) -> tuple[list[dict[str, Any]], dict[GateName, Gate]]:
    """Entries of the report's `parity`, and the `kernel` gate.

    Args:
        path: the checkpoint.
        tensors: names; a sample of four by default.
        backend: name of a backend, or `backend:kernel`.
    """
    run = run_checkpoint(
        path,
        backend,
        tensors=tensors or None,
        sample=None if tensors else SAMPLE,
        keep=False,
    )
    return [report_entry(result) for result in run.results], {"kernel": kernel_gate(run)}
