"""Shared by the tests of rules: one scan, the words of a subject, findings above note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantscope.checkpoint import Checkpoint
from quantscope.model import Finding, Subject
from quantscope.rules.catalogue import judge
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import Scope, inspect


def scan(path: Path | str, mode: Any = "sample", **options: Any) -> Inspection:
    """One inspection with all rules run."""
    with Checkpoint.open(str(path)) as checkpoint:
        return inspect(
            checkpoint, Scope(mode=mode), judge=lambda inspection: judge(inspection, **options)
        )


def words(subject: Subject) -> str:
    """Every name of a subject."""
    parts = (subject.tensor, subject.stored, subject.file, subject.config_key)
    return " ".join(part for part in parts if part)


def loud(inspection: Inspection) -> list[Finding]:
    """Findings above note."""
    return [finding for finding in inspection.findings if finding.severity != "note"]


def lines(findings: list[Finding]) -> list[str]:
    """Findings for a failure message."""
    return [f"{f.severity} {f.code} {f.kind} {words(f.subject)}: {f.message}" for f in findings]
