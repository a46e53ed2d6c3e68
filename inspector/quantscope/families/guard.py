"""The one wrapper around a family's methods: what it raises becomes a typed error that names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, cast

import msgspec

from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import CancelledError, PluginError, QuantscopeError
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Family, Signature
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


class PluginFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A family method that raised, and for how many tensors; the work went on without its answer."""

    family: str
    method: str
    error: str
    tensor: str = ""
    """The first tensor concerned; empty where the family was asked about all of them."""
    count: int = 1


class FamilyFailedError(PluginError):
    """A method of a family raised something that is no typed error."""

    def __init__(self, failure: PluginFailure) -> None:
        where = f"{failure.tensor}: " if failure.tensor else ""
        super().__init__(
            f"{where}family {failure.family} failed in {failure.method} ({failure.error})",
            hint="`quantscope plugins` says which package it comes from",
            source=failure.tensor or failure.family,
        )
        self.failure = failure


class GuardedFamily:
    """A family, each method of which raises typed errors only.

    What a method gives lazily is drawn here, so that a generator fails here too. `parts` and `decode` pass
    unguarded: planes that do not fit a reading make them fail in the ordinary course of things, and
    `quantscope.decode.window` turns that into an error about the tensor.
    """

    def __init__(self, family: Family) -> None:
        self.inner = family
        self.name = family.name
        self.title = family.title
        self.api_version = family.api_version

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def signature(self) -> Signature:
        """As the family's."""
        try:
            return self.inner.signature()
        except Exception as problem:  # plugin boundary
            self._fail("signature", problem)

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> tuple[LogicalTensor | Companion | Orphan, ...]:
        """As the family's."""
        try:
            return tuple(self.inner.group(index, declared))
        except Exception as problem:  # plugin boundary
            self._fail("group", problem)

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> tuple[Claim, ...]:
        """As the family's."""
        try:
            return tuple(self.inner.claims(tensor, declared, reader))
        except Exception as problem:  # plugin boundary
            self._fail("claims", problem, tensor)

    def candidates(self, tensor: LogicalTensor) -> tuple[Reading, ...]:
        """As the family's."""
        try:
            return tuple(self.inner.candidates(tensor))
        except Exception as problem:  # plugin boundary
            self._fail("candidates", problem, tensor)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> tuple[Equation, ...]:
        """As the family's."""
        try:
            return tuple(self.inner.equations(tensor, reading))
        except Exception as problem:  # plugin boundary
            self._fail("equations", problem, tensor)

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """As the family's, unguarded."""
        return self.inner.parts(tensor, reading, window, reader)

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """As the family's."""
        try:
            return self.inner.combine(parts, reading, as_producer)
        except Exception as problem:  # plugin boundary
            self._fail("combine", problem)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """As the family's."""
        try:
            return self.inner.locate(tensor, reading, row, col, reader)
        except Exception as problem:  # plugin boundary
            self._fail("locate", problem, tensor)

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """As the family's."""
        try:
            return self.inner.value_mask(tensor, reading, plane, numbers)
        except Exception as problem:  # plugin boundary
            self._fail("value_mask", problem, tensor)

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """As the family's."""
        try:
            return self.inner.undecodable(tensor)
        except Exception as problem:  # plugin boundary
            self._fail("undecodable", problem, tensor)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> tuple[Evidence, ...]:
        """As the family's."""
        try:
            return tuple(self.inner.evidence(tensor, readings, reader))
        except Exception as problem:  # plugin boundary
            self._fail("evidence", problem, tensor)

    def _fail(
        self, method: str, problem: Exception, tensor: LogicalTensor | None = None
    ) -> NoReturn:
        asked_about_all = method in ("signature", "group")
        if isinstance(problem, CancelledError) or (
            isinstance(problem, QuantscopeError) and not asked_about_all
        ):
            raise problem
        raise FamilyFailedError(
            PluginFailure(
                family=self.name,
                method=method,
                error=f"{type(problem).__name__}: {problem}",
                tensor=tensor.name if tensor is not None else "",
            )
        ) from problem


def guarded(family: Family) -> Family:
    """A family behind the guard; one that is behind it already stays as it is."""
    return family if isinstance(family, GuardedFamily) else cast(Family, GuardedFamily(family))


def folded(failures: Iterable[PluginFailure]) -> tuple[PluginFailure, ...]:
    """Failures of one family, method and error as one, with their number and the first tensor."""
    kept: dict[tuple[str, str, str], PluginFailure] = {}
    for failure in failures:
        key = (failure.family, failure.method, failure.error)
        before = kept.get(key)
        kept[key] = (
            failure
            if before is None
            else msgspec.structs.replace(before, count=before.count + failure.count)
        )
    return tuple(kept.values())
