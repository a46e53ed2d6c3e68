"""Codes as cells: paints one page of bytes and turns keys and clicks into cursor positions."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from quantscope_views.bindings import bindings_for
from quantscope_views.lines import Line
from quantscope_views.present import bytes_moves as moves
from quantscope_views.present.bytes_lines import (
    line_at,
    page_lines,
    page_margin,
    position_about,
    value_about,
)
from quantscope_views.present.bytes_model import BytesPage
from quantscope_views.present.bytes_search import Wanted
from quantscope_views.present.reading_choice import ReadingChoice
from quantscope_views.widgets.strip_view import StripView


class NibbleView(StripView):
    """Paints one page and turns keys into cursor positions; reads nothing itself."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("bytes")]

    class MoveRequested(Message):
        """The cursor wants to be elsewhere."""

        def __init__(self, row: int, col: int) -> None:
            super().__init__()
            self.row = row
            self.col = col

    class SearchRequested(Message):
        """The next end code, odd scale or difference is wanted."""

        def __init__(self, wanted: Wanted) -> None:
            super().__init__()
            self.wanted = wanted

    class RawRequested(Message):
        """Plain hex at the cursor is wanted."""

    class Resized(Message):
        """The page no longer fits."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own parameter
        super().__init__(id=id)
        self.page: BytesPage | None = None
        self.choice: ReadingChoice | None = None
        self.active = "codes"
        self.ascii_only = False
        self.help_topic = "bytes"
        self._lines: list[Line] = []

    def show_page(self, page: BytesPage, choice: ReadingChoice) -> None:
        """Paint another page."""
        self.page, self.choice = page, choice
        roles = {strip.role for strip in page.strips}
        if self.active not in roles:
            self.active = "codes"
        self._rebuild()

    def _rebuild(self) -> None:
        if self.page is None or not self.size.width:
            return
        if self.has_focus:
            self.refresh_bindings()
        self._lines = page_lines(
            self.page,
            self.size.width,
            self.size.height,
            ascii_only=self.ascii_only,
            active=self.active,
        )
        self.virtual_size = Size(self.size.width, len(self._lines))
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        """Another size holds another page."""
        self._rebuild()
        self.post_message(self.Resized())

    @property
    def text(self) -> str:
        """The pane as plain text."""
        return "\n".join(line.text.rstrip() for line in self._lines)

    def render_line(self, y: int) -> Strip:
        """One line."""
        index = y + self.scroll_offset.y
        if index >= len(self._lines):
            return Strip.blank(self.size.width, self.rich_style)
        return self.paint(self._lines[index].spans, self.size.width)

    def offers(self, action_id: str) -> bool:
        """Nothing before a page is there; planes only where the element uses others."""
        if action_id == "bytes.next-plane":
            return self.page is not None and bool(self.page.strips)
        return self.page is not None or not action_id.startswith("bytes.")

    def explain(self) -> tuple[str, ...]:
        """How the value under the cursor is known."""
        if self.page is None:
            return ()
        return value_about(self.page) or position_about(self.page)

    def copy_text(self) -> str:
        """Element, bytes and value in one line."""
        return self._markdown() if self.page is not None else ""

    def _move(self, position: moves.Position) -> None:
        self.post_message(self.MoveRequested(*position))

    def _step(self, across: int, down: int) -> None:
        page, choice = self.page, self.choice
        if page is None or choice is None:
            return
        if self.active != "codes":
            self._move(
                moves.next_row(page, across)
                if across
                else moves.next_group(page, choice.shown, down)
            )
        elif across:
            self._move(moves.next_code(page, across))
        else:
            self._move(moves.next_line(page, down))

    def action_left(self) -> None:
        """The code before."""
        self._step(-1, 0)

    def action_right(self) -> None:
        """The code after."""
        self._step(1, 0)

    def action_up(self) -> None:
        """The line above."""
        self._step(0, -1)

    def action_down(self) -> None:
        """The line below."""
        self._step(0, 1)

    def action_page_up(self) -> None:
        """A page of lines up."""
        self._page_by(-1)

    def action_page_down(self) -> None:
        """A page of lines down."""
        self._page_by(1)

    def _page_by(self, direction: int) -> None:
        if self.page is None:
            return
        layout, page = self.page.layout, self.page
        lines = max(1, len(page.lines) - 1)
        if layout is None or not page.line_stride:
            self._move(moves.next_row(page, direction * lines))
            return
        address = layout.address(page.row, page.col) // 8 + direction * lines * page.line_stride
        hits = [h for h in layout.hits(max(0, address), 1 + page.line_stride) if h.piece == 0]
        if hits:
            best = min(hits, key=lambda hit: hit.address)
            self._move((best.row, best.col))
        else:
            self.action_last() if direction > 0 else self.action_first()

    def action_first(self) -> None:
        """First element of the row."""
        if self.page is not None:
            self._move(moves.row_end(self.page, False))

    def action_last(self) -> None:
        """Last element of the row."""
        if self.page is not None:
            self._move(moves.row_end(self.page, True))

    def action_next_group(self) -> None:
        """Next group."""
        if self.page is not None and self.choice is not None:
            self._move(moves.next_group(self.page, self.choice.shown, 1))

    def action_previous_group(self) -> None:
        """Previous group."""
        if self.page is not None and self.choice is not None:
            self._move(moves.next_group(self.page, self.choice.shown, -1))

    def action_next_word(self) -> None:
        """Next stored word."""
        if self.page is not None:
            self._move(moves.next_word(self.page, 1))

    def action_previous_word(self) -> None:
        """Previous stored word."""
        if self.page is not None:
            self._move(moves.next_word(self.page, -1))

    def action_next_row(self) -> None:
        """Same column, next row."""
        if self.page is not None:
            self._move(moves.next_row(self.page, 1))

    def action_previous_row(self) -> None:
        """Same column, row before."""
        if self.page is not None:
            self._move(moves.next_row(self.page, -1))

    def action_next_plane(self) -> None:
        """Arrows move in the next plane."""
        if self.page is None:
            return
        planes = ["codes", *(strip.role for strip in self.page.strips)]
        at = planes.index(self.active) if self.active in planes else 0
        self.active = planes[(at + 1) % len(planes)]
        self._rebuild()

    def action_next_end_code(self) -> None:
        """Next code at an end of the range."""
        self.post_message(self.SearchRequested("end_code"))

    def action_next_bad_scale(self) -> None:
        """Next NaN, infinite or zero scale."""
        self.post_message(self.SearchRequested("bad_scale"))

    def action_next_difference(self) -> None:
        """Next value that differs between the reading shown and the file's."""
        self.post_message(self.SearchRequested("difference"))

    def action_raw(self) -> None:
        """Plain hex of the file here."""
        self.post_message(self.RawRequested())

    def action_copy_value(self) -> None:
        """The decoded value."""
        if self.page is not None and self.page.shown is not None:
            self._copy(repr(self.page.shown.value))

    def action_copy_hex(self) -> None:
        """The bytes of the cursor's line."""
        if self.page is not None:
            line = next((line for line in self.page.lines if line.has_cursor), None)
            self._copy(line.data.hex(" ") if line is not None else "")

    def action_copy_python(self) -> None:
        """Where, code and value as a Python dict."""
        if self.page is not None:
            page = self.page
            value = page.shown.value if page.shown is not None else None
            self._copy(
                repr(
                    {
                        "tensor": page.tensor,
                        "at": (page.row, page.col),
                        "code": page.code,
                        "value": value,
                    }
                )
            )

    def action_copy_markdown(self) -> None:
        """One table row."""
        self._copy(self._markdown())

    def _markdown(self) -> str:
        page = self.page
        if page is None:
            return ""
        formula = page.shown.formula if page.shown is not None else page.error
        value = repr(page.shown.value) if page.shown is not None else "-"
        where = f"{page.file} {page.word}"
        return f"| {page.tensor} | {page.row},{page.col} | {where} | {formula} | {value} |"

    def _copy(self, text: str) -> None:
        self.app.copy_words(text)  # type: ignore[attr-defined]

    def on_click(self, event: events.Click) -> None:
        """A click puts the cursor on the code under the pointer."""
        offset = event.get_content_offset(self)
        page = self.page
        if offset is None or page is None:
            return
        line = line_at(self._lines, page, int(offset.y + self.scroll_offset.y))
        if line is None:
            return
        byte, digit = divmod(int(offset.x) - page_margin(page).total - 1, 3)
        if not 0 <= byte < len(line.data) or digit > 1:
            return
        low_bit = (line.byte_offset + byte) * 8 + (4 if digit == 0 else 0)
        for hit in line.hits:
            if hit.address < low_bit + 4 and hit.address + hit.width > low_bit:
                self._move((hit.row, hit.col))
                return

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves by lines."""
        event.stop()
        self._step(0, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves by lines."""
        event.stop()
        self._step(0, -1)
