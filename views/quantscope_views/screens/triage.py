"""Triage: what needs a person, why, and what was looked at."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.containers import Container
from textual.widget import Widget

from quantscope_views.bindings import bindings_for
from quantscope_views.last_place import place_words
from quantscope_views.lines import Line, Span, cut_end, line, rule, shown_name
from quantscope_views.place import Place
from quantscope_views.present.baseline import accept
from quantscope_views.present.layers import layer_lines
from quantscope_views.present.looked_at import looked_at_lines
from quantscope_views.present.states import loading_state, nothing_open_state
from quantscope_views.present.triage import (
    MAX_MEMBERS,
    empty_lines,
    finding_lines,
    how_lines,
    member_lines,
    needs_you_title,
    why_lines,
)
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.lines_view import LinesView
from quantscope_views.widgets.state_pane import StatePane


class OfferView(LinesView):
    """One line that offers the last place; down leaves it for the findings."""

    def action_down(self) -> None:
        """To the findings."""
        self.screen.query_one("#findings", LinesView).focus()


class TriageScreen(BaseScreen):
    """The first screen."""

    name_in_tabs = "triage"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("triage")]
    _scanning = False
    _recent: tuple[str, ...] = ()

    def compose_body(self) -> Iterable[Widget]:
        """Findings, why, what was looked at; or a state."""
        yield StatePane(id="state")
        with Container(id="triage-body"):
            yield OfferView(id="offer", help_topic="triage")
            yield LinesView(id="findings-title", cursor_on="never", can_focus=False)
            yield LinesView(id="findings", cursor_on="always", help_topic="triage")
            yield LinesView(id="why", help_topic="triage")
            yield LinesView(id="looked", help_topic="triage")
            yield LinesView(id="layers", help_topic="triage")
            yield LinesView(id="members", help_topic="triage")

    def workspace_changed(self, what: str) -> None:
        """Show findings and what they rest on."""
        self.refresh_top()
        facts = self.workspace.triage()
        if what == "job" and facts is not None and facts.scanning == self._scanning:
            return
        self._scanning = facts is not None and facts.scanning
        trouble = self.workspace.trouble()
        state = self.query_one("#state", StatePane)
        body = self.query_one("#triage-body", Container)
        blocked = trouble is not None and trouble.kind == "error"
        state.display = trouble is not None or facts is None
        state.set_class(not blocked and facts is not None, "-banner")
        body.display = facts is not None and not blocked
        if trouble is not None:
            state.show_state(trouble)
        elif facts is None:
            state.show_state(
                loading_state(
                    f"reading headers of {self.workspace.path}", None, self.workspace.seen
                )
                if self.workspace.path is not None
                else nothing_open_state(self._recent)
            )
        if facts is None or blocked:
            if self.lacks_focus:
                state.focus()
            return
        appears = self._show_offer()
        if appears or self.lacks_focus:
            offered = self.query_one("#offer", OfferView)
            (offered if offered.display else self.query_one("#findings", LinesView)).focus()
        self._show_findings()
        self._show_why()
        self._show_layers()
        mark = "-" if self.ascii_only else "─"
        self.query_one("#looked", LinesView).show(
            lambda width: [
                rule("what was looked at", width, mark=mark),
                *looked_at_lines(facts, width),
            ]
        )

    def _show_offer(self) -> bool:
        """The last place in these files, until it is followed; whether it appears just now, to have focus."""
        place = self.qapp.last_place
        view = self.query_one("#offer", OfferView)
        appears = place is not None and not view.display
        view.display = place is not None
        if place is None:
            return False
        words = place_words(place)
        view.show(
            lambda width: [
                Line(
                    spans=(
                        Span(" last place: ", "head"),
                        Span(shown_name(words, width - 22), "strong"),
                        Span(", enter", "key"),
                    ),
                    about=("where the last session in exactly these files ended",),
                    action="app.last-place",
                )
            ]
        )
        return appears

    def _show_layers(self) -> None:
        layers = self.workspace.tally.layers
        mark = "-" if self.ascii_only else "─"
        view = self.query_one("#layers", LinesView)
        view.show(lambda width: layer_lines(layers, width, self.ascii_only, mark))

    def _show_findings(self) -> None:
        facts = self.workspace.triage()
        if facts is None:
            return
        title = self.query_one("#findings-title", LinesView)
        title.show(lambda width: [_title_line(needs_you_title(facts), width)])
        view = self.query_one("#findings", LinesView)
        if facts.findings:
            view.show(lambda width: finding_lines(facts, width, self.ascii_only))
            view.go_to(min(self.workspace.finding_at, len(facts.findings) - 1))
        else:
            view.show(lambda width: empty_lines(facts, width))
        view.styles.max_height = max(1, min(10, len(facts.findings) or 3))

    def _show_why(self) -> None:
        facts = self.workspace.triage()
        finding = self.workspace.finding
        if facts is None:
            return
        names = [finding.subject.tensor, *finding.members[:1]] if finding is not None else []
        state = next((s for s in (self.workspace.state(n) for n in names if n) if s), None)
        code = f"{finding.code}, i: how do I know" if finding is not None else ""
        mark = "-" if self.ascii_only else "─"
        self.query_one("#why", LinesView).show(
            lambda width: [
                rule("why", width, code, mark=mark),
                *why_lines(finding, state, facts, width),
                *(how_lines(finding, state, width, mark) if self.has_class("-wide") else ()),
            ]
        )
        members = finding.members[:MAX_MEMBERS] if finding is not None else ()
        states = {name: known for name in members if (known := self.workspace.state(name))}
        self.query_one("#members", LinesView).show(
            lambda width: member_lines(finding, states, width, mark)
        )

    @on(LinesView.Moved, "#findings")
    def _finding_selected(self, event: LinesView.Moved) -> None:
        if self.workspace.findings and event.index != self.workspace.finding_at:
            self.workspace.choose_finding(event.index)
            self._show_why()

    def offers(self, action_id: str) -> bool:
        """What acts on a finding only where one is selected; the next one only where there is another."""
        finding = self.workspace.finding
        if action_id in ("app.next-finding", "app.previous-finding"):
            return len(self.workspace.findings) > 1
        if action_id == "triage.guilty-byte":
            return finding is not None and self.qapp.has_byte(finding)
        if action_id in ("triage.rule-page", "triage.accept"):
            return finding is not None
        return super().offers(action_id)

    def step_finding(self, delta: int) -> None:
        """Move the selection; at the end it comes round."""
        count = len(self.workspace.findings)
        if count:
            view = self.query_one("#findings", LinesView)
            view.go_to((view.cursor + delta) % count)
            view.focus()

    def action_guilty_byte(self) -> None:
        """Straight to the byte of the selected finding."""
        finding = self.workspace.finding
        if finding is not None:
            self.qapp.go_to_finding(finding, byte=True)

    def action_accept(self) -> None:
        """Ask for a reason, then add the selected finding to the baseline file."""
        from quantscope_views.screens.prompts import PathPrompt

        finding = self.workspace.finding
        if finding is None:
            return

        def accepted(reason: str | None) -> None:
            if reason and reason.strip():
                self.qapp.bridge.small(
                    "accept",
                    lambda _: accept(finding, reason.strip(), Path.cwd(), dt.date.today()),
                )
            elif reason is not None:
                self.notify("not accepted: the baseline wants a reason", severity="warning")

        self.app.push_screen(PathPrompt(f"accept {finding.code}: why", words="reason"), accepted)

    def take_result(self, key: str, result: object) -> None:
        """The baseline was written, or earlier checkpoints are known."""
        if key == "recent" and isinstance(result, list):
            self._recent = tuple(result)
            self.workspace_changed("all")
        if key == "accept" and isinstance(result, tuple):
            self.notify("\n".join(result), timeout=8, markup=False)

    def action_rule_page(self) -> None:
        """The page of the selected finding's rule."""
        finding = self.workspace.finding
        if finding is not None:
            self.qapp.show_rule(finding.code)

    def place(self) -> Place:
        """Triage has no inner place."""
        finding = self.workspace.finding
        return Place(screen="triage", finding=finding.id if finding is not None else None)


def _title_line(text: str, width: int) -> Line:
    right = "tensors   who must act"
    gap = width - len(text) - len(right) - 2
    if gap < 1:
        return line((f" {cut_end(text, width - 1)}", "strong"))
    return line((f" {text}", "strong"), " " * gap, (right, "dim"))
