"""Planes beside codes and scales: how g_idx assigns channels, and which zero points are stored."""

from __future__ import annotations

import msgspec
import numpy as np

from quantscope.decode import bits
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.model import Plane, Reading

MAX_INDEX_ELEMENTS = 1 << 22
MAX_ZERO_BYTES = 64 << 20


class IndexStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a g_idx plane holds."""

    stored_name: str
    length: int
    lowest: int
    highest: int
    monotone: bool
    natural: bool
    """Whether channel k belongs to group k // g for the g that fits."""
    group_size: int
    """Channels of the most used group."""
    uneven_groups: int
    """Groups below the highest that do not hold `group_size` channels (the last may be smaller)."""
    groups_used: int
    constant: bool


class ZeroPlane(msgspec.Struct, frozen=True, kw_only=True):
    """Zero points as stored, over a whole packed plane.

    Padding fields at the end of the output channels are left out where the plane is packed along them; elsewhere
    counts can include padding, which is zero.
    """

    stored_name: str
    bit_width: int
    histogram: tuple[int, ...]
    fields: int

    @property
    def all_ones(self) -> int:
        """Fields with every bit set."""
        return self.histogram[-1]

    @property
    def zeros(self) -> int:
        """Fields with no bit set."""
        return self.histogram[0]


def index_stats(plane: Plane, reader: PlaneReader) -> IndexStats | None:
    """Statistics of a 1-D integer g_idx plane; None where it is none or too large."""
    if len(plane.shape) != 1 or not 0 < plane.shape[0] <= MAX_INDEX_ELEMENTS:
        return None
    values = reader.read(plane)[0].astype(np.int64)
    lowest, highest = int(values.min()), int(values.max())
    used, counts = np.unique(values, return_counts=True)
    size = int(counts.max())
    inner = counts[used != highest] if used.size > 1 else counts
    natural = bool((values == np.arange(values.size) // size).all())
    return IndexStats(
        stored_name=plane.stored_name,
        length=int(values.size),
        lowest=lowest,
        highest=highest,
        monotone=bool((np.diff(values) >= 0).all()),
        natural=natural,
        group_size=size,
        uneven_groups=int((inner != size).sum()),
        groups_used=int(used.size),
        constant=lowest == highest,
    )


def zero_plane(plane: Plane, reading: Reading, reader: PlaneReader) -> ZeroPlane | None:
    """Histogram of the stored zero points of a packed plane; None where its packing has no plain fields."""
    width = reading.bit_width
    word_bits = STORAGE_BITS.get(plane.dtype, 0)
    packable = plane.dtype in ("I32", "U32", "I16", "I64", "U8", "I8")
    if not packable or not 0 < width <= 8 or plane.nbytes > MAX_ZERO_BYTES or not plane.shape:
        return None
    unpacked = word_bits == 8 and width < 8
    if unpacked or (word_bits % width and reading.packing.order != "bitstream"):
        return None
    words = reader.read(plane)
    if word_bits % width == 0:
        fields = bits.unpack_words(words, width, axis=-1)
    elif word_bits == 32 and words.shape[-1] % width == 0:
        fields = bits.unpack_bitstream(words, width, axis=-1, count=words.shape[-1] * 32 // width)
    else:
        return None
    n_out = reading.shape[-2]
    if reading.packing.order != "planar" and words.shape[-1] == -(-n_out * width // word_bits):
        fields = fields[
            ..., :n_out
        ]  # writers that subtract one from whole words leave all-ones padding
    histogram = np.bincount(fields.ravel().astype(np.int64), minlength=1 << width)
    return ZeroPlane(
        stored_name=plane.stored_name,
        bit_width=width,
        histogram=tuple(int(n) for n in histogram),
        fields=int(fields.size),
    )
