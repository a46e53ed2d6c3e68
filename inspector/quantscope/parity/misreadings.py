"""Wrong readings of right bytes: negative controls, and emulated faulty readers.

Each takes the parts of a block of rows (whole runs of 128 from the tensor's top, so that tiles stay whole) and
gives the parts that a reader with the fault would use, or None where the contract does not allow the fault.
One class a fault; the registry at the end is what `--emulate` lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.model import Reading

Change = Callable[[Parts, Reading], Parts | None]


class Misreading(NamedTuple):
    """A fault of a reader.

    `kind` is the kind code of the fault; `effect` is what a person sees; `control` marks those that every
    run must detect where they apply.
    """

    name: str
    title: str
    kind: str
    effect: str
    change: Change
    control: bool = False


def _with(parts: Parts, **changed: object) -> Parts:
    kept = {name: getattr(parts, name) for name in Parts.__slots__}
    return Parts(**(kept | changed))


def _scale(parts: Parts, first: Array) -> Parts:
    return _with(parts, scale=(first, *parts.scale[1:]))


def _zero_moved(step: int) -> Change:
    def change(parts: Parts, reading: Reading) -> Parts | None:
        if parts.combine == "affine" and parts.zero is not None and reading.zero != "none":
            return _with(parts, zero=np.asarray(parts.zero, dtype=np.float64) + step)
        if parts.combine in ("minus_min", "plus_min") and parts.minimum is not None:
            sign = 1 if parts.combine == "minus_min" else -1
            moved = np.asarray(parts.minimum, np.float64) + sign * step * _whole_scale(parts)
            return _with(parts, minimum=moved)
        return None

    return change


def _whole_scale(parts: Parts) -> Array:
    factor: Array = np.ones((1, 1))
    for level, divides in zip(parts.scale, parts.scale_divides, strict=True):
        wide = np.asarray(level, dtype=np.float64)
        factor = factor / wide if divides else factor * wide
    return factor


def _zero_wrapped(parts: Parts, reading: Reading) -> Parts | None:
    if reading.zero != "integer" or parts.zero is None or reading.bit_width > 8:
        return None
    zero = np.asarray(parts.zero)
    return _with(parts, zero=np.where(zero == 0, (1 << reading.bit_width) - 1, zero))


def _zeros_ignored(parts: Parts, reading: Reading) -> Parts | None:
    if parts.zero is None or reading.zero not in ("integer", "float_zero"):
        return None
    middle = 1 << max(0, reading.bit_width - 1)
    return _with(parts, zero=np.full((1, 1), middle, dtype=np.float64))


def _nibbles_swapped(parts: Parts, reading: Reading) -> Parts | None:
    if reading.bit_width != 4 or parts.codes.ndim != 2:
        return None
    codes, order = parts.codes, reading.packing.order
    if order == "ggml":
        return _ggml_halves(parts, reading)
    if order in ("tile", "one_per_word", "bitstream", "planar") or order.startswith("row_chunks"):
        return None
    if reading.packing.axis == "out":
        if codes.shape[0] % 8 or order != "awq":
            return None
        rows = np.arange(codes.shape[0]).reshape(-1, 8)
        swapped = rows[:, [2, 3, 0, 1, 6, 7, 4, 5]].ravel()
        return _with(parts, codes=codes[swapped])
    if codes.shape[1] % 2:
        return None
    return _with(parts, codes=codes[:, np.arange(codes.shape[1]) ^ 1])


def _ggml_halves(parts: Parts, reading: Reading) -> Parts | None:
    """Low and high nibbles of a block exchanged: halves of 32, or of 64 in the K types."""
    half = {"Q4_0": 16, "Q4_1": 16, "IQ4_NL": 16, "IQ4_XS": 16, "MXFP4": 16, "NVFP4": 8}
    length = half.get(reading.element, 32 if reading.element == "Q4_K" else 0)
    if not length or parts.codes.shape[1] % (2 * length):
        return None
    return _with(parts, codes=parts.codes[:, np.arange(parts.codes.shape[1]) ^ length])


def _scales_rolled(parts: Parts, reading: Reading) -> Parts | None:
    if not parts.scale:
        return None
    first = np.asarray(parts.scale[0])
    axis = 1 if first.shape[-1] > 1 else 0
    if first.shape[axis] < 2:
        return None
    return _scale(parts, np.roll(first, 1, axis=axis))


def _scale_doubled(parts: Parts, reading: Reading) -> Parts | None:
    if not parts.scale or np.asarray(parts.scale[0]).size > 1:
        return None
    return _scale(parts, np.asarray(parts.scale[0], dtype=np.float64) * 2)


def _awq_as_linear(parts: Parts, reading: Reading) -> Parts | None:
    if reading.packing.order != "awq" or parts.codes.shape[0] % 8:
        return None
    place = np.arange(parts.codes.shape[0]).reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
    zero = parts.zero
    if zero is not None and np.asarray(zero).shape[0] == place.size:
        zero = np.asarray(zero)[place]
    return _with(parts, codes=parts.codes[place], zero=zero)


INT16_SCALE = 4096.0
"""vLLM stores group scales of its int8-activation path as int16, the largest as 4096. Source: vLLM,
model_executor/layers/quantization/utils/marlin_utils.py, marlin_act_int8_process_scales."""


def _scales_unsigned(parts: Parts, reading: Reading) -> Parts | None:
    if not parts.scale or not bool((np.asarray(parts.scale[0]) < 0).any()):
        return None
    first = np.asarray(parts.scale[0], dtype=np.float64)
    unit = np.abs(first).max() / INT16_SCALE
    if unit == 0:
        return None
    stored = np.rint(first / unit).astype(np.int16)
    return _scale(parts, stored.view(np.uint16).astype(np.float64) * unit)


def _swizzled(parts: Parts, reading: Reading) -> Parts | None:
    """Scales written in tiles of 128 rows by 4 groups and read row by row."""
    if not parts.scale:
        return None
    first = np.asarray(parts.scale[0])
    rows, groups = first.shape
    if rows % 128 or groups % 4:
        return None
    tiles = first.reshape(rows // 128, 4, 32, groups // 4, 4).transpose(0, 3, 2, 1, 4)
    return _scale(parts, np.ascontiguousarray(tiles).reshape(rows, groups))


def _scale_dropped(parts: Parts, reading: Reading) -> Parts | None:
    if not parts.scale:
        return None
    return _scale(parts, np.ones_like(np.asarray(parts.scale[0], dtype=np.float64)))


def _e8m0_by_value(parts: Parts, reading: Reading) -> Parts | None:
    """The numeric value of a power-of-two scale cut into a byte, which is then read as an exponent again."""
    if not reading.scale or reading.scale[0].dtype != "e8m0" or not parts.scale:
        return None
    value = np.asarray(parts.scale[0], dtype=np.float64)
    with np.errstate(invalid="ignore"):
        byte = np.mod(np.trunc(np.clip(value, 0, 2.0**62)), 256)
    return _scale(parts, np.exp2(byte - 127))


def _e8m0_as_number(parts: Parts, reading: Reading) -> Parts | None:
    """The exponent byte taken for the scale itself: 120 becomes 120.0."""
    if not reading.scale or reading.scale[0].dtype != "e8m0" or not parts.scale:
        return None
    value = np.asarray(parts.scale[0], dtype=np.float64)
    if not bool((value > 0).all()):
        return None
    return _scale(parts, np.log2(value) + 127)


def _second_dropped(parts: Parts, reading: Reading) -> Parts | None:
    if len(parts.scale) < 2:
        return None
    ones = np.ones_like(np.asarray(parts.scale[1], dtype=np.float64))
    return _with(parts, scale=(parts.scale[0], ones, *parts.scale[2:]))


def _second_inverted(parts: Parts, reading: Reading) -> Parts | None:
    if len(parts.scale) < 2:
        return None
    flipped = list(parts.scale_divides)
    flipped[1] = not flipped[1]
    return _with(parts, scale_divides=tuple(flipped))


def _group_128(parts: Parts, reading: Reading) -> Parts | None:
    group = reading.group[0] if reading.group else None
    if group is None or group.axis != "in" or group.size == 128 or parts.group_of_column.ndim != 1:
        return None
    index = parts.group_of_column
    last = int(index.max(initial=0))
    return _with(parts, group_of_column=np.minimum(np.arange(index.size) // 128, last))


_STEP = "every weight is off by one step of its scale"

MISREADINGS: tuple[Misreading, ...] = (
    Misreading(
        "zero_plus_one",
        "zero point one too high",
        "ZP-CONV",
        _STEP + ", low",
        _zero_moved(1),
        True,
    ),
    Misreading(
        "zero_minus_one",
        "zero point one too low",
        "ZP-CONV",
        _STEP + ", high",
        _zero_moved(-1),
        True,
    ),
    Misreading(
        "zero_wrapped",
        "zero 0 becomes all ones: one subtracted, then masked",
        "ZP-WRAP",
        "groups with zero 0 move by 2^b - 1 steps",
        _zero_wrapped,
    ),
    Misreading(
        "zeros_ignored",
        "stored zeros ignored, the midpoint used",
        "ZP-PRESENCE",
        "each group moves by its own offset",
        _zeros_ignored,
    ),
    Misreading(
        "nibbles_swapped",
        "the two codes of a byte swapped",
        "PACK-ORDER",
        "neighbouring weights change places",
        _nibbles_swapped,
        True,
    ),
    Misreading(
        "awq_as_linear",
        "AWQ interleave ignored",
        "PACK-ORDER",
        "output channels mixed within eight",
        _awq_as_linear,
        True,
    ),
    Misreading(
        "scales_rolled",
        "scales of the neighbouring group",
        "SCALE-LAYOUT",
        "each group has another group's size",
        _scales_rolled,
        True,
    ),
    Misreading(
        "scale_doubled",
        "a scalar scale doubled",
        "SCALE-VALUE",
        "every weight twice as large",
        _scale_doubled,
        True,
    ),
    Misreading(
        "scales_unsigned",
        "signed scales read as unsigned",
        "SCALE-SIGN",
        "groups with negative scales grow by orders of magnitude",
        _scales_unsigned,
    ),
    Misreading(
        "swizzled_as_linear",
        "scales written in 128x4 tiles, read row by row",
        "SCALE-LAYOUT",
        "scales land on other rows and groups",
        _swizzled,
    ),
    Misreading(
        "scale_dropped",
        "the scale plane dropped, 1.0 used",
        "SCALE-MISSING",
        "weights have the size of codes",
        _scale_dropped,
    ),
    Misreading(
        "e8m0_by_value",
        "E8M0 scales copied by value into bytes",
        "SCALE-DTYPE",
        "most scales become 2^-127",
        _e8m0_by_value,
    ),
    Misreading(
        "e8m0_as_number",
        "E8M0 exponent byte taken for a number",
        "SCALE-DTYPE",
        "scales near 120 instead of near 2^-7",
        _e8m0_as_number,
    ),
    Misreading(
        "second_scale_dropped",
        "second-level scale dropped",
        "SCALE-MISSING",
        "every weight off by one factor",
        _second_dropped,
    ),
    Misreading(
        "second_scale_inverted",
        "second-level scale inverted",
        "SCALE-RECIP",
        "every weight off by the factor squared",
        _second_inverted,
    ),
    Misreading(
        "group_128",
        "group size 128 assumed",
        "GROUP",
        "scales and zeros of other groups",
        _group_128,
    ),
)

BY_NAME: dict[str, Misreading] = {misreading.name: misreading for misreading in MISREADINGS}
CONTROLS: tuple[Misreading, ...] = tuple(m for m in MISREADINGS if m.control)
