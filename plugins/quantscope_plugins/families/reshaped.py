"""Weights stored as a reshaped matrix of groups, packed across its rows: HQQ, SINQ and optimum-quanto.

The weight [N, K] is flattened row by row and cut into a matrix of R rows and C columns: rows are groups
(axis 1: C = group size) or columns are (axis 0: R = group size). Codes of R / fields rows apart share a word.
Sources: dropbox/hqq, hqq/core/quantize.py and bitpack.py; huggingface/optimum-quanto,
optimum/quanto/tensor/packed.py and grouped.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
from quantscope.decode.parts import Array, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import ceil_div, element_span
from quantscope.model import BitSpan, GroupLevel, Plane


class ReshapedMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """How a weight of `shape` is reshaped, grouped and packed.

    `group_size` counts elements of a group; `groups_are` says whether a group is a row or a column of the
    reshaped matrix. `word_bits` and `bit_width` give the fields of a word; the first chunk of rows lies in
    the highest field where `high_first`.
    """

    shape: tuple[int, int]
    group_size: int
    groups_are: str
    bit_width: int
    word_bits: int
    high_first: bool

    @property
    def columns(self) -> int:
        """C."""
        n_groups = self.shape[0] * self.shape[1] // self.group_size
        return self.group_size if self.groups_are == "rows" else n_groups

    @property
    def rows(self) -> int:
        """R."""
        return self.shape[0] * self.shape[1] // max(1, self.columns)

    @property
    def fields(self) -> int:
        """Codes of a word."""
        return max(1, self.word_bits // self.bit_width)

    @property
    def stored_rows(self) -> int:
        """Rows of words: R / fields, rounded up."""
        return ceil_div(self.rows, self.fields)

    @property
    def level(self) -> GroupLevel:
        """The grouping in contract vocabulary."""
        n_out, n_in = self.shape
        if self.group_size == n_out * n_in:
            return GroupLevel(axis="tensor")
        if self.groups_are == "columns":
            return GroupLevel(axis="flat", size=self.group_size, stride=self.columns)
        if self.group_size == n_in:
            return GroupLevel(axis="channel")
        axis = "in" if n_in % self.group_size == 0 else "flat"
        return GroupLevel(axis=axis, size=self.group_size)  # type: ignore[arg-type]

    def codes(self, plane: Plane, window: Window, reader: PlaneReader) -> Array:
        """Codes [R, C] of a window of the weight, uint8."""
        n_in = self.shape[1]
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return np.zeros(window.shape, np.uint8)
        if len(cols) * 4 >= n_in:
            flat = self._run(plane, rows.start * n_in, rows.stop * n_in, reader)
            return flat.reshape(len(rows), n_in)[:, cols.start : cols.stop]
        pieces = [
            self._run(plane, row * n_in + cols.start, row * n_in + cols.stop, reader)
            for row in rows
        ]
        return np.stack(pieces)

    def _run(self, plane: Plane, start: int, stop: int, reader: PlaneReader) -> Array:
        """Codes of a run of the flattened weight."""
        columns = self.columns
        first_row, first = divmod(start, columns)
        last_row, last = divmod(stop - 1, columns)
        if first_row == last_row:
            return self._rows(plane, first_row, last_row + 1, first, last + 1, reader).ravel()
        pieces = []
        if first:
            pieces.append(self._rows(plane, first_row, first_row + 1, first, columns, reader))
            first_row += 1
        if first_row < last_row:
            pieces.append(self._rows(plane, first_row, last_row, 0, columns, reader))
        pieces.append(self._rows(plane, last_row, last_row + 1, 0, last + 1, reader))
        return np.concatenate([piece.ravel() for piece in pieces])

    def _rows(
        self,
        plane: Plane,
        first_row: int,
        last_row: int,
        first: int,
        last: int,
        reader: PlaneReader,
    ) -> Array:
        """Codes of reshaped rows and columns: one read for every chunk of rows that they touch."""
        out = np.empty((last_row - first_row, last - first), np.uint8)
        row = first_row
        while row < last_row:
            chunk, word_row = divmod(row, self.stored_rows)
            taken = min(last_row - row, self.stored_rows - word_row)
            words = reader.read(plane, range(word_row, word_row + taken), range(first, last))
            unsigned = words.view(np.dtype(f"u{words.dtype.itemsize}"))
            field = unsigned >> unsigned.dtype.type(self._low_bit(chunk))
            field &= unsigned.dtype.type((1 << self.bit_width) - 1)
            out[row - first_row : row - first_row + taken] = field
            row += taken
        return out

    def _low_bit(self, chunk: int) -> int:
        return self.bit_width * (self.fields - 1 - chunk if self.high_first else chunk)

    def values(
        self, planes: tuple[Plane, ...], window: Window, reader: PlaneReader
    ) -> tuple[list[Array], Array]:
        """Values of planes with one number a group, float32, and the index of each column into them.

        Returns:
            Arrays [R, G] with an index [C] where groups end with the rows of the weight, else [1, G] with an
            index [R, C].
        """
        n_in, size = self.shape[1], self.group_size
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return [np.zeros((1, 1), np.float32) for _ in planes], np.zeros(len(cols), np.int64)
        if self.groups_are == "rows" and n_in % size == 0:
            per_row = n_in // size
            used = range(rows.start * per_row, rows.stop * per_row)
            first, last = cols.start // size, ceil_div(cols.stop, size)
            arrays = [
                self._flat(p, used, reader).reshape(len(rows), per_row)[:, first:last]
                for p in planes
            ]
            return arrays, np.arange(cols.start, cols.stop) // size - first
        places = np.arange(rows.start, rows.stop)[:, None] * n_in
        places = places + np.arange(cols.start, cols.stop)
        groups = places // size if self.groups_are == "rows" else places % self.columns
        low, high = int(groups.min()), int(groups.max()) + 1
        return [self._flat(p, range(low, high), reader)[None] for p in planes], groups - low

    @staticmethod
    def _flat(plane: Plane, used: range, reader: PlaneReader) -> Array:
        """Values `used` of a plane [G, 1] or [1, G]."""
        total = 1
        for extent in plane.shape:
            total *= extent
        values: Array = reader.floats(msgspec.structs.replace(plane, shape=(total,)), None, used)[0]
        return values

    def group_of(self, row: int, col: int) -> int:
        """Number of an element's group."""
        place = row * self.shape[1] + col
        return place // self.group_size if self.groups_are == "rows" else place % self.columns

    def code_span(self, plane: Plane, row: int, col: int) -> BitSpan:
        """The bits of an element's code."""
        place, column = divmod(row * self.shape[1] + col, self.columns)
        chunk, word_row = divmod(place, self.stored_rows)
        return element_span(
            plane, word_row * self.columns + column, self._low_bit(chunk), self.bit_width
        )
