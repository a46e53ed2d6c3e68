"""Pictures of counts in text: bars of a histogram, a number line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from quantscope_views.lines import Line, Span, fit

BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII_BLOCKS = " .:-=+*#@"


def bar_line(counts: Sequence[int], cell: int, ascii_only: bool, about: Iterable[str] = ()) -> Line:
    """One line of bars, one a bin, as high as its share of the largest."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    most = max(counts, default=0)
    spans = [Span(" ")]
    for count in counts:
        level = 0 if not most or not count else max(1, round(count / most * (len(blocks) - 1)))
        spans.append(Span(fit(blocks[level] * max(1, cell - 2), cell), "bar"))
    return Line(spans=tuple(spans), about=tuple(about))


def bin_labels(labels: Sequence[str], cell: int) -> str:
    """Names of bins, each where its bin begins; as many as stand apart, the first always."""
    step = 1
    while step < len(labels) and max(map(len, labels[::step])) >= step * cell:
        step *= 2
    return "".join(fit(label, step * cell) for label in labels[::step])


def count_text(number: int, cell: int) -> str:
    """A count that keeps its size in `cell` cells: `8533`, `23k`, `1M`; never a count cut short."""
    if len(str(number)) < cell:
        return str(number)
    for unit, words in ((1_000, "k"), (1_000_000, "M"), (1_000_000_000, "G")):
        text = f"{number / unit:.0f}{words}"
        if len(text) <= cell and number >= unit // 2:
            return text
    return str(number) if len(str(number)) <= cell else "+" * cell


def number_line(value: float | None, width: int, low: float, high: float, mark: str = "H") -> str:
    """A value as a mark on a line from `low` to `high`; beyond the ends an arrow."""
    cells = [" "] * width
    for step in range(round(low * 2), round(high * 2) + 1):
        at = round((step / 2 - low) / (high - low) * (width - 1))
        cells[at] = "|" if step == 0 else "."
    if value is not None and math.isfinite(value):
        if value < low:
            cells[0] = "<"
        elif value > high:
            cells[-1] = ">"
        else:
            cells[round((value - low) / (high - low) * (width - 1))] = mark
    return "".join(cells)


def scale_line(width: int, low: float, high: float) -> str:
    """Numbers over a number line, at every half step."""
    text = [" "] * (width + 6)
    for step in range(round(low * 2), round(high * 2) + 1):
        at = round((step / 2 - low) / (high - low) * (width - 1))
        label = f"{step / 2:+.1f}" if step else "0"
        start = max(0, at - len(label) // 2)
        text[start : start + len(label)] = list(label)
    return "".join(text).rstrip()
