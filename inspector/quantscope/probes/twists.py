"""Readings that no family proposes for a file, as changes of decoded parts: another code order, scale direction.

They exist so that a text can be asked about them. The same machinery makes the control's wrong reading.
"""

from __future__ import annotations

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.decode.plane_reader import STORAGE_BITS
from quantscope.model import Reading

ORDERS = ("sequential", "awq", "reversed", "pair_swapped", "low_first", "high_first")
"""Field orders that can be asked for. `awq` puts channel j into field (0, 4, 1, 5, 2, 6, 3, 7)[j] (AutoAWQ,
awq/utils/packing_utils.py); `pair_swapped` swaps the two fields of every byte."""
AWQ_FIELDS = (0, 4, 1, 5, 2, 6, 3, 7)
DIRECTIONS = ("multiply", "divide")
FIELDS = {"packing": ORDERS, "scale": DIRECTIONS}
"""Contract field -> values that can be asked for here."""


def fields_of(order: str, lanes: int) -> tuple[int, ...] | None:
    """Field that holds each of `lanes` codes of a word; None where the order has no such form."""
    natural = tuple(range(lanes))
    if order in ("sequential", "low_first"):
        return natural
    if order == "reversed":
        return natural[::-1]
    if order in ("pair_swapped", "high_first") and lanes % 2 == 0:
        return tuple(lane ^ 1 for lane in natural)
    return AWQ_FIELDS if order == "awq" and lanes == 8 else None


def applies(reading: Reading, field: str, value: str) -> bool:
    """Whether a change means something for a tensor and differs from its own reading."""
    if field == "scale":
        return bool(reading.scale) and reading.scale[0].direction != value
    return _moved(reading, value) is not None


def twisted(parts: Parts, reading: Reading, fields: dict[str, str]) -> Parts:
    """Parts under the changes.

    Args:
        parts: of whole rows; the window's first row is a multiple of every word's lanes.
        reading: the tensor's own reading.
        fields: contract field -> value, each of which `applies`.
    """
    if "scale" in fields:
        rest = parts.scale_divides[1:]
        parts.scale_divides = (fields["scale"] == "divide", *rest)
    if "packing" in fields:
        moved = _moved(reading, fields["packing"])
        if moved is not None:
            along_out = reading.packing.axis == "out"
            parts.codes = _rearranged(parts.codes, moved, 0 if along_out else 1)
            if along_out and parts.zero is not None and parts.zero.shape[0] > 1:
                parts.zero = _rearranged(parts.zero, moved, 0)
    return parts


def _moved(reading: Reading, order: str) -> tuple[int, ...] | None:
    """Which code of a word each place gets when it is read in another order; None where nothing changes."""
    bits = STORAGE_BITS.get(reading.packing.word, 0)
    if not reading.bit_width or bits % reading.bit_width or bits <= reading.bit_width:
        return None
    lanes = bits // reading.bit_width
    own, wanted = fields_of(reading.packing.order, lanes), fields_of(order, lanes)
    if own is None or wanted is None or own == wanted:
        return None
    holder = {field: code for code, field in enumerate(own)}
    return tuple(holder[field] for field in wanted)


def _rearranged(plane: Array, moved: tuple[int, ...], axis: int) -> Array:
    """Runs of codes along an axis put in another order; a last incomplete run stays."""
    turned = np.moveaxis(np.array(plane), axis, 0)
    whole = turned.shape[0] // len(moved) * len(moved)
    runs = turned[:whole].reshape(-1, len(moved), *turned.shape[1:])
    turned[:whole] = runs[:, list(moved)].reshape(turned[:whole].shape)
    return np.moveaxis(turned, 0, axis)


def planted(parts: Parts) -> Parts:
    """The control's wrong reading: zero + 1 everywhere; without a zero, neighbouring codes swapped."""
    if parts.zero is not None and parts.combine == "affine":
        parts.zero = np.asarray(parts.zero) + 1
        return parts
    parts.codes = swapped(parts.codes)
    return parts


def swapped(values: Array) -> Array:
    """Neighbouring columns of [rows, columns] exchanged; an odd last one stays."""
    result = np.array(values)
    even = result.shape[1] // 2 * 2
    pairs = result[:, :even].reshape(result.shape[0], -1, 2)
    result[:, :even] = pairs[:, :, ::-1].reshape(result.shape[0], even)
    return result
