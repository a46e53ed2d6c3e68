"""Tiny models for logits checks: built and saved by transformers, quantized here by one formula a weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_builder import write_checkpoint

IDS = [3, 17, 5, 90, 41, 7, 7, 66, 12, 33, 81, 2, 54, 28, 19, 70, 11]

QWEN = {
    "model_type": "qwen2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
QWEN_MOE = {
    **QWEN,
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "num_experts": 12,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
}


def random_model(config: dict[str, Any], seed: int = 0) -> Any:
    """A transformers model with random weights of some size, biases included."""
    import torch
    import transformers

    rest = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **rest)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
            else:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    return model


def logits_of(model: Any, ids: list[int]) -> np.ndarray:
    """What transformers itself gives, [len(ids) - 1, V]."""
    import torch

    with torch.inference_mode():
        out = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return out.numpy()


def saved(model: Any, folder: Path) -> Path:
    """The folder as transformers writes it."""
    model.save_pretrained(folder)
    return folder


def stored_names(model: Any, folder: Path) -> dict[str, np.ndarray]:
    """Weights under the names that transformers writes."""
    from safetensors.numpy import load_file

    saved(model, folder)
    return dict(load_file(folder / "model.safetensors"))


def rtn(weight: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round to nearest: codes [out, in] and zeros, scales [out, groups] of 4 bits, asymmetric."""
    grouped = weight.reshape(weight.shape[0], -1, group)
    low = np.minimum(grouped.min(-1), 0)
    high = np.maximum(grouped.max(-1), 0)
    scale = ((high - low) / 15).astype(np.float16).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 1, 15)
    codes = np.clip(np.rint(grouped / scale[..., None]) + zero[..., None], 0, 15)
    return codes.reshape(weight.shape).astype(np.int64), zero.astype(np.int64), scale


def words(codes: np.ndarray) -> np.ndarray:
    """Codes [K, N] into int32 words along K, the first code in the lowest bits (AutoGPTQ's rule)."""
    lanes = codes.reshape(codes.shape[0] // 8, 8, codes.shape[1]).astype(np.uint32)
    packed = np.zeros(lanes[:, 0].shape, dtype=np.uint32)
    for lane in range(8):
        packed |= lanes[:, lane] << np.uint32(4 * lane)
    return packed.view(np.int32)


def gptq(
    model: Any, folder: Path, *, group: int = 32, stored_zero_off: int = 1, **config: Any
) -> Any:
    """Quantize every linear of the decoder layers into GPTQ planes; the model gets the decoded weights.

    Args:
        model: changed in place to hold exactly what the planes mean.
        folder: where the checkpoint is written.
        group: columns of a group.
        stored_zero_off: 1 stores zero - 1 (checkpoint_format gptq), 0 the zero itself.
        config: more keys of the quantization config.
    """
    import torch

    tensors = stored_names(model, folder)
    state = model.state_dict()
    planes: dict[str, np.ndarray] = {}
    for name, weight in tensors.items():
        module = name.removesuffix(".weight")
        if ".layers." not in name or weight.ndim != 2 or "norm" in name or ".gate.weight" in name:
            planes[name] = weight
            continue
        codes, zero, scale = rtn(weight, group)
        planes[f"{module}.qweight"] = words(np.ascontiguousarray(codes.T))
        stored = np.ascontiguousarray((zero - stored_zero_off).T)
        planes[f"{module}.qzeros"] = np.ascontiguousarray(words(np.ascontiguousarray(stored.T)).T)
        planes[f"{module}.scales"] = np.ascontiguousarray(scale.T).astype(np.float16)
        planes[f"{module}.g_idx"] = (np.arange(weight.shape[1]) // group).astype(np.int32)
        spread = np.repeat(scale, group, axis=1)
        decoded = (codes - np.repeat(zero, group, axis=1)).astype(np.float32) * spread
        tensors[name] = decoded
        if name in state:
            state[name].copy_(torch.from_numpy(decoded))
    _experts_into(state, tensors)
    written = json.loads((folder / "config.json").read_text())
    written["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "desc_act": False,
        "sym": False,
        "checkpoint_format": "gptq" if stored_zero_off else "gptq_v2",
        **config,
    }
    write_checkpoint(folder, planes, written)
    return model


def _experts_into(state: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Single experts' weights into the stacked parameters, expert by expert."""
    import torch

    for name, parameter in state.items():
        prefix, _, last = name.rpartition(".")
        if last not in ("gate_up_proj", "down_proj") or parameter.ndim != 3:
            continue
        parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else ("down_proj",)
        for expert in range(parameter.shape[0]):
            rows = [tensors[f"{prefix}.{expert}.{part}.weight"] for part in parts]
            parameter[expert].copy_(torch.from_numpy(np.concatenate(rows)))


def ids_file(folder: Path, ids: list[int] | None = None) -> str:
    """An ids file for a request."""
    path = folder / "ids.json"
    path.write_text(json.dumps(IDS if ids is None else ids))
    return str(path)
