"""Planes that producers wrote, under the names and configs of whole models: nothing above note."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import builders as b
import numpy as np
import pytest
from quantscope.samples.st_edit import Entry, StFile, entry
from rules_support import lines, loud, scan

DATA = Path(__file__).parent / "data"


def planes_of(folder: str, module: str, target: str) -> StFile:
    """The planes and the metadata of one module of tests/data, under another module's name."""
    file = StFile.read(DATA / folder / "model.safetensors")
    metadata = {
        f"{target}.weight": text for key, text in file.metadata.items() if key == f"{module}.weight"
    }
    tensors = {
        target + name.removeprefix(module): item
        for name, item in file.tensors.items()
        if name.startswith(f"{module}.")
    }
    return StFile(tensors=tensors, metadata=metadata)


def model(folder: Path, parts: list[StFile], config: dict[str, Any], **options: Any) -> Path:
    """A model of those parts, an embedding and norms."""
    tensors = b.model({}, **options)
    metadata: dict[str, str] = {}
    for part in parts:
        tensors |= part.tensors
        metadata |= part.metadata
    if metadata:
        metadata["tensor_names"] = json.dumps(sorted(metadata))
    return b.write(folder, tensors, config, metadata=metadata)


NESTED = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}


def test_one_block_of_nested_scales_is_no_scale_of_the_whole_tensor(tmp_path: Path) -> None:
    """bitsandbytes 0.50.2 with double quantization: up to 256 blocks share one `nested_absmax`.

    It scales the scales of that run of blocks, in every module anew, and no engine fuses it.
    """
    parts = []
    for number, name in enumerate(("q_proj", "k_proj", "v_proj")):
        part = planes_of("bitsandbytes-variants", "fp4_nested", f"model.layers.0.self_attn.{name}")
        scale = part.tensors[f"model.layers.0.self_attn.{name}.weight.nested_absmax"]
        scale.put(scale.array() * np.float32(1 + 3 * number))
        parts.append(part)
    config = b.config(NESTED | {"bnb_4bit_use_double_quant": True}, num_hidden_layers=1)
    assert not lines(loud(scan(model(tmp_path / "m", parts, config, layers=1))))


def test_experts_that_bitsandbytes_leaves_in_their_stack_are_not_missed(tmp_path: Path) -> None:
    """transformers 5.24 keeps experts as one parameter a layer; bitsandbytes converts linear modules only."""
    linear = planes_of("bitsandbytes-variants", "nf4_f32", "model.layers.0.self_attn.q_proj")
    section = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    experts = {
        f"model.layers.0.mlp.experts.{number}.{name}.weight": b.f16(b.weights(64, 256, number))
        for number in range(4)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    whole = StFile(tensors=experts)
    config = b.config(section, num_experts=4, num_hidden_layers=1)
    folder = model(tmp_path / "m", [linear, whole], config, layers=1)
    assert not lines(loud(scan(folder)))
    one = planes_of("bitsandbytes-variants", "nf4_f32", "model.layers.0.mlp.experts.0.down_proj")
    mixed = StFile(
        tensors={k: v for k, v in experts.items() if not k.endswith("0.down_proj.weight")}
    )
    folder = model(tmp_path / "n", [linear, mixed, one], config, layers=1)
    assert "QW002" in {f.code for f in loud(scan(folder))}


ROWWISE = {"_data": {}, "_type": "Int8WeightOnlyConfig", "_version": 2}


def torchao(rules: dict[str, Any]) -> dict[str, Any]:
    """A section as transformers 5.24 writes it for torchao's FqnToConfig."""
    data = {"fqn_to_config": rules, "module_fqn_to_config": rules}
    kind = {"_data": data, "_type": "FqnToConfig", "_version": 1}
    return {"quant_method": "torchao", "quant_type": {"default": kind}}


@pytest.mark.parametrize(
    ("rule", "quiet"),
    [
        ("model.layers.0.self_attn.q_proj", True),
        (r"re:model\.layers\.0\..*q_proj", True),
        ("model.layers.1.self_attn.q_proj", False),
    ],
)
def test_a_module_that_torchao_maps_to_null_is_left_out(
    tmp_path: Path, rule: str, quiet: bool
) -> None:
    parts = [
        planes_of("torchao-variants", "i8_row", f"model.layers.{layer}.self_attn.{name}")
        for layer in range(2)
        for name in ("q_proj", "k_proj")
        if (layer, name) != (0, "q_proj")
    ]
    plain = {"model.layers.0.self_attn.q_proj.weight": b.f16(b.weights(6, 40))}
    section = torchao({"_default": ROWWISE, rule: None})
    folder = model(tmp_path / "m", [*parts, StFile(tensors=plain)], b.config(section))
    assert ("QW002" not in {f.code for f in loud(scan(folder))}) is quiet


@pytest.mark.parametrize(
    ("folder", "module", "method"),
    [("torchao-variants", "x4_asym", "torchao"), ("quanto-variants", "q4_g32", "quanto")],
)
def test_a_quantized_head_is_a_head_whatever_its_planes_are_called(
    tmp_path: Path, folder: str, module: str, method: str
) -> None:
    parts = [
        planes_of(folder, module, target)
        for target in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "lm_head")
    ]
    assert parts[-1].tensors
    config = b.config({"quant_method": method}, tie_word_embeddings=False)
    found = scan(model(tmp_path / "m", parts, config)).findings
    assert "QW010" not in {f.code for f in found}
    found = scan(model(tmp_path / "n", parts[:-1], config)).findings
    assert "QW010" in {f.code for f in found}


def test_one_zero_a_tensor_settles_no_convention(tmp_path: Path) -> None:
    """llm-compressor 0.14.0.1, 8 bits asymmetric per tensor: one zero, stored as int8 -1, is 127 of 255.

    The same value is what a symmetric file of the other convention holds in every place.
    """
    codes = np.random.default_rng(5).normal(127, 30, (64, 256)).round().clip(0, 255)
    codes[0, :2] = (0, 255)
    planes = {
        "weight_packed": entry("I32", b.pack(codes.astype(np.uint8), 8)),
        "weight_scale": b.bf16(np.array([0.001], dtype=np.float32)),
        "weight_zero_point": entry("I8", np.array([-1], dtype=np.int8)),
        "weight_shape": entry("I64", np.array([64, 256], dtype="<i8")),
    }
    tensors = b.model(b.layered(lambda seed: planes))
    section = b.ct_config(num_bits=8, symmetric=False, strategy="tensor", group_size=None)
    inspection = scan(b.write(tmp_path / "m", tensors, b.config(section)))
    assert not lines(loud(inspection))
    for state in inspection.states:
        assert state.contract.value("zero_convention") == "as_is"
        assert state.contract.value("symmetric") is False


AUTO_ROUND = {"quant_method": "auto-round", "autoround_version": "0.16.1", "bits": 8, "sym": True}


def test_autorounds_fp8_is_one_code_a_byte_in_blocks(tmp_path: Path) -> None:
    """auto-round 0.16.1, scheme FP8_BLOCK: group_size is [128, 128], packing_format says nothing of nibbles."""
    section = AUTO_ROUND | {
        "data_type": "fp",
        "group_size": [128, 128],
        "weight_block_size": [128, 128],
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "packing_format": "auto_round:fp8",
    }
    tensors = b.model(b.layered(lambda seed: b.fp8(128, 256, dtype="BF16", seed=seed)))
    inspection = scan(b.write(tmp_path / "m", tensors, b.config(section)))
    assert not lines(loud(inspection))
    for state in inspection.states:
        assert state.contract["group"].match == "agree"
        assert state.contract.value("packing")["order"] == "one_per_word"


def test_autorounds_mxfp8_is_one_code_a_byte(tmp_path: Path) -> None:
    """auto-round 0.16.1, scheme MXFP8 (data_type mx_fp, packing_format auto_round:llm_compressor)."""
    section = AUTO_ROUND | {
        "data_type": "mx_fp",
        "group_size": 32,
        "packing_format": "auto_round:llm_compressor",
    }

    def planes(seed: int) -> dict[str, Entry]:
        values = b.weights(64, 256, seed).reshape(64, 8, 32)
        exponent = np.floor(np.log2(np.abs(values).max(axis=2))) - 8
        scaled = (values / 2.0 ** exponent[..., None]).reshape(64, 256)
        codes = b.e4m3(np.abs(scaled)) | (0x80 * (scaled < 0)).astype(np.uint8)
        return {
            "weight": entry("F8_E4M3", codes),
            "weight_scale": entry("U8", (exponent + 127).astype(np.uint8)),
        }

    inspection = scan(b.write(tmp_path / "m", b.model(b.layered(planes)), b.config(section)))
    assert not lines(loud(inspection))
    assert {s.contract.value("packing")["order"] for s in inspection.states} == {"one_per_word"}


def test_names_that_autoround_gives_modules_in_memory_are_a_note(tmp_path: Path) -> None:
    """auto-round 0.16.1 on Mixtral under transformers 5: `mlp.gate` in memory, `block_sparse_moe.gate` on disk."""
    section = AUTO_ROUND | {
        "bits": 4,
        "group_size": 64,
        "packing_format": "auto_round:auto_gptq",
        "extra_config": {r".*model\.layers\.0\.mlp\.gate.*": {"bits": 16, "data_type": "float"}},
    }
    tensors = b.model(b.layered(lambda seed: b.gptq(symmetric=True, seed=seed)))
    found = scan(b.write(tmp_path / "m", tensors, b.config(section))).findings
    assert [f.severity for f in found if f.code == "QW003"] == ["note"]
