"""A descriptor is a declaration: its claims stand beside those of the configs, with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from quantscope.samples.library import find, make_sample
from rules_support import loud, scan


def made(name: str, target: Path) -> Path:
    sample = find(name)
    make_sample(sample, target / name)
    return target / name


def test_claims_of_a_descriptor_name_its_place(tmp_path: Path) -> None:
    inspection = scan(made("grit-inexpressible", tmp_path))
    state = next(s for s in inspection.states if s.tensor.module.endswith("k_proj"))
    for field, value in (("group", {"size": 128}), ("zero_convention", "minus_one")):
        claims = [c for c in state.contract[field].declared if "__grit__" in c.source.pointer]
        assert [c.value for c in claims] == [value]
        assert state.contract[field].match == "agree"


def test_a_gguf_descriptor_declares_its_group(tmp_path: Path) -> None:
    inspection = scan(made("grit-sizes", tmp_path))
    state = next(s for s in inspection.states if s.tensor.name == "blk.0.attn_k.weight")
    claims = [c for c in state.contract["group"].declared if "grit.desc." in c.source.pointer]
    assert [c.value for c in claims] == [{"size": 16}]


@pytest.mark.parametrize("name", ["grit-contradicts", "grit-sizes", "grit-grade"])
def test_a_contradiction_is_said_once(name: str, tmp_path: Path) -> None:
    found = loud(scan(made(name, tmp_path)))
    assert {f.code for f in found if f.code.startswith(("QD", "QZ"))} == set()
    assert [f.code for f in found].count("QR006") == 1
