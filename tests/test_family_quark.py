"""AMD Quark's own packing, against the weights of the models that it exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from real_oracle import check_locate
from variant_oracle import Variant, check_windows, corners, writable_copy

LAYER = "model.layers.0."
EXPORTS = {
    "quark-reorder": {
        "self_attn.q_proj": "s4", "self_attn.k_proj": "u4", "self_attn.v_proj": "s8",
        "self_attn.o_proj": "s4", "mlp.gate_proj": "s8", "mlp.up_proj": "u4", "mlp.down_proj": "s3",
    },
    "quark-order": {
        "self_attn.q_proj": "s4", "self_attn.k_proj": "u4", "self_attn.v_proj": "s8",
        "self_attn.o_proj": "s4", "mlp.gate_proj": "u8", "mlp.up_proj": "s3", "mlp.down_proj": "s2",
    },
    "quark-float": {
        "self_attn.q_proj": "e2m1", "self_attn.k_proj": "e3m2", "self_attn.v_proj": "e2m3",
        "mlp.gate_proj": "e2m1",
    },
}  # fmt: skip
CASES = [(folder, name) for folder, modules in EXPORTS.items() for name in modules]


@pytest.fixture(scope="module")
def exports() -> dict[str, Variant]:
    return {name: Variant(name) for name in EXPORTS}


@pytest.mark.parametrize("folder", sorted(EXPORTS))
def test_everything_is_claimed_and_agrees_with_the_config(
    exports: dict[str, Variant], folder: str
) -> None:
    variant = exports[folder]
    grouping = variant.checkpoint.grouping
    assert not grouping.failures
    assert not grouping.orphans
    assert not grouping.unrecognised
    for state in variant.inspection.states:
        assert state.solved.solutions, (state.tensor.name, state.solved.equations)
        assert state.exam.error is None
        torn = [f for f, s in state.contract.fields.items() if s.match == "disagree"]
        assert not torn, (state.tensor.name, torn, state.contract[torn[0]])


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_weights_are_those_of_the_exporting_model(
    exports: dict[str, Variant], folder: str, name: str
) -> None:
    variant = exports[folder]
    full = f"{LAYER}{name}.weight"
    state = variant.state(full)
    assert state.contract.value("element") == EXPORTS[folder][name]
    found, wanted = variant.decode(full), variant.wanted(full)
    assert found.shape == wanted.shape
    # the oracle quantizes the float weight anew: same codes and scales, one rounding of the product
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("quark-reorder", "self_attn.q_proj"), ("quark-reorder", "mlp.down_proj"),
     ("quark-order", "mlp.gate_proj"), ("quark-order", "mlp.up_proj"), ("quark-order", "self_attn.o_proj"),
     ("quark-float", "self_attn.v_proj")],
)  # fmt: skip
def test_any_window_is_a_cut_and_located_bits_are_the_elements_own(
    exports: dict[str, Variant], tmp_path: Path, folder: str, name: str
) -> None:
    variant, full = exports[folder], f"{LAYER}{name}.weight"
    check_windows(variant, full)
    reading = variant.state(full).solved.chosen
    assert reading is not None
    check_locate(writable_copy(variant, tmp_path), full, reading, list(corners(reading.shape)))


def test_the_order_of_words_comes_from_pack_method(exports: dict[str, Variant]) -> None:
    for folder, order in (("quark-reorder", "awq"), ("quark-order", "sequential")):
        field = exports[folder].state(f"{LAYER}self_attn.q_proj.weight").contract["packing"]
        assert field.declared[0].value == {"order": order}
        assert str(field.declared[0].source) == (
            "config.json#/quantization_config/export/pack_method"
        )


def test_without_the_declaration_nothing_is_claimed(tmp_path: Path) -> None:
    planes = {
        "m.weight": np.zeros((64, 4), np.int32),
        "m.weight_scale": np.ones((2, 32), np.float32),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert not any(t.family == "quark" for t in checkpoint.grouping.tensors)
        assert [t.name for t in checkpoint.grouping.unrecognised] == ["m.weight"]


def test_a_scale_without_its_weight_is_an_orphan(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "quark"}}
    planes = {"m.weight_scale": np.ones((2, 32), np.float32)}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        assert [o.missing for o in checkpoint.grouping.orphans] == [("weight",)]
