"""Formats whose planes and sizes are known but whose codes no proved rule turns into weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import UndecodableError
from quantscope.families.base import FamilyBase, demand
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Cell,
    Claim,
    Companion,
    Equation,
    LogicalTensor,
    Orphan,
    Plane,
    Reading,
    Role,
)


class Size(NamedTuple):
    """What a format demands of one plane."""

    suffix: str
    symbolic: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = ()
    optional: bool = False
    alternatives: tuple[tuple[int, ...], ...] = ()


class Listed(FamilyBase):
    """Recognised, sized, its scales checked; `reason` says why nothing is decoded.

    A subclass names its planes, says which make a module its own, what shape the weight has and what each
    plane must measure.
    """

    reason: ClassVar[str] = ""
    roles: ClassVar[Mapping[str, Role]] = {}
    needed: ClassVar[tuple[str, ...]] = ()
    """Planes without which the others are orphans; the first ones mark a module."""
    markers: ClassVar[tuple[str, ...]] = ()
    """Suffixes of which each makes a module worth a look."""
    methods: ClassVar[tuple[str, ...]] = ()
    """Words of quant_method under which incomplete modules are orphans too."""
    word: ClassVar[str] = ""

    def signature(self) -> Signature:
        """The last parts of the marking suffixes."""
        return Signature(last_parts=tuple(suffix.rpartition(".")[2] for suffix in self.markers))

    def needed_of(self, index: TensorIndex, module: str) -> tuple[str, ...]:
        """Planes that this module must have."""
        return self.needed

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """[N, K] of a module with all needed planes; None where it is another format's."""
        raise NotImplementedError

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """What each plane must measure."""
        raise NotImplementedError

    def facts_of(self, index: TensorIndex, module: str) -> tuple[tuple[str, str], ...]:
        """What the module's small planes say."""
        return ()

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with every needed plane."""
        declares = bool(declared.with_method(*self.methods)) if self.methods else False
        modules = dict.fromkeys(m for suffix in self.markers for m in index.modules_with(suffix))
        for module in modules:
            needed = self.needed_of(index, module)
            alone = orphans_of(index, module, self.name, tuple(self.roles), needed)
            if alone:
                if declares:
                    yield from alone
                continue
            shape = self.shape_of(index, module)
            if shape is None:
                continue
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word=self.word or self.name,
                shape=shape,
                planes=planes_of(index, module, self.roles),
                certainty=3,
                facts=self.facts_of(index, module),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Nothing by default."""
        return iter(())

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """One equation a plane."""
        return [
            demand(
                tensor.plane_named(size.suffix),
                size.suffix,
                size.symbolic,
                size.shape,
                dtypes=size.dtypes,
                optional=size.optional,
                alternatives=size.alternatives,
            )
            for size in self.sizes(tensor, reading)
        ]

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


def planes_of(index: TensorIndex, module: str, roles: Mapping[str, Role]) -> tuple[Plane, ...]:
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
