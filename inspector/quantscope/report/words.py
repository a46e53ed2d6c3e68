"""Words that a person reads for the words of the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

SEVERITY_WORDS = {
    "violation": "BROKEN",
    "disagreement": "CONTRADICTS",
    "warning": "CHECK",
    "note": "note",
}
SEVERITY_MARKS = {"violation": "!", "disagreement": "!=", "warning": "?", "note": "i"}

STRENGTH_WORDS = {
    "proved": "only fit",
    "decisive": "decisive",
    "strong": "strong",
    "weak": "weak",
    "convention": "custom only",
}

CONFIDENCE_WORDS = STRENGTH_WORDS | {"proved": "proved"}
"""How sure a finding is: a fact read from the bytes is proved, it is no fit among readings."""

MATCH_WORDS = {
    "agree": "agrees",
    "disagree": "differs",
    "declared_only": "declared only",
    "inferred_only": "inferred only",
    "ambiguous": "ambiguous",
    "inexpressible": "inexpressible",
    "not_applicable": "-",
    "not_checked": "not checked",
}

ZERO_WORDS = {
    "as_is": "zero = stored",
    "minus_one": "zero = stored + 1",
    "minus_one_unwrapped": "zero = stored + 1, not wrapped",
    "minus_one_word_add": "zero = stored + 1, added to the whole word",
    "not_applicable": "-",
}

OUTCOME_WORDS = {
    "held": "ran: held",
    "did_not_hold": "ran: did not hold",
    "inconclusive": "ran: inconclusive",
}

GATE_WORDS = {
    "graph_rewrite": "float graph before and after rescaling",
    "numeric_reference": "float base",
    "packing_layout": "packing vectors",
    "kernel": "kernel check",
    "model_quality": "logits check",
    "serving": "serving",
}
"""The six gates as a person reads them."""

WHO_WORDS = {"nobody": "-"}
"""Who can act, where the word of the document is not the one that a person reads."""

PLANE_WORDS = {
    "codes": "codes",
    "scale": "scales",
    "scale2": "second-level scales",
    "zero": "zeros",
    "minimum": "minima",
    "codebook": "codebooks",
    "group_index": "g_idx",
    "permutation": "permutations",
    "sign": "signs",
    "meta": "metadata",
    "companion": "companions",
    "bias": "biases",
}


def zero_words(value: Any) -> str:
    """A zero convention as a person reads it; any other word as it is."""
    return ZERO_WORDS.get(str(value), str(value))


def number_name(key: str) -> str:
    """A number's name as a person reads it: `mean with stored + 1` for mean_minus_one."""
    for word, shown in (("minus_one", "with stored + 1"), ("as_is", "as stored")):
        key = key.replace(word, shown)
    return key.replace("_", " ")


def who_words(who: str) -> str:
    """Who can act: producer, config, download, storage or reader; `-` where nothing helps."""
    return WHO_WORDS.get(who, who)


def value_words(field: str, value: Any) -> str:
    """A contract value in one short run of words."""
    if value is None:
        return "not stated"
    if field == "zero_convention":
        return zero_words(value)
    if field == "symmetric" and isinstance(value, bool):
        return "symmetric" if value else "asymmetric"
    if field == "group" and isinstance(value, dict):
        return _group_words(value)
    if field == "scale" and isinstance(value, dict):
        return _scale_words(value)
    if field == "packing" and isinstance(value, dict):
        axis = f"along {value['axis']}" if "axis" in value else ""
        parts = (str(value.get("word", "")), axis, str(value.get("order", "")))
        return " ".join(part for part in parts if part)
    if field == "arithmetic" and isinstance(value, dict):
        return _arithmetic_words(value)
    if isinstance(value, list):
        return str(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def _arithmetic_words(value: dict[str, Any]) -> str:
    """Rule and types of a decode rule, those that are stated."""
    text = str(value.get("rule", ""))
    if value.get("product"):
        text += f" in {value['product']}"
    if value.get("output"):
        text += f"{', ' if text else ''}out {value['output']}"
    return text.strip()


def _group_words(value: dict[str, Any]) -> str:
    axis, size = value.get("axis"), value.get("size")
    if isinstance(size, list):
        text = f"blocks {size[0]} x {size[1]}"
    elif size is None:
        text = f"along {axis}" if axis == "in" else f"per {axis}"
    elif axis is None:
        text = str(size)
    else:
        text = f"{size} along {axis}"
    outer = value.get("outer")
    for level in outer if isinstance(outer, list) else ():
        text += f", in {_group_words(level)}" if isinstance(level, dict) else ""
    return text


def _scale_words(value: dict[str, Any]) -> str:
    text = str(value.get("dtype", ""))
    if value.get("direction") == "divide":
        text += ", divides"
    if value.get("signed"):
        text += ", signed"
    second = value.get("second_level")
    if isinstance(second, dict):
        said = [str(second["dtype"])] if second.get("dtype") else ["a second level"]
        said += ["divides"] if second.get("direction") == "divide" else []
        said += [f"per {second['per']}"] if second.get("per") else []
        text += f"; {' '.join(said)}"
    text = text.removeprefix("; ").removeprefix(", ")
    return text or ("multiplies" if value.get("direction") == "multiply" else "")


def told_apart(texts: Sequence[str], places: Sequence[str | None]) -> list[str]:
    """Texts of a list; those that read the same begin with their place, a file's name."""
    times = Counter(texts)
    return [
        f"{place}: {text}" if times[text] > 1 and place else text
        for text, place in zip(texts, places, strict=True)
    ]


def element_words(element: str) -> str:
    """`int4` for u4 and s4, `fp8` for e4m3fn; other elements as they are."""
    if element[:1] in ("u", "s") and element[1:].isdigit():
        return f"int{element[1:]}"
    return {"e4m3fn": "fp8", "e2m1": "fp4"}.get(element, element)


def short_group_words(group: Any) -> str:
    """`g128`, `128x128`, `per-channel`; empty where a group says nothing."""
    if not isinstance(group, dict):
        return ""
    size, axis = group.get("size"), group.get("axis")
    if isinstance(size, int):
        return f"g{size}"
    if isinstance(size, (list, tuple)):
        return "x".join(str(extent) for extent in size)
    return f"per-{axis}" if axis and axis != "none" else ""


def kind_words(element: Any, group: Any = None, symmetric: Any = None) -> str:
    """`int4 g128 asym`: element, finest group and symmetry of a tensor, each where it is known."""
    words = [element_words(str(element))] if element is not None else []
    words.append(short_group_words(group))
    if isinstance(symmetric, bool):
        words.append("sym" if symmetric else "asym")
    return " ".join(word for word in words if word)


def kinds_words(counts: Counter[str], most: int = 3) -> list[str]:
    """Kinds of tensors with how many there are, most frequent first; `2 other kinds` for the rest."""
    top = counts.most_common(most)
    shown = [text if len(counts) == 1 else f"{text} x{count}" for text, count in top]
    rest = len(counts) - len(shown)
    return shown + ([count_words(rest, "other kind")] if rest > 0 else [])


def bytes_words(nbytes: int) -> str:
    """A size in decimal units, as file listings give it."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def count_words(count: int, one: str, many: str | None = None) -> str:
    """`1 tensor`, `14 tensors`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def percent_words(part: int, whole: int) -> str:
    """A share that never rounds up to 100 % nor down to 0 %."""
    if not whole:
        return "-"
    if part >= whole:
        return "100%"
    if not part:
        return "0%"
    return f"{min(99.9, max(0.1, 100 * part / whole)):.3g}%"
