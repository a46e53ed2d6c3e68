"""Compare: two checkpoints, or two readings of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar

import msgspec
from quantscope.compare.model import Comparison, PairResult
from quantscope.session.events import CancelToken
from quantscope.session.inspection import Inspection
from textual import on
from textual.binding import BindingType
from textual.widget import Widget

from quantscope_views.bindings import bindings_for
from quantscope_views.lines import Line
from quantscope_views.place import Place
from quantscope_views.present.compare import (
    TABS,
    CompareChoice,
    compare_lines,
    compare_readings,
    compare_with,
    detail_lines,
    foot_lines,
    head_lines,
    logits_head_lines,
    shown_pairs,
)
from quantscope_views.present.logits import LogitsState, logits_lines, offer_words
from quantscope_views.present.run import running_words
from quantscope_views.present.run_facts import LogitsOffer, logits_offer, newest
from quantscope_views.present.states import PaneState, error_state, loading_state
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.widgets.state_pane import StatePane


class CompareScreen(BaseScreen):
    """A is the open checkpoint; B is chosen here, or is A under the other zero rule."""

    name_in_tabs = "compare"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("compare")]

    def __init__(self) -> None:
        super().__init__()
        self.choice = CompareChoice()
        self.found: Comparison | None = None
        self.other: Inspection | None = None
        self._other_path = ""
        self._offer: LogitsOffer | None = None

    def compose_body(self) -> Iterable[Widget]:
        """Sides and tabs; rows, the pair under the cursor, what may not be concluded, or logits; or a state."""
        yield StatePane(id="state")
        yield LinesView(id="compare-head", cursor_on="never", can_focus=False)
        yield LinesView(id="compare-rows", cursor_on="always", help_topic="compare")
        yield LinesView(id="compare-detail", help_topic="compare")
        yield LinesView(id="compare-foot", cursor_on="never", can_focus=False)
        yield LinesView(id="compare-logits", help_topic="logits")

    def workspace_changed(self, what: str) -> None:
        """Nothing is compared yet, it runs, it failed, or it is there."""
        self.refresh_top()
        job = self.workspace.job("compare")
        running = job is not None and job.outcome == "running"
        blocked = self.found is None or running
        self.query_one("#state").display = blocked
        self._arrange(blocked)
        if not blocked:
            if what == "all":
                self._show()
            elif what == "job" and self.choice.tab == "logits":
                self._show_logits()
            return
        pane = self.query_one("#state", StatePane)
        if running and job is not None:
            pane.show_state(loading_state(f"comparing with {self._other_path}", job.progress))
        elif job is not None and job.outcome == "failed":
            failed = error_state(None, job.note)
            actions = (("compare.choose-other", "choose another checkpoint"),)
            pane.show_state(msgspec.structs.replace(failed, actions=actions))
        else:
            pane.show_state(
                PaneState(
                    kind="not_run",
                    what="nothing is compared with this checkpoint",
                    detail=("reads headers and a sample of the other side; x stops it",),
                    actions=(
                        ("compare.choose-other", "choose the other checkpoint"),
                        ("compare.two-readings", "this checkpoint under the other zero rule"),
                    ),
                )
            )
        pane.focus()

    def _arrange(self, blocked: bool) -> None:
        """Which panes are there: a state, or the head with rows or logits under it."""
        of_logits = self.choice.tab == "logits"
        for name in ("rows", "detail", "foot"):
            self.query_one(f"#compare-{name}").display = not blocked and not of_logits
        self.query_one("#compare-head").display = not blocked
        self.query_one("#compare-logits").display = not blocked and of_logits

    @property
    def pair(self) -> PairResult | None:
        """The pair under the cursor."""
        if self.found is None:
            return None
        rows = self.query_one("#compare-rows", LinesView)
        if not rows.lines:
            return None
        target = rows.lines[rows.cursor].target
        name = target.tensor if target is not None else None
        return next((p for p in self.found.pairs if p.pair.a == name), None)

    def _show(self) -> None:
        found, choice = self.found, self.choice
        if found is None:
            return
        names = (_base_name(found.a), _base_name(found.b))
        if found.a == found.b:
            names = (f"{names[0]} as its bytes say", "same bytes, other zero rule")
        self.query_one("#compare-head", LinesView).show(
            lambda width: head_lines(found, choice, names, width)
        )
        if choice.tab == "logits":
            self._show_logits()
            self.query_one("#compare-logits", LinesView).focus()
            return
        rows = self.query_one("#compare-rows", LinesView)
        rows.show(lambda width: compare_lines(found, choice, width))
        rows.go_to(min(max(1, rows.cursor), max(0, len(rows.lines) - 1)))
        self.query_one("#compare-foot", LinesView).show(lambda width: foot_lines(found, width))
        self._show_detail()
        rows.focus()

    def _show_logits(self) -> None:
        found, offer, workspace = self.found, self._offer, self.workspace
        if found is None:
            return
        names = (_base_name(found.a), _base_name(found.b) if found.a != found.b else "")
        job = next((job for job in workspace.running if job.key == "check"), None)
        result, part = newest(workspace.logits_runs, offer.request if offer is not None else None)
        state = LogitsState(
            offer=offer,
            action="compare.start-logits",
            running=running_words(job) if job is not None else "",
            part=part,
            result=result,
        )
        self.query_one("#compare-logits", LinesView).show(
            lambda width: [
                *logits_head_lines(names, width),
                *logits_lines(state, width, self.ascii_only),
            ]
        )

    def _show_detail(self) -> None:
        pair, choice = self.pair, self.choice
        self.query_one("#compare-detail", LinesView).show(
            lambda width: detail_lines(pair, choice, width)
        )

    @on(LinesView.Moved, "#compare-rows")
    def _row_selected(self, event: LinesView.Moved) -> None:
        self._show_detail()

    @on(LinesView.Chosen, "#compare-rows")
    def _row_chosen(self, event: LinesView.Chosen) -> None:
        event.stop()
        pair = self.pair
        if pair is None or self.other is None:
            return
        from quantscope_views.screens.pair import PairScreen

        self.app.push_screen(PairScreen(pair, self.other))

    def compare(self, path: str | None, base: str | None = None) -> None:
        """Compare with another checkpoint, or with itself where no path is given."""
        inspection = self.workspace.inspection
        if inspection is None:
            self.notify("this checkpoint is still being read", severity="warning")
            return
        bridge = self.qapp.bridge
        progress = bridge.progress_of("compare")
        self._other_path = path or "itself"

        def work(token: CancelToken) -> tuple[Comparison, Inspection]:
            if path is None:
                return compare_readings(inspection, progress, token)
            return compare_with(inspection, path, base, progress, token)

        bridge.small("compare", work, f"compare with {self._other_path}")

    def take_result(self, key: str, result: object) -> None:
        """The comparison is there."""
        if key == "compare" and isinstance(result, tuple):
            self.found, self.other = result
            self._offer = None
            self._ask_offer()
            self.workspace_changed("all")
        elif key == "offer" and isinstance(result, LogitsOffer):
            self._offer = result
            self.workspace_changed("all")
        elif key == "check":
            self.workspace_changed("all")

    def _ask_offer(self) -> None:
        """Estimate the logits check of both sides, or find out why there is none."""
        found, other, workspace = self.found, self.other, self.workspace
        inspection, path = workspace.inspection, workspace.path
        if found is None or other is None or inspection is None or path is None:
            return
        base = (found.b, other) if found.a != found.b else None
        self.qapp.bridge.small(
            "offer", lambda token: logits_offer(path, inspection, base, two_readings=base is None)
        )

    def take_failure(self, job: str, note: str) -> bool:
        """A logits check that failed is told on its tab."""
        return job == "check" and self.choice.tab == "logits" and self.found is not None

    def logits_here(self) -> tuple[str, str] | None:
        """The logits check of both sides, once there are two."""
        if self.found is None:
            return None
        offer = self._offer
        ready = offer is not None and offer.cost is not None
        return offer_words(offer), "compare.start-logits" if ready else "compare.logits"

    def run_chosen(self, action_id: str) -> None:
        """From the menu, where its cost stood, the logits check starts at once."""
        if action_id == "compare.start-logits":
            self._start_logits()
        else:
            super().run_chosen(action_id)

    def _start_logits(self) -> None:
        self._tab(4)
        if self._offer is not None and self._offer.cost is not None:
            self.qapp.bridge.logits(self._offer)

    def offers(self, action_id: str) -> bool:
        """What acts on pairs only once there are pairs."""
        of_pairs = self.found is not None and self.choice.tab != "logits"
        if action_id in ("app.next-finding", "app.previous-finding"):
            return of_pairs and self.differences > 1
        if action_id == "compare.swap-rules":
            return of_pairs and self.choice.tab == "zeros" and self._has_zeros
        if action_id == "compare.only-differences":
            return of_pairs
        return super().offers(action_id)

    @property
    def _has_zeros(self) -> bool:
        """Whether a pair has stored zeros on both sides."""
        return self.found is not None and any(pair.zeros is not None for pair in self.found.pairs)

    def step_finding(self, delta: int) -> None:
        """Next or previous difference."""
        rows = self.query_one("#compare-rows", LinesView)
        marked = [i for i, row in enumerate(rows.lines) if row.target is not None]
        if marked:
            later = [i for i in marked if (i > rows.cursor if delta > 0 else i < rows.cursor)]
            rows.go_to((later or marked)[0 if delta > 0 else -1])

    def _tab(self, number: int) -> None:
        self.choice = msgspec.structs.replace(self.choice, tab=TABS[number][0])
        self.workspace_changed("all")

    def action_zeros(self) -> None:
        """Zero planes."""
        self._tab(0)

    def action_contracts(self) -> None:
        """Contract fields."""
        self._tab(1)

    def action_values(self) -> None:
        """Decoded values."""
        self._tab(2)

    def action_only(self) -> None:
        """Tensors of one side only."""
        self._tab(3)

    def action_logits(self) -> None:
        """Logits of both sides."""
        self._tab(4)

    def action_start_logits(self) -> None:
        """Start the logits check where its cost is on screen, else go there."""
        if self.found is not None and self.choice.tab == "logits":
            self._start_logits()
        else:
            self._tab(4)

    def action_swap_rules(self) -> None:
        """Each side under the other's rule, where there are zeros to read by it."""
        if not self._has_zeros:
            self.notify(
                "no pair has stored zeros on both sides: there is no rule to swap", timeout=4
            )
            return
        if self.choice.tab != "zeros":
            self._tab(0)
        self.choice = msgspec.structs.replace(self.choice, swapped=not self.choice.swapped)
        self._show()

    def action_only_differences(self) -> None:
        """Hide or show equal rows."""
        self.choice = msgspec.structs.replace(
            self.choice, only_differences=not self.choice.only_differences
        )
        self._show()

    def action_choose_other(self) -> None:
        """Ask for the other checkpoint."""
        from quantscope_views.screens.prompts import PathPrompt

        self.app.push_screen(
            PathPrompt("compare with", os.path.dirname(self._other_path)), self._chosen
        )

    def _chosen(self, path: str | None) -> None:
        if path:
            self.compare(os.path.expanduser(path))

    def action_two_readings(self) -> None:
        """This checkpoint with itself under the other zero rule."""
        self.compare(None)

    def headline(self, width: int) -> Line:
        """As everywhere."""
        return super().headline(width)

    @property
    def differences(self) -> int:
        """Pairs shown."""
        return len(shown_pairs(self.found, self.choice)) if self.found is not None else 0

    def place(self) -> Place:
        """Compare has no inner place that outlives the session."""
        return Place(screen="compare")


def _base_name(path: str) -> str:
    return os.path.basename(os.path.normpath(path)) or path
