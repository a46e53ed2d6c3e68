"""The only module that writes stdout: data, never messages."""

from __future__ import annotations

import sys
from typing import IO

import msgspec


def write_text(text: str) -> None:
    """Write text and a final newline to stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout as they are."""
    buffer: IO[bytes] = sys.stdout.buffer
    buffer.write(data)
    buffer.flush()


def write_json(document: object) -> None:
    """Write one canonical JSON document: UTF-8, sorted keys, two-space indent, no NaN or Infinity."""
    write_bytes(canonical_json(document))


def canonical_json(document: object) -> bytes:
    """Canonical bytes of a JSON document.

    Raises:
        ValueError: it holds NaN or Infinity.
    """
    import json

    plain = msgspec.to_builtins(document, str_keys=True)
    text = json.dumps(plain, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", errors="surrogatepass")
