"""Reader of torch files (.pt, .pth, .bin): the zip directory and a data-only walk of the pickle.

Format: pytorch/pytorch torch/serialization.py and caffe2/serialize/inline_container.cc: a zip with stored
entries, `<name>/data.pkl` and one `<name>/data/<key>` per storage, aligned to 64 bytes. Nothing is unpickled.
"""

from __future__ import annotations

import io
import itertools
import zlib
from typing import TYPE_CHECKING, Literal

import msgspec

from quantscope.containers.dtypes import DTYPE_BITS
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.pickle_tree import flatten
from quantscope.containers.pickle_walk import Tensor, Walk, walk_pickle
from quantscope.containers.records import OpenedFile, StoredTensor
from quantscope.containers.sniff import HEAD_BYTES, Magic, lfs_facts, sniff
from quantscope.containers.source import ByteSource
from quantscope.errors import FileChangedError

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

MAX_DIRECTORY_BYTES = 16 << 20
MAX_PICKLE_BYTES = 32 << 20
_LOCAL_HEADER_BYTES = 30


class _Entry(msgspec.Struct, frozen=True):
    """A stored zip entry: where its bytes lie in the file."""

    start: int
    nbytes: int
    compressed: bool


class _Window(io.RawIOBase):
    """A read-only file object over a source that refuses reads beyond the directory limit."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("a seek before the start of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._source.size - self._position)
        count = left if size is None or size < 0 else min(size, left)
        if count > MAX_DIRECTORY_BYTES:
            raise OSError(f"a zip directory of {count} bytes")
        data = self._source.read_at(min(self._position, self._source.size), count)
        self._position += len(data)
        return data


def read_torch(source: ByteSource, file_id: int) -> ParsedFile:
    """Lists the tensors of a torch zip by their place in the pickled tree.

    Names are the keys on the way to a tensor, joined with dots; plain values become the file's metadata.

    Raises:
        UnreadableError: the system refused a read.
    """
    log = IssueLog(source.name)
    try:
        return _read(source, file_id, log)
    except FileChangedError as error:
        log.add("file-changed", error.message)
        return _result(source, file_id, log, error.message)


def _read(source: ByteSource, file_id: int, log: IssueLog) -> ParsedFile:
    head = source.read_at(0, min(source.size, HEAD_BYTES))
    magic = sniff(head, source.size)
    if magic != "zip":
        return _result(source, file_id, log, _not_zip(magic, head, source, log))
    import zipfile

    try:
        with zipfile.ZipFile(_Window(source)) as archive:
            return _read_zip(archive, source, file_id, log)
    except (
        zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError,
        OverflowError,
    ) as error:  # fmt: skip
        message = f"the zip cannot be read: {' '.join(str(error).split())[:200]}"
        log.add("pt-zip", message)
        return _result(source, file_id, log, message)


def _not_zip(magic: Magic, head: bytes, source: ByteSource, log: IssueLog) -> str:
    size = source.size
    where = (0, min(size, HEAD_BYTES))
    if magic == "empty":
        message = "the file is empty (0 bytes)"
        log.add("pt-empty-file", message)
    elif magic == "lfs":
        oid, real = lfs_facts(head)
        message = f"this is a Git-LFS pointer of {size} bytes, not tensor data"
        if real is not None:
            message += f"; the real file has {real} bytes"
        log.add("pt-lfs-pointer", message, byte_range=where, oid=oid, size=real)
    elif magic == "html":
        message = f"this is an HTML page of {size} bytes, not tensor data"
        log.add("pt-html-page", message, byte_range=where)
    elif magic in ("pickle", "tar"):
        message = (
            "this is a torch file of before 1.6 (a bare pickle), which is never unpickled here"
        )
        log.add("pt-legacy-pickle", message, byte_range=where)
    else:
        message = f"the first bytes are {head[:4].hex()}: neither a zip nor a pickle"
        log.add("pt-unknown", message, byte_range=(0, min(4, size)))
    return message


def _result(source: ByteSource, file_id: int, log: IssueLog, error: str) -> ParsedFile:
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="torch_zip",
        size=source.size,
        fingerprint=source.fingerprint,
        parsed=False,
        error=error,
        bytes_read=source.bytes_read,
    )
    return ParsedFile(file=file, issues=log.done())


def _read_zip(archive: ZipFile, source: ByteSource, file_id: int, log: IssueLog) -> ParsedFile:
    names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
    if not names:
        message = f"the zip has {len(archive.namelist())} entries and no data.pkl: no torch file"
        log.add("pt-no-pickle", message)
        return _result(source, file_id, log, message)
    name = min(names, key=lambda one: (one.count("/"), one))
    prefix = name[: -len("data.pkl")]
    info = archive.getinfo(name)
    if info.file_size > MAX_PICKLE_BYTES:
        message = (
            f"data.pkl has {info.file_size} bytes, more than the {MAX_PICKLE_BYTES} that are walked"
        )
        log.add("pt-pickle-size", message, nbytes=info.file_size)
        return _result(source, file_id, log, message)
    with archive.open(info) as stream:
        parts = iter(lambda: stream.read(1 << 20), b"")
        data = b"".join(itertools.islice(parts, MAX_PICKLE_BYTES >> 20))
    walk = walk_pickle(data)
    _walk_rules(walk, log)
    tensors, metadata, complete = flatten(walk.value)
    if not complete:
        log.add("pt-pickle-limit", "the pickled tree has more values than are listed")
    order = _byte_order(archive, prefix, log)
    stored = _Storages(archive, source, prefix, file_id, log).place(tensors)
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="torch_zip",
        size=source.size,
        fingerprint=source.fingerprint,
        parsed=walk.error is None,
        error=walk.error,
        bytes_read=source.bytes_read,
        header_bytes=len(data),
        byte_order=order,
        metadata=metadata,
    )
    return ParsedFile(file=file, tensors=stored, issues=log.done())


def _walk_rules(walk: Walk, log: IssueLog) -> None:
    for label, count in walk.foreign.items():
        message = f"the pickle asks for {label} ({count} times), which is not followed"
        log.add("pt-global", message, label=label, count=count)
    if walk.over_limit:
        log.add("pt-pickle-limit", f"the pickle has {walk.error}")
    elif walk.error:
        message = f"the pickle cannot be followed at byte {walk.position}: {walk.error}"
        log.add("pt-pickle-broken", message, position=walk.position)


def _byte_order(archive: ZipFile, prefix: str, log: IssueLog) -> Literal["little", "big"]:
    try:
        with archive.open(prefix + "byteorder") as stream:
            word = stream.read(16)
    except KeyError:
        return "little"
    if word.strip() != b"big":
        return "little"
    log.add("pt-byteorder", "the tensors are stored big-endian")
    return "big"


class _Storages:
    """Places tensors over the storage entries of a zip."""

    def __init__(
        self, archive: ZipFile, source: ByteSource, prefix: str, file_id: int, log: IssueLog
    ) -> None:
        self._archive = archive
        self._source = source
        self._prefix = prefix
        self._file_id = file_id
        self._log = log
        self._entries: dict[str, _Entry | None] = {}

    def place(self, tensors: dict[str, Tensor]) -> tuple[StoredTensor, ...]:
        """Stored tensors with absolute offsets; strides are given where they are not row-major."""
        return tuple(self._one(name, tensor) for name, tensor in tensors.items())

    def _one(self, name: str, tensor: Tensor) -> StoredTensor:
        bits = 8 if tensor.word == "F4" else {**DTYPE_BITS, "C128": 128}[tensor.word]
        item = bits // 8
        plain = tensor.strides == _row_major(tensor.shape) or 0 in tensor.shape
        span = 0 if 0 in tensor.shape else 1
        for extent, stride in zip(tensor.shape, tensor.strides, strict=False):
            span += (extent - 1) * stride if span else 0
        entry = self._entry(tensor.storage.key)
        readable = entry is not None and not entry.compressed
        start = entry.start if entry else 0
        nbytes = min(span * item, 1 << 62)
        if entry and (tensor.offset + span) * item > entry.nbytes:
            readable = False
            message = (
                f"{name} needs bytes {tensor.offset * item} to {(tensor.offset + span) * item} of storage "
                f"{tensor.storage.key}, which has {entry.nbytes}"
            )
            where = (start, start + entry.nbytes)
            self._log.add("pt-storage-size", message, tensor=name, byte_range=where)
        shape = tensor.shape
        if tensor.word == "F4" and shape:
            # torch counts pairs of elements, safetensors counts elements.
            shape = (*shape[:-1], shape[-1] * 2)
        return StoredTensor(
            name=name,
            dtype=tensor.word,
            shape=shape,
            file_id=self._file_id,
            byte_offset=min(start + tensor.offset * item, 1 << 62),
            nbytes=nbytes,
            strides=None if plain else tensor.strides,
            readable=readable,
        )

    def _entry(self, key: str) -> _Entry | None:
        if key not in self._entries:
            self._entries[key] = self._find(key)
        return self._entries[key]

    def _find(self, key: str) -> _Entry | None:
        name = f"{self._prefix}data/{key}"
        try:
            info = self._archive.getinfo(name)
        except KeyError:
            message = f"the pickle names the storage {key}, the zip has no entry {name}"
            self._log.add("pt-storage-missing", message, key=key)
            return None
        start = self._data_start(info)
        if start is None:
            message = f"the entry {name} has no local header at byte {info.header_offset}"
            self._log.add("pt-storage-missing", message, key=key)
            return None
        compressed = info.compress_type != 0 or bool(info.flag_bits & 1)
        if compressed:
            message = f"the entry {name} is compressed or encrypted and cannot be read in place"
            self._log.add("pt-compressed", message, key=key)
        nbytes = info.file_size
        if not compressed and start + nbytes > self._source.size:
            message = (
                f"the entry {name} ends {start + nbytes - self._source.size} bytes past the file"
            )
            self._log.add("pt-storage-size", message, byte_range=(start, start + nbytes))
            nbytes = max(0, self._source.size - start)
        return _Entry(start, nbytes, compressed)

    def _data_start(self, info: ZipInfo) -> int | None:
        """The local header, not the directory, says how long name and padding are."""
        at = info.header_offset
        if at < 0 or at + _LOCAL_HEADER_BYTES > self._source.size:
            return None
        header = self._source.read_at(at, _LOCAL_HEADER_BYTES)
        if header[:4] != b"PK\x03\x04":
            return None
        name_bytes = int.from_bytes(header[26:28], "little")
        extra_bytes = int.from_bytes(header[28:30], "little")
        return at + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
