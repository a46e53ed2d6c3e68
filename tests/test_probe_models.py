"""Logits of models fed by the engine equal those that transformers gives with the same weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from checkpoint_builder import raw, write_checkpoint
from probe_models import (
    IDS,
    QWEN,
    QWEN_MOE,
    gptq,
    ids_file,
    logits_of,
    random_model,
    saved,
    stored_names,
)
from quantscope.checkpoint import Checkpoint
from quantscope.compare.sides import Side
from quantscope.errors import QuantscopeError
from quantscope.probes.config import config_of
from quantscope.probes.measure import LogitsCheck
from quantscope.probes.model import ProbeRequest, ProbeResult, SideRequest, TokenRequest
from quantscope.probes.network import Network
from quantscope.probes.weights import ModelWeights
from quantscope.session.pipeline import inspect

pytestmark = pytest.mark.torch


def our_logits(
    path: Path, ids: list[int], *, stream: bool = True, reading: dict[str, str] | None = None
) -> np.ndarray:
    """Logits of one checkpoint through the engine, in this process."""
    with Checkpoint.open(str(path)) as checkpoint:
        side = Side(inspect(checkpoint))
        network = Network(config_of(checkpoint), dtype="float32", device="cpu", stream=stream)
        request = SideRequest(label="x", path=str(path), reading=reading or {})
        weights = ModelWeights(side, request)
        return network.logits(network.source(weights), tuple(ids), lambda done, total: None)


def run(
    path: Path, folder: Path, *others: SideRequest, base: Path | None = None, **request: Any
) -> ProbeResult:
    """A whole check in this process, on the test's ids."""
    sides = [SideRequest(label="base", path=str(base))] if base else []
    sides.append(SideRequest(label="own", path=str(path)))
    tokens = request.pop("tokens", TokenRequest(source="ids", path=ids_file(folder)))
    check = ProbeRequest(sides=(*sides, *others), tokens=tokens, **request)
    return LogitsCheck(check, lambda stage, done, total: None).run()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A tiny Qwen2 in GPTQ planes with biases, and the logits of its decoded weights."""
    folder = tmp_path_factory.mktemp("qwen")
    model = gptq(random_model(QWEN), folder)
    return folder, logits_of(model, IDS)


def test_a_qwen_like_model_in_gptq_planes_gives_transformers_logits(
    qwen: tuple[Path, np.ndarray],
) -> None:
    folder, expected = qwen
    assert np.array_equal(our_logits(folder, IDS), expected)


def test_streaming_equals_the_full_load_bit_for_bit(qwen: tuple[Path, np.ndarray]) -> None:
    folder, _ = qwen
    assert np.array_equal(our_logits(folder, IDS), our_logits(folder, IDS, stream=False))


def test_the_other_zero_convention_gives_other_logits(qwen: tuple[Path, np.ndarray]) -> None:
    folder, expected = qwen
    other = our_logits(folder, IDS, reading={"zero_convention": "as_is"})
    assert not np.array_equal(other, expected)


def test_v2_planes_of_the_same_weights_give_the_same_logits(
    qwen: tuple[Path, np.ndarray], tmp_path: Path
) -> None:
    model = gptq(random_model(QWEN), tmp_path, stored_zero_off=0)
    assert np.array_equal(logits_of(model, IDS), qwen[1])
    assert np.array_equal(our_logits(tmp_path, IDS), qwen[1])


def test_experts_stored_one_by_one_become_the_stacked_parameters(tmp_path: Path) -> None:
    model = random_model(QWEN_MOE)
    expected = logits_of(model, IDS)
    names = stored_names(model, tmp_path / "plain")
    assert any(".experts.10.gate_proj.weight" in name for name in names)
    assert np.array_equal(our_logits(tmp_path / "plain", IDS), expected)
    quantized = gptq(model, tmp_path / "gptq")
    found = our_logits(tmp_path / "gptq", IDS)
    assert np.array_equal(found, logits_of(quantized, IDS))
    assert not np.array_equal(found, expected)


def test_experts_are_joined_in_numerical_order_without_transformers_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(QWEN_MOE)
    saved(model, tmp_path)
    monkeypatch.setattr("quantscope.probes.conversions.Conversions._plan", lambda self, names: None)
    assert np.array_equal(our_logits(tmp_path, IDS), logits_of(model, IDS))


def test_stacked_mxfp4_experts_are_turned_even_where_they_are_square(tmp_path: Path) -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    config = {
        **QWEN_MOE,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_experts_per_tok": 2,
        "head_dim": 16,
    }
    for key in ("num_experts", "moe_intermediate_size"):
        config.pop(key)
    model = random_model(config)
    tensors: dict[str, Any] = stored_names(model, tmp_path)
    generator = np.random.default_rng(1)
    state = model.state_dict()
    for name in [n for n in tensors if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, n_in, n_out = tensors.pop(name).shape
        blocks = generator.integers(0, 256, (experts, n_out, n_in // 32, 16), dtype=np.uint8)
        scales = generator.integers(120, 126, (experts, n_out, n_in // 32), dtype=np.uint8)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = (
            raw("U8", blocks),
            raw("U8", scales),
        )
        decoded = convert_moe_packed_tensors(
            torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
        )
        assert decoded.shape == state[name].shape
        state[name].copy_(decoded)
    written = json.loads((tmp_path / "config.json").read_text())
    written["quantization_config"] = {"quant_method": "mxfp4"}
    write_checkpoint(tmp_path, tensors, written)
    found = our_logits(tmp_path, IDS)
    assert np.array_equal(found, logits_of(model, IDS))


def tiny_gguf(path: Path, kind: str, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(str(path), kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(128)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    writer.add_tokenizer_model("gpt2")
    for name, (array, quantization) in tensors.items():
        data = array if quantization is None else gguf.quantize(array, quantization)
        writer.add_tensor(name, data, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_with_stacked_experts_equals_transformers_own_load(tmp_path: Path) -> None:
    import gguf
    import transformers

    config = {**QWEN_MOE, "num_experts": 4, "hidden_size": 64, "intermediate_size": 64}
    config["moe_intermediate_size"] = 32
    random = np.random.default_rng(3)

    def drawn(*shape: int) -> Any:
        return (0.2 * random.standard_normal(shape)).astype(np.float32)

    q8, hidden = gguf.GGMLQuantizationType.Q8_0, config["hidden_size"]
    tensors: dict[str, Any] = {
        "token_embd.weight": (drawn(96, hidden), q8),
        "output.weight": (drawn(96, hidden), q8),
        "output_norm.weight": (1 + drawn(hidden), None),
    }
    for block in range(config["num_hidden_layers"]):
        for name, shape in {
            "attn_q": (64, hidden),
            "attn_k": (32, hidden),
            "attn_v": (32, hidden),
            "attn_output": (hidden, 64),
            "ffn_gate_exps": (4, 32, hidden),
            "ffn_up_exps": (4, 32, hidden),
            "ffn_down_exps": (4, hidden, 32),
        }.items():
            tensors[f"blk.{block}.{name}.weight"] = (drawn(*shape), q8)
        tensors[f"blk.{block}.ffn_gate_inp.weight"] = (drawn(4, hidden), None)
        for name, size in {
            "attn_norm": hidden,
            "ffn_norm": hidden,
            "attn_q_norm": 16,
            "attn_k_norm": 16,
        }.items():
            tensors[f"blk.{block}.{name}.weight"] = (1 + drawn(size), None)
    path = tiny_gguf(tmp_path / "moe.gguf", "qwen3moe", config, tensors)
    sized = {k: v for k, v in config_of(Checkpoint.open(str(path))).items() if k != "model_type"}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path),
        gguf_file=path.name,
        dtype="float32",
        config=transformers.AutoConfig.for_model("qwen3_moe", **sized),
    )
    assert theirs.config.moe_intermediate_size == 32
    assert np.array_equal(our_logits(path, IDS), logits_of(theirs.eval(), IDS))


def test_a_shape_that_does_not_fit_is_named(tmp_path: Path) -> None:
    tensors = stored_names(random_model(QWEN), tmp_path)
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = np.zeros((32, 64), dtype=np.float32)
    write_checkpoint(tmp_path, tensors, json.loads((tmp_path / "config.json").read_text()))
    with pytest.raises(QuantscopeError, match=r"q_proj.weight has shape \[32, 64\]"):
        our_logits(tmp_path, IDS)


def test_a_parameter_without_a_weight_is_named(tmp_path: Path) -> None:
    tensors = stored_names(random_model(QWEN), tmp_path)
    tensors.pop("model.layers.2.mlp.up_proj.weight")
    write_checkpoint(tmp_path, tensors, json.loads((tmp_path / "config.json").read_text()))
    with pytest.raises(QuantscopeError, match=r"no weight for model.layers.2.mlp.up_proj.weight"):
        our_logits(tmp_path, IDS)


def test_weights_that_no_parameter_takes_are_counted(tmp_path: Path) -> None:
    tensors = stored_names(random_model(QWEN), tmp_path)
    tensors["model.extra.weight"] = np.zeros((4, 4), dtype=np.float32)
    write_checkpoint(tmp_path, tensors, json.loads((tmp_path / "config.json").read_text()))
    result = run(tmp_path, tmp_path)
    assert result.sides[0].tensors_unused == 1
    assert result.sides[0].unused_names == ("model.extra.weight",)


def test_the_first_layer_where_two_checkpoints_part_is_found(tmp_path: Path) -> None:
    model = random_model(QWEN)
    tensors = stored_names(model, tmp_path / "good")
    bad = dict(tensors)
    name = "model.layers.1.mlp.down_proj.weight"
    bad[name] = bad[name] * np.float32(1.5)
    config = json.loads((tmp_path / "good" / "config.json").read_text())
    write_checkpoint(tmp_path / "bad", bad, config)
    for stream in (True, False):
        result = run(
            tmp_path / "bad", tmp_path, base=tmp_path / "good", by_layer=True, stream=stream
        )
        alone = [layer.isolated_relative for layer in result.layers]
        assert result.first_layer_apart == 1
        assert [value > 0 for value in alone] == [False, True, False]
        assert [layer.own_relative > 0 for layer in result.layers] == [False, True, True]


def smollm() -> Path:
    folder = os.environ.get("QUANTSCOPE_GGUF_DIR", "")
    path = Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not folder or not path.is_file():
        pytest.skip("QUANTSCOPE_GGUF_DIR names no folder with SmolLM2-135M-Instruct.Q4_1.gguf")
    return path


def gemma() -> Path:
    folder = os.environ.get("QUANTSCOPE_GGUF_DIR", "")
    path = Path(folder) / "gemma-3-270m-q4_k_m.gguf"
    if not folder or not path.is_file():
        pytest.skip("QUANTSCOPE_GGUF_DIR names no folder with gemma-3-270m-q4_k_m.gguf")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("find", [smollm, gemma])
def test_a_gguf_gives_the_logits_of_transformers_own_load(find: Any) -> None:
    import transformers

    path = find()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype="float32"
    )
    ids = [1, 504, 2240, 23, 99, 1500, 7, 42, 3000, 11, 512, 77]
    expected = logits_of(theirs.eval(), ids)
    del theirs
    ours = our_logits(path, ids)
    assert np.max(np.abs(ours - expected)) == 0.0


@pytest.mark.slow
def test_a_gguf_against_the_same_model_in_hugging_face_order_differs_in_nothing(
    tmp_path: Path,
) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    path = smollm()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype="float32"
    )
    theirs.config.quantization_config = None
    config = {k: v for k, v in theirs.config.to_dict().items() if k != "quantization_config"}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    state = {k: v.clone() for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    assert state["model.norm.weight"].dtype == torch.float32
    save_file(state, tmp_path / "model.safetensors")
    del theirs, state
    result = run(path, tmp_path, base=tmp_path)
    assert result.pairs[0].max_abs_dlogit == 0.0
    assert result.pairs[0].kl_max == 0.0
    differ = next(c for c in result.controls if c.name == "weights_differ")
    assert not differ.held
    assert result.outcome == "inconclusive"
