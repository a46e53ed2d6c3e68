"""Safetensors files that lie beside an index without being named by it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from quantscope.containers.folder import SHARD_NAME, is_variant_name
from quantscope.containers.index import ShardIndex
from quantscope.containers.issues import IssueLog
from quantscope.containers.parsed import ParsedFile
from quantscope.containers.readers import read_file
from quantscope.containers.source import ByteSource
from quantscope.errors import QuantscopeError

MAX_BESIDE = 256
MAX_NAMES_IN_DATA = 1000
_PLAIN_LEAVES = frozenset(("weight", "bias"))


def check_beside(
    root: str,
    index: ShardIndex,
    shards: Mapping[str, ParsedFile],
    files: Mapping[str, int],
    log: IssueLog,
) -> None:
    """Files of the set that the index forgot; whole other sets (variants) are left alone.

    A file belongs to the set where its name is a shard of the set, or where its tensors complete modules
    or layers of the set; it is a set of its own where it repeats most of the names, where its name says so,
    or where it only restates weights of modules that the index covers.
    """
    wanted = set(index.weight_map)
    beside = [name for name in files if name.lower().endswith(".safetensors")]
    for name in beside[:MAX_BESIDE]:
        belongs = _shard_of(name, shards)
        if is_variant_name(name) and not belongs:
            continue
        try:
            with ByteSource(os.path.join(root, name), name=name) as source:
                parsed = read_file(source, -1)
        except QuantscopeError as error:
            log.add("file-unreadable", error.message, file=name)
            continue
        names = [tensor.name for tensor in parsed.tensors] if parsed else []
        new = [one for one in names if one not in wanted]
        repeats = len(names) - len(new)
        if not belongs and (repeats * 2 > len(names) or not names or not _completes(new, wanted)):
            continue
        message = f"{name} is not in {index.name}: it holds {len(new)} tensors that the index lacks"
        if repeats:
            message += f" and {repeats} that it maps to other files"
        log.add(
            "index-file-omitted",
            message,
            file=name,
            new_tensors=new[:MAX_NAMES_IN_DATA],
            new_count=len(new),
            repeated_count=repeats,
            parsed=bool(parsed and parsed.file.parsed),
        )


def _shard_of(name: str, shards: Mapping[str, ParsedFile]) -> bool:
    """True where the name counts itself among the shards of the index."""
    found = SHARD_NAME.match(name)
    if not found:
        return False
    for other in shards:
        match = SHARD_NAME.match(other)
        if match and match["stem"] == found["stem"] and int(match["count"]) == int(found["count"]):
            return True
    return False


def _completes(new: list[str], wanted: set[str]) -> bool:
    """True where new tensors belong to modules or layers that the index has."""
    modules = {name.rpartition(".")[0] for name in wanted}
    branches = {".".join(name.split(".")[:2]) for name in wanted if name.count(".") >= 2}
    for name in new:
        module, _, leaf = name.rpartition(".")
        if module in modules:
            if leaf not in _PLAIN_LEAVES:
                return True
        elif ".".join(name.split(".")[:2]) in branches:
            return True
    return False
