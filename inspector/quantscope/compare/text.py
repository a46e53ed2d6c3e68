"""A comparison as plain text: what differs, folded, and what may not be concluded."""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from typing import Any

from quantscope.compare.model import Comparison, FoldingResult, PairResult, ZeroComparison, ZeroSide
from quantscope.report.words import GATE_WORDS, count_words, value_words, zero_words
from quantscope.text import cut_middle, inert

NAME_WIDTH = 38
WIDTH = 80


def render(found: Comparison) -> str:
    """The whole comparison as lines of text, inert."""
    lines = [
        f"A {found.a}",
        f"B {found.b}",
        *([f"base {found.base}"] if found.base else []),
        f"{count_words(len(found.pairs), 'weight')} paired, {len(found.only_in_a)} only in A, "
        f"{len(found.only_in_b)} only in B" + (f" ({found.partial})" if found.partial else ""),
        "",
    ]
    lines += _contract(found)
    lines += _zeros(found)
    lines += _values(found)
    lines += _reference(found)
    lines += _only(found)
    lines += _gates(found)
    return "\n".join(shown for line in lines for shown in _wrapped(inert(line)))


def _wrapped(line: str) -> list[str]:
    """Prose of more than the width in several lines, the later ones further in; rows of columns as they are."""
    if len(line) <= WIDTH or "   B " in line:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [line]


def _contract(found: Comparison) -> list[str]:
    differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for pair in found.pairs:
        for difference in pair.contract:
            key = (difference.field, *_difference(difference.field, difference.a, difference.b))
            differing[key].append(pair.pair.name)
    quantized = [p for p in found.pairs if p.family_a and p.family_b]
    lines = ["CONTRACT"]
    if not differing:
        return [*lines, f"  same in every field, {len(quantized)} quantized pairs", ""]
    for (field, a, b), names in differing.items():
        lines += _row(field, a, f"{b}   ({len(names)} of {len(quantized)})")
    return [*lines, ""]


def _difference(field: str, a: Any, b: Any) -> tuple[str, str]:
    """Both values in words; of structured values only the parts that differ, where words would hide them."""
    left, right = value_words(field, a), value_words(field, b)
    if isinstance(a, dict) and isinstance(b, dict) and (left == right or field == "arithmetic"):
        keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        left, right = (", ".join(f"{key} {side.get(key)}" for key in keys) for side in (a, b))
    return left, right


def _zeros(found: Comparison) -> list[str]:
    with_zeros = [p for p in found.pairs if p.zeros is not None]
    if not with_zeros:
        return []
    lines = ["ZEROS"]
    groups: dict[tuple[str, str], list[PairResult]] = defaultdict(list)
    for pair in with_zeros:
        assert pair.zeros is not None
        groups[(pair.zeros.a.convention, pair.zeros.b.convention)].append(pair)
    for members in groups.values():
        zeros = members[0].zeros
        assert zeros is not None
        unequal = sum(not m.zeros.bytes_equal for m in members if m.zeros is not None)
        bytes_words = f"{unequal} of {len(members)} with other bytes" if unequal else "same bytes"
        lines.append(f"  {count_words(len(members), 'weight')}, {bytes_words}")
        lines += _row("rule", zero_words(zeros.a.convention), zero_words(zeros.b.convention))
        lines += _row("mean(code-zero)", _mean(zeros.a), _mean(zeros.b))
    assert with_zeros[0].zeros is not None
    return [*lines, *_zero_detail(with_zeros[0].pair.name, with_zeros[0].zeros), ""]


def _row(label: str, left: str, right: str) -> list[str]:
    """A and B side by side, or one below the other where they are too long for that."""
    row = f"  {label:<15} A {left:<28}   B {right}"
    return [row] if len(row) <= WIDTH else [f"  {label:<15} A {left}", f"  {'':<15} B {right}"]


def _mean(side: ZeroSide) -> str:
    if side.mean is None or side.standard_error is None:
        return "-"
    return f"{side.mean:+.3f} +- {side.standard_error:.3f}"


def _zero_detail(name: str, zeros: ZeroComparison) -> list[str]:
    a, b = zeros.a, zeros.b
    same = (
        f"same dtype {a.dtype} and shape {list(a.shape)}, {a.nbytes} bytes in both"
        if zeros.same_dtype_and_shape
        else f"A {a.dtype} {list(a.shape)}, B {b.dtype} {list(b.shape)}"
    )
    rows = [
        (
            "bytes",
            f"{a.first_bytes}  @0x{a.byte_offset:X}",
            f"{b.first_bytes}  @0x{b.byte_offset:X}",
        ),
        ("fields low-high", _numbers(a.fields), _numbers(b.fields)),
        ("go to out", _numbers(a.goes_to), _numbers(b.goes_to)),
        (f"stored, out0-{len(a.stored) - 1}", _numbers(a.stored), _numbers(b.stored)),
        ("zero used", _numbers(a.used), _numbers(b.used)),
        ("rules swapped", _swapped(a), _swapped(b)),
        ("", zeros.swapped_effect[0], zeros.swapped_effect[1]),
        ("sha256", a.sha256[:8], b.sha256[:8]),
    ]
    lines = [f"  {cut_middle(name, NAME_WIDTH)} {a.plane}: {same}"]
    if zeros.told_apart_by:
        lines.append(f"  told apart by   {zeros.told_apart_by}")
    lines += [line for row in rows for line in _row(*row)]
    if zeros.bytes_equal:
        lines.append("  the two zero planes are byte-identical")
    lines.append(
        f"  equal           {zeros.equal_stored} of {zeros.zeros} stored zeros, "
        f"{zeros.equal_used} of {zeros.zeros} zeros used, place by place"
    )
    return lines


def _swapped(side: ZeroSide) -> str:
    return "-" if side.mean_swapped is None else f"mean(code-zero) {side.mean_swapped:+.3f}"


def _values(found: Comparison) -> list[str]:
    known = [p for p in found.pairs if p.values is not None]
    identical = [p for p in known if p.values and p.values.identical]
    rescaled = found.rescaled
    failed = [p for p in known if p.values and p.values.metrics is None]
    lines = [f"VALUES    identical to the bit: {len(identical)} of {len(known)} weights"]
    others = [
        p
        for p in known
        if p.values and p.values.metrics and not p.values.identical and p.values.like_for_like
    ]
    if others:
        worst = max(others, key=_relative)
        assert worst.values is not None
        steps = f", up to {worst.values.steps_max:.2f} steps of A" if worst.values.steps_max else ""
        lines.append(
            f"  {len(others)} differ: rel. squared L2 up to {_relative(worst):.4g} "
            f"({cut_middle(worst.pair.name, NAME_WIDTH)}){steps}"
        )
    if rescaled:
        worst = max(rescaled, key=_relative)
        assert worst.values is not None
        assert worst.values.ratio is not None
        assert worst.values.metrics is not None
        ratio = worst.values.ratio
        lines += [
            f"  NOT LIKE FOR LIKE: {count_words(len(rescaled), 'weight')}, rel. squared L2 up to {_relative(worst):.2f}, "
            f"cosine {worst.values.metrics.cosine or 0:.2f}",
            f"  B rescales input channels (B/A {ratio.smallest:.2g} .. {ratio.largest:.2g}, "
            f"median {ratio.median:.2g}), presumably undone in the norm",
        ]
        if found.base is None:
            lines.append("  like for like: --base PATH checks the folding; or the logits check")
    for pair in failed[:3]:
        assert pair.values is not None
        lines.append(f"  {cut_middle(pair.pair.name, NAME_WIDTH)}: {pair.values.error}")
    if len(failed) > 3:
        lines.append(f"  {count_words(len(failed) - 3, 'more weight')} could not be compared")
    if found.sampled:
        lines.append("  large weights were sampled by rows; --deep compares every row")
    return [*lines, ""]


def _relative(pair: PairResult) -> float:
    if pair.values is None or pair.values.metrics is None:
        return 0.0
    return pair.values.metrics.relative_squared_l2 or 0.0


def _reference(found: Comparison) -> list[str]:
    if found.base is None:
        return []
    lines = ["AGAINST THE BASE"]
    for side in ("a", "b"):
        results = [r for r in found.reference if r.side == side and r.values.metrics is not None]
        if not results:
            lines.append(f"  {side.upper()}: no quantized weight has a counterpart in the base")
            continue
        like = [r for r in results if r.values.like_for_like]
        errors = [r.values.metrics.relative_squared_l2 or 0.0 for r in like if r.values.metrics]
        text = f"  {side.upper()}: {count_words(len(results), 'weight')}"
        if errors:
            text += f", rel. squared L2 {min(errors):.4g} .. {max(errors):.4g}"
        if len(like) < len(results):
            text += f", {len(results) - len(like)} NOT LIKE FOR LIKE (channels rescaled)"
        lines.append(text)
        shares = [r.requantized for r in results if r.requantized is not None]
        if shares:
            lines.append(
                f"     codes equal to round-to-nearest {min(s.rne_share for s in shares):.3f} .. "
                f"{max(s.rne_share for s in shares):.3f}, fixed point "
                f"{min(s.fixed_point_share for s in shares):.3f}, code_clamp_fraction "
                f"{max(s.code_clamp_fraction for s in shares):.4f}, endpoint_fraction "
                f"{max(s.endpoint_fraction for s in shares):.4f}, range_fraction "
                f"{max(s.range_fraction for s in shares):.4f} at most"
            )
        lines += _folding([f for f in found.folding if f.side == side])
    return [*lines, ""]


def _folding(results: list[FoldingResult]) -> list[str]:
    if not results:
        return []
    counts = Counter(result.outcome for result in results)
    words = {
        "held": "undone in norm or rows before",
        "did_not_hold": "NOT undone",
        "inconclusive": "undecided",
        "not_rescaled": "not rescaled",
    }
    text = ", ".join(f"{words[outcome]} {count}" for outcome, count in counts.items())
    lines = [f"     rescaled channels, {len(results)} places: {text}"]
    for result in results:
        if result.outcome == "did_not_hold":
            lines.append(
                f"     {', '.join(cut_middle(c, NAME_WIDTH) for c in result.consumers)}: "
                f"median deviation {result.median_deviation:.3f} against {result.undone_in}"
            )
    return lines


def _only(found: Comparison) -> list[str]:
    lines = []
    for label, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        if names:
            shown = ", ".join(cut_middle(name, NAME_WIDTH) for name in names[:4])
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            lines.append(f"ONLY IN {label}  {shown}{more}")
    return [*lines, ""] if lines else []


def _gates(found: Comparison) -> list[str]:
    lines = ["GATES"]
    for name, gate in found.gates.items():
        if gate.status == "executed":
            lines.append(
                f"  {GATE_WORDS[name]} ran: {(gate.outcome or '').replace('_', ' ')}; {gate.reason}"
            )
    skipped = [GATE_WORDS[name] for name, gate in found.gates.items() if gate.status == "skipped"]
    lines.append(f"  not run: {', '.join(skipped)}")
    return lines


def _numbers(values: tuple[int, ...]) -> str:
    return " ".join(str(value) for value in values)
