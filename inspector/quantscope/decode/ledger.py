"""What was read of which file: bytes by plane role, and exact ranges in little memory.

A window of a plane whose rows lie far apart is thousands of short reads at one stride; each such run is one record,
repeated reads are kept once, and single ranges come out only for the file that is asked about. A scan of 25 000
modules would need gigabytes for a list of its reads.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ranges = NDArray[np.int64]
"""[n, 2]: start and stop of each range, sorted, disjoint, none touching the next."""

_PENDING = 1024
"""Records of a file that are held one by one before they join its array."""


class ReadLedger:
    """Reads of a job; `bytes_by_role` counts every delivery, `ranges` says once what was seen."""

    def __init__(self) -> None:
        self.bytes_by_role: dict[str, int] = defaultdict(int)
        self._pending: dict[int, list[tuple[int, int, int, int]]] = {}
        self._kept: dict[int, NDArray[np.int64]] = {}

    def add(
        self,
        role: str,
        file_id: int,
        byte_offset: int,
        nbytes: int,
        count: int = 1,
        stride_bytes: int = 0,
    ) -> None:
        """Record `count` runs of `nbytes` bytes whose starts lie `stride_bytes` apart."""
        self.bytes_by_role[role] += nbytes * count
        pending = self._pending.setdefault(file_id, [])
        if pending and count == 1:
            start, last, runs, _ = pending[-1]
            if runs == 1 and start <= byte_offset <= start + last:
                pending[-1] = (start, max(last, byte_offset + nbytes - start), 1, 0)
                return
        pending.append((byte_offset, nbytes, count, stride_bytes))
        if len(pending) >= _PENDING:
            self._settle(file_id)

    def files(self) -> set[int]:
        """Files of which anything was read."""
        return set(self._pending) | set(self._kept)

    def ranges(self, file_id: int) -> Ranges:
        """Everything that was read of a file."""
        records = self._settle(file_id)
        counts = records[:, 2]
        first = np.cumsum(counts) - counts
        step = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(first, counts)
        starts = np.repeat(records[:, 0], counts) + step * np.repeat(records[:, 3], counts)
        return merge_ranges(starts, starts + np.repeat(records[:, 1], counts))

    def _settle(self, file_id: int) -> NDArray[np.int64]:
        kept = self._kept.get(file_id, np.zeros((0, 4), np.int64))
        pending = self._pending.pop(file_id, None)
        if pending:
            joined = np.concatenate((kept, np.array(pending, np.int64).reshape(-1, 4)))
            kept = self._kept[file_id] = np.unique(joined, axis=0)
        return kept


def merge_ranges(starts: NDArray[Any], stops: NDArray[Any]) -> Ranges:
    """Sort ranges and join those that touch or overlap.

    Args:
        starts: [n] first bytes.
        stops: [n] one past the last bytes.
    """
    if not len(starts):
        return np.zeros((0, 2), np.int64)
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(stops[order])
    opens = np.concatenate(([True], starts[1:] > reach[:-1]))
    ends = np.concatenate((np.flatnonzero(opens)[1:] - 1, [len(starts) - 1]))
    return np.stack((starts[opens], reach[ends]), axis=1).astype(np.int64)
