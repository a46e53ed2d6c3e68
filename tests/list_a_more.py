"""More of the fixtures for public reports: KV scales, bitsandbytes, MLX, int8, wiring, shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import builders as b
import numpy as np
from list_a_fixtures import K0, ct_model, report
from quantscope.samples.st_edit import Entry, StFile, entry


def with_kv(folder: Path, names: dict[str, float], config: Any, layers: int = 2) -> Path:
    modules = b.layered(lambda seed: b.ct_pack(seed=seed), layers=layers)
    tensors = b.model(modules, layers=layers)
    for name, value in names.items():
        tensors[name] = Entry(dtype="F32", shape=[], data=np.array(value, "<f4").tobytes())
    return b.write(folder, tensors, b.config(config, num_hidden_layers=layers))


KV = b.ct_config() | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}


def kv_names(
    layers: range, form: str = "model.layers.{}.self_attn.{}_scale", value: float = 0.03
) -> Any:
    return {form.format(i, kind): value for i in layers for kind in "kv"}


@report("A068", "KV-SCALE", "warning", "scale")
def a068(folder: Path) -> Path:
    return with_kv(folder, kv_names(range(2), value=1.0), KV)


@report("A069", "KV-SCALE", "note", "kv_scale")
def a069(folder: Path) -> Path:
    names = {f"model.layers.{i}.self_attn.kv_scale": 0.03 for i in range(2)}
    return with_kv(folder, names, KV)


@report("A070", "KV-SCALE", "warning", "qkv_proj")
def a070(folder: Path) -> Path:
    return with_kv(folder, kv_names(range(2), "model.layers.{}.self_attn.qkv_proj.{}_scale"), KV)


@report("A071", "KV-SCALE", "disagreement", "kv_cache_scales.json")
def a071(folder: Path) -> Path:
    with_kv(folder, kv_names(range(2)), KV)
    scales = {
        "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 0.05, "1": 0.03}}}
    }
    (folder / "kv_cache_scales.json").write_text(json.dumps(scales))
    return folder


@report("A073", "KV-SCALE", "note", "scale")
def a073(folder: Path) -> Path:
    return with_kv(folder, kv_names(range(2, 3)), KV, layers=4)


@report("A074", "KV-SCALE", "warning", "scale")
def a074(folder: Path) -> Path:
    names = {
        "model.layers.0.self_attn.qkv_proj.k_scale": 0.03,
        "model.layers.1.self_attn.k_proj.k_scale": 0.03,
        "model.layers.2.self_attn.kv_scale": 0.03,
    }
    return with_kv(folder, names, KV, layers=3)


def bnb(rows: int = 64, cols: int = 256, seed: int = 0, shape: list[int] | None = None) -> b.Planes:
    """NF4 planes without nesting: codes drawn, absmax positive."""
    rng = np.random.default_rng(seed)
    codes = np.clip(np.round(rng.normal(7.5, 3.2, rows * cols)), 0, 15).astype(np.uint8)
    packed = (codes[::2] << 4 | codes[1::2]).reshape(-1, 1)
    table = np.array(
        [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461,
         0.3379, 0.4407, 0.5626, 0.723, 1.0], dtype="<f4",
    )  # fmt: skip
    state = {
        "quant_type": "nf4",
        "blocksize": 64,
        "dtype": "bfloat16",
        "shape": shape or [rows, cols],
    }
    raw = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return {
        "weight": entry("U8", packed),
        "weight.absmax": b.f32(rng.uniform(0.02, 0.06, rows * cols // 64)),
        "weight.quant_map": entry("F32", table),
        "weight.quant_state.bitsandbytes__nf4": entry("U8", raw),
    }


BNB_CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
DIMS = {
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "intermediate_size": 512,
}
SHAPES = {"q_proj": (256, 256), "k_proj": (64, 256), "v_proj": (64, 256), "o_proj": (256, 256)}


def bnb_model(folder: Path, change: Any = None) -> Path:
    modules = {
        f"model.layers.{layer}.self_attn.{name}": bnb(*shape, seed=layer)
        for layer in range(2)
        for name, shape in SHAPES.items()
    }
    if change:
        change(modules)
    return b.write(folder, b.model(modules), b.config(BNB_CONFIG, **DIMS))


@report("A075", "ORIENT", "violation", K0)
def a075(folder: Path) -> Path:
    return bnb_model(folder, lambda m: m.__setitem__(K0, bnb(64, 256, shape=[256, 64])))


@report("A078", "BNB", "violation", K0)
def a078(folder: Path) -> Path:
    def change(modules: Any) -> None:
        modules[K0] = {"weight": modules[K0]["weight"]}

    return bnb_model(folder, change)


def mlx(rows: int = 64, cols: int = 256, bits: int = 4, group: int = 64, seed: int = 0) -> b.Planes:
    values = b.weights(rows, cols, seed).reshape(rows, cols // group, group)
    low, high = values.min(axis=2), values.max(axis=2)
    scale = (high - low) / ((1 << bits) - 1)
    codes = np.round((values - low[..., None]) / scale[..., None]).reshape(rows, cols)
    words = b.pack(codes.astype(np.uint8), bits).view("<u4")
    return {"weight": entry("U32", words), "scales": b.f16(scale), "biases": b.f16(low)}


def mlx_model(folder: Path, section: Any, change: Any = None) -> Path:
    modules = b.layered(lambda seed: mlx(seed=seed), names=("self_attn.k_proj", "self_attn.v_proj"))
    if change:
        change(modules)
    config = b.config(**DIMS) | ({"quantization": section} if section else {})
    return b.write(folder, b.model(modules), config if section else None)


@report("A082", "BITS", "warning", K0)
def a082(folder: Path) -> Path:
    return mlx_model(folder, None, lambda m: m.__setitem__(K0, mlx(64, 256, 4, 32)))


@report("A084", "BITS", "disagreement", K0)
def a084(folder: Path) -> Path:
    section = {"group_size": 64, "bits": 8, "mode": "affine"}
    return mlx_model(folder, section)


@report("A085", "IDX-OMIT", "disagreement", "k_proj")
def a085(folder: Path) -> Path:
    folder = ct_model(folder, b.ct_config())
    names = StFile.read(folder / "model.safetensors").tensors
    kept = {n: "model.safetensors" for n in names if K0 not in n}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": kept}))
    return folder


@report("A087", "GROUP", "disagreement", "k_proj")
def a087(folder: Path) -> Path:
    config = b.ct_config("int-quantized", num_bits=8, strategy="channel", group_size=None)
    modules = {}
    for name, planes in b.layered(lambda seed: {"seed": seed}).items():
        values = b.weights(64, 256, planes["seed"])
        scale = np.abs(values.reshape(64, 32, 8)).max(axis=2) / 127
        codes = np.round(values / np.repeat(scale, 8, axis=1)).astype(np.int8)
        modules[name] = {"weight": entry("I8", codes), "weight_scale": b.bf16(scale)}
    return b.write(folder, b.model(modules), b.config(config))


@report("A090", "SUBMODULE", "violation", "layers.5")
def a090(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.ct_pack(seed=seed), layers=8)
    tensors = b.model(modules, layers=8)
    kept = {n: t for n, t in tensors.items() if ".layers.5." not in n}
    return b.write(folder, kept, b.config(b.ct_config(), num_hidden_layers=8))


@report("A090 head", "TIED", "violation", "lm_head")
def a090_head(folder: Path) -> Path:
    return ct_model(folder, b.ct_config(), keys={"tie_word_embeddings": False})


@report("A093", "DEAD-PLANE", "warning", K0)
def a093(folder: Path) -> Path:
    def change(modules: Any) -> None:
        codes, _, _ = b.quantized(b.weights(64, 256, 1), 4, 64, symmetric=True)
        modules[K0]["weight_packed"] = entry("I32", b.pack(np.maximum(codes, 8), 4))

    return ct_model(folder, b.ct_config(), change)


@report("A096", "SCALE-VALUE", "warning", K0)
def a096(folder: Path) -> Path:
    def change(modules: Any) -> None:
        scale = modules[K0]["weight_scale"].array()
        scale[5, 0] = 0x7149
        modules[K0]["weight_scale"].put(scale)

    return ct_model(folder, b.ct_config(), change)


def int8(rows: int, cols: int, seed: int) -> b.Planes:
    values = b.weights(rows, cols, seed)
    scale = np.abs(values).max(axis=1, keepdims=True) / 127
    return {
        "weight": entry("I8", np.round(values / scale).astype(np.int8)),
        "weight_scale": b.bf16(scale),
    }


@report("A096 codes", "DEAD-PLANE", "warning", K0)
def a096_codes(folder: Path) -> Path:
    modules = b.layered(lambda seed: int8(512, 512, seed), names=("self_attn.k_proj",))
    raw = bytearray(modules[K0]["weight"].data)
    raw[65536:131072] = np.random.default_rng(3).bytes(65536)
    modules[K0]["weight"].data = bytes(raw)
    config = b.ct_config("int-quantized", num_bits=8, strategy="channel", group_size=None)
    return b.write(folder, b.model(modules), b.config(config))


@report("A097", "ST-TRUNC", "violation", "model.safetensors")
def a097(folder: Path) -> Path:
    path = ct_model(folder, b.ct_config()) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return folder


@report("A099", "ST-SIZE", "violation", "t")
def a099(folder: Path) -> Path:
    folder.mkdir()
    StFile(tensors={"t": Entry(dtype="F32", shape=[1000, 1000], data=bytes(4))}).write(
        folder / "model.safetensors"
    )
    return folder


@report("A101", "ST-SIZE", "violation", "one")
def a101(folder: Path) -> Path:
    folder.mkdir()
    StFile(tensors={"one": Entry(dtype="F32", shape=[1], data=b"")}).write(
        folder / "model.safetensors"
    )
    return folder


@report("A102", "ST-OVERLAP", "violation", "proj")
def a102(folder: Path) -> Path:
    folder = ct_model(folder, b.ct_config())
    file = StFile.read(folder / "model.safetensors")

    def header(data: Any) -> None:
        one = data[f"{K0}.weight_packed"]
        data[f"{K0}.weight_packed".replace("k_proj", "v_proj")]["data_offsets"] = one[
            "data_offsets"
        ]

    file.write(folder / "model.safetensors", header)
    return folder


def sharded(folder: Path, change: Any) -> Path:
    tensors = StFile.read(ct_model(folder, b.ct_config()) / "model.safetensors").tensors
    (folder / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        part = {n: tensors[n] for n in names[number::3]}
        weight_map |= dict.fromkeys(part, file)
        StFile(tensors=part).write(folder / file)
    change(weight_map)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@report("A098", "IDX-SHARD", "violation", "index.json")
def a098(folder: Path) -> Path:
    sharded(folder, lambda weight_map: None)
    (folder / "model-00002-of-00003.safetensors").unlink()
    return folder


@report("A104", "IDX-MAP", "violation", "mtp.fc.weight")
def a104(folder: Path) -> Path:
    second = "model-00002-of-00003.safetensors"
    return sharded(folder, lambda weight_map: weight_map.__setitem__("mtp.fc.weight", second))
