"""A table that paints only what is on screen: 100 000 rows cost what twenty do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from quantscope_views.lines import Span, fit, shown_name
from quantscope_views.present.tensor_rows import Column
from quantscope_views.widgets.strip_view import RIGHT_BUTTON, StripView


class RowSource(Protocol):
    """What a table shows."""

    def __len__(self) -> int:
        """Rows."""
        ...

    def cells(self, row: int, columns: Sequence[Column]) -> Sequence[Span]:
        """One span a column, unpadded."""
        ...

    def explain(self, row: int) -> tuple[str, ...]:
        """How the numbers of a row are known."""
        ...

    def name(self, row: int) -> str:
        """The row's own name, for copying."""
        ...


class VirtualTable(StripView):
    """Rows of a `RowSource` under a fixed heading.

    Args:
        columns: shown from left to right; a column whose `least` is wider than the table is hidden.
    """

    HELP_TOPIC = "tensors"
    cursor = reactive(0)

    class Chosen(Message):
        """Enter or a double click on a row."""

        def __init__(self, table: VirtualTable, row: int) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> VirtualTable:
            """The table."""
            return self.table

    class Folded(Message):
        """Left or right on a row: close or open a branch."""

        def __init__(self, table: VirtualTable, row: int, open_it: bool) -> None:
            super().__init__()
            self.table = table
            self.row = row
            self.open_it = open_it

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._rows: RowSource | None = None
        self.sorted_by = ""
        self.help_topic = "tensors"

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns that the present width shows."""
        width = self.size.width
        return tuple(column for column in self._columns if column.least <= width)

    @property
    def row_count(self) -> int:
        """Rows of the source."""
        return len(self._rows) if self._rows is not None else 0

    def set_columns(self, columns: Sequence[Column]) -> None:
        """Show other columns."""
        self._columns = tuple(columns)
        self.refresh()

    def show(self, rows: RowSource, cursor: int | None = None) -> None:
        """Show other rows; the cursor stays where it is unless told."""
        self._rows = rows
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        wanted = self.cursor if cursor is None else cursor
        self.cursor = max(0, min(wanted, len(rows) - 1))
        if cursor is not None:
            self._reveal(self.cursor)
        self.refresh()

    def refresh_rows(self) -> None:
        """Paint again: the source has the same rows with newer values."""
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """The virtual width follows the widget."""
        self.virtual_size = Size(event.size.width, self.row_count + 1)
        self._reveal(self.cursor)

    def render_line(self, y: int) -> Strip:
        """The heading, or one row of the viewport."""
        width = self.size.width
        columns = self.columns
        if y == 0:
            return self.paint(self._heading(columns, width), width)
        row = y - 1 + self.scroll_offset.y
        if self._rows is None or row >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        spans: list[Span] = [Span(">" if row == self.cursor else " ", "key")]
        for column, size, span in zip(
            columns,
            self._widths(columns, width),
            self._rows.cells(row, columns),
            strict=True,
        ):
            text = shown_name(span.text, size) if not column.width else span.text
            spans.append(Span(fit(text, size, right=column.right) + " ", span.tone))
        return self.paint(spans, width, under="line" if row == self.cursor else None)

    def _heading(self, columns: Sequence[Column], width: int) -> list[Span]:
        spans = [Span(" ", "head")]
        for column, size in zip(columns, self._widths(columns, width), strict=True):
            title = column.title + ("*" if column.key == self.sorted_by else "")
            spans.append(Span(fit(title, size, right=column.right) + " ", "head"))
        return spans

    @staticmethod
    def _widths(columns: Sequence[Column], width: int) -> list[int]:
        fixed = sum(column.width + 1 for column in columns if column.width)
        rest = max(4, width - 1 - fixed - 1)
        return [column.width or rest for column in columns]

    def explain(self) -> tuple[str, ...]:
        """What the row under the cursor knows about its numbers."""
        if self._rows is None or not len(self._rows):
            return ()
        return self._rows.explain(self.cursor)

    def copy_text(self) -> str:
        """Name of the row under the cursor."""
        if self._rows is None or not len(self._rows):
            return ""
        return self._rows.name(self.cursor)

    def watch_cursor(self, old: int, new: int) -> None:
        """Repaint the two rows concerned."""
        if not self.is_mounted:
            return
        if self._reveal(new):
            self.refresh()
        else:
            for row in (old, new):
                y = row - self.scroll_offset.y + 1
                if 0 < y < self.size.height:
                    self.refresh(Region(0, y, self.size.width, 1))

    def _reveal(self, row: int) -> bool:
        """Scroll as little as shows a row; whether anything moved."""
        page = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        wanted = min(top, row) if row < top else max(top, row - page + 1)
        if wanted == top:
            return False
        self.scroll_to(y=wanted, animate=False, immediate=True, force=True)
        return True

    def _go(self, row: int) -> None:
        if self.row_count:
            self.cursor = max(0, min(self.row_count - 1, row))

    def action_up(self) -> None:
        """One row up."""
        self._go(self.cursor - 1)

    def action_down(self) -> None:
        """One row down."""
        self._go(self.cursor + 1)

    def action_left(self) -> None:
        """Close the branch."""
        self.post_message(self.Folded(self, self.cursor, False))

    def action_right(self) -> None:
        """Open the branch."""
        self.post_message(self.Folded(self, self.cursor, True))

    def action_page_up(self) -> None:
        """One page up."""
        self._go(self.cursor - max(1, self.size.height - 2))

    def action_page_down(self) -> None:
        """One page down."""
        self._go(self.cursor + max(1, self.size.height - 2))

    def action_first(self) -> None:
        """To the first row."""
        self._go(0)

    def action_last(self) -> None:
        """To the last row."""
        self._go(self.row_count - 1)

    def action_choose(self) -> None:
        """Open the row."""
        if self.row_count:
            self.post_message(self.Chosen(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        """A click selects, a double click opens."""
        if event.button == RIGHT_BUTTON:
            return
        offset = event.get_content_offset(self)
        if offset is None or offset.y == 0:
            return
        row = int(offset.y - 1 + self.scroll_offset.y)
        if row < self.row_count:
            self._go(row)
            if event.chain >= 2:
                self.action_choose()
