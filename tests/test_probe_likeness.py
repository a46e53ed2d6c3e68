"""Whether logits can be compared at all, from headers; progress of a whole check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.probes import run as probe_run
from quantscope.probes.likeness import model_facts, why_unlike
from quantscope.probes.model import ProbeRequest, SideRequest
from quantscope.session.events import Progress

LLAMA = {"model_type": "llama", "vocab_size": 96, "hidden_size": 64}


def folder(path: Path, config: dict[str, Any]) -> Path:
    return write_checkpoint(path, {"model.norm.weight": np.ones(64, np.float32)}, config)


def gguf_file(path: Path, *, architecture: str = "llama", rows: int = 96, width: int = 64) -> Path:
    """Written by the gguf package."""
    import gguf

    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_embedding_length(width)
    writer.add_tensor("token_embd.weight", np.zeros((rows, width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def why(*paths: Path) -> str | None:
    opened = [Checkpoint.open(str(path)) for path in paths]
    try:
        return why_unlike(opened)
    finally:
        for checkpoint in opened:
            checkpoint.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"model_type": "qwen2"}, "architectures differ: llama and qwen2"),
        ({"vocab_size": 97}, "vocabularies differ: 96 and 97"),
        ({"hidden_size": 65}, "widths differ: hidden size 64 and 65"),
        ({"vocab_size": True}, None),
        ({"model_type": None}, None),
        ({"text_config": {"model_type": "qwen2"}}, "architectures differ: llama and qwen2"),
    ],
)
def test_two_configs(tmp_path: Path, change: dict[str, Any], reason: str | None) -> None:
    a, b = folder(tmp_path / "a", LLAMA), folder(tmp_path / "b", {**LLAMA, **change})
    assert why(a, b) == reason


def test_a_gguf_and_a_folder_name_architectures_differently(tmp_path: Path) -> None:
    a = folder(tmp_path / "a", {**LLAMA, "model_type": "mistral"})
    assert why(a, gguf_file(tmp_path / "same.gguf")) is None
    rows = gguf_file(tmp_path / "rows.gguf", rows=100)
    assert why(a, rows) == "vocabularies differ: 96 and 100"
    wide = gguf_file(tmp_path / "wide.gguf", width=128)
    assert why(a, wide) == "widths differ: hidden size 64 and 128"
    other = gguf_file(tmp_path / "other.gguf", architecture="qwen2")
    assert why(other, gguf_file(tmp_path / "b.gguf")) == "architectures differ: qwen2 and llama"
    with Checkpoint.open(str(rows)) as checkpoint:
        facts = model_facts(checkpoint)
    assert (facts.architecture, facts.vocabulary, facts.width) == ("llama", 100, 64)


def test_where_nothing_names_a_model_that_is_the_reason(tmp_path: Path) -> None:
    nameless = folder(tmp_path / "a", {"hidden_size": 64})
    assert "no config.json with model_type" in str(why(nameless))
    assert why(folder(tmp_path / "b", LLAMA), nameless) is None


def test_progress_is_of_the_whole_check() -> None:
    steps: list[Progress] = []
    sides = (SideRequest(label="base", path="a"), SideRequest(label="checkpoint", path="b"))
    told = probe_run._Told(ProbeRequest(sides=sides), steps.append)
    told.step("reading", 1, 2)
    for stage in ("base", "self_before", "checkpoint", "planted", "base_after"):
        for done in range(1, 4):
            told.step(stage, done, 3)
    assert (steps[0].stage, steps[0].done, steps[0].total) == ("reading", 1, 2)
    ends = [step for step in steps[1:] if step.done % 3 == 0]
    assert [step.done for step in ends] == [3, 6, 9, 12, 15]
    assert {step.total for step in steps[1:]} == {15}
