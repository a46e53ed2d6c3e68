"""What all screens share: the top lines, the key line, and how they learn that something is new."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from quantscope_views.lines import Line, line, rule
from quantscope_views.place import Place
from quantscope_views.present.headline import headline_about, headline_rows
from quantscope_views.present.states import progress_words
from quantscope_views.present.words import seconds_words
from quantscope_views.widgets.key_line import KeyLine
from quantscope_views.widgets.top_line import PROGRAM, TopLine, head_line, tabs_room

if TYPE_CHECKING:
    from quantscope_views.app import QuantscopeApp
    from quantscope_views.workspace import Workspace

TOO_SMALL = (
    "quantscope needs 60 columns and 15 lines to show anything of use: please enlarge this window."
)


NEEDS_A_CHECKPOINT = frozenset(
    {"app.filter", "app.go-to", "app.how", "app.copy", "app.run-menu", "app.show-tensors"}
    | {"app.show-compare", "app.show-report"}
)
"""Actions that do nothing while nothing is open."""


class BaseScreen(Screen[Any]):
    """A screen of the app. Subclasses compose a body and answer `workspace_changed`."""

    AUTO_FOCUS = ""
    name_in_tabs: ClassVar[str] = ""

    @property
    def qapp(self) -> QuantscopeApp:
        """The app, by its own type."""
        return cast("QuantscopeApp", self.app)

    @property
    def workspace(self) -> Workspace:
        """What is open."""
        return self.qapp.workspace

    @property
    def ascii_only(self) -> bool:
        """Whether marks must be ASCII."""
        return self.qapp.ascii_only

    def compose(self) -> ComposeResult:
        """Top lines, body, key line."""
        yield TopLine(id="top")
        yield from self.compose_body()
        yield KeyLine()
        from textual.widgets import Static

        yield Static(TOO_SMALL, id="too-small", markup=False)

    def compose_body(self) -> Iterable[Widget]:
        """The widgets between the top lines and the key line."""
        return ()

    def on_mount(self) -> None:
        """First painting."""
        self.workspace_changed("all")

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was on top."""
        self.workspace_changed("all")

    def workspace_changed(self, what: str) -> None:
        """Show what is new. `what` is opened, listed, rows, judged, job, stale, trouble or all."""
        self.refresh_top()

    def refresh_top(self) -> None:
        """Paint the top lines again."""
        self.query_one("#top", TopLine).show(self.top_lines)
        self.query_one(KeyLine).refresh()

    def top_lines(self, width: int) -> list[Line]:
        """The lines on top; the third is a rule."""
        top = self.query_one("#top", TopLine)
        right, tone = self.right_note()
        mark = "-" if self.ascii_only else "─"
        return [
            self.headline(width),
            top.tabs_line(self.name_in_tabs, right, tone, width),
            rule("", width, mark=mark),
        ]

    def headline(self, width: int) -> Line:
        """What is open."""
        workspace = self.workspace
        overview = workspace.overview
        if overview is None:
            return line((" quantscope  ", "head"), (workspace.ascii_name, "strong"))
        return head_line(overview.name, self._headline_rows(width)[0], width)

    def _headline_rows(self, width: int) -> tuple[tuple[str, ...], str]:
        """Facts beside the name, and those that the second line has room for."""
        overview = self.workspace.overview
        if overview is None:
            return (), ""
        room = width - len(PROGRAM) - 1
        return headline_rows(overview, self._seconds(), room, tabs_room(width))

    def _seconds(self) -> str:
        job = self.workspace.job("scan")
        if job is None or job.outcome == "running":
            return "…" if not self.ascii_only else "..."
        return seconds_words(job.elapsed_s) if not self.qapp.fixed_times else "0.0s"

    def explain(self) -> tuple[str, ...]:
        """How the numbers on top are known; answers where the pane in focus has none of its own."""
        overview = self.workspace.overview
        return headline_about(overview, self._seconds()) if overview is not None else ()

    def right_note(self) -> tuple[str, str]:
        """A running job, or what of the checkpoint the first line has no room for."""
        running = self.workspace.running
        if running:
            job = running[-1]
            words = progress_words(job.progress) if job.progress is not None else job.title
            return f"{words}  x stop", "check"
        if self.workspace.partial:
            return f"PARTIAL: {self.workspace.partial}", "check"
        return self._headline_rows(self.size.width)[1], "plain"

    def offers(self, action_id: str) -> bool:
        """Whether an action would do anything on this screen now."""
        workspace = self.workspace
        if action_id == "app.stop-job":
            return bool(workspace.running)
        if action_id in ("app.next-finding", "app.previous-finding"):
            return bool(workspace.findings)
        if action_id == "app.back":
            return len(self.app.screen_stack) > 1
        if action_id == f"app.show-{self.name_in_tabs}":
            return False
        if action_id in NEEDS_A_CHECKPOINT:
            return workspace.overview is not None
        return True

    @property
    def lacks_focus(self) -> bool:
        """Whether no visible widget has focus."""
        focused = self.focused
        return focused is None or not all(node.display for node in focused.ancestors_with_self)

    def place(self) -> Place:
        """Where this screen is, for links and for the next session."""
        return Place()

    def logits_here(self) -> tuple[str, str] | None:
        """The logits check that this screen offers to the run menu: cost in words, action; None for no own one."""
        return None

    def run_chosen(self, action_id: str) -> None:
        """A run of the menu was chosen; its cost was shown there."""
        self.qapp.run_registered(action_id)

    def step_finding(self, delta: int) -> None:
        """To the next or previous finding."""
        self.qapp.step_workspace_finding(delta)
