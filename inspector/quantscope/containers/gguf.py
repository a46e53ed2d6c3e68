"""Reader of GGUF headers, v2 and v3, little and big endian; every rule of gguf.cpp is an issue.

Rules: ggml-org/llama.cpp ggml/src/gguf.cpp (gguf_init_from_reader) and ggml docs/gguf.md. Tensor offsets in
the file count from the data section; those handed on are absolute.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from quantscope.containers.gguf_kv import (
    VALUE_TYPES,
    ByteOrder,
    Cursor,
    HeaderEndError,
    read_array,
    read_value,
)
from quantscope.containers.gguf_layout import TensorInfo, place_tensors
from quantscope.containers.issues import IssueLog, severity_of
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.records import Json, OpenedFile
from quantscope.containers.sniff import HEAD_BYTES, MAGIC_WORDS, OLD_GGML, lfs_facts, sniff
from quantscope.containers.source import ByteSource
from quantscope.errors import FileChangedError

__all__ = ["RAW_PART", "read_array", "read_gguf"]

DEFAULT_ALIGNMENT = 32
LATEST_VERSION = 3
MAX_KEYS = 200_000
MAX_TENSORS = 100_000
MAX_HEADER_BYTES = 1 << 28
MAX_NAME_BYTES = 64
"""ggml.h GGML_MAX_NAME, the closing zero byte included."""

MAX_DIMS = 4
_I63 = 1 << 63

RAW_PART = re.compile(
    r"(\.part[-_]?\d+[-_]?of[-_]?\d+|\.gguf[-_.](?:part|split)[-_]?[a-z0-9]+|\.gguf\.\d{2,3})$",
    re.IGNORECASE,
)
"""Names that people give to raw pieces of a file (split, dd), which are no shards."""


class _Head(msgspec.Struct):
    """What was read so far; `error` says why reading stopped early."""

    version: int
    order: ByteOrder
    metadata: dict[str, Json]
    types: dict[str, int]
    infos: list[TensorInfo]
    alignment: int = DEFAULT_ALIGNMENT
    end: int = 0
    error: str | None = None
    complete: bool = False


def read_gguf(source: ByteSource, file_id: int) -> ParsedFile:
    """Reads the header of a GGUF file and lists every tensor that makes sense.

    Bytes read are the header's; vocabularies are walked, not kept.

    Raises:
        UnreadableError: the system refused a read.
    """
    log = IssueLog(source.name)
    try:
        return _read(source, file_id, log)
    except FileChangedError as error:
        log.add("file-changed", error.message)
        return _failed(source, file_id, log, error.message)


def _read(source: ByteSource, file_id: int, log: IssueLog) -> ParsedFile:
    head = source.read_at(0, min(source.size, HEAD_BYTES))
    words = _not_gguf(head, source, log)
    if words:
        return _failed(source, file_id, log, words)
    if len(head) < 8:
        message = f"the file ends at byte {len(head)}, before its version"
        log.add("gg-truncated-header", message, byte_range=(0, len(head)))
        return _failed(source, file_id, log, message)
    version = int.from_bytes(head[4:8], "little")
    order: ByteOrder = "little"
    if version and version & 0xFFFF == 0:
        order, version = "big", int.from_bytes(head[4:8], "big")
    if order == "big" and version in (2, 3):
        message = f"big-endian GGUF v{version}: numbers are byte-swapped to be shown"
        log.add("gg-big-endian", message, byte_range=(4, 8), version=version)
    if version not in (2, 3):
        return _odd_version(source, file_id, log, version, order)
    return _finish(source, file_id, log, _parse(source, log, version, order))


def _odd_version(
    source: ByteSource, file_id: int, log: IssueLog, version: int, order: ByteOrder
) -> ParsedFile:
    """A version that no reader takes; read as v3 if that goes through without a fault."""
    message = f"GGUF version {version}: readers take versions 2 and 3"
    if version == 1:
        message = "GGUF v1, whose counts and lengths have 32 bits: readers no longer take it"
    log.add("gg-version", message, byte_range=(4, 8), version=version)
    if version != 1:
        trial = IssueLog(source.name)
        parsed = _finish(source, file_id, trial, _parse(source, trial, version, order))
        if all(severity_of(issue) != "violation" for issue in parsed.issues):
            file = msgspec.structs.replace(parsed.file, error=message)
            return ParsedFile(
                file=file, tensors=parsed.tensors, issues=(*log.done(), *parsed.issues)
            )
    return _failed(source, file_id, log, message, version=version, order=order)


def _not_gguf(head: bytes, source: ByteSource, log: IssueLog) -> str | None:
    """Names a file that is something else; None where the magic is right."""
    magic = sniff(head, source.size)
    if magic == "gguf":
        return None
    shown = head[:4].hex()
    where = (0, min(4, source.size))
    if magic == "empty":
        message = "the file is empty (0 bytes)"
        log.add("gg-empty-file", message)
    elif magic == "lfs":
        oid, real = lfs_facts(head)
        message = f"this is a Git-LFS pointer of {source.size} bytes, not tensor data"
        if real is not None:
            message += f"; the real file has {real} bytes"
        log.add("gg-lfs-pointer", message, byte_range=where, oid=oid, size=real)
    elif magic == "html":
        message = f"this is an HTML page of {source.size} bytes, not tensor data"
        log.add("gg-html-page", message, byte_range=where)
    elif RAW_PART.search(source.name):
        message = (
            f"the first bytes are {shown}, not GGUF: the name says a raw part of a larger file"
        )
        log.add("gg-raw-part", message, byte_range=where, magic=shown)
    elif head[:4] in OLD_GGML:
        message = f"this is {MAGIC_WORDS[OLD_GGML[head[:4]]]}: convert it with its own tool first"
        log.add("gg-old-container", message, byte_range=where, magic=shown)
    elif not any(head[:4]):
        message = f"the magic is {shown}: the header region is blank"
        log.add("gg-blank-header", message, byte_range=where, magic=shown)
    else:
        also = f"; this is {MAGIC_WORDS[magic]}" if magic in MAGIC_WORDS else ""
        message = f"the first bytes are {shown}, not 47475546 (GGUF){also}"
        log.add("gg-magic", message, byte_range=where, magic=shown)
    return message


def _failed(
    source: ByteSource,
    file_id: int,
    log: IssueLog,
    error: str,
    *,
    version: int | None = None,
    order: Literal["little", "big"] = "little",
) -> ParsedFile:
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="gguf",
        size=source.size,
        fingerprint=source.fingerprint,
        parsed=False,
        error=error,
        bytes_read=source.bytes_read,
        byte_order=order,
        version=version,
    )
    return ParsedFile(file=file, issues=log.done())


def _parse(source: ByteSource, log: IssueLog, version: int, order: ByteOrder) -> _Head:
    """Counts, keys and tensor infos, as far as they can be followed."""
    head = _Head(version, order, {}, {}, [])
    cursor = Cursor(source, order, 8)
    try:
        n_tensors, n_keys = cursor.u64("the counts"), cursor.u64("the counts")
        _check_count(cursor, log, "n_kv", n_keys, 13, MAX_KEYS)
        for place in range(n_keys):
            _read_key(cursor, log, head, place)
        _alignment(head, log)
        _check_count(cursor, log, "n_tensors", n_tensors, 24, MAX_TENSORS)
        for place in range(n_tensors):
            head.infos.append(_read_info(cursor, log, place))
            if cursor.position > MAX_HEADER_BYTES:
                message = (
                    f"the header goes on after {MAX_HEADER_BYTES} bytes and is not read further"
                )
                raise HeaderEndError("gg-header-over-limit", message, (0, cursor.position))
        head.complete = True
    except HeaderEndError as error:
        head.error = error.message
        log.add(error.slug, error.message, byte_range=error.byte_range)
    head.end = cursor.position
    if cursor.bad_text:
        message = f"{cursor.bad_text} keys, names or values are no UTF-8"
        log.add("gg-string-utf8", message, count=cursor.bad_text)
    return head


def _check_count(
    cursor: Cursor, log: IssueLog, name: str, count: int, least: int, limit: int
) -> None:
    where = (8, 16) if name == "n_tensors" else (16, 24)
    if count >= _I63 or count * least > cursor.left:
        shown = count - (1 << 64) if count >= _I63 else count
        message = (
            f"{name} is {shown}, which takes at least {least} bytes each, where {cursor.left} bytes "
            f"are left in the file"
        )
        raise HeaderEndError("gg-counts", message, where)
    if count > limit:
        message = f"{name} is {count}, above the {limit} that are listed"
        raise HeaderEndError("gg-header-over-limit", message, where)


def _read_key(cursor: Cursor, log: IssueLog, head: _Head, place: int) -> None:
    start = cursor.position
    key = cursor.name(f"key {place}")
    where = (start, cursor.position)
    if not key:
        log.add("gg-key-empty", f"key {place} at byte {start} is empty", byte_range=where)
    elif where[1] - where[0] > 8 + 65535:
        message = f"key {place} has {where[1] - where[0] - 8} bytes; the format allows 65535"
        log.add("gg-key-long", message, byte_range=where)
    type_id = cursor.u32(f"the type of {key}")
    value, odd = read_value(cursor, key, type_id)
    where = (start, cursor.position)
    for slug in odd:
        words = {
            "gg-bool-value": "holds a boolean that is neither 0 nor 1",
            "gg-array-nested": "is an array of arrays, which llama.cpp refuses",
        }[slug]
        log.add(slug, f"{key} {words}", byte_range=where, key=key)
    if key in head.metadata:
        message = f"the key {key} stands twice, the second time at byte {start}"
        log.add("gg-key-duplicate", message, byte_range=where, key=key)
        return
    head.metadata[key] = value
    head.types[key] = type_id


def _alignment(head: _Head, log: IssueLog) -> None:
    key = "general.alignment"
    if key not in head.metadata:
        return
    value, type_id = head.metadata[key], head.types[key]
    if VALUE_TYPES[type_id] != "uint32":
        message = f"{key} is a {VALUE_TYPES[type_id]}; it must be a uint32"
        log.add("gg-alignment-type", message, key=key, value_type=VALUE_TYPES[type_id])
    if not isinstance(value, int) or isinstance(value, bool):
        return
    if value <= 0 or value & (value - 1):
        message = f"{key} is {value}, which is no power of two; {DEFAULT_ALIGNMENT} is assumed"
        log.add("gg-alignment-value", message, key=key, value=value)
        return
    if value < 8 or value > 1 << 20:
        message = f"{key} is {value}; the format asks for a multiple of 8, and writers use 32"
        log.add("gg-alignment-absurd", message, key=key, value=value)
    head.alignment = value


def _read_info(cursor: Cursor, log: IssueLog, place: int) -> TensorInfo:
    start = cursor.position
    name = cursor.name(f"the name of tensor {place}")
    name_bytes = cursor.position - start - 8
    n_dims = cursor.u32(f"the dimensions of {name}")
    where = (cursor.position - 4, cursor.position)
    if n_dims > MAX_DIMS:
        message = f"n_dims of {name} is {n_dims}, over the limit of {MAX_DIMS}"
        if n_dims > 64 or n_dims * 8 + 12 > cursor.left:
            raise HeaderEndError("gg-n-dims", message, where)
        log.add("gg-n-dims", message, tensor=name, byte_range=where, n_dims=n_dims)
    elif n_dims == 0:
        message = f"{name} has no dimensions"
        log.add("gg-n-dims", message, tensor=name, byte_range=where, n_dims=0)
    raw = cursor.numbers(11, n_dims, f"the dimensions of {name}")
    type_id = cursor.u32(f"the type of {name}")
    offset = cursor.u64(f"the offset of {name}")
    if name_bytes >= MAX_NAME_BYTES:
        message = f"the name of tensor {place} has {name_bytes} bytes; readers take at most 63"
        log.add("gg-name-long", message, tensor=name, byte_range=(start, start + 8 + name_bytes))
    elif not name_bytes:
        message = f"tensor {place} at byte {start} has an empty name"
        log.add("gg-name-empty", message, tensor=name, byte_range=(start, start + 8))
    return TensorInfo(
        name=name,
        dims=tuple(int(extent) for extent in raw),
        type_id=type_id,
        offset=offset,
        header_range=(start, cursor.position),
    )


def _finish(source: ByteSource, file_id: int, log: IssueLog, head: _Head) -> ParsedFile:
    """The tensors of a head, placed in the file."""
    data_offset = head.end
    if head.infos:
        data_offset = -(-head.end // head.alignment) * head.alignment
    tensors = place_tensors(
        head.infos,
        file_id=file_id,
        data_offset=data_offset,
        alignment=head.alignment,
        size=source.size,
        complete=head.complete,
        log=log,
    )
    past = log.count("gg-bounds")
    if past and RAW_PART.search(source.name):
        message = (
            f"the header lists {len(head.infos)} tensors, {past} lie past the end: this is a raw part "
            f"of a larger file"
        )
        log.add("gg-raw-part", message, count=past, tensors=len(head.infos))
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="gguf",
        size=source.size,
        fingerprint=source.fingerprint,
        parsed=head.complete,
        error=head.error,
        bytes_read=source.bytes_read,
        header_bytes=head.end,
        byte_order=head.order,
        version=head.version,
        alignment=head.alignment,
        data_offset=data_offset,
        metadata=head.metadata,
    )
    return ParsedFile(file=file, tensors=tensors, issues=log.done())
