"""What is open: one checkpoint, its rows, its inspection, its jobs. Changed on the event loop only."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec
from quantscope.errors import QuantscopeError
from quantscope.model import Finding
from quantscope.session.events import Progress

from quantscope_views.present.headline import Overview
from quantscope_views.present.scan_tally import ScanTally
from quantscope_views.present.states import PaneState, error_state, stale_state
from quantscope_views.present.triage_facts import TriageFacts

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.parity.model import ParityRun
    from quantscope.session.inspection import Inspection, TensorState

    from quantscope_views.present.run_facts import LogitsRun
    from quantscope_views.present.tensor_table import TensorTable

Outcome = Literal["running", "done", "stopped", "failed"]


class Job(msgspec.Struct, kw_only=True):
    """One job of this session."""

    key: str
    title: str
    started: float
    outcome: Outcome = "running"
    progress: Progress | None = None
    note: str = ""
    details: str = ""
    ended: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds it has run, or ran."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.started


class Workspace:
    """The app's only state beside what widgets show."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.checkpoint: Checkpoint | None = None
        self.overview: Overview | None = None
        self.table: TensorTable | None = None
        self.inspection: Inspection | None = None
        self.tally = ScanTally()
        self.stage = "opening"
        self.partial: str | None = None
        self.rules_error: str | None = None
        self.error: QuantscopeError | None = None
        self.error_details = ""
        self.stale: str | None = None
        self.seen = ""
        self.jobs: list[Job] = []
        self.finding_at = 0
        self.finding_chosen = False
        self.ran: tuple[str, ...] = ()
        self.written: list[tuple[str, str]] = []
        """Scope and path of every report written in this session, newest last."""
        self.kernel_runs: list[ParityRun] = []
        self.logits_runs: list[LogitsRun] = []

    @property
    def ascii_name(self) -> str:
        """Name of the checkpoint, or a placeholder."""
        return self.overview.name if self.overview is not None else (self.path or "no checkpoint")

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far, worst first."""
        return self.inspection.findings if self.inspection is not None else ()

    @property
    def finding(self) -> Finding | None:
        """The selected finding."""
        found = self.findings
        return found[min(self.finding_at, len(found) - 1)] if found else None

    def choose_finding(self, index: int) -> None:
        """A person selected a finding."""
        self.finding_at = index
        self.finding_chosen = True

    @property
    def running(self) -> list[Job]:
        """Jobs that run now."""
        return [job for job in self.jobs if job.outcome == "running"]

    def job(self, key: str) -> Job | None:
        """The newest job with a key."""
        return next((job for job in reversed(self.jobs) if job.key == key), None)

    def state(self, name: str) -> TensorState | None:
        """Newest state of a logical tensor; None where it is not examined or does not exist."""
        if self.table is None:
            return None
        position = self.table.position.get(name)
        return self.table.rows[position].state if position is not None else None

    def triage(self) -> TriageFacts | None:
        """Everything that the Triage screen shows; None before headers were read."""
        if self.overview is None:
            return None
        return TriageFacts(
            overview=self.overview,
            inspection=self.inspection,
            tally=self.tally,
            stage=self.stage,
            partial=self.partial,
            rules_error=self.rules_error,
            ran=self.ran,
            kernel_outcomes=self.kernel_outcomes(),
            scanning=any(job.key == "scan" for job in self.running),
        )

    def take_inspection(self, inspection: Inspection, tally: ScanTally, stage: str) -> None:
        """A newer inspection replaces the old one.

        A finding that a person selected stays selected; else the worst is, however late it came.
        """
        before = self.finding
        self.inspection = inspection
        self.tally = tally
        self.stage = stage
        self.partial = inspection.partial
        if before is not None and not self.finding_chosen:
            self.finding_at = 0
        elif before is not None:
            ids = [finding.id for finding in inspection.findings]
            self.finding_at = ids.index(before.id) if before.id in ids else 0
        if self.overview is not None and tally.kinds:
            self.overview = msgspec.structs.replace(self.overview, kinds=tally.kinds)

    def trouble(self) -> PaneState | None:
        """The state that stands over every screen: an error on opening, or files that changed."""
        if self.error is not None and self.inspection is None:
            return error_state(self.error, details=self.error_details)
        if self.stale is not None:
            return stale_state(self.stale)
        return None

    def take_error(self, error: QuantscopeError | None, note: str, details: str) -> None:
        """Opening failed."""
        self.error = error if error is not None else QuantscopeError(note or "opening failed")
        self.error_details = details

    def note_stop(self) -> None:
        """The scan was stopped; what it had is kept and labelled."""
        if self.partial is None and self.table is not None:
            examined = self.table.examined
            self.partial = f"stopped after {examined} of {len(self.table)} tensors"

    def take_kernel_run(self, run: ParityRun) -> None:
        """A kernel check ended."""
        self.kernel_runs.append(run)

    def kernel_outcomes(self) -> dict[str, str]:
        """How the newest check by a real kernel went, by tensor."""
        return {
            result.tensor: str(result.outcome or "inconclusive")
            for run in self.kernel_runs
            for result in run.results
            if result.executes_kernel and result.status == "executed"
        }

    def take_logits(self, run: LogitsRun) -> None:
        """A logits check ended, or was ended."""
        self.logits_runs.append(run)
        if run.result is not None:
            self._note_ran("logits check")

    def _note_ran(self, what: str) -> None:
        if what not in self.ran:
            self.ran = (*self.ran, what)
