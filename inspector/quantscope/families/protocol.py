"""The protocol that a format family implements.

A family knows one format: how it is declared, which planes it has, which sizes they must have, how its
codes become weights and where each element lies. The engine does the rest: it solves the equations over
`candidates`, compares with `claims`, samples `parts` for statistics and combines them into weights.

A family never raises for a malformed file: planes may be missing, of any shape and dtype. What it cannot
make sense of becomes an Orphan, an empty candidate list or an equation that does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import (
    Cell,
    Claim,
    Companion,
    Equation,
    Evidence,
    LogicalTensor,
    Orphan,
    Plane,
    Reading,
)

API_VERSION = 1


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Cheap preselection: the family is asked only where one of these is present."""

    last_parts: tuple[str, ...] = ()
    """Last dotted parts of stored names (`qweight`, `weight_packed`, ...)."""
    dtypes: tuple[str, ...] = ()
    """Stored dtype words, e.g. `F8_E4M3` or ggml type names."""
    metadata_keys: tuple[str, ...] = ()


@runtime_checkable
class Family(Protocol):
    """One quantized format. See the module docstring; defaults live in `FamilyBase`."""

    name: ClassVar[str]
    api_version: ClassVar[int]
    title: ClassVar[str]

    def signature(self) -> Signature:
        """Names and dtypes that make the family worth asking."""
        ...

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterable[LogicalTensor | Companion | Orphan]:
        """Logical tensors, companions and planes without mates found in the index."""
        ...

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterable[Claim]:
        """What the files declare about this tensor, per contract field, with sources.

        May read small planes only (quant_state JSON, a marker); never codes.
        """
        ...

    def candidates(self, tensor: LogicalTensor) -> Iterable[Reading]:
        """Every reading worth trying, the family's default first; finite and small."""
        ...

    def equations(self, tensor: LogicalTensor, reading: Reading) -> Sequence[Equation]:
        """What the reading demands of every plane."""
        ...

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """The window's parts. Rows and columns lie inside `reading.shape[-2:]`."""
        ...

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """Float32 [R, C] weights of the parts; the engine's arithmetic by default."""
        ...

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Where the element's code, scale and zero lie, to the bit.

        Formats whose group of a column is itself stored (act-order) need `reader` to find the scale;
        without one they give the natural group.
        """
        ...

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Which values of a plane count, by their flat numbers; the rest is padding.

        Args:
            tensor: the logical tensor.
            reading: the reading in force.
            plane: one of its planes.
            numbers: int64 [n], row-major numbers of values of the plane.

        Returns:
            boolean [n], or None where all count.
        """
        ...

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Why no rule decodes this tensor, or None."""
        ...

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Evidence that only this family knows (a monotone g_idx, a padded tail); small planes only."""
        ...
