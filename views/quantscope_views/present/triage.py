"""The Triage screen as lines: what needs a person, why, and what was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from quantscope.model import Evidence, FieldState, Finding
from quantscope.report.words import (
    CONFIDENCE_WORDS,
    PLANE_WORDS,
    STRENGTH_WORDS,
    value_words,
    who_words,
)
from quantscope.text import inert

from quantscope_views.lines import (
    Line,
    Span,
    cells,
    cut_end,
    fit,
    labelled,
    line,
    rule,
    shown_name,
    wrap,
)
from quantscope_views.marks import SEVERITY_MARKS, glyph
from quantscope_views.place import Place
from quantscope_views.present.headline import Overview
from quantscope_views.present.numbers import finding_numbers, step_numbers_words
from quantscope_views.present.plugins import failed_lines
from quantscope_views.present.scan_tally import ScanTally
from quantscope_views.present.words import (
    count_words,
    kind_of,
    offset_words,
    share_words,
    signed,
    size_words,
    stored_words,
    zero_words,
)

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection, TensorState

MAX_MEMBERS = 200
"""Members listed beside a finding at most; the Tensors screen lists all."""

NOT_RUN: tuple[tuple[str, str], ...] = (
    ("against base", "needs --base"),
    ("kernel check", "R"),
    ("logits check", "R"),
)
"""Checks that a scan never runs, with how to start them."""


class TriageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the screen shows."""

    overview: Overview
    inspection: Inspection | None
    tally: ScanTally
    stage: str
    """opening, headers, part, sample or deep: what the findings rest on."""
    partial: str | None = None
    rules_error: str | None = None
    ran: tuple[str, ...] = ()
    """Kinds of checks that ran in this session."""
    scanning: bool = False
    """Whether a scan still runs, so that more may be found."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far, worst first."""
        return self.inspection.findings if self.inspection is not None else ()


def needs_you_title(facts: TriageFacts) -> str:
    """`NEEDS YOU: 1 kind`, by what is above note."""
    kinds = sum(finding.severity != "note" for finding in facts.findings)
    tail = {
        "opening": " (reading headers)",
        "headers": " (from headers; bytes are being read)",
        "part": " (so far)",
    }.get(facts.stage, "")
    if facts.partial:
        tail = " (partial)"
    if facts.scanning and not tail:
        tail = " (so far)"
    if not kinds:
        found = "nothing above note" if facts.findings else "nothing found"
        return f"NEEDS YOU: {found}{tail}"
    return f"NEEDS YOU: {count_words(kinds, 'kind')}{tail}"


def members_words(finding: Finding, quantized: int) -> str:
    """`14 of 14`, `1 of 14`, `file`, `config`."""
    subject = finding.subject
    if finding.count == 1 and subject.stored and not subject.tensor:
        return "1 stored"
    if finding.count > 1 or subject.tensor or subject.stored:
        return (
            f"{finding.count} of {quantized}" if quantized >= finding.count else str(finding.count)
        )
    return "file" if subject.file and not subject.config_key else "config"


def finding_lines(facts: TriageFacts, width: int, ascii_only: bool) -> list[Line]:
    """One line a finding: mark, word, message, members, who must act."""
    who_width, members_width = 9, 10
    room = max(12, width - 16 - members_width - who_width - 2)
    result = []
    for finding in facts.findings:
        mark = SEVERITY_MARKS[finding.severity]
        members = members_words(finding, facts.overview.quantized)
        result.append(
            Line(
                spans=(
                    Span(" " + fit(glyph(mark, ascii_only), 2) + " ", mark.tone),
                    Span(fit(mark.word, 12), mark.tone),
                    Span(fit(cut_end(inert(headline_of(finding)), room), room) + " "),
                    Span(fit(members, members_width), "number"),
                    Span(" " + fit(who_words(finding.who), who_width)),
                ),
                about=finding_about(finding),
                target=Place(
                    screen="tensors" if finding.count > 1 else "tensor",
                    tensor=finding.subject.tensor,
                    members=finding.members,
                    finding=finding.id,
                ),
            )
        )
    return result


def headline_of(finding: Finding) -> str:
    """A finding in as few words as a line holds; the message in full stands under `why`."""
    declared, inferred = finding.data.get("declared"), finding.data.get("inferred")
    if finding.subject.field == "zero_convention" and declared and inferred:
        return f"config: {zero_words(declared)}; codes: {stored_words(inferred)}"
    return finding.message


def empty_lines(facts: TriageFacts, width: int) -> list[Line]:
    """What an empty list of findings says: never that all is well."""
    inspection = facts.inspection
    if facts.rules_error:
        text = f"rules did not run: {facts.rules_error}"
    elif inspection is None:
        text = "reading headers: findings appear as they are made"
    else:
        tensors = count_words(len(inspection.states), "tensor")
        rules = count_words(len(inspection.rules_run), "rule")
        so_far = " so far, the scan still runs" if facts.scanning else ""
        text = f"nothing found in what was read ({rules}, {tensors}){so_far}; not run: "
        text += ", ".join(what for what, _ in NOT_RUN if what not in facts.ran)
    about = (text, *_skipped_rules(inspection), "explain: all rules, in the palette, lists them")
    return [line((" " + piece, "dim"), about=about) for piece in wrap(text, width - 2)]


def finding_about(finding: Finding) -> tuple[str, ...]:
    """How a finding is known: its rule, the strength of its evidence, its numbers."""
    sure = CONFIDENCE_WORDS[finding.confidence]
    lines = [
        f"{finding.code} {finding.name}: {finding.message}",
        f"severity {SEVERITY_MARKS[finding.severity].word}, evidence {sure}",
    ]
    lines += finding_numbers(finding)
    if finding.would_settle:
        lines.append(f"would settle it: {finding.would_settle}")
    lines.append(f"rule page: quantscope rule {finding.code}")
    return tuple(lines)


def why_lines(
    finding: Finding | None, state: TensorState | None, facts: TriageFacts, width: int
) -> list[Line]:
    """Declared, inferred, effect, readers, try: for the selected finding."""
    if finding is None:
        return [line((" no finding is selected", "dim"))]
    about = finding_about(finding)
    lines: list[Line] = []
    field = _field_of(finding, state)
    if field is not None:
        lines += _declared_lines(field, width)
        lines += _inferred_lines(field, facts, width)
    else:
        lines += labelled("what", finding.message, width, about=about)
    lines += _where_lines(finding, width)
    if finding.impact:
        lines += labelled("effect", finding.impact, width, about=about)
    lines += readers_lines(state if field is not None else None, finding, width)
    if finding.try_:
        lines += labelled("try", f"{finding.try_}   (not applied)", width, about=about)
    if finding.would_settle:
        lines += labelled("settles", finding.would_settle, width, about=about)
    return lines


def how_lines(
    finding: Finding | None, state: TensorState | None, width: int, mark: str
) -> list[Line]:
    """What `i` answers, as lines, for screens with room to spare."""
    if finding is None:
        return []
    sentences = list(finding_about(finding))
    field = _field_of(finding, state)
    if field is not None:
        sentences += evidence_about(field.evidence)
    lines = [rule("how do I know", width, mark=mark)]
    for sentence in sentences:
        indent = len(sentence) - len(sentence.lstrip())
        pieces = wrap(inert(sentence.strip()), max(8, width - indent - 3))
        lines += [line((" " * (indent + 1) + piece, "dim")) for piece in pieces]
    return lines


def member_lines(
    finding: Finding | None, states: Mapping[str, TensorState], width: int, mark: str
) -> list[Line]:
    """Members of the selected finding, each leading to its tensor."""
    if finding is None or not finding.members:
        return []
    lines = [rule(f"members, {len(finding.members)}", width, mark=mark)]
    for name in finding.members[:MAX_MEMBERS]:
        state = states.get(name)
        words = kind_of(state) if state is not None else ""
        room = max(10, width - cells(words) - 4)
        lines.append(
            Line(
                spans=(
                    Span(" " + fit(shown_name(name, room), room + 1)),
                    Span(words, "number"),
                ),
                about=(f"{name} shares this finding",),
                target=Place(screen="tensor", tensor=name),
            )
        )
    if len(finding.members) > MAX_MEMBERS:
        lines.append(line((f" {len(finding.members) - MAX_MEMBERS} more: enter shows all", "dim")))
    return lines


def _field_of(finding: Finding, state: TensorState | None) -> FieldState | None:
    name = finding.subject.field
    if state is None or name is None or name not in state.contract.fields:
        return None
    field = state.contract[name]
    return field if field.declared or field.evidence or field.inferred else None


def _declared_lines(field: FieldState, width: int) -> list[Line]:
    """Declarations, those that say the same value in one line: keys, value, files."""
    if not field.declared:
        return labelled("declared", f"{field.field}: nothing declares it", width, tone="dim")
    by_value: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for claim in field.declared:
        key = claim.source.pointer.rstrip("/").rpartition("/")[2] or claim.source.pointer
        said = by_value.setdefault(value_words(field.field, claim.value), ([], [], []))
        for known, new in zip(said, (key, _plain(claim.written), claim.source.file), strict=True):
            if new not in known:
                known.append(new)
    lines: list[Line] = []
    for value, (keys, written, files) in by_value.items():
        text = f"{', '.join(keys)} = {', '.join(written)}  ({value})   {', '.join(files)}"
        lines += labelled(
            "declared" if not lines else "",
            text,
            width,
            about=tuple(
                f"{claim.source} says {_plain(claim.written)} ({claim.basis.replace('_', ' ')})"
                for claim in field.declared
            ),
        )
    return lines


def _inferred_lines(field: FieldState, facts: TriageFacts, width: int) -> list[Line]:
    inspection = facts.inspection
    if field.field == "zero_convention" and inspection is not None:
        for step in inspection.set_evidence:
            if step.field == "zero_convention" and "modules" in step.numbers:
                return set_statistic_lines(step, field, width)
    if field.inferred is None:
        candidates = ", ".join(
            value_words(field.field, candidate.value) for candidate in field.candidates
        )
        text = f"open between {candidates}" if candidates else "nothing decides it"
        return labelled("inferred", text, width, tone="check", about=evidence_about(field.evidence))
    strength = STRENGTH_WORDS[field.inferred.strength]
    return labelled(
        "inferred",
        f"{value_words(field.field, field.inferred.value)}   ({strength})",
        width,
        about=evidence_about(field.evidence),
    )


def set_statistic_lines(step: Evidence, field: FieldState, width: int) -> list[Line]:
    """The two readings of the zero with their means over all modules."""
    numbers, sample = step.numbers, step.sample
    of = f"{sample.examined} of {sample.total} {sample.unit}" if sample else ""
    about = evidence_about((step,))
    lines = labelled("inferred", f"mean(code - zero), {of}, in steps", width, about=about)
    wanted = field.inferred.value if field.inferred is not None else None
    for value in ("as_is", "minus_one"):
        low, high = numbers.get(f"mean_{value}_min"), numbers.get(f"mean_{value}_max")
        if low is None or high is None:
            continue
        words = f"             {fit(zero_words(value), 18)}"
        words += f" {signed(float(low))} .. {signed(float(high))}"
        modules = numbers.get(f"modules_{value}")
        fits = f"   <- fits, {modules} of {numbers['modules']}" if value == wanted else ""
        lines.append(
            Line(
                spans=(Span(words, "number"), Span(fits, "strong")),
                about=about,
            )
        )
    return lines


def evidence_about(steps: Iterable[Evidence]) -> tuple[str, ...]:
    """Every evidence step as a sentence with its numbers, sample and assumptions."""
    sentences = []
    for step in steps:
        supports = " or ".join(value_words(step.field, value) for value in step.supports)
        verdict = f"speaks for {supports}" if supports else "decides nothing"
        strength = f" ({STRENGTH_WORDS[step.strength]})" if step.strength else ""
        sentences.append(f"{step.method}: {verdict}{strength}")
        sentences += [f"  {words}" for words in step_numbers_words(step)]
        if step.sample:
            sample = step.sample
            sentences.append(f"  sample: {sample.examined} of {sample.total} {sample.unit}")
        sentences += [f"  assumes: {assumed}" for assumed in step.assumes]
    return tuple(sentences)


def _where_lines(finding: Finding, width: int) -> list[Line]:
    subject = finding.subject
    parts = []
    name = subject.stored or subject.tensor
    if name:
        parts.append(name)
    if subject.config_key:
        parts.append(subject.config_key)
    elif subject.file:
        parts.append(subject.file)
    if subject.byte_range:
        first, last = subject.byte_range
        parts.append(f"@{offset_words(first)} .. {offset_words(last)}")
    if not parts or (finding.count > 1 and not subject.byte_range):
        return []
    return labelled("where", "  ".join(parts), width, about=finding_about(finding))


def readers_lines(state: TensorState | None, finding: Finding, width: int) -> list[Line]:
    """What known runtimes do with the doubtful field, from a dated table."""
    if state is None or finding.subject.field != "zero_convention" or not state.stances:
        return []
    inferred = state.contract.value("zero_convention")
    groups: dict[str, list[str]] = {}
    about = []
    for stance in state.stances:
        name = f"{stance.reader} {stance.version}".strip()
        if stance.action == "refuses":
            key = "refuses"
        elif stance.action == "ignores":
            key = "ignores it"
        else:
            key = "right" if stance.value == inferred else "wrong by 1 step"
        groups.setdefault(key, []).append(stance.reader)
        about.append(f"{name}: {stance.action}, {stance.words} ({stance.source})")
    lines: list[Line] = []
    for key in ("wrong by 1 step", "refuses", "ignores it", "right"):
        if key in groups:
            lines += labelled(
                "readers" if not lines else "",
                f"{key}: {', '.join(groups[key])}",
                width,
                about=about,
            )
    return lines


def looked_at_lines(facts: TriageFacts, width: int) -> list[Line]:
    """Read, held, not run, elsewhere; and what nobody may conclude."""
    lines = _read_lines(facts, width)
    inspection = facts.inspection
    if inspection is not None:
        lines += _held_lines(inspection, facts.tally, width)
    not_run = "   ".join(f"{what} ({how})" for what, how in NOT_RUN if what not in facts.ran)
    about = (*NOT_RUN_ABOUT, *_skipped_rules(inspection))
    lines += labelled("not run", not_run, width, tone="plain", about=about)
    lines += failed_lines(facts.tally.failures, width)
    lines += labelled(
        "elsewhere", "task quality, serving: nobody told this tool anything", width, tone="dim"
    )
    return [*lines, line((cut_end(f" {closing_words(facts)}", width), "dim"))]


def closing_words(facts: TriageFacts) -> str:
    """What nobody may conclude: what was found, while a scan runs so far, and how much was not run."""
    missing = count_words(sum(what not in facts.ran for what, _ in NOT_RUN), "check")
    worst = sum(finding.severity != "note" for finding in facts.findings)
    found = "nothing above note" if facts.findings else "nothing found"
    if worst:
        found = f"{count_words(worst, 'finding')} above note"
    if facts.scanning:
        return f"The scan still runs; so far {found}; {missing} not run."
    return f"Nothing here says the model is good: {found}, {missing} not run."


def _skipped_rules(inspection: Inspection | None) -> Iterable[str]:
    for code, reason in inspection.rules_skipped if inspection is not None else ():
        yield f"rule {code} did not run: {reason}"


NOT_RUN_ABOUT = (
    "against base: pair every tensor with a float checkpoint and compare values; start with c",
    "kernel check: run a real kernel against float64 on the same bytes; R shows cost and backends",
    "logits check: run the model under each reading and compare; R shows the cost first",
)


ALWAYS_NAMED = frozenset({"codes", "scale", "zero", "minimum"})
"""Planes whose share is named even where all of it was read."""


def _read_lines(facts: TriageFacts, width: int) -> list[Line]:
    overview = facts.overview
    parts = [
        "headers 100%"
        if overview.files == overview.files_parsed
        else f"headers of {overview.files_parsed} of {overview.files} files"
    ]
    about = [f"{overview.header_bytes} bytes of headers in {count_words(overview.files, 'file')}"]
    coverage = facts.tally.coverage
    if coverage:
        for role, (part, whole) in coverage.items():
            label = PLANE_WORDS.get(role, role)
            if whole and (role in ALWAYS_NAMED or part < whole):
                parts.append(f"{label} {share_words(part, whole)}")
            about.append(f"{label}: {part} of {whole} bytes read")
    else:
        waiting = facts.stage in ("opening", "headers")
        parts.append("bytes not yet read" if waiting else "no quantized bytes to read")
    tone = "plain"
    text = "  ".join(parts) + f"  (of {size_words(overview.size)})"
    if facts.partial:
        text += f"  PARTIAL: {facts.partial}"
        tone = "check"
    return labelled("read", text, width, tone=tone, about=about)


def _held_lines(inspection: Inspection, tally: ScanTally, width: int) -> list[Line]:
    text = f"hold {tally.tensors_held} of {tally.tensors} ({tally.equations} size equations)"
    lines = labelled(
        "sizes",
        text,
        width,
        tone="plain" if tally.tensors_held == tally.tensors else "broken",
        about=("every plane's shape and bytes against what the reading demands",),
    )
    if inspection.mode == "headers":
        return lines
    bad = ", ".join(f"{count} {kind}" for kind, count in tally.odd.items())
    lines += labelled(
        "values",
        f"{bad or 'no NaN, Inf or 0'} among {tally.values_examined} of {tally.values_total} "
        "scale values",
        width,
        tone="check" if bad else "plain",
        about=("scale, zero and minimum planes that hold floats, value by value",),
    )
    return lines


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return f'"{inert(value)}"'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_plain(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence):
        shown = ", ".join(_plain(item) for item in value[:8])
        return f"[{shown}{', …' if len(value) > 8 else ''}]"
    return str(value)
