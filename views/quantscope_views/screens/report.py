"""Report: scope by hand, preview, format, where it goes, how to reproduce it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import msgspec
from quantscope.session.events import CancelToken
from quantscope.session.inspection import Inspection
from textual.binding import BindingType
from textual.widget import Widget

from quantscope_views.bindings import bindings_for
from quantscope_views.place import Place
from quantscope_views.present.report import (
    FORMS,
    Preview,
    ReportChoice,
    Runs,
    Written,
    choices_for,
    headless_words,
    preview_lines,
    preview_of,
    scope_lines,
    write_report,
    write_reproducer,
)
from quantscope_views.present.report_foot import foot_lines
from quantscope_views.present.run_facts import to_report
from quantscope_views.present.states import PaneState, loading_state
from quantscope_views.present.words import size_words
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.widgets.state_pane import StatePane

if TYPE_CHECKING:
    from quantscope_views.navigation import Navigation


class ReportScreen(BaseScreen):
    """The ticket, in one minute.

    Args:
        origin: where the screen was called from; it decides the scope to start with.
    """

    name_in_tabs = "report"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("report")]

    def __init__(self, origin: Place) -> None:
        super().__init__()
        self._origin = origin
        self._choice: ReportChoice | None = None
        self._preview: Preview | None = None
        self._made_for: Inspection | None = None

    def compose_body(self) -> Iterable[Widget]:
        """Choices, preview, what it does not claim; or a state."""
        yield LinesView(id="report-scope", help_topic="report", cursor_on="never", can_focus=False)
        yield StatePane(id="state")
        yield LinesView(id="preview", help_topic="report", cursor_on="never")
        yield LinesView(id="report-foot", cursor_on="never", can_focus=False)

    def on_mount(self) -> None:
        """The preview scrolls."""
        super().on_mount()
        self.query_one("#preview", LinesView).focus()

    def workspace_changed(self, what: str) -> None:
        """Make the report again where there is a newer inspection."""
        self.refresh_top()
        inspection = self.workspace.inspection
        if inspection is None:
            self._show_state(
                loading_state("there is nothing to report before headers are read", None)
            )
            return
        runs = Runs(
            kernel=tuple(self.workspace.kernel_runs), logits=to_report(self.workspace.logits_runs)
        )
        newer = self._choice is None or runs != self._choice.runs
        if inspection is not self._made_for or newer:
            self._made_for = inspection
            self._choice = msgspec.structs.replace(self._start_choice(inspection), runs=runs)
            self._make()

    def _start_choice(self, inspection: Inspection) -> ReportChoice:
        before = self._choice
        finding = next((f for f in inspection.findings if f.id == self._origin.finding), None)
        table = self.workspace.table
        tensor = self._origin.tensor
        known = table is not None and tensor in table.position
        fresh = choices_for(inspection, finding, tensor if known else None)
        if before is None or len(before.scopes) != len(fresh.scopes):
            return fresh
        return msgspec.structs.replace(before, scopes=fresh.scopes)

    def _show_state(self, state: PaneState) -> None:
        pane = self.query_one("#state", StatePane)
        pane.display = True
        self.query_one("#preview").display = False
        pane.show_state(state)

    def _make(self) -> None:
        """Render the preview in a worker."""
        inspection, choice = self._made_for, self._choice
        if inspection is None or choice is None:
            return
        self._preview = None
        self._show()
        self.qapp.bridge.small(
            "preview", lambda token: preview_of(inspection, choice, token), "report preview"
        )

    def take_result(self, key: str, result: object) -> None:
        """The preview, or a file, is there."""
        if key == "preview" and isinstance(result, Preview):
            self._preview = result
            self._show()
        elif key == "write":
            self._show()
        elif key == "reproducer" and isinstance(result, tuple):
            self.notify("\n".join(result), timeout=10, markup=False)

    def take_failure(self, job: str, note: str) -> bool:
        """The preview could not be made: the screen says so in its place."""
        if job != "preview":
            return False
        actions = (("report.format", "another format"), ("app.reload", "reload"))
        failed = f"the report could not be made: {note}"
        self._show_state(PaneState(kind="error", what=failed, actions=actions))
        return True

    def _show(self) -> None:
        choice, preview = self._choice, self._preview
        if choice is None:
            return
        self.query_one("#report-scope", LinesView).show(lambda width: scope_lines(choice, width))
        headless = self._headless()
        scope = choice.chosen.words
        written = [path for about, path in self.workspace.written if about == scope]
        self.query_one("#report-foot", LinesView).show(
            lambda width: foot_lines(choice, preview, headless, written, width)
        )
        if preview is None:
            self._show_state(loading_state("rendering the report", None))
            return
        self.query_one("#state").display = False
        view = self.query_one("#preview", LinesView)
        view.display = True
        view.show(lambda width: preview_lines(preview, width))
        if self.lacks_focus:
            view.focus()

    def _headless(self) -> list[str]:
        """The command that makes what is shown, with the path as it was typed."""
        if self._made_for is None or self._choice is None:
            return []
        return headless_words(self._made_for, self._choice)

    def action_copy_command(self) -> None:
        """Copy the command that makes this report."""
        self.qapp.copy_words(shlex.join(self._headless()))

    def _change(self, choice: ReportChoice) -> None:
        self._choice = choice
        self._make()

    def action_scope(self) -> None:
        """The next scope."""
        if self._choice is not None:
            following = (self._choice.scope + 1) % len(self._choice.scopes)
            self._change(msgspec.structs.replace(self._choice, scope=following))

    def action_format(self) -> None:
        """The next format."""
        if self._choice is not None:
            following = (self._choice.form + 1) % len(FORMS)
            self._change(msgspec.structs.replace(self._choice, form=following))

    def action_redact(self) -> None:
        """Leave folder names out, or not."""
        if self._choice is not None:
            self._change(msgspec.structs.replace(self._choice, redact=not self._choice.redact))

    def action_runs(self) -> None:
        """Runs of this session in or out."""
        if self._choice is not None:
            turned = not self._choice.with_runs
            self._change(msgspec.structs.replace(self._choice, with_runs=turned))

    def action_reproducer(self) -> None:
        """Ask for a folder, then write the reproducer of the tensor at hand."""
        from quantscope_views.screens.prompts import PathPrompt

        if self._reproduced() is None:
            self.notify("a reproducer is of one tensor: come here from a tensor or a finding")
            return
        self.app.push_screen(PathPrompt("reproducer into a new folder", "repro"), self._reproduce)

    def _reproduced(self) -> str | None:
        """The tensor that a reproducer would be of."""
        finding = next((f for f in self.workspace.findings if f.id == self._origin.finding), None)
        names = [self._origin.tensor]
        if finding is not None:
            names += [finding.subject.tensor, *finding.members[:1]]
        table = self.workspace.table
        return next((n for n in names if n and table is not None and n in table.position), None)

    def _reproduce(self, folder: str | None) -> None:
        inspection, tensor = self._made_for, self._reproduced()
        if folder and inspection is not None and tensor is not None:
            self.qapp.bridge.small(
                "reproducer",
                lambda token: write_reproducer(inspection, tensor, folder, token),
                f"reproducer into {folder}",
            )

    def action_write(self) -> None:
        """Ask where, then write."""
        from quantscope_views.screens.prompts import PathPrompt

        if self._choice is not None:
            self.app.push_screen(PathPrompt("write to", self._choice.file_name), self._write)

    def _write(self, path: str | None) -> None:
        inspection, choice = self._made_for, self._choice
        if path and inspection is not None and choice is not None:
            start_write(self.qapp, inspection, choice, path)

    def offers(self, action_id: str) -> bool:
        """Nothing before there is a report; another scope only where there are several."""
        choice = self._choice
        if action_id == "report.reproducer":
            return self._reproduced() is not None
        if action_id == "report.scope":
            return choice is not None and len(choice.scopes) > 1
        if action_id == "report.runs":
            return choice is not None and bool(choice.runs)
        return (choice is not None or not action_id.startswith("report.")) and super().offers(
            action_id
        )

    def copy_text(self) -> str:
        """The whole preview."""
        return self._preview.text if self._preview is not None else ""

    def place(self) -> Place:
        """Where it was called from."""
        return msgspec.structs.replace(self._origin, screen="report")


def start_write(app: Navigation, inspection: Inspection, choice: ReportChoice, path: str) -> None:
    """Write a report; a file that this session did not write is replaced only when asked to."""
    from quantscope_views.screens.prompts import ConfirmScreen

    own = {os.path.abspath(written) for _, written in app.workspace.written}
    if not os.path.isfile(path) or os.path.abspath(path) in own:
        _write_now(app, inspection, choice, path)
        return

    def answered(replace: bool | None) -> None:
        if replace:
            _write_now(app, inspection, choice, path)

    lost = f"{path} is there already, {size_words(os.path.getsize(path))}; what it holds is lost."
    app.push_screen(ConfirmScreen((lost,), "replace the file"), answered)


def _write_now(app: Navigation, inspection: Inspection, choice: ReportChoice, path: str) -> None:
    """Write a report in a worker."""
    from quantscope.errors import UnreadableError

    def work(token: CancelToken) -> Written:
        try:
            paths = write_report(inspection, choice, path, token)
            return Written(scope=choice.chosen.words, paths=paths)
        except OSError as problem:
            raise UnreadableError(
                f"{path} cannot be written: {problem.strerror or problem}", source=path
            ) from problem

    app.bridge.small("write", work, f"write {path}")


def export_json_now(app: Navigation) -> None:
    """Write report.json about the whole checkpoint into the working folder."""
    inspection = app.workspace.inspection
    if inspection is None:
        app.notify("nothing is inspected yet", severity="warning")
        return
    choice = choices_for(inspection, None, None)
    start_write(
        app,
        inspection,
        msgspec.structs.replace(choice, form=1, redact=False),
        "report.json",
    )
