"""EXL3 against GPTQModel's torch reference, on random trellises of several widths and all codebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.session.pipeline import inspect
from real_oracle import flip, whole_parts
from variant_oracle import Variant, check_accounted, check_windows, writable_copy

CODEBOOKS = {
    "k1": "3inst", "k2mul": "mul1", "k3": "3inst", "k4mcg": "mcg", "k5": "mul1", "k8": "mcg",
}  # fmt: skip


@pytest.fixture(scope="module")
def variants() -> Variant:
    return Variant("exl3-random")


def test_every_module_is_accounted_for(variants: Variant) -> None:
    check_accounted(variants, len(CODEBOOKS), "exl3")


@pytest.mark.parametrize("name", sorted(CODEBOOKS))
def test_weights_are_those_of_the_reference_up_to_the_order_of_sums(
    variants: Variant, name: str
) -> None:
    full = f"{name}.weight"
    assert variants.state(full).contract.value("element") == f"codebook({CODEBOOKS[name]})"
    found, wanted = variants.decode(full)[::7], variants.wanted(full)
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["k3", "k5", "k8"])
def test_any_window_has_the_bits_of_the_whole(variants: Variant, name: str) -> None:
    check_windows(variants, f"{name}.weight")


def test_a_located_state_moves_its_block_and_a_scale_its_row_or_column(
    variants: Variant, tmp_path: Path
) -> None:
    name = "k3.weight"
    reading = variants.state(name).solved.chosen
    assert reading is not None
    tensor = variants.checkpoint.find(name)
    cell = variants.checkpoint.family(tensor).locate(tensor, reading, 77, 200)
    path = writable_copy(variants, tmp_path) / "model.safetensors"
    before, _ = whole_parts(path.parent, name, reading)
    flip(path, cell.bits[0])
    block, _ = whole_parts(path.parent, name, reading)
    flip(path, cell.bits[0])
    moved = np.argwhere(before != block)
    assert len(moved) > 10000
    assert set(moved[:, 1] // 128) == {1}
    for role, axis, number in (("scale", 0, 77), ("scale2", 1, 200)):
        flip(path, cell.per_plane[role][0], 9)
        scaled, _ = whole_parts(path.parent, name, reading)
        flip(path, cell.per_plane[role][0], 9)
        moved = np.argwhere(before != scaled)
        if role == "scale":
            assert set(moved[:, axis]) == {number}
        else:
            # the input scale acts between the two rotations: the whole block of outputs follows
            assert set(moved[:, axis]) == {number}


def test_early_files_with_sign_bits_are_inexpressible(tmp_path: Path) -> None:
    planes: dict[str, Any] = {
        "m.trellis": np.zeros((8, 8, 48), np.int16),
        "m.su": np.zeros(8, np.int16),
        "m.sv": np.zeros(8, np.int16),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        (state,) = inspect(checkpoint).states
    assert state.undecodable is not None
    assert "early versions" in state.undecodable


@pytest.mark.parametrize("missing", ["trellis", "suh", "svh"])
def test_planes_without_mates_are_orphans(tmp_path: Path, missing: str) -> None:
    planes: dict[str, Any] = {
        "m.trellis": np.zeros((8, 8, 48), np.int16),
        "m.suh": np.ones(128, np.float16),
        "m.svh": np.ones(128, np.float16),
    }
    del planes[f"m.{missing}"]
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert {o.stored_name for o in checkpoint.grouping.orphans} == set(planes)
        assert checkpoint.grouping.orphans[0].missing == (missing,)


def test_extents_that_are_no_whole_blocks_break_an_equation(tmp_path: Path) -> None:
    planes: dict[str, Any] = {
        "m.trellis": np.zeros((8, 7, 48), np.int16),
        "m.suh": np.ones(128, np.float16),
        "m.svh": np.ones(112, np.float16),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        (state,) = inspect(checkpoint).states
    assert not state.solved.solutions
    assert state.exam.error is not None


def test_quantization_config_declares_the_rotated_basis(tmp_path: Path) -> None:
    planes: dict[str, Any] = {
        "m.trellis": np.zeros((8, 8, 48), np.int16),
        "m.suh": np.ones(128, np.float16),
        "m.svh": np.ones(128, np.float16),
    }
    config = {"quantization_config": {"quant_method": "exl3", "bits": 3.0, "codebook": "3inst"}}
    storage = {"tensor_storage": {"m": {"quant_format": "exl3", "bits_per_weight": 3}}}
    folder = write_checkpoint(tmp_path / "c", planes, config, quantization_config=storage)
    with Checkpoint.open(str(folder)) as checkpoint:
        (state,) = inspect(checkpoint).states
    sources = {str(c.source) for c in state.claims}
    assert sources == {
        "config.json#/quantization_config/codebook",
        "quantization_config.json#/tensor_storage/m/quant_format",
    }
