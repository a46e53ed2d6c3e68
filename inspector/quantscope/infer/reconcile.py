"""Put declared claims beside what the bytes say: one state per contract field."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from quantscope.infer.effects import effect_of
from quantscope.infer.readers import Stance
from quantscope.infer.solver import STRUCTURAL_FIELDS, Solved, claim_fits, compatible
from quantscope.model import (
    CONTRACT_FIELDS,
    Candidate,
    Claim,
    Contract,
    Evidence,
    FieldState,
    Inferred,
    Json,
    Match,
    Strength,
)
from quantscope.model.claims import STRENGTH_RANK
from quantscope.model.readings import Reading

Item = TypeVar("Item", Claim, Evidence)

SIZE_FIELDS = frozenset({"group", "shape"})
"""Fields that plane sizes determine even where a family has only one candidate for them."""

HEADER_FIELDS = frozenset({"scale", "zero"})
"""Fields that the dtypes and the presence of planes in the header speak about."""


def reconcile(
    solved: Solved,
    claims: Sequence[Claim],
    evidence: Sequence[Evidence],
    inexpressible: str | None = None,
    found_stances: Sequence[Stance] = (),
    base: tuple[Contract, Collection[str]] | None = None,
) -> Contract:
    """The contract of one tensor.

    Args:
        solved: outcome of the size equations.
        claims: declared claims on any field.
        evidence: steps on any field, without those of the equations, which are added here.
        inexpressible: why no rule decodes the tensor; marks arithmetic inexpressible.
        found_stances: what known runtimes do with the zero convention of this tensor.
        base: a contract that differs from this one in the evidence on the named fields only; the others are
            shared with it.
    """
    claims_by_field, steps_by_field = by_field(claims), by_field(evidence)
    fields: dict[str, FieldState] = {}
    follows = len(solved.left.get("arithmetic", ())) > 1
    for field in CONTRACT_FIELDS:
        if base is not None and field not in base[1] and not (follows and field == "arithmetic"):
            fields[field] = base[0].fields[field]
            continue
        steps = (*structural_evidence(field, solved), *steps_by_field.get(field, ()))
        if follows and field == "arithmetic":
            steps += _following(fields, solved)
        known = found_stances if field == "zero_convention" else ()
        own_claims = claims_by_field.get(field, ())
        fields[field] = _state(field, solved, own_claims, steps, inexpressible, known)
    return Contract(fields=fields)


def _following(fields: Mapping[str, FieldState], solved: Solved) -> tuple[Evidence, ...]:
    """What the decode rule must be where other fields decide between the solutions."""
    decided = {
        field: state.inferred
        for field, state in fields.items()
        if state.inferred is not None
        and len(solved.left.get(field, ())) > 1
        and STRENGTH_RANK[state.inferred.strength] >= STRENGTH_RANK["strong"]
    }
    rules: list[Json] = []
    for reading in solved.solutions:
        values = reading.contract_values()
        fits = all(values.get(field) == found.value for field, found in decided.items())
        if fits and values.get("arithmetic") not in rules:
            rules.append(values.get("arithmetic"))
    if not decided or len(rules) != 1:
        return ()
    weakest = min((found.strength for found in decided.values()), key=STRENGTH_RANK.__getitem__)
    return (
        Evidence(
            field="arithmetic",
            method="follows from " + ", ".join(decided),
            supports=(rules[0],),
            strength=weakest,
        ),
    )


def with_claims(contract: Contract, claims: Sequence[Claim]) -> Contract:
    """A contract with another tensor's claims: the same statements, standing in other places."""
    claims_by_field = by_field(claims)
    fields = dict(contract.fields)
    for field, own in claims_by_field.items():
        fields[field] = msgspec.structs.replace(fields[field], declared=own)
    return Contract(fields=fields)


def by_field(items: Sequence[Item]) -> dict[str, tuple[Item, ...]]:
    """Claims or evidence steps by the contract field that they are about, order kept."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.field, []).append(item)
    return {field: tuple(members) for field, members in found.items() if field in CONTRACT_FIELDS}


def reading_in_force(solved: Solved, contract: Contract) -> Reading | None:
    """The solution that agrees best with what the bytes say of fields that sizes leave open."""
    if solved.chosen is None or len(solved.solutions) < 2:
        return solved.chosen
    wanted = {
        field: state.inferred.value
        for field, state in contract.fields.items()
        if state.inferred is not None and state.inferred.strength != "convention"
    }
    return _closest(solved, wanted)


def declared_reading(solved: Solved, claims: Sequence[Claim]) -> Reading | None:
    """The solution that agrees best with the declarations; the first source counts where they contradict."""
    if solved.chosen is None or len(solved.solutions) < 2:
        return solved.chosen
    wanted: dict[str, Json] = {}
    for claim in claims:
        wanted.setdefault(claim.field, claim.value)
    return _closest(solved, wanted)


def _closest(solved: Solved, wanted: dict[str, Json]) -> Reading:
    assert solved.chosen is not None
    base = solved.values

    def score(reading: Reading) -> tuple[int, int]:
        values = reading.contract_values()
        hits = sum(claim_fits(value, values.get(field)) for field, value in wanted.items())
        return hits, sum(values.get(key) == base.get(key) for key in base)

    return max(solved.solutions, key=score)


def structural_evidence(field: str, solved: Solved) -> list[Evidence]:
    """What the size equations and the header say about a field."""
    if solved.chosen is None:
        return []
    possible = solved.possible.get(field, ())
    left = solved.left.get(field, ())
    if not possible or possible == ("not_applicable",):
        return []
    steps: list[Evidence] = []
    if len(possible) > 1 and solved.solutions:
        only = len(left) == 1
        steps.append(
            Evidence(
                field=field,
                method="size equations",
                supports=left,
                strength="proved" if only else None,
                numbers={"readings_tried": len(possible), "readings_left": len(left)},
            )
        )
    elif field in SIZE_FIELDS and len(left) == 1:
        steps.append(
            Evidence(
                field=field,
                method="size equations",
                supports=left,
                strength="proved",
                numbers={"readings_tried": len(solved.candidates), "readings_left": 1},
            )
        )
    elif field in HEADER_FIELDS and len(left) == 1:
        steps.append(
            Evidence(
                field=field,
                method="stored planes and dtypes",
                supports=left,
                strength="proved",
                assumes=("direction and sign as the format defines them",)
                if field == "scale"
                else (),
            )
        )
    return steps


def weigh(steps: Sequence[Evidence]) -> tuple[Inferred | None, bool]:
    """The value that evidence steps speak for, and whether steps of strength conflict."""
    votes: dict[str, tuple[Json, Strength]] = {}
    for step in steps:
        if step.strength is None or len(step.supports) != 1:
            continue
        value = step.supports[0]
        key = repr(value)
        if key not in votes or STRENGTH_RANK[step.strength] > STRENGTH_RANK[votes[key][1]]:
            votes[key] = (value, step.strength)
    if not votes:
        return None, False
    ranked = sorted(votes.values(), key=lambda vote: -STRENGTH_RANK[vote[1]])
    value, strength = ranked[0]
    conflict = len(ranked) > 1 and STRENGTH_RANK[ranked[1][1]] >= STRENGTH_RANK["strong"]
    if len(ranked) > 1 and STRENGTH_RANK[ranked[1][1]] == STRENGTH_RANK[strength]:
        return None, True
    if conflict and strength != "proved":
        strength = "weak"
    return Inferred(value, strength), conflict


def _state(
    field: str,
    solved: Solved,
    claims: tuple[Claim, ...],
    steps: tuple[Evidence, ...],
    inexpressible: str | None,
    found_stances: Sequence[Stance],
) -> FieldState:
    chosen = solved.chosen
    value = solved.values.get(field)
    inferred, conflict = weigh(steps)
    left = (solved.left if solved.solutions else solved.possible).get(field, ())
    if field == "arithmetic" and inexpressible is not None:
        return FieldState(
            field=field,
            declared=claims,
            evidence=steps,
            match="inexpressible",
            reason=inexpressible,
        )
    if value == "not_applicable" and not claims:
        return FieldState(field=field, match="not_applicable")
    if inferred is None and value is not None and len(left) == 1 and not conflict:
        inferred = Inferred(value, "convention")
    candidates: tuple[Candidate, ...] = ()
    if len(left) > 1 and (inferred is None or inferred.strength != "proved"):
        candidates = tuple(
            Candidate(
                value=v,
                effect=effect_of(field, v, left),
                readers=tuple(f"{s.reader} {s.version}" for s in found_stances if s.value == v),
            )
            for v in left
        )
    match = match_of(claims, inferred, bool(candidates))
    if claims and solved.solutions and field in STRUCTURAL_FIELDS:
        # No solution of the sizes has the declared value, whichever of them is the right one.
        fits = any(claim_fits(claim.value, v) for claim in claims for v in left)
        match = match if fits else "disagree"
    reason = "evidence steps conflict" if conflict else ""
    if field == "element" and value is None and not claims:
        match = "not_checked" if chosen is None else match
    return FieldState(
        field=field,
        declared=claims,
        evidence=steps,
        inferred=inferred,
        match=match,
        candidates=candidates,
        reason=reason,
    )


def match_of(claims: Sequence[Claim], inferred: Inferred | None, open_candidates: bool) -> Match:
    """How declared and inferred compare."""
    if claims:
        first = claims[0].value
        if any(not compatible(claim.value, first) for claim in claims[1:]):
            return "disagree"
        if inferred is None or inferred.strength == "convention":
            return "declared_only"
        fits = all(claim_fits(claim.value, inferred.value) for claim in claims)
        return "agree" if fits else "disagree"
    if inferred is None:
        return "ambiguous" if open_candidates else "not_applicable"
    if inferred.strength == "weak" and open_candidates:
        return "ambiguous"
    return "inferred_only"
