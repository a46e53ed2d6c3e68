"""One tensor: four tabs that keep the selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from quantscope.session.events import CancelToken
from quantscope.session.inspection import TensorState
from textual import on
from textual.binding import BindingType
from textual.widget import Widget
from textual.widgets import ContentSwitcher

from quantscope_views.bindings import bindings_for
from quantscope_views.lines import Line, Span, cells, cut_middle, fit, rule, shown_name
from quantscope_views.marks import MATCH_MARKS, glyph
from quantscope_views.place import TABS, GoTo, Place, Tab
from quantscope_views.present.bytes_model import BytesPage
from quantscope_views.present.contract import contract_lines, equation_lines
from quantscope_views.present.logits import LogitsState
from quantscope_views.present.reading_choice import ReadingChoice, choice_of
from quantscope_views.present.run import RunState, results_of, run_lines, running_words
from quantscope_views.present.run_facts import (
    RunChoices,
    logits_words,
    newest,
    read_choices,
    run_kernel,
)
from quantscope_views.present.scales import ScaleFacts, read_scale_facts, scale_lines
from quantscope_views.present.states import PaneState, loading_state
from quantscope_views.present.tensor_table import RowFacts
from quantscope_views.present.words import shape_words
from quantscope_views.present.zero import zero_lines
from quantscope_views.present.zero_facts import ZeroFacts, read_zero_facts
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.bytes_pane import BytesPane
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.widgets.state_pane import StatePane

TAB_TITLES = {"contract": "Contract", "zero": "Zero", "bytes": "Bytes", "run": "Run"}


class TensorScreen(BaseScreen):
    """One tensor.

    Args:
        name: logical name, or the name of a stored tensor that nobody claims.
        tab: the tab to show.
        at: (row, column) to go to.
        byte_offset: byte to go to instead.
        file_id: file of that byte; by default the first that has a plane there.
        finding: id of the finding that led here.
    """

    name_in_tabs = "tensors"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("tensor")]

    def __init__(
        self,
        name: str,
        *,
        tab: Tab = "contract",
        at: tuple[int, int] | None = None,
        byte_offset: int | None = None,
        file_id: int | None = None,
        finding: str | None = None,
    ) -> None:
        super().__init__()
        self.tensor_name = name
        self.tab: Tab = tab
        self.choice: ReadingChoice | None = None
        self.finding_id = finding
        self._wanted_at = at
        self._wanted_offset = byte_offset
        self._wanted_file = file_id
        self._zero_facts: ZeroFacts | None = None
        self._zero_asked: tuple[int, int] | None = None
        self._scales: tuple[ScaleFacts, ...] | None = None
        self._scales_asked = False
        self._choices: RunChoices | None = None
        self._choices_asked = False

    def compose_body(self) -> Iterable[Widget]:
        """The four panes, one visible; or a state."""
        yield StatePane(id="state")
        with ContentSwitcher(initial=self.tab, id="tabs"):
            yield LinesView(id="contract", help_topic="contract")
            yield LinesView(id="zero", help_topic="zero")
            yield BytesPane(id="bytes")
            yield LinesView(id="run", help_topic="runs")

    @property
    def facts(self) -> RowFacts | None:
        """The tensor's row."""
        table = self.workspace.table
        if table is None:
            return None
        position = table.position.get(self.tensor_name)
        return table.rows[position] if position is not None else None

    @property
    def bytes_pane(self) -> BytesPane:
        """The Bytes tab."""
        return self.query_one("#bytes", BytesPane)

    def workspace_changed(self, what: str) -> None:
        """Show the newest state of the tensor."""
        self.refresh_top()
        if what == "job":
            if self.tab == "run" and self.facts is not None:
                self._show_run()
            return
        facts = self.facts
        trouble = self.workspace.trouble()
        pane = self.query_one("#state", StatePane)
        switcher = self.query_one("#tabs", ContentSwitcher)
        blocked = facts is None or (facts.kind == "quantized" and facts.state is None)
        pane.display = blocked or trouble is not None
        pane.set_class(not blocked, "-banner")
        switcher.display = not blocked
        if trouble is not None:
            pane.show_state(trouble)
        elif facts is None:
            pane.show_state(PaneState(kind="empty", what=f"no tensor is called {self.tensor_name}"))
        elif blocked:
            pane.show_state(loading_state(f"examining {self.tensor_name}", None))
        if facts is None or blocked:
            return
        if facts.state is not None:
            if self.choice is None:
                self.choice = choice_of(facts.state)
            self._show_tabs()
        else:
            self._show_unclaimed(facts)
        if self.lacks_focus:
            self._focus_tab()

    def _show_tabs(self) -> None:
        facts = self.facts
        if facts is None or facts.state is None:
            return
        state = facts.state
        ascii_only = self.ascii_only
        mark = "-" if ascii_only else "─"
        scales = self._scales
        self.query_one("#contract", LinesView).show(
            lambda width: [
                *contract_lines(state, width, ascii_only),
                *equation_lines(state, width, ascii_only),
                *scale_lines(scales, width, ascii_only, mark),
            ]
        )
        self._ask_scales(state)
        self._show_run()
        self._show_zero()
        pane = self.bytes_pane
        checkpoint = self.workspace.checkpoint
        if checkpoint is not None:
            pane.show_tensor(checkpoint, state, self.choice, self.qapp.bridge)
            if self._wanted_at is not None or self._wanted_offset is not None:
                pane.go(
                    at=self._wanted_at, byte_offset=self._wanted_offset, file_id=self._wanted_file
                )
                self._wanted_at = self._wanted_offset = None

    def _show_zero(self) -> None:
        facts = self.facts
        if facts is None or facts.state is None:
            return
        state, zeros = facts.state, self._zero_facts
        self._ask_zero(state)
        tally, said = self.workspace.tally, logits_words(self.workspace.logits_runs)
        self.query_one("#zero", LinesView).show(
            lambda width: zero_lines(state, zeros, tally, width, self.ascii_only, said)
        )

    def _ask_zero(self, state: TensorState) -> None:
        """Read the zero plane for the element under the cursor, once an element."""
        checkpoint, at = self.workspace.checkpoint, self.bytes_pane.position or (0, 0)
        if checkpoint is None or self.tab != "zero" or self._zero_asked == at:
            return
        self._zero_asked = at
        self.qapp.bridge.small("zero", lambda token: read_zero_facts(checkpoint, state, at, token))

    def _show_run(self) -> None:
        workspace, mark = self.workspace, "-" if self.ascii_only else "─"
        job = next((job for job in workspace.running if job.key == "check"), None)
        running = running_words(job) if job is not None else ""
        offer = self._choices.logits if self._choices is not None else None
        of_logits = job is not None and offer is not None and job.title == offer.title
        result, part = newest(workspace.logits_runs, offer.request if offer else None)
        state = RunState(
            tensor=self.tensor_name,
            choices=self._choices,
            kernel_results=results_of(workspace.kernel_runs, self.tensor_name),
            logits=LogitsState(
                offer=offer,
                action="tensor.start-run",
                key="logits",
                running=running if of_logits else "",
                part=part,
                result=result,
            ),
            running="" if of_logits else running,
        )
        self.query_one("#run", LinesView).show(
            lambda width: run_lines(state, width, self.ascii_only, mark)
        )
        inspection, facts = workspace.inspection, self.facts
        if self._choices_asked or self.tab != "run" or inspection is None:
            return
        if facts is not None and facts.state is not None and workspace.path:
            self._choices_asked = True
            path, tensor = workspace.path, facts.state
            self.qapp.bridge.small(
                "choices", lambda token: read_choices(path, inspection, tensor, token)
            )

    @on(LinesView.ActionChosen, "#run")
    def _run_chosen(self, event: LinesView.ActionChosen) -> None:
        if event.key:
            event.stop()
            self._start_check(event.key)

    def action_start_run(self) -> None:
        """Start the check under the cursor."""
        view = self.query_one("#run", LinesView)
        if self.tab == "run" and view.lines and view.lines[view.cursor].key:
            self._start_check(view.lines[view.cursor].key)
        else:
            self.show_tab("run")

    def _start_check(self, key: str) -> None:
        inspection, path, name = self.workspace.inspection, self.workspace.path, self.tensor_name
        if inspection is None or path is None:
            return
        bridge = self.qapp.bridge
        if key == "logits":
            if self._choices is not None:
                bridge.logits(self._choices.logits)
            return

        def work(token: CancelToken) -> object:
            progress = bridge.progress_of("check")
            return run_kernel(inspection, path, key, name, progress, token)

        bridge.small("check", work, f"kernel check {key}")

    def _ask_scales(self, state: TensorState) -> None:
        """Count the scale planes once."""
        checkpoint = self.workspace.checkpoint
        if checkpoint is None or self._scales_asked:
            return
        self._scales_asked = True
        self.qapp.bridge.small("scales", lambda token: read_scale_facts(checkpoint, state, token))

    def take_result(self, key: str, result: object) -> None:
        """Something small was computed."""
        if key == "zero" and (result is None or isinstance(result, ZeroFacts)):
            self._zero_facts = result
            self._show_zero()
        elif key == "choices" and isinstance(result, RunChoices):
            self._choices = result
            self._show_run()
        elif key == "check":
            self._show_run()
            self._show_zero()
        elif key == "scales" and isinstance(result, tuple):
            self._scales = result
            self._show_tabs()
        elif key == "element:":
            self.bytes_pane.take_element(result)  # type: ignore[arg-type]
        elif key == "search:":
            self.bytes_pane.take_found(result)  # type: ignore[arg-type]

    def _show_unclaimed(self, facts: RowFacts) -> None:
        checkpoint = self.workspace.checkpoint
        stored = checkpoint.find_plain(facts.name) if checkpoint is not None else None
        if stored is None or checkpoint is None:
            return
        self.bytes_pane.show_stored(checkpoint, stored)
        for tab in ("contract", "zero", "run"):
            self.query_one(f"#{tab}", LinesView).show(lambda width: unclaimed_lines(facts, width))

    def headline(self, width: int) -> Line:
        """Name, shape, format."""
        facts = self.facts
        if facts is None:
            return Line(spans=(Span(f" {shown_name(self.tensor_name, width - 2)}", "strong"),))
        tail = f"{shape_words(facts.shape)} {facts.format} {facts.group}".rstrip(" -")
        name = shown_name(facts.name, max(10, width - cells(tail) - 4))
        return Line(spans=(Span(f" {name}  ", "strong"), Span(tail)))

    def top_lines(self, width: int) -> list[Line]:
        """Name; tabs; a rule."""
        spans: list[Span] = []
        for number, tab in enumerate(TABS, 1):
            title = f"{number} {TAB_TITLES[tab]}"
            current = tab == self.tab
            spans.append(
                Span(f"[{title}]" if current else f" {title} ", "strong" if current else "dim")
            )
        used = sum(cells(span.text) for span in spans)
        right, tone = self.right_note()
        right = cut_middle(right, max(0, width - used - 2))
        spans.append(Span(fit("", max(0, width - used - cells(right) - 1))))
        spans.append(Span(right + " ", tone))
        mark = "-" if self.ascii_only else "─"
        return [self.headline(width), Line(spans=tuple(spans)), rule("", width, mark=mark)]

    def right_note(self) -> tuple[str, str]:
        """What-if, a running job, or the match."""
        banner = self.choice.banner() if self.choice is not None else None
        if banner is not None:
            return f"{banner[0]} | {banner[1]}", "banner"
        if self.workspace.running:
            return super().right_note()
        facts = self.facts
        if facts is None:
            return "", "plain"
        if facts.kind != "quantized":
            return facts.kind, "dim"
        mark = MATCH_MARKS[facts.match]
        fields = f" {', '.join(facts.disputed)}" if facts.disputed else ""
        return (
            f"{glyph(mark, self.ascii_only)} {mark.word}{fields}  id {facts.contract_id}",
            mark.tone,
        )

    def go(
        self,
        *,
        tab: Tab | None = None,
        at: tuple[int, int] | None = None,
        byte_offset: int | None = None,
        file_id: int | None = None,
    ) -> None:
        """To a tab, an element or a byte."""
        if tab is not None:
            self.show_tab(tab)
        if at is not None or byte_offset is not None:
            self.bytes_pane.go(at=at, byte_offset=byte_offset, file_id=file_id)

    def show_tab(self, tab: Tab) -> None:
        """Show a tab; the selection stays."""
        self.tab = tab
        self.query_one("#tabs", ContentSwitcher).current = tab
        if tab == "zero":
            self._show_zero()
        elif tab == "run":
            self._show_run()
        self.refresh_top()
        self._focus_tab()

    def _focus_tab(self) -> None:
        if self.tab == "bytes":
            self.bytes_pane.focus_first()
        else:
            self.query_one(f"#{self.tab}", LinesView).focus()

    def take_page(self, tensor: str, page: BytesPage, channel: str = "") -> None:
        """Bytes arrived."""
        if tensor == self.tensor_name:
            self.bytes_pane.take_page(page)
            if self.tab == "zero":
                self._show_zero()

    def take_failure(self, job: str, note: str) -> bool:
        """Bytes could not be read: the Bytes tab says so."""
        if job == "page:":
            self.bytes_pane.show_failure(note)
        return job == "page:"

    def take_go_to(self, wanted: GoTo) -> bool:
        """An offset or an element of this tensor; a name is for the app."""
        if wanted.name is not None:
            return False
        if wanted.byte_offset is not None and not self.bytes_pane.owns(wanted.byte_offset):
            return False
        self.show_tab("bytes")
        self.bytes_pane.go(at=wanted.at, byte_offset=wanted.byte_offset)
        return True

    def _choose(self, choice: ReadingChoice | None, none_words: str) -> None:
        if choice is None:
            self.notify(none_words, timeout=4, markup=False)
            return
        self.choice = choice
        self.bytes_pane.show_choice(choice)
        self.refresh_top()
        self._show_zero()

    def action_contract(self) -> None:
        """Contract tab."""
        self.show_tab("contract")

    def action_zero(self) -> None:
        """Zero tab."""
        self.show_tab("zero")

    def action_bytes(self) -> None:
        """Bytes tab."""
        self.show_tab("bytes")

    def action_run(self) -> None:
        """Run tab."""
        self.show_tab("run")

    def action_zero_reading(self) -> None:
        """The other zero reading."""
        if self.choice is not None:
            self._choose(self.choice.other_zero(), "this format has one zero reading only")

    def action_order_reading(self) -> None:
        """Another packing order."""
        if self.choice is not None:
            self._choose(self.choice.other_order(), "sizes and format allow one packing order only")

    def action_file_reading(self) -> None:
        """Back to what the file says."""
        if self.choice is not None:
            self._choose(self.choice.back(), "")

    def offers(self, action_id: str) -> bool:
        """Other readings only where the tensor has them."""
        choice = self.choice
        if action_id == "app.show-tensors":
            return True
        if action_id == "tensor.zero-reading":
            return choice is not None and choice.other_zero() is not None
        if action_id == "tensor.order-reading":
            return choice is not None and choice.other_order() is not None
        if action_id == "tensor.file-reading":
            return choice is not None and choice.is_what_if
        return super().offers(action_id)

    def place(self) -> Place:
        """Tensor, tab, element."""
        return Place(
            screen="tensor",
            tensor=self.tensor_name,
            tab=self.tab,
            at=self.bytes_pane.position if self.is_mounted else None,
            finding=self.finding_id,
        )


Builder = Callable[[int], list[Line]]


def unclaimed_lines(facts: RowFacts, width: int) -> list[Line]:
    """What a tensor that no family claims has to say."""
    from quantscope_views.present.states import state_lines

    what = (
        "a plain tensor: it has no quantization contract"
        if facts.kind == "plain"
        else "no family recognises this quantized-looking tensor"
    )
    state = PaneState(
        kind="unsupported" if facts.kind != "plain" else "empty",
        what=what,
        detail=(f"stored as {facts.format} {shape_words(facts.shape)}, {facts.nbytes} bytes",),
        actions=(("tensor.bytes", "its bytes"),),
    )
    return state_lines(state, width)
