"""A report's scope by hand: which tensors and findings it is about, and nothing beyond."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.closest import closest
from quantscope.errors import UsageError
from quantscope.model import Finding, LogicalTensor
from quantscope.session.inspection import Inspection

Range = tuple[int, int]
Judge = Callable[[Inspection], Inspection]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors by any name that `Checkpoint.find` takes, and findings by id or code."""

    tensors: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tensors or self.findings)

    def words(self) -> list[str]:
        """The selection as a report states it."""
        return [f"tensor {name}" for name in self.tensors] + [
            f"finding {name}" for name in self.findings
        ]


class Narrowed(msgspec.Struct, frozen=True, kw_only=True):
    """An inspection with what a selection left out."""

    inspection: Inspection
    tensors_left_out: int = 0
    findings_left_out: int = 0
    selected: bool = False


def narrow(inspection: Inspection, selection: Selection, judge: Judge | None = None) -> Narrowed:
    """Keep what a selection names.

    Args:
        inspection: a judged inspection.
        selection: tensors and findings to keep.
        judge: judges again what is left of a folded finding, so that its numbers are of the kept tensors.

    Raises:
        UsageError: a finding of the selection is not among the findings.
        NoSuchTensorError: a tensor of the selection is not there.
    """
    if not selection:
        return Narrowed(inspection=inspection)
    named = {inspection.checkpoint.find(name).name for name in selection.tensors}
    chosen = _named_findings(inspection.findings, selection.findings)
    wanted = named or {name for finding in chosen for name in tensors_of(finding)}
    states = tuple(state for state in inspection.states if state.tensor.name in wanted)
    left = msgspec.structs.replace(inspection, states=states)
    if named and judge is not None:
        fresh = judge(
            msgspec.structs.replace(left, findings=(), rules_run=(), rules_skipped=())
        ).findings
        codes = {finding.code for finding in chosen}
        findings = [f for f in fresh if not selection.findings or f.code in codes]
    else:
        findings = list(chosen if selection.findings else inspection.findings)
    kept = tuple(f for f in findings if not named or _concerns(f, wanted, states))
    return Narrowed(
        inspection=msgspec.structs.replace(left, findings=kept),
        tensors_left_out=len(inspection.states) - len(states),
        findings_left_out=max(0, len(inspection.findings) - len(kept)),
        selected=True,
    )


def tensors_of(finding: Finding) -> tuple[str, ...]:
    """Names that a finding is about."""
    own = (finding.subject.tensor,) if finding.subject.tensor else ()
    return (*own, *finding.members)


def _named_findings(findings: Sequence[Finding], names: Sequence[str]) -> list[Finding]:
    chosen: list[Finding] = []
    for name in names:
        matching = [f for f in findings if name in (f.id, f.code)]
        if not matching:
            there = list(dict.fromkeys(f.code for f in findings))
            hint = (
                f"found here: {', '.join(there)}" if there else "nothing was found in what was read"
            )
            near = closest(name, [f.id for f in findings], 1)
            if near:
                hint = f"closest: {near[0]}; {hint}"
            raise UsageError(f"no finding is called {name}", hint=hint, source=name)
        chosen.extend(f for f in matching if f not in chosen)
    return chosen


def _concerns(finding: Finding, wanted: set[str], states: Sequence[object]) -> bool:
    if wanted.intersection(tensors_of(finding)):
        return True
    subject = finding.subject
    stored = {
        name
        for state in states
        for name in state.tensor.stored_names()  # type: ignore[attr-defined]
    }
    return subject.stored in stored or bool(stored.intersection(finding.members))


def stored_ranges(
    checkpoint: Checkpoint, tensors: Sequence[LogicalTensor]
) -> dict[int, list[Range]]:
    """Byte ranges by file id of every stored tensor that the given logical tensors use."""
    ranges: dict[int, list[Range]] = {}
    for tensor in tensors:
        for name in tensor.stored_names():
            stored = checkpoint.find_plain(name)
            if stored is not None:
                end = stored.byte_offset + stored.nbytes
                ranges.setdefault(stored.file_id, []).append((stored.byte_offset, end))
    return ranges
