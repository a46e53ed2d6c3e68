"""The index of a sharded checkpoint, and how it agrees with the shards.

Format: huggingface_hub and transformers, `model.safetensors.index.json` =
{"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}.
"""

from __future__ import annotations

import os
from collections import Counter

import msgspec

from quantscope.containers.assembly import Assembly, stays_inside, unsafe_name
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.records import Json, StoredTensor
from quantscope.containers.source import ByteSource
from quantscope.containers.strictjson import parse_json
from quantscope.errors import QuantscopeError

MAX_INDEX_BYTES = 64 << 20
MAX_INDEX_NODES = 4_000_000
MAX_NAMES_IN_DATA = 1000


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed index; `weight_map` holds only pairs of strings."""

    name: str
    raw: Json
    weight_map: dict[str, str]
    readable: bool


def read_index(root: str, name: str, log: IssueLog) -> ShardIndex:
    """Reads an index file; what is wrong with it goes to `log`."""
    empty = ShardIndex(name=name, raw=None, weight_map={}, readable=False)
    try:
        with ByteSource(os.path.join(root, name), name=name) as source:
            if source.size > MAX_INDEX_BYTES:
                message = (
                    f"{name} has {source.size} bytes, more than the {MAX_INDEX_BYTES} that are read"
                )
                log.add("index-unreadable", message)
                return empty
            result = parse_json(source.read_at(0, source.size), max_nodes=MAX_INDEX_NODES)
    except QuantscopeError as error:
        log.add("index-unreadable", error.message)
        return empty
    if result.error:
        log.add("index-unreadable", f"{name} {result.error}")
        return empty
    raw = result.value
    if not isinstance(raw, dict) or not isinstance(raw.get("weight_map"), dict):
        what = "its weight_map is no object" if isinstance(raw, dict) else "it is no object"
        log.add("index-not-object", f"{name} is no index: {what}")
        return empty
    for key in dict.fromkeys(result.duplicates):
        log.add("index-duplicate-key", f"{name} gives the key {key} twice", tensor=key, key=key)
    weight_map: dict[str, str] = {}
    for tensor, file in raw["weight_map"].items():
        if isinstance(file, str):
            weight_map[tensor] = file
        else:
            message = f"{name} maps {tensor} to something that is no file name"
            log.add("index-entry", message, tensor=tensor)
    return ShardIndex(name=name, raw=raw, weight_map=weight_map, readable=True)


def open_shards(assembly: Assembly, index: ShardIndex, log: IssueLog) -> dict[str, ParsedFile]:
    """Opens every shard that the index names and that lies in the folder, by name."""
    counts = Counter(index.weight_map.values())
    shards: dict[str, ParsedFile] = {}
    for name in sorted(counts):
        reason = unsafe_name(name)
        path = os.path.join(assembly.root, name)
        if reason is None and not stays_inside(assembly.root, path):
            reason = "leads to a file outside of the folder"
        if reason:
            message = f"{index.name} names the shard {name[:200]}, which {reason}; it is not opened"
            log.add("index-name-outside", message, shard=name, count=counts[name])
            continue
        if not os.path.lexists(path):
            message = f"{index.name} names {name}, which is not there ({counts[name]} tensors)"
            missing = [tensor for tensor, file in index.weight_map.items() if file == name]
            log.add(
                "index-shard-missing",
                message,
                shard=name,
                count=counts[name],
                tensors=missing[:MAX_NAMES_IN_DATA],
            )
            continue
        parsed = assembly.add(name)
        if parsed is None:
            message = f"{index.name} names {name}, which is no container of tensors"
            log.add("index-shard-broken", message, shard=name, count=counts[name])
        else:
            shards[name] = parsed
    return shards


def match_index(
    index: ShardIndex, shards: dict[str, ParsedFile], log: IssueLog
) -> tuple[StoredTensor, ...]:
    """Compares the index with the headers of its shards.

    Returns:
        One tensor for each name: of two with one name, the one that the index maps to.
    """
    held: dict[str, list[StoredTensor]] = {}
    file_names: dict[int, str] = {}
    for name, parsed in shards.items():
        file_names[parsed.file.file_id] = name
        for tensor in parsed.tensors:
            held.setdefault(tensor.name, []).append(tensor)
    _mapped_rule(index, shards, held, file_names, log)
    chosen: list[StoredTensor] = []
    for name, copies in held.items():
        pick = copies[0]
        if len(copies) > 1:
            target = index.weight_map.get(name)
            pick = next((one for one in copies if file_names[one.file_id] == target), pick)
            _twice("index-tensor-twice", name, [file_names[one.file_id] for one in copies], log)
        if name not in index.weight_map:
            file = file_names[pick.file_id]
            message = f"{name} is in the header of {file}, but not in {index.name}"
            where = (pick.byte_offset, pick.byte_offset + pick.nbytes)
            log.add("index-tensor-omitted", message, tensor=name, byte_range=where, file=file)
        chosen.append(pick)
    _total_size_rule(index, shards, chosen, log)
    return tuple(chosen)


def _mapped_rule(
    index: ShardIndex,
    shards: dict[str, ParsedFile],
    held: dict[str, list[StoredTensor]],
    file_names: dict[int, str],
    log: IssueLog,
) -> None:
    """Every pair of the weight map must be in that shard's header; broken shards are told elsewhere."""
    for tensor, file in index.weight_map.items():
        shard = shards.get(file)
        if shard is None or not shard.file.parsed:
            continue
        places = [file_names[one.file_id] for one in held.get(tensor, ())]
        if file in places:
            continue
        found = f"it is in {places[0]}" if places else "no opened shard has it"
        message = f"{index.name} maps {tensor} to {file}, whose header lacks it; {found}"
        log.add("index-tensor-missing", message, tensor=tensor, shard=file, found_in=places)


def _twice(slug: str, name: str, files: list[str], log: IssueLog) -> None:
    message = f"{name} stands in {len(files)} files: {', '.join(files[:4])}"
    log.add(slug, message, tensor=name, files=files)


def tensors_of_set(parsed: list[ParsedFile], log: IssueLog) -> tuple[StoredTensor, ...]:
    """Tensors of a set without index, one for each name; the first file wins."""
    first: dict[str, StoredTensor] = {}
    names: dict[int, str] = {one.file.file_id: one.file.name for one in parsed}
    for one in parsed:
        for tensor in one.tensors:
            if tensor.name in first:
                files = [names[first[tensor.name].file_id], one.file.name]
                _twice("set-tensor-twice", tensor.name, files, log)
            else:
                first[tensor.name] = tensor
    return tuple(first.values())


def _total_size_rule(
    index: ShardIndex, shards: dict[str, ParsedFile], chosen: list[StoredTensor], log: IssueLog
) -> None:
    metadata = index.raw.get("metadata") if isinstance(index.raw, dict) else None
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    if declared is None:
        return
    if isinstance(declared, float) and declared.is_integer():
        declared = int(declared)
    if not isinstance(declared, int) or isinstance(declared, bool):
        message = f"metadata.total_size of {index.name} is no whole number"
        log.add("index-total-size-type", message)
        return
    wanted = set(index.weight_map.values())
    if wanted - set(shards) or any(not one.file.parsed for one in shards.values()):
        return
    mapped = sum(tensor.nbytes for tensor in chosen if tensor.name in index.weight_map)
    stored = sum(tensor.nbytes for one in shards.values() for tensor in one.tensors)
    if declared in (mapped, stored):
        return
    difference = declared - mapped
    same = [tensor.name for tensor in chosen if tensor.nbytes == abs(difference)]
    message = (
        f"metadata.total_size of {index.name} is {declared}, the mapped tensors have {mapped} bytes, "
        f"{abs(difference)} {'fewer' if difference > 0 else 'more'}"
    )
    log.add(
        "index-total-size",
        message,
        declared_bytes=declared,
        mapped_bytes=mapped,
        stored_bytes=stored,
        file_bytes=sum(one.file.size for one in shards.values()),
        difference=difference,
        same_size_tensors=same[:20],
    )
