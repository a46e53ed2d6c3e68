"""Logs of kernel runs, text or JSON: form and hash only, whatever they say about passing."""

from __future__ import annotations

import re
from typing import Any

from quantscope.evidence.external import ExternalEvidence, external_evidence
from quantscope.evidence.strict_json import EvidenceInputError, Json, decode

MAX_ECHO_BYTES = 64 * 1024
"""A JSON log up to this size is repeated whole, a larger one by its keys."""

MAX_ECHO_LINES = 20

_FORBIDDEN = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def read_kernel_log(data: bytes, name: str) -> ExternalEvidence:
    """Reads one log; a document that starts like JSON must be JSON.

    A text log has to be UTF-8 without control characters (escape sequences of colours are
    allowed). Its first lines are quoted; nothing in it is interpreted.
    """
    if data.lstrip(b" \t\r\n")[:1] in (b"{", b"["):
        return _json_log(data, name)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return _entry(data, name, problems=[f"no UTF-8 text: byte {error.start}"])
    if not text.strip():
        return _entry(data, name, problems=["the log is empty"])
    forbidden = _FORBIDDEN.search(text)
    if forbidden:
        line = text.count("\n", 0, forbidden.start()) + 1
        return _entry(data, name, problems=[f"line {line}: a control character, no text log"])
    lines = text.splitlines()
    claimed = {
        "format": "text",
        "lines": len(lines),
        "first_lines": [line[:200] for line in lines[:MAX_ECHO_LINES]],
    }
    return _entry(data, name, flags=["not_interpreted"], claimed=claimed)


def _json_log(data: bytes, name: str) -> ExternalEvidence:
    try:
        document = decode(data, nonfinite_as_text=True)
    except EvidenceInputError as error:
        return _entry(data, name, problems=[error.message])
    content: Json = document
    whole = len(data) <= MAX_ECHO_BYTES
    if not whole:
        content = list(document) if isinstance(document, dict) else None
    claimed = {
        "format": "json",
        "content" if whole else "top_level_keys": content,
    }
    return _entry(data, name, flags=["not_interpreted"], claimed=claimed)


def _entry(data: bytes, name: str, **parts: Any) -> ExternalEvidence:
    return external_evidence(data, kind="kernel_log", name=name, gate="kernel", **parts)
