"""`quantscope samples DIR`: writes the bundled sample checkpoints."""

from __future__ import annotations

import importlib.resources
import json
import shutil
from pathlib import Path
from typing import Any

import click

from quantscope.cli import diagnostics, output
from quantscope.cli.diagnostics import ExitCode
from quantscope.errors import QuantscopeError, UsageError

MANIFEST = "MANIFEST.json"


@click.command("samples", short_help="Writes the sample checkpoints.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def command(folder: Path) -> int:
    """Write every bundled sample into DIR, one folder or file each; nothing there is overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for sample in sorted(samples(), key=lambda path: path.name):
        target = folder / sample.name
        if target.exists():
            raise QuantscopeError(
                f"{target} is there already", hint="give an empty folder", source=str(target)
            )
        if sample.is_dir():
            shutil.copytree(sample, target)
        else:
            shutil.copy2(sample, target)
        lines.append(str(target))
    output.write_text("\n".join(diagnostics.inert(line) for line in lines))
    return ExitCode.OK


def samples_folder() -> Path:
    """Where the samples lie: in the wheel, or beside the sources of an editable install.

    Raises:
        QuantscopeError: neither is there.
    """
    packaged = Path(str(importlib.resources.files("quantscope") / "_samples"))
    beside = Path(__file__).resolve().parents[3] / "sample_checkpoints"
    for folder in (packaged, beside):
        if folder.is_dir():
            return folder
    raise QuantscopeError(
        "this installation holds no samples", hint="install the wheel again", source="_samples"
    )


def samples() -> list[Path]:
    """Every sample: folders and checkpoint files of the samples folder."""
    kinds = {".gguf", ".safetensors", ".bin", ".pt"}
    return [
        path
        for path in samples_folder().iterdir()
        if (path.is_dir() and not path.name.startswith(("_", "."))) or path.suffix.lower() in kinds
    ]


def sample_path(name: str | None) -> Path:
    """A sample by name; the manifest's `demo`, else the first one with a fault, by default.

    Raises:
        UsageError: no sample has the name.
    """
    found = {path.name: path for path in samples()}
    if name is None:
        name = _manifest().get("demo") or min(found, default=None)
    if name is None or name not in found:
        raise UsageError(
            f"no sample is called {name}",
            hint="samples: " + ", ".join(sorted(found)),
            source=str(name),
        )
    return found[name]


def _manifest() -> dict[str, Any]:
    path = samples_folder() / MANIFEST
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
