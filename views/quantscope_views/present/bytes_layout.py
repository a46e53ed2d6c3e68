"""The way from a byte back to the elements in it, learnt from a family's `locate` for any format.

In every known linear layout the bit address of an element is a part that depends on its row plus a part
that depends on its column. Both parts are learnt: from one period where they repeat, else element by element;
then checked at scattered elements. A layout that fails the check has no map, and the cursor moves by row and
column instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from quantscope.model import BitSpan, Cell

Ints = NDArray[np.int64]

PERIODS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Runs after which addresses may repeat: words, planar runs, ggml super-blocks."""

MAX_EXACT = 65_536
"""Longest axis that is learnt element by element."""

MAX_AXIS = 1 << 22
"""Longest axis that is learnt at all; a longer one is a header that lies, and would cost its size in memory."""

CHECKS = 24
_SEED = 7


class Piece(NamedTuple):
    """Bits of a code: absolute bit address (byte * 8 + bit, lowest bit first) and width."""

    address: int
    width: int


class Hit(NamedTuple):
    """A piece of an element's code in a range of bytes; piece 0 holds the lowest bits of the code."""

    row: int
    col: int
    piece: int
    address: int
    width: int


def pieces_of(spans: tuple[BitSpan, ...], big_endian: bool = False) -> tuple[Piece, ...]:
    """Bit spans as pieces in file order of bytes.

    Args:
        spans: spans of one element.
        big_endian: words are stored with the high byte first.
    """
    return tuple(_piece(span, big_endian) for span in spans)


def _piece(span: BitSpan, big_endian: bool) -> Piece:
    if big_endian and span.nbytes > 1 and span.bit_width <= 8:
        byte = span.byte_offset + span.nbytes - 1 - span.low_bit // 8
        return Piece(byte * 8 + span.low_bit % 8, span.bit_width)
    return Piece(span.byte_offset * 8 + span.low_bit, span.bit_width)


Locate = Callable[[int, int], Cell]


class LayoutMap:
    """Addresses of all elements: `shift[a] + address[b, piece]`, one axis carrying the pieces.

    Args:
        shift: [A] bit shifts of the axis that only shifts.
        address: [B, K] bit addresses of the axis that carries the pieces.
        width: [B, K] bits of each piece; 0 where an element has fewer pieces.
        rows_shift: whether rows are the axis that shifts.
    """

    def __init__(self, shift: Ints, address: Ints, width: Ints, rows_shift: bool) -> None:
        self._shift = shift
        self._address = address
        self._width = width
        self._rows_shift = rows_shift
        self._low = int(address.min()) if address.size else 0
        self._high = int((address + width).max()) if address.size else 0
        self._shift_low = int(shift.min()) if shift.size else 0
        self._shift_high = int(shift.max()) if shift.size else 0

    def address(self, row: int, col: int) -> int:
        """Bit address of the lowest bits of an element's code."""
        a, b = (row, col) if self._rows_shift else (col, row)
        return int(self._shift[a] + self._address[b, 0])

    def pieces(self, row: int, col: int) -> tuple[Piece, ...]:
        """All pieces of an element's code."""
        a, b = (row, col) if self._rows_shift else (col, row)
        moved = int(self._shift[a])
        return tuple(
            Piece(moved + address, width)
            for address, width in zip(
                self._address[b].tolist(), self._width[b].tolist(), strict=True
            )
            if width
        )

    def hits(self, first_byte: int, nbytes: int) -> list[Hit]:
        """Every piece of a code that touches a byte range, in order of address."""
        low, high = first_byte * 8, (first_byte + nbytes) * 8
        a = np.nonzero((self._shift < high - self._low) & (self._shift > low - self._high))[0]
        inside = (self._address < high - self._shift_low) & (
            self._address + self._width > low - self._shift_high
        )
        b = np.nonzero((inside & (self._width > 0)).any(axis=1))[0]
        if not a.size or not b.size:
            return []
        found: list[Hit] = []
        step = max(1, (1 << 21) // (b.size * self._address.shape[1]))
        for start in range(0, a.size, step):
            found += self._cross(a[start : start + step], b, low, high)
        found.sort(key=lambda hit: (hit.address, hit.row, hit.col))
        return found

    def _cross(self, a: Ints, b: Ints, low: int, high: int) -> list[Hit]:
        address = self._shift[a][:, None, None] + self._address[b][None]
        width = np.broadcast_to(self._width[b][None], address.shape)
        where = np.nonzero((address < high) & (address + width > low) & (width > 0))
        rows, cols = (a[where[0]], b[where[1]]) if self._rows_shift else (b[where[1]], a[where[0]])
        return [
            Hit(*values)
            for values in zip(
                rows.tolist(),
                cols.tolist(),
                where[2].tolist(),
                address[where].tolist(),
                width[where].tolist(),
                strict=True,
            )
        ]

    def row_bits(self) -> int:
        """Bits between the first and the last address of one row."""
        if self._rows_shift:
            return self._high - self._low
        return self._shift_high - self._shift_low


def learn(
    locate: Locate,
    n_rows: int,
    n_cols: int,
    *,
    big_endian: bool = False,
    cancelled: Callable[[], bool] | None = None,
) -> LayoutMap | None:
    """Learn a layout; None where rows and columns do not separate, or an axis is too long to learn."""
    if not 0 < n_rows <= MAX_AXIS or not 0 < n_cols <= MAX_AXIS:
        return None

    def at(row: int, col: int) -> tuple[Piece, ...]:
        return pieces_of(locate(row, col).bits, big_endian)

    if not at(0, 0):
        return None
    by_col = _axis(lambda index: at(0, index), n_cols, cancelled)
    by_row = _axis(lambda index: at(index, 0), n_rows, cancelled)
    if by_col is None or by_row is None:
        return None
    for rows_shift in (True, False):
        carrier, other = (by_col, by_row) if rows_shift else (by_row, by_col)
        shift = other[0][:, 0] - other[0][0, 0]
        layout = LayoutMap(shift, carrier[0], carrier[1], rows_shift)
        if _fits(layout, at, n_rows, n_cols):
            return layout
    return None


def _axis(
    at: Callable[[int], tuple[Piece, ...]], count: int, cancelled: Callable[[], bool] | None
) -> tuple[Ints, Ints] | None:
    """Addresses and widths [count, pieces] along one axis."""
    generator = np.random.default_rng(_SEED)
    probes = sorted({*generator.integers(0, count, CHECKS).tolist(), count - 1, min(1, count - 1)})
    known = {index: at(index) for index in probes}
    for period in PERIODS:
        if period >= count:
            break
        head = [at(index) for index in range(period)]
        stride = at(period)[0].address - head[0][0].address
        if all(_repeats(head, stride, period, index, known[index]) for index in probes) and all(
            _repeats(head, stride, period, index, at(index))
            for index in range(period, min(2 * period + 1, count))
        ):
            return _tiled(head, stride, period, count)
    if count > MAX_EXACT:
        return None
    every: list[tuple[Piece, ...]] = []
    for index in range(count):
        if cancelled is not None and index % 1024 == 0 and cancelled():
            return None
        every.append(at(index))
    return _tiled(every, 0, count, count)


def _repeats(
    head: list[tuple[Piece, ...]],
    stride: int,
    period: int,
    index: int,
    found: tuple[Piece, ...],
) -> bool:
    moved = stride * (index // period)
    wanted = head[index % period]
    return len(wanted) == len(found) and all(
        f.address == w.address + moved and f.width == w.width
        for f, w in zip(found, wanted, strict=True)
    )


def _tiled(
    head: list[tuple[Piece, ...]], stride: int, period: int, count: int
) -> tuple[Ints, Ints]:
    most = max(len(pieces) for pieces in head)
    address = np.zeros((period, most), dtype=np.int64)
    width = np.zeros((period, most), dtype=np.int64)
    for index, pieces in enumerate(head):
        for k in range(most):
            piece = pieces[k] if k < len(pieces) else pieces[0]
            address[index, k] = piece.address
            width[index, k] = piece.width if k < len(pieces) else 0
    every = np.arange(count, dtype=np.int64)
    return address[every % period] + (stride * (every // period))[:, None], width[every % period]


def _fits(
    layout: LayoutMap, at: Callable[[int, int], tuple[Piece, ...]], n_rows: int, n_cols: int
) -> bool:
    generator = np.random.default_rng(_SEED + 1)
    rows = [*generator.integers(0, n_rows, CHECKS).tolist(), n_rows - 1, n_rows - 1, 0]
    cols = [*generator.integers(0, n_cols, CHECKS).tolist(), n_cols - 1, 0, n_cols - 1]
    return all(layout.pieces(row, col) == at(row, col) for row, col in zip(rows, cols, strict=True))
