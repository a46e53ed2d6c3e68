"""The Compare screen as lines: zeros, contract, values, only in one; and what may not be concluded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from quantscope.compare.model import Comparison, PairResult, ZeroComparison, ZeroSide
from quantscope.report.words import value_words
from quantscope.session.events import Progress
from quantscope.session.inspection import Inspection

from quantscope_views.lines import (
    Line,
    Span,
    brief_names,
    cells,
    cut_end,
    cut_middle,
    fit,
    labelled,
    line,
    rule,
    shown_name,
    wrap,
)
from quantscope_views.marks import CONVENTION_WORDS
from quantscope_views.place import Place
from quantscope_views.present.words import count_words, signed

Tab = Literal["zeros", "contract", "values", "only", "logits"]
TABS: tuple[tuple[Tab, str], ...] = (
    ("zeros", "Zeros"),
    ("contract", "Contract"),
    ("values", "Values"),
    ("only", "Only in one"),
    ("logits", "Logits"),
)
SHOWN_ROWS = 8


class CompareChoice(msgspec.Struct, frozen=True, kw_only=True):
    """How the comparison is shown."""

    tab: Tab = "zeros"
    only_differences: bool = True
    swapped: bool = False


def compare_with(
    inspection: Inspection,
    path: str,
    base: str | None,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> tuple[Comparison, Inspection]:
    """Open the other side, inspect and compare; its checkpoint stays open with the inspection.

    Raises:
        QuantscopeError: the other side cannot be opened.
        CancelledError: stopped before anything was compared.
    """
    from quantscope.checkpoint import Checkpoint
    from quantscope.compare.run import compare
    from quantscope.errors import CancelledError
    from quantscope.session.pipeline import inspect

    other = inspect(Checkpoint.open(path), progress=progress, cancelled=cancelled)
    reference = None
    if base is not None:
        reference = inspect(Checkpoint.open(base), progress=progress, cancelled=cancelled)
    if cancelled():
        raise CancelledError("stopped")
    found = compare(inspection, other, reference, progress=progress, cancelled=cancelled)
    return found, other


def compare_readings(
    inspection: Inspection,
    progress: Callable[[Progress], None],
    cancelled: Callable[[], bool],
) -> tuple[Comparison, Inspection]:
    """Compare a checkpoint as its bytes say with itself as its files claim, or under the other zero rule."""
    from quantscope.compare.run import compare_sides
    from quantscope.compare.sides import Side, with_convention

    used = Counter(
        state.reading.zero_convention for state in inspection.states if state.reading is not None
    )
    most = next((word for word, _ in used.most_common() if word in ("as_is", "minus_one")), "as_is")
    other = "minus_one" if most == "as_is" else "as_is"
    found = compare_sides(
        Side(inspection, cancelled=cancelled),
        Side(inspection, with_convention(other), cancelled=cancelled),
        progress=progress,
    )
    return found, inspection


def differs(pair: PairResult) -> bool:
    """Whether a pair differs in contract, bytes of a plane or values."""
    if pair.contract or pair.planes_different:
        return True
    return pair.values is not None and not pair.values.identical


def shown_pairs(found: Comparison, choice: CompareChoice) -> list[PairResult]:
    """Pairs of a tab, in order."""
    pairs = list(found.pairs)
    if choice.tab == "zeros":
        pairs = [pair for pair in pairs if pair.zeros is not None]
    if choice.only_differences:
        pairs = [pair for pair in pairs if differs(pair)]
    return pairs


def head_lines(
    found: Comparison, choice: CompareChoice, names: tuple[str, str], width: int
) -> list[Line]:
    """Both sides, then the tabs."""
    half = (width - 12) // 2
    tail = f"{len(found.pairs)} paired"
    top = Line(
        spans=(
            Span(" A ", "head"),
            Span(fit(shown_name(names[0], half - 1), half), "strong"),
            Span("B ", "head"),
            Span(fit(shown_name(names[1], half - 4), half - 3), "strong"),
            Span(tail),
        )
    )
    spans = [Span(" ")]
    for number, (tab, title) in enumerate(TABS, 1):
        chosen = tab == choice.tab
        text = f"{number} {title}"
        spans.append(Span(f"[{text}]" if chosen else f" {text} ", "strong" if chosen else "dim"))
    right, tone = "only what differs" if choice.only_differences else "every pair", "dim"
    if choice.tab == "logits":
        right = "same tokens"
    elif choice.tab == "zeros" and choice.swapped:
        right, tone = "WHAT-IF rules swapped", "contradicts"
    used = sum(cells(span.text) for span in spans)
    spans.append(Span(fit(right, max(0, width - used - 1), right=True), tone))
    return [top, Line(spans=tuple(spans))]


def logits_head_lines(names: tuple[str, str], width: int) -> list[Line]:
    """Whose logits are compared, and which way round the divergence is.

    Args:
        names: the checkpoint and the base; an empty base compares two readings of the checkpoint.
        width: in cells.
    """
    a, b = (shown_name(name, max(8, width // 2 - 18)) for name in names)
    words = (
        f"checkpoint A {a}, base B {b}; KL(B || A)"
        if b
        else f"{a} as its bytes say, and under the other zero rule"
    )
    return [line((cut_end(f" {words}", width), "strong"))]


def compare_lines(found: Comparison, choice: CompareChoice, width: int) -> list[Line]:
    """The rows of the tab chosen; each leads to both sides in Bytes."""
    pairs = shown_pairs(found, choice)
    if choice.tab == "zeros":
        return _zero_rows(pairs, choice, width)
    if choice.tab == "contract":
        return _contract_rows(pairs, width)
    if choice.tab == "values":
        return _value_rows(pairs, width, one_file=found.a == found.b)
    return _only_rows(found, width)


def _names(pairs: Sequence[PairResult], width: int) -> dict[str, str]:
    """What each pair is called in a column of `width` cells."""
    names = [pair.pair.name for pair in pairs]
    brief = brief_names(names, width)
    return {name: shown_name(brief.get(name, name), width) for name in names}


def _target(pair: PairResult) -> Place:
    return Place(screen="compare", tensor=pair.pair.a, members=(pair.pair.b,), tab="bytes")


def _zero_rows(pairs: Sequence[PairResult], choice: CompareChoice, width: int) -> list[Line]:
    name = max(16, width - 58)
    head = (
        fit(" tensor", name + 1) + fit("A zero =  mean +- SE", 26) + fit("B zero =  mean +- SE", 26)
    )
    lines = [line((head + "bytes", "head"))]
    names = _names(pairs, name - 1)
    for pair in pairs:
        zeros = pair.zeros
        if zeros is None:
            continue
        lines.append(
            Line(
                spans=(
                    Span(" " + fit(names[pair.pair.name], name)),
                    Span(fit(_zero_cell(zeros.a, choice.swapped), 26), "number"),
                    Span(fit(_zero_cell(zeros.b, choice.swapped), 26), "number"),
                    Span(
                        "==" if zeros.bytes_equal else "!=",
                        "check" if zeros.bytes_equal else "plain",
                    ),
                ),
                about=zero_about(pair, zeros),
                target=_target(pair),
            )
        )
    if len(lines) == 1:
        lines.append(line((" no pair has stored integer zeros on both sides that differ", "dim")))
    return lines


def _zero_cell(side: ZeroSide, swapped: bool) -> str:
    own = side.convention
    if swapped:
        own = "minus_one" if own == "as_is" else "as_is"
    mean = side.mean_swapped if swapped else side.mean
    word = CONVENTION_WORDS.get(own, own)
    if mean is None:
        return f"{word:<9} -"
    error = (
        f" +- {side.standard_error:.3f}".replace("0.", ".")
        if side.standard_error is not None
        else ""
    )
    return f"{word:<9} {signed(mean).replace('0.', '.')}{error}"


def zero_about(pair: PairResult, zeros: ZeroComparison) -> tuple[str, ...]:
    """How the zero numbers of a pair are known."""
    return (
        f"{pair.pair.a} with {pair.pair.b} ({pair.pair.kind})",
        f"mean(code - zero used) over sampled groups: A {zeros.a.mean}, B {zeros.b.mean}",
        f"rules swapped: A {zeros.a.mean_swapped}, B {zeros.b.mean_swapped}",
        f"{zeros.equal_stored} of {zeros.zeros} stored zeros are equal",
        f"told apart by: {zeros.told_apart_by}",
    )


def detail_lines(pair: PairResult | None, choice: CompareChoice, width: int) -> list[Line]:
    """The pair under the cursor in full."""
    if pair is None:
        return []
    zeros = pair.zeros
    if choice.tab == "zeros" and zeros is not None:
        return _zero_detail(pair, zeros, width)
    if choice.tab == "contract":
        return _contract_detail(pair, width)
    return _value_detail(pair, width)


def _zero_detail(pair: PairResult, zeros: ZeroComparison, width: int) -> list[Line]:
    a, b = zeros.a, zeros.b
    label = 16
    half = (width - label) // 2
    if zeros.same_dtype_and_shape:
        same = f"same name, {a.dtype}, {list(a.shape)}, {a.nbytes} bytes in both"
        same += ": cannot be told apart by itself" if a.plane == b.plane else ""
    else:
        same = f"A {a.dtype} {list(a.shape)}, B {b.dtype} {list(b.shape)}"
    lines = [rule(f"{a.plane}: {same}" if cells(same) < width - 20 else a.plane, width)]
    if zeros.told_apart_by:
        lines += labelled("told apart by", zeros.told_apart_by, width, indent=label)
    lines.append(line((" " * label + fit("A", half) + "B", "strong")))
    rows: list[tuple[str, str, str]] = [
        (
            "bytes",
            f"{a.first_bytes}  @0x{a.byte_offset:X}",
            f"{b.first_bytes}  @0x{b.byte_offset:X}",
        ),
        ("fields lo..hi", _digits(a.fields), _digits(b.fields)),
        ("go to out", _digits(a.goes_to), _digits(b.goes_to)),
        (f"stored, out0-{max(0, len(a.stored) - 1)}", _digits(a.stored), _digits(b.stored)),
        ("zero used", _digits(a.used) + _plus(a), _digits(b.used) + _plus(b)),
        ("rules swapped", _swapped(a), _swapped(b)),
        ("", zeros.swapped_effect[0], zeros.swapped_effect[1]),
        (
            "sha256",
            f"{a.sha256[:8]} ({zeros.equal_stored} of {zeros.zeros} zeros equal)",
            b.sha256[:8],
        ),
    ]
    about = zero_about(pair, zeros)
    for title, left, right in rows:
        lefts, rights = wrap(left, half - 1), wrap(right, half - 1)
        for i in range(max(len(lefts), len(rights))):
            lines.append(
                line(
                    (fit(f" {title}" if i == 0 else "", label), "head"),
                    (fit(lefts[i] if i < len(lefts) else "", half), "number"),
                    (rights[i] if i < len(rights) else "", "number"),
                    about=about,
                )
            )
    return lines


def _digits(values: Sequence[int]) -> str:
    if all(0 <= value < 16 for value in values):
        return " ".join(f"{value:x}" for value in values)
    return " ".join(str(value) for value in values)


def _plus(side: ZeroSide) -> str:
    return "   (+1)" if side.convention == "minus_one" else ""


def _swapped(side: ZeroSide) -> str:
    return "-" if side.mean_swapped is None else f"mean(code-zero) {side.mean_swapped:+.3f}"


def _contract_rows(pairs: Sequence[PairResult], width: int) -> list[Line]:
    name = min(38, max(18, width - 60))
    lines = [line((fit(" tensor", name + 2) + fit("field", 17) + "A | B", "head"))]
    names = _names(pairs, name)
    for pair in pairs:
        for i, difference in enumerate(pair.contract):
            left = value_words(difference.field, difference.a)
            right = value_words(difference.field, difference.b)
            lines.append(
                Line(
                    spans=(
                        Span(" " + fit(names[pair.pair.name] if i == 0 else "", name + 1)),
                        Span(fit(difference.field, 17), "strong"),
                        Span(
                            cut_end(f"{left} | {right}", max(8, width - name - 20)), "contradicts"
                        ),
                    ),
                    about=(f"{pair.pair.a} against {pair.pair.b}", f"A {left}", f"B {right}"),
                    target=_target(pair),
                )
            )
    if len(lines) == 1:
        lines.append(line((" the contracts of all pairs are the same in every field", "dim")))
    return lines


def _contract_detail(pair: PairResult, width: int) -> list[Line]:
    lines = [rule(cut_middle(pair.pair.name, width - 8), width)]
    same, other = (
        ", ".join(pair.planes_identical) or "none",
        ", ".join(pair.planes_different) or "none",
    )
    for difference in pair.contract:
        a, b = (value_words(difference.field, side) for side in (difference.a, difference.b))
        lines += labelled(difference.field, f"A {a}   B {b}", width, indent=17)
    lines += labelled("same bytes", same, width, indent=17)
    lines += labelled("other bytes", other, width, indent=17)
    return lines


def _value_rows(pairs: Sequence[PairResult], width: int, one_file: bool) -> list[Line]:
    name = max(16, width - 50)
    lines = [
        line(
            (fit(" tensor", name + 1) + fit("rel. sq. L2", 13) + fit("cosine", 10) + "how", "head")
        )
    ]
    names = _names(pairs, name - 1)
    for pair in pairs:
        values = pair.values
        if values is None:
            continue
        metrics = values.metrics
        if values.identical:
            numbers, how, tone = fit("0", 13) + fit("1", 10), "same bits", "agrees"
        elif metrics is None:
            numbers, how, tone = fit("-", 23), values.error or "not decoded", "broken"
        else:
            relative, cosine = metrics.relative_squared_l2, metrics.cosine
            numbers = fit("-" if relative is None else f"{relative:.4g}", 13) + fit(
                "-" if cosine is None else f"{cosine:.4f}", 10
            )
            like = values.like_for_like or one_file
            how = "differs" if like else "NOT LIKE FOR LIKE"
            tone = "plain" if like else "contradicts"
        lines.append(
            Line(
                spans=(
                    Span(" " + fit(names[pair.pair.name], name)),
                    Span(numbers, "number"),
                    Span(how, tone),
                ),
                about=value_about(pair),
                target=_target(pair),
            )
        )
    if len(lines) == 1:
        lines.append(line((" every decoded value of every pair is the same to the bit", "dim")))
    return lines


def value_about(pair: PairResult) -> tuple[str, ...]:
    """How the value numbers of a pair are known."""
    values = pair.values
    if values is None:
        return ("values were not compared",)
    sentences = [f"{values.elements} of {values.total} elements decoded on both sides"]
    if values.metrics is not None:
        sentences.append(
            f"MSE {values.metrics.mse:.6g}, relative squared L2 "
            f"{values.metrics.relative_squared_l2}, cosine {values.metrics.cosine}, "
            f"max abs error {values.metrics.max_abs_error:.6g}"
        )
    if values.steps_mean is not None:
        sentences.append(
            f"in steps of A's scale: mean {values.steps_mean:.4g}, max {values.steps_max:.4g}"
        )
    if values.ratio is not None:
        ratio = values.ratio
        sentences.append(
            f"B/A by input channel: {ratio.smallest:.2f} .. {ratio.largest:.2f}, median {ratio.median:.2f}"
        )
    return tuple(sentences)


def _value_detail(pair: PairResult, width: int) -> list[Line]:
    lines = [rule(cut_middle(pair.pair.name, width - 8), width)]
    for sentence in value_about(pair):
        lines += [line(f" {piece}") for piece in wrap(sentence, width - 2)]
    return lines


def _only_rows(found: Comparison, width: int) -> list[Line]:
    lines: list[Line] = []
    for letter, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        lines.append(line((f" only in {letter}: {count_words(len(names), 'tensor')}", "head")))
        lines += [line(f"   {shown_name(name, width - 4)}") for name in names]
    return lines


def foot_lines(found: Comparison, width: int) -> list[Line]:
    """Values over all pairs: like for like or not, and the way out; gates that ran."""
    lines: list[Line] = []
    rescaled = found.rescaled
    if found.partial:
        lines += labelled("PARTIAL", found.partial, width, tone="check")
    if found.a == found.b:
        words = "one file under two zero rules: the same bytes, every weight one step apart"
        lines += labelled("VALUES", words, width)
    elif rescaled:
        ratios = [
            p.values.ratio for p in rescaled if p.values is not None and p.values.ratio is not None
        ]
        metrics = [
            p.values.metrics
            for p in rescaled
            if p.values is not None and p.values.metrics is not None
        ]
        words = f"{len(rescaled)} of {len(found.pairs)} NOT LIKE FOR LIKE"
        if metrics:
            words = (
                f"rel. squared L2 {metrics[0].relative_squared_l2:.2f}, cosine "
                f"{metrics[0].cosine:.2f}: NOT LIKE FOR LIKE"
            )
        if ratios:
            low = min(r.smallest for r in ratios)
            high = max(r.largest for r in ratios)
            words += f". B rescales input channels (B/A {low:.2f} .. {high:.2f}), presumably undone in the norm"
        lines += labelled("VALUES", words, width, tone="contradicts")
        lines += labelled(
            "way out", "like for like: --base (folding checked), or logits check (5)", width
        )
    else:
        same = sum(p.values is not None and p.values.identical for p in found.pairs)
        lines += labelled(
            "VALUES", f"{same} of {len(found.pairs)} pairs are the same to the bit", width
        )
    ran = [
        f"{name} ran: {(gate.outcome or '').replace('_', ' ')}"
        for name, gate in found.gates.items()
        if gate.status == "executed"
    ]
    lines += labelled(
        "gates",
        "; ".join(ran) if ran else "none executed: this compares two files, not quality",
        width,
        tone="dim",
    )
    return lines
