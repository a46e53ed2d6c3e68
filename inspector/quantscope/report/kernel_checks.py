"""Kernel checks of a report for a person: what ran, whether it is right, whether that kernel ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantscope.report.schema import Report
from quantscope.report.words import OUTCOME_WORDS

MAX_CHECKS = 12
PROOF_WORDS = {
    "proved": "proved",
    "unproven": "not shown",
    "not_applicable": "no kernel ran",
}


def kernel_check_rows(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    """(tensor, kernel, computed right, that kernel ran, codes read out) of the first checks."""
    for entry in report.parity[:MAX_CHECKS]:
        outcome = entry.get("outcome")
        right = OUTCOME_WORDS[outcome] if outcome else f"{entry.get('status')}: {entry['reason']}"
        if outcome and entry.get("reason"):
            right += f": {entry['reason']}"
        kernel = f"{entry.get('backend')} {entry.get('kernel') or '-'} {entry.get('device') or ''}"
        yield (
            str(entry.get("tensor")),
            kernel.strip(),
            right,
            PROOF_WORDS.get(str(entry.get("execution_proof")), "not shown"),
            _codes(entry),
        )


def left_out(report: Report) -> int:
    """Checks beyond those that `kernel_check_rows` gives."""
    return max(0, len(report.parity) - MAX_CHECKS)


def _codes(entry: dict[str, Any]) -> str:
    readout = entry.get("readout")
    if not isinstance(readout, dict):
        return ""
    return f"{readout['recovered']} of {readout['total']} {readout['kind']}"
