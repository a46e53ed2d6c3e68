"""Values of one scale-like plane, read whole or by fixed stretches: odd values, extremes, where they lie.

Planes that are fields of block structs (strided spans) are read together with their blocks; of large ones
only stretches spread evenly over the tensor are read, unless everything is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import STORAGE, PlaneReader, to_float32
from quantscope.model import Plane

CHUNK_ELEMENTS = 1 << 20
MAX_MAGNITUDES = 4096
"""Values a chunk contributes to the median."""

WHOLE_BLOCK_BYTES = 2 << 20
"""Block tensors up to this size are read whole by default."""
STRETCHES = 16
STRETCH_BYTES = 1 << 16
"""Of larger ones, this many stretches of about this many bytes are read by default."""

NUMBER_WORDS = {
    "e8m0": "F8_E8M0",
    "e4m3": "F8_E4M3",
    "e4m3fn": "F8_E4M3",
    "ue4m3": "F8_E4M3",
    "e5m2": "F8_E5M2",
}
"""Scale format words that give meaning to planes stored as plain bytes."""

SMALLEST_NORMAL = {
    "F16": 2.0**-14,
    "BF16": 2.0**-126,
    "F32": 2.0**-126,
    "F8_E4M3": 2.0**-6,
    "F8_E5M2": 2.0**-14,
}

KINDS = ("nan", "inf", "zero", "negative", "subnormal")


class PlaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the values of one scale-like plane look like.

    `first` gives the flat index, `first_byte` the absolute byte offset, of the first value of each odd kind
    (nan, inf, zero, negative, subnormal, largest). Extremes and median are over finite values, by
    magnitude; the median is over magnitudes that are not zero. `constant` is the value where every value
    examined is the same.
    """

    role: str
    suffix: str
    stored_name: str
    dtype: str
    """Number format under which the values were read."""
    total: int
    examined: int
    """Values read that count; padding does not."""
    nan: int = 0
    inf: int = 0
    zero: int = 0
    negative: int = 0
    subnormal: int = 0
    smallest: float | None = None
    """Smallest magnitude that is not zero."""
    largest: float | None = None
    median: float | None = None
    quartile: float | None = None
    """Upper quartile of the magnitudes."""
    constant: float | None = None
    mantissas: int = 0
    """Values that are no power of two."""
    item_bytes: int = 0
    file_id: int = -1
    first: dict[str, int] = {}
    first_byte: dict[str, int] = {}


def number_format(plane: Plane, word: str) -> str:
    """The stored dtype word under which a plane's bytes are numbers.

    Args:
        plane: the plane.
        word: the scale format that the reading gives it; decides where the plane is stored as bytes.
    """
    if plane.dtype in ("U8", "I8"):
        return NUMBER_WORDS.get(word, plane.dtype)
    return plane.dtype


Mask = Callable[[Array], Array | None]
"""Which of some values, by their flat numbers in the plane, count; None for all."""


def plane_stats(
    plane: Plane,
    reader: PlaneReader,
    *,
    word: str = "",
    everything: bool = True,
    mask: Mask | None = None,
) -> PlaneStats:
    """Statistics over the values of a plane, read in bounded pieces.

    Args:
        plane: a plane of whole-byte elements, contiguous or strided.
        reader: bounded reads.
        word: the scale format under the reading, for planes stored as bytes.
        everything: read every value even of large block tensors.
        mask: tells values from padding by their flat numbers; every value counts by default.
    """
    dtype = number_format(plane, word)
    tally = _Tally(plane, dtype)
    for index, offsets, values in _pieces(plane, reader, everything):
        counted = None
        if mask is not None:
            counted = mask(np.arange(index, index + values.size, dtype=np.int64))
        tally.add(index, offsets, values, counted)
    return tally.result()


def _pieces(
    plane: Plane, reader: PlaneReader, everything: bool
) -> Iterator[tuple[int, Array | None, Array]]:
    """(flat index of the first value, absolute offsets or None where contiguous, stored values)."""
    code = STORAGE[plane.dtype]
    item = int(code[1:])
    stored = np.dtype((">" if plane.byte_order == "big" else "<") + code)
    index = 0
    for span in plane.spans:
        per_run = span.nbytes // item
        if span.count == 1:
            for start in range(0, per_run, CHUNK_ELEMENTS):
                count = min(CHUNK_ELEMENTS, per_run - start)
                data = reader.read_bytes(
                    plane.role, span.file_id, span.byte_offset + start * item, count * item
                )
                yield index + start, None, np.frombuffer(data, dtype=stored)
            index += per_run
            continue
        for first, count in _stretches(span.count, span.stride_bytes, everything):
            begin = span.byte_offset + first * span.stride_bytes
            length = (count - 1) * span.stride_bytes + span.nbytes
            data = reader.read_bytes(plane.role, span.file_id, begin, length)
            raw = np.frombuffer(data, dtype=np.uint8)
            rows = np.lib.stride_tricks.as_strided(
                raw, shape=(count, per_run * item), strides=(span.stride_bytes, 1), writeable=False
            )
            values = np.ascontiguousarray(rows).view(stored)
            offsets = begin + np.arange(count, dtype=np.int64)[:, None] * span.stride_bytes
            offsets = (offsets + np.arange(per_run, dtype=np.int64) * item).ravel()
            yield index + first * per_run, offsets, values.ravel()
        index += per_run * span.count


def _stretches(count: int, stride: int, everything: bool) -> Iterator[tuple[int, int]]:
    step = max(1, CHUNK_ELEMENTS * 4 // max(1, stride))
    if everything or count * stride <= WHOLE_BLOCK_BYTES:
        for first in range(0, count, step):
            yield first, min(step, count - first)
        return
    length = max(1, STRETCH_BYTES // stride)
    for number in range(STRETCHES):
        first = number * (count - length) // (STRETCHES - 1)
        yield first, length


class _Tally:
    """Sums over the pieces of one plane."""

    def __init__(self, plane: Plane, dtype: str) -> None:
        self.plane = plane
        self.dtype = dtype
        self.counts = dict.fromkeys(KINDS, 0)
        self.first: dict[str, int] = {}
        self.first_byte: dict[str, int] = {}
        self.magnitudes: list[Array] = []
        self.smallest: float | None = None
        self.largest: float | None = None
        self.low: float | None = None
        self.high: float | None = None
        self.mantissas = 0
        self.examined = 0
        self.item = int(STORAGE[plane.dtype][1:])
        self.kept: Array | None = None

    def add(
        self, index: int, offsets: Array | None, stored: Array, counted: Array | None = None
    ) -> None:
        """Count one piece of stored values, or those of it that `counted` marks."""
        if counted is not None and not counted.all():
            kept = np.flatnonzero(counted)
            if offsets is None:
                offsets = self.plane.byte_offset + (index + kept) * self.item
            else:
                offsets = offsets[kept]
            stored, self.kept = stored[kept], kept
        else:
            self.kept = None
        native = stored if stored.dtype.isnative else stored.astype(stored.dtype.newbyteorder("="))
        values = to_float32(native, self.dtype)
        self.examined += values.size
        if not values.size:
            return
        magnitude = np.abs(values)
        finite = np.isfinite(values)
        limit = np.float32(SMALLEST_NORMAL.get(self.dtype, 0.0))
        masks = {
            "nan": np.isnan(values),
            "inf": np.isinf(values),
            "zero": values == 0,
            "negative": values < 0,
            "subnormal": finite & (magnitude > 0) & (magnitude < limit),
        }
        if self.dtype == "F8_E8M0":
            masks["subnormal"] = native == 0
        for kind, mask in masks.items():
            hits = int(np.count_nonzero(mask))
            if hits:
                self.counts[kind] += hits
                self._place(kind, index, offsets, int(np.argmax(mask)), keep=True)
        live = magnitude[finite & (magnitude > 0)]
        if live.size:
            lowest, highest = float(live.min()), float(live.max())
            self.smallest = lowest if self.smallest is None else min(self.smallest, lowest)
            if self.largest is None or highest > self.largest:
                self.largest = highest
                at = int(np.argmax(np.where(finite, magnitude, -1)))
                self._place("largest", index, offsets, at, keep=False)
            self.magnitudes.append(live[:: max(1, live.size // MAX_MAGNITUDES)])
            self.mantissas += int(np.count_nonzero(np.frexp(live)[0] != 0.5))
        low, high = float(np.fmin.reduce(values)), float(np.fmax.reduce(values))
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def _place(self, kind: str, index: int, offsets: Array | None, at: int, *, keep: bool) -> None:
        if keep and kind in self.first:
            return
        self.first[kind] = index + (at if self.kept is None else int(self.kept[at]))
        if offsets is not None:
            self.first_byte[kind] = int(offsets[at])
        else:
            self.first_byte[kind] = self.plane.byte_offset + (index + at) * self.item

    def result(self) -> PlaneStats:
        """The statistics."""
        plane = self.plane
        sample = np.concatenate(self.magnitudes) if self.magnitudes else None
        same = self.low is not None and self.low == self.high
        clean = not self.counts["nan"]
        return PlaneStats(
            role=plane.role,
            suffix=plane.suffix,
            stored_name=plane.stored_name,
            dtype=self.dtype,
            total=plane.nbytes // self.item,
            examined=self.examined,
            smallest=self.smallest,
            largest=self.largest,
            median=float(np.median(sample)) if sample is not None else None,
            quartile=float(np.quantile(sample, 0.75)) if sample is not None else None,
            constant=self.low if same and clean else None,
            mantissas=self.mantissas,
            item_bytes=self.item,
            file_id=plane.file_id,
            first=self.first,
            first_byte=self.first_byte,
            **self.counts,
        )
