"""Parts: the common currency of statistics, hex view, decode and kernel checks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

Combine = Literal["affine", "minus_min", "plus_min", "lut", "value", "vector"]


class Window:
    """A rectangle of a logical tensor: rows (out) and columns (in), half-open, in elements."""

    __slots__ = ("cols", "rows")

    def __init__(self, rows: range | slice, cols: range | slice) -> None:
        self.rows = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        self.cols = range(cols.start, cols.stop) if isinstance(cols, slice) else cols

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.rows), len(self.cols)

    def __repr__(self) -> str:
        return f"Window({self.rows.start}:{self.rows.stop}, {self.cols.start}:{self.cols.stop})"


class Parts:
    """What a window of a tensor is made of, before it is combined into weights.

    Attributes:
        codes: [R, C] stored integer codes (uint8/int8/int16...), table indices, or float32 values where
            `combine` is `value`.
        scale: levels, finest first, each float32 [R, G] (or broadcastable: [1, G], [R, 1], [1, 1]);
            already decoded from their stored form, not yet multiplied into each other.
        zero: float32 or integer [R, G]-like true zero under the reading (conventions applied), or None.
        stored_zero: integer [R, G]-like zero as stored, before a convention is applied, or None.
        minimum: float32 [R, G]-like minimum: subtracted for `minus_min`, added for `plus_min`.
        lut: float32 table indexed by code, where `combine` is `lut`.
        group_of_column: integer [C], or [R, C] for flat runs that do not end with a row: index into the
            G axis of scale, zero and minimum for each column.
        combine: affine (code - zero) * scale; minus_min code * scale - minimum; plus_min
            code * scale + minimum; lut lut[code] * scale; value code is the value, times scale where there
            is one; vector the family combines itself.
        scale_divides: per level, True where the value is code / scale.
    """

    __slots__ = (
        "codes",
        "combine",
        "extra",
        "group_of_column",
        "lut",
        "minimum",
        "scale",
        "scale_divides",
        "stored_zero",
        "zero",
    )

    def __init__(
        self,
        *,
        codes: Array,
        combine: Combine,
        scale: tuple[Array, ...] = (),
        group_of_column: Array | None = None,
        zero: Array | None = None,
        stored_zero: Array | None = None,
        minimum: Array | None = None,
        lut: Array | None = None,
        scale_divides: tuple[bool, ...] = (),
        extra: dict[str, Array] | None = None,
    ) -> None:
        self.codes = codes
        self.combine = combine
        self.scale = scale
        self.group_of_column = (
            np.zeros(codes.shape[-1], dtype=np.int64)
            if group_of_column is None
            else group_of_column
        )
        self.zero = zero
        self.stored_zero = stored_zero
        self.minimum = minimum
        self.lut = lut
        self.scale_divides = scale_divides or (False,) * len(scale)
        self.extra = extra or {}

    def per_element(self, plane: Array) -> Array:
        """A [R, G]-like plane spread over the window's elements: [R, C] or broadcastable to it."""
        index = self.group_of_column
        if plane.shape[-1] == 1:
            return plane
        if index.ndim == 1:
            return plane[:, index]
        if plane.shape[0] == 1:
            row: Array = plane[0][index]
            return row
        return np.take_along_axis(plane, index, axis=1)
