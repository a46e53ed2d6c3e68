"""Canonical JSON: one byte sequence per document, safe on a terminal, without NaN or Infinity."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

_SUSPECT = re.compile(r"[^\x20-\x7e\n]")


def plain(value: Any) -> Any:
    """A document as dicts, lists and scalars; non-finite numbers as text with their bit pattern."""
    return _finite(msgspec.to_builtins(value, str_keys=True, enc_hook=_numpy_scalar))


def non_finite(value: float) -> str:
    """`nan`, `inf` or `-inf` with the binary64 bit pattern, as a report writes it."""
    (pattern,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"{value} (0x{pattern:016x})"


def encode(value: Any) -> str:
    """One line of JSON of a plain value: sorted keys, no spaces, active characters as escapes."""
    text = json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text if text.isascii() and text.isprintable() else _SUSPECT.sub(_escape, text)


def canonical_bytes(document: Any) -> bytes:
    """Canonical bytes of a document: every top-level key, and every item of a top-level list, on its own line."""
    return b"".join(canonical_chunks(plain(document)))


def canonical_chunks(
    document: Any, streams: Mapping[str, Iterable[Any]] | None = None
) -> Iterator[bytes]:
    """Canonical bytes in pieces.

    Args:
        document: a plain document; a dict is laid out by key, anything else is one line.
        streams: top-level keys whose items come one by one and need never be held together.
    """
    if not isinstance(document, dict):
        yield (encode(document) + "\n").encode("utf-8")
        return
    streams = streams or {}
    opening = "{\n"
    for key in sorted({*document, *streams}):
        yield f"{opening}{encode(key)}:".encode()
        opening = ",\n"
        items = streams.get(key, document.get(key))
        if key in streams or (isinstance(items, list) and items):
            yield from _list_chunks(items)
        else:
            yield encode(items).encode("utf-8")
    yield b"\n}\n" if opening != "{\n" else b"{}\n"


def _list_chunks(items: Any) -> Iterator[bytes]:
    opening = b"[\n"
    for item in items:
        yield opening + encode(plain(item)).encode("utf-8")
        opening = b",\n"
    yield b"[]" if opening == b"[\n" else b"\n]"


def _escape(match: re.Match[str]) -> str:
    from quantscope.text import inert

    char = match.group()
    if char != "\n" and inert(char) == char:
        return char
    code = ord(char)
    if (
        0xD800 <= code < 0xE000
    ):  # half a surrogate pair is no Unicode text: strict readers refuse it
        return "\\ufffd"
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


def _numpy_scalar(value: Any) -> Any:
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} has no place in a report")
    return item()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else non_finite(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
