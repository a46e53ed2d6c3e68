"""A report as one HTML page: no script, no request to anywhere, styles allowed by their hash alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice

from quantscope.report.folding import THIS_TENSOR
from quantscope.report.inert_markup import plain_html
from quantscope.report.kernel_checks import kernel_check_rows
from quantscope.report.logits_checks import logits_check_rows
from quantscope.report.lookup import entry_of, example_words, members_of, names_of, number_words
from quantscope.report.plots import bars, histogram
from quantscope.report.schema import FieldEntry, FindingEntry, Report, TensorEntry
from quantscope.report.words import (
    CONFIDENCE_WORDS,
    GATE_WORDS,
    MATCH_WORDS,
    OUTCOME_WORDS,
    PLANE_WORDS,
    SEVERITY_WORDS,
    STRENGTH_WORDS,
    bytes_words,
    count_words,
    percent_words,
    value_words,
    who_words,
)

MAX_FINDINGS = 200
MAX_ENTRIES = 200

STYLE = """
:root{color-scheme:light dark;--line:#8886;--soft:#8882;--mark:#c33;--bar:#58a}
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;margin-top:2rem}h3{font-size:1rem;margin:1rem 0 .3rem}
code,td.n,th.n{font-family:ui-monospace,monospace;font-size:.9em;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
th,td{border-bottom:1px solid var(--line);padding:.25rem .5rem;text-align:left;vertical-align:top}
section.f{border-left:4px solid var(--line);padding-left:1rem;margin:1.5rem 0}
section.violation,section.disagreement{border-color:var(--mark)}
.word{font-weight:700}details{margin:.5rem 0}summary{cursor:pointer}
svg{display:block;max-width:100%}svg .b{fill:var(--bar)}svg .a{stroke:currentColor;stroke-width:1}
svg text{font:10px ui-monospace,monospace;fill:currentColor}svg .t{fill:var(--soft)}
.closing{margin-top:2rem;font-weight:600}
"""


def html_page(report: Report) -> str:
    """The page, complete in itself."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = ", ".join(plain_html(entry.path, 120) for entry in report.inputs)
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>quantscope: {title}</title><style>{STYLE}</style></head><body>",
            *_header(report, title),
            *_findings(report),
            *_looked_at(report),
            *_gates(report),
            *_tensors(report),
            *_identity(report),
            *_closing(report),
            "</body></html>\n",
        ]
    )


def _header(report: Report, title: str) -> Iterator[str]:
    yield f"<h1>{title}</h1>"
    kinds = ", ".join(
        f"{plain_html(name)} &times; {count}" for name, count in report.summary.families.items()
    )
    bits = report.summary.bits_per_weight.effective
    shown = f"; {bits:.2f} bits per weight where quantized" if bits is not None else ""
    yield f"<p>{report.summary.parameters:,} parameters; {kinds or 'nothing quantized'}{shown}</p>"


def _findings(report: Report) -> Iterator[str]:
    if not report.findings:
        yield "<h2>Nothing found in what was read</h2>"
        return
    yield f"<h2>{count_words(len(report.findings), 'finding')}</h2>"
    for finding in report.findings[:MAX_FINDINGS]:
        yield from _finding(finding, report)
    if len(report.findings) > MAX_FINDINGS:
        yield f"<p>{len(report.findings) - MAX_FINDINGS} more are in the JSON report.</p>"


def _finding(finding: FindingEntry, report: Report) -> Iterator[str]:
    word = SEVERITY_WORDS[finding.severity]
    yield f'<section class="f {finding.severity}"><h3><span class="word">{word}</span> '
    yield f"{finding.code} {plain_html(finding.message)}</h3>"
    if finding.impact:
        yield f"<p>Effect: {plain_html(finding.impact)}</p>"
    entry = entry_of(finding, report)
    if entry is not None and finding.subject.field in entry.contract:
        yield from _contract_table(entry, [finding.subject.field])
    rows = [
        ("id", finding.id),
        ("confidence", CONFIDENCE_WORDS[finding.confidence]),
        ("who can act", who_words(finding.who_detail or finding.who)),
        ("where", _where(finding)),
        ("tensors", _some_members(finding)),
        ("example", example_words(finding)),
        ("readers", "; ".join(finding.readers)),
        ("try (not applied)", finding.try_),
        ("would settle it", finding.would_settle),
    ]
    yield from _table([(label, text) for label, text in rows if text])
    yield "</section>"


def _some_members(finding: FindingEntry) -> str:
    if finding.count < 2:
        return ""
    names = list(islice(members_of(finding), 5))
    more = f" and {finding.count - len(names)} more" if finding.count > len(names) else ""
    return ", ".join(names) + more


def _where(finding: FindingEntry) -> str:
    subject = finding.subject
    parts = [part for part in (subject.stored or subject.tensor, subject.file) if part]
    if subject.byte_range is not None:
        parts.append(f"bytes 0x{subject.byte_range[0]:X} to 0x{subject.byte_range[1] - 1:X}")
    return ", ".join([*parts, *([subject.config_key] if subject.config_key else [])])


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "<table>"
    for label, text in rows:
        yield f'<tr><th>{plain_html(label)}</th><td class="n">{plain_html(text, 1200)}</td></tr>'
    yield "</table>"


def _contract_table(entry: TensorEntry, fields: Sequence[str]) -> Iterator[str]:
    yield "<table><tr><th>field</th><th>declared</th><th>inferred</th><th>match</th></tr>"
    for field in fields:
        known = entry.contract[field]
        if known.match == "not_applicable" and not known.declared:
            continue
        yield f"<tr><th>{plain_html(field)}</th><td>{_declared(field, known, entry.name)}</td>"
        yield f"<td>{_inferred(field, known)}</td><td>{MATCH_WORDS[known.match]}</td></tr>"
    yield "</table>"


def _declared(field: str, known: FieldEntry, name: str) -> str:
    return (
        "<br>".join(
            f"{plain_html(value_words(field, claim.value))} "
            f"<code>{plain_html(claim.source.replace(THIS_TENSOR, name))}</code>"
            for claim in known.declared[:6]
        )
        or "not stated"
    )


def _inferred(field: str, known: FieldEntry) -> str:
    if known.inferred is None:
        return "-"
    strength = STRENGTH_WORDS[known.inferred.strength]
    return f"{plain_html(value_words(field, known.inferred.value))} ({strength})"


def _looked_at(report: Report) -> Iterator[str]:
    scope = report.scope
    yield "<h2>What was looked at</h2>"
    yield f"<p>{count_words(scope.tensors_examined, 'tensor')} of {scope.tensors_total}; codes of "
    yield f"{scope.groups_examined} of {scope.groups_total} groups; mode {scope.mode}.</p>"
    if scope.planes:
        yield bars(
            [
                (
                    PLANE_WORDS.get(role, role),
                    count.bytes_read / count.bytes_total if count.bytes_total else 0.0,
                    f"{percent_words(count.bytes_read, count.bytes_total)} of {bytes_words(count.bytes_total)}",
                )
                for role, count in scope.planes.items()
            ]
        )
    if report.not_checked:
        yield "<h3>Not checked</h3>"
        yield from _table([(item.what, item.why) for item in report.not_checked])


def _gates(report: Report) -> Iterator[str]:
    yield "<h2>Gates</h2><table><tr><th>gate</th><th>status</th><th>reason</th></tr>"
    for name in report.gates.__struct_fields__:
        gate = getattr(report.gates, name)
        status = OUTCOME_WORDS.get(gate.outcome, gate.status)
        if gate.status == "reported_unverified":
            status = "claimed by others, not checked"
        yield f"<tr><th>{GATE_WORDS[name]}</th><td>{plain_html(status)}</td>"
        yield f"<td>{plain_html(gate.reason or '')}</td></tr>"
    yield f"</table><p>overall: {report.overall}</p>"
    checks = list(kernel_check_rows(report))
    if checks:
        yield "<h3>Kernel checks</h3>"
        yield from _table(
            [
                (
                    tensor,
                    f"{kernel}: computed right: {right}; that kernel ran: {ran}; read out: {codes or 'nothing'}",
                )
                for tensor, kernel, right, ran, codes in checks
            ]
        )
    compared = list(logits_check_rows(report))
    if compared:
        yield "<h3>Logits checks</h3>"
        yield from _table(compared)


def _tensors(report: Report) -> Iterator[str]:
    yield f"<h2>{count_words(len(report.tensors), 'contract')}</h2>"
    for entry in report.tensors[:MAX_ENTRIES]:
        yield from _entry(entry)
    if len(report.tensors) > MAX_ENTRIES:
        yield f"<p>{len(report.tensors) - MAX_ENTRIES} more are in the JSON report.</p>"


def _entry(entry: TensorEntry) -> Iterator[str]:
    yield f"<details><summary><code>{plain_html(entry.name, 120)}</code> {entry.shape} "
    yield f"{plain_html(entry.family)}, {count_words(entry.count, 'tensor')}</summary>"
    yield from _contract_table(entry, list(entry.contract))
    equations = [
        (
            equation.plane,
            f"{equation.symbolic} {equation.substituted} "
            + {True: "holds", False: "BROKEN", None: "not stored"}[equation.holds],
        )
        for equation in entry.equations
    ]
    yield from _table(equations)
    statistics = entry.statistics
    if statistics is not None and statistics.codes is not None and statistics.codes.histogram:
        codes = statistics.codes
        yield f"<h3>Codes, {codes.elements} of them</h3>"
        yield histogram(codes.histogram, codes.lowest_code)
    if statistics is not None:
        yield from _table(
            [
                (
                    plane.plane,
                    f"{plane.dtype}: {number_words(plane.smallest)} .. {number_words(plane.largest)}; NaN "
                    f"{plane.nan}, Inf {plane.inf}, zero {plane.zero}, negative {plane.negative}",
                )
                for plane in statistics.planes
            ]
        )
    names = list(islice(names_of(entry), 8))
    more = f" and {entry.count - len(names)} more" if entry.count > len(names) else ""
    yield f"<p><code>{plain_html(', '.join(names), 1200)}</code>{more}</p></details>"


def _identity(report: Report) -> Iterator[str]:
    yield "<h2>Identity</h2>"
    rows = [
        (key, "not stated" if isinstance(stated, str) else f"{stated.value}  ({stated.source})")
        for key, stated in report.identity.items()
    ]
    yield from _table(rows)
    files = []
    for entry in report.inputs:
        for file in entry.files:
            digest = f"sha256 {file.sha256}" if file.sha256 else "no digest of the whole file"
            if file.examined is not None:
                digest += f"; sha256 of the {file.examined.bytes} bytes read {file.examined.sha256}"
            files.append(
                (file.name, f"{file.size} bytes; {digest}{'; ' + file.error if file.error else ''}")
            )
        files += [(config.name, f"sha256 {config.sha256}") for config in entry.config_files]
    yield from _table(files)


def _closing(report: Report) -> Iterator[str]:
    run = report.run
    yield from _table(
        [
            ("command", run.command),
            ("run", f"{run.started}, {run.duration_s} s, {run.platform}, Python {run.python}"),
            ("tool", f"{report.tool.name} {report.tool.version}, schema {report.schema_version}"),
        ]
    )
    yield '<p class="closing">Nothing here says that the model is good.</p>'
