"""A report without the folders of the machine that wrote it."""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec

from quantscope.report.schema import Report

_FOLDERS = re.compile(
    r"(?<![\w#:/.>-])(?:~|[A-Za-z]:)?[\\/](?:[^\\/\s'\"#]+[\\/])+(?=[^\\/\s'\"]|$|['\"\s])"
)
_RELATIVE = re.compile(r"(?<!\S)(?:\.{1,2}[\\/])+(?:[^\\/\s'\"#]+[\\/])*")
_PLACES = frozenset(
    {"at", "source", "config_key", "pointer", "names", "members", "stored_name", "name", "id"}
)
"""Keys whose values are names inside the checkpoint, never paths of a machine."""


def shown_path(path: str) -> str:
    """The last part of a path."""
    return os.path.basename(path.rstrip("/\\")) or path


def redacted(report: Report) -> Report:
    """The report with the folder part of every absolute path in its texts left out."""
    document = msgspec.to_builtins(report)
    command = document["run"]["command"]
    document["run"]["command"] = " ".join(
        shown_path(word) if "/" in word or "\\" in word else word for word in command.split(" ")
    )
    for entry in document["inputs"]:
        entry["path"] = shown_path(entry["path"])
    return msgspec.convert(_walk(document), Report)


def _walk(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        return value if key in _PLACES else without_folders(value)
    if isinstance(value, dict):
        return {name: _walk(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, key) for item in value]
    return value


def without_folders(text: str) -> str:
    """Text with the folder part of absolute and dotted paths left out."""
    return _RELATIVE.sub("", _FOLDERS.sub("", text))
