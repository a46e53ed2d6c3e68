"""Small checkpoints for kernel checks; words are laid bit by bit here, by no code of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_builder import raw, write_checkpoint

N, K = 128, 256


def words_along(
    codes: np.ndarray, axis: int, places: tuple[int, ...] = tuple(range(8))
) -> np.ndarray:
    """4-bit codes as int32 words along an axis; `places` holds the nibble of each of eight codes."""
    lines = np.moveaxis(codes, axis, -1)
    eights = lines.reshape(*lines.shape[:-1], -1, 8).astype(np.uint64)
    words = np.zeros(eights.shape[:-1], np.uint64)
    for number, place in enumerate(places):
        words |= eights[..., number] << np.uint64(4 * place)
    return np.moveaxis(words.astype(np.uint32).view(np.int32), -1, axis)


def gptq(
    folder: Path, *, group_size: int = 64, signed: bool = False, zeros: bool = True, seed: int = 5
) -> Path:
    """A GPTQ v1 checkpoint with one layer; bell-shaped codes around asymmetric zeros."""
    made = np.random.default_rng(seed)
    groups = K // group_size
    zero = made.integers(4, 12, (groups, N))
    scale = made.uniform(0.004, 0.03, (groups, N)).astype(np.float16)
    if signed:
        scale *= made.choice([-1, 1], scale.shape).astype(np.float16)
    if not zeros:
        zero = np.full((groups, N), 8)
    centre = np.repeat(zero, group_size, axis=0)
    codes = np.clip(np.rint(made.normal(centre, 2.2)), 0, 15).astype(np.int64)
    tensors = {
        "model.layers.0.mlp.up_proj.qweight": words_along(codes, 0),
        "model.layers.0.mlp.up_proj.qzeros": words_along((zero - 1) & 15, 1),
        "model.layers.0.mlp.up_proj.scales": scale,
        "model.layers.0.mlp.up_proj.g_idx": (np.arange(K) // group_size).astype(np.int32),
    }
    config = {
        "bits": 4,
        "group_size": group_size,
        "sym": not zeros,
        "desc_act": False,
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
    }
    return write_checkpoint(folder, tensors, {"quantization_config": config})


AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibble of channel n within eight: the inverse of the order 0 2 4 6 1 3 5 7."""


def awq(folder: Path, *, zero_codes: bool = False, seed: int = 6) -> Path:
    """An AWQ GEMM checkpoint; with `zero_codes`, half of the groups have zero point 0."""
    made = np.random.default_rng(seed)
    group_size = 64
    groups = K // group_size
    zero = made.integers(5, 11, (groups, N))
    if zero_codes:
        zero[:, ::2] = 0
    scale = made.uniform(0.004, 0.03, (groups, N)).astype(np.float16)
    centre = np.repeat(zero, group_size, axis=0)
    codes = np.clip(np.rint(made.normal(centre, 2.2)), 0, 15).astype(np.int64)
    tensors = {
        "model.layers.0.mlp.up_proj.qweight": words_along(codes, 1, AWQ_PLACES),
        "model.layers.0.mlp.up_proj.qzeros": words_along(zero, 1, AWQ_PLACES),
        "model.layers.0.mlp.up_proj.scales": scale,
    }
    config = {
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "quant_method": "awq",
        "version": "gemm",
    }
    return write_checkpoint(folder, tensors, {"quantization_config": config})


def compressed(folder: Path, fmt: str, planes: dict[str, Any], weights: dict[str, Any]) -> Path:
    """A compressed-tensors checkpoint with one config group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "format": fmt}
    config = {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    tensors = {f"model.layers.0.mlp.up_proj.{name}": value for name, value in planes.items()}
    return write_checkpoint(folder, tensors, {"quantization_config": config})


def mxfp4(folder: Path, seed: int = 7) -> Path:
    """MXFP4 planes with exponents around 2^-7."""
    made = np.random.default_rng(seed)
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
        "scale_dtype": "torch.uint8",
        "zp_dtype": "torch.uint8",
    }
    planes = {
        "weight_packed": made.integers(0, 256, (N, K // 2)).astype(np.uint8),
        "weight_scale": made.integers(117, 123, (N, K // 32)).astype(np.uint8),
    }
    return compressed(folder, "mxfp4-pack-quantized", planes, weights)


def nvfp4(folder: Path, seed: int = 8) -> Path:
    """NVFP4 planes with a second-level scale that divides."""
    made = np.random.default_rng(seed)
    weights = {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "tensor_group",
        "group_size": 16,
    }
    planes = {
        "weight_packed": made.integers(0, 256, (N, K // 2)).astype(np.uint8),
        "weight_scale": raw("F8_E4M3", made.integers(0x30, 0x7E, (N, K // 16)).astype(np.uint8)),
        "weight_global_scale": np.array([1536.0], np.float32),
    }
    return compressed(folder, "nvfp4-pack-quantized", planes, weights)
