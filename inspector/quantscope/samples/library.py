"""All samples: the good ones that are shipped, and the faulty ones that are made from them."""

from __future__ import annotations

import importlib.resources
import json
import shutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from quantscope.closest import closest_hint
from quantscope.errors import UsageError
from quantscope.samples import (
    container_faults,
    declaration_faults,
    grit_faults,
    plane_faults,
    value_faults,
)
from quantscope.samples.folder_edit import copy_checkpoint
from quantscope.samples.sample import Expected, Sample

SHIPPED_FAULTS = ("smol-w4-liar", "ct-sharded-scale-nan")
"""Faulty samples that are shipped ready made, for the demo."""


DEMO = "smol-w4-liar"

GOOD_EXPECTED: dict[str, tuple[Expected, ...]] = {
    "smol-gguf-mxfp4": (
        Expected("QV012", "warning", "general.file_type"),
        Expected("QB002", "note", "blk.0.attn_k.weight"),
    )
}
"""Findings of good samples: this one is labelled and named Q8_0 by its producer, and is MXFP4."""


def faults() -> tuple[Sample, ...]:
    """Every faulty sample."""
    return (
        *container_faults.SAMPLES,
        *declaration_faults.SAMPLES,
        *plane_faults.SAMPLES,
        *value_faults.SAMPLES,
        *grit_faults.SAMPLES,
    )


def shipped_folder() -> Path:
    """Where the good samples lie: in the wheel, or beside the sources of an editable install.

    Raises:
        UsageError: this installation holds none.
    """
    packaged = Path(str(importlib.resources.files("quantscope") / "_samples"))
    if packaged.is_dir():
        return packaged
    beside = Path(__file__).resolve().parents[3] / "sample_checkpoints"
    if beside.is_dir():
        return beside
    raise UsageError(
        "this installation holds no samples", hint="install the wheel again", source="_samples"
    )


@cache
def list_samples() -> tuple[Sample, ...]:
    """Good samples, then faulty ones, by name."""
    made = {sample.name for sample in faults()}
    good = []
    for folder in sorted(shipped_folder().iterdir()):
        if not folder.is_dir() or folder.name in made or folder.name.startswith(("_", ".")):
            continue
        note = folder / "PROVENANCE.json"
        about = json.loads(note.read_text()) if note.exists() else {}
        what = str(about.get("what") or about.get("note") or "a good checkpoint")
        expected = GOOD_EXPECTED.get(folder.name, ())
        good.append(Sample(name=folder.name, what=what, base=folder.name, expected=expected))
    return (*good, *sorted(faults(), key=lambda sample: sample.name))


def find(name: str) -> Sample:
    """A sample by name.

    Raises:
        UsageError: there is none.
    """
    for sample in list_samples():
        if sample.name == name:
            return sample
    names = [sample.name for sample in list_samples()]
    hint = closest_hint(name, names, "`quantscope samples --list` names them")
    raise UsageError(f"no sample is called {name}", hint=hint)


def make_sample(sample: Sample, target: Path) -> Path:
    """Write one sample to a folder that does not exist yet."""
    copy_checkpoint(shipped_folder() / sample.base, target)
    if sample.make is not None:
        sample.make(target)
        about = {"base": sample.base, "fault": sample.what, "name": sample.name}
        (target / "PROVENANCE.json").write_text(json.dumps(about, indent=1) + "\n")
    return target


def sample_path(name: str) -> Path:
    """A folder that holds a sample: the shipped one, or one made in the user's cache.

    Raises:
        UsageError: no sample has the name.
    """
    import platformdirs

    from quantscope import __version__

    sample = find(name)
    shipped = shipped_folder() / name
    if shipped.is_dir():
        return shipped
    target = Path(platformdirs.user_cache_path("quantscope")) / "samples" / __version__ / name
    if not target.is_dir():
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        make_sample(sample, partial)
        partial.replace(target)
    return target


def write_samples(folder: Path, names: Iterable[str] = ()) -> tuple[Path, ...]:
    """Write samples and their MANIFEST.json to a folder.

    Args:
        folder: made where it does not exist; samples that are there already are written anew.
        names: which samples; all by default.

    Returns:
        The folders of the samples.
    """
    wanted = tuple(names)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for sample in list_samples():
        if wanted and sample.name not in wanted:
            continue
        target = folder / sample.name
        shutil.rmtree(target, ignore_errors=True)
        written.append(make_sample(sample, target))
    (folder / "MANIFEST.json").write_text(json.dumps(manifest(), indent=1) + "\n")
    return tuple(written)


def manifest() -> dict[str, Any]:
    """Every sample with what was done to it and what must be found."""
    samples = {
        sample.name: {
            "what": sample.what,
            "base": sample.base,
            "faulty": sample.make is not None,
            "licence": "Apache-2.0 (weights of SmolLM2-135M-Instruct, HuggingFaceTB)",
            "expected": [msgspec.structs.asdict(item) for item in sample.expected],
            "follows": list(sample.follows),
        }
        for sample in list_samples()
    }
    return {"demo": DEMO, "samples": samples}
