"""Which declaration applies to which module: exact names, prefixes, regexes, fused names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache

from quantscope.model import Json

MAX_PATTERN = 512
"""A longer pattern from a file is not compiled: patterns are data, and some explode."""

MAX_NAME = 192
"""A longer name matches no pattern with a repeat."""

MAX_REPEATS = 4
"""Unbounded repeats of a pattern, those that can only match one way left out."""

MAX_CHOICES = 8
"""Repeats, optional parts and alternatives together; each multiplies the ways to match."""

_ATOM = r"(?:\\.|[^\\|()*+?{}\[\]])"
_STEP = re.compile(rf"\.\*\??((?:(?![.^$]){_ATOM})+)(?=\.\*)")


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """A pattern from a file, or None where it is too long, no regex, or may take too long to match."""
    if len(pattern) > MAX_PATTERN or _explodes(pattern):
        return None
    try:
        return re.compile(_stepwise(pattern))
    except (re.error, OverflowError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def compiled_glob(glob: str) -> re.Pattern[str] | None:
    """A shell pattern from a file, or None where it is too long; matching one takes no more than linear steps."""
    return re.compile(fnmatch.translate(glob)) if len(glob) <= MAX_PATTERN else None


def _stepwise(pattern: str) -> str:
    """The pattern with `.*text` as an atomic step where another `.*` follows: the first match is the right one."""
    return _STEP.sub(r"(?>.*?\1)", re.sub(r"(?:\.\*){2,}(?![?+])", ".*", pattern))


def _explodes(pattern: str) -> bool:
    """Whether a pattern repeats a group that holds choices, or holds too many choices."""
    if re.search(r"\\[1-9]|\(\?[P(]?[=(]", pattern.replace("(?=", "(")):
        return True
    text = re.sub(r"\\.", "a", _stepwise(pattern).replace("(?>.*?", "(?:"))
    text = re.sub(r"\[\^?\]?[^\]]*\]", "a", text)
    text = re.sub(r"\(\?(?:P<\w+>|[:=!>]|<[=!]|[aiLmsux\-]+:?)", "(", text)
    opened: list[int] = []
    repeats = text.count("*") + text.count("+") + len(re.findall(r",\}", text))
    choices = repeats + len(re.findall(r"(?<![*+?}])\?", text)) + len(re.findall(r",\d+\}", text))
    for place, letter in enumerate(text):
        if letter == "(":
            opened.append(place)
        elif letter == ")" and opened:
            body = text[opened.pop() + 1 : place]
            choices += "|" in re.sub(r"\([^()]*\)", "", body)
            if re.match(r"[*+]|\{", text[place + 1 :]) and re.search(r"[*+?{|]", body):
                return True
    return repeats > MAX_REPEATS or choices > MAX_CHOICES


def matches(pattern: re.Pattern[str], module: str) -> bool:
    """Whether a compiled pattern matches a module's name from the start."""
    return len(module) <= MAX_NAME and pattern.match(module) is not None


def pattern_matches(pattern: str, module: str, class_name: str = "Linear") -> bool:
    """Whether a compressed-tensors style target or ignore entry names a module.

    `re:` entries are regexes matched from the start; others are the class name, the module's own name or
    a parent's. Source: compressed-tensors, utils/match.py.
    """
    if pattern.startswith("re:"):
        regex = compiled(pattern[3:])
        return regex is not None and matches(regex, module)
    return pattern in (class_name, module) or module.startswith(pattern + ".")


class NameList:
    """Entries of a target or ignore list, matched as `pattern_matches` does but in time of the name's depth."""

    def __init__(self, entries: Sequence[str], *, shell: bool = False) -> None:
        """Prepare the entries; with `shell`, those with a `*` are shell patterns (ModelOpt, Quark)."""
        self.names = frozenset(entry for entry in entries if not entry.startswith("re:"))
        self.patterns = tuple(
            regex for regex in (compiled(e[3:]) for e in entries if e.startswith("re:")) if regex
        )
        if shell:
            globs = (compiled_glob(e) for e in entries if "*" in e)
            self.patterns += tuple(regex for regex in globs if regex)

    def __bool__(self) -> bool:
        return bool(self.names or self.patterns)

    def matches(self, module: str, class_name: str = "Linear") -> bool:
        """Whether an entry names the module, a parent of it or its class."""
        if class_name in self.names or module in self.names:
            return True
        end = module.find(".")
        while end >= 0:
            if module[:end] in self.names:
                return True
            end = module.find(".", end + 1)
        return any(matches(regex, module) for regex in self.patterns)


def dynamic_override(dynamic: Json, module: str) -> dict[str, Json] | bool | None:
    """GPTQModel's `dynamic` for a module.

    Returns:
        False where a `-:` rule leaves the module unquantized, the override dict of the first rule that
        matches, None where no rule does. Source: GPTQModel, gptqmodel/quantization/config.py.
    """
    if not isinstance(dynamic, dict):
        return None
    for pattern, overrides in dynamic.items():
        negative = pattern.startswith("-:")
        body = pattern[2:] if pattern[:2] in ("-:", "+:") else pattern
        regex = compiled(body)
        if regex is None or not matches(regex, module):
            continue
        if negative:
            return False
        return overrides if isinstance(overrides, dict) else {}
    return None


def dynamic_key(dynamic: Json, module: str) -> str | None:
    """The key of the `dynamic` rule that applies to a module."""
    if not isinstance(dynamic, dict):
        return None
    for pattern in dynamic:
        body = pattern[2:] if pattern[:2] in ("-:", "+:") else pattern
        regex = compiled(body)
        if regex is not None and matches(regex, module):
            return str(pattern)
    return None
