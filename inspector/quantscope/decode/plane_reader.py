"""Bounded reads of windows of planes, with a ledger of what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from quantscope.containers.source import SourceSet
from quantscope.decode.ledger import ReadLedger
from quantscope.decode.parts import Array
from quantscope.decode.small_floats import bf16_to_f32, float_table
from quantscope.errors import CancelledError, UnreadableError, WindowError
from quantscope.model import Plane

STORAGE: dict[str, str] = {
    "BOOL": "u1",
    "U8": "u1",
    "I8": "i1",
    "F8_E5M2": "u1",
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1",
    "F8_E5M2FNUZ": "u1",
    "I16": "i2",
    "U16": "u2",
    "F16": "f2",
    "BF16": "u2",
    "I32": "i4",
    "U32": "u4",
    "F32": "f4",
    "F64": "f8",
    "I64": "i8",
    "U64": "u8",
    "C64": "c8",
}
"""Stored dtype word -> numpy storage type; small floats as their bytes, BF16 as its bit pattern."""

STORAGE_BITS: dict[str, int] = {word: int(code[1:]) * 8 for word, code in STORAGE.items()} | {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}

_FLOAT_TABLES = {
    "F8_E4M3": "e4m3fn",
    "F8_E5M2": "e5m2",
    "F8_E8M0": "e8m0",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
}

SHORT_ROW_BYTES = 1 << 14
"""A narrow window of rows of at most 16 KiB is read with what lies between: the pages are read anyway."""
PIECE_BYTES = 1 << 22
RUNS_AT_ONCE = 4096
"""Rows read one by one before a stop is looked for again."""

AHEAD_BYTES = 1 << 23
"""A column window that begins where the last one ended is read with as many of the next columns as fit in 8 MiB."""

_ROW_GAP = 4
"""A column window narrower than 1/4 of the row is read row by row, a wider one as whole rows."""


class _Ahead(NamedTuple):
    """Columns of some rows of a plane that were read together: [rows, columns]."""

    place: tuple[int, int, range]
    cols: range
    array: Array


class PlaneReader:
    """Reads windows of planes through bounded positioned reads.

    Args:
        sources: open files by id.
        ledger: where reads are recorded; a new one by default.
        cancelled: polled before every read; True raises CancelledError.
    """

    def __init__(
        self,
        sources: SourceSet,
        ledger: ReadLedger | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.sources = sources
        self.ledger = ledger if ledger is not None else ReadLedger()
        self._cancelled = cancelled
        self._ahead: dict[str, _Ahead] = {}

    def read_bytes(self, role: str, file_id: int, byte_offset: int, nbytes: int) -> bytes:
        """`nbytes` bytes at an absolute offset.

        Raises:
            FileChangedError: the file ends before them.
            CancelledError: the job was stopped.
        """
        if self._cancelled is not None and self._cancelled():
            raise CancelledError("stopped")
        data = self.sources[file_id].read_at(byte_offset, nbytes)
        self.ledger.add(role, file_id, byte_offset, nbytes)
        return data

    def raw(self, plane: Plane) -> bytes:
        """Every byte of a plane, spans joined. Meant for small planes."""
        return b"".join(
            self.read_bytes(
                plane.role, span.file_id, span.byte_offset + i * span.stride_bytes, span.nbytes
            )
            for span in plane.spans
            for i in range(span.count)
        )

    def read(self, plane: Plane, rows: range | None = None, cols: range | None = None) -> Array:
        """A window of a row-major plane in its storage type.

        1-D planes are read as one row, scalars as [1, 1], planes of more than two axes as
        [product of leading axes, last axis]. A strided span (a field of a block struct) is read with the
        bytes between its runs, one run a row.

        Args:
            plane: a plane with one span and whole-byte elements.
            rows: rows wanted, all by default.
            cols: columns wanted, all by default.

        Returns:
            [rows, cols] array, native byte order.

        Raises:
            WindowError: the window lies outside the plane.
            UnreadableError: the plane's dtype has no numpy storage type, or its bytes do not hold its shape.
        """
        code = STORAGE.get(plane.dtype)
        if code is None or len(plane.spans) != 1:
            raise UnreadableError(
                f"plane {plane.suffix} of dtype {plane.dtype} cannot be read as an array"
            )
        n_rows, n_cols = plane_2d(plane)
        rows = range(n_rows) if rows is None else rows
        cols = range(n_cols) if cols is None else cols
        if rows.start < 0 or rows.stop > n_rows or cols.start < 0 or cols.stop > n_cols:
            raise WindowError(
                f"rows {rows.start}:{rows.stop}, columns {cols.start}:{cols.stop} lie outside "
                f"{plane.stored_name} [{n_rows}, {n_cols}]"
            )
        item = int(code[1:])
        if n_rows * n_cols * item > plane.nbytes:
            raise UnreadableError(f"{plane.stored_name} stores fewer bytes than its shape needs")
        if not len(rows) or not len(cols):
            return np.zeros((len(rows), len(cols)), dtype="=" + code)
        dtype = np.dtype((">" if plane.byte_order == "big" else "<") + code)
        if plane.spans[0].count != 1:
            array = self._runs(plane, dtype, rows)[:, cols.start : cols.stop]
            return array.astype(dtype.newbyteorder("="))
        row_bytes = n_cols * item
        base = plane.byte_offset
        if len(cols) * _ROW_GAP >= n_cols or len(rows) == 1:
            start = base + rows.start * row_bytes
            if len(rows) == 1:
                start += cols.start * item
                data = self.read_bytes(plane.role, plane.file_id, start, len(cols) * item)
                array = np.frombuffer(data, dtype=dtype).reshape(1, len(cols))
            else:
                data = self.read_bytes(plane.role, plane.file_id, start, len(rows) * row_bytes)
                array = np.frombuffer(data, dtype=dtype).reshape(len(rows), n_cols)
                array = array[:, cols.start : cols.stop]
        else:
            array = self._columns(plane, dtype, rows, cols, n_cols)
        return array if dtype.isnative else array.astype(dtype.newbyteorder("="))

    def _runs(self, plane: Plane, dtype: np.dtype[Any], rows: range) -> Array:
        """Runs `rows` of a strided plane as a view [rows, elements of a run]."""
        span = plane.spans[0]
        nbytes = (len(rows) - 1) * span.stride_bytes + span.nbytes
        start = span.byte_offset + rows.start * span.stride_bytes
        data = self.read_bytes(plane.role, span.file_id, start, nbytes)
        per_run = span.nbytes // dtype.itemsize
        return np.ndarray(
            (len(rows), per_run), dtype, data, strides=(span.stride_bytes, dtype.itemsize)
        )

    def _columns(
        self, plane: Plane, dtype: np.dtype[Any], rows: range, cols: range, n_cols: int
    ) -> Array:
        """A narrow window; a walk along the columns reads ahead, or every row would be touched at each step."""
        kept = self._ahead.get(plane.role)
        place = (plane.file_id, plane.byte_offset, rows)
        if kept is not None and kept.place == place:
            if kept.cols.start <= cols.start and cols.stop <= kept.cols.stop:
                if self._cancelled is not None and self._cancelled():
                    raise CancelledError("stopped")
                first = cols.start - kept.cols.start
                return kept.array[:, first : first + len(cols)]
            if cols.start == kept.cols.stop:
                fitting = AHEAD_BYTES // (len(rows) * dtype.itemsize)
                wide = range(cols.start, min(n_cols, cols.start + max(len(cols), fitting)))
                array = self._narrow(plane, dtype, rows, wide, n_cols * dtype.itemsize)
                self._ahead[plane.role] = _Ahead(place, wide, array)
                return array[:, : len(cols)]
        array = self._narrow(plane, dtype, rows, cols, n_cols * dtype.itemsize)
        if array.nbytes <= AHEAD_BYTES:
            self._ahead[plane.role] = _Ahead(place, cols, array)
        return array

    def _narrow(
        self, plane: Plane, dtype: np.dtype[Any], rows: range, cols: range, row_bytes: int
    ) -> Array:
        """Long rows one by one, short ones some at a time with what lies between."""
        item = dtype.itemsize
        array = np.empty((len(rows), len(cols)), dtype=dtype)
        if row_bytes > SHORT_ROW_BYTES:
            first = plane.byte_offset + rows.start * row_bytes + cols.start * item
            for begin in range(0, len(rows), RUNS_AT_ONCE):
                runs = array[begin : begin + RUNS_AT_ONCE]
                self._read_runs(plane, first + begin * row_bytes, row_bytes, runs)
            return array
        step = PIECE_BYTES // row_bytes
        for first in range(rows.start, rows.stop, step):
            last = min(first + step, rows.stop)
            start = plane.byte_offset + first * row_bytes + cols.start * item
            nbytes = (last - first - 1) * row_bytes + len(cols) * item
            data = self.read_bytes(plane.role, plane.file_id, start, nbytes)
            array[first - rows.start : last - rows.start] = np.lib.stride_tricks.as_strided(
                np.frombuffer(data, dtype=dtype, count=1),
                (last - first, len(cols)),
                (row_bytes, item),
                writeable=False,
            )
        return array

    def _read_runs(self, plane: Plane, byte_offset: int, stride_bytes: int, out: Array) -> None:
        """Rows [r, n] of `out` from runs of bytes that lie `stride_bytes` apart."""
        if self._cancelled is not None and self._cancelled():
            raise CancelledError("stopped")
        nbytes = out.shape[1] * out.itemsize
        source = self.sources[plane.file_id]
        source.read_runs(byte_offset, nbytes, stride_bytes, out.view(np.uint8).data)
        self.ledger.add(plane.role, plane.file_id, byte_offset, nbytes, out.shape[0], stride_bytes)

    def floats(self, plane: Plane, rows: range | None = None, cols: range | None = None) -> Array:
        """A window of a floating-point plane as float32 (F64 rounds; integers are converted)."""
        return to_float32(self.read(plane, rows, cols), plane.dtype)


def to_float32(stored: Array, dtype: str) -> Array:
    """Stored values of a dtype word as float32."""
    if dtype == "BF16":
        return bf16_to_f32(stored)
    table = _FLOAT_TABLES.get(dtype)
    if table is not None:
        return float_table(table)[stored]
    with np.errstate(over="ignore", invalid="ignore"):
        return stored.astype(np.float32)


def plane_2d(plane: Plane) -> tuple[int, int]:
    """(rows, columns) under which a plane is read."""
    if not plane.shape:
        return 1, 1
    rows = 1
    for extent in plane.shape[:-1]:
        rows *= extent
    return rows, plane.shape[-1]
