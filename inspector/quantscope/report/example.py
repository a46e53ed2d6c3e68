"""One weight that shows a finding, from its stored bits to its value under both readings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.window import decode_window, window_parts
from quantscope.errors import QuantscopeError
from quantscope.model import Reading
from quantscope.report.canonical import non_finite
from quantscope.report.schema import Example
from quantscope.session.inspection import TensorState

_COLUMNS = 128
"""Columns of row 0 among which the example is chosen."""


def example_of(checkpoint: Checkpoint, state: TensorState, reader: PlaneReader) -> Example | None:
    """A weight of row 0 that the two readings decode differently, or None where they agree or cannot.

    Args:
        checkpoint: the opened checkpoint.
        state: the tensor; its readings in force and as declared are compared.
        reader: bounded reads with a ledger.
    """
    inferred, declared = state.reading, state.declared_reading
    if inferred is None or declared is None or inferred == declared:
        return None
    if inferred.shape != declared.shape or len(inferred.shape) != 2 or not all(inferred.shape):
        return None
    window = Window(range(1), range(min(_COLUMNS, inferred.shape[-1])))
    try:
        return _example(checkpoint, state, inferred, declared, window, reader)
    except QuantscopeError:
        return None


def _example(
    checkpoint: Checkpoint,
    state: TensorState,
    inferred: Reading,
    declared: Reading,
    window: Window,
    reader: PlaneReader,
) -> Example | None:
    family = checkpoint.family(state.tensor)
    parts = window_parts(family, state.tensor, inferred, window, reader)
    values = decode_window(family, state.tensor, inferred, window, reader)[0]
    claimed = decode_window(family, state.tensor, declared, window, reader)[0]
    differs = np.flatnonzero(values != claimed)
    if not differs.size:
        return None
    lively = differs[(values[differs] != 0) & (claimed[differs] != 0)]
    col = int(lively[0] if lively.size else differs[0])
    cell = family.locate(state.tensor, inferred, 0, col, reader)
    where = cell.bits[0]
    return Example(
        tensor=state.tensor.name,
        row=0,
        col=col,
        file=checkpoint.file(where.file_id).name,
        byte_offset=where.byte_offset,
        code=_scalar(parts.codes[0, col]),
        stored_zero=plane_value(parts, parts.stored_zero, col),
        scale=scale_value(parts, col),
        as_declared=_number(claimed[col]),
        as_inferred=_number(values[col]),
    )


def scale_value(parts: Parts, col: int) -> float | str | None:
    """The product of all scale levels at column `col` of the first row; None without scales."""
    if not parts.scale:
        return None
    total = 1.0
    for level, divides in zip(parts.scale, parts.scale_divides, strict=True):
        value = plane_value(parts, level, col)
        if value is None or (divides and value == 0):
            return None
        total = total / value if divides else total * value
    return _number(total)


def plane_value(parts: Parts, plane: Any, col: int) -> Any:
    """A [R, G]-like plane's value at column `col` of the first row; None where there is no plane."""
    if plane is None:
        return None
    row = np.asarray(parts.per_element(np.asarray(plane)))[0]
    return _scalar(row[col if row.shape[0] > 1 else 0])


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _number(value: Any) -> float | str:
    number = float(value)
    return number if math.isfinite(number) else non_finite(number)
