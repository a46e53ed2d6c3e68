"""Text from a checkpoint made harmless in Markdown and HTML."""

from __future__ import annotations

import html
import re

from quantscope.text import cut_middle, inert

MAX_CODE = 200
MAX_PROSE = 600

_SPECIAL = re.compile(r"([\\`*{}\[\]!|<>~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|(?<!\S)#)")
"""What can be markup: an underscore inside a word and a hash inside a path cannot (CommonMark 0.31, 6.2 and 4.2)."""
_BLOCK_START = re.compile(r"[-+=]|\d+[.)]")
_PINGS = re.compile(r"[@]|#\d|\bGH-\d|https?:|www\.", re.IGNORECASE)
_COMMAND = re.compile(r"(`quantscope [a-z]+`)")
"""A command of this tool, written as code in the tool's own sentences."""
_FENCES = re.compile(r"`+")


def code(text: str, limit: int = MAX_CODE) -> str:
    """A code span that nothing inside can end."""
    return _span(cut_middle(inert(text), limit))


def cell(text: str, limit: int = MAX_CODE) -> str:
    """A code span for a table cell: pipes, on which tables are split, as visible escapes."""
    return _span(cut_middle(inert(text), limit).replace("|", "\\u{7c}"))


def _span(shown: str) -> str:
    if not shown.strip():
        return "` `"
    longest = max((len(run) for run in _FENCES.findall(shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def prose(text: str, limit: int = MAX_PROSE) -> str:
    """Running text; what could ping, link or be markup is escaped, or shown as code where it cannot be."""
    shown = cut_middle(inert(text), limit)
    if _PINGS.search(shown) or _BLOCK_START.match(shown):
        return code(shown, limit)
    pieces = _COMMAND.split(shown)
    return "".join(p if i % 2 else _SPECIAL.sub(r"\\\1", p) for i, p in enumerate(pieces))


def plain_html(text: str, limit: int = MAX_PROSE) -> str:
    """Text for an HTML element or a quoted attribute."""
    return html.escape(cut_middle(inert(text), limit), quote=True)
