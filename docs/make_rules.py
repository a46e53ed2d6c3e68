"""Write docs/rules/*.md from the rules' own pages.

python docs/make_rules.py          writes them
python docs/make_rules.py --check  exits 1 where a file differs or is not of a rule
"""

from __future__ import annotations

import sys
from pathlib import Path

from quantscope.rules.catalogue import catalogue
from quantscope.rules.pages import markdown, table

FOLDER = Path(__file__).parent / "rules"


def wanted() -> dict[str, str]:
    """File name -> text."""
    built_in = [
        code
        for code, rule in catalogue().items()
        if type(rule).__module__.startswith("quantscope.")
    ]
    return {"README.md": table(), **{f"{code}.md": markdown(code) for code in built_in}}


def main(arguments: list[str]) -> int:
    files = wanted()
    present = {p.name: p.read_text() for p in FOLDER.glob("*.md")} if FOLDER.is_dir() else {}
    if "--check" in arguments:
        stale = sorted(name for name in files | present if files.get(name) != present.get(name))
        print("\n".join(stale))
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for name in present.keys() - files.keys():
        (FOLDER / name).unlink()
    for name, text in files.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
