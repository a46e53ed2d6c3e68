"""Numbers of findings and of evidence as sentences: what each one counts, and in which unit.

Keys that a document carries for programs and that say nothing to a person by themselves are left out here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from quantscope.model import Evidence, Finding
from quantscope.report.words import bytes_words, value_words
from quantscope.text import inert

from quantscope_views.present.words import shape_words, zero_words

STEPS, BYTES, BITS, SHARE, VALUES = "steps", "bytes", "bits", "share", "values"

LABELS: Mapping[str, tuple[str, str]] = {
    "mean": ("mean(code - zero)", STEPS),
    "standard_error": ("standard error of that mean", STEPS),
    "worst": ("largest |mean(code - zero)| of a module", STEPS),
    "spread": ("standard deviation of the means of modules", STEPS),
    "modules": ("modules counted", ""),
    "modules_far_from_both": ("modules whose codes fit neither reading", ""),
    "groups": ("groups counted", ""),
    "groups_needed": ("groups that decide at this error", ""),
    "groups_left_out": ("groups left out, their zero being at an end", ""),
    "groups_used": ("groups that g_idx uses", ""),
    "groups_with_scales": ("groups that have a scale", ""),
    "stored_min": ("smallest stored zero", "as an integer"),
    "stored_max": ("largest stored zero", "as an integer"),
    "all_ones": ("stored zeros with every bit set", ""),
    "zero": ("stored zeros that are 0", ""),
    "readings_tried": ("readings put into the size equations", ""),
    "readings_left": ("readings that fit them", ""),
    "map_min": ("smallest entry of quant_map", ""),
    "map_max": ("largest entry of quant_map", ""),
    "median_scale": ("median scale", ""),
    "largest_weight_multiply": ("largest weight where scales multiply", ""),
    "largest_weight_divide": ("largest weight where scales divide", ""),
    "rms": ("root mean square of the weights", ""),
    "entropy_bits": ("entropy of the codes", BITS),
    "mean_follows_zero": ("correlation of mean code and zero, by group", ""),
    "spread_against_scale": ("correlation of spread of codes and scale, by group", ""),
    "examined": ("values examined", ""),
    "nan": ("NaN values", ""),
    "inf": ("infinite values", ""),
    "zeros": ("values that are zero", ""),
    "negative": ("negative values", ""),
    "subnormal": ("subnormal values", ""),
    "minus_zero": ("values that are -0", ""),
    "bad": ("values that are not finite", ""),
    "constant": ("rows that hold one code only", ""),
    "rows": ("rows looked at", ""),
    "elements": ("codes counted", ""),
    "above": ("codes above zero", ""),
    "below": ("codes below zero", ""),
    "fields": ("stored zeros counted", ""),
    "odd": ("stored zeros unlike the rest", ""),
    "expected_bytes": ("demanded", BYTES),
    "actual_bytes": ("stored", BYTES),
    "missing_bytes": ("missing", BYTES),
    "extra_bytes": ("beyond the last tensor", BYTES),
    "reserved_bytes": ("reserved by the file", BYTES),
    "file_size": ("size of the file", BYTES),
    "blank": ("blank", BYTES),
    "nbytes": ("stored", BYTES),
    "base_share": ("share of parameters in the label's base type", SHARE),
    "unexplained_share": ("share of parameters that the label does not explain", SHARE),
    "share": ("share of parameters in the label's type", SHARE),
    "entropy": ("entropy of the code bytes", "bits a byte"),
    "ratio": ("ratio to the smallest of its siblings", ""),
}
"""What a number is and its unit; keys of a convention or an extreme are made of these."""

OF_RULE: Mapping[tuple[str, str], tuple[str, str]] = {
    ("QV005", "highest"): ("entropy of the worst window", "bits a byte"),
    ("QV005", "usual"): ("entropy elsewhere", "bits a byte"),
    ("QS005", "largest"): ("largest scale", ""),
    ("QS005", "usual"): ("scale beside it", ""),
    ("QS003", "smallest"): ("smallest scale", ""),
    ("QS011", "implied"): ("largest weight where scales multiply", ""),
    ("QS011", "implied_other"): ("largest weight where scales divide", ""),
    ("QS011", "median"): ("median scale", ""),
    ("QS014", "plain"): ("agreement of scales with codes, rows as stored", ""),
    ("QS014", "tiled"): ("agreement of scales with codes, rows tiled", ""),
    ("QG001", "lowest"): ("lowest index of a group", ""),
    ("QG001", "highest"): ("highest index of a group", ""),
    ("QG001", "groups"): ("groups that have a scale", ""),
    ("QW003", "modules"): ("modules of the checkpoint", ""),
    ("QV010", "actual"): ("the tensors say", ""),
    ("QV010", "expected"): ("the key says", ""),
    ("QB003", "ends"): ("share of codes at the ends", SHARE),
    ("QB003", "middle"): ("share of codes in the middle", SHARE),
    ("QB003", "mean"): ("mean code", "standard deviations from zero"),
    ("QP006", "fields"): ("codes a word", ""),
}
"""Where a key means something of its own under one rule."""

TOTALS = frozenset(
    {
        "nan",
        "inf",
        "zeros",
        "negative",
        "subnormal",
        "minus_zero",
        "bad",
        "constant",
        "odd",
        "blank",
    }
    | {"all_ones", "missing_bytes", "fields", "rows", "examined", "elements", "above", "below"}
)
"""Numbers that may be added up over tensors."""

CONVENTIONS = ("minus_one_word_add", "minus_one_unwrapped", "minus_one", "as_is")


def finding_numbers(finding: Finding) -> Iterator[str]:
    """What a finding's data says to a person: values by their words, numbers with their units."""
    data, field = finding.data, finding.subject.field or ""
    for key, value in data.items():
        if key in ("declared", "inferred") and field:
            yield f"{key}: {inert(value_words(field, value))}"
            continue
        if key in ("expected_shape", "actual_shape") and isinstance(value, list):
            yield f"shape {'demanded' if key == 'expected_shape' else 'stored'}: {shape_words(value)}"
            continue
        found = OF_RULE.get((finding.code, key)) or label_of(key)
        if found is not None and _is_number(value):
            yield f"{found[0]}: {_with_unit(key, value, found[1], finding.count)}"


def step_numbers_words(step: Evidence) -> Iterator[str]:
    """The numbers of an evidence step, each with what it is; a candidate with its own numbers on one line."""
    for key, value in step.numbers.items():
        if isinstance(value, dict):
            parts = [
                f"{label[0]} {_with_unit(name, number, label[1])}"
                for name, number in value.items()
                if (label := label_of(name)) is not None and _is_number(number)
            ]
            yield f"{inert(key)}: {', '.join(parts)}"
            continue
        found = label_of(key)
        if found is not None and _is_number(value):
            yield f"{found[0]}: {_with_unit(key, value, found[1])}"
        elif isinstance(value, str):
            yield f"{inert(key.replace('_', ' '))}: {inert(value)}"


def label_of(key: str) -> tuple[str, str] | None:
    """What a key's number is and its unit; None for a key that says nothing by itself."""
    if key in LABELS:
        return LABELS[key]
    for convention in CONVENTIONS:
        for name, tail in (("mean", "_min"), ("mean", "_max"), ("mean", ""), ("worst", "")):
            if key == f"{name}_{convention}{tail}":
                what, unit = LABELS[name]
                extreme = {"_min": "lowest ", "_max": "highest "}.get(tail, "")
                of = " of a module" if extreme else ""
                return f"{extreme}{what}{of} if {zero_words(convention)}", unit
        if key == f"standard_error_{convention}":
            what, unit = LABELS["standard_error"]
            return f"{what} if {zero_words(convention)}", unit
        if key == f"modules_{convention}":
            return f"modules whose codes fit {zero_words(convention)}", ""
    return None


def _is_number(value: object) -> bool:
    if isinstance(value, dict):
        return {"min", "max"} <= value.keys()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _with_unit(key: str, value: Any, unit: str, tensors: int = 1) -> str:
    if isinstance(value, dict):
        text = f"{_one(value['min'], unit)} .. {_one(value['max'], unit)}"
        if key in TOTALS and "sum" in value:
            return f"{_one(value['sum'], unit)} in all, {text} a tensor"
        return f"{text}{_tail(unit)} over {tensors} tensors"
    each = " a tensor" if key == "groups" and tensors > 1 else ""
    return _one(value, unit) + _tail(unit) + each


def _one(value: float, unit: str) -> str:
    if unit == BYTES:
        return f"{value} B" if value < 10_000 else f"{value} B ({bytes_words(int(value))})"
    if unit == SHARE:
        return f"{100 * value:.1f}%"
    if unit == STEPS:
        return f"{value:+.4f}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _tail(unit: str) -> str:
    return f" {unit}" if unit not in ("", BYTES, SHARE, "as an integer") else ""
