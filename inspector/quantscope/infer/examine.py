"""Look at the bytes of one tensor: its scale-like planes whole, its codes by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.decode.sampling import rows_lie_apart, sample_windows, total_groups
from quantscope.decode.window import failure_of, window_parts
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.families.guard import FamilyFailedError, PluginFailure
from quantscope.families.protocol import Family
from quantscope.infer.code_windows import CodeWindows, code_windows, runs_for
from quantscope.infer.plane_values import Mask, PlaneStats, number_format, plane_stats
from quantscope.infer.side_planes import IndexStats, ZeroPlane, index_stats, zero_plane
from quantscope.infer.zero_convention import ZeroTally, tally
from quantscope.model import LogicalTensor, Plane, Reading

FLOAT_PLANES = frozenset(
    {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
)
T = TypeVar("T")

ALL_ELEMENTS = 1 << 23
"""Tensors up to this size are unpacked whole where a zero scale asks for it."""

TINY_SCALE = 2.0**-126
"""A scale below the smallest normal float32 counts as zero: E8M0 byte 0 is 2^-127."""

VALUE_ROLES = frozenset({"scale", "scale2", "zero", "minimum", "codebook"})


class CodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """What sampled codes look like: a histogram over stored codes and the zero-point tally."""

    groups_examined: int
    groups_total: int
    elements: int
    histogram: tuple[int, ...] = ()
    """Counts per stored code for widths up to 8 bits, lowest code first; empty for values."""
    lowest_code: int = 0
    zero: ZeroTally = ZeroTally()
    constant_rows: int = 0
    """Sampled rows in which every code is equal."""
    rows: int = 0
    zero_scale_live_codes: int = 0
    """Sampled rows with a group whose scale is zero although its codes are not all at the zero point."""
    zero_rows: int = 0
    """Sampled rows that decode to zero everywhere, whatever their scales."""
    first_zero_row: int | None = None
    out_of_range: int = 0
    """Codes that the width of the reading cannot hold, where one is stored a word."""
    below_zero: int = 0
    """Codes below their zero point (sign set, for floating codes)."""
    above_zero: int = 0


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read of one tensor's bytes."""

    planes: tuple[PlaneStats, ...] = ()
    codes: CodeStats | None = None
    windows: CodeWindows | None = None
    index: IndexStats | None = None
    zeros: ZeroPlane | None = None
    error: str | None = None
    failure: PluginFailure | None = None
    """What the family raised where no malformed plane explains it; the caller knows whether the sizes fit."""


def examine(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading | None,
    reader: PlaneReader,
    n_groups: int | None,
    n_tensors: int = 1,
) -> Examination:
    """Read the scale-like planes and a sample of codes of one tensor.

    Args:
        family: the tensor's family.
        tensor: the logical tensor.
        reading: the reading to unpack codes under; None where no reading exists.
        reader: bounded reads with a ledger.
        n_groups: groups to sample; None for every code.
        n_tensors: tensors that the job looks at; of very many, less of each long plane is read.
    """
    errors: list[str] = []
    failures: list[PluginFailure] = []

    def attempt(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except CancelledError:
            raise
        except QuantscopeError as problem:
            errors.append(problem.message)
            failure = failure_of(problem, family, tensor)
            if failure is not None:
                failures.append(failure)
            return None

    everything = n_groups is None
    n_runs = None if everything else runs_for(n_tensors)
    planes: list[PlaneStats] = []
    for plane in tensor.planes:
        word = scale_word(plane, reading)
        if plane.role in VALUE_ROLES and number_format(plane, word) in FLOAT_PLANES:
            stats = attempt(
                lambda p=plane, w=word: plane_stats(  # type: ignore[misc]
                    p,
                    reader,
                    word=w,
                    everything=everything,
                    mask=_mask(family, tensor, reading, p, failures),
                )
            )
            if stats is not None:
                planes.append(stats)
    index_plane, zeros_plane, codes_plane = (
        tensor.plane(role) for role in ("group_index", "zero", "codes")
    )
    index = zeros = windows = codes = None
    if index_plane is not None:
        index = attempt(lambda: index_stats(index_plane, reader))
    if zeros_plane is not None and reading is not None and reading.zero == "integer":
        zeros = attempt(lambda: zero_plane(zeros_plane, reading, reader))
    if codes_plane is not None:
        windows = attempt(lambda: code_windows(codes_plane, reader, n_runs=n_runs))
    if reading is not None and attempt(lambda: family.undecodable(tensor)) is None:
        if _may_be_dead(planes) and _elements(reading) <= ALL_ELEMENTS:
            n_groups = None
        codes = attempt(lambda: code_stats(family, tensor, reading, reader, n_groups))
    return Examination(
        planes=tuple(planes),
        codes=codes,
        windows=windows,
        index=index,
        zeros=zeros,
        error="; ".join(errors) or None,
        failure=failures[0] if failures else None,
    )


def _mask(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading | None,
    plane: Plane,
    failures: list[PluginFailure],
) -> Mask | None:
    if reading is None:
        return None
    chosen = reading

    def counted(numbers: Array) -> Array | None:
        try:
            return family.value_mask(tensor, chosen, plane, numbers)
        except FamilyFailedError as problem:  # without a mask every value counts
            failures.append(problem.failure)
            return None

    return counted


def _may_be_dead(planes: Sequence[PlaneStats]) -> bool:
    """Whether a scale is zero or the smallest exponent, so that its own codes must be looked at."""
    return any(
        stats.zero or (stats.dtype == "F8_E8M0" and stats.subnormal)
        for stats in planes
        if stats.role == "scale"
    )


def _elements(reading: Reading) -> int:
    return math.prod(reading.shape)


def scale_word(plane: Plane, reading: Reading | None) -> str:
    """The scale format that a reading gives to a plane; empty where it says nothing."""
    if reading is None:
        return ""
    level = {"scale": 0, "scale2": 1}.get(plane.role)
    if level is None or level >= len(reading.scale):
        return ""
    return reading.scale[level].dtype


def code_stats(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading,
    reader: PlaneReader,
    n_groups: int | None,
) -> CodeStats:
    """Histogram and tallies over a fixed sample of codes, or over all of them."""
    bits = reading.bit_width
    histogram = np.zeros(1 << bits if 0 < bits <= 8 else 0, dtype=np.int64)
    lowest = 0
    zero = ZeroTally()
    rows = constant = elements = dead = below = above = zero_rows = 0
    first_zero_row: int | None = None
    outside = 0
    per_row = max(1, total_groups(reading) // max(1, reading.shape[-2]))
    apart = rows_lie_apart(tensor, reading)
    for window in sample_windows(reading, n_groups, apart=apart):
        parts = window_parts(family, tensor, reading, window, reader)
        codes = parts.codes
        elements += codes.size
        rows += codes.shape[0]
        if codes.size:
            constant += int((codes.min(axis=1) == codes.max(axis=1)).sum())
        if histogram.size and codes.dtype.kind in "iu":
            if reading.element.startswith("s") or codes.dtype == np.int8:
                lowest = -(1 << (bits - 1))
            shifted = codes.astype(np.int16) - lowest if lowest else codes
            outside += int(((shifted < 0) | (shifted >= histogram.size)).sum())
            counts = np.bincount(
                np.clip(shifted, 0, histogram.size - 1).ravel(), minlength=histogram.size
            )
            histogram += counts[: histogram.size]
        if parts.stored_zero is not None:
            zero = zero.joined(tally(parts, bits))
        dead += _zero_scale_live(parts)
        under, over, empty = _sides(parts)
        below, above, zero_rows = below + under, above + over, zero_rows + int(empty.sum())
        if first_zero_row is None and empty.any():
            first_zero_row = window.rows.start + int(np.argmax(empty))
    return CodeStats(
        groups_examined=rows * per_row,
        groups_total=total_groups(reading),
        elements=elements,
        histogram=tuple(int(n) for n in histogram) if histogram.any() else (),
        lowest_code=lowest,
        zero=zero,
        rows=rows,
        constant_rows=constant,
        zero_scale_live_codes=dead,
        zero_rows=zero_rows,
        first_zero_row=first_zero_row,
        out_of_range=outside,
        below_zero=below,
        above_zero=above,
    )


def _sides(parts: Parts) -> tuple[int, int, Array]:
    """Codes below and above zero, and the rows whose codes all decode to zero."""
    codes = parts.codes
    nothing = _scaled_to_zero(parts)
    if parts.combine == "lut" and parts.lut is not None:
        value = np.asarray(parts.lut)[codes]
        signs = np.signbit(value)
        return int(signs.sum()), int((~signs).sum()), nothing | (value == 0).all(axis=1)
    if parts.combine == "value":
        value = codes.astype(np.float32)
        dead = nothing | (value == 0).all(axis=1)
        return int((value < 0).sum()), int((value > 0).sum()), dead
    if parts.combine == "affine" and parts.group_of_column.ndim == 1:
        zero = 0 if parts.zero is None else parts.per_element(np.asarray(parts.zero))
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = codes.astype(np.float32) - zero
        return (
            int((deviation < 0).sum()),
            int((deviation > 0).sum()),
            nothing | (deviation == 0).all(axis=1),
        )
    return 0, 0, nothing


def _scaled_to_zero(parts: Parts) -> Array:
    """Rows whose scales, and minimums where there are any, are all exactly zero."""
    n_rows = parts.codes.shape[0]
    if not parts.scale or any(parts.scale_divides):
        return np.zeros(n_rows, dtype=bool)
    if parts.minimum is not None and (np.asarray(parts.minimum) != 0).any():
        return np.zeros(n_rows, dtype=bool)
    scale = np.asarray(parts.scale[0])
    rows: Array = (scale.reshape(scale.shape[0], -1) == 0).all(axis=1)
    return np.broadcast_to(rows, (n_rows,)) if rows.size in (1, n_rows) else np.zeros(n_rows, bool)


def _zero_scale_live(parts: Parts) -> int:
    if not parts.scale or parts.group_of_column.ndim != 1:
        return 0
    scale = np.asarray(parts.scale[0])
    dead = np.abs(scale) < TINY_SCALE
    if not dead.any():
        return 0
    spread = np.broadcast_to(parts.per_element(dead), parts.codes.shape)
    live = parts.codes != (
        parts.per_element(np.asarray(parts.zero)) if parts.zero is not None else 0
    )
    return int((spread & live).any(axis=1).sum())


def examined_groups(exams: Sequence[Examination]) -> tuple[int, int]:
    """Groups examined and groups there are, over tensors whose codes were read."""
    pairs = [(e.codes.groups_examined, e.codes.groups_total) for e in exams if e.codes is not None]
    return sum(p[0] for p in pairs), sum(p[1] for p in pairs)


def plane_bytes(tensors: Sequence[LogicalTensor]) -> dict[str, int]:
    """Bytes of distinct planes by role."""
    seen: set[tuple[str, str, int]] = set()
    totals: dict[str, int] = {}
    for tensor in tensors:
        for plane in tensor.planes:
            key = (plane.stored_name, plane.suffix, plane.byte_offset)
            if key not in seen:
                seen.add(key)
                totals[plane.role] = totals.get(plane.role, 0) + plane.nbytes
    return totals


def nominal_bits(plane: Plane) -> int:
    """Bits of one stored element of a plane; 0 where its dtype has no fixed width."""
    return STORAGE_BITS.get(plane.dtype, 0)
