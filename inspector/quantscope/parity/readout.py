"""Identity readout: one-hot rows through the kernel give back single weights, and from them single codes.

A one-hot row of height a makes output n equal a * W[n, k]. With scale s, zero z and minimum m of that weight
the code is y / (a * s) + z, or (y / a - m) / s, and must round to the code that the decoder read. The
comparison is exact; whether neighbouring codes can be told apart at all is decided by the declared error
model before the output is looked at.
"""

from __future__ import annotations

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.model import Json
from quantscope.parity.model import Readout
from quantscope.parity.reference import levels_of, minimum_of, scale_of, zero_of
from quantscope.parity.tolerance import BlockModel


class ReadoutCounter:
    """Counts recovered codes over blocks of rows.

    Args:
        columns: input channels that were read out, in the order of the outputs' rows.
        amplitude: height of the one-hot inputs.
        in_tensor: weights of the whole tensor.
    """

    def __init__(self, columns: Array, amplitude: float, in_tensor: int) -> None:
        self._columns = columns
        self._amplitude = amplitude
        self._in_tensor = in_tensor
        self._kind: str = "codes"
        self.recovered = self.resolvable = self.total = 0
        self.first_wrong: dict[str, Json] | None = None

    def add(self, rows: range, block: BlockModel, outputs: Array) -> None:
        """Count one block of rows.

        Args:
            rows: row numbers of the block.
            block: its reference side.
            outputs: float64 [columns, rows], the kernel's outputs for the one-hot rows.
        """
        parts = block.parts
        tolerance = block.single(self._columns, self._amplitude) / self._amplitude
        weights = outputs.T / self._amplitude
        right, resolvable, found, wanted = self._judge(parts, block, weights, tolerance)
        self.total += right.size
        self.resolvable += int(resolvable.sum())
        self.recovered += int((right & resolvable).sum())
        wrong = resolvable & ~right
        if self.first_wrong is None and wrong.any():
            row, place = (int(i) for i in np.argwhere(wrong)[0])
            self.first_wrong = {
                "row": rows.start + row,
                "col": int(self._columns[place]),
                "expected": _number(wanted[row, place]),
                "recovered": _number(found[row, place]),
            }

    def _judge(
        self, parts: Parts, block: BlockModel, weights: Array, tolerance: Array
    ) -> tuple[Array, Array, Array, Array]:
        """(right, resolvable, found, wanted), each [rows, columns]."""
        levels = levels_of(parts)
        wanted_weights = block.weights[:, self._columns]
        finite = np.isfinite(weights)
        if levels is None or (parts.combine == "value" and parts.codes.dtype.kind == "f"):
            return self._by_level(parts, weights, tolerance, wanted_weights, finite, levels)
        if parts.combine == "lut":
            return self._by_level(parts, weights, tolerance, wanted_weights, finite, levels)
        scale = np.broadcast_to(parts.per_element(scale_of(parts)), block.weights.shape)
        scale = scale[:, self._columns]
        wanted = levels[:, self._columns]
        zero, minimum = zero_of(parts), minimum_of(parts)
        with np.errstate(all="ignore"):
            base = weights
            if minimum is not None:
                base = weights - np.broadcast_to(minimum, block.weights.shape)[:, self._columns]
            steps = base / scale
            if zero is not None:
                steps = steps + np.broadcast_to(zero, block.weights.shape)[:, self._columns]
            found = np.rint(steps)
            resolvable = (scale != 0) & (tolerance < 0.5 * np.abs(scale))
        return (found == wanted) & finite, resolvable, found, wanted

    def _by_level(
        self,
        parts: Parts,
        weights: Array,
        tolerance: Array,
        wanted_weights: Array,
        finite: Array,
        levels: Array | None,
    ) -> tuple[Array, Array, Array, Array]:
        """Entries of a table: the nearest one; without a table, the weight itself within tolerance."""
        table = _table(parts)
        if levels is None or table is None:
            self._kind = "values"
            with np.errstate(invalid="ignore"):
                close = np.abs(weights - wanted_weights) <= tolerance
            return close & finite, np.ones_like(close), weights, wanted_weights
        self._kind = "levels"
        scale = np.broadcast_to(parts.per_element(scale_of(parts)), levels.shape)[:, self._columns]
        wanted = levels[:, self._columns]
        with np.errstate(all="ignore"):
            value = weights / scale
            place = np.clip(np.searchsorted(table, value), 1, table.size - 1)
            low, high = table[place - 1], table[place]
            found = np.where(value - low <= high - value, low, high)
            mine = np.clip(np.searchsorted(table, wanted), 0, table.size - 1)
            below = table[mine] - table[np.maximum(mine - 1, 0)]
            above = table[np.minimum(mine + 1, table.size - 1)] - table[mine]
            gap = np.minimum(
                np.where(mine > 0, below, np.inf), np.where(mine < table.size - 1, above, np.inf)
            )
            resolvable = (scale != 0) & (tolerance < 0.5 * np.abs(scale) * gap)
        return (found == wanted) & finite, resolvable, found, wanted

    def result(self, calls: int) -> Readout:
        """What was counted."""
        return Readout(
            kind=self._kind,  # type: ignore[arg-type]
            recovered=self.recovered,
            resolvable=self.resolvable,
            total=self.total,
            in_tensor=self._in_tensor,
            columns=int(self._columns.size),
            calls=calls,
            first_wrong=self.first_wrong,
        )


def _table(parts: Parts) -> Array | None:
    """Sorted distinct finite levels that a code can stand for; None where there is no short table."""
    if parts.lut is not None:
        values = np.asarray(parts.lut, dtype=np.float64)
    elif parts.combine == "value" and parts.codes.dtype.kind == "f":
        values = np.unique(parts.codes.astype(np.float64))
        values = np.union1d(values, -values)
        if values.size > 512:
            return None
    else:
        return None
    distinct: Array = np.unique(values[np.isfinite(values)])
    return distinct if distinct.size > 1 else None


def _number(value: float) -> float | str:
    number = float(value)
    return number if np.isfinite(number) else str(number)
