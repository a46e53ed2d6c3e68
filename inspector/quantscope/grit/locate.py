"""Where descriptors stand in a checkpoint, and what was wrong with the text that holds them.

safetensors: `__metadata__["__grit__"]`, JSON of tensor name to 128 hex characters. GGUF: the key
`grit.desc.<tensor>`. Source: package grit-datatype 1.1.0 (grit/scan.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import msgspec

from quantscope.containers.records import OpenedFile
from quantscope.grit.descriptor import Descriptor
from quantscope.model import Json, Source

SAFETENSORS_KEY = "__grit__"
GGUF_PREFIX = "grit.desc."
MAX_TEXT = 64 << 20


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One descriptor, or why there is none where one was announced."""

    tensor: str | None
    source: Source
    descriptor: Descriptor | None = None
    fault: str = ""


def descriptors(files: Sequence[OpenedFile]) -> Iterator[Found]:
    """Every descriptor of every file."""
    for file in files:
        if file.kind == "safetensors" and SAFETENSORS_KEY in file.metadata:
            source = Source(file.name, f"__metadata__/{SAFETENSORS_KEY}")
            yield from _from_map(source, file.metadata[SAFETENSORS_KEY])
        elif file.kind == "gguf":
            for key, value in file.metadata.items():
                if key.startswith(GGUF_PREFIX):
                    yield _one(key[len(GGUF_PREFIX) :], Source(file.name, key), value)


def _from_map(source: Source, value: Json) -> Iterator[Found]:
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            yield Found(tensor=None, source=source, fault=f"{len(value)} characters")
            return
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            yield Found(tensor=None, source=source, fault="no JSON")
            return
    if not isinstance(value, dict):
        yield Found(tensor=None, source=source, fault="JSON, but no object")
        return
    for name, text in value.items():
        place = Source(source.file, f"{source.pointer}/{name}")
        yield _one(str(name), place, text)


def _one(tensor: str, source: Source, value: Json) -> Found:
    if not isinstance(value, str):
        return Found(tensor=tensor, source=source, fault=f"{type(value).__name__} instead of hex")
    try:
        raw = bytes.fromhex(value)
    except ValueError:
        return Found(tensor=tensor, source=source, fault="no hex")
    if len(raw) != 64:
        return Found(tensor=tensor, source=source, fault=f"{len(raw)} bytes instead of 64")
    return Found(tensor=tensor, source=source, descriptor=Descriptor.unpack(raw))
