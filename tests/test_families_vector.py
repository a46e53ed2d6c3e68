"""AQLM and VPTQ against their own dequantizers, on random codes."""

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

AQLM = ("a2x8", "a1x10", "a3x4_og2")
VPTQ = ("p6", "p6res", "pad", "g2", "outl", "plain", "p9")
CASES = [("aqlm-random", name) for name in AQLM] + [("vptq-random", name) for name in VPTQ]
BITS = {"a2x8": 2.0, "a1x10": 1.25, "a3x4_og2": 1.5, "p6": 0.75, "pad": 2.0, "p9": 2.25}


@pytest.fixture(scope="module")
def folders() -> dict[str, Variant]:
    return {name: Variant(name) for name in ("aqlm-random", "vptq-random")}


def test_every_module_is_accounted_for(folders: dict[str, Variant]) -> None:
    check_accounted(folders["aqlm-random"], len(AQLM), "aqlm")
    check_accounted(folders["vptq-random"], len(VPTQ), "vptq")


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_weights_are_bit_equal_to_the_projects_own_dequantizer(
    folders: dict[str, Variant], folder: str, name: str
) -> None:
    variant = folders[folder]
    found, wanted = variant.decode(f"{name}.weight"), variant.wanted(f"{name}.weight")
    assert np.array_equal(found, wanted)
    check_windows(variant, f"{name}.weight")


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_bits_a_weight_are_those_of_the_indices(
    folders: dict[str, Variant], folder: str, name: str
) -> None:
    reading = folders[folder].state(f"{name}.weight").solved.chosen
    assert reading is not None
    assert reading.effective_bits == BITS.get(name, reading.effective_bits) > 0


@pytest.mark.parametrize(
    ("folder", "name", "block"),
    [("aqlm-random", "a2x8", (1, 8)), ("aqlm-random", "a3x4_og2", (2, 4)), ("vptq-random", "p6", (8, 1)),
     ("vptq-random", "g2", (6, 1)), ("vptq-random", "plain", (8, 1)), ("vptq-random", "p9", (4, 1))],
)  # fmt: skip
def test_a_located_index_moves_its_own_vector_only(
    folders: dict[str, Variant], tmp_path: Path, folder: str, name: str, block: tuple[int, int]
) -> None:
    variant, full = folders[folder], f"{name}.weight"
    reading = variant.state(full).solved.chosen
    assert reading is not None
    tensor = variant.checkpoint.find(full)
    row, col = reading.shape[0] - 1, reading.shape[1] // 2
    cell = variant.checkpoint.family(tensor).locate(
        tensor, reading, row, col, variant.checkpoint.reader()
    )
    path = writable_copy(variant, tmp_path) / "model.safetensors"
    _, before = whole_parts(path.parent, full, reading)
    flip(path, cell.bits[0], 1)
    _, after = whole_parts(path.parent, full, reading)
    moved = np.argwhere(before != after)
    assert len(moved)
    first = (row // block[0] * block[0], col // block[1] * block[1])
    assert (moved >= first).all()
    assert (moved < np.add(first, block)).all()


def test_a_vptq_layer_without_its_entry_is_inexpressible(tmp_path: Path) -> None:
    planes = {
        "m.indices": np.zeros((1, 3, 6), np.int32),
        "m.centroids.weight": np.zeros((1, 512), np.float16),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        (state,) = inspect(checkpoint).states
    assert state.undecodable == "config.json has no entry with the sizes of this layer"
    assert state.solved.chosen is None


@pytest.mark.parametrize(
    "entry",
    [{}, {"in_features": "x"}, {"in_features": 32, "out_features": 24, "vector_lens": [8]},
     {"in_features": -1, "out_features": 10**12, "vector_lens": [-1, 0], "num_centroids": [0, -5]}],
)  # fmt: skip
def test_an_absurd_vptq_entry_does_not_raise(tmp_path: Path, entry: dict[str, Any]) -> None:
    planes = {
        "m.indices": np.zeros((1, 3, 6), np.int32),
        "m.centroids.weight": np.zeros((1, 512), np.float16),
    }
    config = {"quantization_config": {"quant_method": "vptq", "config_for_layers": {"m": entry}}}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        assert not checkpoint.grouping.failures
        assert all(state.undecodable for state in inspect(checkpoint).states)


@pytest.mark.parametrize("missing", ["codes", "scales"])
def test_aqlm_planes_without_mates_are_orphans(tmp_path: Path, missing: str) -> None:
    planes: dict[str, Any] = {
        "m.codes": np.zeros((12, 4, 2), np.int8),
        "m.codebooks": np.zeros((2, 256, 1, 8), np.float16),
        "m.scales": np.ones((12, 1, 1, 1), np.float16),
    }
    del planes[f"m.{missing}"]
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert {o.stored_name for o in checkpoint.grouping.orphans} == set(planes)
        assert checkpoint.grouping.orphans[0].missing == (missing,)
