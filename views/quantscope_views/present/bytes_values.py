"""The value of one element in numbers, and the codes of its group counted."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from quantscope.decode.combine import combine_parts
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.window import decode_window, window_parts
from quantscope.families.protocol import Family
from quantscope.model import LogicalTensor, Reading

from quantscope_views.present.bytes_group import Group
from quantscope_views.present.bytes_model import Shown
from quantscope_views.present.words import fixed_words, number_words

BINS = 16


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Codes of a group, counted."""

    code: str
    count: int
    histogram: tuple[int, ...]
    labels: tuple[str, ...]
    end_codes: int | None
    """Codes at either end of what the format holds; None where codes have no ends."""


def group_facts(
    parts: Parts, reading: Reading, group: Group, window: Window, row: int, col: int
) -> GroupFacts:
    """Count the codes of the group."""
    own = parts.codes[row - window.rows.start, col - window.cols.start]
    codes = _own_codes(parts.codes, group, window)
    histogram, labels = _histogram(codes, reading, parts)
    at_end = end_code_mask(codes, parts, reading)
    return GroupFacts(
        code=code_text(own, parts),
        count=int(codes.size),
        histogram=histogram,
        labels=labels,
        end_codes=int(at_end.sum()) if at_end is not None else None,
    )


def end_code_mask(codes: Array, parts: Parts, reading: Reading) -> Array | None:
    """Which codes are the lowest or the highest of the format, those of a table by their finite values.

    None where codes are values themselves or have no range of their own.
    """
    if codes.dtype.kind not in "iu" or not 0 < reading.bit_width <= 8:
        return None
    low, high = code_range(parts, reading)
    mask: Array
    if parts.combine == "lut" and parts.lut is not None and parts.lut.size > high:
        table = np.asarray(parts.lut, dtype=np.float32)[: high + 1]
        finite = table[np.isfinite(table)]
        mask = ((table == finite.min()) | (table == finite.max()))[codes]
        return mask
    mask = (codes == low) | (codes == high)
    return mask


def code_range(parts: Parts, reading: Reading) -> tuple[int, int]:
    """Lowest and highest code of the reading's width."""
    bits = reading.bit_width
    if reading.element.startswith("s") or parts.codes.dtype == np.int8:
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


def code_text(code: Array, parts: Parts) -> str:
    """A code as a hex digit or number; a value where codes are values."""
    number = code.item()
    if isinstance(number, float):
        if math.isnan(number):
            return "NaN"
        return f"{number:.3g}"
    top = int(np.iinfo(parts.codes.dtype).max) if parts.codes.dtype.kind in "iu" else 255
    if parts.combine == "lut" and top == 255 and parts.lut is not None and parts.lut.size > 64:
        return number_words(float(parts.lut[number]), 3)
    if number < 0 or parts.codes.dtype.kind == "i":
        return str(number)
    return f"{number:x}" if top <= 255 else str(number)


def _own_codes(codes: Array, group: Group, window: Window) -> Array:
    """Codes of the window that belong to the group, flat."""
    if group.flat is not None:
        flat: Array = codes.reshape(-1)
        first = group.flat[0] - (window.rows.start * group.row_length + window.cols.start)
        if len(window.rows) == 1:
            first = 0
        return flat[first : first + group.flat[1] - group.flat[0]]
    if group.scattered is not None:
        columns = np.array(sorted(group.scattered)) - window.cols.start
        picked: Array = codes[:, columns].reshape(-1)
        return picked
    rest: Array = codes.reshape(-1)
    return rest


def _histogram(
    codes: Array, reading: Reading, parts: Parts
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if codes.dtype.kind in "iu" and 0 < reading.bit_width <= 8:
        low, high = code_range(parts, reading)
        span = high - low + 1
        per_bin = max(1, span // BINS)
        binned = (np.clip(codes.astype(np.int32), low, high) - low) // per_bin
        counts = np.bincount(binned, minlength=span // per_bin)
        labels = [_code_label(low + i * per_bin, low) for i in range(len(counts))]
        return tuple(counts.tolist()), tuple(labels)
    finite = codes[np.isfinite(codes)] if codes.dtype.kind == "f" else codes
    if not finite.size:
        return (), ()
    distinct, times = np.unique(finite, return_counts=True)
    if distinct.size <= BINS:
        labels = [number_words(float(value), 3) for value in distinct]
        return tuple(times.tolist()), tuple(labels)
    counts, edges = np.histogram(finite.astype(np.float64), bins=BINS)
    return tuple(counts.tolist()), tuple(number_words(float(edge), 2) for edge in edges[:-1])


def _code_label(code: int, low: int) -> str:
    return str(code) if low < 0 else f"{code:x}"


def shown_value(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    parts: Parts,
    window: Window,
    group: Group,
    row: int,
    col: int,
    reader: PlaneReader,
) -> Shown:
    """Value of an element under a reading, as a formula in numbers.

    The value itself comes from the engine's decoder, not from the formula.
    """
    one = Window(range(row, row + 1), range(col, col + 1))
    value = float(decode_window(family, tensor, reading, one, reader)[0, 0])
    plain = _plain_value(window_parts(family, tensor, reading, one, reader))
    at = (row - window.rows.start, col - window.cols.start)
    return Shown(
        formula=_formula(parts, at)
        if plain == value or math.isclose(plain, value, rel_tol=0.01) or math.isnan(value)
        else f"{_formula(parts, at)}, by {reading.arithmetic.rule}",
        value=value,
        mean=_mean(parts, group, window),
    )


def _plain_value(parts: Parts) -> float:
    """What the formula alone comes to; NaN where it takes the format's own rule."""
    return float(combine_parts(parts, None)[0, 0]) if parts.combine != "vector" else math.nan


def _formula(parts: Parts, at: tuple[int, int]) -> str:
    code = code_text(parts.codes[at], parts)
    number = parts.codes[at].item()
    scale = _scale_words(parts, at)
    if parts.combine == "affine":
        zero = _at(parts, parts.zero, at)
        inner = f"code {number}" if zero is None else f"(code {number} - zero {_short(zero)})"
        return f"{inner}{scale}"
    if parts.combine in ("minus_min", "plus_min"):
        sign = "-" if parts.combine == "minus_min" else "+"
        minimum = _at(parts, parts.minimum, at)
        return f"code {number}{scale} {sign} {_short(minimum)}"
    if parts.combine == "lut" and parts.lut is not None:
        entry = float(parts.lut[int(number)])
        if parts.lut.size > 64:
            return f"{_short(entry)}{scale}"
        return f"table[{code}] {_short(entry)}{scale}"
    if parts.combine == "value":
        return f"{_short(float(number))}{scale}"
    return f"code {code}{scale}"


def _scale_words(parts: Parts, at: tuple[int, int]) -> str:
    words = ""
    for level, divides in zip(parts.scale, parts.scale_divides, strict=True):
        value = _at(parts, level, at)
        words += f" {'/' if divides else '*'} {_short(value)}"
    return words


def _at(parts: Parts, plane: Array | None, at: tuple[int, int]) -> float | None:
    """Entry of a [R, G]-like plane for an element of the window."""
    if plane is None:
        return None
    array = np.asarray(plane)
    index = parts.group_of_column
    group = int(index[at[1]] if index.ndim == 1 else index[at])
    r = at[0] if array.shape[0] > 1 else 0
    g = group if array.shape[-1] > 1 else 0
    if array.ndim != 2 or r >= array.shape[0] or g >= array.shape[1]:
        return None
    return float(array[r, g])


def finest_scale(parts: Parts, at: tuple[int, int]) -> float | None:
    """The finest scale of an element of the window as it is applied; None where there is none."""
    return _at(parts, parts.scale[0], at) if parts.scale else None


def _short(value: float | None) -> str:
    if value is None:
        return "?"
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return fixed_words(value) if abs(value) < 1000 else number_words(value)


def _mean(parts: Parts, group: Group, window: Window) -> float | None:
    if parts.combine != "affine" or parts.zero is None or parts.codes.dtype.kind not in "iu":
        return None
    zero = np.broadcast_to(parts.per_element(np.asarray(parts.zero)), parts.codes.shape)
    deviation = parts.codes.astype(np.float32) - zero.astype(np.float32)
    own = _own_codes(deviation, group, window)
    return float(own.mean()) if own.size else None
