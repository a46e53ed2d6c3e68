"""Numbers and contract values in the words of the screens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quantscope.model import Reading
from quantscope.text import inert

from quantscope_views.marks import CONVENTION_WORDS

ZERO_WORDS: Mapping[str, str] = {
    "none": "none",
    "fixed": "fixed midpoint",
    "integer": "stored integer",
    "float_zero": "stored float",
    "additive_min": "additive minimum",
}


def size_words(nbytes: int) -> str:
    """Bytes in decimal units: `932 B`, `36 kB`, `1.65 MB`, `700 GB`."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1000
    raise AssertionError


def count_words(number: int, one: str, many: str = "") -> str:
    """`1 tensor`, `14 tensors`."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def seconds_words(seconds: float) -> str:
    """`0.4s`, `12s`, `3m20s`."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < 120:
        return f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s"


def share_words(part: int, whole: int) -> str:
    """A percentage that never says 100% of less and never 0% of something; `none` of nothing."""
    if whole <= 0:
        return "none"
    if part >= whole:
        return "100%"
    share = 100 * part / whole
    if part > 0 and share < 0.1:
        return "<0.1%"
    return f"{min(share, 99.9):.1f}%" if share < 10 or share > 99 else f"{share:.0f}%"


def number_words(value: float, digits: int = 6) -> str:
    """A decoded value: shortest of `digits` significant digits; NaN and infinities by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    return f"{value:.{digits}g}"


def fixed_words(value: float, places: int = 6) -> str:
    """A decoded value with fixed places, for columns of like values; tiny ones in scientific form."""
    if not math.isfinite(value):
        return number_words(value)
    if value and abs(value) < 10.0**-places * 5:
        return f"{value:.3e}"
    return f"{value:.{places}f}"


def signed(value: float, places: int = 3) -> str:
    """A number with its sign."""
    return number_words(value) if not math.isfinite(value) else f"{value:+.{places}f}"


def offset_words(byte_offset: int) -> str:
    """A byte offset as the screens write it."""
    return f"0x{byte_offset:X}"


def shape_words(shape: tuple[int, ...] | list[int]) -> str:
    """`[256, 256]`."""
    return "[" + ", ".join(str(extent) for extent in shape) + "]"


def convention_words(value: Any) -> str:
    """A zero convention as the screens say it."""
    return CONVENTION_WORDS.get(str(value), str(value))


def group_words(group: Mapping[str, Any] | None) -> str:
    """`g128`, `per channel`, `128x128`, `flat 64`."""
    if not group:
        return "-"
    axis, size = group.get("axis"), group.get("size")
    if axis == "in":
        text = f"g{size}" if size else "per channel"
    elif axis == "block" and isinstance(size, (list, tuple)):
        text = "x".join(str(extent) for extent in size)
    elif axis == "out":
        text = f"g{size} along out"
    elif axis == "flat":
        text = f"flat {size}"
    else:
        text = {"channel": "per channel", "tensor": "per tensor", "none": "-"}.get(
            str(axis), str(axis)
        )
    outer = group.get("outer")
    if isinstance(outer, list) and outer:
        text += " in " + " in ".join(group_words(level) for level in outer)
    return text


def value_words(field: str, value: Any, *, long: bool = False) -> str:
    """A contract value in one short phrase."""
    if value is None:
        return "-"
    if field == "zero_convention":
        return f"zero = {convention_words(value)}" if value != "not_applicable" else "n/a"
    if field == "zero":
        return ZERO_WORDS.get(str(value), str(value))
    if field == "group" and isinstance(value, dict):
        return group_words(value) if "axis" in value else _pairs(value)
    if field == "shape" and isinstance(value, (list, tuple)):
        return shape_words(list(value))
    if field == "scale" and isinstance(value, dict):
        return _scale_words(value)
    if field == "packing" and isinstance(value, dict):
        return _packing_words(value)
    if field == "arithmetic" and isinstance(value, dict):
        return str(value.get("rule", "")) if not long else _pairs(value)
    if field == "symmetric" and isinstance(value, bool):
        return "symmetric" if value else "asymmetric"
    if isinstance(value, dict):
        return _pairs(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return inert(str(value))


def _scale_words(value: Mapping[str, Any]) -> str:
    words = [str(value["dtype"])] if "dtype" in value else []
    direction = value.get("direction")
    if direction == "divide":
        words.append("divides")
    if value.get("signed"):
        words.append("signed")
    second = value.get("second_level")
    if isinstance(second, dict):
        words.append(f"x {second.get('dtype')} per {second.get('per') or 'tensor'}")
        if second.get("direction") == "divide":
            words.append("(divides)")
    return " ".join(words) or _pairs(value)


def _packing_words(value: Mapping[str, Any]) -> str:
    words = []
    if "word" in value:
        words.append(str(value["word"]))
    if value.get("axis") in ("in", "out"):
        words.append(f"along {value['axis']}")
    elif "axis" in value:
        words.append(str(value["axis"]))
    if "order" in value:
        words.append(str(value["order"]))
    return " ".join(words)


def _pairs(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {item}" for key, item in value.items())


def element_words(element: str) -> str:
    """`u4` as `int4`; other elements as the contract names them."""
    if element[:1] in "us" and element[1:].isdigit():
        return f"int{element[1:]}"
    return element


def reading_words(reading: Reading | None, symmetric: Any = None) -> str:
    """A reading in three words: `int4 g128 asym`."""
    if reading is None:
        return "no reading"
    values = reading.contract_values()
    words = [element_words(reading.element)]
    group = group_words(values.get("group"))
    if group != "-" and reading.packing.order != "ggml":
        words.append(group)
    known = values.get("symmetric", symmetric)
    if isinstance(known, bool) and reading.zero in ("integer", "fixed"):
        words.append("sym" if known else "asym")
    return " ".join(words)
