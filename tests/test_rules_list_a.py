"""For every public report whose fault a file can show: the finding, with its severity and its subject."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import list_a_gguf  # noqa: F401  registers its rows
import list_a_more  # noqa: F401  registers its rows
import pytest
from list_a_fixtures import ROWS
from rules_support import lines, scan, words


@pytest.mark.parametrize(
    ("number", "kind", "severity", "subject", "make"), ROWS, ids=[row[0] for row in ROWS]
)
def test_a_reported_fault_is_found(
    number: str,
    kind: str,
    severity: str,
    subject: str,
    make: Callable[[Path], Path],
    tmp_path: Path,
) -> None:
    inspection = scan(make(tmp_path / "checkpoint"))
    assert not [entry for entry in inspection.rules_skipped if "failed" in entry[1]]
    assert any(
        f.kind == kind and f.severity == severity and subject in words(f.subject)
        for f in inspection.findings
    ), (number, kind, severity, subject, lines(list(inspection.findings)))
