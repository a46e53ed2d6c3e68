"""The Triage screen as lines: what needs a person, why, and what was looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from quantscope.model import Evidence, FieldState, Finding
from quantscope.report.words import (
    CONFIDENCE_WORDS,
    STRENGTH_WORDS,
    told_apart,
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
from quantscope_views.present.looked_at import checks_not_run, skipped_rules
from quantscope_views.present.numbers import finding_numbers, step_numbers_words
from quantscope_views.present.triage_facts import TriageFacts
from quantscope_views.present.words import (
    count_words,
    kind_of,
    offset_words,
    signed,
    stored_words,
    zero_words,
)

if TYPE_CHECKING:
    from quantscope.session.inspection import TensorState

MAX_MEMBERS = 200
"""Members listed beside a finding at most; the Tensors screen lists all."""


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
    shown = told_apart(
        [headline_of(finding) for finding in facts.findings],
        [finding.subject.file for finding in facts.findings],
    )
    for finding, text in zip(facts.findings, shown, strict=True):
        mark = SEVERITY_MARKS[finding.severity]
        members = members_words(finding, facts.overview.quantized)
        result.append(
            Line(
                spans=(
                    Span(" " + fit(glyph(mark, ascii_only), 2) + " ", mark.tone),
                    Span(fit(mark.word, 12), mark.tone),
                    Span(fit(cut_end(inert(text), room), room) + " "),
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
        text += ", ".join(what for what, _ in checks_not_run(facts))
    about = (text, *skipped_rules(inspection), "explain: all rules, in the palette, lists them")
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
    if field is None or not _says_all(finding):
        lines += labelled("what", finding.message, width, about=about)
    if field is not None:
        lines += _declared_lines(field, width)
        lines += _inferred_lines(field, facts, width)
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


def _says_all(finding: Finding) -> bool:
    """Whether the field's own lines say what the message says: declared and inferred, nothing else."""
    return finding.subject.field == "zero_convention" and bool(finding.data.get("declared"))


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
        first, end = subject.byte_range
        parts.append(f"bytes {offset_words(first)} to {offset_words(max(first, end - 1))}")
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
