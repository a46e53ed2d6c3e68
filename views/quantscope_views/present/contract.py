"""The Contract tab as lines: field by field, declared beside inferred, then the size equations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantscope.model import Equation, FieldState, Reading
from quantscope.report.words import STRENGTH_WORDS, value_words
from quantscope.text import inert

from quantscope_views.lines import Line, Span, cut_middle, fit, line, rule, wrap
from quantscope_views.marks import MATCH_MARKS, glyph
from quantscope_views.present.triage import evidence_about
from quantscope_views.present.words import shape_words

if TYPE_CHECKING:
    from quantscope.session.inspection import TensorState

HIDDEN_MATCHES = ("not_applicable",)
LONG_KEY = 24
"""Cells of a key that is shown whole; a longer one, a tensor's own name, by its last part."""


def contract_lines(
    state: TensorState, width: int, ascii_only: bool, *, every_field: bool = False
) -> list[Line]:
    """The table of fields.

    Args:
        state: the tensor.
        width: cells.
        ascii_only: marks in ASCII.
        every_field: show also fields that say nothing.
    """
    columns = _columns(width)
    lines = [
        line(
            (fit(" field", columns[0]), "head"),
            (fit("declared (source)", columns[1]), "head"),
            (fit("inferred (how strong)", columns[2]), "head"),
            ("match", "head"),
        )
    ]
    hidden = 0
    for field in state.contract.fields.values():
        if not every_field and _says_nothing(field):
            hidden += 1
            continue
        lines += _field_lines(field, columns, ascii_only)
    if hidden:
        lines.append(line((f" {hidden} fields are not applicable or not stated", "dim")))
    return lines


def _columns(width: int) -> tuple[int, int, int]:
    name, match = 17, 17
    rest = max(20, width - name - match)
    return name, rest // 2, rest - rest // 2


def _says_nothing(field: FieldState) -> bool:
    return (
        field.match in HIDDEN_MATCHES
        and not field.declared
        and field.inferred is None
        and not field.reason
    )


def _field_lines(field: FieldState, columns: tuple[int, int, int], ascii_only: bool) -> list[Line]:
    name, left, right = columns
    mark = MATCH_MARKS[field.match]
    declared = wrap(inert(_declared_words(field)), left - 2)
    inferred = wrap(inert(_inferred_words(field)), right - 2)
    about = field_about(field)
    lines = []
    for i in range(max(len(declared), len(inferred))):
        lines.append(
            Line(
                spans=(
                    Span(fit(f" {field.field}" if i == 0 else "", name), "strong"),
                    Span(fit(declared[i] if i < len(declared) else "", left)),
                    Span(fit(inferred[i] if i < len(inferred) else "", right)),
                    Span(
                        f"{glyph(mark, ascii_only)} {mark.word}" if i == 0 else "",
                        mark.tone,
                    ),
                ),
                about=about,
            )
        )
    return lines


def _declared_words(field: FieldState) -> str:
    if not field.declared:
        return "-"
    by_value: dict[str, dict[str, list[str]]] = {}
    for claim in field.declared:
        key = claim.source.pointer.rpartition("/")[2]
        if ":" in key:
            key = f"tensor {key.rpartition(':')[2]}"
        elif len(key) > LONG_KEY:
            key = key.rpartition(".")[2]
        if claim.basis == "by_definition":
            key += " by def."
        files = by_value.setdefault(value_words(field.field, claim.value), {}).setdefault(key, [])
        file = _file_words(claim.source.file)
        if file not in files:
            files.append(file)
    return "; ".join(f"{value} ({_keys_words(keys)})" for value, keys in by_value.items())


def _file_words(file: str) -> str:
    """A config by its name, a file of weights as `header`: the full source stands behind `i`."""
    if file.endswith((".gguf", ".safetensors")):
        return "header"
    return cut_middle(file.removesuffix(".json"), 20)


def _keys_words(keys: dict[str, list[str]]) -> str:
    return "; ".join(f"{key}: {', '.join(files)}" for key, files in keys.items())


def _inferred_words(field: FieldState) -> str:
    if field.inferred is None:
        if field.reason:
            return field.reason
        if field.candidates:
            values = " or ".join(value_words(field.field, c.value) for c in field.candidates)
            return f"open: {values}"
        return "-"
    words = value_words(field.field, field.inferred.value)
    number = _deciding_number(field)
    strength = STRENGTH_WORDS[field.inferred.strength]
    return f"{words} ({strength}{', ' + number if number else ''})"


def _deciding_number(field: FieldState) -> str:
    """The number of the step that decided, in few words."""
    if field.inferred is None:
        return ""
    for step in reversed(field.evidence):
        if field.inferred.value not in step.supports:
            continue
        if step.method == "size equations":
            return f"1 of {step.numbers['readings_tried']}"
        worst = step.numbers.get(f"worst_{field.inferred.value}")
        if isinstance(worst, float):
            return f"worst mean {worst:.3f}"
        mean = step.numbers.get(f"mean_{field.inferred.value}")
        if isinstance(mean, float):
            return f"mean {mean:+.3f}"
    return ""


def field_about(field: FieldState) -> tuple[str, ...]:
    """Every declaration and every evidence step of a field, in full."""
    lines = [f"{field.field}: {MATCH_MARKS[field.match].word}"]
    for claim in field.declared:
        lines.append(
            f"{claim.source} says {value_words(field.field, claim.value)} "
            f"({'' if claim.basis == 'written' else 'by definition; '}written: {claim.written!r})"
        )
    if not field.declared:
        lines.append("nothing in the files declares it")
    lines += evidence_about(field.evidence)
    for candidate in field.candidates:
        lines.append(f"left open: {value_words(field.field, candidate.value)}: {candidate.effect}")
        if candidate.readers:
            lines.append(f"  read so by {', '.join(candidate.readers)}")
    if field.reason:
        lines.append(field.reason)
    return tuple(lines)


def equation_lines(state: TensorState, width: int, ascii_only: bool) -> list[Line]:
    """Size equations of the reading shown, then how many other readings solve them."""
    solved = state.solved
    lines = [rule("size equations", width, "chosen reading")]
    if not solved.equations:
        lines.append(line((" no reading of this family fits the stored planes at all", "broken")))
    broken = [e for e in solved.closest_declared or () if e.holds is False]
    name = max((len(e.plane) for e in (*solved.equations, *broken)), default=0) + 1
    name = min(21, max(13, name))
    for equation in solved.equations:
        lines.append(_equation_line(equation, width, name, ascii_only))
    lines += _solution_lines(state, width)
    if solved.closest_declared:
        lines.append(line((" the declared reading breaks:", "contradicts")))
        lines += [_equation_line(equation, width, name, ascii_only) for equation in broken]
    return lines


def _equation_line(equation: Equation, width: int, name: int, ascii_only: bool) -> Line:
    if equation.holds is None:
        verdict, tone = "not stored, optional" if equation.actual_bytes is None else "-", "dim"
    elif equation.holds:
        verdict, tone = "holds", "agrees"
    else:
        verdict, tone = "BROKEN", "broken"
    expected = "-" if equation.expected_bytes is None else f"{equation.expected_bytes} B"
    actual = "none" if equation.actual_bytes is None else f"{equation.actual_bytes} B"
    sign = "=" if equation.holds is not False else ("/=" if ascii_only else "≠")
    sizes = f"{expected} {sign} {actual}"
    room = max(10, width - name - len(sizes) - len(verdict) - 5)
    symbolic = f"{equation.symbolic}  {equation.substituted}"
    return Line(
        spans=(
            Span(" " + fit(cut_middle(inert(equation.plane), name - 1), name)),
            Span(fit(cut_middle(inert(symbolic), room), room) + " "),
            Span(sizes + "  ", "number"),
            Span(verdict, tone),
        ),
        about=(
            f"{equation.plane}: {equation.symbolic} with numbers {equation.substituted}",
            f"demands {expected}, stored {actual}",
            f"shape demanded {_shape(equation.expected_shape)}, "
            f"stored {_shape(equation.actual_shape)}",
            *([equation.note] if equation.note else []),
        ),
    )


def _shape(shape: tuple[int, ...] | None) -> str:
    return shape_words(shape) if shape is not None else "-"


def _solution_lines(state: TensorState, width: int) -> list[Line]:
    solved = state.solved
    count = len(solved.solutions)
    tried = len(solved.candidates)
    head = {0: "none holds", 1: "1 holds"}.get(count, f"{count} hold")
    tone = "broken" if count == 0 else "plain"
    lines = [
        line(
            (f" of {tried} readings tried, {head}", tone),
            about=("every reading of the family put into the equations",),
        )
    ]
    for number, reading in enumerate(solved.solutions, 1):
        chosen = "  <- shown" if reading == solved.chosen else ""
        text = f"   {number}. {solution_words(reading)}{chosen}"
        lines.append(line(cut_middle(text, width)))
    return lines


def solution_words(reading: Reading) -> str:
    """A reading in one line."""
    values = reading.contract_values()
    fields = ("element", "group", "scale", "zero_convention", "packing")
    return ", ".join(
        value_words(field, values[field])
        for field in fields
        if values.get(field) not in (None, "not_applicable")
    )
