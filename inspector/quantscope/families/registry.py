"""Families found through entry points; one that fails is reported and left out."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from quantscope.families.protocol import API_VERSION, Family

FAMILY_GROUP = "quantscope.families"
OWN = "quantscope"


class PluginRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Where a plugin comes from and whether it loaded."""

    group: str
    name: str
    value: str
    distribution: str
    error: str | None = None


class FamilyRegistry:
    """Families by name, in a stable order, with a record of each entry point."""

    def __init__(self, families: Iterable[Family], records: Iterable[PluginRecord] = ()) -> None:
        self._families = {family.name: family for family in sorted(families, key=lambda f: f.name)}
        self.records = tuple(records)

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())

    def __getitem__(self, name: str) -> Family:
        return self._families[name]

    def __contains__(self, name: str) -> bool:
        return name in self._families

    @classmethod
    def from_entry_points(cls) -> FamilyRegistry:
        """Load every entry point of the group; an import or construction error becomes a record.

        So does a name that is taken: this distribution's families come first, then the first by entry point.
        """
        families: dict[str, Family] = {}
        records: list[PluginRecord] = []
        found = list(load_entry_points(FAMILY_GROUP, _check_family))
        for loaded, record in sorted(found, key=lambda pair: pair[1].distribution != OWN):
            if loaded is not None and loaded.name in families:
                taken = f"a family called {loaded.name} is there already"
                records.append(msgspec.structs.replace(record, error=taken))
                continue
            records.append(record)
            if loaded is not None:
                families[loaded.name] = loaded
        return cls(families.values(), records)


def load_entry_points(
    group: str, check: Callable[[Any], str | None]
) -> Iterator[tuple[Any, PluginRecord]]:
    """Each entry point of a group as an instance (None where it failed) with its record.

    Args:
        group: entry point group.
        check: says what is wrong with an instance, or None.
    """
    points = sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.name)
    names: dict[int, str] = {}
    for point in points:
        error: str | None = None
        instance: Any = None
        try:
            loaded = point.load()
            instance = loaded() if isinstance(loaded, type) else loaded
            error = check(instance)
        except (
            Exception
        ) as problem:  # the one wrapper around plugin code: a bad plugin harms nothing
            error = f"{type(problem).__name__}: {problem}"
        record = PluginRecord(
            group=group,
            name=point.name,
            value=point.value,
            distribution=_distribution(point, names),
            error=error,
        )
        yield (None if error else instance), record


def _distribution(point: importlib.metadata.EntryPoint, names: dict[int, str]) -> str:
    """Name of the distribution that registers a point; its metadata is parsed once for all its points."""
    if point.dist is None:
        return ""
    key = id(point.dist)
    if key not in names:
        names[key] = point.dist.name
    return names[key]


def _check_family(instance: Any) -> str | None:
    if getattr(instance, "api_version", None) != API_VERSION:
        return (
            f"speaks api_version {getattr(instance, 'api_version', None)!r}, this is {API_VERSION}"
        )
    if not isinstance(instance, Family):
        return "lacks a method of the family protocol"
    if not isinstance(instance.name, str) or not instance.name:
        return f"its name is {instance.name!r}"
    return None
