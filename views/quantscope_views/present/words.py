"""Numbers in the words of the screens; contract values come in the words of the engine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from quantscope.report.words import ZERO_WORDS, kind_words
from quantscope.text import inert

from quantscope_views.marks import CONVENTION_WORDS

if TYPE_CHECKING:
    from quantscope.session.inspection import TensorState


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


def zero_words(convention: object) -> str:
    """A zero convention as people read it: `zero = stored + 1`."""
    return ZERO_WORDS.get(str(convention), str(convention))


def stored_words(convention: object) -> str:
    """What a zero convention uses as the zero: `stored + 1`."""
    return zero_words(convention).removeprefix("zero = ")


def short_convention(convention: object) -> str:
    """A zero convention where there is room for one word: `stored+1`."""
    return CONVENTION_WORDS.get(str(convention), str(convention))


def kind_of(state: TensorState) -> str:
    """What a tensor is in the words that a scan uses: `int4 g128 asym`."""
    contract = state.contract
    return inert(
        kind_words(contract.value("element"), contract.value("group"), contract.value("symmetric"))
    )
