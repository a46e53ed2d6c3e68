"""A report as Markdown for a ticket: what is wrong, where to the byte, how to see it again, what is not said."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice

from quantscope.report.folding import THIS_TENSOR
from quantscope.report.inert_markup import cell, code, prose
from quantscope.report.kernel_checks import kernel_check_rows, left_out
from quantscope.report.logits_checks import logits_check_rows
from quantscope.report.lookup import entry_of, example_words, members_of
from quantscope.report.schema import FindingEntry, Report, TensorEntry
from quantscope.report.words import (
    CONFIDENCE_WORDS,
    GATE_WORDS,
    PLANE_WORDS,
    SEVERITY_WORDS,
    STRENGTH_WORDS,
    bytes_words,
    count_words,
    percent_words,
    value_words,
    who_words,
)

TABLE_FIELDS = (
    "element",
    "group",
    "scale",
    "zero",
    "symmetric",
    "zero_convention",
    "packing",
    "order",
)
MAX_FINDINGS = 40
MAX_READERS = 8


def markdown(report: Report) -> str:
    """The ticket; under 60 lines for one finding."""
    lines: list[str] = []
    findings = report.findings
    if len(findings) == 1:
        lines += _finding(findings[0], report, heading="#")
    else:
        lines += _overview(report)
        for finding in findings[:MAX_FINDINGS]:
            lines += ["", *_finding(finding, report, heading="##")]
        if len(findings) > MAX_FINDINGS:
            lines += ["", f"{len(findings) - MAX_FINDINGS} more findings are in the JSON report."]
    lines += ["", *_scope(report)]
    return "\n".join(lines) + "\n"


def _overview(report: Report) -> Iterator[str]:
    counts = report.summary.findings
    total = len(report.findings)
    title = count_words(total, "finding") if total else "Nothing found in what was read"
    yield f"# {title}: {', '.join(code(entry.path) for entry in report.inputs)}"
    yield ""
    families = ", ".join(
        f"{code(name)} x{count}" for name, count in report.summary.families.items()
    )
    yield f"{report.summary.parameters:,} parameters; {families or 'nothing quantized'}."
    if total:
        parts = [
            f"{getattr(counts, severity)} {SEVERITY_WORDS[severity]}"
            for severity in ("violation", "disagreement", "warning", "note")
            if getattr(counts, severity)
        ]
        yield f"{', '.join(parts)}."


def _finding(finding: FindingEntry, report: Report, heading: str) -> Iterator[str]:
    entry = entry_of(finding, report)
    count = f" ({count_words(finding.count, 'tensor')})" if finding.count > 1 else ""
    yield f"{heading} {SEVERITY_WORDS[finding.severity]}: {prose(finding.message)}{count}"
    yield ""
    if finding.impact:
        yield f"Effect: {prose(finding.impact)}"
        yield ""
    if entry is not None:
        yield from _table(finding, entry)
        yield ""
    yield f"- **Finding** {code(finding.id)}, confidence: {CONFIDENCE_WORDS[finding.confidence]}, who can act: {_who(finding)}"
    yield from _bullet("Where", _where(finding))
    yield from _members(finding)
    if finding.example is not None:
        yield from _bullet("Example", code(example_words(finding), 300))
    for reader in finding.readers[:MAX_READERS]:
        yield from _bullet("Readers", prose(reader))
    if finding.try_:
        yield f"- **Try** {prose(finding.try_)} (not applied, not tried here)"
    if finding.would_settle:
        yield f"- **Would settle it** {prose(finding.would_settle)}"
    yield f"- **Reproduce** {code(_reproduce(finding, report))}"


def _who(finding: FindingEntry) -> str:
    return "nobody" if finding.who == "nobody" else who_words(finding.who_detail or finding.who)


def _bullet(label: str, text: str) -> Iterator[str]:
    if text:
        yield f"- **{label}** {text}"


def _table(finding: FindingEntry, entry: TensorEntry) -> Iterator[str]:
    own = finding.subject.field
    fields = [field for field in (own, *TABLE_FIELDS) if field in entry.contract]
    yield "| field | declared | inferred |"
    yield "| --- | --- | --- |"
    for field in dict.fromkeys(fields):
        assert field is not None
        known = entry.contract[field]
        declared: dict[str, list[str]] = {}
        for claim in known.declared:
            file = claim.source.partition("#")[0]
            if file.startswith(THIS_TENSOR) and entry.planes:
                file = entry.planes[0].file
            declared.setdefault(value_words(field, claim.value), []).append(file)
        claims = "; ".join(
            f"{cell(value)} ({', '.join(cell(f, 60) for f in list(dict.fromkeys(files))[:3])})"
            for value, files in declared.items()
        )
        inferred = "-"
        if known.inferred is not None:
            strength = STRENGTH_WORDS[known.inferred.strength]
            inferred = f"{cell(value_words(field, known.inferred.value))} ({strength})"
        if claims or (known.inferred is not None and known.inferred.strength != "convention"):
            mark = "**" if field == own else ""
            yield f"| {mark}{cell(field)}{mark} | {claims or 'not stated'} | {inferred} |"


def _where(finding: FindingEntry) -> str:
    subject = finding.subject
    parts = [code(part) for part in (subject.stored or subject.tensor, subject.file) if part]
    if subject.byte_range is not None:
        first, last = subject.byte_range
        parts.append(f"bytes 0x{first:X} to 0x{max(first, last - 1):X}")
    if subject.config_key:
        parts.append(code(subject.config_key))
    return ", ".join(parts)


def _members(finding: FindingEntry) -> Iterator[str]:
    if finding.count < 2:
        return
    names = list(islice(members_of(finding), 3))
    rest = finding.count - len(names)
    more = f" and {rest} more" if rest > 0 else ""
    yield f"- **Tensors** {', '.join(code(name) for name in names)}{more}"


def _reproduce(finding: FindingEntry, report: Report) -> str:
    path = report.inputs[finding.input].path if report.inputs else "PATH"
    words = ["quantscope", "scan", path, "--select", finding.code]
    if report.scope.mode == "deep":
        words.append("--deep")
    if finding.subject.tensor and finding.subject.field:
        tab = ["--tab", "zero"] if finding.subject.field == "zero_convention" else []
        words = ["quantscope", "show", path, "--tensor", finding.subject.tensor, *tab]
    return shlex.join(words)


def _scope(report: Report) -> Iterator[str]:
    scope = report.scope
    planes = ", ".join(
        f"{PLANE_WORDS.get(role, role)} {percent_words(count.bytes_read, count.bytes_total)}"
        for role, count in scope.planes.items()
    )
    groups = f"{scope.groups_examined} of {scope.groups_total} groups decoded"
    planes = f"bytes read: {planes}" if planes else "headers only"
    yield f"- **Looked at** {count_words(scope.tensors_examined, 'tensor')} of {scope.tensors_total}, {groups}; {planes}"
    yield from _files(report)
    producer = report.identity["producer"]
    if not isinstance(producer, str):
        version = report.identity["producer_version"]
        shown = "" if isinstance(version, str) else f" {version.value}"
        yield f"- **Says it was written by** {code(f'{producer.value}{shown}')} ({code(producer.source, 80)})"
    ran, not_run = _gates(report)
    yield from _bullet("Ran", ran)
    yield from _bullet("Not run", not_run)
    for tensor, kernel, right, ran_words, codes in kernel_check_rows(report):
        yield f"- **Kernel check** {code(tensor)}, {code(kernel)}: computed right: {prose(right)}; that kernel ran: {ran_words}; read out: {codes or 'nothing'}"
    if left_out(report):
        yield f"- **Kernel check** {left_out(report)} more, in the JSON report"
    for what, found in logits_check_rows(report):
        yield f"- **Logits check** {code(what)}: {prose(found)}"
    for item in report.not_checked[:6]:
        yield f"- **Not checked** {prose(item.what)}: {prose(item.why)}"
    if len(report.not_checked) > 6:
        yield f"- **Not checked** {len(report.not_checked) - 6} more, in the JSON report"
    yield f"- **Tool** {report.tool.name} {report.tool.version}, report schema {report.schema_version}; nothing here says that the model is good"


def _files(report: Report) -> Iterator[str]:
    files = [file for entry in report.inputs for file in entry.files]
    for file in files[:4]:
        if file.sha256 is not None:
            digest = f"sha256 {code(file.sha256)}"
        elif file.examined is not None:
            digest = f"sha256 of the {bytes_words(file.examined.bytes)} read {code(file.examined.sha256)}"
        else:
            digest = "no digest"
        error = f"; {prose(file.error)}" if file.error else ""
        yield f"- **File** {code(file.name)}, {file.size} bytes, {digest}{error}"
    if len(files) > 4:
        yield f"- **File** {len(files) - 4} more, in the JSON report"


def _gates(report: Report) -> tuple[str, str]:
    ran: list[str] = []
    skipped: list[str] = []
    for name, words in GATE_WORDS.items():
        gate = getattr(report.gates, name)
        if gate.status == "executed":
            ran.append(f"{words}: {str(gate.outcome).replace('_', ' ')}")
        elif gate.status == "reported_unverified":
            ran.append(f"{words}: claimed by others, not checked")
        else:
            skipped.append(words if gate.status == "skipped" else f"{words} (could not finish)")
    return "; ".join(ran), ", ".join([*skipped, "where the files came from"])
