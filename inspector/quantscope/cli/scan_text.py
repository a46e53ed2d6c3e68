"""The text of a scan: what needs somebody, why, and what was looked at, on one screen where nothing does."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from quantscope.report.folding import THIS_TENSOR
from quantscope.report.lookup import (
    entry_of,
    example_words,
    members_of,
    number_words,
    value_in_force,
)
from quantscope.report.schema import FindingEntry, Report, TensorEntry
from quantscope.report.words import (
    PLANE_WORDS,
    SEVERITY_MARKS,
    SEVERITY_WORDS,
    STRENGTH_WORDS,
    bytes_words,
    count_words,
    kind_words,
    kinds_words,
    number_name,
    percent_words,
    told_apart,
    value_words,
    who_words,
    zero_words,
)
from quantscope.text import cut_middle, inert

WIDTH = 100
"""Columns where stdout is no terminal."""
MAX_NOTES = 10
TELLING_NUMBERS = ("mean_", "worst_", "readings_left", "stored_", "modules_")
"""Beginnings of the names of the numbers that the short text shows; `show` has all of them."""
CUT = "…"
_LABEL = 10
_POINTER = re.compile(r"[^\s#]+\.json#/(?:[^\s/]+/)*([^\s/]+)")
"""A pointer into a config file; its last key tells most."""


def scan_lines(report: Report, *, full: bool = False, width: int | None = None) -> list[str]:
    """The whole text, every string of the checkpoint inert."""
    columns = width or _columns()
    lines = list(_headings(report, columns))
    needing = [f for f in report.findings if f.severity != "note"]
    notes = [f for f in report.findings if f.severity == "note"]
    lines.append(_rule(_needs_you(needing, report), columns, "tensors   who must act"))
    listed = _finding_lines(needing, columns) + _note_lines(notes, columns, full)
    lines += listed
    for finding in report.findings if full else needing[:1]:
        lines.append(_rule("why", columns, finding.id))
        lines += _why(finding, report, columns)
    if not full and (len(needing) > 1 or any(CUT in text for text in listed[len(needing[:1]) :])):
        told = "--full shows why for each; `quantscope rule CODE` its page"
        lines += _wrapped("others" if needing else "why", told, columns)
    lines.append(_rule("what was looked at", columns))
    lines += _looked_at(report, columns)
    lines += textwrap.wrap(_closing(report, needing), columns)
    return lines


def _columns() -> int:
    return max(60, shutil.get_terminal_size((WIDTH, 24)).columns) if sys.stdout.isatty() else WIDTH


def _headings(report: Report, columns: int) -> Iterator[str]:
    for number, entry in enumerate(report.inputs):
        if entry.kind == "unreadable":
            reason = inert(entry.files[0].error or "")
            yield _cut_end(f"{inert(entry.path)}   could not be opened: {reason}", columns)
            continue
        own = [tensor for tensor in report.tensors if tensor.input == number]
        parts = [count_words(sum(tensor.count for tensor in own), "quantized tensor")]
        parts.append(bytes_words(sum(file.size for file in entry.files)))
        if len(report.inputs) == 1:
            parts[0] += f" of {report.scope.tensors_total}"
            parts.append(f"{report.run.duration_s:.1f} s")
        rest = "   " + "   ".join(parts)
        path = cut_middle(inert(entry.path), max(20, columns - len(rest)))
        yield _cut_end(path + rest, columns)
        kinds = ", ".join(_kinds(own)) or "nothing quantized"
        origin = "   ".join(_origin(report))
        if len(kinds) + len(origin) + 3 <= columns:
            yield f"{kinds}   {origin}".rstrip()
        else:
            yield from (_cut_end(line, columns) for line in (kinds, origin) if line)


def _origin(report: Report) -> Iterator[str]:
    """Size and claimed producer, where the report is about one input."""
    if len(report.inputs) != 1:
        return
    bits = report.summary.bits_per_weight.effective
    if bits is not None:
        yield f"{bits:.2f} bits/weight"
    yield f"{report.summary.parameters:,} parameters"
    producer, version = report.identity["producer"], report.identity["producer_version"]
    if not isinstance(producer, str):
        shown = "" if isinstance(version, str) else f" {version.value}"
        yield inert(f"says: by {producer.value}{shown}")


def _kinds(tensors: Sequence[TensorEntry]) -> list[str]:
    """Kinds of tensors, most frequent first; the family once where there is only one."""
    counts: Counter[str] = Counter()
    families = {tensor.family for tensor in tensors}
    for tensor in tensors:
        counts[tensor_kind(tensor, with_family=len(families) > 1)] += tensor.count
    shown = kinds_words(counts)
    if len(families) == 1 and shown:
        shown[0] = f"{inert(tensors[0].family)} {shown[0]}"
    return shown


def tensor_kind(tensor: TensorEntry, *, with_family: bool = True) -> str:
    """`gptq int4 g128 asym`: what a tensor is in four words."""
    contract = tensor.contract
    kind = kind_words(
        value_in_force(contract["element"]),
        value_in_force(contract["group"]),
        value_in_force(contract["symmetric"]),
    )
    return inert(f"{tensor.family} {kind}" if with_family else kind)


def _needs_you(needing: Sequence[FindingEntry], report: Report) -> str:
    if needing:
        return f"NEEDS YOU: {count_words(len(needing), 'kind')}"
    if report.scope.unrecognised:
        return "NEEDS YOU: quantized-looking tensors that no family recognises"
    return _found(report)


def _found(report: Report) -> str:
    """What was found, where that is nothing above note."""
    return f"nothing {'above note' if report.findings else 'found'} in what was read"


def _finding_lines(findings: Sequence[FindingEntry], columns: int) -> list[str]:
    texts = told_apart([headline(f) for f in findings], [f.subject.file for f in findings])
    return [_finding_line(f, text, columns) for f, text in zip(findings, texts, strict=True)]


def _finding_line(finding: FindingEntry, text: str, columns: int) -> str:
    mark, word = SEVERITY_MARKS[finding.severity], SEVERITY_WORDS[finding.severity]
    head = f"{mark:<2} {word:<11} {finding.code}  "
    tail = f"  {_concerned(finding):>6}  {who_words(finding.who)}"
    room = max(20, columns - len(head) - len(tail))
    return f"{head}{_cut_end(inert(text), room):<{room}}{tail}"


def headline(finding: FindingEntry) -> str:
    """A finding in as few words as a line holds; the message in full stands under `why`."""
    declared, inferred = finding.data.get("declared"), finding.data.get("inferred")
    if finding.subject.field == "zero_convention" and declared and inferred:
        codes = zero_words(inferred).removeprefix("zero = ")
        return f"config: {zero_words(declared)}; codes: {codes}"
    keys = _POINTER.findall(finding.message)
    if len(set(keys)) < len(keys):
        return _POINTER.sub(
            lambda found: found[0].partition("#")[0] + " " + found[1], finding.message
        )
    return _POINTER.sub(r"\1", finding.message)


def _concerned(finding: FindingEntry) -> str:
    """How many tensors a finding is about; `file` or `config` where it is about none."""
    subject = finding.subject
    if finding.count > 1 or subject.tensor or subject.stored or not subject.file:
        return str(finding.count)
    return "config" if subject.config_key else "file"


def _note_lines(notes: Sequence[FindingEntry], columns: int, full: bool) -> list[str]:
    if full or len(notes) <= MAX_NOTES:
        return _finding_lines(notes, columns)
    shown = _finding_lines(notes[: MAX_NOTES - 1], columns)
    rest = Counter(note.code for note in notes[MAX_NOTES - 1 :])
    codes = ", ".join(f"{code} x{count}" for code, count in sorted(rest.items()))
    return [*shown, _cut_end(f"i  note        {sum(rest.values())} more: {codes}", columns)]


def _why(finding: FindingEntry, report: Report, columns: int) -> Iterator[str]:
    yield from _wrapped("what", finding.message, columns)
    entry = entry_of(finding, report)
    if entry is not None and finding.subject.field in entry.contract:
        yield from _field_lines(finding, entry, columns)
    where = where_words(finding)
    if where:
        yield from _wrapped("where", where, columns)
    if finding.count > 1:
        some = [name for name, _ in zip(members_of(finding), range(2), strict=False)]
        yield from _wrapped("tensors", f"{finding.count}, first {', '.join(some)}", columns)
    if finding.example is not None:
        yield from _wrapped("example", example_words(finding), columns)
    for label, text in (
        ("effect", finding.impact),
        ("readers", "; ".join(finding.readers)),
        ("try", f"{finding.try_}   (not applied)" if finding.try_ else ""),
        ("settles", finding.would_settle),
    ):
        if text:
            yield from _wrapped(label, text, columns)


def _field_lines(finding: FindingEntry, entry: TensorEntry, columns: int) -> Iterator[str]:
    field = str(finding.subject.field)
    known = entry.contract[field]
    claims: dict[str, list[str]] = {}
    for claim in known.declared:
        source = claim.source.replace(THIS_TENSOR, str(finding.subject.stored or entry.name))
        claims.setdefault(value_words(field, claim.value), []).append(source)
    for value, sources in claims.items():
        yield from _wrapped("declared", f"{value}   {', '.join(dict.fromkeys(sources))}", columns)
    if not claims:
        yield from _wrapped("declared", "nothing", columns)
    if known.inferred is not None:
        strength = STRENGTH_WORDS[known.inferred.strength]
        yield from _wrapped(
            "inferred", f"{value_words(field, known.inferred.value)}   {strength}", columns
        )
    for candidate in known.candidates:
        text = f"{value_words(field, candidate.value)}: {candidate.effect}"
        yield from _wrapped("possible", text, columns)
    for step in known.evidence:
        if step.supports and step.strength is not None:
            numbers = ", ".join(
                f"{number_name(key)} {number_words(value)}"
                for key, value in step.numbers.items()
                if key.startswith(TELLING_NUMBERS)
            )
            sample = (
                f"{step.sample.examined} of {step.sample.total} {step.sample.unit}"
                if step.sample
                else ""
            )
            told = "  ".join(part for part in (numbers, sample) if part)
            yield from _wrapped("", f"{step.method}: {told}" if told else step.method, columns)


def where_words(finding: FindingEntry) -> str:
    """Stored tensor, file, byte range and config key of a finding."""
    subject = finding.subject
    parts = [part for part in (subject.stored or subject.tensor, subject.file) if part]
    text = ", ".join(parts)
    if subject.byte_range is not None:
        first, end = subject.byte_range
        text += f", bytes 0x{first:X} to 0x{max(first, end - 1):X}"
    if subject.config_key:
        text += f"{', ' if text else ''}{subject.config_key}"
    return text


def _looked_at(report: Report, columns: int) -> Iterator[str]:
    scope = report.scope
    planes = [
        f"{PLANE_WORDS.get(role, role)} {percent_words(count.bytes_read, count.bytes_total)}"
        for role, count in scope.planes.items()
    ]
    total = sum(count.bytes_total for count in scope.planes.values())
    size = f"   (of {bytes_words(total)} in {count_words(scope.tensors_quantized, 'tensor')})"
    yield from _wrapped(
        "read", "  ".join(["headers 100%", *planes]) + (size if total else ""), columns
    )
    yield from _wrapped("held", held_words(report), columns)
    runs = _not_run(report)
    if runs:
        yield from _wrapped("not run", ", ".join(runs), columns)
    if scope.rules_skipped:
        codes = ", ".join(entry.code for entry in scope.rules_skipped[:8])
        more = len(scope.rules_skipped) - 8
        reasons = {entry.reason for entry in scope.rules_skipped}
        why = f" ({reasons.pop()})" if len(reasons) == 1 else ""
        yield from _wrapped(
            "rules",
            f"{len(scope.rules_run)} run; not run: {codes}{f' and {more} more' if more > 0 else ''}{why}",
            columns,
        )
    if scope.suppressed:
        accepted = count_words(len(scope.suppressed), "finding")
        yield from _wrapped("baseline", f"{accepted} accepted by the baseline", columns)
    for entry in report.not_checked:
        if entry.what.startswith("family "):
            yield from _wrapped("failed", f"{entry.what[7:]}: {entry.why}", columns)
    if scope.partial:
        yield from _wrapped("partial", scope.partial, columns)
    elsewhere = [
        gate for gate in ("model_quality", "serving") if _status(report, gate) == "skipped"
    ]
    if elsewhere:
        words = {"model_quality": "task quality", "serving": "serving"}
        told = f"{', '.join(words[g] for g in elsewhere)}: nobody told this tool anything"
        yield from _wrapped("elsewhere", told, columns)


def held_words(report: Report) -> str:
    """How many size equations hold, how many tensors say what their bytes say, which scales were seen."""
    holding = equations = agreeing = tensors = cut = 0
    for entry in report.tensors:
        demanded = [e for e in entry.equations if e.holds is not None]
        equations += len(demanded) * entry.count
        holding += sum(bool(e.holds) for e in demanded) * entry.count
        tensors += entry.count
        is_cut = any(plane.missing_bytes for plane in entry.planes)
        cut += entry.count * is_cut
        agreeing += (
            entry.count * (not is_cut) * all(f.match != "disagree" for f in entry.contract.values())
        )
    if not tensors:
        return "no quantized tensor"
    planes = [p for entry in report.tensors if entry.statistics for p in entry.statistics.planes]
    odd = sum(p.nan + p.inf for p in planes)
    read = sum(p.examined for p in planes)
    told = f"no contradiction in {agreeing} of {count_words(tensors, 'tensor')}"
    if not cut and agreeing < tensors:
        told = f"a contradiction in {tensors - agreeing} of {count_words(tensors, 'tensor')}"
    values = f"; {odd or 'no'} NaN or Inf in the {read} scale values read" if read else ""
    gone = f" ({cut} cut off by the end of a file)" if cut else ""
    return f"{holding} of {equations} size equations; {told}{gone}{values}"


def _not_run(report: Report) -> list[str]:
    names = {
        "numeric_reference": "float base (--base)",
        "packing_layout": "packing vectors (quantscope evidence)",
        "kernel": "kernel check (quantscope parity)",
        "model_quality": "logits check (quantscope probe)",
    }
    return [words for gate, words in names.items() if _status(report, gate) == "skipped"]


def _status(report: Report, gate: str) -> str:
    return str(getattr(report.gates, gate).status)


def _closing(report: Report, needing: Sequence[FindingEntry]) -> str:
    skipped = len(_not_run(report))
    found = _found(report)
    if needing:
        found = f"{count_words(len(needing), 'finding')} above note"
    return f"Nothing here says the model is good: {found}, {count_words(skipped, 'check')} not run."


def _rule(title: str, columns: int, right: str = "") -> str:
    left = f"- {title} "
    shown = f" {cut_middle(inert(right), columns - len(left) - 4)}" if right else ""
    return left + "-" * max(2, columns - len(left) - len(shown)) + shown


def _wrapped(label: str, text: str, columns: int) -> Iterator[str]:
    room = max(30, columns - _LABEL - 1)
    pieces = textwrap.wrap(inert(text), room, break_on_hyphens=False) or [""]
    for number, piece in enumerate(pieces[:6]):
        last = number == 5 and len(pieces) > 6
        yield f" {label if not number else '':<{_LABEL}}{piece}{' …' if last else ''}"


def _cut_end(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + CUT
