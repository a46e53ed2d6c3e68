"""The `inputs` of a report: files with fingerprints and digests of what was read, configs, declarations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from quantscope.checkpoint import Checkpoint
from quantscope.containers.records import OpenedFile
from quantscope.containers.source import ByteSource
from quantscope.decode.ledger import ReadLedger
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.report.schema import Examined, Input, InputConfig, InputFile, Json, Leaf

Range = tuple[int, int]

MAX_LISTED_RANGES = 4096
"""Longer lists of ranges are left out of the report and told by their own digest."""
BLOCK_BYTES = 1 << 22
GAP_BYTES = 1 << 16
"""Ranges closer than this are fetched in one read; only the bytes inside them are hashed."""
MAX_LEAF_CHARS = 4096
"""A longer declared text (a chat template) is given by its head, length and digest."""


def file_digest(source: ByteSource, cancelled: Callable[[], bool] | None = None) -> str:
    """SHA-256 of a whole file, streamed."""
    digest = hashlib.sha256()
    for start in range(0, source.size, BLOCK_BYTES):
        if cancelled is not None and cancelled():
            raise CancelledError("stopped")
        digest.update(source.read_at(start, min(BLOCK_BYTES, source.size - start)))
    return digest.hexdigest()


def ranges_digest(source: ByteSource, ranges: Sequence[Range]) -> str:
    """SHA-256 over the bytes of sorted, disjoint ranges, joined in file order."""
    digest = hashlib.sha256()
    for block in _blocks(ranges):
        first, last = block[0][0], block[-1][1]
        data = memoryview(source.read_at(first, last - first))
        for start, stop in block:
            digest.update(data[start - first : stop - first])
    return digest.hexdigest()


def _blocks(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    block: list[Range] = []
    for whole_start, whole_stop in ranges:
        for start in range(whole_start, whole_stop, BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, whole_stop)
            if block and (start - block[-1][1] > GAP_BYTES or stop - block[0][0] > BLOCK_BYTES):
                yield block
                block = []
            block.append((start, stop))
    if block:
        yield block


def compact_ranges(ranges: Sequence[Range]) -> list[list[int]]:
    """Ranges as `[start, stop]`, runs of at least three equal ones as `[start, stop, stride, count]`."""
    compact: list[list[int]] = []
    position = 0
    while position < len(ranges):
        start, stop = ranges[position]
        run = _run_length(ranges, position)
        if run >= 3:
            compact.append([start, stop, ranges[position + 1][0] - start, run])
            position += run
        else:
            compact.append([start, stop])
            position += 1
    return compact


def _run_length(ranges: Sequence[Range], position: int) -> int:
    if position + 1 >= len(ranges):
        return 1
    start, stop = ranges[position]
    stride = ranges[position + 1][0] - start
    run = 1
    while position + run < len(ranges):
        low, high = ranges[position + run]
        if low != start + run * stride or high - low != stop - start:
            break
        run += 1
    return run


def expand_ranges(compact: Sequence[Sequence[int]]) -> list[Range]:
    """Every single range of a compact list."""
    ranges: list[Range] = []
    for entry in compact:
        start, stop = entry[0], entry[1]
        stride, count = (entry[2], entry[3]) if len(entry) == 4 else (0, 1)
        ranges.extend((start + i * stride, stop + i * stride) for i in range(count))
    return ranges


def ranges_list_digest(compact: Sequence[Sequence[int]]) -> str:
    """SHA-256 of a compact list of ranges, as a report gives it."""
    return hashlib.sha256(json.dumps(compact, separators=(",", ":")).encode()).hexdigest()


def examined(source: ByteSource, ranges: Sequence[Range]) -> Examined | None:
    """Digest of what was read of a file; None where nothing was."""
    if not ranges:
        return None
    compact = compact_ranges(ranges)
    return Examined(
        ranges=compact if len(compact) <= MAX_LISTED_RANGES else None,
        ranges_count=len(ranges),
        ranges_sha256=ranges_list_digest(compact),
        bytes=sum(stop - start for start, stop in ranges),
        sha256=ranges_digest(source, ranges),
    )


def read_ranges(file: OpenedFile, ledger: ReadLedger) -> list[Range]:
    """The header, where all of it was read, and every range that the ledger holds; sorted, disjoint."""
    ranges: list[Range] = [(start, stop) for start, stop in ledger.ranges(file.file_id).tolist()]
    if file.header_bytes and file.bytes_read >= file.header_bytes:
        ranges = _merge([(0, file.header_bytes), *ranges])
    return ranges


def _merge(ranges: Iterable[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def clip_ranges(ranges: Sequence[Range], keep: Sequence[Range]) -> list[Range]:
    """The parts of sorted ranges that lie inside any of the ranges to keep."""
    clipped: list[Range] = []
    wanted = _merge(keep)
    position = 0
    for start, stop in ranges:
        while position < len(wanted) and wanted[position][1] <= start:
            position += 1
        probe = position
        while probe < len(wanted) and wanted[probe][0] < stop:
            clipped.append((max(start, wanted[probe][0]), min(stop, wanted[probe][1])))
            probe += 1
    return clipped


def input_entry(
    checkpoint: Checkpoint,
    ledger: ReadLedger,
    *,
    digests: bool,
    whole_files: bool,
    keep: dict[int, list[Range]] | None = None,
    shown_path: str | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Input:
    """One opened path as a report tells it.

    Args:
        checkpoint: the opened checkpoint.
        ledger: what the inspection read.
        digests: compute digests over what was read.
        whole_files: compute a digest of every file as a whole.
        keep: ranges by file id that a selection by hand leaves; everything where None.
        shown_path: path to show instead of the one typed.
        cancelled: polled while hashing.
    """
    opened = checkpoint.opened
    leaves: dict[str, list[Leaf]] = {}
    for source, value in checkpoint.declarations.leaves():
        leaves.setdefault(source.file, []).append(Leaf(at=str(source), value=leaf_value(value)))
    files = [
        _file_entry(checkpoint, file, ledger, digests, whole_files, keep, leaves, cancelled)
        for file in opened.files
    ]
    configs = [
        InputConfig(
            name=config.name,
            size=config.size,
            sha256=config.sha256,
            error=config.error,
            declarations=leaves.get(config.name, []),
        )
        for config in opened.configs
    ]
    return Input(
        path=opened.path if shown_path is None else shown_path,
        kind=opened.kind,
        files=files,
        config_files=configs,
    )


def _file_entry(
    checkpoint: Checkpoint,
    file: OpenedFile,
    ledger: ReadLedger,
    digests: bool,
    whole_files: bool,
    keep: dict[int, list[Range]] | None,
    leaves: dict[str, list[Leaf]],
    cancelled: Callable[[], bool] | None,
) -> InputFile:
    ranges = read_ranges(file, ledger)
    if keep is not None:
        ranges = clip_ranges(ranges, keep.get(file.file_id, []))
    digest, shown, error = None, None, file.error
    try:
        source = checkpoint.sources[file.file_id]
        source.check_unchanged()
        shown = examined(source, ranges) if digests else None
        digest = file_digest(source, cancelled) if whole_files else None
    except CancelledError:
        raise
    except (QuantscopeError, KeyError, IndexError) as problem:
        error = error or str(problem)
    return InputFile(
        name=file.name,
        kind=file.kind,
        size=file.size,
        fingerprint=file.fingerprint,
        sha256=digest,
        examined=shown,
        bytes_read=max(file.bytes_read, sum(stop - start for start, stop in ranges)),
        parsed=file.parsed,
        error=error,
        declarations=leaves.get(file.name, []),
    )


def unreadable_input(path: str, reason: str) -> Input:
    """A path that could not be opened, as a report tells it."""
    file = InputFile(
        name=path.replace("\\", "/").rstrip("/").rpartition("/")[2],
        kind="unknown",
        size=0,
        fingerprint="",
        sha256=None,
        examined=None,
        bytes_read=0,
        parsed=False,
        error=reason,
        declarations=[],
    )
    return Input(path=path, kind="unreadable", files=[file], config_files=[])


def leaf_value(value: Json) -> Json:
    """A declared value, long text cut to its head with length and digest."""
    if isinstance(value, str) and len(value) > MAX_LEAF_CHARS:
        digest = hashlib.sha256(value.encode("utf-8", errors="surrogatepass")).hexdigest()
        return {"head": value[:256], "characters": len(value), "sha256": digest}
    if isinstance(value, bytes):
        return {"bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    return value
