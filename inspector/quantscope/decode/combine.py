"""Parts into weights, in exact float32 steps or in the producer's own arithmetic.

The work goes in tiles of rows that stay in the cache; scales are spread over runs of columns by broadcasting,
and only columns in a free order (act-order) or flat runs gather them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.decode.roundings import round_to
from quantscope.model import Arithmetic

TILE_ELEMENTS = 1 << 17
"""Elements combined at a time: half a megabyte of float32."""

Runs = list[tuple[slice, slice, int]]
"""Stretches of columns that are whole runs of one length: (columns, groups, columns of a run)."""


def combine_parts(parts: Parts, arithmetic: Arithmetic | None) -> Array:
    """Weights of a window.

    Args:
        parts: codes [R, C] and their planes.
        arithmetic: the producer's types and roundings; None for plain float32 with one rounding per step.

    Returns:
        float32 [R, C]. With an arithmetic, values are rounded to its output type and held in float32.

    Raises:
        ValueError: `vector` parts, which only their family combines.
    """
    if parts.combine == "vector":
        raise ValueError(f"parts of kind {parts.combine} are combined by their family")
    rule = arithmetic or Arithmetic()
    scale, divides = _scale(parts, rule)
    runs = column_runs(parts.group_of_column)
    n_rows, n_cols = parts.codes.shape
    out = np.empty((n_rows, n_cols), dtype=np.float32)
    step = max(1, TILE_ELEMENTS // max(1, n_cols))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for start in range(0, n_rows, step):
            rows = slice(start, min(start + step, n_rows))
            _combine_rows(parts, rule, rows, (scale, divides), runs, out[rows])
            if arithmetic is not None and rule.output != "f32":
                out[rows] = round_to(out[rows], rule.output)
    return out


def _combine_rows(
    parts: Parts,
    rule: Arithmetic,
    rows: slice,
    scales: tuple[Array | None, bool],
    runs: Runs | None,
    out: Array,
) -> None:
    """Values of some rows into `out`, which is a view of whole rows."""
    scale, divides = scales
    if parts.combine == "lut":
        assert parts.lut is not None
        np.take(parts.lut, parts.codes[rows], out=out, mode="clip")
    else:
        np.copyto(out, parts.codes[rows], casting="unsafe")
    if parts.combine == "affine":
        if parts.zero is not None:
            zero = np.asarray(parts.zero, dtype=np.float32)
            _spread(np.subtract, parts, zero, rows, runs, out)
        _round(out, rule.compute)
    if scale is not None:
        _spread(np.divide if divides else np.multiply, parts, scale, rows, runs, out)
        _round(out, rule.compute)
    if parts.combine in ("minus_min", "plus_min"):
        assert parts.minimum is not None
        minimum = np.asarray(parts.minimum, dtype=np.float32)
        apply = np.subtract if parts.combine == "minus_min" else np.add
        _spread(apply, parts, minimum, rows, runs, out)
        _round(out, rule.compute)


def _round(out: Array, kind: str) -> None:
    if kind != "f32":
        out[...] = round_to(out, kind)


def _spread(
    apply: Callable[..., Any],
    parts: Parts,
    plane: Array,
    rows: slice,
    runs: Runs | None,
    out: Array,
) -> None:
    """Apply a [R, G]-like plane to the elements of some rows, in place."""
    own = plane if plane.shape[0] == 1 else plane[rows]
    if plane.shape[-1] == 1:
        apply(out, own, out=out)
    elif runs is not None:
        for cols, groups, size in runs:
            count = groups.stop - groups.start
            part = np.lib.stride_tricks.as_strided(
                out[:, cols],
                (out.shape[0], count, size),
                (out.strides[0], out.strides[1] * size, out.strides[1]),
            )
            apply(part, own[:, groups, None], out=part)
    else:
        index = parts.group_of_column
        if index.ndim == 1:
            apply(out, own[:, index], out=out)
        elif plane.shape[0] == 1:
            apply(out, plane[0][index[rows]], out=out)
        else:
            apply(out, np.take_along_axis(own, index[rows], axis=1), out=out)


def column_runs(index: Array) -> Runs | None:
    """Stretches of equal runs of a column index whose groups follow each other; None for any other index.

    A window that begins or ends inside a group has a short first or last run.
    """
    if index.ndim != 1 or not index.size:
        return None
    steps = np.diff(index)
    edges = np.flatnonzero(steps)
    if (steps[edges] != 1).any():
        return None
    starts = np.concatenate(([0], edges + 1, [index.size]))
    lengths = np.diff(starts)
    group = int(index[0])
    runs: Runs = []
    position = 0
    while position < lengths.size:
        size = int(lengths[position])
        last = position + 1
        same = np.flatnonzero(lengths[last:] != size)
        last += int(same[0]) if same.size else lengths.size - last
        runs.append(
            (
                slice(int(starts[position]), int(starts[last])),
                slice(group + position, group + last),
                size,
            )
        )
        if len(runs) > MAX_RUNS:
            return None
        position = last
    return runs


MAX_RUNS = 16
"""More stretches than this are gathered one by one."""


def _scale(parts: Parts, rule: Arithmetic) -> tuple[Array | None, bool]:
    """All scale levels as one float32 [R, G]-like array, and whether it divides the code."""
    if not parts.scale:
        return None, False
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = np.asarray(parts.scale[0], dtype=np.float32)
        if rule.scale_cast:
            scale = round_to(scale, rule.scale_cast)
        for level, divides in zip(parts.scale[1:], parts.scale_divides[1:], strict=True):
            other = np.asarray(level, dtype=np.float32)
            scale = scale / other if divides else scale * other
    return scale, parts.scale_divides[0]
