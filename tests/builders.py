"""Small checkpoints of many families from drawn weights, for rules: planes as public formats define them.

The packing here is plain numpy on purpose and independent of the decoder under test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from quantscope.samples.gguf_edit import F32, STRING, U32, GgufFile, Key, Tensor, value_of
from quantscope.samples.st_edit import Entry, StFile, entry

Planes = dict[str, Entry]


def weights(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Bell-shaped weights of a usual size, rows of unlike scale."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 0.02, (rows, cols)) * rng.uniform(0.5, 1.5, (rows, 1))
    return values.astype(np.float32)


def bf16(values: np.ndarray) -> Entry:
    """float32 cut to bfloat16."""
    bits = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2")
    return entry("BF16", bits)


def f16(values: np.ndarray) -> Entry:
    return entry("F16", np.asarray(values).astype("<f2"))


def f32(values: Any) -> Entry:
    return entry("F32", np.asarray(values, dtype="<f4"))


def pack(codes: np.ndarray, bits: int, axis: int = -1) -> np.ndarray:
    """Codes packed lowest first into 32-bit words along an axis, as a dense stream."""
    moved = np.moveaxis(codes.astype(np.uint8), axis, -1)
    stream = np.unpackbits(moved[..., None], axis=-1, bitorder="little")[..., :bits]
    stream = stream.reshape(*moved.shape[:-1], -1)
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, -stream.shape[-1] % 32)])
    words = np.packbits(stream, axis=-1, bitorder="little").view("<i4")
    return np.moveaxis(words, -1, axis)


def quantized(
    values: np.ndarray, bits: int, group: int, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [N, K], scales [N, G] and integer zeros [N, G]."""
    rows, cols = values.shape
    blocks = values.reshape(rows, cols // group, group)
    top = (1 << bits) - 1
    if symmetric:
        scale = 2 * np.abs(blocks).max(axis=2) / top
        zero = np.full(scale.shape, 1 << (bits - 1))
    else:
        low, high = np.minimum(blocks.min(axis=2), 0), np.maximum(blocks.max(axis=2), 0)
        scale = (high - low) / top
        zero = np.clip(np.round(-low / scale), 0, top)
    codes = np.clip(np.round(blocks / scale[..., None]) + zero[..., None], 0, top)
    return (
        codes.reshape(rows, cols).astype(np.uint8),
        scale.astype(np.float32),
        zero.astype(np.uint8),
    )


def gptq(
    rows: int = 64,
    cols: int = 256,
    bits: int = 4,
    group: int = 64,
    *,
    symmetric: bool = False,
    stored: str = "minus_one",
    seed: int = 0,
    g_idx: bool = True,
) -> Planes:
    """GPTQ planes of one module."""
    codes, scale, zero = quantized(weights(rows, cols, seed), bits, group, symmetric=symmetric)
    if stored == "minus_one":
        zero = (zero - 1) & ((1 << bits) - 1)
    planes = {
        "qweight": entry("I32", pack(codes.T, bits, axis=0)),
        "qzeros": entry("I32", pack(zero.T, bits, axis=-1)),
        "scales": f16(scale.T),
    }
    if g_idx:
        planes["g_idx"] = entry("I32", (np.arange(cols) // group).astype("<i4"))
    return planes


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(rows: int = 64, cols: int = 256, group: int = 64, seed: int = 0) -> Planes:
    """AWQ GEMM planes of one module."""
    codes, scale, zero = quantized(weights(rows, cols, seed), 4, group, symmetric=False)
    order = np.arange(rows).reshape(-1, 8)[:, AWQ_ORDER].ravel()
    return {
        "qweight": entry("I32", pack(codes.T[:, order], 4)),
        "qzeros": entry("I32", pack(zero.T[:, order], 4)),
        "scales": f16(scale.T),
    }


def ct_pack(
    rows: int = 64,
    cols: int = 256,
    bits: int = 4,
    group: int = 64,
    *,
    symmetric: bool = True,
    seed: int = 0,
) -> Planes:
    """compressed-tensors pack-quantized planes of one module."""
    codes, scale, zero = quantized(weights(rows, cols, seed), bits, group, symmetric=symmetric)
    planes = {
        "weight_packed": entry("I32", pack(codes, bits)),
        "weight_scale": bf16(scale),
        "weight_shape": entry("I64", np.array([rows, cols], dtype="<i8")),
    }
    if not symmetric:
        planes["weight_zero_point"] = entry("I32", pack(zero, bits, axis=0))
    return planes


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def e4m3(values: np.ndarray) -> np.ndarray:
    """Nearest E4M3FN bytes of non-negative values up to 448."""
    table = _e4m3_table()
    return np.abs(values[..., None] - table).argmin(axis=-1).astype(np.uint8)


def _e4m3_table() -> np.ndarray:
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    ).astype(np.float32)


def e2m1(values: np.ndarray) -> np.ndarray:
    """Nearest E2M1 codes."""
    code = np.abs(np.abs(values)[..., None] - E2M1).argmin(axis=-1)
    return (code + 8 * (values < 0)).astype(np.uint8)


def nvfp4(
    rows: int = 64, cols: int = 256, *, flavour: str = "ct", seed: int = 0, ratio: float = 1.0
) -> Planes:
    """NVFP4 planes: `ct` with a divisor, `modelopt` with a factor."""
    values = weights(rows, cols, seed)
    outer = np.float32(np.abs(values).max() / (6 * 448) * ratio)
    blocks = values.reshape(rows, cols // 16, 16)
    scale = e4m3(np.abs(blocks).max(axis=2) / 6 / outer)
    real = _e4m3_table()[scale] * outer
    codes = e2m1(blocks / np.maximum(real, 1e-12)[..., None]).reshape(rows, cols)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
    if flavour == "ct":
        return {
            "weight_packed": entry("U8", packed),
            "weight_scale": entry("F8_E4M3", scale),
            "weight_global_scale": f32([1 / outer]),
            "input_global_scale": f32([120.0]),
        }
    return {
        "weight": entry("U8", packed),
        "weight_scale": entry("F8_E4M3", scale),
        "weight_scale_2": f32(outer).__class__(
            dtype="F32", shape=[], data=np.float32(outer).tobytes()
        ),
        "input_scale": Entry(dtype="F32", shape=[], data=np.float32(0.004).tobytes()),
    }


def mxfp4(rows: int = 64, cols: int = 256, seed: int = 0) -> Planes:
    """MXFP4 planes of compressed-tensors."""
    values = weights(rows, cols, seed)
    blocks = values.reshape(rows, cols // 32, 32)
    exponent = np.floor(np.log2(np.abs(blocks).max(axis=2))) - 2
    codes = e2m1(blocks / 2.0 ** exponent[..., None]).reshape(rows, cols)
    return {
        "weight_packed": entry("U8", (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)),
        "weight_scale": entry("U8", (exponent + 127).astype(np.uint8)),
    }


def fp8(
    rows: int = 64,
    cols: int = 256,
    *,
    scale: str = "block",
    suffix: str = "weight_scale_inv",
    dtype: str = "F32",
    seed: int = 0,
) -> Planes:
    """FP8 planes with scales per block of 128, per channel or per tensor."""
    values = weights(rows, cols, seed)
    if scale == "block":
        grid = np.zeros((-(-rows // 128), -(-cols // 128)), dtype=np.float32)
        wide = np.zeros_like(values)
        for r in range(grid.shape[0]):
            for c in range(grid.shape[1]):
                part = values[r * 128 : r * 128 + 128, c * 128 : c * 128 + 128]
                grid[r, c] = np.abs(part).max() / 448
                wide[r * 128 : r * 128 + 128, c * 128 : c * 128 + 128] = grid[r, c]
    elif scale == "channel":
        grid = np.abs(values).max(axis=1, keepdims=True) / 448
        wide = np.broadcast_to(grid, values.shape)
    else:
        grid = np.array(np.abs(values).max() / 448, dtype=np.float32)
        wide = np.broadcast_to(grid, values.shape)
    codes = e4m3(np.abs(values / wide)) | (0x80 * (values < 0)).astype(np.uint8)
    stored = bf16(grid) if dtype == "BF16" else f32(grid)
    stored.shape = list(grid.shape)
    return {"weight": entry("F8_E4M3", codes), suffix: stored}


def plain(rows: int = 64, cols: int = 256, seed: int = 0) -> Planes:
    """An unquantized module."""
    return {"weight": f16(weights(rows, cols, seed))}


MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")


def model(
    modules: dict[str, Planes],
    *,
    layers: int = 2,
    hidden: int = 256,
    tied: bool | None = True,
    head: bool = False,
    stem: str = "model",
) -> dict[str, Entry]:
    """Tensors of a model: an embedding, norms and the modules given by their names inside the stem."""
    tensors: dict[str, Entry] = {f"{stem}.embed_tokens.weight": f16(weights(32, hidden, 99))}
    for name, planes in modules.items():
        for suffix, item in planes.items():
            tensors[f"{name}.{suffix}"] = item
    for layer in range(layers):
        tensors[f"{stem}.layers.{layer}.input_layernorm.weight"] = f16(np.ones(hidden))
    tensors[f"{stem}.norm.weight"] = f16(np.ones(hidden))
    if head:
        tensors["lm_head.weight"] = f16(weights(32, hidden, 98))
    return tensors


def layered(make: Any, *, layers: int = 2, names: tuple[str, ...] = MODULES) -> dict[str, Planes]:
    """The modules of each layer from a function of a seed."""
    return {
        f"model.layers.{layer}.{name}": make(seed=layer * 10 + number)
        for layer in range(layers)
        for number, name in enumerate(names)
    }


def write(
    folder: Path,
    tensors: dict[str, Entry],
    config: dict[str, Any] | None = None,
    *,
    metadata: dict[str, str] | None = None,
    **files: Any,
) -> Path:
    """Write model.safetensors, config.json and other JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    StFile(tensors=tensors, metadata=metadata or {}).write(folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def config(quantization: Any = None, **keys: Any) -> dict[str, Any]:
    """A model config."""
    base: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
    }
    if quantization is not None:
        base["quantization_config"] = quantization
    return base | keys


GPTQ_CONFIG = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 64,
    "sym": False,
    "desc_act": False,
    "checkpoint_format": "gptq",
}
AWQ_CONFIG = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 64,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}


def ct_config(
    fmt: str = "pack-quantized", ignore: tuple[str, ...] = ("lm_head",), **weights_: Any
) -> Any:
    """A compressed-tensors section."""
    scheme = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 64,
        "dynamic": False,
    } | weights_
    return {
        "quant_method": "compressed-tensors",
        "format": fmt,
        "quantization_status": "compressed",
        "ignore": list(ignore),
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": scheme, "input_activations": None}
        },
    }


NVFP4_CT = ct_config(
    "nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16
)
NVFP4_CT["config_groups"]["group_0"]["input_activations"] = {
    "num_bits": 4,
    "type": "float",
    "dynamic": "local",
    "group_size": 16,
}
FP8_BLOCK = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}


def gguf(tensors: dict[str, tuple[list[int], int, bytes]], **keys: Any) -> GgufFile:
    """A GGUF file of named tensors (dims fastest first, type id, data)."""
    base = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 256}
    made = []
    for name, value in (base | {k.replace("__", "."): v for k, v in keys.items()}).items():
        kind = STRING if isinstance(value, str) else F32 if isinstance(value, float) else U32
        if value is not None:
            made.append(Key(name=name, type_id=kind, raw=value_of(kind, value)))
    return GgufFile(
        keys=made,
        tensors=[Tensor(name=n, dims=d, type_id=t, data=b) for n, (d, t, b) in tensors.items()],
    )


def q8_0(rows: int, cols: int, seed: int = 0) -> bytes:
    """Q8_0 blocks of drawn weights."""
    blocks = weights(rows, cols, seed).reshape(-1, 32)
    d = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
    q = np.round(blocks / d.astype(np.float32)[:, None]).astype(np.int8)
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), q.view(np.uint8)], axis=1).tobytes()


def q4_0(rows: int, cols: int, seed: int = 0) -> bytes:
    """Q4_0 blocks of drawn weights."""
    blocks = weights(rows, cols, seed).reshape(-1, 32)
    top = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]
    d = (top / -8).astype("<f2")
    q = np.clip(np.round(blocks / d.astype(np.float32)[:, None]) + 8, 0, 15).astype(np.uint8)
    packed = q[:, :16] | q[:, 16:] << 4
    return np.concatenate([d.view(np.uint8).reshape(-1, 2), packed], axis=1).tobytes()


def f32_bytes(count: int) -> bytes:
    return np.ones(count, "<f4").tobytes()


def small_gguf(**keys: Any) -> GgufFile:
    """One llama block in Q8_0."""
    tensors = {
        "token_embd.weight": ([256, 64], 8, q8_0(64, 256, 1)),
        "output_norm.weight": ([256], 0, f32_bytes(256)),
    }
    for name, (rows, cols) in {
        "attn_q": (256, 256),
        "attn_k": (64, 256),
        "attn_v": (64, 256),
        "attn_output": (256, 256),
        "ffn_gate": (512, 256),
        "ffn_up": (512, 256),
        "ffn_down": (256, 512),
    }.items():
        tensors[f"blk.0.{name}.weight"] = ([cols, rows], 8, q8_0(rows, cols, len(name)))
    tensors["blk.0.attn_norm.weight"] = ([256], 0, f32_bytes(256))
    known = {
        "general__file_type": 7,
        "llama__feed_forward_length": 512,
        "llama__attention__head_count": 4,
        "llama__attention__head_count_kv": 1,
    }
    return gguf(tensors, **(known | keys))
