"""Jobs: what runs, ran, failed or was stopped in this session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.widget import Widget

from quantscope_views.lines import Line, Span, cells, cut_middle, fit, line
from quantscope_views.place import Place
from quantscope_views.present.states import progress_words
from quantscope_views.present.words import seconds_words
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.workspace import Job

OUTCOME_TONES = {
    "running": "check",
    "done": "agrees",
    "stopped": "contradicts",
    "failed": "broken",
}


class JobsScreen(BaseScreen):
    """Newest first."""

    name_in_tabs = "jobs"

    def compose_body(self) -> Iterable[Widget]:
        """One line a job."""
        yield LinesView(id="jobs", help_topic="jobs")

    def on_mount(self) -> None:
        """The list has focus."""
        super().on_mount()
        self.query_one("#jobs", LinesView).focus()

    def workspace_changed(self, what: str) -> None:
        """Show jobs again."""
        self.refresh_top()
        jobs = list(reversed(self.workspace.jobs))
        self.query_one("#jobs", LinesView).show(lambda width: job_lines(jobs, width))

    def place(self) -> Place:
        """Jobs has no inner place."""
        return Place(screen="jobs")


def job_lines(jobs: Sequence[Job], width: int) -> list[Line]:
    """One line a job, with how far it got; a failed one with its details to `i`."""
    if not jobs:
        return [line((" no job ran in this session", "dim"))]
    lines = []
    notes = [job.note or (progress_words(job.progress) if job.progress else "") for job in jobs]
    wide = min(max(cells(job.title) for job in jobs), max(20, width - 21 - max(map(cells, notes))))
    for job in jobs:
        far = progress_words(job.progress) if job.progress is not None else ""
        note = job.note or far
        head = f" {fit(job.outcome, 9)}{fit(seconds_words(job.elapsed_s), 8)}"
        title = cut_middle(job.title, wide)
        room = max(8, width - len(head) - wide - 3)
        lines.append(
            Line(
                spans=(
                    Span(head, OUTCOME_TONES[job.outcome]),
                    Span(fit(title, wide + 2)),
                    Span(cut_middle(note, room), "dim"),
                ),
                about=tuple(
                    text for text in (job.title, job.note, far, *job.details.splitlines()) if text
                ),
            )
        )
    return lines
