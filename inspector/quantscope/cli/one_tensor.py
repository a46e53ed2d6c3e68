"""One tensor with its contract, and the reading that a person asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from quantscope.cli import running
from quantscope.closest import closest
from quantscope.errors import NoSuchTensorError
from quantscope.session.what_if import chosen_reading, reading_in_force

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.model import Plane
    from quantscope.session.inspection import Inspection, TensorState

SET_MEMBERS = 64
"""Tensors of the same family that are looked at beside the one, so that evidence over a set speaks."""


__all__ = ["OneTensor", "chosen_reading", "opened_tensor", "plane_of", "reading_in_force"]


class OneTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor in its opened checkpoint."""

    checkpoint: Checkpoint
    inspection: Inspection
    state: TensorState


@contextmanager
def opened_tensor(path: str, name: str) -> Iterator[OneTensor]:
    """A tensor by any of its names, examined by sample together with others of its family.

    Raises:
        NoSuchTensorError: no tensor has the name.
    """
    from quantscope.session.pipeline import inspect

    with running.opened(path) as checkpoint:
        tensor = checkpoint.find(name)
        mates = [t.name for t in checkpoint.grouping.tensors if t.family == tensor.family]
        step = max(1, -(-len(mates) // SET_MEMBERS))
        inspection = inspect(checkpoint, only={tensor.name, *mates[::step]})
        state = inspection.state(tensor.name)
        yield OneTensor(checkpoint=checkpoint, inspection=inspection, state=state)


def plane_of(state: TensorState, name: str) -> Plane:
    """A plane by role, suffix or stored name.

    Raises:
        NoSuchTensorError: the tensor has no such plane; the hint lists those it has.
    """
    tensor = state.tensor
    for plane in tensor.planes:
        if name in (plane.role, plane.suffix, plane.stored_name):
            return plane
    known = ", ".join(f"{plane.role} ({plane.suffix})" for plane in tensor.planes)
    near = closest(
        name, [word for plane in tensor.planes for word in (plane.suffix, plane.role)], 1
    )
    hint = f"its planes: {known}" + (f"; closest: {near[0]}" if near else "")
    raise NoSuchTensorError(f"{tensor.name} has no plane {name}", hint=hint, source=tensor.name)
