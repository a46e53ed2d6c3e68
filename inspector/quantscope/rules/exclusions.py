"""Which modules a declaration leaves unquantized: every dialect of ignore lists, with its source."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import msgspec

from quantscope.families.declarations import Section
from quantscope.families.modules import compiled, pattern_matches
from quantscope.model import Json, Source
from quantscope.rules import names
from quantscope.rules.facts import Facts

Dialect = Literal["compressed-tensors", "glob", "component", "regex", "exact"]

LIST_KEYS: dict[str, Dialect] = {
    "ignore": "compressed-tensors",
    "exclude_modules": "glob",
    "exclude": "glob",
    "modules_to_not_convert": "component",
    "llm_int8_skip_modules": "component",
    "ignored_layers": "component",
    "skip_modules": "component",
}
"""Keys of a quantization section that hold a list of modules left out, and how entries are matched."""

UNQUANTIZED_BITS = 16
"""A per-module entry of this many bits or more means: left unquantized (AutoRound, extra_config)."""


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """One entry that leaves modules unquantized."""

    entry: str
    source: Source
    dialect: Dialect

    @property
    def is_regex(self) -> bool:
        """Whether the entry must be matched as a pattern."""
        return self.dialect == "regex" or self.entry.startswith("re:") or "*" in self.entry

    def covers(self, module: str) -> bool:
        """Whether the entry names a module, a parent of it, or a pattern that fits."""
        entry = self.entry
        if entry.startswith("re:"):
            return pattern_matches(entry, module)
        if self.dialect == "regex":
            pattern = compiled(entry)
            return pattern is not None and pattern.match(module) is not None
        if self.dialect == "exact":
            return module == entry or module.startswith(entry + ".")
        bare = entry[: -len(".weight")] if entry.endswith(".weight") else entry
        bare = bare.rstrip(".")
        if "*" in bare or "?" in bare:
            pattern = compiled(fnmatch.translate(bare)) if len(bare) < 256 else None
            whole = pattern is not None and pattern.match(module) is not None
            return whole or fnmatch.fnmatchcase(module, bare + ".*")
        if module == bare or module.startswith(bare + "."):
            return True
        return self.dialect in ("component", "glob") and f".{bare}." in f".{module}."


class Exclusions:
    """Every entry of a checkpoint and what it covers."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    @cached_property
    def entries(self) -> tuple[Exclusion, ...]:
        """Entries of all sections, lists first."""
        return tuple(_entries(self._facts))

    def covering(self, module: str) -> Exclusion | None:
        """The first entry that covers a module."""
        for entry in self.entries:
            if entry.covers(module):
                return entry
        return None

    @cached_property
    def decisive(self) -> tuple[Exclusion, ...]:
        """Entries of files that engines read; a recipe only documents what was asked for."""
        return tuple(e for e in self.entries if e.source.file != "recipe.yaml")


def _entries(facts: Facts) -> Iterator[Exclusion]:
    for section in facts.sections:
        for key, dialect in LIST_KEYS.items():
            value = section.get(key)
            if isinstance(value, list):
                source = section.source(key)
                style: Dialect = dialect
                if key == "ignore" and section.method != "compressed-tensors":
                    style = "glob"
                for entry in value:
                    if isinstance(entry, str) and entry:
                        yield Exclusion(entry=entry, source=source, dialect=style)
        yield from _per_module(section)
    recipe = facts.declared.configs.get("recipe.yaml")
    if recipe is not None and isinstance(recipe.data, dict):
        for pointer, entry in _recipe_ignores(recipe.data):
            yield Exclusion(
                entry=entry, source=Source("recipe.yaml", pointer), dialect="compressed-tensors"
            )


def _per_module(section: Section) -> Iterator[Exclusion]:
    dynamic = section.get("dynamic")
    if isinstance(dynamic, dict):
        for pattern in dynamic:
            if isinstance(pattern, str) and pattern.startswith("-:"):
                yield Exclusion(
                    entry=pattern[2:], source=section.source("dynamic", pattern), dialect="regex"
                )
    extra = section.get("extra_config")
    if isinstance(extra, dict):
        for module, values in extra.items():
            bits = values.get("bits") if isinstance(values, dict) else None
            if isinstance(bits, int) and bits >= UNQUANTIZED_BITS:
                source = section.source("extra_config", module)
                regex = not re.fullmatch(r"[\w.\-]+", module)
                yield Exclusion(entry=module, source=source, dialect="regex" if regex else "exact")
    if not section.method:
        for module, value in section.data.items():
            if value is False and (
                "." in module or module in names.HEAD_NAMES | names.EMBEDDING_NAMES
            ):
                yield Exclusion(entry=module, source=section.source(module), dialect="exact")


def _recipe_ignores(data: Json, pointer: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if depth > 8:
        return
    if isinstance(data, dict):
        for key, value in data.items():
            where = f"{pointer}/{key}"
            if key == "ignore" and isinstance(value, list):
                for entry in value:
                    if isinstance(entry, str):
                        yield where, entry
            else:
                yield from _recipe_ignores(value, where, depth + 1)
    elif isinstance(data, list):
        for number, value in enumerate(data[:64]):
            yield from _recipe_ignores(value, f"{pointer}/{number}", depth + 1)


def pattern_texts(facts: Facts) -> Iterator[tuple[Source, str]]:
    """Every regular expression that a declaration holds, with its source."""
    for entry in Exclusions(facts).entries:
        if entry.entry.startswith("re:"):
            yield entry.source, entry.entry[3:]
        elif entry.dialect == "regex":
            yield entry.source, entry.entry
    for section in facts.sections:
        dynamic = section.get("dynamic")
        if isinstance(dynamic, dict):
            for pattern in dynamic:
                if isinstance(pattern, str) and not pattern.startswith("-:"):
                    body = pattern[2:] if pattern.startswith("+:") else pattern
                    yield section.source("dynamic", pattern), body
        groups = section.get("config_groups")
        if isinstance(groups, dict):
            for name, group in groups.items():
                targets = group.get("targets") if isinstance(group, dict) else None
                for target in targets if isinstance(targets, list) else ():
                    if isinstance(target, str) and target.startswith("re:"):
                        yield section.source("config_groups", str(name), "targets"), target[3:]
