"""Where the tensors of a GGUF file lie, and the rules that their places and sizes must keep.

Rules: ggml-org/llama.cpp ggml/src/gguf.cpp; per-row bytes and reused ids of forks: see `ggml_types`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from quantscope.containers.ggml_types import (
    FORK_READINGS,
    GGML_TYPES,
    INTERLEAVED_IDS,
    GgmlType,
    type_name,
)
from quantscope.containers.issues import IssueLog
from quantscope.containers.records import StoredTensor

_I63 = 1 << 63
_NO_SIZE = -1


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the tensor list as it stands in the file, dims with the fastest axis first."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int
    header_range: tuple[int, int]


class _Placed(msgspec.Struct):
    info: TensorInfo
    name: str
    nbytes: int
    """Bytes that the type needs, or -1 where it has no size."""
    room: int
    """Bytes up to the next tensor, or to the end of the file."""


def place_tensors(
    infos: Sequence[TensorInfo],
    *,
    file_id: int,
    data_offset: int,
    alignment: int,
    size: int,
    complete: bool,
    log: IssueLog,
) -> tuple[StoredTensor, ...]:
    """Tensors with absolute offsets, after all layout rules.

    Args:
        infos: entries in listed order.
        file_id: id of the file.
        data_offset: where the data section begins, absolute.
        alignment: of the data section.
        size: of the file.
        complete: False where the list ended early, so that the data section cannot be found.
        log: takes the issues.

    Returns:
        One tensor for each distinct name; shape is row-major, the dims reversed.
    """
    placed = _with_rooms(infos, data_offset, size)
    _type_rules(placed, log)
    if complete and placed:
        if data_offset > size:
            message = f"the tensor data should begin at byte {data_offset}, the file ends at {size}"
            log.add("gg-bounds", message, byte_range=(size, data_offset))
        _layout_rules(placed, data_offset, alignment, log)
        _bounds_rules(placed, data_offset, alignment, size, log)
    tensors: dict[str, StoredTensor] = {}
    for one in placed:
        info = one.info
        at = data_offset + info.offset if complete else 0
        if info.name in tensors:
            first = tensors[info.name]
            message = (
                f"the tensor name {info.name} stands twice, at bytes {first.byte_offset} and {at}"
            )
            log.add(
                "gg-name-duplicate",
                message,
                tensor=info.name,
                byte_range=(at, at + max(0, one.nbytes)),
                first_offset=first.byte_offset,
                second_offset=at,
            )
            continue
        nbytes = one.nbytes if one.nbytes != _NO_SIZE else max(0, one.room)
        tensors[info.name] = StoredTensor(
            name=info.name,
            dtype=one.name,
            shape=tuple(reversed(info.dims)),
            file_id=file_id,
            byte_offset=at,
            nbytes=nbytes,
            type_id=info.type_id,
            readable=complete and one.nbytes != _NO_SIZE and at + nbytes <= size,
        )
    return tuple(tensors.values())


def _with_rooms(infos: Sequence[TensorInfo], data_offset: int, size: int) -> list[_Placed]:
    """Each tensor with the bytes up to the next greater offset."""
    ends = sorted({info.offset for info in infos})
    following = dict(itertools.pairwise([*ends, max(size - data_offset, 0)]))
    placed = []
    for info in infos:
        room = following[info.offset] - info.offset
        kind = _reading(info, room)
        nbytes = (
            kind.nbytes(info.dims) if kind and all(extent > 0 for extent in info.dims) else None
        )
        if nbytes is not None and nbytes >= _I63:
            nbytes = None
        name = kind.name if kind else type_name(info.type_id)
        placed.append(_Placed(info, name, _NO_SIZE if nbytes is None else nbytes, room))
    return placed


def _reading(info: TensorInfo, room: int) -> GgmlType | None:
    """The type of an id; where a fork reuses the id, the reading whose size fits the room."""
    mainline = GGML_TYPES.get(info.type_id)
    forks = FORK_READINGS.get(info.type_id)
    if not forks:
        return mainline
    fits = [
        kind
        for kind in (mainline, *forks)
        if kind is not None and 0 <= room - (kind.nbytes(info.dims) or _I63) < 64
    ]
    return fits[0] if fits else mainline


def _type_rules(placed: list[_Placed], log: IssueLog) -> None:
    """Rules on one entry alone: dims, row length, type id."""
    recent: dict[int, list[str]] = {}
    for one in placed:
        info = one.info
        where = info.header_range
        _dims_rules(info, log)
        kind = GGML_TYPES.get(info.type_id)
        if kind is None:
            words = "which no known ggml has"
            if info.type_id in INTERLEAVED_IDS:
                words = f"a row-interleaved type of ik_llama.cpp (base {info.type_id - 200})"
            message = f"{info.name} has the type id {info.type_id}, {words}"
            slug = "gg-type-fork" if info.type_id in INTERLEAVED_IDS else "gg-type-unknown"
            log.add(slug, message, tensor=info.name, byte_range=where, type_id=info.type_id)
            continue
        if kind.status == "recent" and one.name == kind.name:
            recent.setdefault(info.type_id, []).append(info.name)
        elif kind.status == "fork" or one.name != kind.name:
            project = kind.project
            if one.name != kind.name:
                project = FORK_READINGS[info.type_id][0].project
            message = (
                f"{info.name} has the type id {info.type_id} ({one.name}), which only {project} has"
            )
            log.add(
                "gg-type-fork",
                message,
                tensor=info.name,
                byte_range=where,
                type_id=info.type_id,
                project=project,
            )
        elif kind.status == "withdrawn":
            forks = FORK_READINGS.get(info.type_id, ())
            also = f"; {forks[0].project} uses the id for {forks[0].name}" if forks else ""
            message = f"{info.name} has the type id {info.type_id} ({kind.name}), which was withdrawn{also}"
            log.add(
                "gg-type-withdrawn",
                message,
                tensor=info.name,
                byte_range=where,
                type_id=info.type_id,
            )
        row = info.dims[0] if info.dims else 1
        if kind.block_size and row > 0 and row % kind.block_size and one.name == kind.name:
            message = (
                f"{info.name} has rows of {row} elements, no multiple of the {kind.block_size} of a "
                f"{kind.name} block"
            )
            log.add("gg-row-length", message, tensor=info.name, byte_range=where, row=row)
    for type_id, names in recent.items():
        message = (
            f"{len(names)} tensors have the type id {type_id} ({type_name(type_id)}), which readers "
            f"of before it was added refuse"
        )
        tensor = names[0] if len(names) == 1 else None
        log.add("gg-type-recent", message, tensor=tensor, type_id=type_id, count=len(names))


def _dims_rules(info: TensorInfo, log: IssueLog) -> None:
    where = info.header_range
    count = 1
    for axis, extent in enumerate(info.dims):
        if extent <= 0:
            message = f"dimension {axis} of {info.name} is {extent}"
            log.add("gg-dim-value", message, tensor=info.name, byte_range=where, dims=info.dims)
            return
        count *= extent
    if count >= _I63 - 1:
        message = f"{info.name} has {count} elements, more than 63 bits can count"
        log.add(
            "gg-dims-overflow",
            message,
            tensor=info.name,
            byte_range=where,
            dims=[str(extent) for extent in info.dims],
        )


def _layout_rules(placed: list[_Placed], data_offset: int, alignment: int, log: IssueLog) -> None:
    """Every offset must be the aligned sum of the sizes before it, in listed order."""
    offsets = [one.info.offset for one in placed]
    if any(later < earlier for earlier, later in itertools.pairwise(offsets)):
        message = "the offsets do not follow the order of the tensor list, which llama.cpp demands"
        log.add("gg-offset-order", message)
    for one in placed:
        if one.info.offset % alignment:
            at = data_offset + one.info.offset
            message = (
                f"{one.info.name} lies at offset {one.info.offset}, no multiple of {alignment}"
            )
            log.add(
                "gg-offset-align",
                message,
                tensor=one.info.name,
                byte_range=(at, at + max(0, one.nbytes)),
                offset=one.info.offset,
                alignment=alignment,
            )
    ordered = sorted(placed, key=lambda one: one.info.offset)
    first = ordered[0].info
    if first.offset:
        message = f"{first.offset} bytes lie before the first tensor {first.name}"
        where = (data_offset, data_offset + first.offset)
        log.add("gg-region-gap", message, tensor=first.name, byte_range=where, nbytes=first.offset)
    for one, following in itertools.pairwise(ordered):
        _neighbours(one, following, data_offset, alignment, log)


def _neighbours(
    one: _Placed, following: _Placed, data_offset: int, alignment: int, log: IssueLog
) -> None:
    if one.nbytes == _NO_SIZE:
        return
    end = one.info.offset + one.nbytes
    room = following.info.offset - one.info.offset
    at = data_offset + one.info.offset
    if room < one.nbytes:
        message = (
            f"{one.info.name} has {room} bytes before {following.info.name} begins, its type needs "
            f"{one.nbytes}: {one.nbytes - room} bytes overlap"
        )
        log.add(
            "gg-region-short",
            message,
            tensor=one.info.name,
            byte_range=(at, at + one.nbytes),
            other=following.info.name,
            reserved_bytes=room,
            expected_bytes=one.nbytes,
        )
    padded = -(-end // alignment) * alignment
    if following.info.offset > padded:
        gap = following.info.offset - padded
        message = (
            f"{gap} bytes between {one.info.name} and {following.info.name} belong to no tensor"
        )
        where = (data_offset + padded, data_offset + following.info.offset)
        log.add(
            "gg-region-gap",
            message,
            tensor=following.info.name,
            byte_range=where,
            nbytes=gap,
            other=one.info.name,
        )


def _bounds_rules(
    placed: list[_Placed], data_offset: int, alignment: int, size: int, log: IssueLog
) -> None:
    last = 0
    inside = True
    for one in placed:
        start = data_offset + one.info.offset
        end = start + max(0, one.nbytes)
        last = max(last, end)
        if end > size or start > size:
            inside = False
            message = f"{one.info.name} ends {end - size} bytes past the end of the file"
            log.add(
                "gg-bounds",
                message,
                tensor=one.info.name,
                byte_range=(start, end),
                missing_bytes=end - size,
                file_size=size,
            )
    if not inside or any(one.nbytes == _NO_SIZE for one in placed):
        return
    padded = data_offset + -(-(last - data_offset) // alignment) * alignment
    if size < padded:
        message = f"the file ends at byte {size}, {padded - size} bytes before the padded end"
        log.add("gg-tail-padding", message, byte_range=(size, padded), missing_bytes=padded - size)
    elif size > padded:
        message = f"{size - padded} bytes follow the padded end of the last tensor at byte {padded}"
        log.add("gg-tail-padding", message, byte_range=(padded, size), extra_bytes=size - padded)
