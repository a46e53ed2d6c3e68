"""How many bytes of each kind of plane an inspection read, out of how many."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from quantscope.decode.plane_reader import ReadLedger
from quantscope.model import LogicalTensor, Span
from quantscope.report.schema import PlaneBytes

Range = tuple[int, int]


def plane_coverage(tensors: Iterable[LogicalTensor], ledger: ReadLedger) -> dict[str, PlaneBytes]:
    """Bytes of distinct planes by role, and how many of them lie in ranges that were read."""
    totals: dict[str, list[int]] = {}
    seen: set[tuple[int, int, int, int, int]] = set()
    ranges: dict[int, tuple[list[Range], list[int]]] = {}
    for tensor in tensors:
        for plane in tensor.planes:
            for span in plane.spans:
                key = (
                    span.file_id,
                    span.byte_offset,
                    span.nbytes,
                    span.count,
                    span.stride_bytes,
                )
                if key in seen:
                    continue
                seen.add(key)
                if span.file_id not in ranges:
                    merged = ledger.merged(span.file_id)
                    ranges[span.file_id] = (merged, [stop for _, stop in merged])
                count = totals.setdefault(plane.role, [0, 0])
                count[0] += span.total_bytes
                count[1] += covered_bytes(span, *ranges[span.file_id])
    return {
        role: PlaneBytes(bytes_total=total, bytes_read=read)
        for role, (total, read) in sorted(totals.items())
    }


def covered_bytes(span: Span, ranges: Sequence[Range], stops: Sequence[int]) -> int:
    """Bytes of a span that lie in sorted, disjoint ranges; `stops` are the ranges' ends."""
    end = span.byte_offset + (span.count - 1) * span.stride_bytes + span.nbytes
    covered = 0
    for position in range(bisect.bisect_right(stops, span.byte_offset), len(ranges)):
        start, stop = ranges[position]
        if start >= end:
            break
        covered += _bytes_before(span, stop) - _bytes_before(span, start)
    return covered


def _bytes_before(span: Span, position: int) -> int:
    """Bytes of a strided span that lie before a file position."""
    distance = position - span.byte_offset
    if distance <= 0:
        return 0
    if span.count == 1 or not span.stride_bytes:
        return min(distance, span.total_bytes)
    runs, rest = divmod(distance, span.stride_bytes)
    if runs >= span.count:
        return span.total_bytes
    return runs * span.nbytes + min(rest, span.nbytes)
