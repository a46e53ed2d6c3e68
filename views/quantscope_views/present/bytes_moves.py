"""Where the cursor of the Bytes tab goes: by code, line, word, group, row; pure arithmetic on addresses."""

from __future__ import annotations

from quantscope.model import Reading

from quantscope_views.present.bytes_group import group_start, scattered_start
from quantscope_views.present.bytes_layout import Hit, LayoutMap
from quantscope_views.present.bytes_model import BytesPage

SEARCH_BYTES = (16, 256, 4096)
"""How far around the cursor the next code is looked for."""

Position = tuple[int, int]


def next_code(page: BytesPage, delta: int) -> Position:
    """The code before or after in the order of bytes and bits."""
    layout = page.layout
    if layout is None:
        return _along_row(page, delta)
    here = (layout.address(page.row, page.col), page.row, page.col)
    byte = here[0] // 8
    for reach in SEARCH_BYTES:
        first = byte if delta > 0 else max(0, byte - reach)
        hits = [h for h in layout.hits(first, reach + 1) if h.piece == 0]
        keys = [(h.address, h.row, h.col) for h in hits]
        if delta > 0:
            later = [key for key in keys if key > here]
            if later:
                return min(later)[1:]
        else:
            earlier = [key for key in keys if key < here]
            if earlier:
                return max(earlier)[1:]
    return page.row, page.col


def next_line(page: BytesPage, delta: int) -> Position:
    """The code at the same place of a line above or below."""
    layout = page.layout
    if layout is None or not page.line_stride:
        return _clamped(page, page.row + delta, page.col)
    address = layout.address(page.row, page.col)
    for lines in range(1, 9):
        target = address + delta * lines * page.line_stride * 8
        if target < 0:
            break
        found = _nearest(layout, target)
        if found is not None and (found.row, found.col) != (page.row, page.col):
            return found.row, found.col
    return page.row, page.col


def _nearest(layout: LayoutMap, address: int) -> Hit | None:
    hits = [h for h in layout.hits(max(0, address // 8 - 1), 3) if h.piece == 0]
    return min(hits, key=lambda h: (abs(h.address - address), h.row, h.col)) if hits else None


def next_word(page: BytesPage, delta: int) -> Position:
    """The first code of the stored word before or after."""
    layout = page.layout
    if layout is None or not page.bits:
        return _along_row(page, delta)
    span = page.bits[0]
    start, stop = span.byte_offset, span.byte_offset + span.nbytes
    for reach in SEARCH_BYTES:
        if delta > 0:
            hits = [h for h in layout.hits(stop, reach) if h.piece == 0 and h.address >= stop * 8]
        else:
            first = max(0, start - reach)
            hits = [
                h
                for h in layout.hits(first, start - first)
                if h.piece == 0 and (start - span.nbytes) * 8 <= h.address < start * 8
            ]
        if hits:
            best = min(hits, key=lambda h: h.address)
            return best.row, best.col
    return page.row, page.col


def next_group(page: BytesPage, reading: Reading, delta: int) -> Position:
    """The first element of the next or previous group."""
    if page.group.scattered is not None:
        return scattered_start(page.group, page.shape[0], page.row, delta)
    return group_start(reading, page.row, page.col, delta)


def next_row(page: BytesPage, delta: int) -> Position:
    """The same column of the next or previous row."""
    return _clamped(page, page.row + delta, page.col)


def row_end(page: BytesPage, last: bool) -> Position:
    """The first or last element of the row."""
    return page.row, page.shape[1] - 1 if last else 0


def _along_row(page: BytesPage, delta: int) -> Position:
    n_rows, n_cols = page.shape
    flat = max(0, min(n_rows * n_cols - 1, page.row * n_cols + page.col + delta))
    return divmod(flat, n_cols)


def _clamped(page: BytesPage, row: int, col: int) -> Position:
    n_rows, n_cols = page.shape
    return max(0, min(n_rows - 1, row)), max(0, min(n_cols - 1, col))
