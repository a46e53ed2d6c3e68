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
MAJORITY = 2 / 3
"""Share of the modules that decide at all which must stand on the set's side."""
FEW_ZEROS = 8
"""Fewer stored zeros than this are equal by chance: being constant says nothing."""
OPEN_WIDTH = 8
"""At this width one step is a small part of a group's spread; the mean decides nothing below this many bits only."""

EXPECTED = {"as_is": 0.0, "minus_one": 1.0}
"""Expected mean(code - stored zero) under each reading."""
READINGS = tuple(EXPECTED)


class ZeroTally(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over sampled groups: enough to give mean(code - zero used) per reading, and to join windows.

    `sums` and `squares` are per reading in the order of EXPECTED: over groups, of the group's mean of
    code - zero used, with the code of largest magnitude under that reading left out.
    """

    groups: int = 0
    groups_left_out: int = 0
    """Groups with the stored zero at an end of the code range."""
    sums: tuple[float, float] = (0.0, 0.0)
    squares: tuple[float, float] = (0.0, 0.0)
    stored_min: int = 0
    stored_max: int = 0
    stored_seen: int = 0
    all_ones: int = 0
    zero_codes: int = 0

    def mean(self, reading: str) -> float:
        """Mean of code - zero used under a reading; near 0 under the right one."""
        if not self.groups:
            return float("nan")
        return self.sums[READINGS.index(reading)] / self.groups

    def standard_error(self, reading: str) -> float:
        """Standard error of that mean over groups."""
        if self.groups < 2:
            return float("inf")
        square = self.squares[READINGS.index(reading)] - self.groups * self.mean(reading) ** 2
        return float(np.sqrt(max(square / (self.groups - 1), 0.0) / self.groups))

    def joined(self, other: ZeroTally) -> ZeroTally:
        """Both tallies together."""
        if not other.stored_seen:
            return self
        if not self.stored_seen:
            return other
        return ZeroTally(
            groups=self.groups + other.groups,
            groups_left_out=self.groups_left_out + other.groups_left_out,
            sums=(self.sums[0] + other.sums[0], self.sums[1] + other.sums[1]),
            squares=(self.squares[0] + other.squares[0], self.squares[1] + other.squares[1]),
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
    if stored.shape[1] == 1 and parts.group_of_column.size:
        stored = np.broadcast_to(stored, (stored.shape[0], int(parts.group_of_column.max()) + 1))
    top = (1 << bit_width) - 1
    means, used = group_means(parts.codes, stored, parts.group_of_column)
    stored_used = np.broadcast_to(stored, (means.shape[1], stored.shape[1]))[:, used]
    inner = (stored_used > 0) & (stored_used < top)
    kept = means[:, inner]
    sums, squares = kept.sum(axis=1), np.square(kept).sum(axis=1)
    return ZeroTally(
        groups=int(kept.shape[1]),
        groups_left_out=int(inner.size - kept.shape[1]),
        sums=(float(sums[0]), float(sums[1])),
        squares=(float(squares[0]), float(squares[1])),
        stored_min=int(stored_used.min()),
        stored_max=int(stored_used.max()),
        stored_seen=int(stored_used.size),
        all_ones=int((stored_used == top).sum()),
        zero_codes=int((stored_used == 0).sum()),
    )


def group_means(codes: Array, stored: Array, group_of_column: Array) -> tuple[Array, Array]:
    """Mean of code - zero used per reading, row and group, each group's largest-magnitude code left out.

    Some producers turn each group so that its extreme weight takes an end code, which biases the plain
    mean by up to a whole step at 8 bits; without that code the mean is honest.

    Returns:
        float64 [2, R, G'] means under as_is and minus_one, and the integer [G'] groups that columns use.
    """
    order = np.argsort(group_of_column, kind="stable")
    sorted_groups = group_of_column[order]
    used, starts = np.unique(sorted_groups, return_index=True)
    counts = np.diff(np.append(starts, sorted_groups.size))
    zero = np.broadcast_to(stored, (codes.shape[0], stored.shape[1]))[:, sorted_groups]
    deviation = codes[:, order].astype(np.float32) - zero
    totals = np.add.reduceat(deviation, starts, axis=1, dtype=np.float64)
    highest = np.maximum.reduceat(deviation, starts, axis=1).astype(np.float64)
    lowest = np.minimum.reduceat(deviation, starts, axis=1).astype(np.float64)
    kept = np.maximum(counts - 1, 1)
    means = []
    for centre in EXPECTED.values():
        above, below = highest - centre, lowest - centre
        extreme = np.where(above > -below, above, np.where(above < -below, below, 0.0))
        number = np.where(above == -below, counts, kept)
        means.append((totals - centre * counts - extreme) / number)
    return np.stack(means), used


def tensor_evidence(
    counted: ZeroTally,
    bit_width: int,
    total_groups: int,
    symmetric_claim: bool | None,
    *,
    few: bool = False,
) -> list[Evidence]:
    """Evidence steps of one tensor: constant plane, code statistic, wrapped zeros.

    `few`: the tensor stores fewer than FEW_ZEROS zeros.
    """
    if not counted.stored_seen:
        return []
    sample = Sample(counted.stored_seen, total_groups)
    return [
        _constant_step(counted, bit_width, symmetric_claim, sample, few),
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
    counted: ZeroTally, bit_width: int, symmetric_claim: bool | None, sample: Sample, few: bool
) -> Evidence:
    middle = 1 << (bit_width - 1)
    numbers: dict[str, Json] = {"stored_min": counted.stored_min, "stored_max": counted.stored_max}
    supports: tuple[Json, ...] = ()
    if counted.stored_min == counted.stored_max and (symmetric_claim or not few):
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


def _supported(counted: ZeroTally) -> list[str]:
    """Readings whose mean is near 0 and known well enough."""
    return [
        name
        for name in READINGS
        if abs(counted.mean(name)) < NEAR and counted.standard_error(name) < MAX_SE
    ]


def groups_needed(counted: ZeroTally) -> int | None:
    """Groups that would bring the standard error under its limit; None where nothing was tallied."""
    if counted.groups < 2:
        return None
    worst = max(counted.standard_error(name) for name in READINGS)
    return int(np.ceil(counted.groups * (worst / MAX_SE) ** 2))


def _statistic_step(counted: ZeroTally, bit_width: int, sample: Sample) -> Evidence:
    near = _supported(counted)
    decided = len(near) == 1 and bit_width < OPEN_WIDTH
    numbers: dict[str, Json] = {
        "groups": counted.groups,
        "groups_left_out": counted.groups_left_out,
    }
    if counted.groups:
        for name in READINGS:
            numbers[f"mean_{name}"] = round(counted.mean(name), 6)
    if counted.groups > 1:
        for name in READINGS:
            numbers[f"standard_error_{name}"] = round(counted.standard_error(name), 6)
        if not decided:
            numbers["groups_needed"] = groups_needed(counted)
    return Evidence(
        field="zero_convention",
        method="code statistic",
        supports=tuple(near) if decided else (),
        strength="strong" if decided else None,
        numbers=numbers,
        sample=sample,
        assumes=("module means of weights are small against their spread",),
    )


class SetDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What a set of modules says together.

    `side_of` gives each module's own side in the order of the tallies, None where it decides nothing alone.
    """

    evidence: Evidence
    side_of: tuple[str | None, ...]

    @property
    def side(self) -> str | None:
        """The reading that the set decides for, or None."""
        return str(self.evidence.supports[0]) if self.evidence.supports else None

    def evidence_for(self, module: int) -> Evidence:
        """The step as it bears on one module: it does not speak for one that stands on the other side."""
        own = self.side_of[module]
        if own is None or own == self.side or not self.evidence.supports:
            return self.evidence
        return msgspec.structs.replace(
            self.evidence,
            method="odd one out over modules",
            supports=(),
            strength=None,
            numbers={**self.evidence.numbers, "this_module": own, "the_others": self.side},
        )


def set_evidence(tallies: Sequence[ZeroTally], bit_widths: Sequence[int]) -> SetDecision | None:
    """Evidence of a set of modules: decisive when enough of them fall on one side, close together.

    At least DECISIVE_MODULES on the side, at least MAJORITY of those that decide at all, and a spread of
    their means under DECISIVE_SPREAD. None where no module has a usable mean.
    """
    side_of = tuple(
        _side_of(counted) if bits < OPEN_WIDTH else None
        for counted, bits in zip(tallies, bit_widths, strict=True)
    )
    known = [
        counted
        for counted, bits in zip(tallies, bit_widths, strict=True)
        if bits < OPEN_WIDTH
        and counted.groups > 1
        and min(counted.standard_error(name) for name in READINGS) < MAX_SE
    ]
    if not known:
        return None
    means = {name: np.array([counted.mean(name) for counted in known]) for name in READINGS}
    on_side = {name: values[np.abs(values) < NEAR] for name, values in means.items()}
    best = max(READINGS, key=lambda name: on_side[name].size)
    members = on_side[best]
    spread = float(members.std(ddof=1)) if members.size > 1 else 0.0
    decided = (
        members.size >= DECISIVE_MODULES
        and members.size >= MAJORITY * len(known)
        and spread < DECISIVE_SPREAD
    )
    nearest = np.min([np.abs(values) for values in means.values()], axis=0)
    numbers: dict[str, Json] = {
        "modules": len(known),
        "modules_far_from_both": int((nearest > FAR).sum()),
        "spread": round(spread, 6),
    }
    for name, values in means.items():
        numbers |= {
            f"mean_{name}_min": round(float(values.min()), 6),
            f"mean_{name}_max": round(float(values.max()), 6),
            f"worst_{name}": round(float(np.abs(values).max()), 6),
            f"modules_{name}": int(on_side[name].size),
        }
    return SetDecision(
        evidence=Evidence(
            field="zero_convention",
            method="code statistic over modules",
            supports=(best,) if decided else (),
            strength="decisive" if decided else None,
            numbers=numbers,
            sample=Sample(len(known), len(tallies), "modules"),
            assumes=("module means of weights are small against their spread",),
        ),
        side_of=side_of,
    )


def _side_of(counted: ZeroTally) -> str | None:
    near = _supported(counted) if counted.groups > 1 else []
    return near[0] if len(near) == 1 else None
