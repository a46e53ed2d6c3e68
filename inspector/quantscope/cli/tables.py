"""Plain tables for stdout."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from quantscope.text import cut_middle, inert

LEAST = 12
"""A column is never cut to fewer characters."""
WIDTH = 80


def terminal_columns() -> int | None:
    """Columns of the terminal; None where stdout is none, and nothing may be cut."""
    if not sys.stdout.isatty():
        return None
    return max(60, shutil.get_terminal_size((WIDTH, 24)).columns)


def columns(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    width: int | None = None,
    first: Sequence[int] = (),
) -> Iterator[str]:
    """Left-aligned columns under a head, every cell inert.

    Args:
        head: names of the columns.
        rows: their cells.
        width: cut columns in the middle until a line fits, the widest first; None cuts nothing.
        first: columns to cut before the widest.
    """
    cells = [[inert(str(cell)) for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(head)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        wide = [i for i in first if widths[i] > LEAST]
        widest = wide[0] if wide else max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    for row in ([*head], *cells):
        shown = (cut_middle(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True))
        yield "  ".join(shown).rstrip()


def wrapped(
    head: Sequence[str], rows: Sequence[Sequence[object]], width: int = WIDTH
) -> Iterator[str]:
    """As `columns`, the last column wrapped below itself instead of running past the width."""
    first = [row[:-1] for row in rows]
    lines = list(columns(head[:-1], first))
    start = max(len(line) for line in lines) + 2
    last = [head[-1], *(inert(str(row[-1])) for row in rows)]
    for line, text in zip(lines, last, strict=True):
        pieces = textwrap.wrap(text, max(LEAST, width - start), break_long_words=False) or [""]
        yield f"{line:<{start}}{pieces[0]}".rstrip()
        yield from (" " * start + piece for piece in pieces[1:])


def folded(lines: Iterable[str], labels: Sequence[int], width: int | None = None) -> Iterator[str]:
    """Lines wrapped to a width; a word that is longer than that is never broken.

    Args:
        lines: lines, the first columns of some of them labels of fixed width.
        labels: positions after those labels; a line with a space before each goes on below the last.
        width: columns; those of the terminal by default.
    """
    width = width or terminal_columns() or WIDTH
    for line in lines:
        has_labels = bool(labels) and all(line[at - 1 : at] == " " for at in labels)
        hang = labels[-1] if has_labels else len(line) - len(line.lstrip()) + 4
        yield from textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * hang,
            break_on_hyphens=False,
            break_long_words=False,
        ) or [""]


def tsv(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Tab-separated values; tabs and line breaks inside cells become visible escapes."""
    yield "\t".join(head)
    for row in rows:
        yield "\t".join(inert("" if cell is None else str(cell)) for cell in row)
