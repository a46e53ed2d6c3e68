"""Draw docs/screenshots and docs/keys.md from the app itself.

python docs/make_screenshots.py           write them
python docs/make_screenshots.py --check   say what has drifted; exit 1 if anything has
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "screenshots"


async def pages() -> dict[Path, str]:
    """Every generated file with what it should hold."""
    from quantscope_views.actions import keys_markdown
    from quantscope_views.pictures import PICTURES, draw

    samples = DOCS.parent / "sample_checkpoints"
    found = {DOCS / "keys.md": keys_markdown()}
    os.chdir(samples)
    for picture in PICTURES:
        svg, text = await draw(picture.sample, picture, picture.other)
        found[FOLDER / f"{picture.name}.svg"] = svg
        found[FOLDER / f"{picture.name}.txt"] = text
    return found


def main() -> int:
    """Write or check."""
    os.environ.pop("NO_COLOR", None)
    with tempfile.TemporaryDirectory() as state:
        os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = state
        found = asyncio.run(pages())
    drifted = [
        path
        for path, text in found.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv[1:]:
        for path in drifted:
            print(f"drifted: {path.relative_to(DOCS)}")
        return 1 if drifted else 0
    FOLDER.mkdir(exist_ok=True)
    for path in drifted:
        path.write_text(found[path], encoding="utf-8")
        print(f"written: {path.relative_to(DOCS)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
