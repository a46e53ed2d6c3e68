"""The base of every pane: tones to styles, lines to strips, one gate that makes text inert."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from quantscope.text import inert
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import BindingType
from textual.scroll_view import ScrollView
from textual.strip import Strip

from quantscope_views.actions import owned_by
from quantscope_views.ascii_only import AsciiScrollBar, ascii_padded
from quantscope_views.bindings import bindings_for
from quantscope_views.lines import Span
from quantscope_views.themes import tone_colours, tone_style

RIGHT_BUTTON = 3
"""The mouse button that opens the palette for the pane under it."""

MOVES = frozenset(action.handler for action in owned_by("move"))


class StripView(ScrollView, can_focus=True):
    """Paints spans through the Line API; no text ever passes through markup."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("move")]

    HELP_TOPIC: ClassVar[str] = "moving"
    """Page under help/ that tells what this pane is."""

    def on_mount(self) -> None:
        """An ASCII terminal gets a scrollbar that it can draw."""
        if getattr(self.app, "ascii_only", False):
            self.vertical_scrollbar.renderer = AsciiScrollBar  # type: ignore[misc]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """An action of moving that this pane does not have is not offered."""
        if action in MOVES and getattr(self, f"action_{action}", None) is None:
            return False
        return super().check_action(action, parameters)

    def on_click(self, event: events.Click) -> None:
        """A right click opens the palette for this pane."""
        if event.button == RIGHT_BUTTON and self.can_focus:
            self.focus()
            self.app.action_command_palette()

    def offers(self, action_id: str) -> bool:
        """Whether an action would do anything here now; the line of keys shows no other."""
        return True

    def explain(self) -> tuple[str, ...]:
        """Answers "how do I know" for what the cursor is on."""
        return ()

    def copy_text(self) -> str:
        """What `y` copies."""
        return ""

    def tone_style(self, tone: str) -> Style:
        """The style of a tone under the present theme, to be laid over the pane's own.

        Tones are looked up in the theme and not in component classes of every pane: with some twenty tones
        and ten panes a screen, the style sheet would be asked two hundred times before a screen appears.
        """
        return tone_style(tone, tone_colours(tone, self.app.theme_variables))

    def paint(self, spans: Iterable[Span], width: int, *, under: str | None = None) -> Strip:
        """A strip of exactly `width` cells.

        Args:
            spans: text with tones.
            width: cells to fill.
            under: tone whose background lies under the whole line (`line` for the line cursor).
        """
        base = self.rich_style
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        ground = self.tone_style(under) if under else None
        segments: list[Segment] = []
        used = 0
        for text, tone in spans:
            if used >= width:
                break
            shown = ascii_padded(inert(text)) if ascii_only else inert(text)
            size = cell_len(shown)
            if used + size > width:
                shown = set_cell_size(shown, width - used)
                size = width - used
            style = base if tone == "plain" else base + self.tone_style(tone)
            if ground is not None and tone not in ("cursor", "lit", "banner", "cursor-word"):
                style += ground
            segments.append(Segment(shown, style))
            used += size
        fill = base + ground if ground is not None else base
        if used < width:
            segments.append(Segment(" " * (width - used), fill))
        return Strip(segments, width)
