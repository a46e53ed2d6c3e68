"""Evidence and statistics of many tensors as one: sums, extremes, and how many tensors stand behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quantscope.infer.examine import CodeStats, Examination
from quantscope.infer.plane_values import PlaneStats
from quantscope.model import Evidence, Sample
from quantscope.report.schema import (
    CodeStatistics,
    EvidenceEntry,
    PlaneStatistics,
    SampleEntry,
    Statistics,
)


class _Step:
    """One evidence step as it recurs from tensor to tensor."""

    def __init__(self, step: Evidence) -> None:
        self.first = step
        self.tensors = 0
        self.numbers: dict[str, list[Any]] = {}
        self.sample = Sample(0, 0, step.sample.unit) if step.sample is not None else None

    def add(self, step: Evidence) -> None:
        """The step of one more tensor; a step shared by a set counts its numbers once."""
        self.tensors += 1
        if step is self.first and self.tensors > 1:
            return
        for key, value in step.numbers.items():
            self._number(key, value)
        if self.sample is not None and step.sample is not None:
            self.sample = Sample(
                self.sample.examined + step.sample.examined,
                self.sample.total + step.sample.total,
                self.sample.unit,
            )

    def _number(self, key: str, value: Any) -> None:
        """Keeps [first, smallest, largest, all equal]."""
        kept = self.numbers.get(key)
        if kept is None:
            self.numbers[key] = [value, value, value, True]
            return
        if value != kept[0]:
            kept[3] = False
        if _is_number(value) and _is_number(kept[1]):
            kept[1], kept[2] = min(kept[1], value), max(kept[2], value)
        else:
            kept[1] = kept[2] = None

    def entry(self) -> EvidenceEntry:
        """The step as a report writes it."""
        sample = self.sample
        return EvidenceEntry(
            method=self.first.method,
            supports=list(self.first.supports),
            strength=self.first.strength,
            numbers={key: _shown(*kept) for key, kept in sorted(self.numbers.items())},
            sample=SampleEntry(examined=sample.examined, total=sample.total, unit=sample.unit)
            if sample is not None
            else None,
            assumes=list(self.first.assumes),
            tensors=self.tensors,
        )


def _shown(first: Any, smallest: Any, largest: Any, equal: bool) -> Any:
    if equal:
        return first
    if smallest is None:
        return {"first": first, "differs": True}
    return {"min": smallest, "max": largest}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class EvidenceSum:
    """Evidence steps of one field over many tensors."""

    def __init__(self) -> None:
        self._steps: dict[bytes, _Step] = {}
        self._keys: dict[int, tuple[Evidence, bytes]] = {}

    def add(self, steps: Sequence[Evidence]) -> None:
        """The steps of one more tensor."""
        for step in steps:
            key = self._key(step)
            known = self._steps.get(key)
            if known is None:
                known = self._steps[key] = _Step(step)
            known.add(step)

    def _key(self, step: Evidence) -> bytes:
        cached = self._keys.get(id(step))
        if cached is not None:
            return cached[1]
        unit = step.sample.unit if step.sample is not None else ""
        key = msgspec.json.encode((step.method, step.supports, step.strength, step.assumes, unit))
        if len(self._keys) < 64:
            self._keys[id(step)] = (step, key)
        return key

    def entries(self) -> list[EvidenceEntry]:
        """Every step, first come first."""
        return [step.entry() for step in self._steps.values()]


class StatisticsSum:
    """Plane and code statistics over many tensors."""

    def __init__(self) -> None:
        self._planes: dict[str, PlaneStatistics] = {}
        self._codes: CodeStatistics | None = None

    def add(self, exam: Examination) -> None:
        """The examination of one more tensor."""
        for plane in exam.planes:
            known = self._planes.get(plane.suffix)
            fresh = _plane(plane)
            self._planes[plane.suffix] = fresh if known is None else _joined_planes(known, fresh)
        if exam.codes is not None:
            codes = _codes(exam.codes)
            self._codes = codes if self._codes is None else _joined_codes(self._codes, codes)

    def entry(self) -> Statistics | None:
        """The sums as a report writes them; None where no byte was looked at."""
        if not self._planes and self._codes is None:
            return None
        return Statistics(planes=list(self._planes.values()), codes=self._codes)


def _plane(stats: PlaneStats) -> PlaneStatistics:
    return PlaneStatistics(
        plane=stats.suffix,
        dtype=stats.dtype,
        total=stats.total,
        examined=stats.examined,
        nan=stats.nan,
        inf=stats.inf,
        zero=stats.zero,
        negative=stats.negative,
        subnormal=stats.subnormal,
        smallest=stats.smallest,
        largest=stats.largest,
    )


def _joined_planes(a: PlaneStatistics, b: PlaneStatistics) -> PlaneStatistics:
    smallest = [v for v in (a.smallest, b.smallest) if v is not None]
    largest = [v for v in (a.largest, b.largest) if v is not None]
    return PlaneStatistics(
        plane=a.plane,
        dtype=a.dtype,
        total=a.total + b.total,
        examined=a.examined + b.examined,
        nan=a.nan + b.nan,
        inf=a.inf + b.inf,
        zero=a.zero + b.zero,
        negative=a.negative + b.negative,
        subnormal=a.subnormal + b.subnormal,
        smallest=min(smallest) if smallest else None,
        largest=max(largest) if largest else None,
    )


def _codes(stats: CodeStats) -> CodeStatistics:
    return CodeStatistics(
        groups_examined=stats.groups_examined,
        groups_total=stats.groups_total,
        elements=stats.elements,
        lowest_code=stats.lowest_code,
        histogram=list(stats.histogram),
        rows=stats.rows,
        constant_rows=stats.constant_rows,
    )


def _joined_codes(a: CodeStatistics, b: CodeStatistics) -> CodeStatistics:
    same = len(a.histogram) == len(b.histogram) and a.lowest_code == b.lowest_code
    return CodeStatistics(
        groups_examined=a.groups_examined + b.groups_examined,
        groups_total=a.groups_total + b.groups_total,
        elements=a.elements + b.elements,
        lowest_code=a.lowest_code,
        histogram=[x + y for x, y in zip(a.histogram, b.histogram, strict=True)] if same else [],
        rows=a.rows + b.rows,
        constant_rows=a.constant_rows + b.constant_rows,
    )
