"""Reader of safetensors headers; every rule of the Rust reader is an issue instead of a refusal.

Rules: huggingface/safetensors, safetensors/src/tensor.rs (read_metadata, validate) and README.md; what
serde_json does with odd texts was taken from safetensors 0.8.0 (see tests/test_containers_safetensors.py).
Offsets in issues are absolute file offsets.
"""

from __future__ import annotations

from quantscope.containers.dtypes import DTYPE_BITS
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.records import OpenedFile, StoredTensor
from quantscope.containers.safetensors_header import (
    MAX_NAMES_IN_DATA,
    U64,
    Entry,
    Header,
    parse_header,
    salvage,
)
from quantscope.containers.sniff import HEAD_BYTES, MAGIC_WORDS, lfs_facts, sniff
from quantscope.containers.source import ByteSource
from quantscope.errors import FileChangedError

MAX_HEADER_BYTES = 100_000_000
"""tensor.rs MAX_HEADER_SIZE."""


def read_safetensors(source: ByteSource, file_id: int) -> ParsedFile:
    """Reads the header of a safetensors file and lists every entry that makes sense.

    Bytes read are the header's, never a tensor's.

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
    size = source.size
    head = source.read_at(0, min(size, HEAD_BYTES))
    words = _not_safetensors(head, size, log)
    if words:
        return _failed(source, file_id, log, words)
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        message = (
            f"the first 8 bytes give a header of {length} bytes, above the limit of "
            f"{MAX_HEADER_BYTES} and in a file of {size} bytes"
        )
        log.add("st-header-too-large", message, byte_range=(0, 8), length=length, file_size=size)
        return _failed(source, file_id, log, message)
    cut = 8 + length > size
    if cut:
        message = (
            f"the header should end at byte {8 + length}, but the file ends at byte {size}, "
            f"{8 + length - size} bytes short"
        )
        log.add("st-header-past-end", message, byte_range=(0, 8), length=length, file_size=size)
    text = source.read_at(8, min(length, size - 8))
    header, error = salvage(text) if cut else parse_header(text, log)
    if header is None:
        return _failed(source, file_id, log, error or message, header_bytes=length)
    tensors = _judge(header, 8 + length, size, file_id, log, cut=cut)
    parsed = not error or bool(tensors)
    if cut:
        error = message
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="safetensors",
        size=size,
        fingerprint=source.fingerprint,
        parsed=parsed and not cut,
        error=error,
        bytes_read=source.bytes_read,
        header_bytes=8 + length,
        data_offset=8 + length,
        metadata=header.metadata,
    )
    return ParsedFile(file=file, tensors=tensors, issues=log.done())


def _not_safetensors(head: bytes, size: int, log: IssueLog) -> str | None:
    """Names a file that is plainly something else; None where it may be safetensors."""
    magic = sniff(head, size)
    if magic == "empty":
        message = "the file is empty (0 bytes)"
        log.add("st-empty-file", message)
    elif magic == "lfs":
        oid, real = lfs_facts(head)
        message = f"this is a Git-LFS pointer of {size} bytes, not tensor data"
        if real is not None:
            message += f"; the real file has {real} bytes"
        log.add(
            "st-lfs-pointer", message, byte_range=(0, min(size, HEAD_BYTES)), oid=oid, size=real
        )
    elif magic == "html":
        message = f"this is an HTML page of {size} bytes, not tensor data"
        log.add("st-html-page", message, byte_range=(0, min(size, HEAD_BYTES)))
    elif magic in MAGIC_WORDS and magic != "safetensors":
        message = f"this is {MAGIC_WORDS[magic]}, not a safetensors file"
        log.add("st-other-container", message, byte_range=(0, 4), magic=magic)
    elif size < 8:
        message = f"the file has {size} bytes, fewer than the 8 of the header length"
        log.add("st-too-short", message, byte_range=(0, size))
    else:
        return None
    return message


def _failed(
    source: ByteSource, file_id: int, log: IssueLog, error: str, header_bytes: int = 0
) -> ParsedFile:
    file = OpenedFile(
        file_id=file_id,
        name=source.name,
        path=source.path,
        kind="safetensors",
        size=source.size,
        fingerprint=source.fingerprint,
        parsed=False,
        error=error,
        bytes_read=source.bytes_read,
        header_bytes=min(header_bytes + 8, source.size),
    )
    return ParsedFile(file=file, issues=log.done())


def _judge(
    header: Header, data_offset: int, size: int, file_id: int, log: IssueLog, *, cut: bool
) -> tuple[StoredTensor, ...]:
    """Entries as tensors, after the size rule and the layout rules were applied."""
    tensors: list[StoredTensor] = []
    ranges: list[tuple[int, int, str]] = []
    sound = header.sound
    for name, entry in header.entries.items():
        begin, end = entry.data_offsets
        if not _entry_numbers(name, entry, log):
            sound = False
            continue
        if begin > end:
            message = f"{name} begins at offset {begin} and ends before it, at {end}"
            log.add("st-offsets-reversed", message, tensor=name, begin=begin, end=end)
            sound = False
        else:
            ranges.append((begin, end, name))
            _size_rule(name, entry, data_offset, log)
        tensors.append(
            StoredTensor(
                name=name,
                dtype=entry.dtype,
                shape=tuple(entry.shape),
                file_id=file_id,
                byte_offset=data_offset + begin,
                nbytes=max(0, end - begin),
                readable=begin <= end and data_offset + end <= size,
            )
        )
    if not cut:
        _layout_rules(sorted(ranges), data_offset, size, sound, log)
    return tuple(tensors)


def _entry_numbers(name: str, entry: Entry, log: IssueLog) -> bool:
    """False where a number lies outside of u64, which makes the entry meaningless."""
    numbers = (*entry.shape, *entry.data_offsets)
    lowest, highest = min(numbers), max(numbers)
    if lowest < 0:
        message = f"the entry of {name} holds the negative number {lowest}"
        log.add("st-negative", message, tensor=name)
        return False
    if highest >= U64:
        words = str(highest)[:40]
        message = f"the entry of {name} holds {words}, which is no unsigned 64-bit integer"
        log.add("st-entry-malformed", message, tensor=name)
        return False
    return True


def _size_rule(name: str, entry: Entry, data_offset: int, log: IssueLog) -> None:
    begin, end = entry.data_offsets
    where = (data_offset + begin, data_offset + end)
    bits = DTYPE_BITS.get(entry.dtype)
    if bits is None:
        message = f"{name} has the dtype {entry.dtype}, which the format does not have"
        log.add("st-dtype-unknown", message, tensor=name, byte_range=where, dtype=entry.dtype)
        return
    count = 1
    for extent in entry.shape:
        count *= extent
        if count >= U64:
            break
    if count * bits >= U64:
        message = f"the shape of {name} has more elements than 64 bits can count"
        log.add("st-shape-overflow", message, tensor=name, byte_range=where, shape=entry.shape)
    elif count * bits % 8:
        message = f"{name} has {count} elements of {bits} bits, which do not fill whole bytes"
        log.add("st-sub-byte", message, tensor=name, byte_range=where, bits=count * bits)
    elif count * bits // 8 != end - begin:
        need = count * bits // 8
        message = (
            f"{name} needs {need} bytes by its shape and dtype, its offsets give {end - begin}"
        )
        log.add(
            "st-size-mismatch",
            message,
            tensor=name,
            byte_range=where,
            expected_bytes=need,
            actual_bytes=end - begin,
            shape=entry.shape,
            dtype=entry.dtype,
        )


def _layout_rules(
    ranges: list[tuple[int, int, str]], data_offset: int, size: int, sound: bool, log: IssueLog
) -> None:
    """Ranges sorted by offset must follow each other without gap and end where the file ends."""
    last_end, last_begin, last_name = 0, -1, ""
    beyond: list[str] = []
    for begin, end, name in ranges:
        where = (data_offset + begin, data_offset + end)
        if begin < last_end:
            if (begin, end) == (last_begin, last_end):
                message = (
                    f"{name} and {last_name} have the same bytes 0x{where[0]:x}..0x{where[1]:x}"
                )
                log.add("st-alias", message, tensor=name, byte_range=where, other=last_name)
            else:
                shared = min(end, last_end) - begin
                message = (
                    f"{name} begins at byte 0x{where[0]:x}, but {last_name} ends at "
                    f"0x{data_offset + last_end:x}: {shared} bytes are shared"
                )
                log.add(
                    "st-overlap",
                    message,
                    tensor=name,
                    byte_range=where,
                    other=last_name,
                    shared_bytes=shared,
                )
        elif begin > last_end and sound:
            hole = (data_offset + last_end, data_offset + begin)
            message = (
                f"{begin - last_end} bytes before {name}, 0x{hole[0]:x}..0x{hole[1]:x}, "
                f"belong to no tensor"
            )
            log.add("st-hole", message, tensor=name, byte_range=hole, nbytes=begin - last_end)
        if data_offset + end > size:
            beyond.append(name)
        if end >= last_end:
            last_end, last_begin, last_name = end, begin, name
    _end_rule(data_offset + last_end, data_offset, size, beyond, sound, log)


def _end_rule(
    last: int, data_offset: int, size: int, beyond: list[str], sound: bool, log: IssueLog
) -> None:
    if beyond:
        message = (
            f"the file is {last - size} bytes shorter than its header says: "
            f"{len(beyond)} tensor{'s reach' if len(beyond) > 1 else ' reaches'} past byte 0x{size:x}"
        )
        log.add(
            "st-past-end",
            message,
            tensor=beyond[0] if len(beyond) == 1 else None,
            byte_range=(size, last),
            missing_bytes=last - size,
            count=len(beyond),
            tensors=beyond[:MAX_NAMES_IN_DATA],
        )
    elif last < size and data_offset <= size and sound:
        message = f"{size - last} bytes after the last tensor, from 0x{last:x}, belong to nobody"
        log.add("st-trailing-bytes", message, byte_range=(last, size), nbytes=size - last)
