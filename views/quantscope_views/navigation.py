"""Where keys lead: screens, findings, links, runs. Every handler of the registry's `app` actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quantscope.errors import NoSuchTensorError
from quantscope.model import Finding
from quantscope.text import inert
from textual.filter import LineFilter

from quantscope_views.actions import by_id
from quantscope_views.ascii_only import ASCII_FILTER, ascii_text
from quantscope_views.bridge import Bridge
from quantscope_views.clipboard import copied_words
from quantscope_views.intake import Intake
from quantscope_views.place import TABS, Place, Tab, link, parse_go_to
from quantscope_views.screens.base import BaseScreen
from quantscope_views.screens.triage import TriageScreen
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.widgets.top_line import TopLine

if TYPE_CHECKING:
    from quantscope_views.screens.tensor import TensorScreen


class Navigation(Intake):
    """Actions of the app."""

    bridge: Bridge
    ascii_only: bool
    fixed_times: bool

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The toolkit's filters, and the last gate of an ASCII terminal."""
        filters = super().get_line_filters()
        return [*filters, ASCII_FILTER] if self.ascii_only else filters

    def notify(self, message: str, **options: Any) -> None:
        """As the toolkit does it, never as markup; what an ASCII terminal cannot show is escaped."""
        options.pop("markup", None)
        shown = ascii_text(message) if self.ascii_only else message
        super().notify(shown, markup=False, **options)

    # Screens

    def _top(self, kind: type[BaseScreen]) -> bool:
        """Uncover the newest screen of a kind; whether there is one."""
        if not any(isinstance(screen, kind) for screen in self.screen_stack):
            return False
        while not isinstance(self.screen, kind):
            self.pop_screen()
        return True

    def action_show_triage(self) -> None:
        """To Triage, which is always at the bottom."""
        self._top(TriageScreen)

    def action_show_tensors(self) -> None:
        """To Tensors."""
        from quantscope_views.screens.tensors import TensorsScreen

        if not self._top(TensorsScreen):
            self.push_screen(TensorsScreen())

    def show_members(self, members: tuple[str, ...], finding: str | None) -> None:
        """Tensors limited to the members of a finding."""
        from quantscope_views.screens.tensors import TensorsScreen

        self.push_screen(TensorsScreen(members, finding))

    def action_show_compare(self) -> None:
        """To Compare."""
        from quantscope_views.screens.compare import CompareScreen

        if not self._top(CompareScreen):
            self.push_screen(CompareScreen())

    def action_show_report(self) -> None:
        """To Report, with the scope of where this is."""
        from quantscope_views.screens.report import ReportScreen

        if not self._top(ReportScreen):
            self.push_screen(ReportScreen(self.present_place()))

    def action_show_jobs(self) -> None:
        """To Jobs."""
        from quantscope_views.screens.jobs import JobsScreen

        if not self._top(JobsScreen):
            self.push_screen(JobsScreen())

    def action_go_back(self) -> None:
        """Back; at the bottom nothing happens."""
        if len(self.screen_stack) > 1:
            self.pop_screen()

    def on_top_line_tab_clicked(self, message: TopLine.TabClicked) -> None:
        """A click on a screen's name."""
        self.run_registered(f"app.show-{message.screen}")

    # Tensors, findings, bytes

    def open_tensor(
        self,
        name: str,
        *,
        tab: Tab | None = None,
        at: tuple[int, int] | None = None,
        byte_offset: int | None = None,
        file_id: int | None = None,
        finding: str | None = None,
    ) -> None:
        """One tensor, at a tab, an element or a byte of a file."""
        from quantscope_views.screens.tensor import TensorScreen

        workspace = self.workspace
        table = workspace.table
        position = table.position.get(name) if table is not None else None
        if position is None and workspace.checkpoint is not None and table is not None:
            try:
                name = workspace.checkpoint.find(name).name
            except NoSuchTensorError as problem:
                words = "; ".join(filter(None, (problem.message, problem.hint)))
                self.notify(words, severity="warning", markup=False)
                return
        screen = self._tensor_screen()
        if screen is not None and screen.tensor_name == name:
            self._top(TensorScreen)
            screen.go(tab=tab, at=at, byte_offset=byte_offset, file_id=file_id)
            return
        if screen is not None and self.screen is screen:
            self.pop_screen()
        if tab is None and finding is not None:
            tab = self._tab_of(finding)
        self.push_screen(
            TensorScreen(
                name,
                tab=tab or "contract",
                at=at,
                byte_offset=byte_offset,
                file_id=file_id,
                finding=finding,
            )
        )

    def _tab_of(self, finding_id: str) -> Tab:
        """The tab that shows what a finding is about."""
        finding = next((f for f in self.workspace.findings if f.id == finding_id), None)
        if finding is None:
            return "contract"
        if finding.subject.byte_range is not None or finding.subject.field == "scale":
            return "bytes"
        return "zero" if finding.subject.field == "zero_convention" else "contract"

    def _tensor_screen(self) -> TensorScreen | None:
        from quantscope_views.screens.tensor import TensorScreen

        return next((s for s in reversed(self.screen_stack) if isinstance(s, TensorScreen)), None)

    def go_to(self, place: Place) -> None:
        """Follow a place: a finding's members, a tensor, a screen."""
        finding = next((f for f in self.workspace.findings if f.id == place.finding), None)
        if finding is not None and place.screen in ("tensors", "tensor"):
            self.go_to_finding(finding)
        elif place.screen == "tensor" and place.tensor is not None:
            self.open_tensor(
                place.tensor, tab=place.tab, at=place.at, byte_offset=place.byte_offset
            )
        elif place.screen == "raw" and place.file_id is not None:
            self.show_raw(place.file_id, place.byte_offset or 0)
        elif place.screen == "tensors":
            self.action_show_tensors()
        elif place.screen in ("compare", "report", "jobs"):
            self.run_registered(f"app.show-{place.screen}")
        elif place.screen != "triage" or place.finding is not None:
            self.notify("what that line led to is not there any more", timeout=3)

    def go_to_finding(self, finding: Finding, *, byte: bool = False) -> None:
        """Members of a finding, or its one tensor, or straight to its byte."""
        table = self.workspace.table
        known = [
            name for name in (finding.members or ()) if table is not None and name in table.position
        ]
        if len(known) > 1 and not byte:
            self.show_members(tuple(known), finding.id)
            return
        subject = finding.subject
        name = subject.tensor or (known[0] if known else subject.stored)
        offset = subject.byte_range[0] if subject.byte_range else None
        file_id = self._file_id(subject.file)
        if name is not None and table is not None and name in table.position:
            tab: Tab = "bytes" if byte else self._tab_of(finding.id)
            self.open_tensor(name, tab=tab, byte_offset=offset, file_id=file_id, finding=finding.id)
        elif file_id is not None:
            self.show_raw(file_id, offset or 0)
        elif finding.subject.tensor or finding.subject.stored:
            self.open_tensor(
                str(finding.subject.tensor or finding.subject.stored), finding=finding.id
            )
        else:
            self.show_rule(finding.code)

    def has_byte(self, finding: Finding) -> bool:
        """Whether a finding leads to a byte: of its file, or of a tensor that is here."""
        table, subject = self.workspace.table, finding.subject
        names = (subject.tensor, subject.stored, *finding.members[:1])
        if table is not None and any(name in table.position for name in names if name):
            return True
        return subject.byte_range is not None and self._file_id(subject.file) is not None

    def _file_id(self, name: str | None) -> int | None:
        checkpoint = self.workspace.checkpoint
        if name is None or checkpoint is None:
            return None
        return next((f.file_id for f in checkpoint.opened.files if f.name == name), None)

    def show_raw(self, file_id: int, byte_offset: int) -> None:
        """Plain hex of a file; a file that is not there, or cannot be opened, is named instead."""
        from quantscope_views.screens.raw import RawScreen

        checkpoint = self.workspace.checkpoint
        if checkpoint is None or file_id not in checkpoint.sources:
            names = () if checkpoint is None else checkpoint.opened.files
            name = next((file.name for file in names if file.file_id == file_id), "that file")
            self.notify(f"{inert(name)} holds no bytes to show", severity="warning", markup=False)
            return
        self.push_screen(RawScreen(file_id, byte_offset))

    def on_lines_view_chosen(self, message: LinesView.Chosen) -> None:
        """A line leads somewhere."""
        self.go_to(message.place)

    def on_lines_view_action_chosen(self, message: LinesView.ActionChosen) -> None:
        """A line offers an action, or a checkpoint to open."""
        if message.action_id == "app.open-recent" and message.key:
            self.open_path(message.key)
            return
        self.run_registered(message.action_id)

    def step_workspace_finding(self, delta: int) -> None:
        """Next or previous finding from anywhere."""
        count = len(self.workspace.findings)
        if count:
            self.workspace.choose_finding((self.workspace.finding_at + delta) % count)
            finding = self.workspace.finding
            self.action_show_triage()
            self.tell_screens("all")
            if finding is not None:
                words = f"finding {self.workspace.finding_at + 1} of {count}"
                self.notify(words, timeout=2, markup=False)

    def action_next_finding(self) -> None:
        """Next finding, or difference on Compare."""
        self._step(1)

    def action_previous_finding(self) -> None:
        """Previous finding, or difference on Compare."""
        self._step(-1)

    def _step(self, delta: int) -> None:
        if isinstance(self.screen, BaseScreen):
            self.screen.step_finding(delta)

    def action_filter(self) -> None:
        """Filter tensors as you type."""
        self.action_show_tensors()
        self.call_after_refresh(lambda: self.screen.run_action("focus_filter"))

    def action_go_to(self) -> None:
        """Ask for an offset, an element or a name."""
        from quantscope_views.screens.prompts import GoToScreen

        self.push_screen(GoToScreen(), self._went)

    def _went(self, text: str | None) -> None:
        wanted = parse_go_to(text or "")
        if wanted is None:
            return
        take = getattr(self.screen, "take_go_to", None)
        if take is not None and take(wanted):
            return
        if wanted.name is not None:
            self.open_tensor(wanted.name)
        elif wanted.byte_offset is not None:
            self._go_to_offset(wanted.byte_offset)
        else:
            self.notify("row,col needs a tensor: open one first", severity="warning")

    def _go_to_offset(self, byte_offset: int) -> None:
        """The tensor that owns a byte of the first file, else plain hex."""
        checkpoint = self.workspace.checkpoint
        if checkpoint is None or not checkpoint.opened.files:
            return
        first, count = checkpoint.opened.files[0], len(checkpoint.opened.files)
        file_name = inert(first.name)
        if byte_offset >= first.size:
            words = f"{file_name} has no byte {byte_offset:#x}: it ends at {first.size:#x}"
            self.notify(words, severity="warning", markup=False)
            return
        if count > 1:
            self.notify(
                f"{byte_offset:#x} of {file_name}, the first of {count} files", markup=False
            )
        for stored in checkpoint.opened.tensors:
            if stored.file_id == 0 and 0 <= byte_offset - stored.byte_offset < stored.nbytes:
                try:
                    name = checkpoint.find(stored.name).name
                except NoSuchTensorError:
                    break
                self.open_tensor(name, tab="bytes", byte_offset=byte_offset, file_id=0)
                return
        self.show_raw(first.file_id, byte_offset)

    def present_place(self) -> Place:
        """Where the app is."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, BaseScreen):
                return screen.place()
        return Place()

    # How, help, copy

    def action_how(self) -> None:
        """How the number under the cursor is known."""
        from quantscope_views.screens.pages import WhyScreen

        known = (getattr(node, "explain", None) for node in (self.focused, self.screen))
        lines = next((said for explain in known if explain and (said := explain())), ())
        if lines:
            self.push_screen(WhyScreen("how do I know", lines))
        else:
            self.notify("this line holds no number of its own; move to one", timeout=3)

    def action_help(self) -> None:
        """Help of the pane in focus."""
        from quantscope_views.screens.pages import HelpScreen

        topic = getattr(self.focused, "help_topic", "") or getattr(self.screen, "name_in_tabs", "")
        self.push_screen(HelpScreen(topic or "triage", self.screen.active_bindings))

    def action_show_terms(self) -> None:
        """Words and marks."""
        from quantscope_views.screens.pages import HelpScreen

        self.push_screen(HelpScreen("terms", {}))

    def action_show_rules(self) -> None:
        """The list of rules."""
        self.show_rule("")

    def action_show_plugins(self) -> None:
        """Plugins that did not load, or failed on this checkpoint."""
        from quantscope_views.present.plugins import plugin_sentences
        from quantscope_views.screens.pages import WhyScreen

        self.push_screen(WhyScreen("plugins", plugin_sentences(self.workspace.tally.failures)))

    def show_rule(self, code: str) -> None:
        """One rule's page, or the list of rules."""
        from quantscope_views.screens.pages import WhyScreen, rule_lines

        title, lines = rule_lines(code)
        self.push_screen(WhyScreen(title, lines))

    def action_copy(self) -> None:
        """Copy what the cursor is on."""
        copy = getattr(self.screen, "copy_text", None) or getattr(self.focused, "copy_text", None)
        self.copy_words(copy() if copy is not None else "")

    def action_copy_link(self) -> None:
        """Copy the command that leads back here."""
        self.copy_words(link(self.workspace.path or "", self.present_place()))

    def copy_words(self, text: str) -> None:
        """Send text to the terminal's clipboard and say so; nothing can confirm that it arrived."""
        text = text or link(self.workspace.path or "", self.present_place())
        self.notify(copied_words(self, text), timeout=4, markup=False)

    # Jobs

    def action_stop_job(self) -> None:
        """Stop the newest job."""
        running = self.workspace.running
        if running:
            self.bridge.stop(running[-1].key)
        else:
            self.notify("no job runs", timeout=2)

    def action_run_menu(self) -> None:
        """Choose a run, with its cost."""
        from quantscope_views.screens.prompts import RunMenu

        below = self.screen
        here = below.logits_here() if isinstance(below, BaseScreen) else None
        self.push_screen(RunMenu(here), self._run_chosen)

    def _run_chosen(self, choice: str | None) -> None:
        if choice is None:
            return
        if isinstance(self.screen, BaseScreen):
            self.screen.run_chosen(choice)
        else:
            self.run_registered(choice)

    def action_open_run(self) -> None:
        """The Run tab of the tensor at hand, else of the first one that the finding names."""
        place = self.present_place()
        finding = self.workspace.finding
        names = [place.tensor, finding.subject.tensor if finding is not None else None]
        table = self.workspace.table
        if table is not None and len(table):
            names.append(table.rows[0].name)
        name = next((name for name in names if name), None)
        if name is not None:
            self.open_tensor(name, tab="run")

    def action_deep_scan(self) -> None:
        """Read every code, after showing the cost."""
        from quantscope_views.present.run import deep_cost
        from quantscope_views.screens.prompts import ConfirmScreen

        workspace = self.workspace
        if workspace.checkpoint is None or workspace.overview is None:
            return
        self.push_screen(
            ConfirmScreen(deep_cost(workspace.overview), "read everything"), self._deep
        )

    def _deep(self, sure: bool | None) -> None:
        if sure and self.workspace.checkpoint is not None:
            self.bridge.deep_scan(self.workspace.checkpoint)

    def action_reload(self) -> None:
        """Open the same path again, from scratch."""
        if self.workspace.path is not None:
            self.open_path(self.workspace.path)

    def open_path(self, path: str) -> None:
        """Open another checkpoint; the app overrides this."""
        raise NotImplementedError

    def action_open_path(self) -> None:
        """Choose a file or folder."""
        from quantscope_views.screens.start import choose_path

        choose_path(self)

    def action_open_recent(self) -> None:
        """Open what was open last."""
        from quantscope_views.last_place import recent_paths, sessions_folder

        found = recent_paths(sessions_folder(), 1)
        if found:
            self.open_path(found[0])
        else:
            self.notify("no checkpoint was open before", timeout=3)

    def action_open_sample(self) -> None:
        """Choose a bundled sample."""
        from quantscope_views.screens.start import choose_sample

        choose_sample(self)

    def action_export_json(self) -> None:
        """Write the JSON report beside where the app was started."""
        from quantscope_views.screens.report import export_json_now

        export_json_now(self)

    def run_registered(self, action_id: str) -> None:
        """Run an action of the registry on whatever owns it: the focus chain first, then the app."""
        action = by_id(action_id)
        handler = f"action_{action.handler}"
        chain: list[Any] = list(self.focused.ancestors_with_self) if self.focused else []
        for node in (*chain, self.screen, self):
            if getattr(node, handler, None) is not None:
                self.call_next(getattr(node, handler))
                return
        self.notify(f"{action.title}: not on this screen", severity="warning", markup=False)


def first_tab(text: str | None) -> Tab | None:
    """A tab by its name, None for another word."""
    return next((tab for tab in TABS if tab == text), None)
