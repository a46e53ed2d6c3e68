"""A fixture for each public report whose fault is in the file: same kind, small, drawn weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders as b
import numpy as np
from quantscope.samples.gguf_edit import ARRAY, STRING, U32, Key, Tensor, text, value_of
from quantscope.samples.st_edit import Entry, StFile, entry

Row = tuple[str, str, str, str, Callable[[Path], Path]]
ROWS: list[Row] = []
K0 = "model.layers.0.self_attn.k_proj"
Q0 = "model.layers.0.self_attn.q_proj"


def report(number: str, kind: str, severity: str, subject: str = "") -> Any:
    """Register a fixture: the kind, severity and subject of the finding that it must give."""

    def keep(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        ROWS.append((number, kind, severity, subject, make))
        return make

    return keep


def gptq_model(folder: Path, change: Any = None, config: Any = None, **options: Any) -> Path:
    modules = b.layered(lambda seed: b.gptq(seed=seed, **options))
    if change:
        change(modules)
    return b.write(folder, b.model(modules), b.config(config or b.GPTQ_CONFIG))


@report("A001", "ST-HDR", "violation", "model.safetensors")
def a001(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4294967296\n"
    )
    return folder


@report("A002", "GROUP", "violation", "group_size")
def a002(folder: Path) -> Path:
    return gptq_model(folder, config=b.GPTQ_CONFIG | {"group_size": 86})


@report("A003", "ZP-CONV", "warning", K0)
def a003(folder: Path) -> Path:
    config = {k: v for k, v in b.GPTQ_CONFIG.items() if k != "checkpoint_format"} | {"sym": True}
    return gptq_model(folder, config=config, symmetric=True)


@report("A004", "ZP-WRAP", "warning", K0)
def a004(folder: Path) -> Path:
    def change(modules: Any) -> None:
        words = modules[K0]["qzeros"].array().view("<u4")
        words[:, 0] |= np.uint32(0xF0F)
        modules[K0]["qzeros"].put(words.view("<i4"))

    return gptq_model(folder, change)


@report("A005", "G-IDX", "violation", "desc_act")
def a005(folder: Path) -> Path:
    return gptq_model(folder, config=b.GPTQ_CONFIG | {"desc_act": True}, g_idx=False)


@report("A006", "G-IDX", "disagreement", K0)
def a006(folder: Path) -> Path:
    def change(modules: Any) -> None:
        item = modules[K0]["g_idx"]
        item.put(np.random.default_rng(0).permutation(item.array()))

    return gptq_model(folder, change)


@report("A007", "ZP-PRESENCE", "disagreement", K0)
def a007(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for planes in modules.values():
            planes["qzeros"] = b.f16(np.full(planes["scales"].shape, 8.0))

    return gptq_model(folder, change)


@report("A008", "ZP-PRESENCE", "disagreement", K0)
def a008(folder: Path) -> Path:
    def change(modules: Any) -> None:
        words = modules[K0]["qzeros"].array()
        words[0, 0] ^= 3
        modules[K0]["qzeros"].put(words)

    return gptq_model(folder, change, b.GPTQ_CONFIG | {"sym": True}, symmetric=True)


@report("A010", "SCALE-SIGN", "warning", K0)
def a010(folder: Path) -> Path:
    def change(modules: Any) -> None:
        scales = modules[K0]["scales"].array()
        scales[:, ::2] *= -1
        modules[K0]["scales"].put(scales)

    return gptq_model(folder, change, b.GPTQ_CONFIG | {"sym": True}, symmetric=True)


@report("A011", "PACK-BITS", "violation", K0)
def a011(folder: Path) -> Path:
    def change(modules: Any) -> None:
        item = modules[K0]["qweight"]
        item.put(np.pad(item.array(), ((0, 2), (0, 0))))

    return gptq_model(folder, change, b.GPTQ_CONFIG | {"bits": 3}, bits=3)


def awq_model(folder: Path, change: Any = None, **keys: Any) -> Path:
    modules = b.layered(lambda seed: b.awq(seed=seed))
    if change:
        change(modules)
    return b.write(folder, b.model(modules), b.config(b.AWQ_CONFIG | keys))


@report("A013", "PACK-AXIS", "disagreement", "version")
def a013(folder: Path) -> Path:
    return awq_model(folder, version="gemv")


@report("A015", "IGNORE", "disagreement", "layers.1.self_attn.k_proj")
def a015(folder: Path) -> Path:
    def change(modules: Any) -> None:
        modules["model.layers.1.self_attn.k_proj"] = b.plain()

    return awq_model(folder, change)


def ct_model(
    folder: Path, config: Any, change: Any = None, keys: Any = None, **options: Any
) -> Path:
    modules = b.layered(lambda seed: b.ct_pack(seed=seed, **options))
    if change:
        change(modules)
    return b.write(folder, b.model(modules), b.config(config, **(keys or {})))


@report("A018", "ZP-PRESENCE", "violation", "symmetric")
def a018(folder: Path) -> Path:
    return ct_model(folder, b.ct_config(symmetric=False))


@report("A019", "TIED", "disagreement", "lm_head")
def a019(folder: Path) -> Path:
    tensors = b.model(b.layered(lambda seed: b.ct_pack(seed=seed)))
    values = tensors["model.embed_tokens.weight"].array()
    values[:3] += 1
    tensors["lm_head.weight"] = b.f16(values)
    return b.write(folder, tensors, b.config(b.ct_config()))


@report("A021", "PACK-BITS", "warning", K0)
def a021(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for number, planes in enumerate(modules.values()):
            codes, _, _ = b.quantized(b.weights(64, 256, number), 3, 64, symmetric=True)
            fields = np.pad(codes, ((0, 0), (0, 4))).reshape(64, 26, 10).astype(np.uint32)
            words = (fields << (3 * np.arange(10, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
            planes["weight_packed"] = entry("I32", words.view("<i4"))

    return ct_model(folder, b.ct_config(num_bits=3), change, bits=3)


@report("A023", "CONFIG-GROUP", "violation", "config_groups")
def a023(folder: Path) -> Path:
    config = b.ct_config(num_bits=2)
    group = json.loads(json.dumps(config["config_groups"]["group_0"]))
    group["weights"]["num_bits"] = 4
    config["config_groups"]["group_1"] = group

    def change(modules: Any) -> None:
        for name in list(modules)[:6]:
            modules[name] = b.ct_pack(bits=2, seed=3)

    return ct_model(folder, config, change)


@report("A024", "SCALE-VALUE", "violation", K0)
def a024(folder: Path) -> Path:
    def change(modules: Any) -> None:
        words = modules[K0]["weight_packed"].array().view("<u4")
        words[:8] = 0x88888888
        modules[K0]["weight_packed"].put(words.view("<i4"))
        scale = modules[K0]["weight_scale"].array()
        scale[:8] = 0x7FC0
        modules[K0]["weight_scale"].put(scale)

    return ct_model(folder, b.ct_config(), change)


ROWS.append(("A024 codes", "DEAD-PLANE", "warning", K0, a024))


@report("A026", "IGNORE", "warning", "ignore")
def a026(folder: Path) -> Path:
    return ct_model(folder, b.ct_config(ignore=("lm_head", "re:.*router")))


@report("A027", "IGNORE", "disagreement", "in_proj_qkvz")
def a027(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.nvfp4(seed=seed))
    modules["model.layers.0.linear_attn.in_proj_qkvz"] = b.plain(128)
    modules["model.layers.1.linear_attn.in_proj_qkvz"] = b.plain(128)
    config = json.loads(json.dumps(b.NVFP4_CT))
    config["ignore"] += [
        f"model.layers.{i}.linear_attn.{name}"
        for i in (0, 1)
        for name in ("in_proj_qkv", "in_proj_z")
    ]
    return b.write(folder, b.model(modules), b.config(config))


def nvfp4_model(folder: Path, change: Any = None, flavour: str = "ct", names: Any = None) -> Path:
    modules = b.layered(lambda seed: b.nvfp4(seed=seed, flavour=flavour), names=names or b.MODULES)
    for number, planes in enumerate(modules.values()):
        for suffix in ("weight_global_scale", "weight_scale_2"):
            if suffix in planes and names is None:
                pass
        _ = number
    share(modules)
    if change:
        change(modules)
    config: Any = b.NVFP4_CT
    if flavour == "modelopt":
        config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    return b.write(folder, b.model(modules), b.config(config))


def share(modules: dict[str, b.Planes]) -> None:
    """One second-level scale for all modules, block scales rescaled to it: what a fusing producer writes."""
    for suffix in ("weight_global_scale", "weight_scale_2"):
        planes = [p for p in modules.values() if suffix in p]
        if planes:
            first = planes[0][suffix]
            for other in planes:
                other[suffix] = Entry(dtype=first.dtype, shape=list(first.shape), data=first.data)


@report("A028", "SCALE-FUSED", "warning", "qkv_proj")
def a028(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for planes in modules.values():
            factor = np.frombuffer(planes["weight_scale_2"].data, "<f4")[0]
            planes["weight_scale_2"] = b.f32(factor * np.array([1, 2, 1]))

    return nvfp4_model(folder, change, "modelopt", ("self_attn.qkv_proj",))


@report("A029", "SCALE-VALUE", "warning", "input_scale")
def a029(folder: Path) -> Path:
    def change(modules: Any) -> None:
        data = np.array(1e-40, "<f4").tobytes()
        modules[K0]["input_scale"] = Entry(dtype="F32", shape=[], data=data)

    return nvfp4_model(folder, change, "modelopt")


@report("A030", "SCALE-FUSED", "warning", "gate_proj")
def a030(folder: Path) -> Path:
    def change(modules: Any) -> None:
        name = "model.layers.0.mlp.experts.0.up_proj"
        data = np.frombuffer(modules[name]["weight_scale_2"].data, "<f4")[0] * 1.25
        modules[name]["weight_scale_2"] = Entry(
            dtype="F32", shape=[], data=np.array(data, "<f4").tobytes()
        )

    names = tuple(f"mlp.experts.{e}.{n}" for e in (0, 1) for n in ("gate_proj", "up_proj"))
    return nvfp4_model(folder, change, "modelopt", names)


@report("A034", "SCALE-FUSED", "warning", "gate_proj")
def a034(folder: Path) -> Path:
    def change(modules: Any) -> None:
        item = modules["model.layers.0.mlp.up_proj"]["weight_global_scale"]
        item.put(item.array() * np.float32(2.14))

    return nvfp4_model(folder, change, "ct", ("mlp.gate_proj", "mlp.up_proj"))


def tiles(scale: np.ndarray) -> np.ndarray:
    rows, cols = scale.shape
    padded = np.pad(scale, ((0, -rows % 128), (0, -cols % 4)))
    r, c = padded.shape
    return np.ascontiguousarray(padded.reshape(r // 128, 4, 32, c // 4, 4).transpose(0, 3, 2, 1, 4))


@report("A035", "SCALE-LAYOUT", "violation", K0)
def a035(folder: Path) -> Path:
    def change(modules: Any) -> None:
        scale = modules[K0]["weight_scale"].array()
        modules[K0]["weight_scale"] = entry("U8", tiles(scale).ravel())

    return nvfp4_model(folder, change, "modelopt")


@report("A036", "ORIENT", "violation", K0)
def a036(folder: Path) -> Path:
    def change(modules: Any) -> None:
        item = modules[K0]["weight"]
        item.put(np.ascontiguousarray(item.array().T))

    return nvfp4_model(folder, change, "modelopt")


@report("A037", "SCALE-RECIP", "violation", "input_global_scale")
def a037(folder: Path) -> Path:
    return nvfp4_model(folder, lambda m: m[K0].__setitem__("input_global_scale", b.f32([0.0])))


def hf_quant(**keys: Any) -> Any:
    return {
        "producer": {"name": "modelopt", "version": "0.40"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "exclude_modules": ["lm_head"],
        }
        | keys,
    }


@report("A038", "CONFIG-CONFLICT", "disagreement", "kv_cache_quant_algo")
def a038(folder: Path) -> Path:
    nvfp4_model(folder, flavour="modelopt")
    (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant(kv_cache_quant_algo="FP8")))
    return folder


@report("A039", "CONFIG-CONFLICT", "warning", "")
def a039(folder: Path) -> Path:
    nvfp4_model(folder, flavour="modelopt")
    (folder / "config.json").write_text(json.dumps(b.config()))
    return folder


@report("A040", "IGNORE", "disagreement", "layers.1.self_attn.o_proj")
def a040(folder: Path) -> Path:
    def change(modules: Any) -> None:
        modules["model.layers.1.self_attn.o_proj"] = {"weight": b.bf16(b.weights(64, 256))}

    return nvfp4_model(folder, change, "modelopt")


@report("A042", "SCALE-FUSED", "warning", "to_q")
def a042(folder: Path) -> Path:
    names = tuple(f"attn.{n}" for n in ("to_q", "to_k", "to_v"))
    modules = b.layered(lambda seed: b.nvfp4(seed=seed), names=names)
    share(modules)
    for name, value in zip(names, (12343.1, 5334.3, 8001.5), strict=True):
        modules[f"model.layers.0.{name}"]["weight_global_scale"] = b.f32([value])
    return b.write(folder, b.model(modules), b.config(b.NVFP4_CT))


@report("A044", "SCALE-VALUE", "violation", K0)
def a044(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.mxfp4(seed=seed))
    scale = modules[K0]["weight_scale"].array()
    scale[0, 0], scale[0, 1] = 134, 255
    modules[K0]["weight_scale"].put(scale)
    config = b.ct_config(
        "mxfp4-pack-quantized", num_bits=4, type="float", group_size=32, scale_dtype="torch.uint8"
    )
    return b.write(folder, b.model(modules), b.config(config))


@report("A045", "SCALE-DTYPE", "warning", "")
def a045(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.fp8(seed=seed))
    for planes in modules.values():
        del planes["weight_scale_inv"]
        planes["weight_scale"] = entry(
            "U8", np.random.default_rng(0).integers(118, 125, (64, 8)).astype("u1")
        )
    return b.write(folder, b.model(modules), b.config())


@report("A047", "SCALE-DTYPE", "warning", K0)
def a047(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.mxfp4(seed=seed))
    scale = modules[K0]["weight_scale"].array()
    scale[3, 3] = 0
    modules[K0]["weight_scale"].put(scale)
    config = b.ct_config(
        "mxfp4-pack-quantized", num_bits=4, type="float", group_size=32, scale_dtype="torch.uint8"
    )
    return b.write(folder, b.model(modules), b.config(config))


def fp8_model(folder: Path, change: Any = None, config: Any = None, **options: Any) -> Path:
    modules = b.layered(lambda seed: b.fp8(seed=seed, **options))
    if change:
        change(modules)
    section = b.FP8_BLOCK if config is None else config
    return b.write(folder, b.model(modules), b.config(section or None))


@report("A048", "FP8-VARIANT", "warning", K0)
def a048(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for planes in modules.values():
            codes = planes["weight"].array()
            codes[codes == 0x80] = 0
            planes["weight"].put(codes)
        codes = modules[K0]["weight"].array()
        codes[0, :5] = 0x80
        modules[K0]["weight"].put(codes)

    return fp8_model(folder, change, config={}, scale="tensor", suffix="weight_scale")


@report("A053", "SCALE-NAME", "warning", "")
def a053(folder: Path) -> Path:
    return fp8_model(
        folder, config={"quant_method": "fp8", "activation_scheme": "static"}, scale="tensor"
    )


@report("A059", "ST-SIZE", "violation", "w")
def a059(folder: Path) -> Path:
    folder.mkdir()
    StFile(tensors={"w": Entry(dtype="F8_E4M3", shape=[128, 128], data=bytes(128))}).write(
        folder / "model.safetensors"
    )
    return folder


@report("A060", "SCALE-DTYPE", "disagreement", "scale_fmt")
def a060(folder: Path) -> Path:
    return fp8_model(folder, config=b.FP8_BLOCK | {"scale_fmt": "ue8m0"})


@report("A062", "IGNORE", "warning", "gate_proj")
def a062(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.fp8(seed=seed), names=("mlp.gate_proj", "mlp.up_proj"))
    modules["model.layers.0.mlp.gate"] = b.plain(8)
    modules["model.layers.1.mlp.gate"] = b.plain(8)
    config = b.FP8_BLOCK | {
        "modules_to_not_convert": ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
    }
    return b.write(folder, b.model(modules), b.config(config))


@report("A063", "SCALE-MISSING", "violation", "mtp.fc")
def a063(folder: Path) -> Path:
    def change(modules: Any) -> None:
        modules["mtp.fc"] = {"weight": b.fp8(seed=50)["weight"]}

    return fp8_model(folder, change)


@report("A064", "SCALE-NAME", "warning", "scale_weight")
def a064(folder: Path) -> Path:
    return fp8_model(folder, config={}, scale="tensor", suffix="scale_weight")


@report("A067", "SCALE-DTYPE", "warning", "")
def a067(folder: Path) -> Path:
    return fp8_model(folder, config={}, scale="tensor", suffix="weight_scale", dtype="BF16")


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


def written(folder: Path, file: Any, name: str = "model-Q8_0.gguf", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file.write(folder / name, **options)
    return folder


def tokens(count: int) -> Key:
    raw = value_of(U32, STRING) + np.array(count, "<u8").tobytes()
    return Key(
        name="tokenizer.ggml.tokens",
        type_id=ARRAY,
        raw=raw + b"".join(text(f"t{i}") for i in range(count)),
    )


@report("A105", "GG-META", "violation", "tokenizer.ggml.tokens")
def a105(folder: Path) -> Path:
    file = b.small_gguf()
    file.keys.append(tokens(65))
    return written(folder, file)


@report("A106", "GG-DUP", "violation", "blk.0.attn_q.weight")
def a106(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(
        Tensor(name="blk.0.attn_q.weight", dims=[256, 256], type_id=8, data=b.q8_0(256, 256, 5))
    )
    return written(folder, file)


@report("A107", "GG-BOUNDS", "violation", "blk.0")
def a107(folder: Path) -> Path:
    written(folder, b.small_gguf())
    path = folder / "model-Q8_0.gguf"
    path.write_bytes(path.read_bytes()[:-4096])
    return folder


def poke(name: str, at: int, data: bytes, **keys: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = b.small_gguf(**keys)
        tensor = file.tensor(name)
        raw = bytearray(tensor.data)
        raw[at : at + len(data)] = data
        tensor.data = bytes(raw)
        return written(folder, file)

    return make


ROWS.append(
    (
        "A108",
        "SCALE-VALUE",
        "violation",
        "ffn_up",
        poke("blk.0.ffn_up.weight", 34 * 48, b"\x00\x7e"),
    )
)


@report("A109", "GG-SPLIT", "violation", "part1of2")
def a109(folder: Path) -> Path:
    raw = b.small_gguf().to_bytes()
    folder.mkdir()
    (folder / "model.gguf.part1of2").write_bytes(raw[: len(raw) // 2])
    return folder / "model.gguf.part1of2"


@report("A113", "GG-META", "violation", "feed_forward_length")
def a113(folder: Path) -> Path:
    return written(folder, b.small_gguf(llama__feed_forward_length=2048))


@report("A115", "GG-TYPE", "warning", "attn_q")
def a115(folder: Path) -> Path:
    file = b.small_gguf()
    tensor = file.tensor("blk.0.attn_q.weight")
    tensor.type_id, tensor.data = 31, b.q4_0(256, 256)
    return written(folder, file)


@report("A115 unknown", "GG-TYPE", "disagreement", "attn_q")
def a115_unknown(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensor("blk.0.attn_q.weight").type_id = 200
    return written(folder, file)


@report("A116", "GG-ALIGN", "note", "gguf")
def a116(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(Tensor(name="blk.0.ffn_norm.weight", dims=[5], type_id=0, data=bytes(20)))
    return written(folder, file, pad_tail=False)


@report("A118", "GG-RESHAPE", "violation", "norm")
def a118(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(
        Tensor(name="blk.0.attn_q_norm.weight", dims=[544], type_id=8, data=b.q8_0(17, 32, 1))
    )
    return written(folder, file)


@report("A119", "GG-HDR", "violation", "gguf")
def a119(folder: Path) -> Path:
    written(folder, b.small_gguf())
    path = folder / "model-Q8_0.gguf"
    raw = path.read_bytes()
    path.write_bytes(bytes(65536) + raw[65536:])
    return folder


@report("A121", "SCALE-VALUE", "violation", "ffn_up_exps")
def a121(folder: Path) -> Path:
    file = b.small_gguf(llama__expert_count=4, llama__expert_used_count=2)
    data = bytearray(b.q8_0(4 * 64, 256))
    for block in range(64 * 8):
        at = (2 * 64 * 8 + block) * 34
        data[at : at + 2] = b"\x00\x7e"
    file.tensors.append(
        Tensor(name="blk.0.ffn_up_exps.weight", dims=[256, 64, 4], type_id=8, data=bytes(data))
    )
    return written(folder, file)


@report("A122", "GG-RESHAPE", "note", "x_pad_token")
def a122(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(Tensor(name="x_pad_token", dims=[256], type_id=0, data=b.f32_bytes(256)))
    return written(folder, file)


@report("A123", "GG-LABEL", "warning", "file_type")
def a123(folder: Path) -> Path:
    tensors = {"token_embd.weight": ([2688, 8], 8, b.q8_0(8, 2688))}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"):
        tensors[f"blk.0.{name}.weight"] = ([2688, 64], 6 if "v" not in name else 8, b"")
    made = {
        n: (d, t, b.q8_0(d[1], d[0]) if t == 8 else q5_0(d[1], d[0]))
        for n, (d, t, _) in tensors.items()
    }
    file = b.gguf(made, general__file_type=15, llama__embedding_length=2688)
    return written(folder, file, "model-Q4_K_M.gguf")


def q5_0(rows: int, cols: int) -> bytes:
    blocks = b.weights(rows, cols, 2).reshape(-1, 32)
    d = (np.abs(blocks).max(axis=1) / 15).astype("<f2")
    q = np.clip(np.round(blocks / d.astype(np.float32)[:, None]) + 16, 0, 31).astype(np.uint8)
    high = (q >> 4).astype(np.uint32)
    qh = (high << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    low = q & 15
    packed = low[:, :16] | low[:, 16:] << 4
    return np.concatenate(
        [d.view("u1").reshape(-1, 2), qh.view("u1").reshape(-1, 4), packed], axis=1
    ).tobytes()


def dims(*extents: int, type_id: int = 24) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = b.small_gguf()
        file.tensors.insert(3, Tensor(name="odd", dims=list(extents), type_id=type_id, data=b""))
        return written(folder, file)

    return make


ROWS += [
    ("A124", "GG-DIMS", "violation", "odd", dims(*[1] * 9)),
    ("A126", "GG-DIMS", "violation", "odd", dims(0, 4)),
    ("A130", "GG-DIMS", "violation", "odd", dims(4194304, 4194304, 1048576, 1)),
    ("A131", "GG-DIMS", "violation", "odd", dims(2**63 - 1, 2)),
]


@report("A126 key", "GG-DIMS", "violation", "gguf")
def a126_key(folder: Path) -> Path:
    file = b.small_gguf()
    file.keys.append(Key(name="", type_id=U32, raw=value_of(U32, 1)))
    return written(folder, file)


@report("A127", "GG-META", "violation", "embedding_length")
def a127(folder: Path) -> Path:
    return written(folder, b.small_gguf(**{"llama__embedding_length": None}))


@report("A134", "GG-LABEL", "note", "file_type")
def a134(folder: Path) -> Path:
    file = b.small_gguf(general__file_type=2)
    for tensor in file.tensors:
        if tensor.type_id == 8 and tensor.name.startswith("blk"):
            tensor.type_id, tensor.data = 2, b.q4_0(tensor.dims[1], tensor.dims[0])
    down = file.tensor("blk.0.ffn_down.weight")
    blocks = np.frombuffer(down.data, np.uint8).reshape(-1, 18)
    down.data = np.insert(blocks, 2, [[0], [0x20]], axis=1).tobytes()
    down.type_id = 3
    embedding = file.tensor("token_embd.weight")
    embedding.type_id, embedding.data = 14, bytes(210 * 64)
    return written(folder, file, "model-Q4_0.gguf")


@report("A135", "GG-REGION", "violation", "blk.0")
def a135(folder: Path) -> Path:
    file = b.small_gguf()
    running = 0
    for number, tensor in enumerate(file.tensors):
        tensor.offset = running - (2048 if number > 4 else 0)
        running += len(tensor.data) + -len(tensor.data) % 32
    return written(folder, file)


def split(folder: Path, counts: tuple[int, ...], empty: int | None = None) -> Path:
    file = b.small_gguf()
    folder.mkdir()
    share_of = -(-len(file.tensors) // 3)
    for number in range(3):
        part = b.gguf({})
        part.keys = list(file.keys) if number == 0 else []
        part.tensors = file.tensors[number * share_of : (number + 1) * share_of]
        for name, kind, value in (
            ("split.no", 2, number),
            ("split.count", 2, counts[number]),
            ("split.tensors.count", 5, len(file.tensors)),
        ):
            part.keys.append(Key(name=name, type_id=kind, raw=value_of(kind, value)))
        path = folder / f"model-Q8_0-{number + 1:05d}-of-00003.gguf"
        part.write(path)
        if number == empty:
            path.write_bytes(b"")
    return folder


ROWS += [
    ("A136", "GG-SPLIT", "violation", "00002-of-00003", lambda f: split(f, (3, 3, 3), empty=1)),
    ("A138", "GG-SPLIT", "violation", "of-00003", lambda f: split(f, (3, 3, 4))),
]
