"""AWQ: four layouts told apart by shapes, and what the version word fixes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.window import Window
from quantscope.session.pipeline import inspect
from quantscope_plugins.families.marlin_tile import code_places, scale_places

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(
    ("folder", "word"),
    [
        ("autoawq-gemm", "awq_gemm"),
        ("autoawq-gemv", "awq_gemv"),
        ("autoawq-gemv-fast", "awq_gemv_fast"),
        ("autoawq-marlin", "awq_marlin"),
        ("autogptq-marlin", "marlin_legacy"),
    ],
)
def test_shapes_alone_tell_the_layout(folder: str, word: str, tmp_path: Path) -> None:
    shutil.copy(DATA / folder / "model.safetensors", tmp_path)
    grouping = Checkpoint.open(str(tmp_path)).grouping
    assert {t.word for t in grouping.tensors} == {word}
    assert not grouping.orphans
    assert not grouping.unrecognised


def test_golden_word_of_the_interleaved_order(tmp_path: Path) -> None:
    tensors = {
        "m.qweight": np.full((32, 4), 0x75316420, dtype=np.uint32).view("i4"),
        "m.qzeros": np.zeros((1, 4), dtype="i4"),
        "m.scales": np.ones((1, 32), dtype=np.float16),
    }
    write_checkpoint(tmp_path, tensors, {"quantization_config": {"quant_method": "awq", "bits": 4}})
    checkpoint = Checkpoint.open(str(tmp_path))
    state = inspect(checkpoint).state("m.weight")
    family = checkpoint.family(state.tensor)
    assert state.reading is not None
    parts = family.parts(
        state.tensor, state.reading, Window(range(32), range(1)), checkpoint.reader()
    )
    assert parts.codes[:, 0].tolist() == list(range(8)) * 4


def test_version_and_method_are_claims_by_definition(tmp_path: Path) -> None:
    shutil.copy(DATA / "autoawq-gemm" / "model.safetensors", tmp_path)
    for config, at in (
        ({"quant_method": "awq", "version": "GEMM"}, "version"),
        ({"quant_method": "awq"}, "quant_method"),
    ):
        (tmp_path / "config.json").write_text(
            __import__("json").dumps({"quantization_config": config})
        )
        state = inspect(Checkpoint.open(str(tmp_path))).state("square.weight")
        claims = state.contract["zero_convention"].declared
        assert [(c.source.pointer, c.value, c.basis) for c in claims] == [
            (f"/quantization_config/{at}", "as_is", "by_definition")
        ]
        assert state.contract["packing"].match != "disagree"


def test_awq_planes_under_a_gptq_tag_stay_awq_and_contradict_it(tmp_path: Path) -> None:
    shutil.copy(DATA / "autoawq-gemm" / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(
        '{"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}}'
    )
    state = inspect(Checkpoint.open(str(tmp_path))).state("g32.weight")
    assert state.tensor.family == "awq_gemm"
    assert state.contract["zero_convention"].declared_values == ("minus_one",)
    packing = state.contract["packing"]
    assert {"axis": "in"} in packing.declared_values


def test_padding_of_gemv_counts_neither_as_groups_nor_as_zero_scales() -> None:
    for folder, name in (("autoawq-gemv", "g64wide.weight"), ("autoawq-gemv-fast", "g64.weight")):
        state = inspect(Checkpoint.open(str(DATA / folder))).state(name)
        size = 64
        assert state.contract.value("group") == {"axis": "in", "size": size}
        stats = next(p for p in state.exam.planes if p.role == "scale")
        assert stats.zero == 0
        assert stats.examined == state.reading.shape[0] * state.reading.shape[1] // size


def test_places_of_a_marlin_run_are_a_permutation() -> None:
    place, source = code_places()
    assert np.array_equal(np.sort(place), np.arange(1024))
    assert np.array_equal(place[source], np.arange(1024))
    assert source[:8].tolist() == [0, 128, 8, 136, 16, 144, 24, 152]
    for grouped, size in ((True, 64), (False, 32)):
        assert np.array_equal(np.sort(scale_places(grouped)), np.arange(size))
