"""HQQ: the real qmodel.pt, and small modules by hqq itself at every width, axis and compute type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
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
from variant_oracle import Variant, check_accounted, check_windows, corners, writable_copy

NAMES = (
    "a4x1", "a4x0", "a4x0_odd", "a4_flat", "a3x1", "a3x0", "a2x1", "a2x0", "a1x1", "a8x1", "a5x1", "a6x0",
    "a158", "a4_view", "a4_bf16", "a4_f32", "a4_rows",
)  # fmt: skip
PICKLED = ("p3x1", "p4x0", "p4_view", "p2_qz")


@pytest.fixture(scope="module")
def encoded() -> Variant:
    return Variant("hqq-variants")


@pytest.fixture(scope="module")
def pickled() -> Variant:
    return Variant("hqq-variants-pt")


@pytest.mark.real
def test_real_qmodel_says_and_decodes_what_hqq_does(real_set: Path) -> None:
    real = RealCheckpoint(real_set / "hqq-native-w4g64-axis1")
    check_statements(real)
    check_equations(real)
    check_declarations(real)
    check_decode(real)


def test_every_encoded_module_is_solved_and_agrees_with_what_is_stored(encoded: Variant) -> None:
    check_accounted(encoded, len(NAMES), "hqq")


def test_every_pickled_module_is_solved_and_agrees_with_what_is_stored(pickled: Variant) -> None:
    check_accounted(pickled, len(PICKLED), "hqq")


@pytest.mark.parametrize("name", NAMES)
def test_encoded_weights_are_bit_equal_to_hqq(encoded: Variant, name: str) -> None:
    found = encoded.decode(f"{name}.weight")
    assert np.array_equal(found, encoded.wanted(f"{name}.weight"))


@pytest.mark.parametrize("name", PICKLED)
def test_pickled_weights_are_bit_equal_to_hqq(pickled: Variant, name: str) -> None:
    found = pickled.decode(f"{name}.weight")
    assert np.array_equal(found, pickled.wanted(f"{name}.weight"))


@pytest.mark.parametrize("name", NAMES)
def test_any_window_is_a_cut_of_the_whole(encoded: Variant, name: str) -> None:
    check_windows(encoded, f"{name}.weight")


@pytest.mark.parametrize("name", ["a4x1", "a4x0", "a4_flat", "a3x1", "a2x0", "a1x1", "a4_view"])
def test_flipping_located_bits_changes_that_element_only(
    encoded: Variant, tmp_path: Path, name: str
) -> None:
    reading = encoded.state(f"{name}.weight").solved.chosen
    assert reading is not None
    folder = writable_copy(encoded, tmp_path)
    check_locate(folder, f"{name}.weight", reading, list(corners(reading.shape)))


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("a4x1", {"axis": "in", "size": 64}),
        ("a4_flat", {"axis": "flat", "size": 32}),
        ("a4x0", {"axis": "flat", "size": 16, "stride": 256}),
        ("a4_rows", {"axis": "channel", "size": None}),
    ],
)
def test_groups_are_named_by_what_they_cover(
    encoded: Variant, name: str, group: dict[str, object]
) -> None:
    assert encoded.state(f"{name}.weight").contract.value("group") == group


def test_a_module_without_stored_shape_is_an_orphan_and_does_not_raise(tmp_path: Path) -> None:
    planes = {
        "m.W_q": np.zeros((64, 64), np.uint8),
        "m.scale": np.ones((128, 1), np.float16),
        "m.zero": np.ones((128, 1), np.float16),
        "n.W_q": np.zeros((64, 64), np.uint8),
    }
    folder = write_checkpoint(tmp_path / "c", planes)
    with Checkpoint.open(str(folder)) as checkpoint:
        orphans = {o.stored_name: o.missing for o in checkpoint.grouping.orphans}
    assert orphans["m.W_q"] == ("shape",)
    assert orphans["n.W_q"] == ("scale", "zero", "shape")


@pytest.mark.parametrize(
    "shape", [np.array([0, 0]), np.array([-4, 8]), np.array([1 << 40, 64]), np.array([7, 13])]
)
def test_an_absurd_stored_shape_does_not_raise(tmp_path: Path, shape: np.ndarray) -> None:
    planes = {
        "m.W_q": np.zeros((64, 64), np.uint8),
        "m.scale": np.ones((128, 1), np.float16),
        "m.zero": np.ones((128, 1), np.float16),
        "m.shape": shape.astype(np.int64),
        "m.nbits": np.array(4, np.int32),
    }
    folder = write_checkpoint(tmp_path / "c", planes)
    with Checkpoint.open(str(folder)) as checkpoint:
        assert not checkpoint.grouping.failures
        for state in inspect(checkpoint).states:
            assert not state.solved.solutions


def test_layer_parameters_in_config_are_claims_with_their_place(tmp_path: Path) -> None:
    planes = {
        "model.a.self_attn.q_proj.W_q": np.zeros((64, 64), np.uint8),
        "model.a.self_attn.q_proj.scale": np.ones((128, 1), np.float16),
        "model.a.self_attn.q_proj.zero": np.ones((128, 1), np.float16),
        "model.a.self_attn.q_proj.shape": np.array([64, 128], np.int64),
    }
    params = {"nbits": 4, "group_size": 64, "axis": 1}
    config = {
        "quantization_config": {
            "quant_method": "hqq",
            "quant_config": {"self_attn.q_proj": {"weight_quant_params": params}},
        }
    }
    folder = write_checkpoint(tmp_path / "c", planes, config)
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint).states[0]
    sources = {str(c.source) for c in state.claims if c.field == "element"}
    at = "/quantization_config/quant_config/self_attn.q_proj/weight_quant_params/nbits"
    assert sources == {f"config.json#{at}"}
    assert state.contract["group"].match == "agree"


def test_float32_scales_widen_the_weights(tmp_path: Path) -> None:
    """Two groups of a k_proj by transformers 4.51.3 with hqq 0.2.8 on the CPU, bfloat16 asked for or float16.

    Scale and zero stay in float32 there, no compute_dtype is stored; bits are those of HQQLinear.dequantize().
    """
    packed = np.frombuffer(
        bytes.fromhex(
            "86b6647794a7a6c1daa6a6049fa085a5b7d99685a786b79b95f996a69a76a5a6"
            "9652ba867ac6b6819596657854794175468685b394a48196c3b8a67396708794"
        ),
        dtype=np.uint8,
    )
    bits = np.array([0x3E292223, 0x3DBC0000, 0x410EC119, 0x40ABEAE5], dtype=np.uint32)
    numbers = bits.view(np.float32)
    planes = {
        "m.W_q": packed.reshape(1, 64),
        "m.scale": numbers[:2].reshape(2, 1),
        "m.zero": numbers[2:].reshape(2, 1),
        "m.shape": np.array([2, 64], np.int64),
        "m.nbits": np.array(4, np.int32),
        "m.group_size": np.array(64, np.int32),
        "m.axis": np.array(1, np.int32),
    }
    found = Variant(write_checkpoint(tmp_path / "c", planes, {})).decode("m.weight")
    assert found.view(np.uint32)[:, :6].tolist() == [
        [0xBE1BF713, 0x3EAFB7AB, 0xBEF71DAC, 0xBEA28C9B, 0x3C52B105, 0x3E364D33],
        [0x3D6BF7FD, 0x3D6BF7FD, 0xBE010201, 0x3E18FDFF, 0xBE010201, 0x3E18FDFF],
    ]
