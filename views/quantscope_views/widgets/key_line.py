"""The last line of every screen: the six or seven keys that apply, made from the bindings in force."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from textual import events
from textual.screen import Screen
from textual.strip import Strip

from quantscope_views.actions import ACTIONS, Action, shown_key
from quantscope_views.lines import Span
from quantscope_views.widgets.strip_view import StripView

MAX_HINTS = 8


def offered(screen: Screen[Any], action_id: str) -> bool:
    """Whether an action would do anything now, as the pane in focus, what it lies in and the screen see it.

    A key that is not offered still answers: it says why there is nothing to do.
    """
    nodes: Iterable[Any] = screen.focused.ancestors_with_self if screen.focused else (screen,)
    return all(node.offers(action_id) for node in nodes if hasattr(node, "offers"))


class KeyLine(StripView, can_focus=False):
    """Hints for the pane in focus; a click runs the action."""

    def __init__(self) -> None:
        super().__init__()
        self._spots: list[tuple[int, int, str]] = []

    def on_mount(self) -> None:
        """Follow the bindings of whatever has focus."""
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.refresh())

    def hints(self) -> list[tuple[str, Action]]:
        """(key, action) of the bindings in force, most useful first."""
        known = {action.id: action for action in ACTIONS}
        best: dict[str, str] = {}
        for key, active in self.screen.active_bindings.items():
            binding_id = active.binding.id
            if binding_id in known and active.enabled and binding_id not in best:
                best[binding_id] = key
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        chosen = [(key, known[action_id]) for action_id, key in best.items()]
        chosen = [
            item for item in chosen if item[1].footer > 0 and offered(self.screen, item[1].id)
        ]
        chosen.sort(key=lambda item: -item[1].footer)
        return [(shown_key(key, ascii_only), action) for key, action in chosen]

    def render_line(self, y: int) -> Strip:
        """As many hints as fit; help always stands last."""
        width = self.size.width
        if y:
            return Strip.blank(width, self.rich_style)
        hints = self.hints()
        helps = [item for item in hints if item[1].id == "app.help"]
        rest = [item for item in hints if item[1].id != "app.help"][: MAX_HINTS - len(helps)]
        tail = sum(len(key) + len(action.label) + 4 for key, action in helps)
        spans: list[Span] = [Span(" ")]
        self._spots = []
        used = 1
        for key, action in [*rest, *helps]:
            size = len(key) + 1 + len(action.label)
            limit = width if action.id == "app.help" else width - tail
            if used + size > limit:
                continue
            spans += [Span(key, "key"), Span(f" {action.label}   ")]
            self._spots.append((used, used + size, action.id))
            used += size + 3
        return self.paint(spans, width)

    @property
    def text(self) -> str:
        """The line as plain text."""
        return self.render_line(0).text

    def on_click(self, event: events.Click) -> None:
        """Run the action under the pointer."""
        offset = event.get_content_offset(self)
        if offset is None:
            return
        for start, stop, action_id in self._spots:
            if start <= offset.x < stop:
                self.app.run_registered(action_id)  # type: ignore[attr-defined]
                return
