"""The group of an element: which elements share its finest scale."""

from __future__ import annotations

import msgspec
import numpy as np
from quantscope.decode.parts import Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.protocol import Family
from quantscope.model import LogicalTensor, Reading

MAX_GROUP_COLS = 16_384
"""Columns of a row-wide group that are looked at; the rest is said to be left out."""


MAX_GROUP_ELEMENTS = 1 << 20
"""Elements of a group that are read at most."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Elements under one scale: a rectangle, or scattered columns of one row."""

    rows: tuple[int, int]
    cols: tuple[int, int]
    words: str
    """`group 1 = in 128..255 of out 17`."""
    number: int = 0
    scattered: frozenset[int] | None = None
    """Columns of an act-order group; None for a rectangle."""
    firsts: tuple[int, ...] = ()
    """First column of every act-order group, in the order of their numbers."""
    flat: tuple[int, int] | None = None
    """Flat run over the row-major weight, with `row_length`."""
    row_length: int = 0
    cut: bool = False
    """Whether only part of the group is looked at."""

    def holds(self, row: int, col: int) -> bool:
        """Whether an element belongs to the group."""
        if self.flat is not None:
            return self.flat[0] <= row * self.row_length + col < self.flat[1]
        if not self.rows[0] <= row < self.rows[1]:
            return False
        if self.scattered is not None:
            return col in self.scattered
        return self.cols[0] <= col < self.cols[1]

    def window(self, shape: tuple[int, ...]) -> Window:
        """The rectangle of elements to read."""
        return Window(range(*self.rows), range(*self.cols))


def group_of(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    row: int,
    col: int,
    reader: PlaneReader,
) -> Group:
    """The group of an element under a reading; no more of it than can be looked at."""
    found = _group_of(family, tensor, reading, row, col, reader)
    rows, cols = found.rows[1] - found.rows[0], found.cols[1] - found.cols[0]
    if rows * cols <= MAX_GROUP_ELEMENTS:
        return found
    small = _row_group("channel", reading.shape[-1], row, col)
    return msgspec.structs.replace(small, words=f"{found.words}; shown: {small.words}", cut=True)


def _group_of(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    row: int,
    col: int,
    reader: PlaneReader,
) -> Group:
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    level = reading.group[0] if reading.group else None
    axis = level.axis if level is not None else "none"
    size = level.size if level is not None else None
    if axis == "in" and isinstance(size, int) and size > 0:
        if reading.order == "act_order" or tensor.plane("group_index") is not None:
            scattered = _act_order(tensor, reading, row, col, reader)
            if scattered is not None:
                return scattered
        number = col // size
        stop = min(n_cols, (number + 1) * size)
        words = f"group {number} = in {number * size}..{stop - 1} of out {row}"
        return Group(rows=(row, row + 1), cols=(number * size, stop), words=words, number=number)
    if axis == "block" and isinstance(size, tuple):
        top, left = row // size[0] * size[0], col // size[1] * size[1]
        bottom, right = min(n_rows, top + size[0]), min(n_cols, left + size[1])
        words = f"block out {top}..{bottom - 1}, in {left}..{right - 1}"
        return Group(rows=(top, bottom), cols=(left, right), words=words)
    if axis == "out" and isinstance(size, int) and size > 0:
        top = row // size * size
        bottom = min(n_rows, top + size)
        words = f"group {row // size} = out {top}..{bottom - 1} of in {col}"
        return Group(rows=(top, bottom), cols=(col, col + 1), words=words, number=row // size)
    if axis == "flat" and isinstance(size, int) and size > 0:
        return _flat_group(n_rows, n_cols, size, row, col)
    return _row_group(axis, n_cols, row, col)


def _row_group(axis: str, n_cols: int, row: int, col: int) -> Group:
    first = max(0, min(col - MAX_GROUP_COLS // 2, n_cols - MAX_GROUP_COLS))
    stop = min(n_cols, first + MAX_GROUP_COLS)
    cut = stop - first < n_cols
    what = "one scale for the tensor; shown: " if axis == "tensor" else ""
    words = f"{what}out {row}, in {first}..{stop - 1}"
    return Group(rows=(row, row + 1), cols=(first, stop), words=words, cut=cut or axis == "tensor")


def _flat_group(n_rows: int, n_cols: int, size: int, row: int, col: int) -> Group:
    number = (row * n_cols + col) // size
    first, stop = number * size, min(n_rows * n_cols, (number + 1) * size)
    top, bottom = first // n_cols, (stop - 1) // n_cols + 1
    cols = (first % n_cols, first % n_cols + stop - first) if bottom - top == 1 else (0, n_cols)
    return Group(
        rows=(top, bottom),
        cols=cols,
        words=f"group {number} = flat {first}..{stop - 1}",
        number=number,
        flat=(first, stop),
        row_length=n_cols,
    )


def _act_order(
    tensor: LogicalTensor, reading: Reading, row: int, col: int, reader: PlaneReader
) -> Group | None:
    """The scattered group of an act-order column; None where g_idx is natural or unusable."""
    plane = tensor.plane("group_index")
    if plane is None or len(plane.shape) != 1 or plane.shape[0] > 1 << 20:
        return None
    index = reader.read(plane)[0].astype(np.int64)
    if index.size <= col or (np.diff(index) >= 0).all():
        return None
    number = int(index[col])
    columns = np.nonzero(index == number)[0]
    shown = ", ".join(str(c) for c in columns[:3].tolist())
    numbers, firsts = np.unique(index, return_index=True)
    return Group(
        rows=(row, row + 1),
        cols=(int(columns[0]), int(columns[-1]) + 1),
        words=f"group {number} by g_idx = {columns.size} channels ({shown}, ...) of out {row}",
        number=int(np.searchsorted(numbers, number)),
        scattered=frozenset(columns.tolist()),
        firsts=tuple(firsts.tolist()),
    )


def scattered_start(group: Group, n_rows: int, row: int, delta: int) -> tuple[int, int]:
    """The first element of the act-order group `delta` groups on, within the tensor."""
    per_row = len(group.firsts)
    number = max(0, min(n_rows * per_row - 1, row * per_row + group.number + delta))
    return number // per_row, group.firsts[number % per_row]


def group_start(reading: Reading, row: int, col: int, delta: int) -> tuple[int, int]:
    """The first element of the group `delta` groups on, within the tensor."""
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    level = reading.group[0] if reading.group else None
    axis = level.axis if level is not None else "none"
    size = level.size if level is not None else None
    if axis == "in" and isinstance(size, int) and size > 0:
        per_row = -(-n_cols // size)
        number = row * per_row + col // size + delta
        number = max(0, min(n_rows * per_row - 1, number))
        return number // per_row, number % per_row * size
    if axis == "block" and isinstance(size, tuple):
        per_row = -(-n_cols // size[1])
        blocks = -(-n_rows // size[0]) * per_row
        number = row // size[0] * per_row + col // size[1] + delta
        number = max(0, min(blocks - 1, number))
        return number // per_row * size[0], number % per_row * size[1]
    if axis == "out" and isinstance(size, int) and size > 0:
        return max(0, min(n_rows - 1, (row // size + delta) * size)), col
    if axis == "flat" and isinstance(size, int) and size > 0:
        number = max(0, (row * n_cols + col) // size + delta) * size
        number = min(number, (n_rows * n_cols - 1) // size * size)
        return number // n_cols, number % n_cols
    return max(0, min(n_rows - 1, row + delta)), col
