"""A logits check in a report: its entry, its gate, and what happens without the extra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantscope.cli import main
from quantscope.evidence.gates import GATE_NAMES
from quantscope.probes import for_report as module
from quantscope.probes.model import ProbeFailure
from quantscope.probes.run import ProbeFailedError
from report_checkpoints import write_gptq


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny model as float base and in GPTQ planes; skips without torch."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from probe_models import QWEN, gptq, random_model, saved

    folder = tmp_path_factory.mktemp("report")
    saved(random_model(QWEN), folder / "base")
    gptq(random_model(QWEN), folder / "gptq")
    return folder / "base", folder / "gptq"


def report(path: Path, out: Path, *words: str) -> dict[str, Any]:
    assert main.run(["report", str(path), "-o", str(out), "--with", "probe", *words]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.torch
def test_against_a_base_the_gate_is_executed_within_its_scope(
    tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    base, path = tiny
    words = ("--base", str(base), "--tokens", "random")
    found = report(path, tmp_path / "r.json", *words)
    gate = found["gates"]["model_quality"]
    assert gate["status"] == "executed"
    assert gate["outcome"] == "held"
    assert "no threshold was set" in gate["reason"]
    assert {"bytes", "device", "dtype", "ids_sha256", "positions", "comparison"} <= set(
        gate["scope"]
    )
    assert gate["scope"]["comparison"] == "approximate"
    (entry,) = found["probes"]
    assert entry["comparison"] == "approximate"
    assert entry["execution_proof"] == "not_applicable"
    assert [side["label"] for side in entry["sides"]] == [
        "base",
        "checkpoint",
        "zero_convention=as_is",
    ]
    assert {item["file"] for item in entry["fingerprint"]} == {"model.safetensors"}
    assert {c["name"] for c in entry["controls"]} == {
        "self_before",
        "weights_differ",
        "planted",
        "base_after",
    }
    again = report(path, tmp_path / "again.json", *words)
    assert again["probes"] == found["probes"]
    assert found["overall"] == "incomplete"
    assert str(tmp_path) not in json.dumps(found["probes"])


@pytest.mark.torch
def test_without_a_base_the_gate_is_skipped_and_the_readings_are_compared(
    tiny: tuple[Path, Path], tmp_path: Path
) -> None:
    found = report(tiny[1], tmp_path / "r.json")
    assert found["gates"]["model_quality"]["status"] == "skipped"
    (entry,) = found["probes"]
    assert entry["comparison"] == "exact"
    assert entry["ids_source"].startswith("random, seed")
    assert [side["reading"] for side in entry["sides"]] == [{}, {"zero_convention": "as_is"}]


def test_without_the_extra_the_report_is_written_and_says_how_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "missing", lambda: "torch")
    write_gptq(tmp_path / "c", ["model.layers.0.mlp.up_proj"])
    found = report(tmp_path / "c", tmp_path / "r.json")
    gate = found["gates"]["model_quality"]
    assert gate["status"] == "skipped"
    assert "the extra `probe`" in gate["reason"]
    assert found["probes"] == []
    assert list(found["gates"]) == sorted(GATE_NAMES)


def test_a_check_that_cannot_finish_fails_the_gate_and_not_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **words: object) -> None:
        raise ProbeFailedError(ProbeFailure(reason="killed", message="killed from outside"))

    monkeypatch.setattr(module, "missing", lambda: None)
    monkeypatch.setattr(module, "run_probe", fails)
    write_gptq(tmp_path / "c", ["model.layers.0.mlp.up_proj"])
    found = report(tmp_path / "c", tmp_path / "r.json")
    assert found["gates"]["model_quality"] == {
        "status": "failed",
        "outcome": None,
        "reason": "killed from outside",
        "scope": None,
    }
    assert found["probes"][0]["status"] == "failed"
