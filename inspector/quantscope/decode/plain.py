"""Values of stored tensors that no family claims: plain floats and integers of any container."""

from __future__ import annotations

from quantscope.containers.records import StoredTensor
from quantscope.decode.parts import Array, Window
from quantscope.decode.plane_reader import STORAGE, PlaneReader, plane_2d
from quantscope.errors import UndecodableError, WindowError
from quantscope.families.index import TensorIndex


def plain_shape(index: TensorIndex, stored: StoredTensor) -> tuple[int, int]:
    """(rows, columns) under which a plain tensor is shown: leading axes joined, one row for a vector."""
    return plane_2d(index.plane_of("codes", stored, stored.name))


def decode_plain(
    index: TensorIndex, stored: StoredTensor, window: Window, reader: PlaneReader
) -> Array:
    """Float32 [rows, columns] values of a window of a plain tensor.

    F16, BF16 and small floats widen exactly; F64 and wide integers round once.

    Raises:
        UndecodableError: the dtype has no value of its own here, or the storage is not row-major.
        WindowError: the window lies outside the tensor.
        FileChangedError: the file ends before the window's bytes.
    """
    if stored.dtype not in STORAGE or stored.dtype == "C64":
        raise UndecodableError(
            f"{stored.name} of dtype {stored.dtype} has no plain values", source=stored.name
        )
    if stored.strides is not None:
        raise UndecodableError(
            f"{stored.name} is stored with strides {stored.strides}, not row by row",
            source=stored.name,
        )
    plane = index.plane_of("codes", stored, stored.name)
    n_rows, n_cols = plane_2d(plane)
    rows, cols = window.rows, window.cols
    if not (0 <= rows.start <= rows.stop <= n_rows and 0 <= cols.start <= cols.stop <= n_cols):
        raise WindowError(
            f"rows {rows.start}:{rows.stop}, columns {cols.start}:{cols.stop} lie outside "
            f"[{n_rows}, {n_cols}]",
            hint=f"rows 0:{n_rows}, columns 0:{n_cols}",
        )
    return reader.floats(plane, rows, cols)
