"""Zero-point convention from bytes: constant planes, a statistic on codes, and both over a set of modules.

The rules and their numbers are those of the contract specification: decide by effect size, never by t.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.model import Evidence, Json, Sample

NEAR = 0.25
"""A mean within this many steps of a reading's expectation supports it."""
MAX_SE = 0.05
"""A larger standard error decides nothing."""
FAR = 0.35
"""A mean farther than this from every reading points to a third convention or a wrong packing."""
DECISIVE_MODULES = 8
DECISIVE_SPREAD = 0.1

EXPECTED = {"as_is": 0.0, "minus_one": 1.0}
"""Expected mean(code - stored zero) under each reading."""


class ZeroTally(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over sampled groups: enough to give mean(code - stored zero), and to join windows."""

    groups: int = 0
    groups_left_out: int = 0
    """Groups with the stored zero at an end of the code range."""
    mean_sum: float = 0.0
    mean_square_sum: float = 0.0
    stored_min: int = 0
    stored_max: int = 0
    stored_seen: int = 0
    all_ones: int = 0
    zero_codes: int = 0

    @property
    def mean(self) -> float:
        """Mean of code - stored zero over groups, each group's largest-magnitude code left out."""
        return self.mean_sum / self.groups if self.groups else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over groups."""
        if self.groups < 2:
            return float("inf")
        variance = (self.mean_square_sum - self.groups * self.mean**2) / (self.groups - 1)
        return float(np.sqrt(max(variance, 0.0) / self.groups))

    def joined(self, other: ZeroTally) -> ZeroTally:
        """Both tallies together."""
        if not other.stored_seen:
            return self
        if not self.stored_seen:
            return other
        return ZeroTally(
            groups=self.groups + other.groups,
            groups_left_out=self.groups_left_out + other.groups_left_out,
            mean_sum=self.mean_sum + other.mean_sum,
            mean_square_sum=self.mean_square_sum + other.mean_square_sum,
            stored_min=min(self.stored_min, other.stored_min),
            stored_max=max(self.stored_max, other.stored_max),
            stored_seen=self.stored_seen + other.stored_seen,
            all_ones=self.all_ones + other.all_ones,
            zero_codes=self.zero_codes + other.zero_codes,
        )


def tally(parts: Parts, bit_width: int) -> ZeroTally:
    """Tally one window whose groups lie along the input axis.

    Args:
        parts: codes [R, C] with `stored_zero` [R, G] and a 1-D `group_of_column`.
        bit_width: width of a code, for the ends of the range.
    """
    stored = parts.stored_zero
    if stored is None or parts.group_of_column.ndim != 1:
        return ZeroTally()
    top = (1 << bit_width) - 1
    means, used = group_means(parts.codes, stored, parts.group_of_column)
    stored_used = np.broadcast_to(stored, (means.shape[0], stored.shape[1]))[:, used]
    inner = (stored_used > 0) & (stored_used < top)
    values = means[inner]
    return ZeroTally(
        groups=int(values.size),
        groups_left_out=int(inner.size - values.size),
        mean_sum=float(values.sum()),
        mean_square_sum=float(np.square(values).sum()),
        stored_min=int(stored_used.min()),
        stored_max=int(stored_used.max()),
        stored_seen=int(stored_used.size),
        all_ones=int((stored_used == top).sum()),
        zero_codes=int((stored_used == 0).sum()),
    )


def group_means(codes: Array, stored: Array, group_of_column: Array) -> tuple[Array, Array]:
    """Mean of code - stored zero per row and group, the largest-magnitude code of each group left out.

    Magnitude is taken from halfway between the two readings' zeros, so that leaving it out favours none.

    Returns:
        float64 [R, G'] means and the integer [G'] group numbers that the columns use.
    """
    order = np.argsort(group_of_column, kind="stable")
    sorted_groups = group_of_column[order]
    used, starts = np.unique(sorted_groups, return_index=True)
    counts = np.diff(np.append(starts, sorted_groups.size))
    zero = np.broadcast_to(stored, (codes.shape[0], stored.shape[1]))[:, sorted_groups]
    deviation = codes[:, order].astype(np.float32) - zero
    totals = np.add.reduceat(deviation, starts, axis=1, dtype=np.float64)
    distance = deviation - np.float32(0.5)
    highest = np.maximum.reduceat(distance, starts, axis=1).astype(np.float64)
    lowest = np.minimum.reduceat(distance, starts, axis=1).astype(np.float64)
    extreme = np.where(highest >= -lowest, highest, lowest) + 0.5
    kept = np.maximum(counts - 1, 1)
    return (totals - extreme) / kept, used


def tensor_evidence(
    counted: ZeroTally, bit_width: int, total_groups: int, symmetric_claim: bool | None
) -> list[Evidence]:
    """Evidence steps of one tensor: constant plane, code statistic, wrapped zeros."""
    if not counted.stored_seen:
        return []
    sample = Sample(counted.stored_seen, total_groups)
    return [
        _constant_step(counted, bit_width, symmetric_claim, sample),
        _statistic_step(counted, bit_width, sample),
        Evidence(
            field="zero_convention",
            method="wrapped zeros",
            supports=(),
            strength=None,
            numbers={"all_ones": counted.all_ones, "zero": counted.zero_codes},
            sample=sample,
        ),
    ]


def _constant_step(
    counted: ZeroTally, bit_width: int, symmetric_claim: bool | None, sample: Sample
) -> Evidence:
    middle = 1 << (bit_width - 1)
    numbers: dict[str, Json] = {"stored_min": counted.stored_min, "stored_max": counted.stored_max}
    supports: tuple[Json, ...] = ()
    if counted.stored_min == counted.stored_max:
        supports = {middle - 1: ("minus_one",), middle: ("as_is",)}.get(counted.stored_min, ())
    return Evidence(
        field="zero_convention",
        method="constant zeros",
        supports=supports,
        strength=("strong" if symmetric_claim else "weak") if supports else None,
        numbers=numbers,
        sample=sample,
        assumes=() if symmetric_claim else ("constant words mean a symmetric quantizer",),
    )


def _statistic_step(counted: ZeroTally, bit_width: int, sample: Sample) -> Evidence:
    mean, error = counted.mean, counted.standard_error
    near = [name for name, centre in EXPECTED.items() if abs(mean - centre) < NEAR]
    decided = counted.groups > 1 and error < MAX_SE and len(near) == 1 and bit_width < 8
    numbers: dict[str, Json] = {
        "groups": counted.groups,
        "groups_left_out": counted.groups_left_out,
    }
    if counted.groups:
        numbers |= {"mean_as_is": round(mean, 6), "mean_minus_one": round(mean - 1.0, 6)}
    if counted.groups > 1:
        numbers["standard_error"] = round(error, 6)
    return Evidence(
        field="zero_convention",
        method="code statistic",
        supports=tuple(near) if decided else (),
        strength="strong" if decided else None,
        numbers=numbers,
        sample=sample,
        assumes=("module means of weights are small against their spread",),
    )


def set_evidence(tallies: Sequence[ZeroTally], bit_widths: Sequence[int]) -> Evidence | None:
    """Evidence of a set of modules: decisive when enough of them fall on one side, close together."""
    means = np.array(
        [
            counted.mean
            for counted, bits in zip(tallies, bit_widths, strict=True)
            if counted.groups > 1 and counted.standard_error < MAX_SE and bits < 8
        ]
    )
    if not means.size:
        return None
    sides = [name for name, centre in EXPECTED.items() if (np.abs(means - centre) < NEAR).all()]
    spread = float(means.std(ddof=1)) if means.size > 1 else 0.0
    decided = means.size >= DECISIVE_MODULES and len(sides) == 1 and spread < DECISIVE_SPREAD
    far = int((np.min([np.abs(means - c) for c in EXPECTED.values()], axis=0) > FAR).sum())
    return Evidence(
        field="zero_convention",
        method="code statistic over modules",
        supports=tuple(sides) if decided else (),
        strength="decisive" if decided else None,
        numbers={
            "modules": int(means.size),
            "modules_far_from_both": far,
            "mean_min": round(float(means.min()), 6),
            "mean_max": round(float(means.max()), 6),
            "worst_from_as_is": round(float(np.abs(means).max()), 6),
            "worst_from_minus_one": round(float(np.abs(means - 1).max()), 6),
            "spread": round(spread, 6),
        },
        sample=Sample(int(means.size), len(tallies), "modules"),
        assumes=("module means of weights are small against their spread",),
    )
