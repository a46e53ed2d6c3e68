"""What an inspection of a checkpoint found, before any rule or screen looks at it."""

from __future__ import annotations

from typing import Literal

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.decode.plane_reader import ReadLedger
from quantscope.infer.examine import Examination
from quantscope.infer.solver import Solved
from quantscope.model import Claim, Contract, Evidence, Finding, LogicalTensor, Reading

Mode = Literal["headers", "sample", "deep"]


class TensorState(msgspec.Struct, frozen=True, kw_only=True):
    """One logical tensor with its solved sizes, its contract and what its bytes showed."""

    tensor: LogicalTensor
    solved: Solved
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]
    contract: Contract
    exam: Examination
    undecodable: str | None = None
    signature: int = 0
    """Equal for tensors that share shapes, dtypes and declarations."""

    @property
    def reading(self) -> Reading | None:
        """The reading in force: the solved one, with undecided fields as the contract infers them."""
        chosen = self.solved.chosen
        if chosen is None:
            return None
        convention = self.contract.value("zero_convention")
        if isinstance(convention, str) and convention != chosen.zero_convention:
            return msgspec.structs.replace(chosen, zero_convention=convention)
        return chosen

    @property
    def declared_reading(self) -> Reading | None:
        """The reading that the files claim, where it differs only in fields that bytes cannot break."""
        chosen = self.solved.chosen
        if chosen is None:
            return None
        declared = self.contract["zero_convention"].declared
        if declared and isinstance(declared[0].value, str) and chosen.zero != "none":
            return msgspec.structs.replace(chosen, zero_convention=declared[0].value)
        return chosen


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one pass over a checkpoint gave.

    `set_evidence` holds evidence over groups of tensors (family word, field), joined into their
    contracts already. `partial` says why the pass ended early, or is None.
    """

    checkpoint: Checkpoint
    mode: Mode
    sample_groups: int | None
    states: tuple[TensorState, ...]
    ledger: ReadLedger
    set_evidence: tuple[Evidence, ...] = ()
    findings: tuple[Finding, ...] = ()
    rules_run: tuple[str, ...] = ()
    rules_skipped: tuple[tuple[str, str], ...] = ()
    partial: str | None = None
    duration_s: float = 0.0

    def state(self, name: str) -> TensorState:
        """State of a logical tensor by its name.

        Raises:
            KeyError: no such tensor.
        """
        for state in self.states:
            if state.tensor.name == name:
                return state
        raise KeyError(name)
