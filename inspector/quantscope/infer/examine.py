"""Look at the bytes of one tensor: its scale-like planes whole, its codes by sample."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader, plane_2d
from quantscope.decode.sampling import sample_windows, total_groups
from quantscope.decode.window import window_parts
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.families.protocol import Family
from quantscope.infer.zero_convention import ZeroTally, tally
from quantscope.model import LogicalTensor, Plane, Reading

FLOAT_PLANES = frozenset(
    {"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
)
VALUE_ROLES = frozenset({"scale", "scale2", "zero", "minimum"})
CHUNK_ELEMENTS = 1 << 20

_SMALLEST_NORMAL = {
    "F16": 2.0**-14,
    "BF16": 2.0**-126,
    "F32": 2.0**-126,
    "F8_E4M3": 2.0**-6,
    "F8_E5M2": 2.0**-14,
}


class PlaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the values of one scale-like plane look like.

    `first` gives the flat index of the first value of each odd kind (nan, inf, zero, negative,
    subnormal). Extremes and median are over finite values, by magnitude.
    """

    role: str
    suffix: str
    stored_name: str
    dtype: str
    total: int
    examined: int
    nan: int = 0
    inf: int = 0
    zero: int = 0
    negative: int = 0
    subnormal: int = 0
    smallest: float | None = None
    largest: float | None = None
    median: float | None = None
    distinct_hint: int | None = None
    """1 where every value examined is equal, else None."""
    first: dict[str, int] = {}


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
    """Sampled groups whose scale is zero although their codes are not all at the zero point."""


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read of one tensor's bytes."""

    planes: tuple[PlaneStats, ...] = ()
    codes: CodeStats | None = None
    error: str | None = None


def examine(
    family: Family,
    tensor: LogicalTensor,
    reading: Reading | None,
    reader: PlaneReader,
    n_groups: int | None,
) -> Examination:
    """Read the scale-like planes and a sample of codes of one tensor.

    Args:
        family: the tensor's family.
        tensor: the logical tensor.
        reading: the reading to unpack codes under; None where no reading exists.
        reader: bounded reads with a ledger.
        n_groups: groups to sample; None for every code.
    """
    planes: list[PlaneStats] = []
    errors: list[str] = []
    for plane in tensor.planes:
        if plane.role in VALUE_ROLES and plane.dtype in FLOAT_PLANES and len(plane.spans) == 1:
            try:
                planes.append(plane_stats(plane, reader, _runs_to_read(plane, reading, n_groups)))
            except CancelledError:
                raise
            except QuantscopeError as problem:
                errors.append(problem.message)
    codes: CodeStats | None = None
    if reading is not None and family.undecodable(tensor) is None:
        try:
            codes = code_stats(family, tensor, reading, reader, n_groups)
        except CancelledError:
            raise
        except QuantscopeError as problem:
            errors.append(problem.message)
    return Examination(planes=tuple(planes), codes=codes, error="; ".join(errors) or None)


def _runs_to_read(
    plane: Plane, reading: Reading | None, n_groups: int | None
) -> Sequence[range] | None:
    """Rows of a plane to look at; None for all.

    A field of a block struct cannot be read without the codes around it, so its runs are sampled where
    codes are.
    """
    if plane.spans[0].count == 1 or reading is None or n_groups is None:
        return None
    n_runs, n_rows = plane_2d(plane)[0], max(1, reading.shape[-2])
    per_row = n_runs // n_rows
    return [
        range(window.rows.start * per_row, window.rows.stop * per_row)
        for window in sample_windows(reading, n_groups)
    ]


def plane_stats(
    plane: Plane, reader: PlaneReader, runs: Sequence[range] | None = None
) -> PlaneStats:
    """Statistics over the values of a float plane, read in bounded pieces.

    Args:
        plane: a plane with one span and a float dtype.
        reader: bounded reads.
        runs: rows to look at; all by default.
    """
    n_rows, n_cols = plane_2d(plane)
    row_bytes = max(1, n_cols, plane.spans[0].stride_bytes)
    step = max(1, CHUNK_ELEMENTS // row_bytes)
    pieces = [
        range(start, min(start + step, run.stop))
        for run in (runs if runs is not None else [range(n_rows)])
        for start in range(run.start, run.stop, step)
    ]
    counts = dict.fromkeys(("nan", "inf", "zero", "negative", "subnormal"), 0)
    first: dict[str, int] = {}
    magnitudes: list[Array] = []
    smallest: float | None = None
    largest: float | None = None
    low = high = None
    examined = 0
    for piece in pieces:
        values = reader.floats(plane, piece).ravel()
        examined += values.size
        finite = _count(values, plane.dtype, piece.start * n_cols, counts, first)
        if finite.size:
            smallest = (
                float(finite.min()) if smallest is None else min(smallest, float(finite.min()))
            )
            largest = float(finite.max()) if largest is None else max(largest, float(finite.max()))
            magnitudes.append(finite[:: max(1, finite.size // 4096)])
        if values.size:
            low = values.min() if low is None else min(low, values.min())
            high = values.max() if high is None else max(high, values.max())
    return PlaneStats(
        role=plane.role,
        suffix=plane.suffix,
        stored_name=plane.stored_name,
        dtype=plane.dtype,
        total=n_rows * n_cols,
        examined=examined,
        smallest=smallest,
        largest=largest,
        median=float(np.median(np.concatenate(magnitudes))) if magnitudes else None,
        distinct_hint=1 if low is not None and low == high else None,
        first=first,
        **counts,
    )


def _count(
    values: Array, dtype: str, base: int, counts: dict[str, int], first: dict[str, int]
) -> Array:
    """Count odd values into `counts` and `first`; returns magnitudes of the finite ones."""
    magnitude = np.abs(values)
    finite = np.isfinite(values)
    limit = np.float32(_SMALLEST_NORMAL.get(dtype, 0.0))
    kinds = {
        "nan": np.isnan(values),
        "inf": np.isinf(values),
        "zero": values == 0,
        "negative": values < 0,
        "subnormal": finite & (magnitude > 0) & (magnitude < limit),
    }
    for kind, mask in kinds.items():
        hits = int(np.count_nonzero(mask))
        if hits:
            counts[kind] += hits
            first.setdefault(kind, base + int(np.argmax(mask)))
    kept: Array = magnitude[finite]
    return kept


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
    rows = constant = elements = dead = 0
    per_row = max(1, total_groups(reading) // max(1, reading.shape[-2]))
    for window in sample_windows(reading, n_groups):
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
            counts = np.bincount(
                np.clip(shifted, 0, histogram.size - 1).ravel(), minlength=histogram.size
            )
            histogram += counts[: histogram.size]
        if parts.stored_zero is not None:
            zero = zero.joined(tally(parts, bits))
        dead += _zero_scale_live(parts)
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
    )


def _zero_scale_live(parts: Parts) -> int:
    if not parts.scale or parts.group_of_column.ndim != 1:
        return 0
    scale = np.asarray(parts.scale[0])
    if not (scale == 0).any():
        return 0
    spread = np.broadcast_to(parts.per_element(scale), parts.codes.shape)
    live = parts.codes != (
        parts.per_element(np.asarray(parts.zero)) if parts.zero is not None else 0
    )
    return int(((spread == 0) & live).any(axis=1).sum())


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
