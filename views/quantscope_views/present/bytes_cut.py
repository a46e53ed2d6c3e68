"""How the bytes around an element are cut into lines: rows of a plane, runs, or fields of a struct."""

from __future__ import annotations

import msgspec
from quantscope.model import BitSpan, Cell, LogicalTensor, Plane, Reading

from quantscope_views.present.bytes_layout import LayoutMap
from quantscope_views.present.bytes_model import PageRequest


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """How the bytes around the cursor are cut into lines: (label, first byte, bytes, meaning)."""

    kind: str
    title: str
    file_id: int
    stride: int
    lines: tuple[tuple[str, int, int, str], ...]
    columns: tuple[int, int] = (0, 0)
    """In a grid: first byte and one past the last of the cursor's word, within a line."""


def cut_lines(
    tensor: LogicalTensor,
    reading: Reading,
    cell: Cell,
    layout: LayoutMap | None,
    wanted: PageRequest,
) -> Cut:
    """Cut the bytes around an element: by struct where planes are fields, along rows or down columns."""
    span = cell.bits[0]
    plane = plane_at(tensor, span)
    if plane is not None and plane.spans[0].count > 1:
        return _cut_struct(tensor, plane, span, wanted)
    if plane is None:
        start = max(0, span.byte_offset - wanted.line_bytes)
        lines = (("", start, wanted.line_bytes * 2, ""),)
        return Cut(
            kind="bare", title="", file_id=span.file_id, stride=wanted.line_bytes, lines=lines
        )
    row_bytes = _row_bytes(plane)
    title = f"{plane.suffix} {plane.dtype} {list(plane.shape)}"
    in_rows = (
        layout is None or layout.row_bits() <= 4 * max(8, reading.bit_width) * reading.shape[-1]
    )
    if len(plane.shape) >= 2 and row_bytes and not in_rows:
        return _cut_grid(plane, span, row_bytes, title, wanted)
    return _cut_flat(plane, span, row_bytes, title, wanted)


def plane_at(tensor: LogicalTensor, span: BitSpan) -> Plane | None:
    """The plane, or field of a block struct, that holds a span."""
    for plane in tensor.planes:
        run = plane.spans[0]
        inside = span.byte_offset - run.byte_offset
        if plane.file_id != span.file_id or inside < 0:
            continue
        if run.count == 1 and inside < run.nbytes:
            return plane
        in_blocks = run.count > 1 and inside < run.stride_bytes * run.count
        if in_blocks and inside % run.stride_bytes < run.nbytes:
            return plane
    return None


def _row_bytes(plane: Plane) -> int:
    rows = 1
    for extent in plane.shape[:-1]:
        rows *= extent
    return plane.nbytes // rows if rows else 0


def _cut_grid(plane: Plane, span: BitSpan, row_bytes: int, title: str, wanted: PageRequest) -> Cut:
    """Neighbouring rows of the plane, each at the columns around the cursor's word."""
    start = plane.byte_offset
    row, column = divmod(span.byte_offset - start, row_bytes)
    n_rows = plane.nbytes // row_bytes
    width = min(wanted.line_bytes, row_bytes)
    left = min(column // width * width, row_bytes - width)
    if not left <= column <= left + width - span.nbytes:
        left = min(column, row_bytes - width)
    top = max(0, min(row - wanted.height // 3, n_rows - wanted.height))
    lines = tuple(
        ("", start + r * row_bytes + left, width, "")
        for r in range(top, min(n_rows, top + wanted.height))
    )
    return Cut(
        kind="grid",
        title=title,
        file_id=span.file_id,
        stride=row_bytes,
        lines=lines,
        columns=(column - left, column - left + span.nbytes),
    )


def _cut_flat(plane: Plane, span: BitSpan, row_bytes: int, title: str, wanted: PageRequest) -> Cut:
    """Consecutive bytes, lines beginning where rows of the plane begin."""
    start, size = plane.byte_offset, wanted.line_bytes
    period = row_bytes if row_bytes >= size and row_bytes % size else size
    inside = span.byte_offset - start
    per_period = -(-period // size)

    def line_at(number: int) -> tuple[str, int, int, str] | None:
        block, part = divmod(number, per_period)
        first = block * period + part * size
        last = min(first + size, (block + 1) * period, plane.nbytes)
        return ("", start + first, last - first, "") if 0 <= first < last else None

    current = inside // period * per_period + inside % period // size
    top = max(0, current - wanted.height // 3)
    found = [line_at(number) for number in range(top, top + wanted.height)]
    lines = tuple(line for line in found if line is not None)
    return Cut(kind="flat", title=title, file_id=span.file_id, stride=size, lines=lines)


def _cut_struct(tensor: LogicalTensor, plane: Plane, span: BitSpan, wanted: PageRequest) -> Cut:
    """Blocks of a struct, field by field, the cursor's block first unless more fit."""
    run = plane.spans[0]
    stride = run.stride_bytes
    fields = sorted(
        (p for p in tensor.planes if p.spans[0].count > 1 and p.spans[0].stride_bytes == stride),
        key=lambda p: p.byte_offset,
    )
    base = fields[0].byte_offset
    block = (span.byte_offset - base) // stride
    size = wanted.line_bytes
    per_block = sum(-(-p.spans[0].nbytes // size) for p in fields)
    blocks = max(1, wanted.height // max(1, per_block))
    first = max(0, min(block - (blocks - 1) // 3, run.count - blocks))
    lines: list[tuple[str, int, int, str]] = []
    for number in range(first, min(run.count, first + blocks)):
        for field in fields:
            begin = base + number * stride + (field.byte_offset - base)
            nbytes = field.spans[0].nbytes
            for part in range(0, nbytes, size):
                label = f"{field.suffix}" if part == 0 else ""
                meaning = f"{field.dtype}" if field.role != "codes" else ""
                lines.append((label, begin + part, min(size, nbytes - part), meaning))
    if len(lines) > wanted.height:
        at = next((i for i, (_, s, n, _) in enumerate(lines) if s <= span.byte_offset < s + n), 0)
        top = max(0, min(at - wanted.height // 2, len(lines) - wanted.height))
        lines = lines[top : top + wanted.height]
    title = f"{tensor.fact('type') or plane.stored_name} block {block} of {run.count}"
    return Cut(kind="struct", title=title, file_id=span.file_id, stride=size, lines=tuple(lines))
