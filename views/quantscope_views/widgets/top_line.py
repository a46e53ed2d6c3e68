"""The two lines on top of every screen: what is open, and where in the app this is."""

from __future__ import annotations

from typing import Any

from textual import events
from textual.message import Message

from quantscope_views.lines import Line, Span, cells, cut_middle, fit
from quantscope_views.widgets.lines_view import LinesView

TABS: tuple[tuple[str, str], ...] = (
    ("triage", "Triage"),
    ("tensors", "Tensors"),
    ("compare", "Compare"),
    ("report", "Report"),
)


class TopLine(LinesView, can_focus=False):
    """Name and format on the first line; screens and a right-hand note on the second."""

    class TabClicked(Message):
        """A screen's name was clicked."""

        def __init__(self, screen: str) -> None:
            super().__init__()
            self.screen = screen

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(cursor_on="never", can_focus=False, **kwargs)
        self._spots: list[tuple[int, int, str]] = []

    def on_click(self, event: events.Click) -> None:
        """A click on a screen's name asks for it."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y != 1:
            return
        for start, stop, screen in self._spots:
            if start <= offset.x < stop:
                self.post_message(self.TabClicked(screen))
                return

    def tabs_line(self, current: str, right: str, tone: str, width: int) -> Line:
        """Names of the screens with the current one in brackets, and a note at the right."""
        spans: list[Span] = []
        self._spots = []
        used = 0
        for screen, title in TABS:
            text = f"[{title}]" if screen == current else f" {title} "
            spans.append(Span(text, "strong" if screen == current else "dim"))
            self._spots.append((used, used + len(text), screen))
            used += len(text)
        return _with_tail(spans, used, right, tone, width)


PROGRAM = " quantscope  "


def head_line(name: str, parts: tuple[str, ...], width: int) -> Line:
    """Program, name and facts; the name is cut in the middle to what they leave."""
    tail = "  ".join(parts)
    room = max(8, width - len(PROGRAM) - cells(tail) - 3)
    return Line(
        spans=(
            Span(PROGRAM, "head"),
            Span(cut_middle(name, room) + "  ", "strong"),
            Span(tail),
        )
    )


def tabs_room(width: int) -> int:
    """Cells beside the names of the screens."""
    return width - sum(len(title) + 2 for _, title in TABS) - 2


def _with_tail(spans: list[Span], used: int, right: str, tone: str, width: int) -> Line:
    room = width - used - 2
    shown = cut_middle(right, max(0, room))
    spans.append(Span(fit("", max(0, width - used - cells(shown) - 1))))
    spans.append(Span(shown + " ", tone))
    return Line(spans=tuple(spans))
