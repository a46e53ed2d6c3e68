"""MXFP4 outside compressed-tensors: gpt-oss, DeepSeek-V4 and ModelOpt planes against their readers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import raw, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.session.pipeline import inspect
from real_oracle import check_locate
from variant_oracle import Variant, check_windows, corners, writable_copy

STACKS = {
    "model.layers.0.mlp.experts.gate_up_proj": (2, 6, 64),
    "model.layers.0.mlp.experts.down_proj": (2, 5, 96),
    "block.0.mlp.mlp2_weight": (2, 4, 32),
}
SINGLE = {
    "layers.0.ffn.experts.0.w1.weight": "mxfp4:deepseek-v4",
    "layers.0.ffn.experts.0.w2.weight": "mxfp4:deepseek-v4",
    "mo.weight": "modelopt:MXFP4",
}


@pytest.fixture(scope="module")
def variants() -> Variant:
    return Variant("mxfp4-variants")


def test_every_weight_is_found_and_solved(variants: Variant) -> None:
    grouping = variants.checkpoint.grouping
    assert not grouping.failures
    assert not grouping.orphans
    assert not grouping.unrecognised
    assert len(grouping.tensors) == 6 + 3
    for state in variants.inspection.states:
        assert state.solved.solutions, state.tensor.name
        assert state.contract.value("group") == {"axis": "in", "size": 32}
        assert state.contract.value("scale")["dtype"] == "e8m0"


@pytest.mark.parametrize("stem", sorted(STACKS))
def test_expert_stacks_are_bit_equal_to_transformers(variants: Variant, stem: str) -> None:
    experts, n_out, n_in = STACKS[stem]
    wanted = variants.wanted(stem)
    for expert in range(experts):
        found = variants.decode(f"{stem}[{expert}]")
        assert found.shape == (n_out, n_in)
        assert np.array_equal(found, wanted[expert])


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_single_weights_are_bit_equal_to_their_reader(variants: Variant, name: str) -> None:
    assert variants.state(name).tensor.word == SINGLE[name]
    assert np.array_equal(variants.decode(name), variants.wanted(name))


def test_interleaved_gate_and_up_rows_are_a_basis_declared_by_the_model_type(
    variants: Variant,
) -> None:
    state = variants.state("model.layers.0.mlp.experts.gate_up_proj[1]")
    assert state.contract.value("basis") == "gate and up rows interleaved"
    assert [str(c.source) for c in state.contract["basis"].declared] == ["config.json#/model_type"]
    down = variants.state("model.layers.0.mlp.experts.down_proj[0]")
    assert down.contract.value("basis") == "plain"


def test_quant_method_fixes_element_group_and_scale(variants: Variant) -> None:
    state = variants.state("model.layers.0.mlp.experts.down_proj[0]")
    for field in ("element", "group", "scale"):
        sources = {str(c.source) for c in state.contract[field].declared}
        assert sources == {"config.json#/quantization_config/quant_method"}
        assert state.contract[field].match in ("agree", "declared_only")


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.experts.gate_up_proj[1]", "layers.0.ffn.experts.0.w1.weight"]
)
def test_any_window_is_a_cut_and_located_bits_are_the_elements_own(
    variants: Variant, tmp_path: Path, name: str
) -> None:
    check_windows(variants, name)
    reading = variants.state(name).solved.chosen
    assert reading is not None
    check_locate(writable_copy(variants, tmp_path), name, reading, list(corners(reading.shape)))


def test_the_nan_scale_byte_is_nan_as_the_number_format_says(tmp_path: Path) -> None:
    planes = {
        "m.experts.down_proj_blocks": np.full((1, 2, 1, 16), 0x22, np.uint8),
        "m.experts.down_proj_scales": np.array([[[255], [127]]], np.uint8),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        state = inspect(checkpoint).states[0]
        tensor = state.tensor
        assert state.solved.chosen is not None
        parts = checkpoint.family(tensor).parts(
            tensor, state.solved.chosen, _whole(2, 32), checkpoint.reader()
        )
    assert np.isnan(parts.scale[0][0]).all()
    assert (parts.scale[0][1] == 1).all()


def _whole(rows: int, cols: int) -> object:
    from quantscope.decode.parts import Window

    return Window(range(rows), range(cols))


@pytest.mark.parametrize("missing", ["blocks", "scales"])
def test_blocks_without_scales_and_scales_without_blocks_are_orphans(
    tmp_path: Path, missing: str
) -> None:
    planes = {
        "m.experts.down_proj_blocks": np.zeros((1, 2, 1, 16), np.uint8),
        "m.experts.down_proj_scales": np.zeros((1, 2, 1), np.uint8),
    }
    del planes[f"m.experts.down_proj_{missing}"]
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert [o.missing for o in checkpoint.grouping.orphans] == [(f"down_proj_{missing}",)]


def test_scales_over_another_run_are_not_this_family(tmp_path: Path) -> None:
    planes = {
        "m.weight": np.zeros((4, 32), np.uint8),
        "m.weight_scale": raw("F8_E4M3", np.full((4, 4), 56, np.uint8)),
        "n.weight": np.zeros((4, 32), np.int8),
        "n.scale": np.ones((4, 2), np.float32),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert all(t.family != "mxfp4" for t in checkpoint.grouping.tensors)
