"""Integer zero points as stored, and as they count under a convention."""

from __future__ import annotations

import numpy as np
from quantscope.decode.parts import Array

from quantscope_plugins.families.packed_axis import PackedAxis


def true_zeros(
    packed: Array, axis: PackedAxis, wanted: range, first_code: int, convention: str
) -> tuple[Array, Array]:
    """True and stored zeros of packed words whose last axis is packed.

    Args:
        packed: integer words [groups, words].
        axis: how codes lie in them.
        wanted: codes along the packed axis, in the frame of the plane.
        first_code: the plane's code that lies first in `packed`.
        convention: `as_is`; `minus_one`, per field modulo the width; `minus_one_unwrapped`, where an
            all-ones field becomes 2**b; `minus_one_word_add`, one addition to the whole word whose carry
            reaches the next field (GPTQModel, gptqmodel/utils/model.py).

    Returns:
        Two int16 arrays [wanted, groups].
    """
    skip = wanted.start - first_code
    count = skip + len(wanted)
    stored = _codes(packed, axis, count, skip)
    if convention == "minus_one_word_add" and axis.order == "sequential":
        return _codes(_add_ones(packed, axis), axis, count, skip), stored
    if convention in ("minus_one", "minus_one_word_add"):
        return (stored + 1) & ((1 << axis.bit_width) - 1), stored
    if convention == "minus_one_unwrapped":
        return stored + 1, stored
    return stored, stored


def _codes(packed: Array, axis: PackedAxis, count: int, skip: int) -> Array:
    codes: Array = axis.unpack(packed, count, axis=-1)[:, skip:].T.astype(np.int16)
    return codes


def _add_ones(packed: Array, axis: PackedAxis) -> Array:
    ones = sum(1 << (field * axis.bit_width) for field in range(axis.run[0]))
    words = packed.view(np.dtype(f"u{packed.dtype.itemsize}"))
    added: Array = words + words.dtype.type(ones)
    return added
