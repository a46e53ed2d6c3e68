"""JSON as the strict readers take it: duplicate keys found, depth and number range checked.

`json` of the standard library forgives what the Rust and C++ readers of checkpoints refuse (NaN, unpaired
surrogates, numbers out of range); here each of them is an error.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import msgspec

from quantscope.containers.records import Json

MAX_DEPTH = 127
"""Deepest nesting that serde_json reads (serde_json de.rs: remaining_depth 128)."""

MAX_NODES = 1_000_000
"""Commas and colons, hence values, that a text may hold before it is refused unread."""


class JsonText(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded text, or why it could not be decoded."""

    value: Json = None
    error: str | None = None
    duplicates: tuple[str, ...] = ()
    """Keys that stand twice in one object, at any depth, in order of appearance."""
    bom: bool = False


class _RefusedError(ValueError):
    """Raised inside the hooks of `json.loads`."""


def parse_json(data: bytes, *, lenient: bool = False, max_nodes: int = MAX_NODES) -> JsonText:
    """Decodes one JSON text in bounded time and memory; never raises.

    Args:
        data: UTF-8 bytes, a byte order mark allowed.
        lenient: accept NaN, Infinity and numbers out of range, as Python's own reader does.
        max_nodes: refuse texts with more commas and colons than this.
    """
    bom = data.startswith(b"\xef\xbb\xbf")
    if bom:
        data = data[3:]
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return JsonText(error="is UTF-16, not UTF-8")
    if data.count(b",") + data.count(b":") > max_nodes:
        return JsonText(error=f"holds more than {max_nodes} values", bom=bom)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return JsonText(error=f"is no UTF-8: byte {error.start} cannot be decoded", bom=bom)
    duplicates: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        tree = dict(items)
        if len(tree) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen and len(duplicates) < 1000:
                    duplicates.append(key)
                seen.add(key)
        return tree

    hooks: dict[str, Any] = {} if lenient else {"parse_constant": _constant, "parse_float": _float}
    if not lenient:
        hooks["parse_int"] = _integer
    try:
        value = json.loads(text, object_pairs_hook=pairs, **hooks)
    except RecursionError:
        return JsonText(error="is nested too deep to read", bom=bom)
    except json.JSONDecodeError as error:
        return JsonText(error=f"is no JSON: {error.msg} at character {error.pos}", bom=bom)
    except ValueError as error:
        words = (
            str(error)
            if isinstance(error, _RefusedError)
            else "holds a number with too many digits"
        )
        return JsonText(error=words, bom=bom)
    if "\\u" in text and not lenient and not _encodable(value):
        return JsonText(error="holds an unpaired surrogate", bom=bom)
    return JsonText(value=value, duplicates=tuple(duplicates), bom=bom)


def depth_of(value: Json) -> int:
    """Levels of lists and objects: 0 for a plain value, 1 for `[]`."""
    deepest = 0
    level: list[Any] = [value]
    while True:
        inner: list[Any] = []
        nested = False
        for item in level:
            if isinstance(item, dict):
                nested = True
                inner.extend(item.values())
            elif isinstance(item, list):
                nested = True
                inner.extend(item)
        if not nested:
            return deepest
        deepest += 1
        level = [item for item in inner if isinstance(item, dict | list)]


def _encodable(value: Json) -> bool:
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            if any("\ud800" <= letter <= "\udfff" for letter in item):
                return False
        elif isinstance(item, dict):
            stack.extend(item)
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return True


def _constant(word: str) -> NoReturn:
    raise _RefusedError(f"holds {word}, which is no JSON number")


def _float(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise _RefusedError(f"holds the number {word[:40]}, which is out of range")
    return value


def _integer(word: str) -> int | float:
    # serde_json reads -0 and integers beyond 64 bits as floats.
    if word == "-0":
        return -0.0
    if len(word) > 4000:
        raise _RefusedError(f"holds an integer of {len(word)} digits")
    return int(word)
