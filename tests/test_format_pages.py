"""Every family has a page with all its sections, and files of some producer that the tests open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.families.registry import FamilyRegistry

ROOT = Path(__file__).parents[1]
PAGES = {
    path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "formats").glob("*.md")
}
FAMILIES = FamilyRegistry.from_entry_points()
OWN = [
    record.name
    for record in FAMILIES.records
    if record.distribution == "quantscope" and record.error is None
]
SECTIONS = {
    "planes": re.compile(r"^## .*Planes", re.MULTILINE),
    "equations": re.compile(r"^## .*([Ee]quations)|\[N, ?K|\[ceil", re.MULTILINE),
    "decode": re.compile(r"^## .*([Dd]ecode)", re.MULTILINE),
    "traps": re.compile(r"^## Traps", re.MULTILINE),
    "readers": re.compile(r"^## Readers", re.MULTILINE),
    "sources": re.compile(r"^## Sources", re.MULTILINE),
}


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_page_names_the_family(name: str) -> None:
    named = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    pages = [stem for stem, text in PAGES.items() if stem == name or named.search(text)]
    assert pages, f"docs/formats has no page that names {name}"


@pytest.mark.parametrize("stem", sorted(PAGES))
@pytest.mark.parametrize("section", SECTIONS)
def test_a_page_has_every_section(stem: str, section: str) -> None:
    assert SECTIONS[section].search(PAGES[stem]), f"{stem}.md lacks {section}"


def folders() -> list[Path]:
    """Checkpoints in the repository: samples and files of the tests."""
    found = [*(ROOT / "tests" / "data").iterdir(), *(ROOT / "sample_checkpoints").iterdir()]
    kinds = ("*.safetensors", "*.gguf", "*.pt")
    return [p for p in found if p.is_dir() and any(next(p.glob(kind), None) for kind in kinds)]


PLANES_MADE_BY_TESTS = frozenset({
    "ascend_modelslim", "eetq", "exl2", "fp_quant", "higgs", "modelopt_int8", "nunchaku_awq", "nunchaku_svdq",
    "paroquant", "quip", "spqr", "w4afp8",
})  # fmt: skip
"""Formats of which no producer's file can be made here; tests write planes of the documented shapes."""


def test_every_family_claims_a_tensor_of_a_shipped_file_or_of_planes_that_a_test_makes() -> None:
    claimed: set[str] = set()
    for folder in folders():
        with Checkpoint.open(str(folder), FAMILIES) as checkpoint:
            claimed |= {tensor.family for tensor in checkpoint.grouping.tensors}
    assert set(OWN) - claimed == PLANES_MADE_BY_TESTS
    tests = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_famil*.py")
    )
    for name in PLANES_MADE_BY_TESTS:
        assert f'"{name}"' in tests, name
