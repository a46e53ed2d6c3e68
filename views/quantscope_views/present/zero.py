"""The Zero tab as lines: two readings side by side, the statistic, every evidence step, conflict or not."""

from __future__ import annotations

from collections.abc import Sequence

from quantscope.model import Evidence, FieldState
from quantscope.report.words import STRENGTH_WORDS, value_words
from quantscope.session.inspection import TensorState

from quantscope_views.lines import (
    Line,
    Span,
    cut_end,
    cut_middle,
    fit,
    labelled,
    line,
    rule,
    shown_name,
    wrap,
)
from quantscope_views.place import Place
from quantscope_views.present.bytes_model import Shown
from quantscope_views.present.contract import field_about
from quantscope_views.present.histogram import number_line, scale_line
from quantscope_views.present.scan_tally import ScanTally
from quantscope_views.present.triage import evidence_about
from quantscope_views.present.words import (
    fixed_words,
    signed,
    zero_words,
)
from quantscope_views.present.zero_facts import ZeroFacts, conventions_of

LABEL = 19
STEPS = (-1.5, 1.5)
FORMULAS = {
    "none": "code * scale",
    "fixed": "(code - {middle}) * scale",
    "float_zero": "(code - zero) * scale, the zero stored as a float",
    "additive_min": "code * scale, a stored minimum added or subtracted (3: see which)",
}
"""How weights come of codes, by kind of zero."""
METHOD_WORDS = {"code statistic over modules": "statistic over the set"}


MEAN_ABOUT = (
    "mean over groups of their mean(code - zero), the code farthest from the zero left out of each: producers "
    "put an extreme weight on an end code; +- is the standard error over groups"
)


def zero_lines(
    state: TensorState,
    facts: ZeroFacts | None,
    tally: ScanTally,
    width: int,
    ascii_only: bool,
    logits: str = "",
) -> list[Line]:
    """The whole tab; `logits` is what a logits check of this session found, empty before one ran."""
    pair = conventions_of(state)
    field = state.contract["zero_convention"]
    mark = "-" if ascii_only else "─"
    if len(pair) < 2:
        return _no_choice_lines(state, width, mark)
    column = (width - LABEL) // 2
    lines = [_head_line(pair, column)]
    lines += _two_readings(state, facts, pair, field, column)
    lines.append(line(""))
    lines += _number_lines(field, pair, width)
    lines += _evidence_lines(field, pair, width, logits)
    lines += _conclusion_lines(state, field, pair, tally, width)
    lines += module_lines(tally, state, pair, width, mark)
    return lines


def _no_choice_lines(state: TensorState, width: int, mark: str) -> list[Line]:
    reading = state.reading
    lines = [rule("zero point", width, mark=mark)]
    if reading is None:
        return [*lines, *labelled("zero", "no reading fits, so no zero is known", width)]
    formula = FORMULAS.get(reading.zero, "").format(middle=reading.midpoint)
    words = value_words("zero", reading.zero) + (f": weight = {formula}" if formula else "")
    lines += labelled(
        "zero", words, width, tone="strong", about=field_about(state.contract["zero"])
    )
    lines += labelled(
        "readings", "this format has one zero reading only: there is nothing to choose", width
    )
    for name in ("zero", "symmetric"):
        field = state.contract[name]
        for piece in field_about(field):
            lines += [line(f" {part}") for part in wrap(piece, width - 2)]
    return lines


def _head_line(pair: Sequence[str], column: int) -> Line:
    spans = [Span(" " * LABEL)]
    for letter, convention in zip("AB", pair, strict=False):
        spans.append(Span(fit(f"{letter}  {zero_words(convention)}", column), "strong"))
    return Line(spans=tuple(spans))


def _two_readings(
    state: TensorState,
    facts: ZeroFacts | None,
    pair: Sequence[str],
    field: FieldState,
    column: int,
) -> list[Line]:
    about = field_about(field)
    rows: list[tuple[str, list[tuple[str, ...]]]] = [
        ("who says so", [_who(field, convention) for convention in pair])
    ]
    step = _step(field, "code statistic")
    if facts is not None:
        where = (f"{facts.word}  {facts.where}", facts.where)
        rows.append((facts.plane, [where, ("same bytes",)]))
        used = [_used(facts, state, convention) for convention in pair]
        cell = max(2, *(len(str(zero)) for zeros in (facts.stored, *used) for zero in zeros))
        count = max(1, min(len(facts.stored), (column - 1) // (cell + 1)))
        texts: list[tuple[str, ...]] = [
            (" ".join(f"{zero:{cell}d}" for zero in zeros[:count]),)
            for zeros in (facts.stored, *used)
        ]
        rows.append((f"stored, out 0..{count - 1}", [texts[0], texts[0]]))
        rows.append(("zero used", texts[1:]))
    span = _step(field, "constant zeros")
    if span is not None:
        low, high = span.numbers.get("stored_min"), span.numbers.get("stored_max")
        if isinstance(low, int) and isinstance(high, int):
            rows.append(
                (
                    "range of zeros",
                    [(f"{low + _shift(c)}..{high + _shift(c)}",) for c in pair],
                )
            )
    if step is not None:
        rows.append(("mean(code-zero)", [_mean_words(step, convention) for convention in pair]))
        about = (MEAN_ABOUT, *about)
    if facts is not None and facts.examples:
        row, col = facts.at
        rows.append(
            (
                f"out {row}, in {col}",
                [(_example(facts.examples.get(convention), column),) for convention in pair],
            )
        )
    return [
        Line(
            spans=(
                Span(fit(f" {label}", LABEL), "head"),
                *(Span(fit(_fitting(words, column - 2), column), "number") for words in choices),
            ),
            about=about,
        )
        for label, choices in rows
    ]


def _fitting(choices: Sequence[str], room: int) -> str:
    """The first, fullest of several wordings that there is room for."""
    return next((text for text in choices if len(text) <= room), cut_middle(choices[-1], room))


def _who(field: FieldState, convention: str) -> tuple[str, ...]:
    files = [c.source.file for c in field.declared if c.value == convention]
    said = field.inferred if field.inferred is not None else None
    by_bytes = said is not None and said.value == convention
    if files:
        too = ", bytes" if by_bytes else ""
        return f"{files[0]} (declared){too}", f"{files[0]}{too}", f"declared{too}"
    if said is not None and by_bytes:
        return f"bytes ({STRENGTH_WORDS[said.strength]})", "bytes"
    return ("nobody",)


def _shift(convention: str) -> int:
    return 1 if convention.startswith("minus_one") else 0


def _used(facts: ZeroFacts, state: TensorState, convention: str) -> list[int]:
    reading = state.declared_reading or state.reading
    top = (1 << reading.bit_width) - 1 if reading is not None else 0xFF
    wrap_words = convention == "minus_one"
    used = [z + _shift(convention) for z in facts.stored]
    return [z & top if wrap_words else z for z in used]


def _mean_words(step: Evidence, convention: str) -> tuple[str, ...]:
    """Mean and error, with the number of groups behind them where there is room."""
    mean = step.numbers.get(f"mean_{convention}")
    error = step.numbers.get(f"standard_error_{convention}")
    if not isinstance(mean, (int, float)):
        return ("-",)
    text = signed(float(mean))
    if isinstance(error, (int, float)):
        text += f" +- {float(error):.3f}"
    if convention == "as_is" or "mean_as_is" not in step.numbers:
        groups = step.numbers.get("groups")
        if groups:
            return f"{text}   {groups} groups", f"{text}  {groups} gr.", text
    return (text,)


def _example(shown: Shown | None, column: int) -> str:
    if shown is None:
        return "not decoded"
    words = shown.formula.replace("code ", "").replace(" - zero ", "-").replace(" * ", "*")
    text = f"{words} = {fixed_words(shown.value)}"
    return text if len(text) <= column - 2 else f"= {fixed_words(shown.value)}"


def _step(field: FieldState, method: str) -> Evidence | None:
    return next((step for step in field.evidence if step.method == method), None)


def _number_lines(field: FieldState, pair: Sequence[str], width: int) -> list[Line]:
    """mean(code - zero) of each reading on one line of steps: the right one stands at 0."""
    step = _step(field, "code statistic")
    room = min(width - 14, 72)
    about = (
        "rule: the reading whose |mean| is below 0.25 steps fits, where the other one's is not",
        "mean(code - zero used), in steps of one scale; weights scatter around 0, so the right "
        "reading's mean stands near 0 and the other one step away",
        MEAN_ABOUT,
        *evidence_about([step] if step is not None else []),
    )
    lines = [line((" steps ", "head"), ("  " + scale_line(room, *STEPS), "dim"), about=about)]
    for letter, convention in zip("AB", pair, strict=False):
        mean = step.numbers.get(f"mean_{convention}") if step is not None else None
        value = float(mean) if isinstance(mean, (int, float)) else None
        lines.append(
            line(
                (f" {letter}       ", "head"),
                (number_line(value, room, *STEPS), "strong"),
                ("  not measured" if value is None else "", "dim"),
                about=about,
            )
        )
    return lines


def _evidence_lines(
    field: FieldState, pair: Sequence[str], width: int, logits: str = ""
) -> list[Line]:
    lines = [
        line((fit(" EVIDENCE", 24) + fit("for", 6) + fit("how strong", 13) + "numbers", "head"))
    ]
    letters = dict(zip(pair, "AB", strict=False))
    declared = sorted({str(claim.value) for claim in field.declared})
    where = " = ".join(dict.fromkeys(claim.source.file for claim in field.declared))
    lines.append(
        _evidence_line(
            "declaration",
            "+".join(letters.get(value, "?") for value in declared) or "-",
            "declared" if declared else "none",
            where or "nothing in the files says so",
            width,
            field_about(field),
        )
    )
    for step in field.evidence:
        if step.method == "size equations" and len(step.supports) > 1:
            continue
        supports = [letters.get(str(value), "?") for value in step.supports]
        strength = STRENGTH_WORDS[step.strength] if step.strength else "-"
        lines.append(
            _evidence_line(
                step.method,
                "+".join(supports) or "-",
                strength,
                step_numbers(step, pair),
                width,
                evidence_about([step]),
            )
        )
    lines.append(
        _evidence_line(
            "logits check",
            "?",
            "ran" if logits else "not run",
            f"{logits}; 4 shows it" if logits else "R: shows the cost first",
            width,
            ("runs the model under both readings on the same tokens",),
        )
    )
    return lines


def _evidence_line(
    method: str, who: str, strength: str, numbers: str, width: int, about: Sequence[str]
) -> Line:
    head = (
        fit(f" {cut_middle(METHOD_WORDS.get(method, method), 22)}", 24)
        + fit(who, 6)
        + fit(strength, 13)
    )
    return line(head, (cut_end(numbers, max(8, width - len(head))), "number"), about=about)


def step_numbers(step: Evidence, pair: Sequence[str]) -> str:
    """The numbers of an evidence step that matter, in few words."""
    numbers = step.numbers
    if step.method == "size equations":
        return f"{numbers.get('readings_left')} of {numbers.get('readings_tried')} readings hold"
    if step.method == "constant zeros":
        low, high = numbers.get("stored_min"), numbers.get("stored_max")
        return f"all {low}" if low == high else f"asymmetric: {low}..{high} stored"
    if step.method == "code statistic":
        parts = [
            f"{letter} {_short_mean(step, convention)}"
            for letter, convention in zip("AB", pair, strict=False)
        ]
        return "  ".join(parts)
    if step.method == "code statistic over modules":
        words = [
            f"{numbers.get(f'modules_{c}', 0)} say {x}" for x, c in zip("AB", pair, strict=False)
        ]
        return f"of {numbers.get('modules')} modules " + ", ".join(words)
    if step.method == "wrapped zeros":
        sample = step.sample
        total = sample.examined if sample else "?"
        return f"all-ones {numbers.get('all_ones')}, zero {numbers.get('zero')} of {total}"
    return ", ".join(f"{key} {value}" for key, value in numbers.items())


def _conclusion_lines(
    state: TensorState,
    field: FieldState,
    pair: Sequence[str],
    tally: ScanTally,
    width: int,
) -> list[Line]:
    letters = dict(zip(pair, "AB", strict=False))
    odd = odd_ones(tally, state)
    inferred = field.inferred
    if field.match == "disagree" and inferred is not None:
        said = "+".join(sorted({letters.get(str(c.value), "?") for c in field.declared}))
        text = (
            f"CONFLICT  declaration says {said}, bytes say {letters.get(str(inferred.value), '?')}"
        )
        tone = "contradicts"
    elif field.match == "ambiguous" or inferred is None:
        text, tone = "OPEN  nothing here decides between A and B", "check"
    else:
        letter = letters.get(str(inferred.value), "?")
        text = f"no conflict: {letter}, {value_words('zero_convention', inferred.value)}"
        tone = "agrees"
    return labelled("", f"{text}; {odd}", width, indent=1, tone=tone, about=field_about(field))


def module_lines(
    tally: ScanTally,
    state: TensorState,
    pair: Sequence[str],
    width: int,
    mark: str,
) -> list[Line]:
    """Every module of the set: its mean under both readings with its error, as numbers and a picture."""
    found = tally.modules.get(state.tensor.family, ())
    if not found:
        return []
    name_width = max(14, min(40, width - 60))
    room = max(13, min(49, width - name_width - 34))
    count = tally.module_counts[state.tensor.family]
    title = "module by module: mean(code-zero) +- SE, A and B"
    lines = [rule(title, width, str(count), mark=mark)]
    for name, step in ((module.name, module.step) for module in found):
        means = [step.numbers.get(f"mean_{convention}") for convention in pair]
        picture = list(number_line(None, room, *STEPS))
        for letter, mean in zip("AB", means, strict=False):
            value = float(mean) if isinstance(mean, (int, float)) else None
            for at, char in enumerate(number_line(value, room, *STEPS, mark=letter)):
                if char in (letter, "<", ">"):
                    picture[at] = char
        own = name == state.tensor.name
        numbers = "  ".join(_short_mean(step, convention) for convention in pair)
        lines.append(
            line(
                (">" if own else " ", "key"),
                (fit(shown_name(name, name_width), name_width + 1), "strong" if own else "plain"),
                (fit(numbers, 32), "number"),
                ("".join(picture), "bar"),
                about=evidence_about([step]),
                target=Place(screen="tensor", tensor=name, tab="zero"),
            )
        )
    if count > len(found):
        lines.append(line((f" {count - len(found)} more modules", "dim")))
    return lines


def _short_mean(step: Evidence, convention: str) -> str:
    mean = step.numbers.get(f"mean_{convention}")
    error = step.numbers.get(f"standard_error_{convention}")
    if not isinstance(mean, (int, float)):
        return "-"
    tail = f"+-{float(error):.3f}" if isinstance(error, (int, float)) else ""
    return f"{float(mean):+.3f}{tail}"


def odd_ones(tally: ScanTally, state: TensorState) -> str:
    """Whether one tensor of the set falls on the other side than the rest."""
    family = state.tensor.family
    sides = tally.sides.get(family)
    if not sides:
        return "no tensor of the set decides by its codes"
    odd = tally.odd_modules.get(family, ())
    most = max(sides.values())
    if not odd:
        return f"all {most} that decide say the same, no odd one out"
    more = " ..." if sum(sides.values()) - most > len(odd) else ""
    return f"odd one out: {', '.join(odd)}{more}"
