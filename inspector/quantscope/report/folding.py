"""Logical tensors with one and the same contract as one entry of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.model import Candidate, Claim, Equation, FieldState, LogicalTensor, Plane, Reading
from quantscope.report.names import fold_names
from quantscope.report.schema import (
    CandidateEntry,
    ClaimEntry,
    EquationEntry,
    FieldEntry,
    InferredEntry,
    PlaneEntry,
    SpanEntry,
    TensorEntry,
)
from quantscope.report.statistics import EvidenceSum, StatisticsSum
from quantscope.session.inspection import TensorState

THIS_TENSOR = "<tensor>"
"""Stands for the stored name in a source that differs between the tensors of an entry."""

_SOLUTION_FIELDS = (
    "element",
    "shape",
    "group",
    "scale",
    "zero",
    "zero_convention",
    "packing",
    "placement",
    "order",
)


class Fold:
    """Tensors of one contract, summed up as they come."""

    def __init__(self, state: TensorState) -> None:
        self.first = state
        self.names: list[str] = []
        self.statistics = StatisticsSum()
        self.evidence: dict[str, EvidenceSum] = {}

    def add(self, state: TensorState) -> None:
        """One more tensor."""
        self.names.append(state.tensor.name)
        self.statistics.add(state.exam)
        for field, known in state.contract.fields.items():
            if known.evidence:
                self.evidence.setdefault(field, EvidenceSum()).add(known.evidence)


def fold_states(states: Iterable[TensorState], *, full: bool = False) -> Iterator[Fold]:
    """Folds in the order of their first tensors; one a tensor where `full`."""
    if full:
        for state in states:
            fold = Fold(state)
            fold.add(state)
            yield fold
        return
    folds: dict[bytes, Fold] = {}
    cache: dict[int, bytes] = {}
    for state in states:
        key = _key(state, cache)
        if key not in folds:
            folds[key] = Fold(state)
        folds[key].add(state)
    yield from folds.values()


def _key(state: TensorState, cache: dict[int, bytes]) -> bytes:
    """What tensors of one entry share. Sources inside the tensor itself count as the same place."""
    known = cache.get(state.signature)
    if known is None:
        known = cache[state.signature] = _declared_key(state)
    inferred = [
        (
            state.contract.fields[field].match,
            state.contract.fields[field].inferred,
            [candidate.value for candidate in state.contract.fields[field].candidates],
        )
        for field in state.contract.fields
    ]
    return known + msgspec.json.encode((inferred, sorted(state.missing.items())))


def _declared_key(state: TensorState) -> bytes:
    tensor = state.tensor
    names = tensor.stored_names()
    planes = [(p.role, p.suffix, p.dtype, p.shape, p.nbytes) for p in tensor.planes]
    equations = [(e.plane, e.substituted, e.holds, e.note) for e in state.solved.equations]
    claims = [
        (c.field, c.value, _relative_source(c, names), c.basis, c.written) for c in state.claims
    ]
    shape = _shape(state)
    text = repr((tensor.family, tensor.word, shape, tensor.basis, planes, equations, claims))
    return f"{text}{state.undecodable}{len(state.solved.solutions)}".encode("utf-8", "replace")


def _relative_source(claim: Claim, names: Sequence[str]) -> str:
    for name in names:
        if name in claim.source.pointer:
            return claim.source.pointer.replace(name, THIS_TENSOR)
        if claim.source.file == name:
            return f"{THIS_TENSOR}#{claim.source.pointer}"
    return str(claim.source)


def _shape(state: TensorState) -> tuple[int, ...]:
    return state.reading.shape if state.reading is not None else state.tensor.shape


def tensor_entry(fold: Fold, checkpoint: Checkpoint, input_number: int) -> TensorEntry:
    """A fold as a report writes it."""
    state = fold.first
    names, form = fold_names(fold.names)
    contract = {
        field: _field_entry(known, fold, state.tensor)
        for field, known in state.contract.fields.items()
    }
    return TensorEntry(
        input=input_number,
        name=state.tensor.name,
        names=names,
        names_form=form,
        count=len(fold.names),
        family=state.tensor.word,
        shape=list(_shape(state)),
        basis=str(state.contract.value("basis") or state.tensor.basis),
        planes=[
            plane_entry(plane, checkpoint, state.missing.get(plane.suffix, 0))
            for plane in state.tensor.planes
        ],
        equations=[equation_entry(equation) for equation in state.solved.equations],
        solutions=[solution_entry(reading) for reading in state.solved.solutions],
        contract=contract,
        statistics=fold.statistics.entry(),
        undecodable=state.undecodable,
    )


def _field_entry(known: FieldState, fold: Fold, tensor: LogicalTensor) -> FieldEntry:
    summed = fold.evidence.get(known.field)
    inferred = known.inferred
    return FieldEntry(
        declared=[_claim_entry(claim, tensor, len(fold.names)) for claim in known.declared],
        inferred=InferredEntry(value=inferred.value, strength=inferred.strength)
        if inferred is not None
        else None,
        evidence=summed.entries() if summed is not None else [],
        match=known.match,
        candidates=[candidate_entry(candidate) for candidate in known.candidates],
        reason=known.reason,
    )


def _claim_entry(claim: Claim, tensor: LogicalTensor, count: int) -> ClaimEntry:
    source = str(claim.source)
    if count > 1:
        relative = _relative_source(claim, tensor.stored_names())
        if THIS_TENSOR in relative and not relative.startswith(THIS_TENSOR):
            source = f"{claim.source.file}#{relative}"
        elif THIS_TENSOR in relative:
            source = relative
    return ClaimEntry(value=claim.value, source=source, basis=claim.basis, written=claim.written)


def candidate_entry(candidate: Candidate) -> CandidateEntry:
    """A remaining reading as a report writes it."""
    return CandidateEntry(
        value=candidate.value, effect=candidate.effect, readers=list(candidate.readers)
    )


def plane_entry(plane: Plane, checkpoint: Checkpoint, missing_bytes: int = 0) -> PlaneEntry:
    """A plane with its file by name, its spans to the byte, and how much of them is not there."""
    spans = [
        SpanEntry(
            byte_offset=span.byte_offset,
            nbytes=span.nbytes,
            count=span.count,
            stride_bytes=span.stride_bytes,
        )
        for span in plane.spans
    ]
    return PlaneEntry(
        role=plane.role,
        suffix=plane.suffix,
        stored_name=plane.stored_name,
        file=checkpoint.file(plane.file_id).name if plane.spans else "",
        spans=spans,
        dtype=plane.dtype,
        shape=list(plane.shape),
        missing_bytes=missing_bytes,
    )


def equation_entry(equation: Equation) -> EquationEntry:
    """A size equation as a report writes it."""
    return EquationEntry(
        plane=equation.plane,
        symbolic=equation.symbolic,
        substituted=equation.substituted,
        expected_bytes=equation.expected_bytes,
        actual_bytes=equation.actual_bytes,
        holds=equation.holds,
        note=equation.note,
    )


def solution_entry(reading: Reading) -> dict[str, Any]:
    """What a solution of the size equations fixes, in contract vocabulary."""
    values = reading.contract_values()
    return {field: values[field] for field in _SOLUTION_FIELDS if field in values}
