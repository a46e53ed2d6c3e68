"""Rows of the Tensors table as spans: flat or as a tree."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from quantscope.text import inert

from quantscope_views.lines import Span, cut_middle
from quantscope_views.marks import MATCH_MARKS, MATCH_ORDER, glyph
from quantscope_views.present.contract import field_about
from quantscope_views.present.tensor_table import ID_FIELDS, RowFacts, TensorTable
from quantscope_views.present.tensor_tree import TreeLine
from quantscope_views.present.words import shape_words, size_words


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One column: `width` cells, or the rest of the line where 0; hidden in tables under `least` cells."""

    key: str
    title: str
    width: int = 0
    right: bool = False
    least: int = 0


COLUMNS: tuple[Column, ...] = (
    Column(key="name", title="tensor"),
    Column(key="format", title="format", width=12),
    Column(key="shape", title="shape", width=16, least=100),
    Column(key="family", title="family", width=18, least=130),
    Column(key="bits", title="bits", width=5, right=True, least=72),
    Column(key="size", title="size", width=8, right=True, least=90),
    Column(key="contract", title="id", width=4),
    Column(key="match", title="match", width=13),
)


class FlatRows:
    """Tensors in a given order."""

    def __init__(self, table: TensorTable, order: NDArray[np.int64], ascii_only: bool) -> None:
        self._table = table
        self._order = order
        self._ascii = ascii_only

    def __len__(self) -> int:
        return len(self._order)

    @property
    def tensor_count(self) -> int:
        """Tensors shown."""
        return len(self._order)

    def facts(self, row: int) -> RowFacts:
        """Facts of a row."""
        return self._table.rows[int(self._order[row])]

    def tensor_name(self, row: int) -> str | None:
        """Name of the tensor of a row."""
        return self.facts(row).name if 0 <= row < len(self._order) else None

    def name(self, row: int) -> str:
        """Name for copying."""
        return self.facts(row).name

    def cells(self, row: int, columns: Sequence[Column]) -> list[Span]:
        """Spans of a row."""
        return [facts_cell(self.facts(row), column.key, self._ascii) for column in columns]

    def explain(self, row: int) -> tuple[str, ...]:
        """How a row's values are known."""
        return row_about(self.facts(row))


class TreeRows:
    """Visible lines of a tree."""

    def __init__(self, table: TensorTable, lines: Sequence[TreeLine], ascii_only: bool) -> None:
        self._table = table
        self.lines = lines
        self._ascii = ascii_only

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def tensor_count(self) -> int:
        """Tensors under all top branches."""
        return sum(found.count for found in self.lines if found.depth == 0)

    def tensor_name(self, row: int) -> str | None:
        """Name of the tensor of a line, None for a branch."""
        if not 0 <= row < len(self.lines) or self.lines[row].position < 0:
            return None
        return self._table.rows[self.lines[row].position].name

    def name(self, row: int) -> str:
        """Name for copying."""
        return self.tensor_name(row) or self.lines[row].label

    def cells(self, row: int, columns: Sequence[Column]) -> list[Span]:
        """Spans of a line."""
        found = self.lines[row]
        indent = "  " * min(found.depth, 12)
        if found.position >= 0:
            facts = self._table.rows[found.position]
            spans = [facts_cell(facts, column.key, self._ascii) for column in columns]
            return [
                Span(f"{indent}  {inert(found.label)}") if column.key == "name" else span
                for column, span in zip(columns, spans, strict=True)
            ]
        return [self._branch_cell(found, column.key, indent) for column in columns]

    def _branch_cell(self, found: TreeLine, key: str, indent: str) -> Span:
        if key == "name":
            mark = "-" if found.is_open else "+"
            counted = (
                str(found.total)
                if found.count == found.total
                else f"{found.count} of {found.total}"
            )
            label = cut_middle(inert(found.label), 48)
            return Span(f"{indent}{mark} {label}  ({counted})", "strong")
        if key == "size":
            return Span(size_words(found.nbytes), "number")
        if key == "match":
            mark_of = MATCH_MARKS[MATCH_ORDER[min(found.worst, len(MATCH_ORDER) - 1)]]
            return Span(f"{glyph(mark_of, self._ascii)} {mark_of.word}", mark_of.tone)
        return Span("")

    def explain(self, row: int) -> tuple[str, ...]:
        """How a line's values are known."""
        found = self.lines[row]
        if found.position >= 0:
            return row_about(self._table.rows[found.position])
        return (
            f"{found.label}: {found.count} of {found.total} tensors are left by the filter",
            f"{found.nbytes} stored bytes over these",
            "match: the worst of all tensors below",
        )


def facts_cell(facts: RowFacts, key: str, ascii_only: bool) -> Span:
    """One cell."""
    if key == "name":
        return Span(facts.name, "dim" if facts.kind == "plain" else "plain")
    if key == "format":
        words = f"{facts.format} {facts.group}" if facts.group not in ("", "-") else facts.format
        return Span(cut_middle(words, 12) if facts.format else "…")
    if key == "shape":
        return Span(cut_middle(shape_words(facts.shape), 16), "number")
    if key == "family":
        return Span(cut_middle(inert(facts.word), 18), "dim")
    if key == "bits":
        return Span(f"{facts.bits:.2f}" if facts.bits else "-", "number")
    if key == "size":
        return Span(size_words(facts.nbytes), "number")
    if key == "contract":
        return Span(facts.contract_id or "-", "dim")
    if facts.kind == "unrecognised":
        return Span("? unknown", "check")
    if facts.kind == "plain":
        return Span("- plain", "dim")
    mark = MATCH_MARKS[facts.match]
    return Span(f"{glyph(mark, ascii_only)} {mark.word}", mark.tone)


def row_about(facts: RowFacts) -> tuple[str, ...]:
    """How the numbers of a row are known."""
    lines = [
        f"{facts.name}",
        f"bits: {facts.nbytes} stored bytes of all its planes over {shape_words(facts.shape)}"
        f" = {facts.bits:.4f} bits a weight",
    ]
    if facts.kind != "quantized":
        return (*lines, f"{facts.kind}: no family claims this stored tensor")
    lines.append(
        f"id {facts.contract_id or '-'}: first four digits of a hash over {', '.join(ID_FIELDS)}"
        "; twins decode alike"
    )
    state = facts.state
    if state is None:
        return (*lines, "not examined yet")
    mark = MATCH_MARKS[facts.match]
    fields = f" ({', '.join(facts.disputed)})" if facts.disputed else ""
    lines.append(f"match: {mark.word}{fields}, the worst over all fields of the contract")
    for name in facts.disputed:
        if name in state.contract.fields:
            lines += field_about(state.contract[name])
    return tuple(lines)


def status_line(shown: int, total: int, *, examined: int, sort: str, members: int | None) -> str:
    """`14 of 20 tensors, by file order`."""
    order = "tree" if sort == "tree" else "by " + ("file order" if sort == "file" else sort)
    if members is not None:
        return f"{shown} of {members} members of a finding, {order}; backspace: all {total}"
    words = f"{shown} of {total} tensors" if shown != total else f"{total} tensors"
    words += f", {order}"
    if 0 < examined < total:
        words += f", {examined} with contract"
    return words
