"""The read-only Python API: open a checkpoint, inspect it, report on it.

import quantscope

with quantscope.open_checkpoint("model/") as checkpoint:
inspection = quantscope.inspect(checkpoint)
report = quantscope.Report.of(inspection)
print(report.markdown())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantscope.checkpoint import Checkpoint
from quantscope.decode.sampling import DEFAULT_GROUPS
from quantscope.report.builder import ReportOptions, build
from quantscope.report.canonical import canonical_bytes
from quantscope.report.schema import FindingEntry, TensorEntry
from quantscope.report.schema import Report as Document
from quantscope.report.selection import Selection
from quantscope.session.inspection import Inspection, Mode

if TYPE_CHECKING:
    from quantscope.report.recheck import Recheck
    from quantscope.session.events import Progress

__all__ = ["Checkpoint", "Document", "Inspection", "Report", "inspect", "open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a file, a checkpoint folder, an index or a part of a split set for reading.

    Only headers and config files are read. Use it as a context manager.

    Args:
        path: where the checkpoint lies on this machine.

    Raises:
        NotACheckpointError: nothing there is a container that any reader knows.
        UnreadableError: the path cannot be opened, or is no regular file or folder.
    """
    return Checkpoint.open(os.fspath(path))


def inspect(
    checkpoint: Checkpoint,
    *,
    mode: Mode = "sample",
    sample_groups: int = DEFAULT_GROUPS,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Inspection:
    """Inspect every logical tensor and run the rules.

    Args:
        checkpoint: an open checkpoint.
        mode: `headers`, `sample` (all scale-like planes and a fixed sample of codes) or `deep`.
        sample_groups: groups of codes to read a tensor, in mode `sample`.
        select: rule codes or prefixes to run; all where empty.
        ignore: rule codes or prefixes to leave out.
        progress: receives throttled progress.
        cancelled: polled; a stopped inspection keeps what it has and says so in `partial`.
    """
    from quantscope.rules.catalogue import judge
    from quantscope.session.pipeline import Scope
    from quantscope.session.pipeline import inspect as run

    return run(
        checkpoint,
        Scope(mode=mode, sample_groups=sample_groups),
        judge=lambda inspection: judge(inspection, select=select, ignore=ignore),
        progress=progress,
        cancelled=cancelled,
    )


class Report:
    """A report document with its renderings; what it holds never changes."""

    def __init__(self, document: Document) -> None:
        self.document = document

    @classmethod
    def of(
        cls,
        inspection: Inspection | Sequence[Inspection],
        *,
        tensors: Sequence[str] = (),
        findings: Sequence[str] = (),
        full: bool = False,
        redact_paths: bool = False,
    ) -> Report:
        """The report of one or several inspections, their checkpoints still open.

        Args:
            inspection: one inspection, or several in the order in which they are to stand.
            tensors: limits the report to these tensors.
            findings: limits the report to these findings, by id or code.
            full: one entry a tensor instead of one a contract.
            redact_paths: leave out folders of this machine.

        Raises:
            NoSuchTensorError: a tensor is not there.
            UsageError: a finding is not there.
        """
        from quantscope.rules.catalogue import judge

        inspections = [inspection] if isinstance(inspection, Inspection) else list(inspection)
        options = ReportOptions(
            full=full,
            redact_paths=redact_paths,
            selection=Selection(tensors=tuple(tensors), findings=tuple(findings)),
        )
        return cls(build(inspections, options, judge=judge).report())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Report:
        """A JSON report from a file.

        Raises:
            UsageError: the file is no report of this schema version.
        """
        from quantscope.report.recheck import load_report

        return cls(load_report(os.fspath(path)))

    @property
    def findings(self) -> list[FindingEntry]:
        """Findings, worst first."""
        return self.document.findings

    @property
    def tensors(self) -> list[TensorEntry]:
        """Folded tensors."""
        return self.document.tensors

    def json(self) -> bytes:
        """Canonical JSON bytes; the same for the same input, options and version, but for `run`."""
        return canonical_bytes(self.document)

    def markdown(self) -> str:
        """Markdown for a ticket."""
        from quantscope.report.markdown import markdown

        return markdown(self.document)

    def html(self) -> str:
        """One self-contained HTML page."""
        from quantscope.report.html import html_page

        return html_page(self.document)

    def sarif(self) -> dict[str, Any]:
        """A SARIF 2.1.0 log."""
        from quantscope.report.sarif import rule_texts, sarif

        return sarif(self.document, rule_texts())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the report; `.md`, `.html` and `.sarif` choose the format, anything else is JSON."""
        target = Path(path)
        render: dict[str, Callable[[], bytes]] = {
            ".md": lambda: self.markdown().encode(),
            ".html": lambda: self.html().encode(),
            ".sarif": lambda: canonical_bytes(self.sarif()),
        }
        target.write_bytes(render.get(target.suffix.lower(), self.json)())

    def recheck(self, path: str | os.PathLike[str]) -> Recheck:
        """Which statements of this report still hold for the bytes at a path."""
        from quantscope.report.recheck import recheck_path

        return recheck_path(self.document, os.fspath(path))
