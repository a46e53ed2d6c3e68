"""Layer by layer in one strip: bits, the worst finding, how far the zero statistic is off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from quantscope.model import Finding

from quantscope_views.lines import Line, Span, fit, line, rule, wrap
from quantscope_views.marks import SEVERITY_MARKS, glyph
from quantscope_views.present.histogram import ASCII_BLOCKS, BLOCKS

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection, TensorState

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h|blocks|layer)\.(\d{1,5})\.")

FULL_STEP = 1.0
"""A mean this many steps from 0 fills the error bar."""


class LayerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One layer."""

    number: int
    bits: float
    severity: str = ""
    """Severity of the worst finding on any of its tensors; empty without one."""
    error: float | None = None
    """Largest |mean(code - zero)| under what the files claim, in steps."""


def layer_of(name: str) -> int | None:
    """Number of the layer in a tensor's name."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def layers_of(inspection: Inspection) -> list[LayerFacts]:
    """Facts of every layer that holds quantized tensors, in order."""
    stored: dict[int, list[int]] = {}
    errors: dict[int, float] = {}
    for state in inspection.states:
        number = layer_of(state.tensor.name)
        if number is None:
            continue
        entry = stored.setdefault(number, [0, 0])
        entry[0] += sum(plane.nbytes for plane in state.tensor.planes if plane.role != "bias")
        entry[1] += _elements(state)
        mean = _claimed_mean(state)
        if mean is not None:
            errors[number] = max(errors.get(number, 0.0), abs(mean))
    severities = _worst(inspection.findings)
    return [
        LayerFacts(
            number=number,
            bits=8 * nbytes / elements if elements else 0.0,
            severity=severities.get(number, ""),
            error=errors.get(number),
        )
        for number, (nbytes, elements) in sorted(stored.items())
    ]


def _elements(state: TensorState) -> int:
    total = 1
    for extent in state.reading.shape if state.reading is not None else state.tensor.shape:
        total *= extent
    return total


def _claimed_mean(state: TensorState) -> float | None:
    reading = state.declared_reading or state.reading
    if reading is None or reading.zero != "integer":
        return None
    for step in state.evidence:
        if step.method == "code statistic":
            mean = step.numbers.get(f"mean_{reading.zero_convention}")
            return float(mean) if isinstance(mean, (int, float)) else None
    return None


def _worst(findings: Sequence[Finding]) -> dict[int, str]:
    """Worst severity by layer; findings come worst first. Notes do not count."""
    worst: dict[int, str] = {}
    for finding in findings:
        if finding.severity == "note":
            continue
        names = finding.members or (finding.subject.tensor or finding.subject.stored or "",)
        for name in names:
            number = layer_of(name)
            if number is not None:
                worst.setdefault(number, finding.severity)
    return worst


HEAD_CELLS = 11


def layer_lines(
    layers: Sequence[LayerFacts], width: int, ascii_only: bool, mark: str
) -> list[Line]:
    """The strip with its legend: one cell a layer, folded where there are more layers than cells."""
    if not layers:
        return []
    per_line = max(8, width - HEAD_CELLS - 1)
    lines = [rule("layer by layer, one column a layer", width, mark=mark)]
    legend = _legend(layers, ascii_only)
    beside = width - HEAD_CELLS - min(len(layers), per_line) - 2
    tails = all(len(words) <= beside for words in legend.values())
    for start in range(0, len(layers), per_line):
        part = layers[start : start + per_line]
        lines += _strip(part, ascii_only, legend, tails and not start)
    if not tails:
        for name, words in legend.items():
            lines += [line((f" {piece}", "dim")) for piece in wrap(f"{name}: {words}", width - 2)]
    return lines


def _legend(layers: Sequence[LayerFacts], ascii_only: bool) -> dict[str, str]:
    """What each row of the strip shows, with its scale."""
    none = "." if ascii_only else "·"
    legend = {
        "layer": "last digit of the layer's number",
        "bits": "bits a weight, rounded; + from 10",
        "finding": f"worst above note; {none} none",
    }
    if any(layer.error is not None for layer in layers):
        legend["off"] = "|mean(code-zero)|, full at 1 step"
    return legend


def _strip(
    part: Sequence[LayerFacts], ascii_only: bool, legend: dict[str, str], tails: bool
) -> list[Line]:
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    cells = {
        "layer": [Span("".join(str(layer.number % 10) for layer in part), "dim")],
        "bits": [Span("".join(_digit(layer.bits) for layer in part), "number")],
        "finding": [_finding_span(layer, ascii_only) for layer in part],
        "off": [Span("".join(_bar(layer.error, blocks) for layer in part), "bar")],
    }
    return [
        Line(
            spans=(
                Span(fit(f" {name}", HEAD_CELLS), "head"),
                *cells[name],
                Span(f"  {words}" if tails else "", "dim"),
            ),
            about=(f"{name}: {words}", *(_layer_words(layer) for layer in part)),
        )
        for name, words in legend.items()
    ]


def _layer_words(layer: LayerFacts) -> str:
    words = f"layer {layer.number}: {layer.bits:.2f} bits a weight"
    if layer.severity:
        words += f", worst finding {SEVERITY_MARKS[layer.severity].word}"
    if layer.error is not None:
        words += f", largest |mean(code-zero)| {layer.error:.3f} steps as the files claim"
    return words


def _digit(bits: float) -> str:
    return "+" if round(bits) > 9 else str(round(bits))


def _finding_span(layer: LayerFacts, ascii_only: bool) -> Span:
    if not layer.severity:
        return Span("." if ascii_only else "·", "dim")
    mark = SEVERITY_MARKS[layer.severity]
    return Span(glyph(mark, ascii_only)[:1], mark.tone)


def _bar(error: float | None, blocks: str) -> str:
    if error is None:
        return " "
    level = min(1.0, error / FULL_STEP)
    return blocks[max(1, round(level * (len(blocks) - 1)))]
