"""Which groups of a tensor a scan looks at: fixed, seeded, and stated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantscope.decode.parts import Window
from quantscope.model import LogicalTensor, Reading

DEFAULT_GROUPS = 1024
SEED = 20260801
MAX_RUNS = 8
"""The sample is taken as at most this many runs of neighbouring rows, to keep reads few."""
APART_RUNS = 2
"""Runs where a row's codes lie strided over the whole plane: each run costs a read for every stored row."""
APART_COLUMNS = 2048
"""Shorter rows are few reads in any case."""
MAX_SAMPLE_ELEMENTS = 1 << 21
MAX_EXTENT = 1 << 40
"""No tensor that is stored has a longer axis; a header that says so is not sampled."""


def groups_per_row(reading: Reading) -> int:
    """Finest groups that one row holds, at least 1."""
    n_cols = reading.shape[-1]
    axis = reading.group[0].axis if reading.group else "none"
    if axis in ("channel", "tensor", "none", "out"):
        return 1
    return max(1, -(-n_cols // max(1, reading.group_size)))


def total_groups(reading: Reading) -> int:
    """Finest groups of the whole tensor, counting one a row where a scale covers a row or more."""
    return reading.shape[-2] * groups_per_row(reading)


def rows_lie_apart(tensor: LogicalTensor, reading: Reading) -> bool:
    """Whether the codes of one row (out) are strided over the plane, as where words run down the input axis."""
    codes = tensor.plane("codes")
    if codes is None or len(codes.shape) != 2 or len(codes.spans) != 1:
        return False
    return reading.packing.axis == "out" or codes.shape[0] != reading.shape[-2]


def sample_windows(
    reading: Reading, n_groups: int | None, *, apart: bool = False
) -> Iterator[Window]:
    """Windows that hold about `n_groups` groups; all rows where None or where the tensor is small.

    Rows are taken as runs spread evenly over the tensor, each shifted by a seeded offset; columns whole.
    One by one: a header may claim more rows than a list of windows could hold.

    Args:
        reading: gives the extents and the groups of a row.
        n_groups: groups wanted.
        apart: what `rows_lie_apart` says; long rows of that kind are taken as fewer runs of more rows.
    """
    n_rows, n_cols = reading.shape[-2], reading.shape[-1]
    if n_rows <= 0 or n_cols <= 0 or n_rows > MAX_EXTENT or n_cols > MAX_EXTENT:
        return
    if n_groups is None:
        wanted = n_rows
    else:
        wanted = -(-n_groups // groups_per_row(reading))
        wanted = min(wanted, max(1, MAX_SAMPLE_ELEMENTS // n_cols))
    if wanted >= n_rows:
        step = max(1, MAX_SAMPLE_ELEMENTS // n_cols)
        for start in range(0, n_rows, step):
            yield Window(range(start, min(start + step, n_rows)), range(n_cols))
        return
    runs = min(APART_RUNS if apart and n_cols >= APART_COLUMNS else MAX_RUNS, wanted)
    length = wanted // runs
    span = n_rows // runs
    generator = np.random.default_rng(SEED)
    offsets = generator.integers(0, max(1, span - length + 1), size=runs)
    for i in range(runs):
        first = i * span + int(offsets[i])
        yield Window(range(first, first + length), range(n_cols))
