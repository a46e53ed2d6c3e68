"""Styled lines as plain values: what presenters make and line widgets paint.

A tone is a name from `TONES`; themes and style sheets give it colours. No text here is ever markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from quantscope.text import inert
from rich.cells import cell_len, chop_cells, set_cell_size

from quantscope_views.place import Place

TONES: tuple[str, ...] = (
    "plain",
    "dim",
    "strong",
    "head",
    "rule",
    "broken",
    "contradicts",
    "check",
    "note",
    "agrees",
    "key",
    "lit",
    "cursor",
    "cursor-word",
    "banner",
    "bar",
    "number",
)
"""Every tone; `themes.TONE_STYLES` gives all but `plain` their colours."""


class Span(NamedTuple):
    """A run of text in one tone."""

    text: str
    tone: str = "plain"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a pane.

    `about` answers "how do I know": sentences on the numbers of this line. `target` is where Enter leads,
    `action` the id of an action that it runs instead, `key` what the action is about.
    """

    spans: tuple[Span, ...]
    about: tuple[str, ...] = ()
    target: Place | None = None
    action: str = ""
    key: str = ""

    @property
    def text(self) -> str:
        """The line without tones."""
        return "".join(span.text for span in self.spans)


Piece = str | tuple[str, str]


def line(
    *pieces: Piece, about: Iterable[str] = (), target: Place | None = None, action: str = ""
) -> Line:
    """A line of plain strings and (text, tone) pairs."""
    spans = tuple(Span(p) if isinstance(p, str) else Span(p[0], p[1]) for p in pieces)
    return Line(spans=spans, about=tuple(about), target=target, action=action)


def rule(title: str, width: int, tail: str = "", mark: str = "-") -> Line:
    """A horizontal rule with a title in it and an optional tail at the right."""
    left = f"{mark} {title} " if title else ""
    right = f" {tail} {mark}" if tail else ""
    gap = max(0, width - cell_len(left) - cell_len(right))
    return line((left + mark * gap + right, "rule"))


def cells(text: str) -> int:
    """Width of a text in terminal cells."""
    return cell_len(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Text padded or cropped to exactly `width` cells."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, max(0, width))
    pad = " " * (width - size)
    return pad + text if right else text + pad


def cut_middle(text: str, width: int, mark: str = "…") -> str:
    """Text of at most `width` cells with its middle cut out; the end, which differs most, is kept longer."""
    if cell_len(text) <= width:
        return text
    if width <= cell_len(mark):
        return set_cell_size(mark, max(0, width))
    keep = width - cell_len(mark)
    tail_width = keep * 2 // 3
    head = set_cell_size(text, keep - tail_width).rstrip()
    tail = _last_cells(text, tail_width)
    return head + mark + tail


def cut_end(text: str, width: int, mark: str = "…") -> str:
    """Text of at most `width` cells with its end cut off; for sentences and numbers."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - cell_len(mark))).rstrip() + mark


def _last_cells(text: str, width: int) -> str:
    if text.isascii():
        return text[len(text) - width :]
    kept: list[str] = []
    used = 0
    for char in reversed(text):
        size = cell_len(char)
        if used + size > width:
            break
        kept.append(char)
        used += size
    return "".join(reversed(kept))


def shown_name(name: str, width: int) -> str:
    """A name from a checkpoint: inert, cut in the middle to `width` cells."""
    if len(name) > 4096:
        name = name[:2048] + "…" + name[-2048:]
    return cut_middle(inert(name), width)


def brief_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Names of a column told apart in `width` cells: those too long lose the parts that they all have in common.

    A mark stands for what was left out: `…0.self_attn.q_proj` for `model.layers.0.self_attn.q_proj.weight`.
    """
    long = [name for name in dict.fromkeys(names) if cell_len(name) > width]
    parts = [name.split(".") for name in long]
    if len(parts) < 2 or min(map(len, parts)) < 2:
        return {}
    most = min(map(len, parts)) - 1
    lead = _in_common([p[:most] for p in parts])
    tail = _in_common([p[lead:][::-1][: most - lead] for p in parts])
    front, back = ("…", "") if lead else ("", "…" if tail else "")
    return {
        name: front + ".".join(p[lead : len(p) - tail]) + back
        for name, p in zip(long, parts, strict=True)
    }


def _in_common(parts: Sequence[Sequence[str]]) -> int:
    """How many first parts are the same in all."""
    for place, column in enumerate(zip(*parts, strict=False)):
        if len(set(column)) > 1:
            return place
    return min(map(len, parts))


def wrap(text: str, width: int) -> list[str]:
    """Text folded at spaces into lines of at most `width` cells; a longer word is chopped."""
    width = max(1, width)
    lines: list[str] = []
    current = ""
    for word in text.split(" "):
        joined = f"{current} {word}" if current else word
        if cell_len(joined) <= width:
            current = joined
            continue
        if current:
            lines.append(current)
        pieces = chop_cells(word, width) if cell_len(word) > width else [word]
        lines.extend(pieces[:-1])
        current = pieces[-1] if pieces else ""
    lines.append(current)
    return lines


def labelled(
    label: str,
    text: str,
    width: int,
    *,
    indent: int = 11,
    tone: str = "plain",
    about: Iterable[str] = (),
    target: Place | None = None,
) -> list[Line]:
    """A label in the left margin and text wrapped beside it."""
    about = tuple(about)
    body = wrap(inert(text), width - indent)
    return [
        Line(
            spans=(Span(fit(f" {label}" if i == 0 else "", indent), "head"), Span(piece, tone)),
            about=about,
            target=target,
        )
        for i, piece in enumerate(body)
    ]


def side_by_side(left: Sequence[Line], right: Sequence[Line], left_width: int) -> list[Line]:
    """Two blocks of lines beside each other; explanations of both are joined."""
    result = []
    for i in range(max(len(left), len(right))):
        spans: list[Span] = []
        used = 0
        about: tuple[str, ...] = ()
        target = None
        if i < len(left):
            spans.extend(left[i].spans)
            used = cell_len(left[i].text)
            about, target = left[i].about, left[i].target
        spans.append(Span(" " * max(0, left_width - used)))
        if i < len(right):
            spans.extend(right[i].spans)
            about, target = about + right[i].about, target or right[i].target
        result.append(Line(spans=tuple(spans), about=about, target=target))
    return result
