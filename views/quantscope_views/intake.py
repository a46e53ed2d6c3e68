"""How the app takes in what workers report: messages change the workspace, screens are told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.app import App

from quantscope_views import messages
from quantscope_views.screens.base import BaseScreen
from quantscope_views.workspace import Job, Workspace

if TYPE_CHECKING:
    from quantscope_views.present.report import Written


class Intake(App[int]):
    """Message handlers of the app."""

    workspace: Workspace

    def tell_screens(self, what: str) -> None:
        """Let the screen on top show what is new; the others catch up when they come back."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, BaseScreen):
                if screen.is_mounted:
                    screen.workspace_changed(what)
                return

    def on_folder_seen(self, message: messages.FolderSeen) -> None:
        """Something to show before the first header is read."""
        self.workspace.seen = message.words
        self.tell_screens("seen")

    def on_checkpoint_opened(self, message: messages.CheckpointOpened) -> None:
        """Headers are known."""
        self.workspace.checkpoint = message.checkpoint
        self.workspace.overview = message.overview
        self.workspace.error = None
        self.tell_screens("opened")

    def on_tensors_listed(self, message: messages.TensorsListed) -> None:
        """Rows are known."""
        self.workspace.table = message.table
        self.workspace.overview = message.overview
        self.tell_screens("listed")
        self.tensors_ready()

    def tensors_ready(self) -> None:
        """Follow a deep link as soon as names are known; the app overrides this."""

    def on_tensors_examined(self, message: messages.TensorsExamined) -> None:
        """Some rows have contracts."""
        if self.workspace.table is not None:
            self.workspace.table.update(message.first, message.facts)
            self.tell_screens("rows")

    def on_inspection_judged(self, message: messages.InspectionJudged) -> None:
        """Findings are known."""
        self.workspace.take_inspection(message.inspection, message.tally, message.stage)
        self.tell_screens("judged")

    def on_job_started(self, message: messages.JobStarted) -> None:
        """A job began; an older one of its kind was given up and says nothing any more."""
        for older in self.workspace.jobs:
            if older.key == message.job and older.outcome == "running":
                older.outcome, older.ended = "stopped", time.monotonic()
                older.note = "replaced by a newer one"
        self.workspace.jobs.append(
            Job(key=message.job, title=message.title, started=time.monotonic())
        )
        self.tell_screens("job")

    def on_job_progressed(self, message: messages.JobProgressed) -> None:
        """A job went on."""
        job = self.workspace.job(message.progress.job)
        if job is not None and job.outcome == "running":
            job.progress = message.progress
            self.tell_screens("job")

    def on_job_ended(self, message: messages.JobEnded) -> None:
        """A job is over."""
        job = self.workspace.job(message.job)
        if job is not None and job.outcome == "running":
            job.outcome = message.outcome  # type: ignore[assignment]
            job.note, job.details = message.note, message.details
            job.ended = time.monotonic()
        if message.outcome == "failed":
            if message.job == "scan" and self.workspace.inspection is None:
                self.workspace.take_error(message.error, message.note, message.details)
                self.tell_screens("trouble")
                return
            take = getattr(self.screen, "take_failure", None)
            if take is None or not take(message.job, message.note):
                title = f"{message.job.rstrip(':')} failed"
                self.notify(message.note, title=title, severity="error", markup=False)
        elif message.outcome == "stopped" and message.job == "scan":
            self.workspace.note_stop()
        self.tell_screens("all")

    def on_page_read(self, message: messages.PageRead) -> None:
        """Bytes for the tensor on top."""
        take = getattr(self.screen, "take_page", None)
        if take is not None:
            take(message.tensor, message.page, message.channel)

    def on_result_ready(self, message: messages.ResultReady) -> None:
        """A small result for whoever asked; results of checks belong to the workspace first."""
        if message.key == "check":
            self._take_check(message.result)
        elif message.key == "write":
            self._take_written(message.result)
        for screen in reversed(self.screen_stack):
            take = getattr(screen, "take_result", None)
            if take is not None and screen.is_mounted:
                take(message.key, message.result)

    def _take_written(self, result: Written) -> None:
        self.workspace.written += [(result.scope, path) for path in result.paths]
        words = "written: " + ", ".join(result.paths)
        self.notify(words, timeout=6, markup=False)

    def _take_check(self, result: object) -> None:
        from quantscope.parity.model import ParityRun

        from quantscope_views.present.run_facts import LogitsRun

        if isinstance(result, ParityRun):
            self.workspace.take_kernel_run(result)
        elif isinstance(result, LogitsRun):
            self.workspace.take_logits(result)

    def on_files_changed(self, message: messages.FilesChanged) -> None:
        """A file is not what it was."""
        if self.workspace.stale is None:
            self.workspace.stale = message.reason
            self.tell_screens("stale")
