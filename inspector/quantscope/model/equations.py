"""Plane size equations: what a reading demands of a plane and what is stored."""

from __future__ import annotations

import msgspec


class Equation(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of one reading on one plane.

    `symbolic` and `substituted` are for people, e.g. `int32 [K*b/32, N]` and `[576*4/32, 1536]`.
    `expected_bytes` is None where the reading puts no demand on the plane. `holds` compares shape and
    bytes, not bytes alone; None where nothing was demanded.
    """

    plane: str
    symbolic: str
    substituted: str
    expected_shape: tuple[int, ...] | None
    actual_shape: tuple[int, ...] | None
    expected_bytes: int | None
    actual_bytes: int | None
    holds: bool | None
    note: str = ""
