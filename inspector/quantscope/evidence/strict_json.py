"""JSON without leniency: what two readers could take for different values is refused by path."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from quantscope.errors import QuantscopeError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DEPTH = 128
"""Arrays and objects inside one another; far below what the decoder's own recursion bears."""

MAX_INTEGER_DIGITS = 309
"""2**1024, the first integer beyond binary64, has 309 digits."""

_BOM = b"\xef\xbb\xbf"
_STRUCTURE = re.compile(r'["\[\]{}]')
_STRING_REST = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
# Controls, format, bidirectional and line marks: legal inside a JSON string, yet a terminal or an
# editor acts on them.
_ACTIVE = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


class EvidenceInputError(QuantscopeError):
    """The input is not what the schema asks for.

    Args:
        reason: what is wrong with the value.
        path: the JSON path of the value, such as `$.tensor.reference[3]`.
    """

    exit_code = 2

    def __init__(self, reason: str, *, path: str = "$", hint: str = "") -> None:
        super().__init__(f"{path}: {reason}", hint=hint, source=path)
        self.reason = reason
        self.path = path


class _Refused:
    """Stands in the decoded tree for a value that must not be used."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _Hooks:
    """What `json.loads` calls for each number, constant and object.

    A value to refuse is left in the tree as a mark, because only the whole tree knows its path.
    """

    def __init__(self, *, nonfinite_as_text: bool) -> None:
        self.refused_any = False
        self._nonfinite_as_text = nonfinite_as_text

    def parse_float(self, literal: str) -> float | _Refused:
        value = float(literal)
        if value == 0.0 and _has_nonzero_digit(literal):
            return self._refuse("a non-zero number that binary64 turns into zero")
        if math.isinf(value):
            return self._refuse("a number that overflows binary64")
        return value

    def parse_int(self, literal: str) -> int | _Refused:
        if len(literal) >= MAX_INTEGER_DIGITS and math.isinf(float(literal)):
            return self._refuse("a number that overflows binary64")
        return int(literal)

    def parse_constant(self, literal: str) -> str | _Refused:
        if self._nonfinite_as_text:
            return literal
        return self._refuse(f"the literal {literal} is no JSON number")

    def parse_object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    members[key] = self._refuse("the key occurs more than once in its object")
                seen.add(key)
        return members

    def _refuse(self, reason: str) -> _Refused:
        self.refused_any = True
        return _Refused(reason)


def child_path(path: str, key: str | int) -> str:
    """The path of one member; keys that are no plain word are quoted, escaped and cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if _PLAIN_KEY.match(key):
        return f"{path}.{key}"
    return f"{path}[{visible(key)}]"


def visible(text: str, limit: int = 64) -> str:
    """A quoted ASCII form of any text, safe on a terminal, at most `limit` characters of it."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return json.dumps(shown).replace("\x7f", "\\u007f")


def decode(data: bytes, *, nonfinite_as_text: bool = False) -> Json:
    """Decodes one JSON document strictly.

    Args:
        data: the whole document, UTF-8 without a byte order mark.
        nonfinite_as_text: give the literals NaN, Infinity and -Infinity as strings instead of
            refusing them; for files of other tools, which write them.

    Returns:
        Objects as dict, arrays as list; a literal without fraction or exponent is an int, of any
        size that binary64 can hold approximately; any other number is a float.

    Raises:
        EvidenceInputError: invalid UTF-8 or JSON, a BOM, a key twice in one object, a number
            beyond binary64, a non-zero number that becomes zero, a lone surrogate, or nesting
            over `MAX_DEPTH`; the message names the JSON path, or line and column where the text
            is no JSON.
    """
    text = _decode_text(data)
    _check_depth(text)
    hooks = _Hooks(nonfinite_as_text=nonfinite_as_text)
    try:
        tree = json.loads(
            text,
            parse_float=hooks.parse_float,
            parse_int=hooks.parse_int,
            parse_constant=hooks.parse_constant,
            object_pairs_hook=hooks.parse_object,
        )
    except json.JSONDecodeError as error:
        raise EvidenceInputError(
            f"no valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    if hooks.refused_any or _SURROGATE_ESCAPE.search(text):
        _raise_first_refusal(tree)
    value: Json = tree
    return value


def dump_canonical(document: Any) -> bytes:
    """The document as UTF-8 JSON with sorted keys and a final newline.

    Characters that a terminal or an editor acts on are written as escapes.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, indent=2, sort_keys=True)
    safe = _ACTIVE.sub(
        lambda match: json.dumps(match.group())[1:-1].replace("\x7f", "\\u007f"), text
    )
    return (safe + "\n").encode("utf-8")


def _decode_text(data: bytes) -> str:
    if data.startswith(_BOM):
        raise EvidenceInputError("the file starts with a byte order mark")
    try:
        return data.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        raise EvidenceInputError(f"no valid UTF-8 at byte {error.start}") from None


def _check_depth(text: str) -> None:
    """Refuses deep nesting before the recursive decoder meets it; one pass, strings left out."""
    depth = 0
    position = 0
    while match := _STRUCTURE.search(text, position):
        position = match.end()
        mark = match.group()
        if mark == '"':
            rest = _STRING_REST.match(text, position)
            if rest is None:
                return
            position = rest.end()
        elif mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                line = text.count("\n", 0, position) + 1
                raise EvidenceInputError(
                    f"arrays and objects lie more than {MAX_DEPTH} deep (line {line})"
                )
        else:
            depth -= 1


def _has_nonzero_digit(literal: str) -> bool:
    mantissa = literal.replace("E", "e").partition("e")[0]
    return any(digit in "123456789" for digit in mantissa)


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Paths and reasons of all refused values below `value`, in document order."""
    if isinstance(value, _Refused):
        yield path, value.reason
    elif isinstance(value, str):
        if not _is_unicode(value):
            yield path, "a string with half a surrogate pair is no Unicode text"
    elif isinstance(value, dict):
        for key, member in value.items():
            if not _is_unicode(key):
                yield child_path(path, key), "a key with half a surrogate pair is no Unicode text"
            yield from _walk(member, child_path(path, key))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            if type(member) is not float:
                yield from _walk(member, child_path(path, index))


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _raise_first_refusal(tree: Any) -> None:
    for path, reason in _walk(tree, "$"):
        raise EvidenceInputError(reason, path=path)
