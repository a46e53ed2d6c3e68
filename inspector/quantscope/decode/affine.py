"""Whole planes of packed integer codes to float32: (code - zero) * scale, one rounding per step.

The work goes in blocks of rows whose temporaries stay in the cache, each field position by one shift and one
mask, and every output element is written once. Threads help over tensors, or over row ranges of a large one:
numpy releases the interpreter lock inside each of these steps.

Source of the rule and of its rounding order: AutoGPTQ, qlinear_cuda_old.py; GPTQModel,
gptqmodel/utils/model_dequant.py; compressed-tensors, quantization/lifecycle/forward_helpers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantscope.decode.bits import Codes, Words, unsigned_view, word_bits
from quantscope.errors import UndecodableError

Floats = NDArray[np.float32]

Zeros = NDArray[Any] | float
"""True zeros: a plane of the shape of the scales, any real dtype, or one number for all."""

_TILE_WORDS = 64 * 1024
"""Packed words handled at a time: one field of all of them takes 256 KiB of float32."""

_TILE_CODES = 256 * 1024
"""Unpacked codes handled at a time: enough to hide numpy's cost per call, few enough for the cache."""


def decode_columns(
    words: Words,
    bit_width: int,
    scales: Floats,
    zeros: Zeros,
    group_size: int,
    out: Floats | None = None,
) -> Floats:
    """Decode words packed down the rows (GPTQ): field i of a word holds row i of its run, lowest bits first.

    Args:
        words: [K * bit_width / word bits, N]; the width must divide the word.
        bit_width: 1, 2, 4 or 8.
        scales: float32 [ceil(K / group_size), N].
        zeros: see `Zeros`.
        group_size: rows that share a scale, a multiple of the fields of a word.
        out: float32 [K, N], C-contiguous.

    Returns:
        float32 [K, N].

    Raises:
        UndecodableError: the width does not divide the word, or groups cut words apart.
    """
    fields = word_bits(words) // bit_width
    if fields * bit_width != word_bits(words) or group_size % fields:
        raise UndecodableError(
            f"codes of {bit_width} bits in groups of {group_size} do not fill whole "
            f"{word_bits(words)}-bit words",
            hint="unpack the codes first and use apply_affine",
        )
    packed = unsigned_view(words)
    n_rows, n_columns = packed.shape
    if out is None:
        out = np.empty((n_rows * fields, n_columns), np.float32)
    shaped = out.reshape(n_rows, fields, n_columns)
    scale, zero = _grid(scales), _grid(zeros)
    for tile, groups, size in _tiles(n_rows, n_columns, group_size // fields, _TILE_WORDS):
        _column_tile(packed[tile], bit_width, scale[groups], _of(zero, groups), size, shaped[tile])
    return out


def decode_lines(
    unpack: Callable[[slice, Codes], Any],
    scales: Floats,
    zeros: Zeros,
    group_size: int,
    *,
    group_axis: Literal[0, 1],
    out: Floats,
) -> Floats:
    """Decode any packing, some rows at a time: `unpack` fills the codes of those rows, this does the rest.

    Args:
        unpack: called with a slice of rows and a uint8 [rows, B] to fill.
        scales: as in `apply_affine`.
        zeros: see `Zeros`.
        group_size: as in `apply_affine`.
        group_axis: as in `apply_affine`.
        out: float32 [A, B], C-contiguous; its shape says how many codes there are.

    Returns:
        `out`.
    """
    n_rows, n_columns = out.shape
    scale, zero = _grid(scales), _grid(zeros)
    codes = np.empty((0, n_columns), np.uint8)
    per_group = group_size if group_axis == 0 else 1
    for tile, groups, size in _tiles(n_rows, n_columns, per_group, _TILE_CODES):
        height = tile.stop - tile.start
        if codes.shape[0] < height:
            codes = np.empty((height, n_columns), np.uint8)
        unpack(tile, codes[:height])
        apply_affine(
            codes[:height],
            scale[groups],
            _of(zero, groups),
            size if group_axis == 0 else group_size,
            group_axis=group_axis,
            out=out[tile],
        )
    return out


def apply_affine(
    codes: Codes,
    scales: Floats,
    zeros: Zeros,
    group_size: int,
    *,
    group_axis: Literal[0, 1],
    out: Floats | None = None,
) -> Floats:
    """Turn unpacked codes into values: float32 (code - zero), then times scale.

    Args:
        codes: uint8 or int8 [A, B].
        scales: float32, [ceil(A / group_size), B] for group axis 0, [A, ceil(B / group_size)] for 1.
        zeros: see `Zeros`.
        group_size: codes along `group_axis` that share a scale; the last group may be short.
        group_axis: 0 where groups run down the rows (AWQ), 1 where they run along a row.
        out: float32 [A, B], C-contiguous.

    Returns:
        float32 [A, B].
    """
    if out is None:
        out = np.empty(codes.shape, np.float32)
    scale, zero = _grid(scales), _grid(zeros)
    np.copyto(out, codes)
    if group_axis == 0:
        for lines, groups, size in _group_runs(out.shape[0], group_size):
            part = out[lines].reshape(-1, size, out.shape[1])
            part -= _of(zero, groups, None)
            part *= scale[groups, None]
        return out
    for lines, groups, size in _group_runs(out.shape[1], group_size):
        part = np.lib.stride_tricks.as_strided(
            out[:, lines],
            (out.shape[0], groups.stop - groups.start, size),
            (out.strides[0], out.strides[1] * size, out.strides[1]),
        )
        part -= zero if zero.ndim == 0 else zero[:, groups, None]
        part *= scale[:, groups, None]
    return out


def _column_tile(
    words: Words, bit_width: int, scale: Floats, zero: Floats, per_group: int, out: Floats
) -> None:
    """Decode packed rows [r, N] into [r, fields, N]; `per_group` packed rows share a row of `scale`."""
    kind = words.dtype.type
    fields = out.shape[1]
    grouped = (-1, per_group, words.shape[1])
    spread_zero = zero if zero.ndim == 0 else zero[:, None]
    raw = np.empty(words.shape, words.dtype)
    values = np.empty(words.shape, np.float32)
    signed = raw.view(f"i{raw.dtype.itemsize}") if fields > 1 else raw
    for field in range(fields):
        np.right_shift(words, kind(field * bit_width), out=raw)
        if field < fields - 1:
            np.bitwise_and(raw, kind((1 << bit_width) - 1), out=raw)
        # Fields are below 2**31, and signed integers convert to float faster than unsigned ones.
        np.copyto(values, signed)
        part = values.reshape(grouped)
        part -= spread_zero
        np.multiply(part, scale[:, None], out=out[:, field].reshape(grouped))


def _tiles(
    n_rows: int, n_columns: int, per_group: int, elements: int
) -> Iterator[tuple[slice, slice, int]]:
    """Cut rows into tiles of at most `elements` that hold whole groups, or lie in one.

    Yields:
        (rows, groups, rows that share a group inside the tile).
    """
    fitting = max(1, elements // max(1, n_columns))
    for lines, groups, size in _group_runs(n_rows, per_group):
        if fitting >= size:
            step = fitting // size * size
            share = size
        else:
            step = share = next(rows for rows in range(fitting, 0, -1) if size % rows == 0)
        for start in range(lines.start, lines.stop, step):
            stop = min(start + step, lines.stop)
            first = groups.start + (start - lines.start) // size
            last = groups.start + -(-(stop - lines.start) // size)
            yield slice(start, stop), slice(first, last), share


def _group_runs(extent: int, group_size: int) -> Iterator[tuple[slice, slice, int]]:
    """Cut an axis into its whole groups and a short last one.

    Yields:
        (lines, groups, lines of each group).
    """
    n_groups, rest = divmod(extent, group_size)
    if n_groups:
        yield slice(0, n_groups * group_size), slice(0, n_groups), group_size
    if rest:
        yield slice(extent - rest, extent), slice(n_groups, n_groups + 1), rest


def _of(zero: Floats, *index: Any) -> Floats:
    """Return the rows of a zero plane, or the one number itself."""
    return zero if zero.ndim == 0 else zero[index]


def _grid(plane: NDArray[Any] | float) -> Floats:
    return np.asarray(plane, np.float32)
