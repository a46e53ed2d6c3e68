"""Rules that compare what files declare of one contract field with what the bytes say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar

from quantscope.infer.solver import STRUCTURAL_FIELDS, claim_fits
from quantscope.model import Claim, Equation, FieldState, Json, Strength, Subject
from quantscope.model.claims import STRENGTH_RANK
from quantscope.rules.base import Hit, Rule
from quantscope.rules.facts import Facts
from quantscope.session.inspection import TensorState


def word(value: Json) -> str:
    """A contract value in short words: `u4`, `in 128`, `axis in, order awq`."""
    if isinstance(value, dict):
        if set(value) == {"size"}:
            return str(value["size"])
        if set(value) >= {"axis", "size"}:
            size = value["size"]
            text = value["axis"] if size is None else f"{size} along {value['axis']}"
            return str(text)
        return ", ".join(f"{key} {word(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, str):
        return value
    return json.dumps(value)


def contradicting(state: FieldState) -> list[Claim]:
    """Claims that the inferred value does not fit; empty where nothing firm is inferred.

    A value that every solution of the sizes shares is firm too: then the match is `disagree`.
    """
    inferred = state.inferred
    if inferred is None:
        return []
    weak = STRENGTH_RANK[inferred.strength] < STRENGTH_RANK["strong"]
    if weak and state.match != "disagree":
        return []
    return [claim for claim in state.declared if not claim_fits(claim.value, inferred.value)]


def jointly_contradicting(state: TensorState, field: str) -> list[Claim]:
    """Claims on a field that no solution satisfies together with the other claims.

    Each may fit some solution alone (4 bits in groups of 64, or 8 bits in groups of 32): the solution that
    contradicts the fewest claims is taken for the truth.
    """
    solved = state.solved
    if solved.declared_holds is not False or solved.chosen is None or not solved.solutions:
        return []
    if field not in STRUCTURAL_FIELDS or solved.chosen not in solved.solutions:
        return []
    value = solved.chosen.contract_values().get(field)
    if value is None or value == "not_applicable":
        return []
    return [claim for claim in state.contract[field].declared if not claim_fits(claim.value, value)]


def broken_words(equations: tuple[Equation, ...]) -> str:
    """The first equation that the declared reading breaks, in words."""
    for equation in equations:
        if equation.holds is False:
            wanted, actual = equation.expected_shape, equation.actual_shape
            if wanted is not None and actual is not None:
                return f"; declared needs {equation.plane} {list(wanted)}, stored is {list(actual)}"
    return ""


class FieldRule(Rule):
    """One contract field: declared against what the bytes say."""

    field: ClassVar[str]
    noun: ClassVar[str]
    impact: ClassVar[str]

    def check(self, facts: Facts) -> Iterator[Hit]:
        """One hit per tensor whose bytes contradict a declaration."""
        for state in facts.states:
            hit = self.of_state(facts, state)
            if hit is not None:
                yield hit

    def of_state(self, facts: Facts, state: TensorState) -> Hit | None:
        """The hit of one tensor, or None."""
        field = state.contract[self.field]
        wrong = contradicting(field)
        value = field.inferred.value if field.inferred is not None else None
        if not wrong and state.solved.chosen is not None:
            wrong = jointly_contradicting(state, self.field)
            value = state.solved.chosen.contract_values().get(self.field)
        if not wrong or not state.solved.solutions:
            return None
        claim = wrong[0]
        kind = self.kind_of(state, claim.value, value)
        if kind is None:
            return None
        severity = self.severity_of(state, claim, value)
        if "quant_state" in claim.source.pointer:
            kind, severity = "BNB", "violation"
        key = claim.source.pointer.rpartition("/")[2]
        return self.hit(
            Subject(
                tensor=state.tensor.name,
                stored=state.tensor.planes[0].stored_name if state.tensor.planes else None,
                file=facts.file_name(state.tensor.planes[0].file_id)
                if state.tensor.planes
                else None,
                field=self.field,
                config_key=str(claim.source),
            ),
            f"{self.noun}: {claim.source} says {word(claim.value)}, the planes fit {word(value)}"
            + broken_words(state.solved.closest_declared),
            fold=f"{self.field}|{claim.value!r}|{value!r}|{claim.source}",
            many=f"{self.noun}: {claim.source!s} says {word(claim.value)}, "
            f"the planes of {{count}} tensors fit {word(value)}",
            impact=self.impact,
            try_=self.remedy(key, value, claim),
            who="config",
            severity=severity,
            confidence=_strength(field),
            kind=kind,
            data={"declared": claim.value, "inferred": value, "source": str(claim.source)},
            would_settle="the size equations decide; nothing else is needed"
            if field.inferred is not None and field.inferred.strength == "proved"
            else "decode under both readings and compare with the unquantized weights",
        )

    def kind_of(self, state: TensorState, declared: Json, inferred: Json) -> str | None:
        """Fault kind of a contradiction; None where another rule speaks of it."""
        return self.kind

    def severity_of(self, state: TensorState, claim: Claim, inferred: Json):  # type: ignore[no-untyped-def]
        """Severity of a contradiction."""
        return None

    def remedy(self, key: str, value: Json, claim: Claim) -> str:
        """What to write where."""
        if claim.basis == "by_definition":
            # A tag stands for a whole layout: no part of the layout can be written in its place.
            return f"set {claim.source} to the tag of the layout that is stored: {word(value)}"
        return f"set {claim.source} to fit {word(value)}"


def _strength(field: FieldState) -> Strength:
    return field.inferred.strength if field.inferred is not None else "weak"
