"""What a container reader hands over: files, stored tensors, config files and what was odd about them.

A reader never refuses a file that can be read in part: each broken rule of the official loaders becomes
a `ContainerIssue`, and the tensors that could be read are still listed.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Json = Any
"""A decoded JSON value: dict, list, str, int, float, bool or None."""

EXTRACT_KEY = "quantscope_extract"
"""`__metadata__` key of a minimal reproducer: the rest of the checkpoint was left out on purpose."""

ContainerKind = Literal["safetensors", "gguf", "torch_zip", "unknown"]


class StoredTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor as a container stores it.

    `shape` is row-major with the slowest axis first in every container (GGUF dims are reversed), so a
    weight is [out, in]. `dtype` is the safetensors word (`F16`, `I32`, `F8_E4M3`, ...) in safetensors and
    torch zips, the ggml type name (`Q4_K`, `F32`, ...) in GGUF; an unknown ggml id is `ggml:<id>`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file_id: int
    byte_offset: int
    """Absolute offset of the first byte in the file."""
    nbytes: int
    """Bytes that the header gives the tensor, whether or not the file holds them all."""
    type_id: int | None = None
    """ggml type id, GGUF only."""
    strides: tuple[int, ...] | None = None
    """Element strides where the storage is not row-major contiguous (torch zip only)."""
    readable: bool = True
    """False where some of the bytes lie outside the file or the range makes no sense."""


class ContainerIssue(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of an official loader, or of plain sense, that a file breaks.

    `name` is a stable kebab-case slug that the QC and QH rules turn into a finding; `kind` is the fault
    kind of the catalogue (`ST-TRUNC`, `GG-DUP`, ...) or None.
    """

    name: str
    kind: str | None
    message: str
    file: str
    tensor: str | None = None
    byte_range: tuple[int, int] | None = None
    data: dict[str, Json] = msgspec.field(default_factory=dict)


class OpenedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a checkpoint, after its header was read.

    `fingerprint` is `size-mtime_ns-inode` in hex: it tells whether the file changed under a reader, not
    what it contains. `metadata` is safetensors `__metadata__`, the GGUF key-values (long arrays appear as
    {"array": type, "count": n, "byte_offset": o} and are read when asked for) or, for a torch zip, the
    plain values of the pickled tree.
    """

    file_id: int
    name: str
    """Name inside the checkpoint folder, as an index would write it."""
    path: str
    """Real path on disk, symlinks of a Hugging Face cache resolved."""
    kind: ContainerKind
    size: int
    fingerprint: str
    parsed: bool
    error: str | None = None
    bytes_read: int = 0
    header_bytes: int = 0
    byte_order: Literal["little", "big"] = "little"
    version: int | None = None
    alignment: int | None = None
    data_offset: int | None = None
    """Where tensor data begins, absolute."""
    metadata: dict[str, Json] = msgspec.field(default_factory=dict)


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON or YAML file beside the tensors; `data` is None where `error` says why."""

    name: str
    path: str
    size: int
    sha256: str | None
    data: Json
    error: str | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that opening a path gave, before any family looks at it."""

    path: str
    """As typed."""
    root: str
    """The folder that names in an index are relative to."""
    kind: Literal["file", "folder", "index", "split"]
    files: tuple[OpenedFile, ...]
    tensors: tuple[StoredTensor, ...]
    configs: tuple[ConfigFile, ...]
    issues: tuple[ContainerIssue, ...]
    variants: tuple[str, ...] = ()
    """Other self-contained sets of weights in the same folder (file or index names) that were not opened."""
    index: Json = None
    """The parsed `*.safetensors.index.json`, where one was used."""
    revision: str | None = None
    """Snapshot hash from a Hugging Face cache path."""
