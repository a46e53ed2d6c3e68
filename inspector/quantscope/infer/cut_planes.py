"""Planes that reach past the end of their file: their sizes are what a header says, not what is stored."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quantscope.infer.solver import Solved
from quantscope.model import Equation, LogicalTensor, Plane, Span

SizeOf = Callable[[int], int]
"""Size in bytes of a file by its id."""


def missing_bytes(plane: Plane, size_of: SizeOf) -> int:
    """Bytes of a plane that lie past the end of their file."""
    return sum(_missing(span, size_of(span.file_id)) for span in plane.spans)


def _missing(span: Span, size: int) -> int:
    stride = span.stride_bytes or span.nbytes
    if span.byte_offset + (span.count - 1) * stride + span.nbytes <= size:
        return 0
    if span.count == 1 or not stride:
        return min(span.total_bytes, span.byte_offset + span.total_bytes - size)
    whole_runs = max(0, min(span.count, (size - span.byte_offset - span.nbytes) // stride + 1))
    start = span.byte_offset + whole_runs * stride
    there = max(0, min(span.nbytes, size - start)) if whole_runs < span.count else 0
    return span.total_bytes - whole_runs * span.nbytes - there


def missing_by_plane(tensor: LogicalTensor, size_of: SizeOf) -> dict[str, int]:
    """Suffix -> bytes past the end, of the planes that are cut."""
    found = {plane.suffix: missing_bytes(plane, size_of) for plane in tensor.planes}
    return {suffix: count for suffix, count in found.items() if count}


def with_cuts(solved: Solved, tensor: LogicalTensor, missing: dict[str, int]) -> Solved:
    """The equations in force with what is really stored: over a cut plane none holds.

    Which readings solve the sizes stays as it is: the header's shapes say that, cut or not.
    """
    if not missing:
        return solved
    equations = tuple(_cut(equation, tensor, missing) for equation in solved.equations)
    return msgspec.structs.replace(solved, equations=equations)


def _cut(equation: Equation, tensor: LogicalTensor, missing: dict[str, int]) -> Equation:
    plane = tensor.plane_named(equation.plane)
    absent = sum(missing.values()) if plane is None else missing.get(plane.suffix, 0)
    if not absent or equation.holds is None or equation.actual_bytes is None:
        return equation
    stored = equation.actual_bytes
    note = f"{absent} of {stored} bytes lie past the end of the file"
    if equation.note:
        note = f"{equation.note}; {note}"
    return msgspec.structs.replace(
        equation, holds=False, actual_bytes=max(0, stored - absent), note=note
    )
