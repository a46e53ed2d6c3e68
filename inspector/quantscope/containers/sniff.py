"""What a file is, by its first bytes."""

from __future__ import annotations

import re
from typing import Literal

Magic = Literal[
    "empty",
    "gguf",
    "zip",
    "pickle",
    "lfs",
    "html",
    "ggjt",
    "ggml",
    "ggmf",
    "ggla",
    "tar",
    "hdf5",
    "numpy",
    "blank",
    "json",
    "safetensors",
    "unknown",
]

HEAD_BYTES = 512
"""Bytes that `sniff` looks at."""

OLD_GGML: dict[bytes, Magic] = {
    b"tjgg": "ggjt",
    b"lmgg": "ggml",
    b"fmgg": "ggmf",
    b"algg": "ggla",
}
"""Magics of the containers before GGUF, as a little-endian word lies in the file (ggml: docs/gguf.md)."""

_SAFETENSORS_START = re.compile(rb"[ \t\r\n]{0,64}\{")


def sniff(head: bytes, size: int) -> Magic:
    """The kind of a file from its first `HEAD_BYTES` bytes and its size."""
    if size == 0:
        return "empty"
    if head[:4] == b"GGUF":
        return "gguf"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[:4] in OLD_GGML:
        return OLD_GGML[head[:4]]
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return "lfs"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:9].lower() == b"<!doctype" or text[:5].lower() == b"<html":
        return "html"
    if len(head) > 8 and _SAFETENSORS_START.match(head, 8) and any(head[:8]):
        return "safetensors"
    if head[:1] == b"\x80" and len(head) > 2 and 2 <= head[1] <= 5:
        return "pickle"
    if head[:6] == b"\x93NUMPY":
        return "numpy"
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return "hdf5"
    if head[257:262] == b"ustar":
        return "tar"
    if text[:1] in (b"{", b"[") and b"\0" not in head[:16]:
        return "json"
    if not any(head):
        return "blank"
    return "unknown"


MAGIC_WORDS: dict[Magic, str] = {
    "gguf": "a GGUF file",
    "zip": "a zip (a torch file?)",
    "pickle": "a pickle (an old torch file?)",
    "ggjt": "a GGJT file, older than GGUF",
    "ggml": "a GGML file, older than GGUF",
    "ggmf": "a GGMF file, older than GGUF",
    "ggla": "a GGLA adapter, older than GGUF",
    "tar": "a tar archive",
    "hdf5": "an HDF5 file",
    "numpy": "a NumPy file",
    "json": "JSON text",
    "safetensors": "a safetensors file",
}
"""Words for a message about a file that is something else than its name says."""


def lfs_facts(head: bytes) -> tuple[str | None, int | None]:
    """The object id and the size that a Git-LFS pointer text names."""
    oid = re.search(rb"^oid sha256:([0-9a-f]{64})", head, re.MULTILINE)
    size = re.search(rb"^size (\d{1,18})", head, re.MULTILINE)
    return (oid[1].decode() if oid else None, int(size[1]) if size else None)
