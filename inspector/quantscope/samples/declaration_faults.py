"""Samples whose declarations contradict each other, the planes, or say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quantscope.samples.folder_edit import (
    drop,
    edit_config,
    edit_json,
    edit_quantization,
    edit_tensor,
    edit_weights,
    weights,
)
from quantscope.samples.sample import Sample, faulty
from quantscope.samples.st_edit import Entry, StFile, entry

GPTQ, GPTQ3, AWQ, SHARDED, ASYM = (
    "smol-gptq-w4",
    "smol-gptq-3bit",
    "smol-awq-w4",
    "smol-ct-w4-sharded",
    "smol-ct-w4-asym",
)
NVFP4, BLOCK, MODELOPT, MLX, INT8 = (
    "smol-ct-nvfp4",
    "smol-ct-fp8-block",
    "smol-modelopt-fp8",
    "smol-mlx-q4",
    "smol-ct-int8",
)
K0 = "model.layers.0.self_attn.k_proj"
Section = dict[str, Any]


def set_key(key: str, value: Any) -> Any:
    """A change that sets one key of the quantization section everywhere."""
    return lambda folder: edit_quantization(folder, lambda section: section.__setitem__(key, value))


def sources_contradict(folder: Path) -> None:
    edit_json(folder, "quantize_config.json", lambda data: data.__setitem__("group_size", 64))


def keys_contradict(folder: Path) -> None:
    edit_json(folder, "quantize_config.json", lambda data: data.__setitem__("lm_head", True))


def awq_as_gemv(folder: Path) -> None:
    edit_quantization(folder, lambda section: section.__setitem__("version", "gemv"))


def declared_shape(folder: Path) -> None:
    edit_tensor(folder, f"{K0}.weight_shape", lambda item: item.put(item.array()[::-1]))


def declared_scale(folder: Path) -> None:
    """Block FP8 as DeepSeek names it, with a scale format that its scales do not keep."""

    def change(file: StFile) -> None:
        for name in list(file.tensors):
            if name.endswith("weight_scale"):
                item = file.tensors.pop(name)
                wide = (item.array().astype(np.uint32) << 16).view(np.float32)
                file.tensors[name + "_inv"] = entry("F32", wide)

    edit_weights(folder, change)

    def config(data: Section) -> None:
        data["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        }

    edit_config(folder, config)
    (folder / "recipe.yaml").unlink(missing_ok=True)


def declared_zero(folder: Path) -> None:
    """Symmetric by declaration, with zero points stored."""

    def change(section: Section) -> None:
        for group in section["config_groups"].values():
            group["weights"]["symmetric"] = True

    edit_quantization(folder, change)


def zero_plane_absent(folder: Path) -> None:
    names = [n for p in weights(folder) for n in StFile.read(p).tensors if "zero_point" in n]
    drop(folder, *names)


def no_declaration(folder: Path) -> None:
    edit_config(folder, lambda config: config.pop("quantization_config"))
    (folder / "quantize_config.json").unlink()


def mlx_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def method_unknown(folder: Path) -> None:
    edit_quantization(folder, lambda section: section.__setitem__("quant_method", "gtpq"))


def kv_conflict(folder: Path) -> None:
    edit_json(
        folder,
        "hf_quant_config.json",
        lambda data: data["quantization"].__setitem__("kv_cache_quant_algo", "FP8"),
    )


def ignore_conflict(folder: Path) -> None:
    edit_json(
        folder,
        "hf_quant_config.json",
        lambda data: data["quantization"]["exclude_modules"].remove("model.embed_tokens"),
    )


def config_groups(folder: Path) -> None:
    def change(section: Section) -> None:
        groups = section["config_groups"]
        second = {**groups["group_0"], "weights": {**groups["group_0"]["weights"], "num_bits": 8}}
        groups["group_1"] = second

    edit_quantization(folder, change)


def order_open(folder: Path) -> None:
    """Three bits without a format key: continuous and planar have the same shapes."""

    def change(section: Section) -> None:
        for key in ("format", "checkpoint_format", "quant_method", "method", "meta"):
            section.pop(key, None)

    edit_quantization(folder, change)


def scale_dtype(folder: Path) -> None:
    """MXFP4 whose scheme names E4M3 for its scales."""

    def change(section: Section) -> None:
        for group in section["config_groups"].values():
            group["weights"]["scale_dtype"] = "torch.float8_e4m3fn"

    edit_quantization(folder, change)


def declared_marlin(folder: Path) -> None:
    """Plain planes under the name of a kernel's tiles."""

    def change(section: Section) -> None:
        section["checkpoint_format"] = section["format"] = "marlin"

    edit_quantization(folder, change)


def loose_packing(folder: Path) -> None:
    """The 4-bit codes of k_proj cut to 3 bits and packed ten a word, as old writers did."""

    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if n.endswith("weight_packed")]:
            item = file.tensors[name]
            words = item.array().view("<u4")
            codes = (words[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15).reshape(
                words.shape[0], -1
            ) >> 1
            padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 10)))
            fields = padded.reshape(words.shape[0], -1, 10).astype(np.uint32)
            packed = (fields << (3 * np.arange(10, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
            item.put(packed.view("<i4"))

    for path in weights(folder):
        file = StFile.read(path)
        change(file)
        file.write(path)

    def bits(section: Section) -> None:
        for group in section["config_groups"].values():
            group["weights"]["num_bits"] = 3

    edit_quantization(folder, bits)
    total = sum(len(i.data) for p in weights(folder) for i in StFile.read(p).tensors.values())
    for path in folder.glob("*.index.json"):
        edit_json(
            folder, path.name, lambda index: index["metadata"].__setitem__("total_size", total)
        )


def ignored_yet_quantized(folder: Path) -> None:
    edit_quantization(folder, lambda section: section["ignore"].append(K0))


def plain_yet_targeted(folder: Path) -> None:
    """k_proj of the second layer dequantized in place, as a converter does that forgets the list."""
    module = "model.layers.1.self_attn.k_proj"

    def change(file: StFile) -> None:
        codes = file.tensors.pop(f"{module}.weight")
        scale = file.tensors.pop(f"{module}.weight_scale")
        wide = (scale.array().astype(np.uint32) << 16).view(np.float32)
        file.tensors[f"{module}.weight"] = entry(
            "F16", (codes.array().astype(np.float32) * wide).astype("<f2")
        )

    edit_weights(folder, change)


def ignore_matches_nothing(folder: Path) -> None:
    edit_quantization(folder, lambda section: section["ignore"].append("re:.*router"))


def ignore_is_prefix(folder: Path) -> None:
    edit_quantization(
        folder, lambda section: section["ignore"].append("model.layers.0.self_attn.q_pro")
    )
    edit_json(
        folder,
        "hf_quant_config.json",
        lambda data: data["quantization"]["exclude_modules"].append(
            "model.layers.0.self_attn.q_pro"
        ),
    )
    _plain(folder, "model.layers.0.self_attn.q_pro.weight")


def ignore_patterns(folder: Path) -> None:
    """A plain gate that only a pattern of the list covers."""
    edit_quantization(folder, lambda section: section["ignore"].append(r"re:.*\.gate$"))
    _plain(folder, "model.layers.0.mlp.gate.weight")
    _plain(folder, "model.layers.1.mlp.gate.weight")


def _plain(folder: Path, name: str) -> None:
    """Add a small plain matrix: the leading rows of the embedding."""

    def change(file: StFile) -> None:
        source = file.tensors["model.embed_tokens.weight"]
        row = len(source.data) // source.shape[0]
        file.tensors[name] = Entry(
            dtype=source.dtype, shape=[8, source.shape[1]], data=source.data[: 8 * row]
        )

    edit_weights(folder, change)


def outside_blocks(folder: Path) -> None:
    edit_quantization(
        folder, lambda section: section.__setitem__("block_name_to_quantize", "model.layers.0")
    )


def declared_placement(folder: Path) -> None:
    """Scales of q_proj written in 128x4 tiles and flattened, as a kernel wants them."""

    def change(item: Entry) -> None:
        array = item.array()
        rows, cols = array.shape
        tiles = array.reshape(rows // 128, 4, 32, cols // 4, 4).transpose(0, 3, 2, 1, 4)
        item.put(np.ascontiguousarray(tiles).reshape(-1))

    edit_tensor(folder, "model.layers.0.self_attn.q_proj.weight_scale", change)


SAMPLES: tuple[Sample, ...] = (
    faulty("gptq-sources-contradict", "group_size 64 in quantize_config.json, 128 in config.json", GPTQ,
           sources_contradict, ("QD001", "disagreement", "quantize_config.json"), follows=("QD003",)),
    faulty("gptq-keys-contradict", "lm_head true in one file, false in the other", GPTQ,
           keys_contradict, ("QD009", "disagreement", "lm_head")),
    faulty("gptq-declared-bits", "8 bits declared for 4-bit planes", GPTQ, set_key("bits", 8),
           ("QD002", "disagreement", "bits")),
    faulty("gptq-declared-group", "group_size 86 declared for groups of 128", GPTQ,
           set_key("group_size", 86), ("QD003", "violation", "group_size")),
    faulty("awq-declared-packing", "GEMM planes declared as gemv", AWQ, awq_as_gemv,
           ("QD004", "disagreement", "version")),
    faulty("ct-declared-shape", "weight_shape of k_proj transposed", ASYM, declared_shape,
           ("QD005", "violation", "k_proj")),
    faulty("fp8-declared-scale", "scale_fmt ue8m0 over scales with mantissas", BLOCK, declared_scale,
           ("QS010", "disagreement", "scale_fmt")),
    faulty("nvfp4-declared-placement", "scales of q_proj in 128x4 tiles, flattened", NVFP4,
           declared_placement, ("QP001", "violation", "q_proj")),
    faulty("ct-declared-zero", "zero points stored under a symmetric scheme", ASYM, declared_zero,
           ("QZ005", "disagreement", "symmetric")),
    faulty("ct-zero-plane-absent", "asymmetric scheme without zero points", ASYM, zero_plane_absent,
           ("QZ004", "violation", "symmetric")),
    faulty("gptq-no-declaration", "no config says anything of the quantization", GPTQ, no_declaration,
           ("QD010", "warning", "k_proj"), ("QZ001", "warning", "k_proj")),
    faulty("gptq-method-awq", "quant_method awq over GPTQ planes", "smol-autogptq-w4",
           set_key("quant_method", "awq"), ("QD011", "disagreement", "quant_method")),
    faulty("gptq-method-unknown", "quant_method misspelt", "smol-autogptq-w4", method_unknown,
           ("QD012", "warning", "quant_method")),
    faulty("modelopt-kv-conflict", "KV cache FP8 in one file only", MODELOPT, kv_conflict,
           ("QD013", "disagreement", "kv_cache_quant_algo"), ("QS032", "warning", "kv_cache")),
    faulty("modelopt-ignore-conflict", "embedding ignored in one file only", MODELOPT, ignore_conflict,
           ("QD014", "disagreement", "exclude_modules")),
    faulty("ct-config-groups", "two groups of unlike bits claim Linear", SHARDED, config_groups,
           ("QD015", "violation", "config_groups")),
    faulty("mlx-no-config", "no config: only bits times group is fixed", MLX, mlx_no_config,
           ("QP004", "warning", "k_proj"), ("QD010", "warning", "")),
    faulty("gptq-3bit-order-open", "3-bit planes without a format key", GPTQ3, order_open,
           ("QB001", "warning", "k_proj"), ("QZ001", "warning", "k_proj")),
    faulty("mxfp4-declared-scale", "E8M0 scales declared as E4M3", "smol-ct-mxfp4", scale_dtype,
           ("QD006", "disagreement", "scale_dtype"), follows=("QD001",)),
    faulty("gptq-declared-marlin", "plain planes declared as marlin tiles", GPTQ, declared_marlin,
           ("QD007", "disagreement", "checkpoint_format"),
           ("QD008", "disagreement", "checkpoint_format")),
    faulty("ct-loose-packing", "ten 3-bit codes a word", SHARDED, loose_packing,
           ("QP006", "warning", "k_proj")),
    faulty("ct-ignored-yet-quantized", "k_proj quantized and on the ignore list", SHARDED,
           ignored_yet_quantized, ("QW001", "disagreement", "k_proj")),
    faulty("ct-plain-yet-targeted", "k_proj of layer 1 plain and not ignored", INT8,
           plain_yet_targeted, ("QW002", "disagreement", "layers.1.self_attn.k_proj")),
    faulty("ct-ignore-matches-nothing", "ignore entry for a router that is not there", SHARDED,
           ignore_matches_nothing, ("QW003", "warning", "ignore")),
    faulty("fp8-ignore-is-prefix", "exclusion that begins a quantized module's name", MODELOPT,
           ignore_is_prefix, ("QW004", "warning", "q_proj")),
    faulty("ct-ignore-patterns", "plain gates covered by a pattern only", INT8, ignore_patterns,
           ("QW005", "note", "ignore")),
    faulty("autoround-outside-blocks", "layer 1 quantized outside the declared block", GPTQ,
           outside_blocks, ("QW016", "disagreement", "layers.1")),
)  # fmt: skip
