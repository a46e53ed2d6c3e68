"""Declared beside inferred: one match a field, conflicts shown, nothing dropped."""

from __future__ import annotations

import pytest
from quantscope.infer.reconcile import match_of, reconcile, weigh, with_claims
from quantscope.infer.solver import Solved, claim_fits, compatible, consistent, distinct_values
from quantscope.model import (
    Claim,
    Evidence,
    GroupLevel,
    Inferred,
    Packing,
    Reading,
    ScaleLevel,
    Source,
)


def reading(convention: str = "as_is", bits: int = 4, size: int = 128) -> Reading:
    return Reading(
        element=f"u{bits}",
        bit_width=bits,
        shape=(64, 256),
        group=(GroupLevel(axis="in", size=size),),
        scale=(ScaleLevel(dtype="f16"),),
        zero="integer",
        zero_convention=convention,
        packing=Packing(word="I32", axis="in"),
    )


def solved(*solutions: Reading, candidates: tuple[Reading, ...] = ()) -> Solved:
    tried = candidates or solutions
    return Solved(
        candidates=tried,
        solutions=solutions,
        chosen=solutions[0] if solutions else None,
        equations=(),
        declared_holds=None,
        possible=distinct_values(tried),
        left=distinct_values(solutions),
        values=solutions[0].contract_values() if solutions else {},
    )


def claim(field: str, value: object, key: str = "/bits", written: object = None) -> Claim:
    return Claim(field=field, value=value, source=Source("config.json", key), written=written)


def step(value: str, strength: str | None, method: str = "m") -> Evidence:
    supports = (value,) if strength else ()
    return Evidence(
        field="zero_convention",
        method=method,
        supports=supports,
        strength=strength,  # type: ignore[arg-type]
    )


BOTH = solved(reading("minus_one"), reading("as_is"))


def test_an_undeclared_convention_that_nothing_decides_is_ambiguous_with_both_readings() -> None:
    state = reconcile(BOTH, (), ())["zero_convention"]
    assert state.match == "ambiguous"
    assert {c.value for c in state.candidates} == {"minus_one", "as_is"}
    assert all(c.effect for c in state.candidates)


def test_evidence_against_a_declaration_is_a_disagreement_that_keeps_both() -> None:
    claims = (claim("zero_convention", "minus_one", "/checkpoint_format", "gptq"),)
    state = reconcile(BOTH, claims, (step("as_is", "decisive"),))["zero_convention"]
    assert state.match == "disagree"
    assert state.inferred == Inferred("as_is", "decisive")
    assert state.declared == claims


def test_two_sources_that_contradict_are_a_disagreement_and_none_is_dropped() -> None:
    claims = (claim("element", "u4"), claim("element", "u8", "/other"))
    state = reconcile(solved(reading()), claims, ())["element"]
    assert state.match == "disagree"
    assert len(state.declared) == 2


def test_a_custom_is_never_shown_as_agreeing_with_a_declaration() -> None:
    assert match_of((claim("placement", "linear"),), Inferred("linear", "convention"), False) == (
        "declared_only"
    )


def test_a_declared_value_that_no_solution_has_is_a_disagreement() -> None:
    state = reconcile(solved(reading(size=64)), (claim("group", {"size": 128}),), ())["group"]
    assert state.match == "disagree"
    assert state.inferred is not None
    assert state.inferred.strength == "proved"


@pytest.mark.parametrize(
    ("steps", "expected", "conflict"),
    [
        ([step("a", "strong"), step("a", "weak")], Inferred("a", "strong"), False),
        ([step("a", "strong"), step("b", "strong")], None, True),
        ([step("a", "decisive"), step("b", "strong")], Inferred("a", "weak"), True),
        ([step("a", "strong"), step("b", "weak")], Inferred("a", "strong"), False),
        ([step("a", None)], None, False),
    ],
)
def test_steps_of_equal_strength_that_conflict_decide_nothing(
    steps: list[Evidence], expected: Inferred | None, conflict: bool
) -> None:
    assert weigh(steps) == (expected, conflict)


def test_claims_that_fix_different_keys_do_not_contradict() -> None:
    assert compatible({"axis": "in"}, {"order": "planar"})
    assert not compatible({"axis": "in"}, {"axis": "out", "order": "awq"})
    assert claim_fits({"size": 128}, {"axis": "in", "size": 128})
    assert not claim_fits({"size": 64}, {"axis": "in", "size": 128})


def test_a_shared_contract_with_other_claims_changes_nothing_but_where_they_stand() -> None:
    mine = (claim("element", "u4", "/a"),)
    theirs = (claim("element", "u4", "/b"),)
    shared = reconcile(BOTH, mine, ())
    moved = with_claims(shared, theirs)
    assert moved["element"].declared == theirs
    assert moved["element"].inferred == shared["element"].inferred
    assert shared["element"].declared == mine
    assert moved["group"] == shared["group"]


def test_only_claims_that_agree_among_themselves_bind_the_solver() -> None:
    kept = consistent(
        (claim("element", "u4"), claim("element", "u8"), claim("group", {"size": 64}))
    )
    assert [c.field for c in kept] == ["group"]
