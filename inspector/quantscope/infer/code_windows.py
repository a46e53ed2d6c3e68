"""Raw bytes of a code plane by windows: how evenly bytes are used, and regions of one repeated byte."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.model import Plane

WINDOW_BYTES = 4096
BLANK_BYTES = 1024
"""A blank region is reported from this many equal bytes."""
WHOLE_BYTES = 4 << 20
SAMPLED_RUNS = 64
FEWEST_RUNS = 8
MANY_PLANES = 4096
"""Of more planes than this, fewer runs each are read: the sample of a checkpoint stays bounded, near 16 GiB."""
RUN_BYTES = 1 << 16
CHUNK_BYTES = 1 << 22

ODD_BYTES = (0x7C, 0x7D, 0x7E, 0x7F, 0x80, 0xFC, 0xFD, 0xFE, 0xFF)


class CodeWindows(msgspec.Struct, frozen=True, kw_only=True):
    """Byte statistics of one code plane.

    Entropies are in bits a byte over windows of `window_bytes`; offsets are absolute in the file.
    """

    stored_name: str
    file_id: int
    bytes_total: int
    bytes_examined: int
    window_bytes: int
    windows: int = 0
    entropy_median: float = 0.0
    entropy_quartile: float = 0.0
    """A quarter of the windows lie below."""
    entropy_highest: float = 0.0
    highest_at: int = 0
    entropy_lowest: float = 0.0
    lowest_at: int = 0
    spread: float = 0.0
    """Median distance of the lower half of the windows from the lower quartile."""
    entropy: float = 0.0
    """Entropy of all bytes examined together."""
    blank_bytes: int = 0
    blank_at: int = 0
    """First byte of the first blank region."""
    blank_until: int = 0
    """One past its last byte."""
    blank_value: int = 0
    odd_bytes: dict[str, int] = {}
    """How often each byte stands that is no finite number or -0 in some 8-bit float, by its hex word."""
    odd_at: dict[str, int] = {}
    """First place of each of them, absolute in the file."""


def runs_for(n_planes: int) -> int:
    """How many runs of a long plane are read in a checkpoint of so many planes."""
    return max(FEWEST_RUNS, min(SAMPLED_RUNS, SAMPLED_RUNS * MANY_PLANES // max(1, n_planes)))


def code_windows(
    plane: Plane, reader: PlaneReader, *, n_runs: int | None = SAMPLED_RUNS
) -> CodeWindows | None:
    """Statistics over the bytes of a code plane, for a field of block structs over the whole blocks.

    None where the bytes are not in one piece.

    Args:
        plane: the plane of codes.
        reader: bounded reads.
        n_runs: runs of 64 KiB to read of a plane of more than 4 MiB; None for every byte.
    """
    if len(plane.spans) != 1 or plane.nbytes <= 0:
        return None
    span = plane.spans[0]
    total = (span.count - 1) * span.stride_bytes + span.nbytes
    runs = _runs(total, n_runs)
    histogram = np.zeros(256, dtype=np.int64)
    entropies: list[Array] = []
    places: list[Array] = []
    blank = [0, 0, 0, 0]
    examined = 0
    odd_at: dict[str, int] = {}
    for start, length in runs:
        data = np.frombuffer(
            reader.read_bytes(plane.role, plane.file_id, plane.byte_offset + start, length),
            dtype=np.uint8,
        )
        examined += length
        counts = np.bincount(data, minlength=256)
        histogram += counts
        for byte in ODD_BYTES:
            if counts[byte] and f"{byte:02x}" not in odd_at:
                odd_at[f"{byte:02x}"] = plane.byte_offset + start + int(np.argmax(data == byte))
        _blank(data, plane.byte_offset + start, blank)
        whole = length // WINDOW_BYTES
        if whole:
            entropies.append(window_entropy(data[: whole * WINDOW_BYTES].reshape(whole, -1)))
            places.append(plane.byte_offset + start + np.arange(whole) * WINDOW_BYTES)
    result = CodeWindows(
        stored_name=plane.stored_name,
        file_id=plane.file_id,
        bytes_total=total,
        bytes_examined=examined,
        window_bytes=WINDOW_BYTES,
        entropy=float(_entropy(histogram[None, :])[0]),
        blank_bytes=blank[0],
        blank_at=blank[1],
        blank_until=blank[2],
        blank_value=blank[3],
        odd_bytes={f"{b:02x}": int(histogram[b]) for b in ODD_BYTES if histogram[b]},
        odd_at=odd_at,
    )
    if not entropies:
        return result
    values, at = np.concatenate(entropies), np.concatenate(places)
    median, quartile = float(np.median(values)), float(np.quantile(values, 0.25))
    lower = values[values <= median]
    return msgspec.structs.replace(
        result,
        windows=int(values.size),
        entropy_median=median,
        entropy_quartile=quartile,
        entropy_highest=float(values.max()),
        highest_at=int(at[int(values.argmax())]),
        entropy_lowest=float(values.min()),
        lowest_at=int(at[int(values.argmin())]),
        spread=float(np.median(np.abs(lower - quartile))),
    )


def _runs(total: int, n_runs: int | None) -> Iterator[tuple[int, int]]:
    """Offsets and lengths, one by one: a header may claim more bytes than a list of them could hold."""
    if n_runs is None or total <= WHOLE_BYTES:
        for start in range(0, total, CHUNK_BYTES):
            yield start, min(CHUNK_BYTES, total - start)
        return
    for number in range(n_runs):
        start = number * (total - RUN_BYTES) // (n_runs - 1)
        yield start // WINDOW_BYTES * WINDOW_BYTES, RUN_BYTES


def window_entropy(windows: Array) -> Array:
    """Entropy in bits a byte of each row of a uint8 [W, B] array."""
    count = windows.shape[0]
    shifted = windows.astype(np.int32) + (np.arange(count, dtype=np.int32) * 256)[:, None]
    histograms = np.bincount(shifted.ravel(), minlength=count * 256).reshape(count, 256)
    return _entropy(histograms)


def _entropy(histograms: Array) -> Array:
    total = histograms.sum(axis=1, keepdims=True)
    share = histograms / np.maximum(total, 1)
    logs = np.log2(share, out=np.zeros_like(share), where=share > 0)
    entropy: Array = -(share * logs).sum(axis=1)
    return entropy


def blank_runs(data: Array) -> list[tuple[int, int]]:
    """Stretches of one repeated byte of `BLANK_BYTES` and more, as [start, stop), in order.

    Each holds an aligned piece of half the size; only pieces that are blank are looked at closer.
    """
    piece = BLANK_BYTES // 2
    pieces = data.size // piece
    rows = data[: pieces * piece].reshape(pieces, piece)
    numbers = np.flatnonzero((rows == rows[:, :1]).all(axis=1)) if pieces else np.zeros(0, int)
    found: list[tuple[int, int]] = []
    for number in numbers.tolist():
        start = number * piece
        if found and start < found[-1][1]:
            continue
        stop, value = start + piece, data[start]
        start -= _equal(data[max(0, start - piece) : start][::-1], value)
        while stop < data.size:
            step = _equal(data[stop : stop + CHUNK_BYTES], value)
            stop += step
            if step < CHUNK_BYTES:
                break
        found.append((start, stop))
    return [(start, stop) for start, stop in found if stop - start >= BLANK_BYTES]


def _equal(data: Array, value: int) -> int:
    """How many values at the front equal a value."""
    other = data != value
    return int(np.argmax(other)) if other.any() else int(data.size)


def _blank(data: Array, base: int, found: list[int]) -> None:
    """Add the blank bytes of a stretch to [bytes, first region's start, its stop, value]."""
    for start, stop in blank_runs(data):
        if not found[0]:
            found[1:] = [base + start, base + stop, int(data[start])]
        elif found[2] == base + start and found[3] == data[start]:
            found[2] = base + stop
        found[0] += stop - start
