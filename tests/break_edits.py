"""Edits of real checkpoint folders, one fault each, and how a scan is held against what it must find."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from quantscope.checkpoint import Checkpoint
from quantscope.model import Finding
from quantscope.rules.catalogue import judge
from quantscope.samples.folder_edit import (
    copy_checkpoint,
    drop,
    edit_config,
    edit_gguf,
    edit_index,
    edit_json,
    edit_quantization,
    edit_tensor,
    edit_weights,
    rename,
    weights,
)
from quantscope.samples.gguf_edit import GgufFile
from quantscope.samples.st_edit import Entry, Header, StFile, entry
from quantscope.session.pipeline import Scope, inspect

Array = NDArray[Any]
Edit = Callable[[Path], object]
L0, L1 = "model.layers.0.", "model.layers.1."
Q0, K0, V0 = (f"{L0}self_attn.{p}_proj" for p in "qkv")
UP1, GATE0, DOWN0 = f"{L1}mlp.up_proj", f"{L0}mlp.gate_proj", f"{L0}mlp.down_proj"

NAN: dict[str, int] = {
    "F16": 0x7E00,
    "BF16": 0x7FC0,
    "F32": 0x7FC00000,
    "F8_E4M3": 0x7F,
    "U8": 0xFF,
}
INF: dict[str, int] = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F800000}
TINY: dict[str, int] = {"F16": 1, "BF16": 1, "F32": 1}
HUGE: dict[str, int] = {"F16": 0x7BFF, "BF16": 0x7149, "F32": 0x7149F2CA}
ONE: dict[str, int] = {"F16": 0x3C00, "BF16": 0x3F80, "F32": 0x3F800000, "F8_E4M3": 0x38, "U8": 127}
SIGN: dict[str, int] = {"F16": 0x8000, "BF16": 0x8000, "F32": 0x80000000, "F8_E4M3": 0x80}


class Case(NamedTuple):
    """One fault in a copy of one real folder, and the finding that it must give."""

    folder: str
    what: str
    kinds: str
    """Kinds of which one must be named, separated by spaces."""
    severity: str
    subject: str
    """A part of the tensor, stored name, file or config key that the finding must name."""
    edit: Edit


def names_in(folder: Path, part: str = "") -> list[str]:
    """Stored names that hold a part."""
    return [n for p in weights(folder) for n in StFile.read(p).tensors if part in n]


def stored(folder: Path, name: str) -> Entry:
    """One stored tensor."""
    for path in weights(folder):
        found = StFile.read(path).tensors.get(name)
        if found is not None:
            return found
    raise KeyError(name)


def words(item: Entry) -> Array:
    """A writable copy of a tensor's elements as unsigned words."""
    array = item.array()
    return array.view(f"u{array.itemsize}")


def put(name: str, change: Callable[[Array], Array | None]) -> Edit:
    """Change the array of one tensor; in place where `change` returns nothing."""

    def edit(item: Entry) -> None:
        values = item.array()
        changed = change(values)
        item.put(values if changed is None else changed)

    return lambda folder: edit_tensor(folder, name, edit)


def word(name: str, table: dict[str, int], at: int | slice = 3) -> Edit:
    """Set elements of a tensor to the bit pattern that a table has for its dtype."""

    def edit(item: Entry) -> None:
        values = words(item)
        flat = values.reshape(-1)
        flat[min(at, flat.size - 1) if isinstance(at, int) else at] = table[item.dtype]
        item.data = values.tobytes()

    return lambda folder: edit_tensor(folder, name, edit)


def flip_signs(name: str) -> Edit:
    """Negate every other element."""

    def edit(item: Entry) -> None:
        values = words(item)
        values.reshape(-1)[::2] ^= SIGN[item.dtype]
        item.data = values.tobytes()

    return lambda folder: edit_tensor(folder, name, edit)


def scaled(name: str, factor: float, power: float = 1.0) -> Edit:
    """Replace x by factor * x ** power, for F16, F32 and BF16."""

    def edit(item: Entry) -> None:
        values = item.array()
        wide = (
            (values.astype(np.uint32) << 16).view(np.float32).reshape(values.shape)
            if item.dtype == "BF16"
            else values.astype(np.float32)
        )
        new = np.asarray(np.float32(factor) * wide**power, np.float32)
        item.put((new.view(np.uint32) >> 16) if item.dtype == "BF16" else new)

    return lambda folder: edit_tensor(folder, name, edit)


def gone(*parts: str) -> Edit:
    """Remove every tensor whose name holds one of the parts."""
    return lambda folder: drop(folder, *[n for part in parts for n in names_in(folder, part)])


def renamed(old: str, new: str) -> Edit:
    """Replace a part of names."""
    return lambda folder: rename(folder, lambda name: name.replace(old, new))


def retyped(name: str, dtype: str) -> Edit:
    """Another dtype word over the same bytes."""
    return lambda folder: edit_tensor(folder, name, lambda item: setattr(item, "dtype", dtype))


def all_tensors(part: str, change: Callable[[str, Entry], Entry | None]) -> Edit:
    """Change every tensor whose name holds a part; None removes it."""

    def edit(folder: Path) -> None:
        for path in weights(folder):
            file = StFile.read(path)
            for name in [n for n in file.tensors if part in n]:
                changed = change(name, file.tensors[name])
                if changed is None:
                    del file.tensors[name]
                else:
                    file.tensors[name] = changed
            file.write(path)

    return edit


def true_total(folder: Path) -> None:
    """Set the index's total_size to what is stored."""
    total = sum(len(i.data) for p in weights(folder) for i in StFile.read(p).tensors.values())
    for path in folder.glob("*.safetensors.index.json"):
        edit_json(
            folder, path.name, lambda index: index["metadata"].__setitem__("total_size", total)
        )


def added(name: str, make: Callable[[Path], Entry]) -> Edit:
    """Add a tensor to the last file."""

    def edit(folder: Path) -> None:
        made = make(folder)
        path = weights(folder)[-1]
        file = StFile.read(path)
        file.tensors[name] = made
        file.write(path)
        edit_index(folder, lambda weight_map: weight_map.__setitem__(name, path.name))
        true_total(folder)

    return edit


def normal(dtype: str, *shape: int) -> Entry:
    """A plain weight."""
    values = np.random.default_rng(7).normal(0, 0.02, shape).astype(np.float32)
    bits = values.view(np.uint32) >> 16 if dtype == "BF16" else values
    return entry(dtype, bits)


def setting(**keys: Any) -> Edit:
    """Set keys of the quantization section wherever it is kept."""
    return lambda folder: edit_quantization(folder, lambda section: section.update(keys))


def section(change: Callable[[Any], object], *, everywhere: bool = True) -> Edit:
    """Change the quantization section."""
    return lambda folder: edit_quantization(folder, change, everywhere=everywhere)


def weights_scheme(**keys: Any) -> Edit:
    """Set keys of the weights of every config group."""

    def change(data: Any) -> None:
        for group in data["config_groups"].values():
            group["weights"].update(keys)

    return section(change)


def config(**keys: Any) -> Edit:
    """Set keys of config.json."""
    return lambda folder: edit_config(folder, lambda data: data.update(keys))


def in_json(name: str, change: Callable[[Any], object]) -> Edit:
    """Change a JSON file."""
    return lambda folder: edit_json(folder, name, change)


def header(change: Callable[[Header], None]) -> Edit:
    """Change the header of the first file, not its data."""
    return lambda folder: edit_weights(folder, lambda _: None, change)


def raw(change: Callable[[bytes], bytes], number: int = 0) -> Edit:
    """Change the bytes of a safetensors or GGUF file."""

    def edit(folder: Path) -> None:
        path = sorted(weights(folder) or list(folder.glob("*.gguf")))[number]
        path.write_bytes(change(path.read_bytes()))

    return edit


def header_text(change: Callable[[bytes], bytes]) -> Edit:
    """Change the text of a safetensors header; its length field follows."""

    def edit(data: bytes) -> bytes:
        size = int.from_bytes(data[:8], "little")
        text = change(data[8 : 8 + size])
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return raw(edit)


def gguf(change: Callable[[GgufFile], object]) -> Edit:
    """Change the first GGUF file."""

    def edit(file: GgufFile) -> None:
        change(file)

    return lambda folder: edit_gguf(folder, edit)


def key(name: str, value: int | str, type_id: int = 4) -> Edit:
    """Set a GGUF key: uint32, or a string."""
    return gguf(lambda file: file.put(name, 8 if isinstance(value, str) else type_id, value))


def block_bytes(name: str, start: int, data: bytes) -> Edit:
    """Overwrite bytes of a GGUF tensor."""

    def change(file: GgufFile) -> None:
        tensor = file.tensor(name)
        body = bytearray(tensor.data)
        body[start : start + len(data)] = data
        tensor.data = bytes(body)

    return gguf(change)


def joined(*edits: Edit) -> Edit:
    """Several edits in turn."""

    def edit(folder: Path) -> None:
        for one in edits:
            one(folder)

    return edit


def resharded(folder: Path, parts: int = 3, *, index: bool = True) -> None:
    """Split the only file into shards, with an index that is right."""
    path = weights(folder)[0]
    file = StFile.read(path)
    path.unlink()
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    listed = list(file.tensors.items())
    step = -(-len(listed) // parts)
    weight_map: dict[str, str] = {}
    for number in range(parts):
        name = f"model-{number + 1:05d}-of-{parts:05d}.safetensors"
        mine = dict(listed[number * step : (number + 1) * step])
        StFile(tensors=mine, metadata=file.metadata).write(folder / name)
        weight_map |= dict.fromkeys(mine, name)
    total = sum(len(item.data) for item in file.tensors.values())
    if index:
        document = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document))


def scan(path: Path, mode: Any = "sample") -> Sequence[Finding]:
    """Findings of a path."""
    with Checkpoint.open(str(path)) as checkpoint:
        return judge(inspect(checkpoint, Scope(mode=mode))).findings


def names_of(finding: Finding) -> str:
    """Everything that a finding names, as one text."""
    subject = finding.subject
    parts = (subject.tensor, subject.stored, subject.file, subject.config_key, *finding.members)
    return "\n".join(part for part in parts if part)


def copy_of(real: Path, name: str, target: Path) -> Path:
    """A copy of a real folder."""
    return copy_checkpoint(real / name, target / name)
