"""A pane of styled lines, with a line cursor where lines lead somewhere or answer questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from quantscope_views.lines import Line
from quantscope_views.place import Place
from quantscope_views.widgets.strip_view import RIGHT_BUTTON, StripView

Builder = Callable[[int], Sequence[Line]]
"""Makes the lines for a width in cells."""


class LinesView(StripView):
    """Shows lines that a builder makes for the pane's width.

    Args:
        builder: called again whenever the width changes.
        cursor_on: `focus` shows the line cursor in focus, `always` also out of it, `never` never.
    """

    cursor = reactive(0)

    class Chosen(Message):
        """Enter or a double click on a line that leads somewhere."""

        def __init__(self, view: LinesView, place: Place, index: int) -> None:
            super().__init__()
            self.view = view
            self.place = place
            self.index = index

        @property
        def control(self) -> LinesView:
            """The pane."""
            return self.view

    class ActionChosen(Message):
        """Enter or a double click on a line that offers an action."""

        def __init__(self, view: LinesView, action_id: str, key: str = "") -> None:
            super().__init__()
            self.view = view
            self.action_id = action_id
            self.key = key

        @property
        def control(self) -> LinesView:
            """The pane."""
            return self.view

    class Moved(Message):
        """The line cursor moved."""

        def __init__(self, view: LinesView, index: int) -> None:
            super().__init__()
            self.view = view
            self.index = index

        @property
        def control(self) -> LinesView:
            """The pane."""
            return self.view

    def __init__(
        self,
        builder: Builder | None = None,
        *,
        cursor_on: str = "focus",
        id: str | None = None,  # noqa: A002 - Textual's own parameter
        classes: str | None = None,
        help_topic: str = "",
        can_focus: bool = True,
    ) -> None:
        super().__init__(id=id, classes=classes, can_focus=can_focus)
        self._builder = builder
        self._lines: Sequence[Line] = ()
        self._built_width = -1
        self._moved = False
        """Whether a person moved the cursor; until then it settles anew with every build."""
        self._cursor_on = cursor_on
        self.help_topic = help_topic

    @property
    def lines(self) -> Sequence[Line]:
        """Lines as last built."""
        return self._lines

    @property
    def text(self) -> str:
        """The whole pane as plain text."""
        return "\n".join(line.text.rstrip() for line in self._lines)

    def show(self, builder: Builder) -> None:
        """Show other lines."""
        self._builder = builder
        self._built_width = -1
        self._rebuild()

    def _rebuild(self) -> None:
        width = self.scrollable_content_region.width or self.size.width
        if self._builder is None or width <= 0:
            return
        self._built_width = width
        self._lines = self._builder(width)
        self.virtual_size = Size(width, len(self._lines))
        wanted = self.cursor if self._moved else 0
        self.cursor = self._settled(max(0, min(wanted, len(self._lines) - 1)))
        self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
        if self.has_focus:
            self.refresh_bindings()

    def _settled(self, cursor: int) -> int:
        """Off the heading: from a first line that leads nowhere to the first one that does, or that answers."""
        if cursor or not self._lines or self._lines[0].target or self._lines[0].action:
            return cursor
        seen = self._lines[: max(1, self.size.height)]
        leading = (i for i, line in enumerate(seen) if line.target or line.action)
        answering = (i for i, line in enumerate(seen) if line.about)
        return next(leading, next(answering, 0))

    def on_resize(self, event: events.Resize) -> None:
        """Build again where the width changed."""
        width = self.scrollable_content_region.width
        if width != self._built_width:
            self._rebuild()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Height of the lines for a width."""
        if self._builder is not None and width > 0 and width != self._built_width:
            return len(self._builder(width))
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """One line of the viewport."""
        index = y + self.scroll_offset.y
        width = self.size.width
        if index >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        at_cursor = index == self.cursor and (
            self._cursor_on == "always" or (self._cursor_on == "focus" and self.has_focus)
        )
        return self.paint(self._lines[index].spans, width, under="line" if at_cursor else None)

    def offers(self, action_id: str) -> bool:
        """Enter only on a line that leads somewhere."""
        if action_id == "move.choose":
            return bool(self._lines and (self._here.target or self._here.action))
        return True

    @property
    def _here(self) -> Line:
        return self._lines[min(self.cursor, len(self._lines) - 1)]

    def explain(self) -> tuple[str, ...]:
        """What the line under the cursor knows about its numbers."""
        return self._lines[self.cursor].about if self._lines else ()

    def copy_text(self) -> str:
        """The line under the cursor."""
        return self._lines[self.cursor].text.strip() if self._lines else ""

    def watch_cursor(self, old: int, new: int) -> None:
        """Keep the cursor visible and tell about it."""
        if not self.is_mounted:
            return
        self.scroll_to_region(
            Region(0, new, 1, 1), animate=False, immediate=True, spacing=None, force=True
        )
        self.refresh()
        if self.has_focus:
            self.refresh_bindings()
        self.post_message(self.Moved(self, new))

    def go_to(self, index: int) -> None:
        """Put the cursor on a line and leave it there when the lines are built again."""
        self._go(index)

    def _go(self, index: int) -> None:
        self._moved = True
        if self._lines:
            self.cursor = max(0, min(len(self._lines) - 1, index))

    def action_up(self) -> None:
        """One line up."""
        self._go(self.cursor - 1)

    def action_down(self) -> None:
        """One line down."""
        self._go(self.cursor + 1)

    def action_left(self) -> None:
        """Lines have no columns."""

    def action_right(self) -> None:
        """Lines have no columns."""

    def action_page_up(self) -> None:
        """One page up."""
        self._go(self.cursor - max(1, self.size.height - 1))

    def action_page_down(self) -> None:
        """One page down."""
        self._go(self.cursor + max(1, self.size.height - 1))

    def action_first(self) -> None:
        """To the first line."""
        self._go(0)

    def action_last(self) -> None:
        """To the last line."""
        self._go(len(self._lines) - 1)

    def action_choose(self) -> None:
        """Follow the line."""
        if not self._lines:
            return
        chosen = self._lines[self.cursor]
        if chosen.action:
            self.post_message(self.ActionChosen(self, chosen.action, chosen.key))
        elif chosen.target is not None:
            self.post_message(self.Chosen(self, chosen.target, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """A click selects, a double click follows."""
        if event.button == RIGHT_BUTTON:
            return
        offset = event.get_content_offset(self)
        if offset is None:
            return
        self._go(int(offset.y + self.scroll_offset.y))
        if event.chain >= 2:
            self.action_choose()
