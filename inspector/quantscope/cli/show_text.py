"""The text of `quantscope show`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from quantscope.cli.one_tensor import OneTensor
from quantscope.decode.parts import Window
from quantscope.decode.window import window_parts
from quantscope.errors import QuantscopeError
from quantscope.infer.readers import TABLE_DATE
from quantscope.model import CONTRACT_FIELDS, Equation, Evidence, FieldState, Reading
from quantscope.report.words import (
    MATCH_WORDS,
    STRENGTH_WORDS,
    ZERO_WORDS,
    number_name,
    value_words,
)
from quantscope.text import inert

_ZEROS_SHOWN = 8
LABELS = (19, 34)
"""Where the columns of a contract line begin, after the field's name."""
_PLAIN = re.compile(r"\b(?:direction=multiply|signed=False|name=\S+)(?=\s|$)\s*")


def contract_lines(one: OneTensor) -> Iterator[str]:
    """Fields declared and inferred, then equations and every solution."""
    state = one.state
    tensor = state.tensor
    shape = list(state.reading.shape if state.reading is not None else tensor.shape)
    yield f"{inert(tensor.name)}  {shape}  {inert(tensor.word)}"
    for plane in tensor.planes:
        where = one.checkpoint.file(plane.file_id).name if plane.spans else ""
        yield (
            f"  {plane.role:<12} {inert(plane.suffix)}  {plane.dtype} {list(plane.shape)}  "
            f"{plane.nbytes} B  {inert(where)} @0x{plane.byte_offset:x}"
        )
    if state.undecodable is not None:
        yield f"  cannot be decoded: {inert(state.undecodable)}"
    yield ""
    yield "CONTRACT"
    for field in CONTRACT_FIELDS:
        yield from _field_lines(state.contract[field])
    yield ""
    yield "SIZE EQUATIONS"
    yield from (f"  {line}" for line in equation_lines(state.solved.equations))
    if state.solved.closest_declared:
        yield "  as declared:"
        yield from (f"  {line}" for line in equation_lines(state.solved.closest_declared))
    yield ""
    by = " by the shapes in the header" if state.missing else ""
    yield from _solution_lines(state.solved.solutions, len(state.solved.candidates), by)


def _field_lines(known: FieldState) -> Iterator[str]:
    if known.match == "not_applicable" and not known.declared:
        return
    inferred = ""
    if known.inferred is not None:
        strength = STRENGTH_WORDS[known.inferred.strength]
        inferred = f"{value_words(known.field, known.inferred.value)} ({strength})"
    yield f"  {known.field:<16} {MATCH_WORDS[known.match]:<14} {inert(inferred)}".rstrip()
    for claim in known.declared:
        value = value_words(known.field, claim.value)
        by = "" if claim.basis == "written" else "  by definition"
        yield f"  {'':<16} declared       {inert(value)}   {inert(str(claim.source))}{by}"
    for candidate in known.candidates:
        value = value_words(known.field, candidate.value)
        readers = f"  ({', '.join(candidate.readers)})" if candidate.readers else ""
        yield f"  {'':<16} possible       {inert(value)}: {inert(candidate.effect)}{readers}"
    for step in known.evidence:
        yield f"  {'':<16} evidence       {inert(evidence_words(step))}"
    if known.reason:
        yield f"  {'':<16} because        {inert(known.reason)}"


def evidence_words(step: Evidence) -> str:
    """A step in one line: method, what it speaks for, how strongly, its numbers and sample."""
    speaks = ", ".join(value_words(step.field, value) for value in step.supports) or "nothing"
    strength = STRENGTH_WORDS[step.strength] if step.strength is not None else "no say"
    numbers = "  ".join(f"{_name(key)} {_number(value)}" for key, value in step.numbers.items())
    sample = ""
    if step.sample is not None:
        sample = f"  [{step.sample.examined} of {step.sample.total} {step.sample.unit}]"
    assumes = f"  assumes {'; '.join(step.assumes)}" if step.assumes else ""
    return f"{step.method}: {speaks} ({strength})  {numbers}{sample}{assumes}".rstrip()


def _name(key: str) -> str:
    """A number's name; a candidate's own, `dtype=e8m0 direction=multiply ...`, without what goes without saying."""
    return _PLAIN.sub("", key).strip() if "=" in key else number_name(key)


def _number(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number_name(key)} {_number(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def equation_lines(equations: Sequence[Equation]) -> Iterator[str]:
    """`qweight  I32 [K*b/32, N]  [576*4/32, 1536]  442368 B = 442368 B  holds`."""
    for equation in equations:
        verdict = {True: "holds", False: "BROKEN", None: "not stored"}[equation.holds]
        sign = "=" if equation.expected_bytes == equation.actual_bytes else "/="
        sizes = ""
        if equation.expected_bytes is not None:
            sizes = f"{equation.expected_bytes} B {sign} {equation.actual_bytes} B"
        turned = equation.actual_shape not in (None, equation.expected_shape)
        if equation.holds is False and turned:
            sizes += f"  stored {list(equation.actual_shape or ())}"
        note = f"  ({equation.note})" if equation.note else ""
        yield inert(
            f"{equation.plane:<12} {equation.symbolic}  {equation.substituted}  {sizes}  {verdict}{note}"
        )


def _solution_lines(solutions: Sequence[Reading], tried: int, by: str) -> Iterator[str]:
    yield f"SOLUTIONS  {len(solutions)} of {tried} readings satisfy every equation{by}"
    values = [reading.contract_values() for reading in solutions]
    fields = [
        f for f in CONTRACT_FIELDS if values and any(v.get(f) != values[0].get(f) for v in values)
    ]
    if values and not fields:
        yield "  all of them alike in every contract field"
    for number, value in enumerate(values if fields else (), 1):
        text = "   ".join(f"{field}: {value_words(field, value.get(field))}" for field in fields)
        yield f"  {number}  {inert(text)}"


def zero_lines(one: OneTensor) -> Iterator[str]:
    """Both readings of the stored zeros side by side, and every evidence step."""
    state = one.state
    reading = state.reading
    known = state.contract["zero_convention"]
    yield f"{inert(state.tensor.name)}  zero point"
    if reading is None or reading.zero != "integer" or known.match == "not_applicable":
        zero = state.contract.value("zero")
        yield f"  zero: {inert(value_words('zero', zero))}; no stored integer zeros, so no convention"
        yield from (f"  {inert(evidence_words(step))}" for step in state.contract["zero"].evidence)
        return
    yield f"  {'':<16} {'A  ' + ZERO_WORDS['minus_one']:<30} B  {ZERO_WORDS['as_is']}"
    yield f"  {'who says so':<16} {_says(known, 'minus_one'):<30} {_says(known, 'as_is')}"
    yield from _stored_zeros(one, reading)
    yield ""
    yield "EVIDENCE"
    for step in known.evidence:
        yield f"  {inert(evidence_words(step))}"
    yield ""
    yield "READERS  (table of " + TABLE_DATE + ")"
    for stance in state.stances:
        value = value_words("zero_convention", stance.value) if stance.action == "uses" else ""
        said = " ".join(word for word in (stance.action, value) if word)
        why = f" ({stance.words})" if stance.words else ""
        yield inert(f"  {stance.reader} {stance.version}: {said}{why}")
    inferred = known.inferred
    concluded = "undecided"
    if inferred is not None:
        strength = STRENGTH_WORDS[inferred.strength]
        concluded = f"{value_words('zero_convention', inferred.value)} ({strength})"
    word = "CONTRADICTS" if known.match == "disagree" else MATCH_WORDS[known.match]
    yield f"{word}: bytes say {concluded}"


def _says(known: FieldState, value: str) -> str:
    sources = [str(claim.source) for claim in known.declared if claim.value == value]
    inferred = known.inferred
    said = inferred is not None and inferred.value == value
    by_bytes = (
        f"bytes ({STRENGTH_WORDS[inferred.strength]})" if inferred is not None and said else ""
    )
    if sources:
        return inert(f"{sources[0].partition('#')[0]} (declared)") + (", bytes" if said else "")
    return by_bytes or "nobody"


def _stored_zeros(one: OneTensor, reading: Reading) -> Iterator[str]:
    state = one.state
    family = one.checkpoint.family(state.tensor)
    rows = range(min(_ZEROS_SHOWN, reading.shape[-2]))
    try:
        window = Window(rows, range(1))
        parts = window_parts(family, state.tensor, reading, window, one.checkpoint.reader())
    except QuantscopeError as problem:
        yield f"  zeros cannot be read: {inert(problem.message)}"
        return
    if parts.stored_zero is None:
        return
    stored = np.asarray(parts.stored_zero)
    first = np.broadcast_to(stored, (len(rows), stored.shape[1]))[:, 0].tolist()
    top = (1 << reading.bit_width) - 1
    wide = len(str(top))
    shown = " ".join(f"{value:>{wide}}" for value in first)
    plus = " ".join(f"{(value + 1) & top:>{wide}}" for value in first)
    yield f"  {'stored, out 0..' + str(len(rows) - 1):<16} {shown:<30} {shown}"
    yield f"  {'zero used':<16} {plus:<30} {shown}"
    codes = state.exam.codes
    if codes is not None and codes.zero.groups:
        means = [
            f"{codes.zero.mean(name):+.3f} +- {codes.zero.standard_error(name):.3f}"
            for name in ("minus_one", "as_is")
        ]
        yield f"  {'mean(code-zero)':<16} {means[0]:<30} {means[1]}   {codes.zero.groups} groups"
