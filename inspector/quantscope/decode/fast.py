"""Compiled twins of the hottest decoders, bit-identical to the numpy ones (extra `fast`).

Each runs over its planes once, so it is bound by memory where numpy is bound by the number of passes. The
first call of each compiles it (about a second) and numba keeps the result on disk. numpy's versions are
always there; nothing chooses between the two by itself.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantscope.decode.bits import Words, unsigned_view, word_bits
from quantscope.errors import MissingExtraError, UndecodableError
from quantscope.extras import install_hint

Floats = NDArray[np.float32]


def available() -> bool:
    """Say whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def decode_columns(
    words: Words,
    bit_width: int,
    scales: Floats,
    zeros: NDArray[Any] | float,
    group_size: int,
    out: Floats | None = None,
) -> Floats:
    """Do what `affine.decode_columns` does.

    Raises:
        UndecodableError: the width does not divide the word, or groups cut words apart.
        MissingExtraError: numba is not installed.
    """
    fields = _fields(words, bit_width, group_size)
    packed = np.ascontiguousarray(unsigned_view(words))
    if out is None:
        out = np.empty((packed.shape[0] * fields, packed.shape[1]), np.float32)
    scale, zero = _planes(scales, zeros)
    _compiled(_columns)(packed, bit_width, scale, zero, group_size // fields, out)
    return out


def decode_nibble_rows(
    words: Words,
    scales: Floats,
    zeros: NDArray[Any] | float,
    group_size: int,
    *,
    group_axis: Literal[0, 1],
    awq: bool = False,
    out: Floats | None = None,
) -> Floats:
    """Decode 32-bit words of eight 4-bit codes along the last axis, in sequence or in AWQ's order.

    Args:
        words: 32-bit [A, B/8].
        scales: [ceil(A / group_size), B] for group axis 0, [A, ceil(B / group_size)] for 1.
        zeros: true zeros of that shape, or one number.
        group_size: codes along the group axis that share a scale.
        group_axis: 0 where groups run down the rows, 1 where they run along a row.
        awq: nibbles in the order 0, 2, 4, 6, 1, 3, 5, 7; for group axis 0.
        out: float32 [A, B].

    Raises:
        UndecodableError: the words are not 32-bit, or groups along a row cut words apart.
        MissingExtraError: numba is not installed.
    """
    if word_bits(words) != 32 or (awq and group_axis):
        raise UndecodableError("compiled rows are 32-bit words, AWQ's with groups down the rows")
    _fields(words, 4, group_size if group_axis else 0)
    packed = np.ascontiguousarray(unsigned_view(words))
    if out is None:
        out = np.empty((packed.shape[0], packed.shape[1] * 8), np.float32)
    scale, zero = _planes(scales, zeros)
    if group_axis == 1:
        _compiled(_rows_by_row_group)(packed, scale, zero, group_size // 8, out)
    else:
        kernel = _awq_rows if awq else _rows_by_column_group
        _compiled(kernel)(packed, scale, zero, group_size, out)
    return out


def _planes(scales: Floats, zeros: NDArray[Any] | float) -> tuple[Floats, Floats]:
    scale = np.ascontiguousarray(scales, np.float32)
    return scale, np.ascontiguousarray(np.broadcast_to(np.asarray(zeros, np.float32), scale.shape))


def _fields(words: Words, bit_width: int, group_size: int) -> int:
    fields, rest = divmod(word_bits(words), bit_width)
    if rest or group_size % fields:
        raise UndecodableError(
            f"codes of {bit_width} bits in groups of {group_size} do not fill whole "
            f"{word_bits(words)}-bit words",
            hint="unpack the codes first and use apply_affine",
        )
    return fields


@cache
def _compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    try:
        import numba
    except ImportError as problem:
        raise MissingExtraError(
            "compiled decoders need numba", hint=install_hint("fast")
        ) from problem
    compiled: Callable[..., None] = numba.njit(cache=True, nogil=True, error_model="numpy")(kernel)
    return compiled


def _columns(words: Any, bit_width: Any, scales: Any, zeros: Any, per_group: Any, out: Any) -> None:
    n_rows, n_columns = words.shape
    fields = out.shape[0] // n_rows
    mask = (1 << bit_width) - 1
    for row in range(n_rows):
        group = row // per_group
        for field in range(fields):
            shift = field * bit_width
            line = row * fields + field
            for column in range(n_columns):
                code = np.float32(np.int32((words[row, column] >> shift) & mask))
                out[line, column] = (code - zeros[group, column]) * scales[group, column]


def _rows_by_column_group(words: Any, scales: Any, zeros: Any, group_size: Any, out: Any) -> None:
    for row in range(words.shape[0]):
        zero = zeros[row // group_size]
        scale = scales[row // group_size]
        for word in range(words.shape[1]):
            value = words[row, word]
            first = word * 8
            # The constant trip count lets the compiler unroll and vectorise.
            for field in range(8):
                code = np.float32(np.int32((value >> np.uint32(4 * field)) & np.uint32(15)))
                out[row, first + field] = (code - zero[first + field]) * scale[first + field]


def _awq_rows(words: Any, scales: Any, zeros: Any, group_size: Any, out: Any) -> None:
    for row in range(words.shape[0]):
        zero = zeros[row // group_size]
        scale = scales[row // group_size]
        for word in range(words.shape[1]):
            value = words[row, word]
            for field in range(4):
                place = word * 8 + 2 * field
                even = np.float32(np.int32((value >> np.uint32(4 * field)) & np.uint32(15)))
                odd = np.float32(np.int32((value >> np.uint32(16 + 4 * field)) & np.uint32(15)))
                out[row, place] = (even - zero[place]) * scale[place]
                out[row, place + 1] = (odd - zero[place + 1]) * scale[place + 1]


def _rows_by_row_group(words: Any, scales: Any, zeros: Any, per_group: Any, out: Any) -> None:
    n_words = words.shape[1]
    for row in range(words.shape[0]):
        for group in range(scales.shape[1]):
            zero = zeros[row, group]
            scale = scales[row, group]
            for word in range(group * per_group, min((group + 1) * per_group, n_words)):
                value = words[row, word]
                line = out[row, word * 8 : word * 8 + 8]
                for field in range(8):
                    code = np.float32(np.int32((value >> np.uint32(4 * field)) & np.uint32(15)))
                    line[field] = (code - zero) * scale
