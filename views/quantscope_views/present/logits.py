"""A logits check as lines, for the Run tab and for Compare: its offer with the cost, progress, part, result."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import msgspec
from quantscope.probes import text
from quantscope.probes.model import PairResult, ProbeResult
from quantscope.text import inert

from quantscope_views.lines import Line, Span, cells, cut_end, labelled, line, side_by_side, wrap
from quantscope_views.present.histogram import ASCII_BLOCKS, BLOCKS
from quantscope_views.present.run_facts import LogitsOffer, LogitsRun
from quantscope_views.present.words import count_words, seconds_words, size_words

TWO_COLUMNS = 150
"""Width from which what was measured and what was recorded stand side by side."""
CHART_ROWS = 6
"""Height of the curve where there is room for it."""
DECADES = 6
"""Powers of ten that the curve spans at most; smaller divergences stand at its foot."""
LARGEST_SHOWN = 5


class LogitsState(msgspec.Struct, frozen=True, kw_only=True):
    """What a pane shows of one logits check.

    `offer` is None while it is looked for; `action` and `key` are what Enter on the offer does.
    """

    offer: LogitsOffer | None
    action: str
    key: str = ""
    running: str = ""
    part: LogitsRun | None = None
    result: ProbeResult | None = None


def logits_lines(state: LogitsState, width: int, ascii_only: bool) -> list[Line]:
    """The offer or the run under way, then what was found."""
    if state.running:
        lines = _lines([state.running], width, "check")
    elif state.offer is None:
        lines = [line((" looking at what is installed", "dim"))]
    else:
        fresh = state.part is None and state.result is None
        lines = offer_lines(state.offer, state.action, state.key, width, fresh=fresh)
    if state.part is not None and not state.running:
        lines += part_lines(state.part, width)
    if state.result is not None:
        lines += logits_result_lines(state.result, width, ascii_only)
    return lines


def offer_lines(
    offer: LogitsOffer, action: str, key: str, width: int, *, fresh: bool = True
) -> list[Line]:
    """The cost and what starts it, or why it cannot be run here; not fresh where it was run before."""
    if offer.cost is None:
        return labelled("not run", offer.why_not, width, tone="check", about=(offer.why_not,))
    cost = text.render_cost(offer.cost)
    short, _, rest = cost.partition(": ")
    about = (cost, offer.cost.how, offer.command)
    lines = [
        Line(
            spans=(
                Span(" > ", "key"),
                Span("logits  ", "strong"),
                Span(short, "number"),
                Span("  not run: enter starts it" if fresh else "  enter starts it again"),
            ),
            about=about,
            action=action,
            key=key,
        ),
        line((cut_end(f"           {rest}", width), "dim"), about=about),
    ]
    if offer.note:
        lines += _lines([offer.note], width, "check")
    return lines


def offer_words(offer: LogitsOffer | None) -> str:
    """The offer in a few words, for the run menu."""
    if offer is None:
        return "cost not known yet"
    if offer.cost is None:
        return f"not run: {offer.why_not.partition(':')[0]}"
    return f"{seconds_words(offer.cost.seconds)}, {size_words(offer.cost.memory_bytes)}"


def part_lines(run: LogitsRun, width: int) -> list[Line]:
    """A check that did not end by itself: why, and the sides that it had measured."""
    label, tone = {
        "stopped": ("PARTIAL", "check"),
        "refused": ("not run", "check"),
    }.get(run.ended, ("Error", "broken"))
    done, of = len(run.done), count_words(len(run.request.sides), "side")
    lines = labelled(
        label,
        f"{run.note} ({done} of {of} measured, controls incomplete: nothing follows)",
        width,
        tone=tone,
        about=(run.note, *run.details.splitlines()),
    )
    return lines + (_lines(text.side_lines(run.done), width) if run.done else [])


def logits_result_lines(result: ProbeResult, width: int, ascii_only: bool) -> list[Line]:
    """What was measured, with KL by position as a curve, and what was recorded; side by side where it fits."""
    two = width >= TWO_COLUMNS
    half = max(80, width * 53 // 100) if two else width
    lines = _lines(text.head_lines(result), half, "agrees" if result.outcome == "held" else "check")
    lines += _lines(text.side_lines(result.sides), half)
    for pair in result.pairs:
        lines += _lines(text.pair_lines(pair), half)
        lines += _curve(pair, half, ascii_only, CHART_ROWS if two else 1)
    lines += _lines(text.control_lines(result), half)
    rest = width - half - 1 if two else width
    record = _lines(text.decision_lines(result), rest)
    record += _lines(text.layer_lines(result), rest)
    record += _lines(["measured on", *text.setting_lines(result)], rest)
    record += _lines(text.recorded_lines(result), rest)
    record += _lines(text.limit_lines(result), rest, "dim")
    return side_by_side(lines, record, half + 1) if two else lines + record


def _lines(texts: Iterable[str], width: int, tone: str = "") -> list[Line]:
    """Lines of text under each other, folded so that a label in front keeps its column."""
    lines = []
    for whole in texts:
        shown = inert(whole)
        if cells(shown) < width:
            lines.append(line((f" {shown}", tone or _tone(whole)), about=(whole.strip(),)))
            continue
        found = re.match(r" *\S+ {2,}", shown) or re.match(r" *", shown)
        head = found.group() if found is not None and len(found.group()) < width // 2 else "  "
        tones = tone or _tone(whole)
        for number, piece in enumerate(wrap(shown[len(head) :], width - len(head) - 2)):
            indent = head if number == 0 else " " * max(len(head), 2)
            lines.append(line((f" {indent}{piece}", tones), about=(whole.strip(),)))
    return lines


def _tone(whole: str) -> str:
    if not whole.startswith(" "):
        return "head"
    return "contradicts" if " MISSED " in whole else "plain"


def _curve(pair: PairResult, width: int, ascii_only: bool, rows: int) -> list[Line]:
    values = pair.kl_by_position
    if not values:
        return []
    ends = _ends(values)
    scale = f", log scale {ends[0]:.3g} to {ends[1]:.3g} nats" if ends is not None else ""
    lines = _lines([f"KL by position{scale}"], width, "head")
    lines += kl_strip(values, width, ascii_only, rows)
    largest = sorted(range(len(values)), key=lambda i: -values[i])[:LARGEST_SHOWN]
    words = ", ".join(f"{i} ({values[i]:.3g})" for i in largest if values[i] > 0)
    return lines + (_lines([f"  largest  at position {words}"], width) if words else [])


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    """The smallest and the largest divergence that the curve tells apart; None where all are 0."""
    positive = [value for value in values if value > 0]
    if not positive:
        return None
    return max(max(positive) / 10**DECADES, min(positive)), max(positive)


def kl_strip(values: Sequence[float], width: int, ascii_only: bool, rows: int = 1) -> list[Line]:
    """KL of every position, logarithmic: a full column is the largest, an empty one is 0."""
    blocks = ASCII_BLOCKS if ascii_only else BLOCKS
    ends = _ends(values)
    if ends is None:
        return [line((" 0 at every position", "agrees"))]
    low, high = (math.log10(end) for end in ends)
    top = rows * (len(blocks) - 1)
    heights = [_height(value, low, high, top) for value in values]
    per_line = max(8, width - 4)
    lines = []
    for start in range(0, len(values), per_line):
        chunk = heights[start : start + per_line]
        about = (
            f"positions {start}..{start + len(chunk) - 1}, log scale from "
            f"{10**low:.3g} to {10**high:.3g} nats",
        )
        for row in reversed(range(rows)):
            floor = row * (len(blocks) - 1)
            levels = (min(max(height - floor, 0), len(blocks) - 1) for height in chunk)
            text_row = "".join(blocks[level] for level in levels)
            lines.append(line((f" {text_row}", "bar"), about=about))
    return lines


def _height(value: float, low: float, high: float, top: int) -> int:
    if value <= 0:
        return 0
    share = 1.0 if high == low else (math.log10(value) - low) / (high - low)
    return max(1, round(max(0.0, share) * top))
