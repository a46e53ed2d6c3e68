"""A fixture for each public report whose fault is in the file: same kind, small, drawn weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders as b
import numpy as np
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
