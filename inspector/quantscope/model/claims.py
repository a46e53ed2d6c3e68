"""Provenance of a contract value: declared claims, evidence from bytes, and how the two compare."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Json = Any
"""A JSON value of the contract vocabulary."""

CONTRACT_FIELDS: tuple[str, ...] = (
    "element",
    "shape",
    "group",
    "scale",
    "scale_rule",
    "zero",
    "symmetric",
    "zero_convention",
    "packing",
    "placement",
    "order",
    "arithmetic",
    "basis",
    "rounding",
    "sparsity",
)
"""Every field of a contract, in the order in which it is shown."""

NOT_STATED = "not stated"
"""Value of a field that nothing says anything about."""

Basis = Literal["written", "by_definition"]
Strength = Literal["proved", "decisive", "strong", "weak", "convention"]
Match = Literal[
    "agree",
    "disagree",
    "declared_only",
    "inferred_only",
    "ambiguous",
    "inexpressible",
    "not_applicable",
    "not_checked",
]

STRENGTH_RANK: dict[str, int] = {
    "convention": 0,
    "weak": 1,
    "strong": 2,
    "decisive": 3,
    "proved": 4,
}


class Source(msgspec.Struct, frozen=True, order=True):
    """Where a statement stands: a file and a place in it, printed as `file#pointer`.

    The pointer is a JSON pointer for JSON files (`/quantization_config/bits`), the key for GGUF,
    `__metadata__/key` for a safetensors header, `<tensor>:dtype` or `<tensor>:type` for a tensor entry
    and `<tensor>#/key` for JSON stored inside a tensor.
    """

    file: str
    pointer: str

    def __str__(self) -> str:
        return f"{self.file}#{self.pointer}"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One statement that a file makes about a contract field.

    `value` is in the contract vocabulary and comparable with an inferred value; `written` is the raw
    value as it stands in the file. `basis` is `by_definition` where a tag's public definition, not the
    words themselves, fixes the value.
    """

    field: str
    value: Json
    source: Source
    basis: Basis = "written"
    written: Json = None


class Sample(msgspec.Struct, frozen=True):
    """How many of how many things an evidence step looked at."""

    examined: int
    total: int
    unit: str = "groups"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One step that bears on a field, recorded whether or not it was conclusive.

    `supports` lists the values of the field that the step is compatible with; empty where it says
    nothing (`strength` is then None).
    """

    field: str
    method: str
    supports: tuple[Json, ...]
    strength: Strength | None
    numbers: dict[str, Json] = {}
    sample: Sample | None = None
    assumes: tuple[str, ...] = ()


class Inferred(msgspec.Struct, frozen=True):
    """The value that the evidence speaks for and how strongly."""

    value: Json
    strength: Strength


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A remaining reading of an undecided field: what it would do to the weights and who reads it so."""

    value: Json
    effect: str
    readers: tuple[str, ...] = ()


class FieldState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one contract field of one tensor."""

    field: str
    declared: tuple[Claim, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    inferred: Inferred | None = None
    match: Match = "not_checked"
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""
    """Why the field is inexpressible or was not checked."""

    @property
    def declared_values(self) -> tuple[Json, ...]:
        """Distinct declared values, first come first."""
        seen: list[Json] = []
        for claim in self.declared:
            if claim.value not in seen:
                seen.append(claim.value)
        return tuple(seen)


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """Every field of one tensor's numeric contract, keyed by field name in CONTRACT_FIELDS order."""

    fields: dict[str, FieldState]

    def __getitem__(self, field: str) -> FieldState:
        return self.fields[field]

    def value(self, field: str) -> Json:
        """The value in force: inferred where the bytes speak, else the first declared one, else None."""
        state = self.fields[field]
        inferred = state.inferred
        if inferred is not None and (inferred.strength != "convention" or not state.declared):
            return inferred.value
        if not state.declared:
            return None
        first = state.declared[0].value
        if inferred is not None and _says_less(first, inferred.value):
            return inferred.value
        return first


def _says_less(claimed: Json, value: Json) -> bool:
    """Whether a claim fixes only some keys of a structured value, and those as they are."""
    if not isinstance(claimed, dict) or not isinstance(value, dict):
        return bool(claimed == value)
    return all(key in value and _says_less(claimed[key], value[key]) for key in claimed)
