"""ModelOpt INT4 AWQ on its real file, its places, and int8 where only the config tells whose it is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import read_safetensors_values, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.session.pipeline import inspect
from real_oracle import (
    RealCheckpoint,
    check_declarations,
    check_decode,
    check_equations,
    check_locate,
    check_statements,
)
from variant_oracle import Variant, check_accounted, check_windows, corners

K_PROJ = "model.layers.0.self_attn.k_proj.weight"


def small(folder: Path, algorithm: str = "W4A16_AWQ", **extra: Any) -> Path:
    """A module of 6 x 64 whose byte (r, k) is 16 * (r + 8) + k mod 16."""
    rows = np.arange(3, dtype=np.uint8)[:, None]
    planes = {
        "m.weight": ((rows + 8) << 4) | (np.arange(64, dtype=np.uint8) & 15),
        "m.weight_scale": np.full((6, 2), 0.5, np.float32),
        **extra,
    }
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm}}
    return write_checkpoint(folder, planes, config)


@pytest.mark.real
def test_real_file_says_and_decodes_what_modelopt_does(real_set: Path) -> None:
    real = RealCheckpoint(real_set / "modelopt-int4-awq")
    check_statements(real)
    check_equations(real)
    check_declarations(real)
    check_decode(real)
    # the oracle was taken before packing: a few codes at ties differ, all others are equal to the last bit or two
    for name in real.expected["oracle"]["tensors"]:
        found, wanted = real.decode(name, as_producer=False), real.oracle()[name]
        assert np.isclose(found, wanted, rtol=1e-6, atol=0).mean() > 0.995


@pytest.mark.real
def test_rescaled_channels_are_a_basis_and_a_companion(real_set: Path) -> None:
    real = RealCheckpoint(real_set / "modelopt-int4-awq")
    companions = {c.stored_name for c in real.checkpoint.grouping.companions}
    assert "model.layers.0.self_attn.o_proj.pre_quant_scale" in companions
    bases = {s.tensor.name: s.contract.value("basis") for s in real.inspection.states}
    assert bases["model.layers.0.self_attn.o_proj.weight"] == "input channels rescaled"
    assert bases[K_PROJ] == "plain"


@pytest.mark.real
def test_flipping_located_bits_changes_that_element_only(real_set: Path, tmp_path: Path) -> None:
    source = real_set / "modelopt-int4-awq"
    for name in ("config.json", "hf_quant_config.json", "model.safetensors"):
        shutil.copy(source / name, tmp_path / name)
    with Checkpoint.open(str(tmp_path)) as checkpoint:
        reading = inspect(checkpoint).state(K_PROJ).solved.chosen
    assert reading is not None
    check_locate(tmp_path, K_PROJ, reading, list(corners(reading.shape))[:2])


def test_low_nibbles_are_even_rows_and_codes_are_twos_complement(tmp_path: Path) -> None:
    with Checkpoint.open(str(small(tmp_path / "c"))) as checkpoint:
        state = inspect(checkpoint).states[0]
        reading = state.solved.chosen
        assert reading is not None
        found = decode_window(
            checkpoint.family(state.tensor),
            state.tensor,
            reading,
            Window(range(1, 5), range(3, 12)),
            checkpoint.reader(),
        )
    low = np.arange(3, 12)
    assert found[1].tolist() == (np.where(low > 7, low - 16, low) * 0.5).tolist()
    assert found[0].tolist() == [-8 * 0.5] * 9
    assert found[2].tolist() == [-7 * 0.5] * 9


def test_the_second_scale_of_w4a8_is_a_step_of_the_kernel_and_no_factor(tmp_path: Path) -> None:
    folder = small(tmp_path / "c", "W4A8_AWQ", **{"m.weight_scale_2": np.array(0.01, np.float32)})
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint).states[0]
        what = {c.stored_name: c.what for c in checkpoint.grouping.companions}
    assert state.tensor.word == "modelopt:W4A8_AWQ"
    assert what == {"m.weight_scale_2": "step of the kernel's FP8 rounding"}
    assert "second_level" not in state.contract.value("scale")


def test_experts_are_one_tensor_each(tmp_path: Path) -> None:
    planes = {
        "m.weight": np.zeros((5, 3, 64), np.uint8),
        "m.weight_scale": np.full((5, 6, 2), 0.5, np.float32),
    }
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert [t.name for t in checkpoint.grouping.tensors] == [f"m.weight[{i}]" for i in range(5)]
        assert all(s.solved.solutions for s in inspect(checkpoint).states)


@pytest.mark.parametrize(("algorithm", "word"), [("W8A8_SQ_PER_CHANNEL", True), (None, False)])
def test_int8_is_modelopts_where_the_config_says_so(
    tmp_path: Path, algorithm: str | None, word: bool
) -> None:
    planes = {
        "m.weight": np.full((6, 64), -3, np.int8),
        "m.weight_scale": np.full(6, 0.5, np.float32),
    }
    config = None
    if algorithm:
        config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm}}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        state = inspect(checkpoint).states[0]
    assert (state.tensor.family == "modelopt_int8") is word
    assert state.contract.value("group") == {"axis": "channel", "size": None}


def test_a_scale_without_its_weight_is_an_orphan(tmp_path: Path) -> None:
    planes = {"m.weight_scale": np.full((6, 2), 0.5, np.float32)}
    config = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes, config))) as checkpoint:
        assert [o.missing for o in checkpoint.grouping.orphans] == [("weight",)]


def test_a_shipped_module_decodes_as_modelopts_own_quantizer() -> None:
    variant = Variant("modelopt-int4-awq")
    check_accounted(variant, 1, "modelopt:W4A16_AWQ")
    check_windows(variant, K_PROJ)
    # The oracle quantizes once more in float32: two codes of 16384 lie on the other side of a tie.
    found, wanted = variant.decode(K_PROJ), variant.wanted(K_PROJ)
    off = np.abs(found - wanted) > 2e-7 * np.abs(wanted)
    assert off.sum() <= 2
    step = read_safetensors_values(variant.folder / "model.safetensors")
    widest = np.asarray(step[K_PROJ + "_scale"]).max()
    assert np.abs(found - wanted).max() <= widest * 1.000001
