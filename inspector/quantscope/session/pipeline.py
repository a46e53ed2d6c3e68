"""From an opened checkpoint to an inspection: solve, examine, weigh, compare, judge."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.decode.ledger import ReadLedger
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.sampling import DEFAULT_GROUPS, total_groups
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.families.guard import FamilyFailedError, PluginFailure, folded
from quantscope.families.protocol import Family
from quantscope.grit.claims import claims_by_tensor
from quantscope.infer.alternatives import (
    ALTERNATIVES,
    JOINED_FIELDS,
    alternative_evidence,
    joined_alternatives,
)
from quantscope.infer.cut_planes import missing_by_plane, with_cuts
from quantscope.infer.examine import Examination, examine
from quantscope.infer.readers import ReadingContext, Stance, context_of, stances
from quantscope.infer.reconcile import declared_reading, reading_in_force, reconcile, with_claims
from quantscope.infer.solver import Solved, solve
from quantscope.infer.zero_convention import FEW_ZEROS, set_evidence, tensor_evidence
from quantscope.model import Claim, Contract, Evidence, Finding, LogicalTensor, Reading
from quantscope.session.events import Progress, ProgressThrottle
from quantscope.session.inspection import Inspection, Mode, TensorState


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How much an inspection reads."""

    mode: Mode = "sample"
    sample_groups: int = DEFAULT_GROUPS

    @property
    def groups(self) -> int | None:
        """Groups to sample a tensor; None for all."""
        return None if self.mode == "deep" else self.sample_groups


Judge = Callable[[Inspection], Inspection]
"""Adds findings to an inspection; the rules' catalogue provides it."""


def inspect(
    checkpoint: Checkpoint,
    scope: Scope | None = None,
    *,
    judge: Judge | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_batch: Callable[[Sequence[TensorState]], None] | None = None,
    only: Collection[str] | None = None,
) -> Inspection:
    """Inspect every logical tensor of a checkpoint.

    Args:
        checkpoint: an open checkpoint.
        scope: how much to read; a sample by default.
        judge: runs the rules on the result.
        progress: receives throttled progress.
        cancelled: polled; a stopped inspection keeps what it has and says so in `partial`.
        on_batch: receives finished tensors in batches, before set-level evidence is known.
        only: names of the logical tensors to look at; every one by default.
    """
    scope = scope or Scope()
    started = time.monotonic()
    ledger = ReadLedger()
    reader = checkpoint.reader(ledger, cancelled)
    step = ProgressThrottle("scan", progress)
    solver = _SharedSolver(checkpoint, reader)
    states: list[TensorState] = []
    partial: str | None = None
    tensors = checkpoint.grouping.tensors
    if only is not None:
        tensors = tuple(tensor for tensor in tensors if tensor.name in only)
    batch: list[TensorState] = []
    last_batch = started
    try:
        for number, tensor in enumerate(tensors):
            if cancelled is not None and cancelled():
                raise CancelledError("stopped")
            state = _inspect_tensor(checkpoint, tensor, solver, reader, scope, len(tensors))
            states.append(state)
            batch.append(state)
            step("examine", number + 1, len(tensors))
            now = time.monotonic()
            if on_batch is not None and now - last_batch > 0.1:
                on_batch(batch)
                batch, last_batch = [], now
    except CancelledError:
        partial = f"stopped after {len(states)} of {len(tensors)} tensors"
    if on_batch is not None and batch:
        on_batch(batch)
    joined, evidence = _join_sets(states)
    inspection = Inspection(
        checkpoint=checkpoint,
        mode=scope.mode,
        sample_groups=scope.groups,
        states=tuple(joined),
        ledger=ledger,
        set_evidence=tuple(evidence),
        failures=folded(solver.failures),
        partial=partial,
        duration_s=time.monotonic() - started,
    )
    return judge(inspection) if judge is not None else inspection


class _SharedSolver:
    """Solves sizes once per signature of family, shapes, dtypes and declarations."""

    def __init__(self, checkpoint: Checkpoint, reader: PlaneReader) -> None:
        self._checkpoint = checkpoint
        self._reader = reader
        self._cache: dict[object, tuple[int, Solved, str | None, PluginFailure | None]] = {}
        self._contracts: dict[int, tuple[tuple[Claim, ...], Contract]] = {}
        self._described = claims_by_tensor(checkpoint.opened.files)
        self._told: dict[bytes, tuple[Claim, ...]] = {}
        self._stances: dict[ReadingContext, tuple[Stance, ...]] = {}
        self.failures: list[PluginFailure] = []
        """What family methods raised, a tensor at a time."""

    def claims(self, family: Family, tensor: LogicalTensor) -> tuple[Claim, ...]:
        """Declared claims, those of GRIT descriptors last; a family that raises declares nothing.

        Tensors of which the same is said share one tuple: a checkpoint may have 100 000 of them.
        """
        described = [c for name in tensor.stored_names() for c in self._described.get(name, ())]
        try:
            found = family.claims(tensor, self._checkpoint.declarations, self._reader)
            told = (*found, *described)
            return self._told.setdefault(msgspec.json.encode(told), told)
        except CancelledError:
            raise
        except FamilyFailedError as problem:
            self.failures.append(problem.failure)
            return ()
        except QuantscopeError:
            return ()

    def evidence(
        self, family: Family, tensor: LogicalTensor, solved: Solved
    ) -> tuple[Evidence, ...]:
        """Evidence of the family's own; a family that raises gives none."""
        try:
            readings = solved.solutions or solved.candidates
            return tuple(family.evidence(tensor, readings, self._reader))
        except CancelledError:
            raise
        except FamilyFailedError as problem:
            self.failures.append(problem.failure)
            return ()
        except QuantscopeError:
            return ()

    def alternatives(
        self, family: Family, tensor: LogicalTensor, solved: Solved
    ) -> tuple[Evidence, ...]:
        """Evidence between readings that the sizes leave open; none where the family raises."""
        try:
            return tuple(alternative_evidence(family, tensor, solved, self._reader))
        except FamilyFailedError as problem:
            self.failures.append(problem.failure)
            return ()

    def stances(
        self, tensor: LogicalTensor, solved: Solved, claims: Sequence[Claim]
    ) -> tuple[Stance, ...]:
        """What known runtimes do with stored zeros; shared by the tensors of one context."""
        if solved.chosen is None or solved.chosen.zero != "integer":
            return ()
        context = context_of(
            tensor.family,
            solved.chosen.bit_width,
            claims,
            tensor.plane("group_index") is not None,
        )
        found = self._stances.get(context)
        if found is None:
            found = self._stances[context] = tuple(stances("zero_convention", context))
        return found

    def solve(
        self, family: Family, tensor: LogicalTensor, claims: tuple[Claim, ...]
    ) -> tuple[int, Solved, str | None]:
        """Signature number, solved sizes and the reason why the tensor cannot be decoded."""
        key = (
            tensor.family,
            tensor.word,
            tensor.shape,
            tensor.basis,
            tensor.facts,
            tensor.part is not None,
            tuple(
                (p.role, p.suffix, p.dtype, p.shape, p.nbytes, p.byte_order) for p in tensor.planes
            ),
            _statements(tensor, claims),
        )
        found = self._cache.get(key)
        if found is None:
            found = (len(self._cache), *_solve(family, tensor, claims))
            self._cache[key] = found
        number, solved, reason, failure = found
        if failure is not None:
            self.failures.append(msgspec.structs.replace(failure, tensor=tensor.name))
        return number, solved, reason

    def contract(
        self,
        number: int,
        solved: Solved,
        claims: tuple[Claim, ...],
        evidence: tuple[Evidence, ...],
        reason: str | None,
        known: tuple[Stance, ...],
    ) -> Contract:
        """The contract; fields that no evidence of its own is about are shared by all tensors of a signature."""
        shared = self._contracts.get(number)
        if shared is None:
            shared = (claims, reconcile(solved, claims, (), reason, known))
            self._contracts[number] = shared
        base = shared[1] if shared[0] == claims else with_claims(shared[1], claims)
        if not evidence:
            return base
        about = {step.field for step in evidence}
        return reconcile(solved, claims, evidence, reason, known, (base, about))


def _solve(
    family: Family, tensor: LogicalTensor, claims: tuple[Claim, ...]
) -> tuple[Solved, str | None, PluginFailure | None]:
    """Solved sizes, why the tensor cannot be decoded, and what the family raised instead."""
    try:
        return solve(family, tensor, claims), family.undecodable(tensor), None
    except FamilyFailedError as problem:
        failure = problem.failure
    except Exception as problem:  # plugin boundary: readings or equations that are none
        failure = PluginFailure(
            family=tensor.family,
            method="candidates or equations",
            error=f"{type(problem).__name__}: {problem}",
        )
    nothing = Solved(candidates=(), solutions=(), chosen=None, equations=(), declared_holds=None)
    return (
        nothing,
        f"family {failure.family} failed in {failure.method}: {failure.error}",
        failure,
    )


def _statements(tensor: LogicalTensor, claims: tuple[Claim, ...]) -> bytes:
    """Claims as a key: equal where two tensors' claims differ in nothing but the tensor's own name."""
    text: bytes = msgspec.json.encode(claims)
    for name in (*tensor.stored_names(), tensor.name, tensor.module):
        if name:
            text = text.replace(msgspec.json.encode(name)[1:-1], b"*")
    return text


def _inspect_tensor(
    checkpoint: Checkpoint,
    tensor: LogicalTensor,
    solver: _SharedSolver,
    reader: PlaneReader,
    scope: Scope,
    n_tensors: int,
) -> TensorState:
    family = checkpoint.family(tensor)
    claims = solver.claims(family, tensor)
    number, solved, reason = solver.solve(family, tensor, claims)
    known = solver.stances(tensor, solved, claims)
    exam = Examination()
    steps: tuple[Evidence, ...] = ()
    if scope.mode != "headers":
        steps = solver.evidence(family, tensor, solved)
        steps += solver.alternatives(family, tensor, solved)
        reading = solved.chosen
        if steps:
            so_far = solver.contract(number, solved, claims, steps, reason, known)
            reading = reading_in_force(solved, so_far)
        exam = examine(family, tensor, reading, reader, scope.groups, n_tensors)
        if exam.failure is not None and solved.solutions:
            solver.failures.append(exam.failure)
        if reading is not None and exam.codes is not None:
            steps += tuple(byte_evidence(reading, exam, claims))
    contract = solver.contract(number, solved, claims, steps, reason, known)
    missing = missing_by_plane(tensor, lambda file_id: checkpoint.file(file_id).size)
    return TensorState(
        tensor=tensor,
        solved=with_cuts(solved, tensor, missing),
        claims=claims,
        evidence=steps,
        contract=contract,
        exam=exam,
        reading=reading_in_force(solved, contract),
        declared_reading=declared_reading(solved, claims),
        undecodable=reason,
        signature=number,
        missing=missing,
        stances=known,
    )


def _is_signed(reading: Reading) -> bool:
    """Two's complement codes: no writer stores their zero as one less."""
    return reading.element.startswith("s")


def byte_evidence(reading: Reading, exam: Examination, claims: Sequence[Claim]) -> list[Evidence]:
    """Evidence that the engine draws from sampled codes for any family."""
    assert exam.codes is not None
    if reading.zero != "integer" or reading.zero_convention == "not_applicable":
        return []
    symmetric = next((c.value for c in claims if c.field == "symmetric"), None)
    steps: list[Evidence] = []
    whole = bool(reading.group) and reading.group[0].axis == "tensor"
    few = whole or total_groups(reading) < FEW_ZEROS
    if not _is_signed(reading):
        steps = tensor_evidence(
            exam.codes.zero,
            reading.bit_width,
            total_groups(reading),
            symmetric if isinstance(symmetric, bool) else None,
            few=few,
        )
    counted = exam.codes.zero
    if counted.stored_seen:
        constant = counted.stored_min == counted.stored_max
        steps.append(
            Evidence(
                field="symmetric",
                method="constant zeros",
                supports=() if few and constant else (constant,),
                strength="strong" if not constant else None if few else "weak",
                numbers={"stored_min": counted.stored_min, "stored_max": counted.stored_max},
                assumes=("a constant zero plane at the middle means a symmetric quantizer",)
                if constant
                else (),
            )
        )
    return steps


def _join_sets(states: Sequence[TensorState]) -> tuple[list[TensorState], list[Evidence]]:
    """Add what sets of tensors say together to every tensor of the set."""
    added: dict[int, list[Evidence]] = defaultdict(list)
    evidence = [*_join_zeros(states, added), *_join_alternatives(states, added)]
    result = list(states)
    for position, more in added.items():
        member = states[position]
        steps = (*member.evidence, *more)
        contract = reconcile(
            member.solved,
            member.claims,
            steps,
            member.undecodable,
            member.stances,
            (member.contract, {step.field for step in more}),
        )
        result[position] = msgspec.structs.replace(
            member,
            evidence=steps,
            contract=contract,
            reading=reading_in_force(member.solved, contract),
        )
    return result, evidence


def _join_zeros(
    states: Sequence[TensorState], added: dict[int, list[Evidence]]
) -> Iterable[Evidence]:
    """The zero convention over the modules of each family."""
    sets: dict[str, list[int]] = defaultdict(list)
    for position, state in enumerate(states):
        signed = state.reading is not None and _is_signed(state.reading)
        if state.exam.codes is not None and state.exam.codes.zero.stored_seen and not signed:
            sets[state.tensor.family].append(position)
    for positions in sets.values():
        members = [states[position] for position in positions]
        step = set_evidence(
            [m.exam.codes.zero for m in members if m.exam.codes is not None],
            [m.solved.chosen.bit_width if m.solved.chosen else 0 for m in members],
        )
        if step is None:
            continue
        for number, position in enumerate(positions):
            added[position].append(step.evidence_for(number))
        yield step.evidence


def _join_alternatives(
    states: Sequence[TensorState], added: dict[int, list[Evidence]]
) -> Iterable[Evidence]:
    """Packing, placement and scale direction over the modules of each family."""
    sets: dict[tuple[str, str], list[int]] = defaultdict(list)
    for position, state in enumerate(states):
        for step in state.evidence:
            if step.method == ALTERNATIVES and step.field in JOINED_FIELDS:
                sets[(state.tensor.family, step.field)].append(position)
    for (_, field), positions in sets.items():
        joined = joined_alternatives(field, [states[p].evidence for p in positions])
        if joined is None:
            continue
        for position in positions:
            added[position].append(joined)
        yield joined


def with_findings(inspection: Inspection, findings: Iterable[Finding]) -> Inspection:
    """The inspection with findings in place."""
    return msgspec.structs.replace(inspection, findings=tuple(findings))
