"""From inspections to the report document."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from quantscope import __version__
from quantscope.decode.plane_reader import STORAGE_BITS
from quantscope.decode.sampling import total_groups
from quantscope.evidence.gates import GATE_NAMES, OVERALL, Gate, GateName
from quantscope.families.grouping import PLAIN_DTYPES
from quantscope.model import SEVERITIES, Finding, Who
from quantscope.report.canonical import canonical_chunks, plain
from quantscope.report.coverage import plane_coverage
from quantscope.report.example import example_of
from quantscope.report.folding import fold_states, tensor_entry
from quantscope.report.identity import identity_of, merged_identity
from quantscope.report.inputs import input_entry, unreadable_input
from quantscope.report.names import fold_names
from quantscope.report.redact import redacted, shown_path
from quantscope.report.run_facts import run_facts
from quantscope.report.schema import (
    SCHEMA_VERSION,
    Accepted,
    BitsPerWeight,
    Counts,
    Example,
    FindingEntry,
    GateEntry,
    Gates,
    Input,
    NotChecked,
    PlaneBytes,
    Report,
    Scope,
    Skipped,
    SubjectEntry,
    Summary,
    TensorEntry,
    Tool,
    WhoWord,
)
from quantscope.report.selection import Narrowed, Selection, narrow, stored_ranges
from quantscope.report.words import count_words
from quantscope.session.inspection import Inspection, TensorState

GATE_REASONS: dict[GateName, str] = {
    "graph_rewrite": "no float base was given (--base)",
    "numeric_reference": "no float base was given (--base)",
    "packing_layout": "no uint4 evidence file was run; size equations are evidence, not this gate",
    "kernel": "no kernel was run (quantscope parity)",
    "model_quality": "no logits were compared with a baseline (quantscope probe --against)",
    "serving": "nothing was told about any service, and this tool starts none",
}


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a report beside the inspections.

    `digests` are over the bytes read; `whole_files` (None: in deep mode) over whole files. `gates` holds
    the gates that other commands executed.
    """

    full: bool = False
    digests: bool = True
    whole_files: bool | None = None
    selection: Selection = Selection()
    redact_paths: bool = False
    command: str = ""
    device: str | None = None
    gates: Mapping[GateName, Gate] = {}
    parity: tuple[dict[str, Any], ...] = ()
    probes: tuple[dict[str, Any], ...] = ()
    external_evidence: tuple[dict[str, Any], ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    """Paths that could not be opened, each with the reason."""


class Draft:
    """A report whose tensors are written one by one or put together at once."""

    def __init__(self, head: Report, narrowed: Sequence[Narrowed], options: ReportOptions) -> None:
        self._head = head
        self._narrowed = narrowed
        self._options = options

    def report(self) -> Report:
        """The whole document."""
        whole = msgspec.structs.replace(self._head, tensors=list(self._tensors()))
        return redacted(whole) if self._options.redact_paths else whole

    def chunks(self) -> Iterator[bytes]:
        """Canonical bytes in pieces; no more than one tensor entry is held as text at a time."""
        if self._options.redact_paths:
            return canonical_chunks(plain(self.report()))
        document = plain(self._head)
        return canonical_chunks(document, {"tensors": self._tensors()})

    def _tensors(self) -> Iterator[TensorEntry]:
        for number, part in enumerate(self._narrowed):
            inspection = part.inspection
            for fold in fold_states(inspection.states, full=self._options.full):
                yield tensor_entry(fold, inspection.checkpoint, number)


def build(
    inspections: Sequence[Inspection],
    options: ReportOptions | None = None,
    *,
    judge: Callable[[Inspection], Inspection] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Draft:
    """The report of one or several judged inspections, their checkpoints still open.

    Args:
        inspections: one a path, in the order in which the paths were given.
        options: what else goes in.
        judge: judges again where a selection by hand cuts a folded finding.
        cancelled: polled while hashing.
    """
    options = options or ReportOptions()
    narrowed = [narrow(inspection, options.selection, judge) for inspection in inspections]
    findings = [
        finding_entry(finding, part.inspection, number)
        for number, part in enumerate(narrowed)
        for finding in part.inspection.findings
    ]
    findings.sort(key=lambda entry: SEVERITIES.index(entry.severity))
    inputs = [_input(part, options, cancelled) for part in narrowed]
    paths = [entry.path for entry in inputs]
    inputs += [unreadable_input(path, reason) for path, reason in options.unreadable]
    gates = {
        name: options.gates.get(name, Gate(status="skipped", reason=GATE_REASONS[name]))
        for name in GATE_NAMES
    }
    head = Report(
        schema_version=SCHEMA_VERSION,
        tool=Tool(name="quantscope", version=__version__),
        run=run_facts(inspections, options.command, options.device),
        inputs=inputs,
        identity=merged_identity(
            [identity_of(part.inspection.checkpoint) for part in narrowed], paths
        ),
        scope=_scope(narrowed, options),
        gates=Gates(**{name: GateEntry(**gate.as_json()) for name, gate in gates.items()}),
        overall=OVERALL,
        summary=_summary(narrowed, findings),
        tensors=[],
        findings=findings,
        parity=list(options.parity),
        probes=list(options.probes),
        external_evidence=list(options.external_evidence),
        not_checked=_not_checked(narrowed),
    )
    return Draft(head, narrowed, options)


def _input(part: Narrowed, options: ReportOptions, cancelled: Callable[[], bool] | None) -> Input:
    inspection = part.inspection
    checkpoint = inspection.checkpoint
    whole = options.whole_files
    return input_entry(
        checkpoint,
        inspection.ledger,
        digests=options.digests,
        whole_files=inspection.mode == "deep" if whole is None else whole,
        keep=stored_ranges(checkpoint, [s.tensor for s in inspection.states])
        if part.selected
        else None,
        shown_path=shown_path(checkpoint.opened.path) if options.redact_paths else None,
        cancelled=cancelled,
    )


WHO_ENTRIES: dict[Who, tuple[WhoWord, Literal["download", "storage"] | None]] = {
    "producer": ("producer", None),
    "config": ("config", None),
    "download": ("reader", "download"),
    "storage": ("reader", "storage"),
    "reader": ("reader", None),
    "nobody": ("nobody", None),
}
"""Who can act in the document's four words, and what else the reader's side has to do."""


def finding_entry(finding: Finding, inspection: Inspection, input_number: int) -> FindingEntry:
    """A finding as a report writes it, with readers and an example where its tensor has them."""
    members, form = fold_names(finding.members)
    subject = finding.subject
    state = _state_of(finding, inspection)
    who, detail = WHO_ENTRIES[finding.who]
    return FindingEntry(
        id=finding.id,
        input=input_number,
        code=finding.code,
        name=finding.name,
        kind=finding.kind,
        severity=finding.severity,
        confidence=finding.confidence,
        subject=SubjectEntry(
            tensor=subject.tensor,
            stored=subject.stored,
            file=subject.file,
            byte_range=list(subject.byte_range) if subject.byte_range is not None else None,
            field=subject.field,
            config_key=subject.config_key,
        ),
        message=finding.message,
        data=finding.data,
        impact=finding.impact,
        who=who,
        who_detail=detail,
        try_=finding.try_,
        would_settle=finding.would_settle,
        gate=finding.gate,
        members=members,
        members_form=form,
        count=finding.count,
        readers=_readers(finding, state),
        example=_example(state, inspection, finding),
    )


def _state_of(finding: Finding, inspection: Inspection) -> TensorState | None:
    name = finding.subject.tensor or (finding.members[0] if finding.members else None)
    try:
        return inspection.state(name) if name is not None else None
    except KeyError:
        return None


def _readers(finding: Finding, state: TensorState | None) -> list[str]:
    given = finding.data.get("readers")
    if isinstance(given, list | tuple):
        return [str(reader) for reader in given]
    if state is None or finding.subject.field != "zero_convention":
        return []
    right = state.contract.value("zero_convention")
    said: dict[str, list[str]] = {}
    for stance in state.stances:
        verdict = {"ignores": "ignores the zeros", "refuses": "refuses"}.get(stance.action)
        if verdict is None:
            verdict = "reads it rightly" if stance.value == right else "reads it wrongly"
        why = f" ({stance.words})" if stance.words and stance.action != "uses" else ""
        said.setdefault(verdict, []).append(f"{stance.reader} {stance.version}{why}")
    order = ("reads it wrongly", "ignores the zeros", "refuses", "reads it rightly")
    return [f"{verdict}: {', '.join(said[verdict])}" for verdict in order if verdict in said]


def _example(state: TensorState | None, inspection: Inspection, finding: Finding) -> Example | None:
    if state is None or inspection.mode == "headers" or finding.subject.field is None:
        return None
    reader = inspection.checkpoint.reader(inspection.ledger)
    return example_of(inspection.checkpoint, state, reader)


def _scope(narrowed: Sequence[Narrowed], options: ReportOptions) -> Scope:
    first = narrowed[0].inspection
    planes: dict[str, PlaneBytes] = {}
    for part in narrowed:
        tensors = [state.tensor for state in part.inspection.states]
        for role, count in plane_coverage(tensors, part.inspection.ledger).items():
            old = planes.get(role, PlaneBytes(bytes_total=0, bytes_read=0))
            planes[role] = PlaneBytes(
                bytes_total=old.bytes_total + count.bytes_total,
                bytes_read=old.bytes_read + count.bytes_read,
            )
    states = [state for part in narrowed for state in part.inspection.states]
    whole = [part.inspection.checkpoint.grouping for part in narrowed if not part.selected]
    skipped = {
        code: Skipped(code=code, reason=reason)
        for part in narrowed
        for code, reason in part.inspection.rules_skipped
    }
    partial = [part.inspection.partial for part in narrowed if part.inspection.partial]
    return Scope(
        mode=first.mode,
        sample_groups=first.sample_groups if first.mode == "sample" else None,
        selection=options.selection.words(),
        partial="; ".join(partial) or None,
        stored_total=sum(len(p.inspection.checkpoint.opened.tensors) for p in narrowed),
        tensors_total=len(states) + sum(len(g.plain) + len(g.unrecognised) for g in whole),
        tensors_quantized=len(states),
        tensors_examined=sum(_was_examined(state) for state in states),
        unrecognised=sum(len(grouping.unrecognised) for grouping in whole),
        planes=planes,
        groups_total=sum(_groups(state)[1] for state in states),
        groups_examined=sum(_groups(state)[0] for state in states),
        rules_run=sorted({code for part in narrowed for code in part.inspection.rules_run}),
        rules_skipped=[skipped[code] for code in sorted(skipped)],
        suppressed=[
            Accepted(id=entry.id, reason=entry.reason)
            for part in narrowed
            for entry in part.inspection.suppressed
        ],
    )


def _was_examined(state: TensorState) -> bool:
    return state.exam.codes is not None or bool(state.exam.planes)


def _groups(state: TensorState) -> tuple[int, int]:
    codes = state.exam.codes
    if codes is not None:
        return min(codes.groups_examined, codes.groups_total), codes.groups_total
    reading = state.reading
    return 0, total_groups(reading) if reading is not None and all(reading.shape) else 0


def _summary(narrowed: Sequence[Narrowed], findings: Sequence[FindingEntry]) -> Summary:
    states = [state for part in narrowed for state in part.inspection.states]
    families = Counter(state.tensor.word for state in states)
    parameters = sum(_parameters(state) for state in states)
    if not any(part.selected for part in narrowed):
        for part in narrowed:
            weights = [
                t for t in part.inspection.checkpoint.grouping.plain if t.dtype in PLAIN_DTYPES
            ]
            parameters += sum(math.prod(tensor.shape) for tensor in weights)
            if not part.inspection.states and weights:
                kinds = {file.kind for file in part.inspection.checkpoint.opened.files}
                word = "gguf" if kinds == {"gguf"} else "plain"
                families[word] += sum(len(tensor.shape) >= 2 for tensor in weights)
    counts = Counter(entry.severity for entry in findings)
    return Summary(
        families=dict(sorted(families.items())),
        parameters=parameters,
        bits_per_weight=bits_per_weight(states),
        findings=Counts(**{severity: counts.get(severity, 0) for severity in SEVERITIES}),
    )


def _parameters(state: TensorState) -> int:
    shape = state.reading.shape if state.reading is not None else state.tensor.shape
    return math.prod(shape)


def bits_per_weight(states: Sequence[TensorState]) -> BitsPerWeight:
    """Bits of codes alone, and of every plane but the bias, per weight of the quantized tensors."""
    weights = code_bits = plane_bits = 0
    seen: set[tuple[int, int, int, int]] = set()
    for state in states:
        count = _parameters(state)
        weights += count
        reading = state.reading
        code_bits += count * (reading.bit_width if reading is not None else 0)
        for plane in state.tensor.planes:
            if plane.role in ("bias", "companion"):
                continue
            for span in plane.spans:
                key = (span.file_id, span.byte_offset, span.nbytes, span.count)
                if key not in seen:
                    seen.add(key)
                    plane_bits += 8 * span.total_bytes
    if not weights:
        return BitsPerWeight(nominal=None, effective=None)
    return BitsPerWeight(
        nominal=round(code_bits / weights, 6) if code_bits else None,
        effective=round(plane_bits / weights, 6),
    )


def _not_checked(narrowed: Sequence[Narrowed]) -> list[NotChecked]:
    entries: list[NotChecked] = []
    for part in narrowed:
        entries.extend(_not_checked_of(part))
    entries.append(
        NotChecked(
            what="where the files came from",
            why="a digest says which bytes they are, never who made them",
        )
    )
    return list(dict.fromkeys(entries))


def _not_checked_of(part: Narrowed) -> Iterator[NotChecked]:
    inspection = part.inspection
    checkpoint = inspection.checkpoint
    if part.selected:
        others = [
            count_words(count, f"other {what}")
            for count, what in (
                (part.tensors_left_out, "quantized tensor"),
                (part.findings_left_out, "finding"),
            )
            if count
        ]
        yield NotChecked(
            what=f"{', '.join(others)}, and all else in the checkpoint"
            if others
            else "everything else in the checkpoint",
            why="left out of this report by hand",
        )
    examined, total = (
        map(sum, zip(*map(_groups, inspection.states), strict=True))
        if inspection.states
        else (0, 0)
    )
    closed = [] if inspection.mode == "headers" else _closed_groups(inspection)
    if examined + sum(closed) < total:
        why = {"headers": "headers only", "sample": "a sample was read"}.get(inspection.mode, "")
        yield NotChecked(
            what=f"codes of {total - examined - sum(closed)} of {total} groups",
            why=why or "the scan ended early or could not read them",
        )
    if closed:
        yield NotChecked(
            what=f"codes of {sum(closed)} of {total} groups",
            why=f"{count_words(len(closed), 'tensor')} could not be unpacked",
        )
    missing = [sum(state.missing.values()) for state in inspection.states if state.missing]
    if missing:
        yield NotChecked(
            what=f"{sum(missing)} bytes of planes of {count_words(len(missing), 'quantized tensor')}",
            why="they lie past the end of the file",
        )
    if inspection.partial:
        yield NotChecked(what="the rest of the tensors", why=inspection.partial)
    grouping = checkpoint.grouping
    if grouping.plain and not part.selected:
        nbytes = sum(_stored_bytes(tensor.dtype, tensor.nbytes) for tensor in grouping.plain)
        yield NotChecked(
            what=f"values of {count_words(len(grouping.plain), 'unquantized tensor')} ({nbytes} bytes)",
            why="a scan reads quantized planes",
        )
    if grouping.unrecognised and not part.selected:
        yield NotChecked(
            what=count_words(len(grouping.unrecognised), "quantized-looking tensor"),
            why="no family recognises them",
        )
    for variant in checkpoint.opened.variants if not part.selected else ():
        yield NotChecked(what=f"file {variant}", why="another set of weights in the same folder")
    for record in checkpoint.registry.records:
        if record.error is not None:
            yield NotChecked(
                what=f"family {record.name} of {record.distribution or record.value}",
                why=f"did not load: {record.error}",
            )
    for failure in (*grouping.failures, *inspection.failures):
        many = f" for {count_words(failure.count, 'tensor')}" if failure.tensor else ""
        yield NotChecked(
            what=f"family {failure.family}",
            why=f"failed in {failure.method}{many}: {failure.error}",
        )


def _closed_groups(inspection: Inspection) -> list[int]:
    """Groups of each tensor whose codes could not be unpacked at all."""
    return [_groups(state)[1] for state in inspection.states if state.exam.codes is None]


def _stored_bytes(dtype: str, nbytes: int) -> int:
    return nbytes if STORAGE_BITS.get(dtype, 8) else 0
