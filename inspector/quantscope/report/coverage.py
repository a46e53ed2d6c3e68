"""How many bytes of each kind of plane an inspection read, out of how many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantscope.decode.ledger import Ranges, ReadLedger
from quantscope.model import LogicalTensor, Span
from quantscope.report.schema import PlaneBytes


def plane_coverage(tensors: Iterable[LogicalTensor], ledger: ReadLedger) -> dict[str, PlaneBytes]:
    """Bytes of distinct planes by role, and how many of them lie in ranges that were read."""
    spans: dict[int, dict[tuple[int, int, int, int], tuple[str, Span]]] = {}
    for tensor in tensors:
        for plane in tensor.planes:
            for span in plane.spans:
                key = (span.byte_offset, span.nbytes, span.count, span.stride_bytes)
                spans.setdefault(span.file_id, {}).setdefault(key, (plane.role, span))
    totals: dict[str, list[int]] = {}
    for file_id, of_file in spans.items():
        ranges = ledger.ranges(file_id)
        for role, span in of_file.values():
            count = totals.setdefault(role, [0, 0])
            count[0] += span.total_bytes
            count[1] += covered_bytes(span, ranges)
    return {
        role: PlaneBytes(bytes_total=total, bytes_read=read)
        for role, (total, read) in sorted(totals.items())
    }


def covered_bytes(span: Span, ranges: Ranges) -> int:
    """Bytes of a span that lie in sorted, disjoint ranges [n, 2]."""
    end = span.byte_offset + (span.count - 1) * span.stride_bytes + span.nbytes
    first = int(np.searchsorted(ranges[:, 1], span.byte_offset, side="right"))
    last = int(np.searchsorted(ranges[:, 0], end, side="left"))
    inside = ranges[first:last]
    return int((_bytes_before(span, inside[:, 1]) - _bytes_before(span, inside[:, 0])).sum())


def _bytes_before(span: Span, positions: NDArray[np.int64]) -> NDArray[Any]:
    """Bytes of a strided span that lie before each file position."""
    distance = np.maximum(positions - span.byte_offset, 0)
    if span.count == 1 or not span.stride_bytes:
        return np.minimum(distance, span.total_bytes)
    runs, rest = np.divmod(distance, span.stride_bytes)
    held = runs * span.nbytes + np.minimum(rest, span.nbytes)
    return np.where(runs >= span.count, span.total_bytes, held)
