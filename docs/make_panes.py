"""Draw docs/panes: five moments of a triage as text, on checkpoints that real producers wrote.

python docs/make_panes.py REAL           write them; REAL is the folder of the real checkpoints
python docs/make_panes.py REAL --check   say what has drifted; exit 1 if anything has
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parent / "panes"
SIZES = ((80, 24), (160, 45))
TRUTHFUL = "gptqmodel-w4g128-asym-v2"


def lay_out(real: Path, target: Path) -> None:
    """The checkpoints under names of their own; one is given a declaration that is not true."""
    for name in ("gptqmodel-w4g128-asym-v1", "autoawq-gemm-g128", TRUTHFUL):
        folder = target / ("smol-w4-liar" if name == TRUTHFUL else name)
        folder.mkdir()
        for file in (real / name).iterdir():
            if file.name not in ("oracle.safetensors", "EXPECTED.json") and file.is_file():
                shutil.copyfile(file, folder / file.name)
    liar = target / "smol-w4-liar"
    for name in ("config.json", "quantize_config.json"):
        document = json.loads((liar / name).read_text(encoding="utf-8"))
        section = document.get("quantization_config", document)
        section["checkpoint_format"] = section["format"] = "gptq"
        (liar / name).write_text(json.dumps(document, indent=2), encoding="utf-8")


async def panes() -> dict[Path, str]:
    """Every pane with what it should hold."""
    from quantscope_views.pictures import MOMENTS, draw

    found = {}
    for moment in MOMENTS:
        for size in SIZES:
            picture = msgspec.structs.replace(moment, size=size)
            _, text = await draw(picture.sample, picture, picture.other)
            found[FOLDER / f"{picture.name}-{size[0]}x{size[1]}.txt"] = text
    return found


def main() -> int:
    """Write or check."""
    os.environ.pop("NO_COLOR", None)
    real = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = folder
        checkpoints = Path(folder) / "checkpoints"
        checkpoints.mkdir()
        lay_out(real, checkpoints)
        os.chdir(checkpoints)
        found = asyncio.run(panes())
        os.chdir(FOLDER.parent)
    drifted = [
        path
        for path, text in found.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        for path in drifted:
            print(f"drifted: {path.name}")
        return 1 if drifted else 0
    FOLDER.mkdir(exist_ok=True)
    for path in drifted:
        path.write_text(found[path], encoding="utf-8")
        print(f"written: {path.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
