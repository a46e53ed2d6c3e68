"""Stacks of experts: one plane set whose leading axis counts experts, one logical tensor each."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.families.index import TensorIndex
from quantscope.model import Plane, Role, Slice

MAX_EXPERTS = 4096
"""A longer leading axis is no expert stack."""


def experts(shape: tuple[int, ...], rank: int = 2) -> Iterator[Slice | None]:
    """One part per expert of a code plane with one axis more than `rank`; a single None otherwise."""
    if len(shape) == rank + 1 and 0 < shape[0] <= MAX_EXPERTS:
        for number in range(shape[0]):
            yield Slice(kind="expert", index=number, count=shape[0])
    else:
        yield None


def part_plane(
    index: TensorIndex, role: Role, module: str, suffix: str, part: Slice | None
) -> Plane | None:
    """The plane `module.suffix`, or the expert's slice of it where its leading axis counts the experts."""
    stored = index.get(module, suffix)
    if stored is None:
        return None
    if part is None or not stored.shape or stored.shape[0] != part.count:
        return index.plane_of(role, stored, suffix)
    shape = stored.shape[1:]
    size = 1
    for extent in shape:
        size *= extent
    return index.plane_of(role, stored, suffix, shape=shape, element_offset=part.index * size)


def part_name(name: str, part: Slice | None) -> str:
    """The logical name: `experts.gate_up_proj.weight[3]` for expert 3."""
    return name if part is None else f"{name}[{part.index}]"
