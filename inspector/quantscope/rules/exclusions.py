"""Which modules a declaration leaves unquantized: every dialect of ignore lists, with its source."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal

import msgspec

from quantscope.families.declarations import Section
from quantscope.families.modules import compiled, compiled_glob, matches, pattern_matches
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


MANY_PATTERNS = 8
"""From this many patterns on, names are first held against all of them at once."""


class Exclusion(msgspec.Struct, frozen=True, kw_only=True):
    """One entry that leaves modules unquantized."""

    entry: str
    source: Source
    dialect: Dialect

    @property
    def is_regex(self) -> bool:
        """Whether the entry must be matched as a pattern."""
        return self.dialect == "regex" or self.entry.startswith("re:") or "*" in self.entry

    @property
    def bare(self) -> str | None:
        """The module name of an entry without a pattern; None where it is one."""
        if self.dialect == "exact":
            return self.entry
        if self.dialect == "regex" or self.entry.startswith("re:"):
            return None
        bare = self.entry.removesuffix(".weight").rstrip(".")
        return None if "*" in bare or "?" in bare else bare

    @property
    def anywhere(self) -> bool:
        """Whether the entry may name a part in the middle of a module's name."""
        return self.dialect in ("component", "glob")

    @property
    def beginning(self) -> str:
        """Text that the name of every module it covers begins with, for entries with a pattern."""
        if self.entry.startswith("re:"):
            return _literal_beginning(self.entry[3:])
        if self.dialect == "regex":
            return _literal_beginning(self.entry)
        return re.split(r"[*?\[]", self.entry, maxsplit=1)[0]

    @property
    def pattern(self) -> str | None:
        """The regular expression of an entry with a pattern; None where it has none that is safe to use."""
        if self.dialect == "regex" or self.entry.startswith("re:"):
            found = compiled(self.entry.removeprefix("re:"))
        else:
            found = compiled_glob(self.entry.removesuffix(".weight").rstrip("."))
        return None if found is None else found.pattern.removesuffix(r"\Z")

    def covers(self, module: str) -> bool:
        """Whether the entry names a module, a parent of it, or a pattern that fits."""
        entry = self.entry
        if entry.startswith("re:"):
            return pattern_matches(entry, module)
        if self.dialect == "regex":
            pattern = compiled(entry)
            return pattern is not None and matches(pattern, module)
        bare = self.bare
        if bare is None:
            bare = entry.removesuffix(".weight").rstrip(".")
            pattern = compiled_glob(bare)
            below = compiled_glob(bare + ".*")
            return any(p is not None and matches(p, module) for p in (pattern, below))
        if not bare:
            return False
        if module == bare or module.startswith(bare + "."):
            return True
        return self.anywhere and f".{bare}." in f".{module}."


class Exclusions:
    """Every entry of a checkpoint and what it covers; build it with `facts.once(Exclusions)`."""

    def __init__(self, facts: Facts) -> None:
        self.entries: tuple[Exclusion, ...] = tuple(_entries(facts))
        self.decisive: tuple[Exclusion, ...] = tuple(
            entry for entry in self.entries if entry.source.file != "recipe.yaml"
        )
        self._facts = facts

    @cached_property
    def first(self) -> dict[str, Exclusion]:
        """The first entry that covers each module that any entry covers."""
        return Lookup(self.entries).first(self._facts.modules)

    @cached_property
    def first_decisive(self) -> dict[str, Exclusion]:
        """The first entry that covers each module, of the files that engines read."""
        return Lookup(self.decisive).first(self._facts.modules)

    @cached_property
    def idle(self) -> tuple[Exclusion, ...]:
        """Entries of files that engines read that cover no stored module or tensor."""
        idle = Lookup(self.decisive).without_match(self._facts.modules)
        return Lookup(idle).without_match(self._facts.stored)


class Lookup:
    """Entries against many names at once: plain entries by dictionary, patterns by their literal beginning."""

    def __init__(self, entries: tuple[Exclusion, ...]) -> None:
        self._entries = entries
        self._plain: dict[str, list[int]] = defaultdict(list)
        self._patterns: list[int] = []
        for number, entry in enumerate(entries):
            bare = entry.bare
            if bare is None:
                self._patterns.append(number)
            elif bare:
                self._plain[bare].append(number)
        self._lengths = sorted({bare.count(".") + 1 for bare in self._plain})

    def first(self, modules: Iterable[str]) -> dict[str, Exclusion]:
        """The first entry that covers each name; names without one are left out."""
        numbers: dict[str, int] = {}
        for module in modules:
            number = min(self._plain_numbers(module), default=None)
            if number is not None:
                numbers[module] = number
        ordered = self._candidates(modules)
        for number in self._patterns:
            entry = self._entries[number]
            for module in beginning_with(ordered, entry.beginning):
                if numbers.get(module, number + 1) > number and entry.covers(module):
                    numbers[module] = number
        return {module: self._entries[number] for module, number in numbers.items()}

    def without_match(self, modules: Iterable[str]) -> tuple[Exclusion, ...]:
        """Entries that cover none of the names."""
        matched: set[int] = set()
        for module in modules if self._plain else ():
            matched.update(self._plain_numbers(module))
        ordered = self._candidates(modules)
        for number in self._patterns:
            entry = self._entries[number]
            if any(entry.covers(m) for m in beginning_with(ordered, entry.beginning)):
                matched.add(number)
        return tuple(e for number, e in enumerate(self._entries) if number not in matched)

    def _candidates(self, modules: Iterable[str]) -> list[str]:
        """Names that some pattern may match, in order."""
        if not self._patterns:
            return []
        some = self._some_pattern
        return sorted(modules if some is None else (m for m in modules if matches(some, m)))

    @cached_property
    def _some_pattern(self) -> re.Pattern[str] | None:
        """All patterns as one; None where they do not join, or are few."""
        texts = [self._entries[number].pattern for number in self._patterns]
        if len(texts) < MANY_PATTERNS:
            return None
        try:
            return re.compile("|".join(f"(?:{text})" for text in texts if text is not None))
        except (re.error, OverflowError, RecursionError):
            return None

    def _plain_numbers(self, module: str) -> Iterator[int]:
        parts = module.split(".")
        for length in self._lengths:
            for start in range(len(parts) - length + 1):
                for number in self._plain.get(".".join(parts[start : start + length]), ()):
                    if start == 0 or self._entries[number].anywhere:
                        yield number


def beginning_with(ordered: list[str], beginning: str) -> Iterator[str]:
    """The names of a sorted list that begin with a text."""
    for number in range(bisect_left(ordered, beginning), len(ordered)):
        if not ordered[number].startswith(beginning):
            return
        yield ordered[number]


def _literal_beginning(pattern: str) -> str:
    """Text that every match of a pattern from the start must begin with; may be shorter than it could be."""
    if "|" in pattern:
        return ""
    found = re.match(r"\^?((?:[\w\-]|\\[.\-])*)(.?)", pattern)
    if found is None:
        return ""
    text, following = found.group(1), found.group(2)
    if following and following in "?*+{":
        text = text[:-2] if text[-2:-1] == "\\" else text[:-1]
    return text.replace("\\", "")


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
    yield from _torchao_rules(section)
    if not section.method:
        for module, value in section.data.items():
            if value is False and (
                "." in module or module in names.HEAD_NAMES | names.EMBEDDING_NAMES
            ):
                yield Exclusion(entry=module, source=section.source(module), dialect="exact")


def _torchao_rules(section: Section) -> Iterator[Exclusion]:
    """Names and patterns that torchao's FqnToConfig maps to null (torchao 0.18, quant_api.py)."""
    where = ("quant_type", "default", "_data")
    data: Json = section.data
    for key in where:
        data = data.get(key) if isinstance(data, dict) else None
    for key in ("fqn_to_config", "module_fqn_to_config") if isinstance(data, dict) else ():
        rules = data.get(key)
        for module, value in rules.items() if isinstance(rules, dict) else ():
            if value is None and module != "_default":
                dialect: Dialect = "compressed-tensors" if module.startswith("re:") else "exact"
                yield Exclusion(
                    entry=module, source=section.source(*where, key, module), dialect=dialect
                )
        if isinstance(rules, dict):  # the second spelling repeats the first
            return


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
    for entry in facts.once(Exclusions).entries:
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
