"""Formats whose planes and sizes are known but whose codes no proved rule turns into weights."""

from __future__ import annotations

from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import UndecodableError
from quantscope.families.base import FamilyBase
from quantscope.families.index import TensorIndex
from quantscope.model import Cell, LogicalTensor, Orphan, Plane, Reading, Role


class Listed(FamilyBase):
    """Recognised, sized, its scales checked; `reason` says why nothing is decoded."""

    reason = ""

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """The reason of the format."""
        return self.reason

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Nothing is decoded.

        Raises:
            UndecodableError: always.
        """
        raise UndecodableError(f"{tensor.name}: {self.undecodable(tensor)}", source=tensor.name)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Where an element lies is not known either.

        Raises:
            UndecodableError: always.
        """
        raise UndecodableError(f"{tensor.name}: {self.undecodable(tensor)}", source=tensor.name)


def planes_of(index: TensorIndex, module: str, roles: dict[str, Role]) -> tuple[Plane, ...]:
    """Planes stored under a module, by suffix, in the order given."""
    found = (index.plane(role, module, suffix) for suffix, role in roles.items())
    return tuple(plane for plane in found if plane is not None)


def orphans_of(
    index: TensorIndex, module: str, family: str, suffixes: tuple[str, ...], needed: tuple[str, ...]
) -> list[Orphan]:
    """An orphan for each stored plane of a module that lacks a needed one; none where nothing lacks."""
    missing = tuple(suffix for suffix in needed if index.get(module, suffix) is None)
    if not missing:
        return []
    stored = (index.get(module, suffix) for suffix in suffixes)
    return [
        Orphan(stored_name=one.name, module=module, family=family, missing=missing)
        for one in stored
        if one is not None
    ]
