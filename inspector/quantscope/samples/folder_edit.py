"""Changes to a checkpoint folder: its weights, its configs, its index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantscope.samples.gguf_edit import GgufFile
from quantscope.samples.st_edit import Entry, Header, StFile

SKIPPED = frozenset({"oracle.safetensors", "EXPECTED.json", "PROVENANCE.json", "quant_log.csv"})
"""Files of a source folder that are no part of the checkpoint."""

Json = Any


def copy_checkpoint(source: Path, target: Path) -> Path:
    """A copy of a checkpoint folder, without files that are no part of it."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in SKIPPED:
            shutil.copyfile(path, target / path.name)
    return target


def weights(folder: Path) -> list[Path]:
    """Safetensors files of a folder."""
    return sorted(p for p in folder.glob("*.safetensors") if p.name not in SKIPPED)


def edit_weights(
    folder: Path,
    change: Callable[[StFile], None],
    header: Callable[[Header], None] | None = None,
    *,
    holding: str = "",
) -> None:
    """Change the file that holds a tensor whose name contains `holding` (the first file by default)."""
    for path in weights(folder):
        file = StFile.read(path)
        if holding and not any(holding in name for name in file.tensors):
            continue
        change(file)
        file.write(path, header)
        return
    raise KeyError(holding)


def edit_tensor(folder: Path, name: str, change: Callable[[Entry], None]) -> None:
    """Change one tensor."""
    edit_weights(folder, lambda file: change(file.tensors[name]), holding=name)


def drop(folder: Path, *names: str) -> None:
    """Remove tensors by name, from their files and from the index."""
    for path in weights(folder):
        file = StFile.read(path)
        kept = {name: item for name, item in file.tensors.items() if name not in names}
        if len(kept) != len(file.tensors):
            StFile(tensors=kept, metadata=file.metadata).write(path)
    edit_index(folder, lambda weight_map: [weight_map.pop(name, None) for name in names])


def rename(folder: Path, changes: Callable[[str], str]) -> None:
    """Rename tensors."""
    for path in weights(folder):
        file = StFile.read(path)
        renamed = {changes(name): item for name, item in file.tensors.items()}
        StFile(tensors=renamed, metadata=file.metadata).write(path)


def edit_json(folder: Path, name: str, change: Callable[[Json], object]) -> None:
    """Change a JSON file in place."""
    path = folder / name
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=2) + "\n")


def edit_config(folder: Path, change: Callable[[Json], object]) -> None:
    """Change config.json."""
    edit_json(folder, "config.json", change)


def edit_quantization(
    folder: Path, change: Callable[[Json], object], *, everywhere: bool = True
) -> None:
    """Change the quantization section of config.json, and by default the standalone file beside it."""

    def nested(config: Json) -> None:
        for key in ("quantization_config", "quantization"):
            if key in config:
                change(config[key])

    edit_config(folder, nested)
    for name in ("quantize_config.json", "quant_config.json", "quantization_config.json"):
        if everywhere and (folder / name).exists():
            edit_json(folder, name, change)


def edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    """Change the weight map of the index, where there is one."""
    for path in folder.glob("*.safetensors.index.json"):
        edit_json(folder, path.name, lambda index: change(index["weight_map"]))


def gguf_path(folder: Path) -> Path:
    """The first GGUF file of a folder."""
    return min(folder.glob("*.gguf"))


def edit_gguf(folder: Path, change: Callable[[GgufFile], None], *, pad_tail: bool = True) -> None:
    """Change the first GGUF file of a folder."""
    path = gguf_path(folder)
    file = GgufFile.read(path)
    change(file)
    file.write(path, pad_tail=pad_tail)
