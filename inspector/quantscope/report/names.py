"""Long lists of tensor names as number ranges, and back."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal

Form = Literal["literal", "ranges"]

RANGES_FROM = 512
"""Lists of at least this many names are written as ranges; shorter ones name by name."""

_NUMBER = re.compile(r"(?<![^.])(0|[1-9][0-9]{0,8})(?![^.])")
_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


def fold_names(names: Sequence[str], least: int = RANGES_FROM) -> tuple[list[str], Form]:
    """Names as they are, or as patterns in which `{a..b}` stands for every number from a to b.

    Only whole dotted parts become ranges. A list in which any name holds `{` stays literal, so that the
    form says without doubt what a brace means.
    """
    if len(names) < least or len(set(names)) != len(names) or any("{" in name for name in names):
        return list(names), "literal"
    by_template: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for name in names:
        numbers = tuple(int(number) for number in _NUMBER.findall(name))
        by_template[_NUMBER.sub("{}", name)].append(numbers)
    folded: list[str] = []
    for template, rows in by_template.items():
        folded.extend(_filled(template, box) for box in _boxes(rows))
    if len(folded) >= len(names):
        return list(names), "literal"
    return sorted(folded), "ranges"


def expand_names(names: Sequence[str], form: Form) -> Iterator[str]:
    """Every single name of a folded list."""
    if form == "literal":
        yield from names
        return
    for name in names:
        pieces = _RANGE.split(name)
        texts, lows, highs = pieces[0::3], pieces[1::3], pieces[2::3]
        runs = [range(int(a), int(b) + 1) for a, b in zip(lows, highs, strict=True)]
        for numbers in itertools.product(*runs):
            filled = texts[0]
            for number, text in zip(numbers, texts[1:], strict=True):
                filled += f"{number}{text}"
            yield filled


Box = tuple[tuple[int, int], ...]


def _boxes(rows: list[tuple[int, ...]]) -> list[Box]:
    """Number tuples as boxes of ranges: neighbours are joined along the last axis first."""
    boxes: list[Box] = [tuple((n, n) for n in row) for row in rows]
    width = len(rows[0]) if rows else 0
    for axis in reversed(range(width)):
        groups: dict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        for box in boxes:
            groups[(box[:axis], box[axis + 1 :])].append(box[axis])
        boxes = []
        for (before, after), runs in groups.items():
            boxes.extend((*before, run, *after) for run in _joined(runs))  # type: ignore[misc]
    return boxes


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(runs):
        if joined and joined[-1][1] + 1 == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def _filled(template: str, box: Box) -> str:
    texts = template.split("{}")
    filled = texts[0]
    for (low, high), text in zip(box, texts[1:], strict=True):
        filled += (str(low) if low == high else f"{{{low}..{high}}}") + text
    return filled
