"""Inputs of a check: fixed by a seed, exactly representable in the kernel's type, chosen before any output."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from quantscope.decode.parts import Array
from quantscope.parity.grids import representable

ODD_BATCH = 3
ONE_HOT_ROWS = 16
"""One-hot rows a call: below every batch at which a library leaves its low-bit kernel."""

LOUD_CHANNEL = 300.0
TINY = 2.0**-12


class Input(NamedTuple):
    """One batch. `random` says that signs and sizes are independent of the weights."""

    name: str
    x: Array
    """float32 [M, K]."""
    random: bool
    seed: int | None
    fallback: bool = False

    @property
    def sha256(self) -> str:
        """Digest of the float32 values, little-endian."""
        return hashlib.sha256(np.ascontiguousarray(self.x, "<f4").tobytes()).hexdigest()


def make_inputs(n_cols: int, dtype: str, seed: int, fallback_batch: int | None) -> list[Input]:
    """Every dense input of a check.

    Args:
        n_cols: input channels K.
        dtype: type of activations.
        seed: first seed; each random input counts on from it.
        fallback_batch: smallest batch at which the library leaves the kernel; one input has it.
    """

    def normal(rows: int, number: int) -> Array:
        return np.random.default_rng(seed + number).standard_normal((rows, n_cols))

    loud = normal(ODD_BATCH, 3)
    loud[:, n_cols // 3] *= LOUD_CHANNEL
    half = n_cols // 2
    cancelling = np.ones((2, n_cols))
    cancelling[0, half:] = -1.0
    cancelling[1, 1::2] = -1.0
    made: list[tuple[str, Array, bool, int | None, bool]] = [
        ("normal", normal(1, 0), True, seed, False),
        ("normal", normal(ODD_BATCH, 1), True, seed + 1, False),
        ("normal", normal(16, 2), True, seed + 2, False),
        ("one loud channel", loud, True, seed + 3, False),
        ("large", normal(ODD_BATCH, 4) * 8.0, True, seed + 4, False),
        ("tiny", normal(ODD_BATCH, 5) * TINY, True, seed + 5, False),
        ("ones", np.ones((1, n_cols)), False, None, False),
        ("cancelling halves", cancelling, False, None, False),
        ("zeros", np.zeros((1, n_cols)), False, None, False),
    ]
    if fallback_batch is not None:
        above = normal(fallback_batch, 6)
        made.append(("normal, above the kernel's batch", above, True, seed + 6, True))
    return [
        Input(name, representable(x, dtype), random, number, fallback)
        for name, x, random, number, fallback in made
    ]


def one_hot_columns(n_cols: int, limit: int, seed: int) -> Array:
    """Input channels that are read out one by one: all, or first, last and a seeded choice of others.

    Returns:
        int64 [at most limit], sorted.
    """
    if n_cols <= limit:
        return np.arange(n_cols)
    middle = np.random.default_rng(seed).choice(n_cols - 2, size=max(0, limit - 2), replace=False)
    chosen: Array = np.sort(np.concatenate([[0, n_cols - 1], middle + 1])).astype(np.int64)
    return chosen


def one_hot(n_cols: int, columns: Array, amplitude: float) -> Array:
    """float32 [len(columns), K] with one value a row."""
    x = np.zeros((columns.size, n_cols), dtype=np.float32)
    x[np.arange(columns.size), columns] = amplitude
    return x
