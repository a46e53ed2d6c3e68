"""What an inspection of a checkpoint found, before any rule or screen looks at it."""

from __future__ import annotations

from typing import Literal

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.decode.ledger import ReadLedger
from quantscope.families.guard import PluginFailure
from quantscope.infer.examine import Examination
from quantscope.infer.readers import Stance
from quantscope.infer.solver import Solved
from quantscope.model import Claim, Contract, Evidence, Finding, LogicalTensor, Reading, Suppressed

Mode = Literal["headers", "sample", "deep"]


class TensorState(msgspec.Struct, frozen=True, kw_only=True):
    """One logical tensor with its solved sizes, its contract and what its bytes showed."""

    tensor: LogicalTensor
    solved: Solved
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]
    contract: Contract
    exam: Examination
    reading: Reading | None = None
    """The solved reading, with fields that sizes leave open as the bytes speak for them."""
    declared_reading: Reading | None = None
    """The solution closest to what the files claim; equals `reading` where nothing contradicts."""
    undecodable: str | None = None
    signature: int = 0
    """Equal for tensors that share shapes, dtypes and declarations."""
    missing: dict[str, int] = {}
    """Bytes past the end of the file by plane suffix, where the file is cut; its equations say so too."""
    stances: tuple[Stance, ...] = ()
    """What known runtimes do with the zero convention of this tensor."""


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
    suppressed: tuple[Suppressed, ...] = ()
    """Findings that a suppression list left out, with the reason it gives."""
    failures: tuple[PluginFailure, ...] = ()
    """What methods of families raised about tensors they had claimed; the grouping has its own."""
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
