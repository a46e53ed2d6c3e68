"""Small GPTQ checkpoints with known codes, zeros and scales, packed here word by word with numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_builder import write_safetensors

K, N, GROUP = 256, 64, 64
HOSTILE = (
    "[/]",
    "\x1b[31mred\x1b[0m",
    "\u202eevil\u2066",
    "two\nlines\r\n",
    "<script>alert(1)</script>",
    "`code` ``more``",
    "a|b|c",
    "[x](javascript:alert(1))",
    "![i](http://example.org/x.png)",
    "@everyone #1 https://example.org",
    "\x9b31m\x07\x00",
    "&lt;b&gt; \"quoted\" 'single'",
    "{0} {{x}}",
    "n" * 10_000,
)


class Planes:
    """One module: codes [K, N], stored zeros [G, N], scales [G, N], and their packed planes."""

    def __init__(self, seed: int = 0, *, k: int = K, n: int = N, group: int = GROUP) -> None:
        generator = np.random.default_rng(seed)
        groups = k // group
        self.group = group
        self.zeros = generator.integers(5, 11, (groups, n))
        spread = np.rint(generator.normal(0, 2, (k, n))).astype(np.int64)
        self.codes = np.clip(spread + np.repeat(self.zeros, group, axis=0), 0, 15)
        self.scales = generator.uniform(0.01, 0.2, (groups, n)).astype(np.float16)

    def tensors(self, module: str, *, minus_one: bool) -> dict[str, Any]:
        """Packed planes by stored name; zeros stored one lower where `minus_one`."""
        stored = self.zeros - (1 if minus_one else 0)
        return {
            f"{module}.qweight": pack_rows(self.codes),
            f"{module}.qzeros": pack_rows(stored.T).T.copy(),
            f"{module}.scales": self.scales,
        }

    def weights(self, shift: int = 0) -> Any:
        """float32 [out, in]: (code - zero - shift) * scale."""
        zeros = np.repeat(self.zeros, self.group, axis=0)
        scales = np.repeat(self.scales.astype(np.float32), self.group, axis=0)
        difference = (self.codes - zeros - shift).astype(np.float32)
        return (difference * scales).T


def pack_rows(codes: Any) -> Any:
    """int32 words of eight rows each, the first row in the lowest four bits."""
    words = np.zeros((codes.shape[0] // 8, codes.shape[1]), np.uint32)
    for place in range(8):
        words |= codes[place::8].astype(np.uint32) << np.uint32(4 * place)
    return words.view(np.int32)


def config(checkpoint_format: str | None = "gptq_v2", **more: Any) -> dict[str, Any]:
    """A model config with a GPTQ declaration."""
    quantization = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "sym": False,
        "desc_act": False,
        **more,
    }
    if checkpoint_format is not None:
        quantization["checkpoint_format"] = checkpoint_format
    return {"model_type": "llama", "quantization_config": quantization}


def write_gptq(
    folder: Path,
    names: tuple[str, ...] = ("model.layers.0.self_attn.q_proj",),
    *,
    declared: dict[str, Any] | None = None,
    minus_one: bool = False,
    extra: dict[str, Any] | None = None,
    metadata: dict[str, str] | None = None,
) -> dict[str, Planes]:
    """Write a folder with modules of known planes; zeros are stored as they are unless `minus_one`."""
    folder.mkdir(parents=True, exist_ok=True)
    planes = {name: Planes(seed) for seed, name in enumerate(names)}
    tensors: dict[str, Any] = {}
    for name, module in planes.items():
        tensors |= module.tensors(name, minus_one=minus_one)
    tensors |= extra or {}
    write_safetensors(folder / "model.safetensors", tensors, metadata or {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(declared or config()))
    return planes


def write_liar(folder: Path, names: tuple[str, ...] = ("model.layers.0.self_attn.q_proj",)) -> Any:
    """Zeros stored as they are under a declaration that says they are stored one lower."""
    return write_gptq(folder, names, declared=config("gptq"))
