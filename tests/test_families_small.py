"""BitNet, Gemma, EETQ, Ascend ModelSlim and W4AFP8: readers' values, senses of scales, reasons not to decode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import bf16, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.session.pipeline import inspect
from real_oracle import check_locate
from variant_oracle import Variant, check_windows, corners, writable_copy


def one(folder: Path, planes: dict[str, Any], config: dict[str, Any] | None = None) -> Any:
    """The state of the only logical tensor, and the grouping."""
    with Checkpoint.open(str(write_checkpoint(folder, planes, config))) as checkpoint:
        inspection = inspect(checkpoint)
        assert not checkpoint.grouping.failures
        (state,) = inspection.states
        return state, checkpoint.grouping


def method(name: str, **keys: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": name, **keys}}


@pytest.mark.parametrize(
    ("folder", "direction"), [("bitnet-divides", "divide"), ("bitnet-multiplies", "multiply")]
)
def test_bitnet_weights_are_those_of_the_declared_class(folder: str, direction: str) -> None:
    variant = Variant(folder)
    state = variant.state("m.weight")
    assert state.contract.value("scale")["direction"] == direction
    assert state.contract["scale"].match == "agree"
    assert state.contract.value("element") == "ternary"
    assert np.array_equal(variant.decode("m.weight"), variant.wanted("m.weight"))
    check_windows(variant, "m.weight")


def test_bitnet_located_bits_are_the_elements_own(tmp_path: Path) -> None:
    variant = Variant("bitnet-divides")
    reading = variant.state("m.weight").solved.chosen
    assert reading is not None
    check_locate(
        writable_copy(variant, tmp_path), "m.weight", reading, list(corners(reading.shape))
    )


@pytest.mark.parametrize(("value", "direction"), [(60.0, "divide"), (0.02, "multiply")])
def test_the_size_of_an_undeclared_bitnet_scale_tells_its_sense(
    tmp_path: Path, value: float, direction: str
) -> None:
    planes = {"m.weight": np.full((3, 8), 0x91, np.uint8), "m.weight_scale": bf16([value])}
    state, _ = one(tmp_path / "c", planes)
    scale = state.contract["scale"]
    assert scale.inferred is not None
    assert scale.inferred.strength == "strong"
    assert scale.inferred.value["direction"] == direction


def test_bitnet_of_unpacked_weights_leaves_the_scale_a_companion(tmp_path: Path) -> None:
    planes = {"m.weight": bf16(np.ones((4, 8))), "m.weight_scale": bf16([0.02])}
    config = method("bitnet", linear_class="autobitlinear")
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        assert not checkpoint.grouping.tensors
        assert [c.stored_name for c in checkpoint.grouping.companions] == ["m.weight_scale"]


GEMMA = {"q4.weight": "u4", "q4odd.weight": "u4", "q2.weight": "u2", "i8.weight": "s8"}


@pytest.fixture(scope="module")
def gemma() -> Variant:
    return Variant("gemma-variants")


@pytest.mark.parametrize("name", [*sorted(GEMMA), "embed_tokens.weight"])
def test_gemma_weights_are_those_of_transformers(gemma: Variant, name: str) -> None:
    state = gemma.state(name)
    wanted = gemma.wanted(name)
    found = gemma.decode(name)[:, : wanted.shape[1]]
    assert np.array_equal(found, wanted)
    assert state.contract.value("element") == GEMMA.get(name, "u4")
    assert wanted.shape in {reading.shape for reading in state.solved.solutions}


def test_gemma_declares_a_width_by_the_first_pattern_that_finds_the_module(gemma: Variant) -> None:
    def at(name: str) -> str:
        (claim,) = [c for c in gemma.state(name).claims if c.field == "element"]
        return claim.source.pointer

    assert at("q4.weight") == "/quantization_config/num_bits"
    assert at("q2.weight") == "/quantization_config/module_quant_configs/^q2/num_bits"
    assert gemma.state("embed_tokens.weight").contract["shape"].declared[0].value == [7, 16]


def test_gemma_odd_rows_leave_the_last_code_open(gemma: Variant) -> None:
    state = gemma.state("q4odd.weight")
    assert {reading.shape for reading in state.solved.solutions if reading.bit_width == 4} == {
        (6, 12),
        (6, 11),
    }


def test_gemma_claims_its_activation_scales(gemma: Variant) -> None:
    grouping = gemma.checkpoint.grouping
    assert not grouping.orphans
    assert not grouping.unrecognised
    assert len(grouping.companions) == 8


@pytest.mark.parametrize("name", ["q4.weight", "q2.weight", "embed_tokens.weight"])
def test_gemma_windows_and_located_bits(gemma: Variant, tmp_path: Path, name: str) -> None:
    check_windows(gemma, name)
    reading = gemma.state(name).solved.chosen
    assert reading is not None
    check_locate(writable_copy(gemma, tmp_path), name, reading, list(corners(reading.shape)))


def test_eetq_is_sized_but_not_decoded(tmp_path: Path) -> None:
    planes = {
        "m.weight": np.zeros((48, 16), np.int8),
        "m.weight_scales": np.ones(16, np.float16),
    }
    state, grouping = one(tmp_path / "c", planes, method("eetq", weights="int8"))
    assert state.tensor.word == "eetq"
    assert state.solved.chosen is not None
    assert state.solved.chosen.shape == (16, 48)
    assert state.contract["arithmetic"].match == "inexpressible"
    assert not grouping.unrecognised


@pytest.mark.parametrize(("offset", "decodes"), [(0.0, True), (3.0, False)])
def test_ascend_weights_decode_where_their_offset_is_zero(
    tmp_path: Path, offset: float, decodes: bool
) -> None:
    planes = {
        "m.weight": np.full((6, 16), -5, np.int8),
        "m.weight_scale": np.full((6, 1), 0.5, np.float32),
        "m.weight_offset": np.full((6, 1), offset, np.float32),
        "m.input_scale": np.ones(1, np.float32),
        "m.input_offset": np.zeros(1, np.int8),
        "m.quant_bias": np.zeros(6, np.int32),
        "m.deq_scale": np.zeros(6, np.int64),
    }
    folder = write_checkpoint(tmp_path / "c", planes, quant_model_description={"m.weight": "W8A8"})
    with Checkpoint.open(str(folder)) as checkpoint:
        (state,) = inspect(checkpoint).states
        assert len(checkpoint.grouping.companions) == 4
        assert not checkpoint.grouping.unrecognised
    assert state.tensor.word == "ascend_modelslim"
    assert (state.undecodable is None) is decodes
    claims = [str(c.source) for c in state.claims if c.field == "element"]
    assert claims == ["quant_model_description.json#/m.weight"]
    assert state.contract.value("group") == {"axis": "channel", "size": None}


def test_w4afp8_keeps_both_nibble_orders_open(tmp_path: Path) -> None:
    planes = {
        "experts.0.w1.weight": np.zeros((8, 128), np.int8),
        "experts.0.w1.weight_scale_inv": np.ones((8, 2), np.float32),
        "experts.0.w1.input_scale": np.ones(1, np.float32),
    }
    state, grouping = one(tmp_path / "c", planes, method("w4afp8"))
    assert state.tensor.word == "w4afp8"
    assert {r.packing.order for r in state.solved.solutions} == {"low_first", "high_first"}
    assert state.undecodable is not None
    assert len(grouping.companions) == 1


@pytest.mark.parametrize(
    ("planes", "config"),
    [
        ({"m.weight_scale": np.ones(1, np.float32)}, method("bitnet")),
        ({"m.weight_scale": np.ones((4, 1), np.float32)}, method("gemma")),
        ({"m.weight_scales": np.ones(4, np.float16)}, method("eetq")),
        ({"m.weight_offset": np.ones((4, 1), np.float32)}, None),
    ],
)
def test_planes_without_mates_are_orphans(
    tmp_path: Path, planes: dict[str, Any], config: dict[str, Any] | None
) -> None:
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        assert {o.stored_name for o in checkpoint.grouping.orphans} == set(planes)
        assert "weight" in checkpoint.grouping.orphans[0].missing
        assert json.dumps([list(o.missing) for o in checkpoint.grouping.orphans])
