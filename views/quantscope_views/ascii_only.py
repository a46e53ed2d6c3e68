"""Screens in plain ASCII: for terminals that say so, and for locales that cannot encode anything else."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from rich.segment import Segment, Segments
from textual.color import Color
from textual.filter import LineFilter
from textual.scrollbar import ScrollBarRender

GLYPHS = str.maketrans(
    {
        **dict.fromkeys("▔─━═╌╍┄┅┈┉╴╶╸╺", "-"),
        **dict.fromkeys("│┃║╎╏┆┇┊┋╵╷╹╻▌▐▎▏▍▊▋▉", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╔╗╚╝┏┓┗┛╞╡╤╧╪", "+"),
        **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True)),
        **dict(zip("←→↑↓▲▼▶◀", "<>^v^v><", strict=True)),
        **dict(zip("…·•×≠✓✔", "~..x#vv", strict=True)),
        "🔎": "> ",
        **dict(zip("‘’“”–—", "''\"\"--", strict=True)),
    }
)
"""ASCII for every glyph that this program or its toolkit draws, cell by cell."""

COERCED = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})
"""What CPython sets LC_CTYPE to where the locale is C (PEP 538)."""


def ascii_text(text: str) -> str:
    """A text in ASCII: known glyphs by their stand-ins, every other character as a visible escape."""
    if text.isascii():
        return text
    return "".join(
        char if char.isascii() else f"\\u{{{ord(char):x}}}" for char in text.translate(GLYPHS)
    )


def ascii_padded(text: str) -> str:
    """As `ascii_text`; padding at the end gives way to what escapes take more."""
    if text.isascii():
        return text
    escaped = ascii_text(text)
    bare = escaped.rstrip(" ")
    return bare + " " * max(0, cell_len(text) - len(bare))


class AsciiFilter(LineFilter):
    """The last gate: whatever is drawn, by whichever widget, is one ASCII character a cell."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Segments of the same widths in ASCII; `?` for a character without a stand-in."""
        return [
            segment
            if segment.text.isascii()
            else Segment(_cells(segment.text), segment.style, segment.control)
            for segment in segments
        ]


ASCII_FILTER = AsciiFilter()
"""One for all, so that strips that were filtered once are found again."""


def _cells(text: str) -> str:
    return "".join(
        char if char.isascii() else "?" * cell_len(char) for char in text.translate(GLYPHS)
    )


class AsciiScrollBar(ScrollBarRender):
    """A scrollbar whose thumb is seen without colour and without block characters."""

    VERTICAL_BARS = [" "] * 8
    HORIZONTAL_BARS = [" "] * 8

    @classmethod
    def render_bar(cls, *args: Any, **options: Any) -> Segments:
        """The bar with its thumb as `#`."""
        drawn = super().render_bar(*args, **options)
        segments = [
            Segment("#" * len(part.text), part.style)
            if part.style is not None and part.style.meta.get("@mouse.down") == "grab"
            else part
            for part in drawn.segments
        ]
        return Segments(segments, new_lines=drawn.new_lines)


def wants_ascii(
    asked: bool,
    encoding: str | None,
    environ: Mapping[str, str] | None = None,
    utf8_mode: bool = False,
) -> bool:
    """Whether screens must be ASCII: asked for, or terminal or locale cannot encode UTF-8.

    Args:
        asked: a person asked for it.
        encoding: encoding of the stream that the terminal is on.
        environ: where the locale is named; without a name in it the stream alone decides.
        utf8_mode: whether CPython runs in UTF-8 mode: under a C locale it says UTF-8 of every stream.
    """
    if asked or not _is_utf8(encoding or "ascii"):
        return True
    named = _locale_of(environ or {}, utf8_mode)
    if named in ("C", "POSIX"):
        return True
    codeset = named.partition(".")[2].partition("@")[0]
    return bool(codeset) and not _is_utf8(codeset)


def _locale_of(environ: Mapping[str, str], utf8_mode: bool) -> str:
    """The locale for characters, as POSIX looks it up; what CPython put there itself says nothing."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environ.get(name, "")
        if value and not (name == "LC_CTYPE" and utf8_mode and value in COERCED):
            return value
    return ""


def _is_utf8(encoding: str) -> bool:
    try:
        return codecs.lookup(encoding).name == "utf-8"
    except LookupError:
        return False
