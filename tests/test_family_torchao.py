"""torchao: the real models, and small tensors by torchao itself of every class that a CPU can make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import read_safetensors_values, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.session.pipeline import inspect
from real_oracle import (
    RealCheckpoint,
    check_declarations,
    check_decode,
    check_equations,
    check_locate,
    check_statements,
)
from variant_oracle import DATA, Variant, check_windows, corners, writable_copy

ELEMENTS = {
    "i8_row": "s8", "i8_tensor": "s8", "i8_dyn": "s8", "i8_asym": "s8", "x1": "s1", "x2": "s2", "x3": "s3",
    "x5": "s5", "x6": "s6", "x7": "s7", "x8": "s8", "x4_asym": "s4", "x4_axis": "s4", "x8_axis_asym": "s8",
    "f8_row": "e4m3fn", "f8_tensor": "e4m3fn", "f8_e5": "e5m2", "f8_block": "e4m3fn", "mx8": "e4m3fn",
    "mx8_e5": "e5m2", "mx4": "e2m1", "mx4_swz": "e2m1", "mx6_e2m3": "e2m3", "mx6_e3m2": "e3m2", "nv": "e2m1",
    "nv_two": "e2m1", "nv_swz": "e2m1",
}  # fmt: skip
GROUPS = {
    "i8_row": {"axis": "channel", "size": None},
    "i8_tensor": {"axis": "tensor", "size": None},
    "x5": {"axis": "in", "size": 32},
    "f8_block": {"axis": "block", "size": [32, 48]},
    "mx4_swz": {"axis": "in", "size": 32},
    "nv_swz": {"axis": "in", "size": 16},
    "i4_zp": {"axis": "in", "size": 32},
}


@pytest.fixture(scope="module")
def variants() -> Variant:
    return Variant("torchao-variants")


@pytest.mark.real
@pytest.mark.parametrize("folder", ["torchao-int8wo", "torchao-intxwo-int4-g32"])
def test_real_model_says_and_decodes_what_torchao_does(real_set: Path, folder: str) -> None:
    real = RealCheckpoint(real_set / folder)
    check_statements(real)
    check_equations(real)
    check_declarations(real)
    check_decode(real)


def test_every_tensor_is_solved_and_agrees_with_its_metadata(variants: Variant) -> None:
    grouping = variants.checkpoint.grouping
    assert not grouping.failures
    assert not grouping.orphans
    assert not grouping.unrecognised
    assert len(grouping.tensors) == len(ELEMENTS) + 2 + 1 + 2
    for state in variants.inspection.states:
        assert state.solved.solutions, (state.tensor.name, state.solved.equations)
        assert state.exam.error is None
        torn = [f for f, s in state.contract.fields.items() if s.match == "disagree"]
        assert not torn, (state.tensor.name, torn)


@pytest.mark.parametrize("name", sorted(ELEMENTS))
def test_weights_are_bit_equal_to_torchao(variants: Variant, name: str) -> None:
    state = variants.state(f"{name}.weight")
    assert state.contract.value("element") == ELEMENTS[name]
    assert np.array_equal(variants.decode(f"{name}.weight"), variants.wanted(f"{name}.weight"))


def test_stacked_experts_are_bit_equal_to_torchao(variants: Variant) -> None:
    wanted = variants.wanted("nv_3d.weight")
    for expert in range(2):
        assert np.array_equal(variants.decode(f"nv_3d.weight[{expert}]"), wanted[expert])


@pytest.mark.parametrize("name", ["i4_zp", "i4_3d[0]", "i4_3d[1]"])
def test_int4_decodes_to_within_half_a_step_of_what_was_quantized(
    variants: Variant, name: str
) -> None:
    # torchao has no dequantizer of Int4Tensor; its row quantizer rounds to nearest
    before = read_safetensors_values(DATA / "torchao-variants" / "before.safetensors")
    stem, _, expert = name.partition("[")
    wanted = before[f"{stem}.weight"]
    wanted = wanted[int(expert[:-1])] if expert else wanted
    full = f"{stem}.weight[{expert}" if expert else f"{stem}.weight"
    found = variants.decode(full)
    state = variants.state(full)
    size = state.solved.chosen.group_size if state.solved.chosen else 1
    spread = wanted.reshape(wanted.shape[0], -1, size)
    step = (spread.max(axis=2) - spread.min(axis=2)) / 15
    # scale and zero were rounded to bfloat16 after the codes were chosen
    slack = 0.5 * step + np.abs(spread).max(axis=2) * 2**-7
    assert (np.abs(found - wanted).reshape(spread.shape) <= slack[..., None]).all()


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_groups_are_those_of_block_size(variants: Variant, name: str) -> None:
    state = variants.state(f"{name}.weight")
    assert state.contract.value("group") == GROUPS[name]
    assert state.contract["group"].match in ("agree", "declared_only")


@pytest.mark.parametrize(
    "name",
    ["i8_row", "x4_asym", "f8_block", "mx4", "mx4_swz", "nv_two", "nv_swz", "nv_3d", "i4_zp"],
)
def test_any_window_is_a_cut_of_the_whole(variants: Variant, name: str) -> None:
    check_windows(variants, f"{name}.weight" + ("[1]" if name == "nv_3d" else ""))


@pytest.mark.parametrize(
    "name", ["i8_tensor", "x4_asym", "f8_block", "mx4_swz", "mx6_e3m2", "nv_swz", "i4_zp"]
)
def test_flipping_located_bits_changes_that_element_only(
    variants: Variant, tmp_path: Path, name: str
) -> None:
    reading = variants.state(f"{name}.weight").solved.chosen
    assert reading is not None
    folder = writable_copy(variants, tmp_path)
    check_locate(folder, f"{name}.weight", reading, list(corners(reading.shape)))


def test_tiled_scales_are_a_placement_that_the_metadata_declares(variants: Variant) -> None:
    state = variants.state("nv_swz.weight")
    assert state.contract.value("placement") == "cutlass_128x4"
    assert state.contract["placement"].match == "declared_only"
    sources = [str(c.source) for c in state.claims if c.field == "placement"]
    assert sources == ["model.safetensors#__metadata__/nv_swz.weight/_data/is_swizzled_scales"]


def test_kernel_orders_are_inexpressible(tmp_path: Path) -> None:
    planes = {
        "m._weight_qdata": np.zeros((1, 1, 32, 4), np.int32),
        "m._weight_scale_and_zero": np.ones((1, 8, 2), np.float16),
    }
    entry = {
        "_type": "Int4TilePackedTo4dTensor",
        "_data": {"block_size": [1, 128], "shape": [8, 128]},
    }
    folder = write_checkpoint(tmp_path / "c", planes, metadata={"m.weight": json.dumps(entry)})
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint).states[0]
    assert state.tensor.word == "torchao:Int4TilePackedTo4dTensor"
    assert state.undecodable is not None
    assert "tinygemm" in state.undecodable


def test_planes_without_metadata_are_read_by_their_dtypes(tmp_path: Path) -> None:
    planes: dict[str, Any] = {
        "m._weight_qdata": np.full((6, 32), 3, np.int8),
        "m._weight_scale": np.ones((6, 1), np.float32),
        "n._weight_scale": np.ones((6, 1), np.float32),
    }
    folder = write_checkpoint(tmp_path / "c", planes)
    with Checkpoint.open(str(folder)) as checkpoint:
        words = [t.word for t in checkpoint.grouping.tensors]
        orphans = [(o.stored_name, o.missing) for o in checkpoint.grouping.orphans]
    assert words == ["torchao:Int8Tensor"]
    assert orphans == [("n._weight_scale", ("_weight_qdata",))]


@pytest.mark.parametrize(
    "text",
    ['{"_type"', '{"_type": "MXTensor"}', '{"_type": "MXTensor", "_data": 4}', '{"_type": ["a"]}',
     '{"_type": "Float8Tensor", "_data": {"block_size": [0, -1], "dtype": {"_data": {}}}}',
     '{"_type": "IntxUnpackedToInt8Tensor", "_data": {"target_dtype": "int99"}}'],
)  # fmt: skip
def test_broken_metadata_does_not_raise(tmp_path: Path, text: str) -> None:
    planes = {
        "m._weight_qdata": np.full((6, 32), 3, np.int8),
        "m._weight_scale": np.ones((6, 1), np.float32),
    }
    folder = write_checkpoint(tmp_path / "c", planes, metadata={"m.weight": text})
    with Checkpoint.open(str(folder)) as checkpoint:
        inspection = inspect(checkpoint)
        assert not checkpoint.grouping.failures
        assert len(inspection.states) == 1
