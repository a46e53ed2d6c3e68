"""Everything that the Bytes tab shows around one element: read, decoded and marked in one go.

Runs off the event loop. One bounded read a line of bytes, one window of parts for the group, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.window import window_parts
from quantscope.errors import QuantscopeError
from quantscope.families.protocol import Family
from quantscope.model import Cell, LogicalTensor, Reading
from quantscope.session.inspection import TensorState

from quantscope_views.present.bytes_cut import Cut, cut_lines
from quantscope_views.present.bytes_group import Group, group_of
from quantscope_views.present.bytes_layout import Hit, LayoutMap, learn, pieces_of
from quantscope_views.present.bytes_model import (
    CURSOR,
    LIT,
    PLAIN,
    WORD,
    ByteLine,
    BytesPage,
    CodeCell,
    PageRequest,
    mark_bits,
)
from quantscope_views.present.bytes_strips import strips_of, word_words
from quantscope_views.present.bytes_values import (
    code_text,
    finest_scale,
    group_facts,
    shown_value,
)
from quantscope_views.present.reading_choice import ReadingChoice

MAX_CODES_WINDOW = 1 << 18
"""Elements of the window that the codes beside the bytes are taken from at most."""


class PageReader:
    """Reads pages of one tensor; keeps the layout it has learnt.

    Args:
        checkpoint: the open checkpoint.
        state: the tensor.
        choice: reading shown and reading claimed.
        layout: a layout learnt before, for the same tensor and packing.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        state: TensorState,
        choice: ReadingChoice,
        layout: LayoutMap | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._state = state
        self._choice = choice
        self._layout = layout
        self._family: Family = checkpoint.family(state.tensor)

    def read(self, wanted: PageRequest, cancelled: Callable[[], bool] | None = None) -> BytesPage:
        """Read a page.

        Raises:
            CancelledError: a newer page is wanted.
            QuantscopeError: the element cannot be located or its bytes cannot be read.
        """
        reader = self._checkpoint.reader(cancelled=cancelled)
        tensor, reading = self._state.tensor, self._choice.shown
        n_rows, n_cols = reading.shape[-2], reading.shape[-1]
        row = max(0, min(wanted.row, n_rows - 1))
        col = max(0, min(wanted.col, n_cols - 1))
        big = tensor.planes[0].byte_order == "big"
        cell = self._family.locate(tensor, reading, row, col, reader)
        if self._layout is None:
            self._layout = learn(
                lambda r, c: self._family.locate(tensor, reading, r, c, reader),
                n_rows,
                n_cols,
                big_endian=big,
                cancelled=cancelled,
            )
        group = group_of(self._family, tensor, reading, row, col, reader)
        cut = cut_lines(tensor, reading, cell, self._layout, wanted)
        lines = self._lines(cut, cell, group, wanted, reader, big)
        return self._page(wanted, cell, row, col, group, cut, lines, reader, big)

    def _lines(
        self,
        cut: Cut,
        cell: Cell,
        group: Group,
        wanted: PageRequest,
        reader: PlaneReader,
        big: bool,
    ) -> list[ByteLine]:
        cursor = pieces_of(cell.bits, big)
        word = [(s.byte_offset, s.byte_offset + s.nbytes) for s in cell.bits]
        lines: list[ByteLine] = []
        for label, start, nbytes, meaning in cut.lines:
            data = reader.read_bytes("view", cut.file_id, start, nbytes)
            hits = self._layout.hits(start, nbytes) if self._layout is not None else []
            marks = bytearray(2 * nbytes)
            for low, high in word:
                for byte in range(max(low, start), min(high, start + nbytes)):
                    marks[2 * (byte - start)] = marks[2 * (byte - start) + 1] = WORD
            for hit in hits:
                if group.holds(hit.row, hit.col):
                    mark_bits(marks, start, nbytes, hit.address, hit.width, LIT)
            touched = [mark_bits(marks, start, nbytes, p.address, p.width, CURSOR) for p in cursor]
            own = tuple(h for h in hits if h.piece == 0 and h.address >= start * 8)
            lines.append(
                ByteLine(
                    label=label,
                    byte_offset=start,
                    data=data,
                    marks=bytes(marks),
                    hits=own,
                    meaning=meaning,
                    has_cursor=any(touched),
                )
            )
        return self._with_codes(lines, cut, cell, group, reader)

    def _with_codes(
        self,
        lines: list[ByteLine],
        cut: Cut,
        cell: Cell,
        group: Group,
        reader: PlaneReader,
    ) -> list[ByteLine]:
        """Codes beside each line: in a grid those of the cursor's word column, else those of the line."""
        chosen = [_beside(line, cut, cell) for line in lines]
        wanted = [hit for hits in chosen for hit in hits]
        codes = _codes_of(self._family, self._state.tensor, self._choice.shown, wanted, reader)
        result = []
        for line, hits in zip(lines, chosen, strict=True):
            cells = tuple(
                CodeCell(
                    row=hit.row,
                    col=hit.col,
                    text=codes[(hit.row, hit.col)],
                    mark=CURSOR
                    if (hit.row, hit.col) == (cell.row, cell.col)
                    else LIT
                    if group.holds(hit.row, hit.col)
                    else PLAIN,
                )
                for hit in hits
                if (hit.row, hit.col) in codes
            )
            label = _filled(line.label, hits, cell, cut)
            result.append(msgspec.structs.replace(line, codes=cells, label=label))
        return result

    def _page(
        self,
        wanted: PageRequest,
        cell: Cell,
        row: int,
        col: int,
        group: Group,
        cut: Cut,
        lines: list[ByteLine],
        reader: PlaneReader,
        big: bool,
    ) -> BytesPage:
        tensor, choice = self._state.tensor, self._choice
        error = ""
        shown = claimed = used = None
        facts = None
        try:
            window = group.window(choice.shown.shape)
            parts = window_parts(self._family, tensor, choice.shown, window, reader)
            facts = group_facts(parts, choice.shown, group, window, row, col)
            used = finest_scale(parts, (row - window.rows.start, col - window.cols.start))
            shown = shown_value(
                self._family, tensor, choice.shown, parts, window, group, row, col, reader
            )
            if choice.is_what_if:
                other = window_parts(self._family, tensor, choice.claimed, window, reader)
                claimed = shown_value(
                    self._family, tensor, choice.claimed, other, window, group, row, col, reader
                )
            else:
                claimed = shown
        except QuantscopeError as problem:
            error = problem.message
        n_rows, n_cols = choice.shown.shape[-2:]
        file = self._checkpoint.file(cut.file_id)
        return BytesPage(
            tensor=tensor.name,
            request=wanted,
            reading=choice.shown,
            row=row,
            col=col,
            shape=(n_rows, n_cols),
            kind=cut.kind,
            plane=cut.title,
            lines=tuple(lines),
            strips=tuple(
                msgspec.structs.replace(strip, file=self._checkpoint.file(strip.file_id).name)
                for strip in strips_of(tensor, choice.shown, cell, reader, used)
            ),
            file=file.name,
            bits=cell.bits,
            word=word_words(cell, reader, big),
            code=facts.code if facts is not None else "",
            group=group,
            shown=shown,
            claimed=claimed,
            declared=choice.declared,
            refused=choice.refused,
            histogram=facts.histogram if facts is not None else (),
            histogram_labels=facts.labels if facts is not None else (),
            group_count=facts.count if facts is not None else 0,
            end_codes=facts.end_codes if facts is not None else None,
            codes_title=_codes_title(lines, cell, cut),
            error=error,
            layout=self._layout,
            line_stride=cut.stride,
        )


def _beside(line: ByteLine, cut: Cut, cell: Cell) -> list[Hit]:
    """Codes shown at the right of a line, in order of row and column."""
    if cut.kind == "grid":
        low, high = cut.columns
        first = (line.byte_offset + low) * 8
        last = (line.byte_offset + high) * 8
        hits = [hit for hit in line.hits if first <= hit.address < last]
    else:
        rows = sorted({hit.row for hit in line.hits}, key=lambda r: abs(r - cell.row))
        hits = [hit for hit in line.hits if rows and hit.row == rows[0]]
    return sorted(set(hits), key=lambda hit: (hit.row, hit.col))


def _codes_of(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    wanted: list[Hit],
    reader: PlaneReader,
) -> dict[tuple[int, int], str]:
    """Text of every wanted code, from one window of parts."""
    if not wanted:
        return {}
    rows = range(min(h.row for h in wanted), max(h.row for h in wanted) + 1)
    cols = range(min(h.col for h in wanted), max(h.col for h in wanted) + 1)
    if len(rows) * len(cols) > MAX_CODES_WINDOW:
        return {}
    try:
        parts = window_parts(family, tensor, reading, Window(rows, cols), reader)
    except QuantscopeError:
        return {}
    codes = parts.codes
    return {
        (hit.row, hit.col): code_text(codes[hit.row - rows.start, hit.col - cols.start], parts)
        for hit in wanted
    }


def _filled(label: str, hits: list[Hit], cell: Cell, cut: Cut) -> str:
    """A line's label: the field, or the element that its codes begin with."""
    if cut.kind == "struct" and label:
        return label
    if not hits:
        return label
    first = hits[0]
    if cut.kind == "grid":
        same_row = all(hit.row == first.row for hit in hits)
        return str(first.col) if same_row else f"{first.col}"
    return f"{first.row},{first.col}" if first.row != cell.row else str(first.col)


def _codes_title(lines: list[ByteLine], cell: Cell, cut: Cut) -> str:
    line = next((line for line in lines if line.has_cursor and line.codes), None)
    if line is None:
        return ""
    rows = {code.row for code in line.codes}
    cols = sorted(code.col for code in line.codes)
    if len(rows) == 1:
        run = cols == list(range(cols[0], cols[0] + len(cols)))
        what = f"in +0..+{len(cols) - 1}" if run else f"in {cols[0]}.."
        return f"out {cell.row}, {what}"
    return f"out {min(rows)}..{max(rows)}"
