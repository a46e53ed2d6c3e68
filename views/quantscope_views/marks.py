"""Marks of states: a glyph and a word each, with an ASCII set; colour comes third."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Mark(NamedTuple):
    """A glyph, its ASCII form, a word and a tone."""

    glyph: str
    ascii: str
    word: str
    tone: str


MATCH_MARKS: Mapping[str, Mark] = {
    "agree": Mark("✓", "ok", "agrees", "agrees"),
    "disagree": Mark("≠", "!=", "differs", "contradicts"),
    "declared_only": Mark("d", "d", "declared only", "plain"),
    "inferred_only": Mark("i", "i", "inferred only", "plain"),
    "ambiguous": Mark("?", "?", "ambiguous", "check"),
    "inexpressible": Mark("x", "x", "inexpressible", "check"),
    "not_applicable": Mark("-", "-", "n/a", "dim"),
    "not_checked": Mark("·", ".", "not checked", "dim"),
    "broken": Mark("!", "!", "broken", "broken"),
}
"""Match of one field, and `broken` where size equations do not hold."""

MATCH_ORDER: tuple[str, ...] = (
    "broken",
    "disagree",
    "ambiguous",
    "inexpressible",
    "inferred_only",
    "declared_only",
    "agree",
    "not_checked",
    "not_applicable",
)
"""Worst first: the match of a tensor is the worst of its fields."""

SEVERITY_MARKS: Mapping[str, Mark] = {
    "violation": Mark("!", "!", "BROKEN", "broken"),
    "disagreement": Mark("≠", "!=", "CONTRADICTS", "contradicts"),
    "warning": Mark("?", "?", "CHECK", "check"),
    "note": Mark("i", "i", "note", "note"),
}

CONVENTION_WORDS: Mapping[str, str] = {
    "as_is": "stored",
    "minus_one": "stored+1",
    "minus_one_unwrapped": "stored+1, no wrap",
    "minus_one_word_add": "stored+1, added to the word",
}
"""Zero conventions where there is room for one word; elsewhere the engine's own words stand."""


def glyph(mark: Mark, ascii_only: bool) -> str:
    """The glyph that the terminal can show."""
    return mark.ascii if ascii_only else mark.glyph
