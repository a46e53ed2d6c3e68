"""FP8 in its many namings: which scale belongs, which way it goes, what is left over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import bf16, raw, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.small_floats import float_table
from quantscope.decode.window import Window, decode_window
from quantscope.session.inspection import TensorState
from quantscope.session.pipeline import inspect

E4M3 = float_table("e4m3fn")


def fp8_codes(*shape: int, seed: int = 1) -> np.ndarray:
    """Random finite FP8 bytes that reach the largest value in every row."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 0x7F, shape, dtype=np.uint8)
    codes |= generator.integers(0, 2, shape, dtype=np.uint8) << np.uint8(7)
    codes[..., ::16] = 0x7E
    return codes


def only(folder: Path) -> tuple[Checkpoint, TensorState]:
    checkpoint = Checkpoint.open(str(folder))
    inspection = inspect(checkpoint)
    assert not checkpoint.grouping.unrecognised
    assert len(inspection.states) == 1
    return checkpoint, inspection.states[0]


def decoded(checkpoint: Checkpoint, state: TensorState) -> np.ndarray:
    reading = state.reading
    assert reading is not None
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    family = checkpoint.family(state.tensor)
    return decode_window(family, state.tensor, reading, window, checkpoint.reader())


def section(**keys: Any) -> dict[str, Any]:
    return {"quantization_config": keys}


def test_deepseek_blocks_multiply_and_are_cut_at_the_edges(tmp_path: Path) -> None:
    codes = fp8_codes(130, 200)
    scale = np.array([[1e-3, 2e-3], [3e-3, 4e-3]], dtype=np.float32)
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", codes), "m.weight_scale_inv": scale},
        section(quant_method="fp8", weight_block_size=[128, 128], fmt="e4m3"),
    )
    checkpoint, state = only(tmp_path)
    assert state.tensor.word == "fp8_block"
    assert state.contract.value("group") == {"axis": "block", "size": [128, 128]}
    assert state.contract.value("scale")["direction"] == "multiply"
    wide = scale.repeat(128, 0)[:130].repeat(128, 1)[:, :200]
    assert np.array_equal(decoded(checkpoint, state), E4M3[codes] * wide)


def test_gptqmodel_semantics_divide_under_the_same_name(tmp_path: Path) -> None:
    codes = fp8_codes(8, 64)
    scale = np.linspace(4000, 9000, 8, dtype=np.float32)
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", codes), "m.weight_scale_inv": scale},
        section(quant_method="fp8", weight_scale_method="row", weight_scale_semantics="inverse"),
    )
    checkpoint, state = only(tmp_path)
    assert state.contract.value("scale")["direction"] == "divide"
    assert state.contract["scale"].match == "agree"
    assert np.array_equal(decoded(checkpoint, state), E4M3[codes] / scale[:, None])


@pytest.mark.parametrize(("size", "way"), [(5000.0, "divide"), (2e-4, "multiply")])
def test_without_a_declaration_the_size_of_the_weights_tells_the_way(
    tmp_path: Path, size: float, way: str
) -> None:
    scale = np.full((8, 1), size, dtype=np.float32)
    write_checkpoint(
        tmp_path, {"m.weight": raw("F8_E4M3", fp8_codes(8, 64)), "m.weight_scale_inv": scale}
    )
    _, state = only(tmp_path)
    assert not state.contract["scale"].declared
    assert state.contract.value("scale")["direction"] == way


def test_a_declaration_against_the_size_of_the_weights_is_a_disagreement(tmp_path: Path) -> None:
    scale = np.full((8, 1), 5000.0, dtype=np.float32)
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", fp8_codes(8, 64)), "m.weight_scale_inv": scale},
        section(quant_method="fp8", activation_scheme="dynamic"),
    )
    _, state = only(tmp_path)
    assert state.contract["scale"].match == "disagree"


@pytest.mark.parametrize(
    ("suffix", "other"),
    [
        ("qscale_weight", "qscale_act"),
        ("scale_weight", "scale_input"),
        ("weight_scale", "input_scale"),
    ],
)
def test_scalar_scales_of_other_tools(tmp_path: Path, suffix: str, other: str) -> None:
    codes = fp8_codes(8, 24)
    write_checkpoint(
        tmp_path,
        {
            "m.weight": raw("F8_E4M3", codes),
            f"m.{suffix}": np.float32(0.003),
            f"m.{other}": np.float32(1.5),
        },
    )
    checkpoint, state = only(tmp_path)
    assert state.tensor.word == "fp8_tensor"
    assert [c.stored_name for c in checkpoint.grouping.companions] == [f"m.{other}"]
    assert np.array_equal(decoded(checkpoint, state), E4M3[codes] * np.float32(0.003))


def test_mistral_params_declare_the_element(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", fp8_codes(8, 24)), "m.qscale_weight": np.float32(0.003)},
        params={"quantization": {"qformat_weight": "fp8_e4m3"}},
    )
    _, state = only(tmp_path)
    assert [str(c.source) for c in state.contract["element"].declared] == [
        "params.json#/quantization/qformat_weight"
    ]


def test_the_legacy_marker_of_comfyui_is_a_companion(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path,
        {
            "m.weight": raw("F8_E5M2", fp8_codes(8, 24) & 0x7B),
            "m.scale_weight": np.float32(0.003),
            "scaled_fp8": raw("F8_E5M2", np.zeros(2, dtype=np.uint8)),
        },
    )
    checkpoint, state = only(tmp_path)
    assert state.contract.value("element") == "e5m2"
    assert {c.stored_name for c in checkpoint.grouping.companions} == {"scaled_fp8"}


def test_a_cast_without_a_scale_is_the_value_itself(tmp_path: Path) -> None:
    codes = fp8_codes(6, 4, 3, 3)
    write_checkpoint(
        tmp_path,
        {"conv.weight": raw("F8_E4M3", codes), "conv.bias": raw("F8_E4M3", fp8_codes(80))},
    )
    checkpoint = Checkpoint.open(str(tmp_path))
    inspection = inspect(checkpoint)
    words = {s.tensor.name: s.tensor.word for s in inspection.states}
    assert words == {"conv.weight": "fp8_unscaled", "conv.bias": "fp8_unscaled"}
    state = inspection.state("conv.weight")
    assert np.array_equal(decoded(checkpoint, state), E4M3[codes].reshape(6, 36))


def test_a_declared_scale_that_is_missing_makes_an_orphan(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", fp8_codes(8, 24))},
        section(quant_method="fp8", weight_block_size=[128, 128]),
    )
    grouping = Checkpoint.open(str(tmp_path)).grouping
    assert [o.missing for o in grouping.orphans] == [("weight_scale",)]


def test_a_scale_beside_a_plain_weight_is_an_orphan(tmp_path: Path) -> None:
    weight = bf16(np.ones((8, 24)))
    write_checkpoint(
        tmp_path,
        {"m.weight": weight, "m.weight_scale_inv": np.ones((1, 1), dtype=np.float32)},
        section(quant_method="fp8", weight_block_size=[128, 128]),
    )
    grouping = Checkpoint.open(str(tmp_path)).grouping
    assert [o.reason for o in grouping.orphans] == ["weight is stored as BF16"]


def test_modelopt_blocks_stored_in_four_axes(tmp_path: Path) -> None:
    codes = fp8_codes(256, 128)
    scale = np.array([1e-3, 2e-3], dtype=np.float32).reshape(2, 1, 1, 1)
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", codes), "m.weight_scale": scale},
        section(quant_method="modelopt", quant_algo="FP8_PB_WO"),
        hf_quant_config={"quantization": {"quant_algo": "FP8_PB_WO"}},
    )
    checkpoint, state = only(tmp_path)
    assert state.tensor.word == "modelopt:FP8_PB_WO"
    assert state.contract.value("group") == {"axis": "block", "size": [128, 128]}
    assert np.array_equal(
        decoded(checkpoint, state), E4M3[codes] * scale.reshape(2, 1).repeat(128, 0)
    )


def test_experts_in_one_stack_with_their_block_scales(tmp_path: Path) -> None:
    codes = fp8_codes(3, 64, 128)
    scale = np.array([1e-3, 2e-3, 4e-3], dtype=np.float32).reshape(3, 1, 1)
    write_checkpoint(
        tmp_path,
        {
            "mlp.experts.gate_up_proj": raw("F8_E4M3", codes),
            "mlp.experts.gate_up_proj_scale_inv": scale,
        },
        section(quant_method="fp8", weight_block_size=[128, 128]),
    )
    checkpoint = Checkpoint.open(str(tmp_path))
    inspection = inspect(checkpoint)
    assert len(inspection.states) == 3
    state = inspection.state("mlp.experts.gate_up_proj[2]")
    assert np.array_equal(decoded(checkpoint, state), E4M3[codes[2]] * scale[2])


def test_fbgemm_experts_are_stored_transposed(tmp_path: Path) -> None:
    codes = fp8_codes(2, 48, 32)
    scale = np.random.default_rng(2).random((2, 1, 32)).astype(np.float32) * 1e-2
    write_checkpoint(
        tmp_path,
        {
            "mlp.experts.gate_up_proj": raw("F8_E4M3", codes),
            "mlp.experts.gate_up_proj_scale": scale,
        },
        section(quant_method="fbgemm_fp8"),
    )
    checkpoint = Checkpoint.open(str(tmp_path))
    state = inspect(checkpoint).state("mlp.experts.gate_up_proj[1]")
    assert state.reading is not None
    assert state.reading.shape == (32, 48)
    assert np.array_equal(decoded(checkpoint, state), (E4M3[codes[1]] * scale[1]).T)


def test_exponent_scales_on_a_grid_of_blocks(tmp_path: Path) -> None:
    codes = fp8_codes(200, 256)
    exponents = np.array([[117, 118], [119, 120]], dtype=np.uint8)
    write_checkpoint(
        tmp_path,
        {"m.weight": raw("F8_E4M3", codes), "m.weight_scale_inv": raw("F8_E8M0", exponents)},
        section(quant_method="fp8", weight_block_size=[128, 128], scale_fmt="ue8m0"),
    )
    checkpoint, state = only(tmp_path)
    assert state.tensor.family == "fp8"
    assert state.contract.value("scale")["dtype"] == "e8m0"
    wide = np.ldexp(1.0, exponents.astype(int) - 127).repeat(128, 0)[:200].repeat(128, 1)
    assert np.array_equal(decoded(checkpoint, state), (E4M3[codes] * wide).astype(np.float32))


def test_exponent_scales_a_row_and_run_are_mxfp8(tmp_path: Path) -> None:
    codes = fp8_codes(6, 64)
    exponents = np.random.default_rng(4).integers(110, 125, (6, 2), dtype=np.uint8)
    write_checkpoint(tmp_path, {"m.weight": raw("F8_E4M3", codes), "m.weight_scale": exponents})
    checkpoint, state = only(tmp_path)
    assert state.tensor.family == "mxfp8"
    wide = np.ldexp(1.0, exponents.astype(int) - 127).repeat(32, 1)
    assert np.array_equal(decoded(checkpoint, state), (E4M3[codes] * wide).astype(np.float32))


def test_an_ignored_module_that_is_quantized_contradicts_its_list(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path,
        {
            "lm_head.weight": raw("F8_E4M3", fp8_codes(8, 24)),
            "lm_head.weight_scale_inv": np.float32(1e-3),
        },
        section(quant_method="fp8", modules_to_not_convert=["lm_head"]),
    )
    _, state = only(tmp_path)
    assert state.contract["element"].match == "disagree"
