"""Searches from the cursor on: the next end code, odd scale or difference, and the element of a byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.window import decode_window, window_parts
from quantscope.errors import CancelledError, WindowError
from quantscope.model import Cell
from quantscope.session.inspection import TensorState

from quantscope_views.present.bytes_layout import learn
from quantscope_views.present.bytes_values import end_code_mask
from quantscope_views.present.reading_choice import ReadingChoice

Wanted = Literal["end_code", "bad_scale", "difference"]

CHUNK_ELEMENTS = 1 << 18
"""Elements looked at between two looks at the token."""

MAX_ROW = 1 << 22
"""Longest row that is searched: it is read whole."""

Cancelled = Callable[[], bool]


def find_next(
    checkpoint: Checkpoint,
    state: TensorState,
    choice: ReadingChoice,
    wanted: Wanted,
    row: int,
    col: int,
    cancelled: Cancelled | None = None,
) -> tuple[int, int] | None:
    """The next element after (row, col) in row order; None where there is no other.

    Raises:
        CancelledError: the search was stopped.
        QuantscopeError: the tensor cannot be decoded.
    """
    family = checkpoint.family(state.tensor)
    reader = checkpoint.reader(cancelled=cancelled)
    reading = choice.shown
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    if n_cols > MAX_ROW:
        raise WindowError(
            f"rows of {n_cols} elements are too long to search", source=state.tensor.name
        )
    step = max(1, CHUNK_ELEMENTS // max(1, n_cols))
    for first in range(row, n_rows, step):
        if cancelled is not None and cancelled():
            raise CancelledError("stopped")
        window = Window(range(first, min(n_rows, first + step)), range(n_cols))
        if wanted == "difference":
            own = decode_window(family, state.tensor, reading, window, reader)
            other = decode_window(family, state.tensor, choice.claimed, window, reader)
            mask = (own != other) & ~(np.isnan(own) & np.isnan(other))
        else:
            parts = window_parts(family, state.tensor, reading, window, reader)
            mask = _end_codes(parts, choice) if wanted == "end_code" else _bad_scales(parts)
        if first == row:
            mask[0, : col + 1] = False
        flat = np.flatnonzero(mask)
        if flat.size:
            found_row, found_col = divmod(int(flat[0]), n_cols)
            return first + found_row, found_col
    return None


def _end_codes(parts: Parts, choice: ReadingChoice) -> Array:
    mask = end_code_mask(parts.codes, parts, choice.shown)
    return mask if mask is not None else np.zeros(parts.codes.shape, dtype=np.bool_)


def _bad_scales(parts: Parts) -> Array:
    """The first column of every group whose scale is NaN, infinite or zero."""
    mask = np.zeros(parts.codes.shape, dtype=np.bool_)
    for level in parts.scale:
        spread = np.broadcast_to(parts.per_element(np.asarray(level)), parts.codes.shape)
        mask |= ~np.isfinite(spread) | (spread == 0)
    before = np.zeros_like(mask)
    before[:, 1:] = mask[:, :-1]
    index = parts.group_of_column
    same = np.zeros_like(mask)
    if index.ndim == 1 and index.size > 1:
        same[:, 1:] = (index[1:] == index[:-1])[None]
    return mask & ~(before & same)


def element_of_byte(
    checkpoint: Checkpoint,
    state: TensorState,
    choice: ReadingChoice,
    file_id: int,
    byte_offset: int,
    cancelled: Cancelled | None = None,
) -> tuple[tuple[int, int], str] | None:
    """The first element that uses a byte, and the plane's role; None where no element does."""
    family = checkpoint.family(state.tensor)
    reader = checkpoint.reader(cancelled=cancelled)
    tensor, reading = state.tensor, choice.shown
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    big = tensor.planes[0].byte_order == "big"
    corner = family.locate(tensor, reading, 0, 0, reader)

    def role_cell(role: str) -> Callable[[int, int], Cell]:
        def locate(row: int, col: int) -> Cell:
            cell = family.locate(tensor, reading, row, col, reader)
            spans = cell.per_plane.get(role, ()) if role != "codes" else cell.bits
            return Cell(row=row, col=col, group=cell.group, bits=spans)

        return locate

    for role in ("codes", *corner.per_plane):
        locate = role_cell(role)
        if not locate(0, 0).bits or locate(0, 0).bits[0].file_id != file_id:
            continue
        layout = learn(locate, n_rows, n_cols, big_endian=big, cancelled=cancelled)
        if layout is None:
            continue
        hits = layout.hits(byte_offset, 1)
        if hits:
            first = min(hits, key=lambda hit: (hit.row, hit.col))
            return (first.row, first.col), role
    return None
