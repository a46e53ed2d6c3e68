"""Strings from a checkpoint made safe to show: visible escapes, cut in the middle, measured in cells."""

from __future__ import annotations

import unicodedata

_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def inert(text: str) -> str:
    """Every control, format, surrogate and separator character but the space as a visible escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char == " ":
        return char
    category = unicodedata.category(char)
    if category[0] == "C" or category in ("Zl", "Zp") or char in _BIDI:
        code = ord(char)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{{{code:x}}}"
    return char


def cut_middle(text: str, width: int, mark: str = "…") -> str:
    """Text of at most `width` characters, with the middle cut out; the end, which differs most, is kept."""
    if len(text) <= width:
        return text
    if width <= len(mark):
        return mark[:width]
    keep = width - len(mark)
    tail = keep * 2 // 3
    return text[: keep - tail] + mark + text[len(text) - tail :]
