"""NVFP4 and MX planes: who stored them, which nibble comes first, where each scale lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import raw, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.small_floats import float_table
from quantscope.decode.window import Window, decode_window
from quantscope.session.inspection import TensorState
from quantscope.session.pipeline import inspect

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def planes(n: int, k: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [N, K], scale bytes [N, K/16] and packed bytes, low nibble first."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, 16, (n, k), dtype=np.uint8)
    scales = generator.integers(0x30, 0x7E, (n, k // 16), dtype=np.uint8)
    return codes, scales, codes[:, 0::2] | codes[:, 1::2] << 4


def swizzled(scales: np.ndarray) -> np.ndarray:
    """Padded and put into tiles of 128 x 4 by reshapes, not by the formula under test."""
    rows, groups = -(-scales.shape[0] // 128) * 128, -(-scales.shape[1] // 4) * 4
    wide = np.zeros((rows, groups), dtype=np.uint8)
    wide[: scales.shape[0], : scales.shape[1]] = scales
    tiles = wide.reshape(rows // 128, 4, 32, groups // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(rows, groups)


def only(folder: Path) -> tuple[Checkpoint, TensorState]:
    checkpoint = Checkpoint.open(str(folder))
    inspection = inspect(checkpoint)
    assert not checkpoint.grouping.unrecognised
    assert len(inspection.states) == 1
    return checkpoint, inspection.states[0]


def decoded(checkpoint: Checkpoint, state: TensorState, *, as_producer: bool = False) -> np.ndarray:
    reading = state.reading
    assert reading is not None
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    family = checkpoint.family(state.tensor)
    return decode_window(
        family, state.tensor, reading, window, checkpoint.reader(), as_producer=as_producer
    )


def values(codes: np.ndarray, scales: np.ndarray, second: float) -> np.ndarray:
    level = float_table("e4m3fn")[scales] * np.float32(second)
    return E2M1[codes] * level.repeat(16, axis=1)


def test_modelopt_is_low_first_row_by_row_and_multiplies(tmp_path: Path) -> None:
    codes, scales, packed = planes(24, 64)
    second = np.float32(1e-4)
    write_checkpoint(
        tmp_path,
        {
            "m.weight": packed,
            "m.weight_scale": raw("F8_E4M3", scales),
            "m.weight_scale_2": second,
            "m.input_scale": np.float32(2e-3),
            "m.k_scale": np.float32(1.0),
        },
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
    )
    checkpoint, state = only(tmp_path)
    assert state.tensor.word == "modelopt:NVFP4"
    assert state.contract["packing"].declared_values == ({"order": "low_first"},)
    assert {c.stored_name for c in checkpoint.grouping.companions} == {"m.input_scale", "m.k_scale"}
    assert np.array_equal(decoded(checkpoint, state), values(codes, scales, second))


def test_without_any_declaration_the_nibble_order_stays_open(tmp_path: Path) -> None:
    _, scales, packed = planes(24, 64)
    write_checkpoint(
        tmp_path,
        {
            "m.weight": packed,
            "m.weight_scale": raw("F8_E4M3", scales),
            "m.weight_scale_2": np.float32(1e-4),
        },
    )
    _, state = only(tmp_path)
    field = state.contract["packing"]
    assert field.match == "ambiguous"
    assert {c.value["order"] for c in field.candidates} == {"low_first", "high_first"}
    assert state.contract.value("scale")["second_level"]["direction"] == "multiply"


@pytest.mark.parametrize("marker", ["tensor", "metadata"])
def test_comfyui_is_high_first_and_swizzled(tmp_path: Path, marker: str) -> None:
    codes, scales, _ = planes(128, 64)
    packed = codes[:, 0::2] << 4 | codes[:, 1::2]
    tensors: dict[str, Any] = {
        "m.weight": packed,
        "m.weight_scale": raw("F8_E4M3", swizzled(scales)),
        "m.weight_scale_2": np.float32(1e-4),
    }
    metadata = None
    if marker == "tensor":
        tensors["m.comfy_quant"] = np.frombuffer(b'{"format": "nvfp4"}', dtype=np.uint8)
    else:
        metadata = {
            "_quantization_metadata": '{"format_version":"1.0","layers":{"m":{"format":"nvfp4"}}}'
        }
    write_checkpoint(tmp_path, tensors, metadata=metadata)
    checkpoint, state = only(tmp_path)
    assert state.tensor.word == "nvfp4:comfyui"
    assert state.contract["placement"].declared_values == ("cutlass_128x4",)
    assert state.reading is not None
    assert state.reading.packing.order == "high_first"
    assert np.array_equal(decoded(checkpoint, state), values(codes, scales, 1e-4))


def test_a_padded_scale_matrix_alone_tells_the_tiles(tmp_path: Path) -> None:
    _, scales, packed = planes(16, 96)
    write_checkpoint(
        tmp_path,
        {
            "m.weight": packed,
            "m.weight_scale": raw("F8_E4M3", swizzled(scales)),
            "m.weight_scale_2": np.float32(1e-4),
        },
    )
    _, state = only(tmp_path)
    assert state.contract.value("placement") == "cutlass_128x4"
    stats = next(p for p in state.exam.planes if p.suffix == "weight_scale")
    assert stats.zero == 0
    assert stats.examined == scales.size


def test_the_global_scale_of_compressed_tensors_divides(tmp_path: Path) -> None:
    codes, scales, packed = planes(24, 64)
    write_checkpoint(
        tmp_path,
        {
            "m.weight_packed": packed,
            "m.weight_scale": raw("F8_E4M3", scales),
            "m.weight_global_scale": np.array([5000], dtype=np.float32),
        },
    )
    checkpoint, state = only(tmp_path)
    assert state.tensor.word == "compressed_tensors:nvfp4-pack-quantized"
    assert state.contract.value("scale")["second_level"]["direction"] == "divide"
    level = float_table("e4m3fn")[scales] / np.float32(5000)
    assert np.array_equal(decoded(checkpoint, state), E2M1[codes] * level.repeat(16, axis=1))


def test_autoround_multiplies_by_the_reciprocal_of_its_global_scale_first(tmp_path: Path) -> None:
    """One block of a k_proj by auto-round 0.16.1, scheme NVFP4, against its own `dequant_weight_online()`."""
    section = {
        "quant_method": "auto-round",
        "autoround_version": "0.16.1",
        "bits": 4,
        "data_type": "nv_fp",
        "group_size": 16,
        "packing_format": "auto_round:llm_compressor",
    }
    packed = np.array([[223, 147, 149, 201, 204, 201, 89, 199]], dtype=np.uint8)
    tensors = {
        "m.weight_packed": packed,
        "m.weight_scale": raw("F8_E4M3", np.array([[102]], dtype=np.uint8)),
        "m.weight_global_scale": np.array([800.1488037109375], dtype=np.float32),
    }
    write_checkpoint(tmp_path, tensors, {"quantization_config": section})
    checkpoint, state = only(tmp_path)
    wanted = np.array(
        [
            [
                0xBED70000,
                0xBE570000,
                0x3DD70000,
                0xBD0F5555,
                0x3E570000,
                0xBD0F5555,
                0xBD0F5555,
                0xBE0F5555,
            ]
        ],
        dtype=np.uint32,
    )
    found = decoded(checkpoint, state, as_producer=True).view(np.uint32)
    assert found[:, :8].tolist() == wanted.tolist()
    assert (found != decoded(checkpoint, state).view(np.uint32)).any()


def test_a_missing_global_scale_makes_orphans(tmp_path: Path) -> None:
    _, scales, packed = planes(24, 64)
    write_checkpoint(
        tmp_path, {"m.weight_packed": packed, "m.weight_scale": raw("F8_E4M3", scales)}
    )
    grouping = Checkpoint.open(str(tmp_path)).grouping
    assert {o.missing for o in grouping.orphans} == {("weight_global_scale",)}
    assert {o.stored_name for o in grouping.orphans} == {"m.weight_packed", "m.weight_scale"}


def test_auto_round_v2_has_five_bit_exponents_over_sixteen(tmp_path: Path) -> None:
    codes, _, packed = planes(24, 64)
    scales = np.random.default_rng(5).integers(60, 90, (24, 4), dtype=np.uint8)
    write_checkpoint(
        tmp_path,
        {"m.weight_packed": packed, "m.weight_scale": scales},
        {
            "quantization_config": {
                "quant_method": "auto-round",
                "packing_format": "auto_round:llm_compressor",
                "data_type": "nv_fp4_v2",
                "bits": 4,
                "group_size": 16,
            }
        },
    )
    checkpoint, state = only(tmp_path)
    assert state.reading is not None
    assert state.reading.scale[0].dtype == "ue5m3"
    level = np.ldexp(1 + (scales & 7) / 8.0, (scales >> 3).astype(int) - 15)
    wanted = (E2M1[codes] * level.repeat(16, axis=1)).astype(np.float32)
    assert np.array_equal(decoded(checkpoint, state), wanted)


def test_quark_names_itself(tmp_path: Path) -> None:
    _, scales, packed = planes(24, 64)
    weight = [
        {"dtype": "fp4", "qscheme": "per_group", "group_size": 16, "scale_format": "e4m3"},
        {"dtype": "fp8_e4m3", "qscheme": "per_tensor"},
    ]
    write_checkpoint(
        tmp_path,
        {
            "m.weight": packed,
            "m.weight_scale": raw("F8_E4M3", scales),
            "m.weight_scale_2": np.float32(1e-4),
            "m.input_scale_2": np.float32(1.0),
        },
        {
            "quantization_config": {
                "quant_method": "quark",
                "global_quant_config": {"weight": weight},
            }
        },
    )
    _, state = only(tmp_path)
    assert state.tensor.word == "nvfp4:quark"
    assert [str(c.source) for c in state.contract["element"].declared] == [
        "config.json#/quantization_config/global_quant_config/weight/0/dtype"
    ]
    assert state.contract["element"].match != "disagree"


def test_experts_of_a_stack_have_their_own_second_level(tmp_path: Path) -> None:
    first, second = planes(16, 64, seed=1), planes(16, 64, seed=2)
    levels = np.array([1e-4, 3e-4], dtype=np.float32)
    write_checkpoint(
        tmp_path,
        {
            "experts.weight": np.stack([first[2], second[2]]),
            "experts.weight_scale": raw("F8_E4M3", np.stack([first[1], second[1]])),
            "experts.weight_scale_2": levels,
        },
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
    )
    checkpoint = Checkpoint.open(str(tmp_path))
    inspection = inspect(checkpoint)
    for number, (codes, scales, _) in enumerate((first, second)):
        state = inspection.state(f"experts.weight[{number}]")
        assert np.array_equal(decoded(checkpoint, state), values(codes, scales, levels[number]))
