"""Solve the plane size equations over every candidate reading of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quantscope.families.protocol import Family
from quantscope.model import Claim, Equation, Json, LogicalTensor, Reading

STRUCTURAL_FIELDS = frozenset({"element", "shape", "group", "packing", "placement", "zero"})
"""Fields that size equations can speak about."""


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of the equations for one tensor.

    `solutions` are all candidates whose equations hold; `chosen` is the one shown by default (declared if
    it is among them, else the family's first), with its equations. Where nothing holds, `chosen` is the
    candidate that breaks the fewest planes.
    """

    candidates: tuple[Reading, ...]
    solutions: tuple[Reading, ...]
    chosen: Reading | None
    equations: tuple[Equation, ...]
    declared_holds: bool | None
    """Whether some candidate that the declarations allow solves the equations; None without declarations."""
    closest_declared: tuple[Equation, ...] = ()
    """Equations of the declared candidate, where it does not hold and another one does."""
    possible: dict[str, tuple[Json, ...]] = {}
    """Distinct values of every contract field over the candidates."""
    left: dict[str, tuple[Json, ...]] = {}
    """The same over the solutions."""
    values: dict[str, Json] = {}
    """Contract values of the chosen reading."""


def solve(family: Family, tensor: LogicalTensor, claims: tuple[Claim, ...]) -> Solved:
    """Check every candidate reading of a tensor and choose the one to show."""
    candidates = tuple(family.candidates(tensor))
    checked = [(reading, tuple(family.equations(tensor, reading))) for reading in candidates]
    solutions = [(reading, eqs) for reading, eqs in checked if holds(eqs)]
    firm = consistent(claims)
    allowed = [item for item in checked if agreement(item[0], firm)[1] == 0]
    declared_holds = any(holds(eqs) for _, eqs in allowed) if firm else None
    pool = solutions or checked
    if not pool:
        return Solved(
            candidates=(), solutions=(), chosen=None, equations=(), declared_holds=declared_holds
        )

    def rank(position: int) -> tuple[int, int, int, int]:
        reading, eqs = pool[position]
        agrees, contradicts = agreement(reading, claims)
        broken = sum(equation.holds is False for equation in eqs)
        return broken, contradicts, -agrees, position

    best = min(range(len(pool)), key=rank)
    chosen, equations = pool[best]
    closest: tuple[Equation, ...] = ()
    if solutions and declared_holds is False and allowed:
        closest = min(
            (eqs for _, eqs in allowed), key=lambda eqs: sum(e.holds is False for e in eqs)
        )
    return Solved(
        candidates=candidates,
        solutions=tuple(reading for reading, _ in solutions),
        chosen=chosen,
        equations=equations,
        declared_holds=declared_holds,
        closest_declared=closest,
        possible=distinct_values(candidates),
        left=distinct_values(tuple(reading for reading, _ in solutions)),
        values=chosen.contract_values(),
    )


def distinct_values(readings: Sequence[Reading]) -> dict[str, tuple[Json, ...]]:
    """Distinct values of every contract field over some readings, first come first."""
    seen: dict[str, list[Json]] = {}
    for reading in readings:
        for field, value in reading.contract_values().items():
            known = seen.setdefault(field, [])
            if value is not None and value not in known:
                known.append(value)
    return {field: tuple(values) for field, values in seen.items()}


def consistent(claims: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Claims on structural fields whose sources do not contradict each other."""
    kept = []
    for claim in claims:
        rivals = [other for other in claims if other.field == claim.field]
        agree = all(compatible(claim.value, other.value) for other in rivals)
        if agree and claim.field in STRUCTURAL_FIELDS:
            kept.append(claim)
    return tuple(kept)


def holds(equations: tuple[Equation, ...]) -> bool:
    """Whether no equation is broken."""
    return all(equation.holds is not False for equation in equations)


def agreement(reading: Reading, claims: tuple[Claim, ...]) -> tuple[int, int]:
    """How many claims a reading agrees with and how many it contradicts."""
    values = reading.contract_values()
    agrees = contradicts = 0
    for claim in claims:
        value = values.get(claim.field)
        if value is None or value == "not_applicable":
            continue
        if claim_fits(claim.value, value):
            agrees += 1
        else:
            contradicts += 1
    return agrees, contradicts


def compatible(one: Json, other: Json) -> bool:
    """Whether two claims can both be true: equal, or dicts that agree on every key they share."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(compatible(one[key], other[key]) for key in one.keys() & other.keys())
    return bool(one == other)


def claim_fits(claimed: Json, value: Json) -> bool:
    """Whether a claimed value is compatible with a full value.

    A claim may fix only some keys of a structured value ({"size": 128} fits {"axis": "in", "size": 128}).
    """
    if isinstance(claimed, dict) and isinstance(value, dict):
        return all(key in value and claim_fits(claimed[key], value[key]) for key in claimed)
    return bool(claimed == value)
