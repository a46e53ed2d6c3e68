"""compressed-tensors: which group of the config speaks of a module, and what each format fixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import raw, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.window import Window, decode_window
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import inspect


def packed(n: int = 16, k: int = 64, g: int = 32, seed: int = 1) -> dict[str, Any]:
    """Planes of a 4-bit symmetric module."""
    generator = np.random.default_rng(seed)
    return {
        "weight_packed": generator.integers(0, 1 << 32, (n, k // 8), dtype=np.uint32).view("i4"),
        "weight_scale": generator.random((n, k // g)).astype(np.float16),
        "weight_shape": np.array([n, k], dtype=np.int64),
    }


def weights(**keys: Any) -> dict[str, Any]:
    return {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
    } | keys


def config(*groups: dict[str, Any], **keys: Any) -> dict[str, Any]:
    section = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
    }
    return {"quantization_config": section | keys}


def opened(folder: Path, modules: dict[str, dict[str, Any]], settings: Any) -> Inspection:
    tensors = {f"{m}.{suffix}": v for m, planes in modules.items() for suffix, v in planes.items()}
    write_checkpoint(folder, tensors, settings)
    return inspect(Checkpoint.open(str(folder)))


def places(inspection: Inspection, module: str, field: str) -> dict[str, Any]:
    state = inspection.state(f"{module}.weight")
    return {
        str(c.source).removeprefix("config.json#/quantization_config/"): c.value
        for c in state.contract[field].declared
    }


def test_exact_names_stand_over_regexes_and_regexes_over_class_names(tmp_path: Path) -> None:
    groups = (
        {"targets": ["Linear"], "weights": weights(group_size=16)},
        {"targets": ["re:.*mlp.*"], "weights": weights(group_size=64)},
        {"targets": ["a.mlp.down_proj"], "weights": weights(group_size=32)},
    )
    modules = {
        "a.mlp.down_proj": packed(),
        "a.mlp.up_proj": packed(),
        "a.self_attn.q_proj": packed(),
    }
    inspection = opened(tmp_path, modules, config(*groups))
    wanted = {"a.mlp.down_proj": 32, "a.mlp.up_proj": 64, "a.self_attn.q_proj": 16}
    for module, size in wanted.items():
        sizes = [v["size"] for v in places(inspection, module, "group").values() if "size" in v]
        assert sizes == [size]
    assert inspection.state("a.mlp.down_proj.weight").contract["group"].match == "agree"
    assert inspection.state("a.mlp.up_proj.weight").contract["group"].match == "disagree"


def test_an_ignored_module_with_planes_contradicts_the_list(tmp_path: Path) -> None:
    settings = config({"targets": ["Linear"], "weights": weights()}, ignore=["re:.*lm_head"])
    inspection = opened(tmp_path, {"lm_head": packed()}, settings)
    assert places(inspection, "lm_head", "element")["ignore"] == "plain"
    assert inspection.state("lm_head.weight").contract["element"].match == "disagree"


def test_symmetric_says_whether_zeros_are_fixed_or_stored(tmp_path: Path) -> None:
    group = {"targets": ["Linear"], "weights": weights(), "format": "pack-quantized"}
    inspection = opened(tmp_path / "sym", {"m": packed()}, config(group))
    assert places(inspection, "m", "zero") == {
        "config_groups/group_0/format": "fixed",
        "format": "fixed",
    }
    assert not places(inspection, "m", "zero_convention")
    planes = packed() | {"weight_zero_point": np.full((2, 2), 0x77777777, dtype="i4")}
    group = {"targets": ["Linear"], "weights": weights(symmetric=False)}
    inspection = opened(tmp_path / "asym", {"m": planes}, config(group))
    assert places(inspection, "m", "zero_convention") == {"format": "as_is"}
    assert inspection.state("m.weight").contract["zero"].match == "agree"


def test_stored_zeros_under_a_symmetric_claim_are_a_disagreement(tmp_path: Path) -> None:
    planes = packed() | {"weight_zero_point": np.full((2, 2), 0x77777777, dtype="i4")}
    inspection = opened(
        tmp_path, {"m": planes}, config({"targets": ["Linear"], "weights": weights()})
    )
    assert inspection.state("m.weight").contract["zero"].match == "disagree"


@pytest.mark.parametrize(("version", "order"), [("0.17.1", "padded"), ("0.18.0", "bitstream")])
def test_the_version_says_how_three_bits_lie(tmp_path: Path, version: str, order: str) -> None:
    planes = {
        "weight_packed": np.zeros((8, 7), dtype="i4"),
        "weight_scale": np.ones((8, 2), dtype=np.float16),
        "weight_shape": np.array([8, 64], dtype=np.int64),
    }
    group = {"targets": ["Linear"], "weights": weights(num_bits=3)}
    inspection = opened(tmp_path, {"m": planes}, config(group, version=version))
    state = inspection.state("m.weight")
    assert places(inspection, "m", "packing")["version"] == {"order": order}
    assert state.contract.value("packing")["order"] == "padded"
    assert state.contract["packing"].match == ("agree" if order == "padded" else "disagree")


def test_without_a_config_the_word_is_that_of_the_planes(tmp_path: Path) -> None:
    inspection = opened(tmp_path, {"m": packed()}, None)
    state = inspection.state("m.weight")
    assert state.tensor.word == "compressed_tensors:pack-quantized"
    assert state.contract.value("element") == "u4"


def test_the_stored_shape_is_a_claim(tmp_path: Path) -> None:
    planes = packed() | {"weight_shape": np.array([16, 61], dtype=np.int64)}
    inspection = opened(tmp_path, {"m": planes}, None)
    state = inspection.state("m.weight")
    assert state.reading is not None
    assert state.reading.shape == (16, 61)
    assert [str(c.source) for c in state.contract["shape"].declared] == [
        "model.safetensors#m.weight_shape#"
    ]
    wrong = packed() | {"weight_shape": np.array([16, 200], dtype=np.int64)}
    inspection = opened(tmp_path, {"m": wrong}, None)
    assert not inspection.state("m.weight").solved.solutions


def test_activation_and_cache_scales_are_companions(tmp_path: Path) -> None:
    planes = packed() | {"input_scale": np.ones(1, dtype=np.float16)}
    attention = {"k_scale": np.ones(1, dtype=np.float16), "v_scale": np.ones(1, dtype=np.float16)}
    inspection = opened(tmp_path, {"a.self_attn.q_proj": planes, "a.self_attn": attention}, None)
    found = {c.stored_name for c in inspection.checkpoint.grouping.companions}
    assert found == {
        "a.self_attn.q_proj.input_scale",
        "a.self_attn.k_scale",
        "a.self_attn.v_scale",
    }
    assert not inspection.checkpoint.grouping.plain


def test_codes_without_scales_are_orphans(tmp_path: Path) -> None:
    planes = packed()
    del planes["weight_scale"]
    inspection = opened(tmp_path, {"m": planes}, None)
    orphans = inspection.checkpoint.grouping.orphans
    assert {o.stored_name for o in orphans} == {"m.weight_packed", "m.weight_shape"}
    assert {o.missing for o in orphans} == {("weight_scale",)}


def test_mixed_formats_speak_group_by_group(tmp_path: Path) -> None:
    groups = (
        {
            "targets": ["re:.*attn.*"],
            "format": "float-quantized",
            "weights": weights(num_bits=8, type="float", strategy="channel", group_size=None),
        },
        {"targets": ["re:.*mlp.*"], "format": "pack-quantized", "weights": weights()},
    )
    values = np.random.default_rng(2).integers(0, 0x7E, (16, 64), dtype=np.uint8)
    floats = {
        "weight": raw("F8_E4M3", values),
        "weight_scale": np.full((16, 1), 1e-3, dtype=np.float32),
    }
    inspection = opened(
        tmp_path, {"attn.q": floats, "mlp.up": packed()}, config(*groups, format="mixed-precision")
    )
    assert {s.tensor.word for s in inspection.states} == {"compressed_tensors:mixed-precision"}
    assert inspection.state("attn.q.weight").contract.value("element") == "e4m3fn"
    assert inspection.state("attn.q.weight").tensor.family == "ct_float"
    assert places(inspection, "mlp.up", "zero") == {"config_groups/group_1/format": "fixed"}


def test_experts_of_a_stack_are_packed_each_by_itself(tmp_path: Path) -> None:
    one, two = packed(seed=1), packed(seed=2)
    stack = {name: np.stack([one[name], two[name]]) for name in ("weight_packed", "weight_scale")}
    inspection = opened(tmp_path, {"experts": stack}, None)
    alone = opened(tmp_path / "alone", {"m": two}, None)

    def whole(inspected: Inspection, name: str) -> np.ndarray:
        state = inspected.state(name)
        assert state.reading is not None
        window = Window(range(16), range(64))
        family = inspected.checkpoint.family(state.tensor)
        return decode_window(
            family, state.tensor, state.reading, window, inspected.checkpoint.reader()
        )

    assert len(inspection.states) == 2
    assert np.array_equal(whole(inspection, "experts.weight[1]"), whole(alone, "m.weight"))
