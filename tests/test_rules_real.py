"""The real set: nothing above note but what EXPECTED.json says, and few notes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rules_support import lines, loud, scan

pytestmark = pytest.mark.real


def folders() -> list[str]:
    root = Path(os.environ.get("QUANTSCOPE_REAL", ""))
    return (
        sorted(p.parent.name for p in root.glob("*/EXPECTED.json")) if root.is_dir() else ["none"]
    )


@pytest.mark.parametrize("name", folders())
def test_a_real_checkpoint_is_quiet(name: str, real_set: Path) -> None:
    expected = json.loads((real_set / name / "EXPECTED.json").read_text())
    inspection = scan(real_set / name)
    assert not [entry for entry in inspection.rules_skipped if "failed" in entry[1]]
    noisy = loud(inspection)
    if expected.get("expected_warnings"):
        assert [(f.code, f.severity) for f in noisy] == [("QV012", "warning")], lines(noisy)
    else:
        assert not lines(noisy)
    assert len(inspection.findings) <= 10, lines(list(inspection.findings))
