"""Plain hex of a byte range of any size, on the Line API with one bounded read a paint."""

from __future__ import annotations

from quantscope.containers.source import ByteSource
from quantscope.errors import QuantscopeError
from textual import events
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip

from quantscope_views.lines import Span, fit
from quantscope_views.present.words import offset_words
from quantscope_views.widgets.strip_view import StripView


class HexView(StripView):
    """Offsets, bytes and printable characters; the cursor is one byte.

    The range may be far larger than memory: only what is on screen is read, in one positioned read.
    """

    cursor = reactive(0)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own parameter
        super().__init__(id=id)
        self.help_topic = "raw"
        self._source: ByteSource | None = None
        self._start = 0
        self._nbytes = 0
        self._cached: tuple[int, bytes, str] = (-1, b"", "")

    @property
    def line_bytes(self) -> int:
        """Bytes a line: as many as fit, a power of two."""
        for count in (32, 16, 8):
            if 14 + count * 4 <= self.size.width:
                return count
        return 4

    @property
    def byte_offset(self) -> int:
        """Absolute offset of the cursor."""
        return self._start + self.cursor

    def show(self, source: ByteSource, start: int, nbytes: int) -> None:
        """Show a range of a file."""
        self._source, self._start, self._nbytes = source, start, max(0, nbytes)
        self._cached = (-1, b"", "")
        self.cursor = min(self.cursor, max(0, nbytes - 1))
        self._measure()

    def go_to(self, byte_offset: int) -> None:
        """Put the cursor on an absolute offset."""
        self._go(byte_offset - self._start)

    def on_resize(self, event: events.Resize) -> None:
        """Another width holds other lines."""
        self._cached = (-1, b"", "")
        self._measure()

    def _measure(self) -> None:
        lines = -(-self._nbytes // self.line_bytes)
        self.virtual_size = Size(self.size.width, lines)
        self._reveal()
        self.refresh()

    def _page(self) -> tuple[int, bytes, str]:
        """First byte, bytes and trouble of the page on screen; read once a scroll position."""
        size = self.line_bytes
        first = int(self.scroll_offset.y) * size
        count = min(self._nbytes - first, (self.size.height + 1) * size)
        if self._cached[0] == first and len(self._cached[1]) >= count:
            return self._cached
        data, trouble = b"", ""
        if self._source is not None and count > 0:
            try:
                data = self._source.read_at(self._start + first, count)
            except QuantscopeError as problem:
                trouble = problem.message
        self._cached = (first, data, trouble)
        return self._cached

    def render_line(self, y: int) -> Strip:
        """One line of bytes."""
        size, width = self.line_bytes, self.size.width
        first, data, trouble = self._page()
        if trouble:
            text = f" {trouble}" if y == 0 else ""
            return self.paint([Span(text, "broken")], width)
        begin = (int(self.scroll_offset.y) + y) * size
        piece = data[begin - first : begin - first + size]
        if not piece:
            return Strip.blank(width, self.rich_style)
        spans = [Span(fit(f" {self._start + begin:x}", 12), "dim")]
        at = self.cursor - begin
        for i, byte in enumerate(piece):
            here = i == at
            gap = "[" if here else "]" if i == at + 1 and at >= 0 else " "
            spans.append(Span(gap, "cursor" if gap != " " else "plain"))
            spans.append(Span(f"{byte:02x}", "cursor" if here else byte_tone(byte)))
        spans.append(Span("]" if at == len(piece) - 1 else " ", "plain"))
        spans.append(Span("   " * (size - len(piece)) + " "))
        spans.append(Span("".join(printable(byte) for byte in piece), "dim"))
        return self.paint(spans, width)

    def explain(self) -> tuple[str, ...]:
        """Where the byte lies."""
        if self._source is None:
            return ()
        return (
            f"{self._source.name}: byte {offset_words(self.byte_offset)} ({self.byte_offset})",
            f"shown: {self._nbytes} bytes from {offset_words(self._start)}",
            "read as it is painted, at most one screen at a time",
        )

    def copy_text(self) -> str:
        """The line under the cursor as hex."""
        first, data, _ = self._page()
        begin = self.cursor // self.line_bytes * self.line_bytes - first
        return data[max(0, begin) : begin + self.line_bytes].hex(" ")

    def watch_cursor(self) -> None:
        """Keep the cursor visible."""
        if self.is_mounted:
            self._reveal()
            self.refresh()

    def _reveal(self) -> None:
        line = self.cursor // self.line_bytes
        self.scroll_to_region(Region(0, line, 1, 1), animate=False, immediate=True, force=True)

    def _go(self, cursor: int) -> None:
        self.cursor = max(0, min(max(0, self._nbytes - 1), cursor))

    def action_left(self) -> None:
        """One byte back."""
        self._go(self.cursor - 1)

    def action_right(self) -> None:
        """One byte on."""
        self._go(self.cursor + 1)

    def action_up(self) -> None:
        """One line up."""
        self._go(self.cursor - self.line_bytes)

    def action_down(self) -> None:
        """One line down."""
        self._go(self.cursor + self.line_bytes)

    def action_page_up(self) -> None:
        """One page up."""
        self._go(self.cursor - self.line_bytes * max(1, self.size.height - 1))

    def action_page_down(self) -> None:
        """One page down."""
        self._go(self.cursor + self.line_bytes * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """First byte."""
        self._go(0)

    def action_last(self) -> None:
        """Last byte."""
        self._go(self._nbytes - 1)


def byte_tone(byte: int) -> str:
    """Tone of a byte by its kind: zero, all ones, text, other."""
    if byte == 0:
        return "dim"
    return "strong" if byte == 0xFF else "plain"


def printable(byte: int) -> str:
    """A character for a byte, legible without colour: 0 `0`, space `_`, control `.`, high `x`."""
    if byte == 0:
        return "0"
    if byte == 0x20:
        return "_"
    if byte < 0x20 or byte == 0x7F:
        return "."
    return chr(byte) if byte < 0x80 else "x"
