"""Which declaration applies to which module: exact names, prefixes, regexes, fused names."""

from __future__ import annotations

import re
from functools import lru_cache

from quantscope.model import Json

MAX_PATTERN = 512
"""A longer pattern from a file is not compiled: patterns are data, and some explode."""


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str] | None:
    """A pattern from a file, or None where it is too long, no regex, or has a nested repeat."""
    if len(pattern) > MAX_PATTERN or re.search(r"[+*}]\)[+*{]", pattern):
        return None
    try:
        return re.compile(pattern)
    except re.error:
        return None


def pattern_matches(pattern: str, module: str, class_name: str = "Linear") -> bool:
    """Whether a compressed-tensors style target or ignore entry names a module.

    `re:` entries are regexes matched from the start; others are the class name, the module's own name or
    a parent's. Source: compressed-tensors, utils/match.py.
    """
    if pattern.startswith("re:"):
        regex = compiled(pattern[3:])
        return regex is not None and regex.match(module) is not None
    return pattern in (class_name, module) or module.startswith(pattern + ".")


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
        if regex is None or regex.match(module) is None:
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
        if regex is not None and regex.match(module) is not None:
            return str(pattern)
    return None
