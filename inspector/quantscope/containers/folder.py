"""Chooses which files of a folder are the checkpoint, and which are other sets beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from quantscope.containers.readers import SAFETENSORS_SUFFIXES, TORCH_SUFFIXES, kind_by_name
from quantscope.containers.split import split_name

SHARD_NAME = re.compile(
    r"^(?P<stem>.+?)[-_.](?P<no>\d{1,6})-of-(?P<count>\d{1,6})(?P<suffix>\.[a-z]+)$", re.IGNORECASE
)
INDEX_NAME = re.compile(r"\.(?P<suffix>safetensors|bin)\.index(?:\.[\w-]+)?\.json$", re.IGNORECASE)
"""transformers writes a variant's index as model.safetensors.index.fp16.json."""

MAIN_NAME = re.compile(
    r"^(?:(?:diffusion_pytorch_|pytorch_|gptq_|q)?model(?:[-_.].*)?|.*[-_]model)\.[a-z]+$",
    re.IGNORECASE,
)
_BESIDE = "adapter|lora|ema|non_ema|optimizer|optim|scheduler|training_args|rng_state|scaler|mmproj|imatrix"
_OTHER_FORM = "fp16|fp8|bf16|fp32|int8|consolidated|original"
_BESIDE_NAME = re.compile(rf"(^|[-_./])({_BESIDE})([-_.]|$)", re.IGNORECASE)
_VARIANT_NAME = re.compile(rf"(^|[-_./])({_BESIDE}|{_OTHER_FORM})([-_.]|$)", re.IGNORECASE)

PlanKind = Literal["index", "set", "split", "undecided", "none"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The primary set of a folder.

    `undecided`: the headers must say whether `files` are one set (no name twice) or alternatives.
    """

    kind: PlanKind
    index: str | None = None
    files: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    """All weight files of the folder, of any container."""


class ShardGroup(msgspec.Struct, kw_only=True):
    """Files named -K-of-N with one stem and one N."""

    stem: str
    count: int
    suffix: str
    files: dict[int, str]
    size: int = 0


def is_variant_name(name: str) -> bool:
    """True for names that say: another precision, an adapter, training state, another layout."""
    return bool(_VARIANT_NAME.search(name))


def shard_groups(files: Mapping[str, int]) -> list[ShardGroup]:
    """Groups of shards among files, `model` first, then the largest."""
    groups: dict[tuple[str, int, str], ShardGroup] = {}
    for name, size in files.items():
        found = SHARD_NAME.match(name)
        if not found:
            continue
        key = (found["stem"], int(found["count"]), found["suffix"].lower())
        group = groups.setdefault(
            key, ShardGroup(stem=key[0], count=key[1], suffix=key[2], files={})
        )
        group.files[int(found["no"])] = name
        group.size += max(0, size)
    return sorted(
        groups.values(),
        key=lambda group: (
            is_variant_name(group.stem),
            group.stem != "model",
            -group.size,
            group.stem,
            group.count,
        ),
    )


def plan_folder(files: Mapping[str, int]) -> Plan:
    """The primary set: index, then model.safetensors, shards, the rest; safetensors, GGUF, torch.

    Args:
        files: names of the folder with their sizes.
    """
    tensors = _with_suffix(files, SAFETENSORS_SUFFIXES)
    gguf = {name: size for name, size in files.items() if kind_by_name(name) == "gguf"}
    torch = _with_suffix(files, TORCH_SUFFIXES)
    index = _index_of(files, "safetensors", "model.safetensors.index.json")
    torch_index = _index_of(files, "bin", "pytorch_model.bin.index.json")
    if index:
        plan = Plan(kind="index", index=index)
    elif tensors and _leads(tensors, gguf, torch):
        plan = _plan_plain(tensors, "model.safetensors")
    elif gguf:
        plan = _plan_gguf(gguf)
    elif torch_index:
        plan = Plan(kind="index", index=torch_index)
    elif torch:
        plan = _plan_plain(torch, "pytorch_model.bin")
        if plan.kind == "undecided":
            plan = Plan(kind="set", files=(_biggest(torch, plan.files),))
    else:
        plan = Plan(kind="none")
    return msgspec.structs.replace(plan, candidates=(*tensors, *gguf, *torch))


def _leads(tensors: dict[str, int], gguf: dict[str, int], torch: dict[str, int]) -> bool:
    """True where safetensors files are the checkpoint rather than something beside a GGUF or torch file.

    Usual names and shards lead; a file of another name gives way to a GGUF, and to a torch file of a usual name or
    a larger one.
    """
    usual = [name for name in tensors if not is_variant_name(name)]
    if any(MAIN_NAME.match(name) or SHARD_NAME.match(name) for name in usual):
        return True
    main = [name for name in gguf if not _BESIDE_NAME.search(name)]
    if main or (gguf and not usual):
        return False
    if any(MAIN_NAME.match(name) and not is_variant_name(name) for name in torch):
        return False
    return not torch or max(tensors.values()) >= max(torch.values())


def _index_of(files: Mapping[str, int], suffix: str, best: str) -> str | None:
    names = [name for name in files if _index_suffix(name) == suffix]
    if not names or best in names:
        return best if names else None
    return min(names, key=lambda name: (is_variant_name(name), name))


def _index_suffix(name: str) -> str | None:
    found = INDEX_NAME.search(name)
    return found["suffix"].lower() if found else None


def _with_suffix(files: Mapping[str, int], suffixes: tuple[str, ...]) -> dict[str, int]:
    return {name: size for name, size in files.items() if name.lower().endswith(suffixes)}


def _biggest(files: Mapping[str, int], names: Iterable[str]) -> str:
    return min(names, key=lambda name: (-files[name], name))


def _plan_plain(files: dict[str, int], best: str) -> Plan:
    if best in files:
        return Plan(kind="set", files=(best,))
    groups = shard_groups(files)
    if groups and not is_variant_name(groups[0].stem):
        group = groups[0]
        return Plan(kind="set", files=tuple(group.files[no] for no in sorted(group.files)))
    usual = [name for name in files if not is_variant_name(name)]
    main = [name for name in usual if MAIN_NAME.match(name)]
    for names in (main, usual):
        if len(names) == 1:
            return Plan(kind="set", files=tuple(names))
        if names:
            return Plan(kind="undecided", files=tuple(names))
    if groups:
        return Plan(kind="set", files=tuple(groups[0].files[no] for no in sorted(groups[0].files)))
    return Plan(kind="set", files=(_biggest(files, files),))


def _plan_gguf(files: dict[str, int]) -> Plan:
    """The largest quantization; parts of a split set count together."""
    sets: dict[str, tuple[int, str]] = {}
    for name, size in files.items():
        part = split_name(name)
        key = part.sibling(1) if part else name
        total, first = sets.get(key, (0, name))
        sets[key] = (total + max(0, size), min(first, name))
    key = min(sets, key=lambda name: (bool(_BESIDE_NAME.search(name)), -sets[name][0], name))
    kind: PlanKind = "split" if split_name(key) else "set"
    return Plan(kind=kind, files=(sets[key][1],))


def set_key(name: str) -> tuple[str, str, str]:
    """What the files of one group of shards have in common; the name itself for any other file."""
    found = SHARD_NAME.match(name)
    return (found["stem"], found["count"], found["suffix"]) if found else (name, "", "")


def set_names(names: Iterable[str]) -> tuple[str, ...]:
    """One name for each set among files: a group of shards is named by its first file."""
    seen: dict[tuple[str, str, str], str] = {}
    for name in sorted(names):
        seen.setdefault(set_key(name), name)
    return tuple(sorted(seen.values()))
