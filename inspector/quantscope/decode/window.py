"""Decode any window of a logical tensor, and stream whole tensors in bounded pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import QuantscopeError, UndecodableError, WindowError
from quantscope.families.guard import FamilyFailedError, PluginFailure
from quantscope.families.protocol import Family
from quantscope.model import LogicalTensor, Reading

STREAM_ELEMENTS = 1 << 20
"""Elements of one streamed piece: 4 MiB of float32, little enough that memory is used again and not fetched anew."""

TURN = 128
"""Side of the squares in which a transposed array is copied."""


def check_window(reading: Reading, window: Window) -> None:
    """Refuse a window outside the tensor.

    Raises:
        WindowError: with the tensor's extents in the message.
    """
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    rows, cols = window.rows, window.cols
    if not (0 <= rows.start <= rows.stop <= n_rows and 0 <= cols.start <= cols.stop <= n_cols):
        raise WindowError(
            f"rows {rows.start}:{rows.stop}, columns {cols.start}:{cols.stop} lie outside "
            f"[{n_rows}, {n_cols}]",
            hint=f"rows 0:{n_rows}, columns 0:{n_cols}",
        )


def window_parts(
    family: Family, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
) -> Parts:
    """Parts of a window, with the family's failures turned into typed errors.

    Raises:
        UndecodableError: no proved rule decodes the tensor, or its planes do not hold the window.
        WindowError: the window lies outside the tensor.
    """
    reason = family.undecodable(tensor)
    if reason is not None:
        raise UndecodableError(f"{tensor.name} cannot be decoded: {reason}", source=tensor.name)
    check_window(reading, window)
    try:
        parts = family.parts(tensor, reading, window, reader)
    except QuantscopeError:
        raise
    except Exception as problem:  # plugin boundary: becomes an error result with its cause
        raise _unfit(tensor, problem) from problem
    _check_groups(tensor, parts)
    return parts


def _check_groups(tensor: LogicalTensor, parts: Parts) -> None:
    """Refuse parts whose columns name groups that a scale or zero plane does not have."""
    index = np.asarray(parts.group_of_column)
    last = int(index.max()) if index.size else 0
    for plane in (*parts.scale, parts.zero, parts.stored_zero, parts.minimum):
        extent = np.shape(plane)[-1:] if plane is not None else ()
        if extent and 1 != extent[0] <= last:
            raise UndecodableError(
                f"{tensor.name} cannot be decoded: its columns lie in groups 0..{last}, a plane has "
                f"{extent[0]}",
                source=tensor.name,
            )


def decode_window(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    window: Window,
    reader: PlaneReader,
    *,
    as_producer: bool = False,
) -> Array:
    """Float32 [rows, columns] weights of a window.

    Args:
        family: the tensor's family.
        tensor: the logical tensor.
        reading: the reading to decode under.
        window: rows and columns wanted.
        reader: bounded reads.
        as_producer: use the producer's arithmetic and roundings instead of plain float32.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        direct = _direct(family, tensor, reading, window, reader, as_producer)
        if direct is not None:
            return direct
        parts = window_parts(family, tensor, reading, window, reader)
        try:
            return family.combine(parts, reading, as_producer)
        except FamilyFailedError as problem:
            named = msgspec.structs.replace(problem.failure, tensor=tensor.name)
            raise FamilyFailedError(named) from problem
        except QuantscopeError:
            raise
        except Exception as problem:  # plugin boundary
            raise _unfit(tensor, problem) from problem


def _direct(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    window: Window,
    reader: PlaneReader,
    as_producer: bool,
) -> Array | None:
    """The family's own decode of the window, where it has one that is faster than parts and combine."""
    decode = getattr(family, "decode", None)
    if decode is None or family.undecodable(tensor) is not None:
        return None
    check_window(reading, window)
    try:
        result: Array | None = decode(tensor, reading, window, reader, as_producer)
    except QuantscopeError:
        raise
    except Exception as problem:  # plugin boundary
        raise _unfit(tensor, problem) from problem
    return result


def _unfit(tensor: LogicalTensor, problem: Exception) -> UndecodableError:
    return UndecodableError(
        f"{tensor.name} cannot be decoded: its planes do not fit the reading "
        f"({type(problem).__name__}: {problem})",
        source=tensor.name,
    )


def row_major(values: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """A [rows, columns] array in C order, itself where it is so already.

    Families whose words run down the input axis give transposed arrays; those are copied square by square, which
    stays in the cache where numpy's own copy does not.
    """
    dtype = values.dtype if dtype is None else dtype
    if values.ndim != 2 or values.flags.c_contiguous or values.strides[0] != values.itemsize:
        return np.ascontiguousarray(values, dtype)
    out = np.empty(values.shape, dtype)
    n_rows, n_cols = values.shape
    for row in range(0, n_rows, TURN):
        rows = slice(row, row + TURN)
        for col in range(0, n_cols, TURN):
            cols = slice(col, col + TURN)
            out[rows, cols] = values[rows, cols]
    return out


def failure_of(
    problem: QuantscopeError, family: Family, tensor: LogicalTensor
) -> PluginFailure | None:
    """The foreign exception of a family behind a typed error of this module or of the guard, or None."""
    if isinstance(problem, FamilyFailedError):
        return msgspec.structs.replace(problem.failure, tensor=tensor.name)
    cause = problem.__cause__
    if not isinstance(problem, UndecodableError) or not isinstance(cause, Exception):
        return None
    if isinstance(cause, QuantscopeError):
        return None
    return PluginFailure(
        family=family.name,
        method="parts",
        error=f"{type(cause).__name__}: {cause}",
        tensor=tensor.name,
    )


def stream_windows(reading: Reading) -> Iterator[Window]:
    """Windows of whole rows that cover a tensor, each of bounded size."""
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    step = max(1, STREAM_ELEMENTS // max(n_cols, 1))
    for start in range(0, n_rows, step):
        yield Window(range(start, min(start + step, n_rows)), range(n_cols))
