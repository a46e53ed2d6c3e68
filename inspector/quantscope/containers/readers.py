"""Picks the reader for one file, by its first bytes before its name."""

from __future__ import annotations

import os
from collections.abc import Callable

from quantscope.containers.gguf import RAW_PART, read_gguf
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.records import ContainerKind, OpenedFile
from quantscope.containers.safetensors import read_safetensors
from quantscope.containers.sniff import HEAD_BYTES, MAGIC_WORDS, Magic, sniff
from quantscope.containers.source import ByteSource
from quantscope.errors import QuantscopeError

SAFETENSORS_SUFFIXES = (".safetensors", ".sft")
GGUF_SUFFIXES = (".gguf",)
TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


def _read_torch(source: ByteSource, file_id: int) -> ParsedFile:
    # pickletools and zipfile are needed for this kind alone.
    from quantscope.containers.torch_zip import read_torch

    return read_torch(source, file_id)


_READERS: dict[ContainerKind, Callable[[ByteSource, int], ParsedFile]] = {
    "safetensors": read_safetensors,
    "gguf": read_gguf,
    "torch_zip": _read_torch,
}
_BY_MAGIC: dict[Magic, ContainerKind] = {
    "safetensors": "safetensors",
    "gguf": "gguf",
    "zip": "torch_zip",
    "pickle": "torch_zip",
    "ggjt": "gguf",
    "ggml": "gguf",
    "ggmf": "gguf",
    "ggla": "gguf",
}


def kind_by_name(name: str) -> ContainerKind:
    """The container that a file name promises."""
    lowered = name.lower()
    if lowered.endswith(SAFETENSORS_SUFFIXES):
        return "safetensors"
    if lowered.endswith(GGUF_SUFFIXES) or RAW_PART.search(lowered):
        return "gguf"
    if lowered.endswith(TORCH_SUFFIXES):
        return "torch_zip"
    return "unknown"


def read_file(source: ByteSource, file_id: int) -> ParsedFile | None:
    """Reads the header of a file of any known container; None where it is none.

    A file whose bytes are another container than its name says is read as what it is, with an issue.

    Raises:
        UnreadableError: the system refused a read.
    """
    promised = kind_by_name(source.name)
    magic = sniff(source.read_at(0, min(source.size, HEAD_BYTES)), source.size)
    found = _BY_MAGIC.get(magic, "unknown")
    kind = promised if found == "unknown" else found
    if kind == "unknown":
        return None
    parsed = _READERS[kind](source, file_id)
    if promised in ("unknown", kind) or promised == "torch_zip":
        return parsed
    log = IssueLog(source.name)
    message = f"this is {MAGIC_WORDS[magic]}, though it is named {os.path.splitext(source.name)[1]}"
    slug = "gg-magic" if promised == "gguf" else "st-other-container"
    log.add(slug, message, byte_range=(0, 4), magic=magic)
    return ParsedFile(
        file=parsed.file, tensors=parsed.tensors, issues=(*log.done(), *parsed.issues)
    )


def unreadable_file(name: str, path: str, file_id: int, error: QuantscopeError) -> ParsedFile:
    """The record of a file that could not be opened at all."""
    log = IssueLog(name)
    log.add("file-unreadable", error.message)
    file = OpenedFile(
        file_id=file_id,
        name=name,
        path=path,
        kind=kind_by_name(name),
        size=0,
        fingerprint="",
        parsed=False,
        error=error.message,
    )
    return ParsedFile(file=file, issues=log.done())
