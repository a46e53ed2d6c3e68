"""Scale-like planes by the power of two: how scales, zeros and minimums are spread."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from quantscope.checkpoint import Checkpoint
from quantscope.decode.plane_reader import plane_2d
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.infer.examine import FLOAT_PLANES
from quantscope.session.inspection import TensorState

from quantscope_views.lines import Line, fit, line, rule
from quantscope_views.present.histogram import bar_line, bin_labels, count_text
from quantscope_views.present.words import number_words

MAX_VALUES = 1 << 20
"""Values of a plane that are looked at for the picture; the scan itself reads all."""
MAX_BINS = 16


class ScaleFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one plane counted by power of two."""

    plane: str
    examined: int
    total: int
    first_power: int
    counts: tuple[int, ...]
    """Counts of finite, non-zero magnitudes in [2^p, 2^(p+1)), p from `first_power` on."""
    smallest: float
    median: float
    largest: float
    odd: dict[str, int] = {}
    """NaN, Inf, zero and negative values, where there are any."""


def read_scale_facts(
    checkpoint: Checkpoint, state: TensorState, cancelled: Callable[[], bool] | None = None
) -> tuple[ScaleFacts, ...]:
    """Count every float plane that scales, shifts or centres weights.

    Raises:
        CancelledError: stopped.
    """
    reader = checkpoint.reader(cancelled=cancelled)
    found: list[ScaleFacts] = []
    for plane in state.tensor.planes:
        if plane.role not in ("scale", "scale2", "zero", "minimum"):
            continue
        if plane.dtype not in FLOAT_PLANES or len(plane.spans) != 1:
            continue
        n_rows, n_cols = plane_2d(plane)
        rows = min(n_rows, max(1, MAX_VALUES // max(1, n_cols)))
        try:
            values = reader.floats(plane, range(rows)).ravel().astype(np.float64)
        except CancelledError:
            raise
        except QuantscopeError:
            continue
        if values.size:
            found.append(_facts(plane.suffix, values, n_rows * n_cols))
    return tuple(found)


def _facts(
    plane: str, values: np.ndarray[tuple[int], np.dtype[np.float64]], total: int
) -> ScaleFacts:
    finite = values[np.isfinite(values)]
    magnitudes = np.abs(finite[finite != 0])
    odd = {
        "NaN": int(np.isnan(values).sum()),
        "Inf": int(np.isinf(values).sum()),
        "zero": int((values == 0).sum()),
        "negative": int((values < 0).sum()),
    }
    odd = {kind: count for kind, count in odd.items() if count}
    if not magnitudes.size:
        return ScaleFacts(
            plane=plane,
            examined=int(values.size),
            total=total,
            first_power=0,
            counts=(),
            smallest=math.nan,
            median=math.nan,
            largest=math.nan,
            odd=odd,
        )
    powers = np.floor(np.log2(magnitudes)).astype(np.int64)
    low, high = int(powers.min()), int(powers.max())
    low = max(low, high - MAX_BINS + 1)
    counts = np.bincount(np.maximum(powers, low) - low, minlength=high - low + 1)
    return ScaleFacts(
        plane=plane,
        examined=int(values.size),
        total=total,
        first_power=low,
        counts=tuple(counts.tolist()),
        smallest=float(magnitudes.min()),
        median=float(np.median(magnitudes)),
        largest=float(magnitudes.max()),
        odd=odd,
    )


def scale_lines(
    found: tuple[ScaleFacts, ...] | None, width: int, ascii_only: bool, mark: str
) -> list[Line]:
    """The picture: bars and counts by power of two, one block a plane."""
    if not found:
        return []
    lines = [rule("values of planes, by power of two", width, mark=mark)]
    for facts in found:
        about = (
            f"{facts.plane}: {facts.examined} of {facts.total} values, magnitudes counted by "
            "the power of two below them",
            f"smallest {facts.smallest!r}, median {facts.median!r}, largest {facts.largest!r}",
            *(f"{count} {kind}" for kind, count in facts.odd.items()),
        )
        odd = ", ".join(f"{count} {kind}" for kind, count in facts.odd.items())
        if not facts.counts:
            words = f" {facts.plane}: no finite value but 0 in {facts.examined}"
            lines.append(line((words, "number"), (f"   {odd}", "check"), about=about[:1]))
            continue
        text = (
            f" {facts.plane}: {number_words(facts.smallest, 4)} .. {number_words(facts.largest, 4)}"
            f", median {number_words(facts.median, 4)}, spread 2^"
            f"{math.log2(facts.largest / facts.smallest):.1f}"
        )
        lines.append(line((text, "number"), (f"   {odd}" if odd else "", "check"), about=about))
        cell = max(5, min(8, (width - 2) // max(1, len(facts.counts))))
        labels = bin_labels([f"2^{facts.first_power + i}" for i in range(len(facts.counts))], cell)
        lines.append(bar_line(facts.counts, cell, ascii_only, about))
        lines.append(line((f" {labels}", "dim"), about=about))
        counted = "".join(fit(count_text(count, cell), cell) for count in facts.counts)
        lines.append(line((f" {counted}", "number"), about=about))
    return lines
