"""Plain tables for stdout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantscope.text import inert


def columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Left-aligned columns under a head, every cell inert."""
    cells = [[inert(str(cell)) for cell in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(head)]
    for row in ([*head], *cells):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def tsv(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Tab-separated values; tabs and line breaks inside cells become visible escapes."""
    yield "\t".join(head)
    for row in rows:
        yield "\t".join(inert("" if cell is None else str(cell)) for cell in row)
