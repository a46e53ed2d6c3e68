"""MLX: per-module entries, null that inherits, modes told by words a group."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.window import Window, decode_window
from quantscope.session.pipeline import inspect

DATA = Path(__file__).parent / "data"


def affine(n: int = 8, words: int = 24, groups: int = 4, bias: str = "biases") -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {
        "m.weight": generator.integers(0, 1 << 32, (n, words), dtype=np.uint32),
        "m.scales": generator.random((n, groups)).astype(np.float16) * 0.01,
        f"m.{bias}": -generator.random((n, groups)).astype(np.float16) * 0.1,
    }


def test_a_module_entry_with_null_inherits_the_global_value(tmp_path: Path) -> None:
    entry = {"group_size": None, "bits": 3, "mode": "affine"}
    section = {"group_size": 64, "bits": 4, "mode": "affine", "m": entry}
    write_checkpoint(tmp_path, affine(), {"quantization": section})
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert [str(c.source) for c in state.contract["element"].declared] == [
        "config.json#/quantization/m/bits"
    ]
    assert [str(c.source) for c in state.contract["group"].declared] == [
        "config.json#/quantization/group_size"
    ]
    assert {str(c.source) for c in state.contract["zero"].declared} == {
        "config.json#/quantization/m/mode",
        "config.json#/quantization/mode",
    }
    assert state.contract.value("element") == "u3"
    assert state.contract.value("group") == {"axis": "in", "size": 64}


def test_false_for_a_module_with_planes_is_a_contradiction(tmp_path: Path) -> None:
    section = {"group_size": 64, "bits": 3, "mode": "affine", "m": False}
    write_checkpoint(tmp_path, affine(), {"quantization": section})
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert "plain" in state.contract["element"].declared_values


def test_width_and_group_size_stay_open_without_a_config(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, affine())
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    pairs = {(r.bit_width, r.group_size) for r in state.solved.solutions}
    assert {(3, 64), (6, 32)} <= pairs


def test_qbiases_are_the_metal_spelling(tmp_path: Path) -> None:
    section = {"quant_method": "metal", "bits": 3, "group_size": 64}
    write_checkpoint(tmp_path, affine(bias="qbiases"), {"quantization_config": section})
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.tensor.word == "metal_affine"
    assert state.contract.value("element") == "u3"


def test_a_global_scale_is_the_largest_magnitude(tmp_path: Path) -> None:
    tensors = {
        "m.weight": np.full((2, 8), 0x22222222, dtype=np.uint32),
        "m.scales": np.full((2, 4), 0x38, dtype=np.uint8),
        "m.global_scale": np.array([2688.0 * 3], dtype=np.float32),
    }
    write_checkpoint(tmp_path, tensors)
    checkpoint = Checkpoint.open(str(tmp_path))
    state = inspect(checkpoint).state("m.weight")
    assert state.tensor.word == "mlx_nvfp4"
    assert state.reading is not None
    weights = decode_window(
        checkpoint.family(state.tensor),
        state.tensor,
        state.reading,
        Window(range(2), range(64)),
        checkpoint.reader(),
    )
    assert np.array_equal(weights, np.full((2, 64), 3.0, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "word"), [("mxfp4", "mlx_mxfp4"), ("mxfp8", "mlx_mxfp8"), ("nvfp4", "mlx_nvfp4")]
)
def test_words_a_group_tell_the_mode(name: str, word: str, tmp_path: Path) -> None:
    shutil.copy(DATA / "mlx-variants" / "model.safetensors", tmp_path)
    state = inspect(Checkpoint.open(str(tmp_path))).state(f"{name}.weight")
    assert state.tensor.word == word
    assert len(state.solved.solutions) == 1


def test_codes_without_scales_are_orphans(tmp_path: Path) -> None:
    tensors = affine()
    del tensors["m.scales"], tensors["m.biases"]
    write_checkpoint(tmp_path, tensors)
    orphans = Checkpoint.open(str(tmp_path)).grouping.orphans
    assert [o.missing for o in orphans] == [("scales",)]
    tensors = affine()
    del tensors["m.biases"]
    write_checkpoint(tmp_path / "b", tensors)
    orphans = Checkpoint.open(str(tmp_path / "b")).grouping.orphans
    assert {o.missing for o in orphans} == {("biases",)}
