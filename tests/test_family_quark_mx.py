"""Quark's dtype `mx`: a signed exponent without bias, in the block or beside it, against Quark's own unpacker."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.session.pipeline import inspect
from real_oracle import check_locate
from variant_oracle import Variant, check_windows, corners, writable_copy

LAYER = "model.layers.0."
ELEMENTS = {
    "self_attn.q_proj": "e2m1", "self_attn.k_proj": "e3m2", "self_attn.v_proj": "e2m3",
    "self_attn.o_proj": "e2m1", "mlp.gate_proj": "e2m1", "mlp.up_proj": "e2m1", "mlp.down_proj": "e2m3",
}  # fmt: skip
FOLDERS = ("quark-mx", "quark-mx-interleaved")
CASES = [(folder, name) for folder in FOLDERS for name in ELEMENTS]


@pytest.fixture(scope="module")
def exports() -> dict[str, Variant]:
    return {name: Variant(name) for name in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_everything_is_claimed_and_agrees_with_the_config(
    exports: dict[str, Variant], folder: str
) -> None:
    grouping = exports[folder].checkpoint.grouping
    assert not grouping.failures
    assert not grouping.orphans
    assert not grouping.unrecognised
    assert {tensor.family for tensor in grouping.tensors} == {"quark_mx"}
    for state in exports[folder].inspection.states:
        assert state.exam.error is None
        assert all(equation.holds for equation in state.solved.equations)
        torn = [f for f, s in state.contract.fields.items() if s.match == "disagree"]
        assert not torn, (state.tensor.name, torn)
        scale = state.contract["scale"]
        assert scale.match == "agree"
        assert scale.inferred is not None
        assert scale.inferred.value["dtype"] == "s8_exponent"
        assert scale.inferred.strength in ("proved", "strong")


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_weights_are_those_of_the_producers_unpacker(
    exports: dict[str, Variant], folder: str, name: str
) -> None:
    variant, full = exports[folder], f"{LAYER}{name}.weight"
    assert variant.state(full).contract.value("element") == ELEMENTS[name]
    found, wanted = variant.decode(full), variant.wanted(full)
    assert found.shape == wanted.shape
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("folder", "name"), CASES[:3] + CASES[7:10])
def test_any_window_is_a_cut_and_located_bits_are_the_elements_own(
    exports: dict[str, Variant], tmp_path: Path, folder: str, name: str
) -> None:
    variant, full = exports[folder], f"{LAYER}{name}.weight"
    check_windows(variant, full)
    reading = variant.state(full).solved.chosen
    assert reading is not None
    check_locate(writable_copy(variant, tmp_path), full, reading, list(corners(reading.shape)))


def edited(source: Path, target: Path, **weight: Any) -> Path:
    """A copy whose config says something else of every weight; `config=None` takes the declaration away."""
    shutil.copytree(source, target)
    path = target / "config.json"
    config = json.loads(path.read_text())
    section = config["quantization_config"]
    if "config" in weight:
        del config["quantization_config"]
    else:
        for part in (section["global_quant_config"], *section["layer_quant_config"].values()):
            part["weight"].update(weight)
    path.write_text(json.dumps(config))
    return target


def test_read_as_e8m0_every_weight_would_be_off_by_2_to_the_127(
    exports: dict[str, Variant], tmp_path: Path
) -> None:
    """The shapes are those of OCP MXFP4: only the word `mx` tells the exponents apart."""
    folder = exports["quark-mx"].folder
    said = edited(folder, tmp_path / "said", dtype="fp4", scale_format="e8m0")
    full = f"{LAYER}self_attn.q_proj.weight"
    with Checkpoint.open(str(said)) as checkpoint:
        tensor = checkpoint.find(full)
        assert tensor.family == "mxfp4"
        reading = next(iter(checkpoint.family(tensor).candidates(tensor)))
        window = Window(range(8), range(32))
        family, reader = checkpoint.family(tensor), checkpoint.reader()
        biased = decode_window(family, tensor, reading, window, reader)
    signed = exports["quark-mx"].decode(full, Window(range(8), range(32)))
    live = np.isfinite(biased) & (signed != 0)
    assert live.any()
    # a negative int8 e is the byte 256 + e, which E8M0 takes for 2**(129 + e)
    assert set((biased[live].astype(np.float64) / signed[live]).tolist()) == {2.0**129}


def test_interleaved_blocks_are_known_by_their_row_length_without_a_declaration(
    exports: dict[str, Variant], tmp_path: Path
) -> None:
    source = exports["quark-mx-interleaved"]
    bare = edited(source.folder, tmp_path / "bare", config=None)
    with Checkpoint.open(str(bare)) as checkpoint:
        inspection = inspect(checkpoint)
        assert len(inspection.states) == len(ELEMENTS)
        for state in inspection.states:
            name = state.tensor.module.removeprefix(LAYER)
            left = {reading.element for reading in state.solved.solutions}
            assert left == ({"e2m1"} if ELEMENTS[name] == "e2m1" else {"e2m3", "e3m2"}), name
            shape = state.contract["shape"]
            assert str(shape.declared[0].source).startswith("config.json#/")
            assert shape.match == "agree"
    (bare / "config.json").unlink()
    with Checkpoint.open(str(bare)) as checkpoint:
        assert not checkpoint.grouping.tensors
        assert len(checkpoint.grouping.unrecognised) == len(ELEMENTS)


def test_a_row_of_broken_blocks_is_no_tensor_of_the_format(tmp_path: Path) -> None:
    weight = {"dtype": "mx", "mx_element_dtype": "fp4", "group_size": 32}
    config = {
        "quantization_config": {"quant_method": "quark", "global_quant_config": {"weight": weight}}
    }
    planes = {"m.weight": np.zeros((64, 35), np.uint8)}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        assert not checkpoint.grouping.tensors
        assert [t.name for t in checkpoint.grouping.unrecognised] == ["m.weight"]


def test_four_fp6_codes_of_three_bytes(tmp_path: Path) -> None:
    """Top bits 01 10 11 00 in the first byte, nibbles 0x1 0x2 0x3 0x4: codes 0x11 0x22 0x33 0x04 of E2M3."""
    weight = {"dtype": "mx", "mx_element_dtype": "fp6_e2m3", "group_size": 32}
    config = {
        "quantization_config": {"quant_method": "quark", "global_quant_config": {"weight": weight}}
    }
    block = np.zeros(25, np.uint8)
    block[0] = 0xFF  # 2**-1
    block[1:4] = (0b01_10_11_00, 0x12, 0x34)
    planes = {"m.weight": np.tile(block, (64, 1))}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        tensor = checkpoint.find("m")
        reading = next(iter(checkpoint.family(tensor).candidates(tensor)))
        window = Window(range(1), range(4))
        found = decode_window(
            checkpoint.family(tensor), tensor, reading, window, checkpoint.reader()
        )
    # E2M3, bias 1: 0x11 = 2**1 * (1 + 1/8), 0x22 = -2/8, 0x33 = -2**1 * (1 + 3/8), 0x04 = 4/8
    assert found.tolist() == [[1.125, -0.125, -1.375, 0.25]]
