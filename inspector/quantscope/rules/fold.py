"""Fold findings of the same fact into one, and put the worst first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from quantscope.model import SEVERITIES, Finding, Subject
from quantscope.rules.base import Hit

_DIGITS = re.compile(r"(\d+)")
_FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
"""A number of a folded message; nothing else of a format string is honoured, names come from files."""


def natural_key(text: str) -> tuple[tuple[int, int | str], ...]:
    """Sort key under which `layers.2` stands before `layers.10`."""
    return tuple(
        (0, int(part)) if part.isdigit() else (1, part)
        for part in _DIGITS.split(text[:400])
        if part
    )


def subject_name(subject: Subject) -> str:
    """The name of a subject as a member of a folded finding."""
    return subject.tensor or subject.stored or subject.config_key or subject.file or ""


def fold(hits: Iterable[Finding | Hit]) -> list[Finding]:
    """One finding a fact, sorted worst first."""
    groups: dict[tuple[str, ...], list[Hit]] = defaultdict(list)
    for item in hits:
        hit = item if isinstance(item, Hit) else Hit(finding=item, fold=_own_fold(item))
        found = hit.finding
        groups[found.code, found.severity, found.kind or "", hit.fold].append(hit)
    return ordered([_joined(group) for group in groups.values()])


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Findings worst first, then by code and subject; equal ids of one code are told apart by message."""
    rank = {severity: place for place, severity in enumerate(SEVERITIES)}
    return sorted(
        findings,
        key=lambda f: (
            rank[f.severity],
            f.code,
            natural_key(f.subject.key()),
            f.message,
        ),
    )


def _own_fold(found: Finding) -> str:
    """A finding given without a fold key folds only with its exact double."""
    return f"{found.message}|{found.subject.key()}"


def _joined(group: Sequence[Hit]) -> Finding:
    group = sorted(group, key=lambda hit: natural_key(hit.finding.subject.key()))
    first = group[0].finding
    if len(group) == 1:
        return first
    names: dict[str, None] = {}
    for hit in group:
        for name in hit.finding.members or (subject_name(hit.finding.subject),):
            names[name] = None
    members = tuple(sorted(names, key=natural_key))
    if len(members) < 2:
        return first
    data = [hit.finding.data for hit in group]
    message = first.message
    many = group[0].many
    if many:
        sums = _Sums(data, len(members))
        message = _FIELD.sub(lambda found: str(sums.get(found[1], found[0])), many)
    return msgspec.structs.replace(
        first, message=message, data=_merged(data), members=members, count=len(members)
    )


class _Sums:
    """Numbers of a folded message: sums of integers, `lo_`/`hi_` extremes, first values of the rest."""

    def __init__(self, data: Sequence[dict[str, Any]], count: int) -> None:
        self._count = count
        self._data = data

    def get(self, key: str, default: str) -> Any:
        """The value of a placeholder, or the default where the data has none."""
        if key == "count":
            return self._count
        extreme = key[:3] in ("lo_", "hi_")
        name = key[3:] if extreme else key
        values = [item[name] for item in self._data if name in item]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if extreme and numbers:
            value = min(numbers) if key.startswith("lo_") else max(numbers)
            return value if isinstance(value, int) else f"{value:.4g}"
        if numbers and all(isinstance(v, int) for v in numbers):
            return sum(numbers)
        return values[0] if values else default


def _merged(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Values that all members share; {min, max} (and sum of integers) of numbers that differ."""
    merged: dict[str, Any] = {}
    for key, value in data[0].items():
        values = [item.get(key) for item in data]
        if all(other == value for other in values):
            merged[key] = value
            continue
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if len(numbers) == len(values):
            merged[key] = {"min": min(numbers), "max": max(numbers)}
            if all(isinstance(v, int) for v in numbers):
                merged[key]["sum"] = sum(numbers)
        else:
            merged[key] = {"first": value, "differs": True}
    return merged
