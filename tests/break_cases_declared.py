"""Planes that do not fit together, and declarations that the planes or other declarations contradict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from break_cases_values import FAMILIES, some
from break_edits import (
    K0,
    L0,
    L1,
    Q0,
    UP1,
    V0,
    Array,
    Case,
    Entry,
    StFile,
    added,
    all_tensors,
    config,
    drop,
    edit_config,
    edit_json,
    edit_tensor,
    entry,
    gone,
    in_json,
    joined,
    names_in,
    normal,
    put,
    renamed,
    retyped,
    scaled,
    section,
    setting,
    weights,
    weights_scheme,
)

SYM, V1, V2, W3, DESC, DYN, AUTOGPTQ = (
    "gptqmodel-w4g128-sym",
    "gptqmodel-w4g128-asym-v1",
    "gptqmodel-w4g128-asym-v2",
    "gptqmodel-w3g128-sym",
    "gptqmodel-w4g128-sym-descact",
    "gptqmodel-w4g128-dynamic-mixed",
    "autogptq-w4g128-asym",
)
CT, CTS, CT3, KV, MIXED, SHARDED = (
    "llmcompressor-w4a16-asym-g128",
    "llmcompressor-w4a16-sym-g128",
    "llmcompressor-w3a16-g128-asym",
    "llmcompressor-kv-fp8-w4a16",
    "llmcompressor-mixed-w4-fp8",
    "llmcompressor-w4a16-sharded",
)
BNB, BNBD, MFP8, MNV, CNV = (
    "bitsandbytes-nf4",
    "bitsandbytes-nf4-dq",
    "modelopt-fp8",
    "modelopt-nvfp4",
    "llmcompressor-nvfp4",
)


def fewer_rows(values: Array) -> Array:
    return values[:-1]


def taller(values: Array) -> Array:
    return np.concatenate([values, values[:7]])


def wrapped(values: Array) -> None:
    values.view("<u4")[0, :4] |= np.uint32(0xF)


def v1_wrapped(values: Array) -> None:
    """All ones in every field of four words."""
    values.view("<u4")[0, :4] = np.uint32(0xFFFFFFFF)


def differing(values: Array) -> None:
    values.view("<u4")[0, 0] ^= np.uint32(0x3)


def undeclared(data: Any) -> None:
    for key in ("checkpoint_format", "format", "meta"):
        data.pop(key, None)


def format_undeclared(data: Any) -> None:
    for key in ("checkpoint_format", "format", "meta", "quant_method", "method"):
        data.pop(key, None)


def third(values: Array) -> Array:
    return (values.view("<u4") - np.uint32(0x22222222)).view("<i4")


def unpacked(folder: Path) -> None:
    def change(_: str, item: Entry) -> Entry:
        fields = item.array().view("<u4")[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
        return entry("F16", fields.reshape(item.shape[0], -1).astype("<f2"))

    all_tensors(".qzeros", change)(folder)


def permuted(values: Array) -> Array:
    return np.random.default_rng(3).permutation(values)


def at(place: int, value: int) -> Any:
    def change(values: Array) -> None:
        values[place] = value

    return change


def first_channels(values: Array) -> None:
    values[:3] = 1


def state(folder: Path, name: str, **keys: Any) -> None:
    def change(item: Entry) -> None:
        data = {**json.loads(item.data), **keys}
        item.data = json.dumps(data).encode()
        item.shape = [len(item.data)]

    edit_tensor(folder, name, change)


def quant_state(**keys: Any) -> Any:
    name = f"{Q0}.weight.quant_state.bitsandbytes__nf4"
    return lambda folder: state(folder, name, **keys)


def junk_state(folder: Path) -> None:
    name = f"{Q0}.weight.quant_state.bitsandbytes__nf4"
    edit_tensor(folder, name, lambda item: setattr(item, "data", b"{" * len(item.data)))


def declarations_gone(folder: Path) -> None:
    def change(data: Any) -> None:
        data.pop("quantization_config", None)
        data.pop("quantization", None)

    edit_config(folder, change)
    for name in ("quantize_config.json", "quantization_config.json", "hf_quant_config.json",
                 "quanto_qmap.json", "recipe.yaml"):  # fmt: skip
        (folder / name).unlink(missing_ok=True)


def without_metadata(folder: Path) -> None:
    for path in weights(folder):
        StFile(tensors=StFile.read(path).tensors).write(path)


def plain_up(dtype: str) -> Any:
    """up_proj of layer 1 as a plain weight, which no list excludes."""
    return joined(gone(UP1), added(f"{UP1}.weight", lambda _: normal(dtype, 512, 256)))


def ignoring(*names: str) -> Any:
    """Add names to whatever list excludes modules."""

    def change(data: Any) -> None:
        method = data.get("quant_method")
        if method in ("compressed-tensors", "modelopt"):
            data["ignore"] += names
        elif method == "bitsandbytes":
            data["llm_int8_skip_modules"] = list(names)
        elif "dynamic" in data or method == "gptq":
            data["dynamic"] = {**data.get("dynamic", {}), **{f"-:{name}": {} for name in names}}
        else:
            data["modules_to_not_convert"] = list(names)

    def edit(folder: Path) -> None:
        section(change)(folder)
        if (folder / "hf_quant_config.json").exists():
            edit_json(
                folder,
                "hf_quant_config.json",
                lambda data: data["quantization"]["exclude_modules"].extend(names),
            )

    return edit


def bits_of_module(data: Any) -> None:
    data[f"{L0}self_attn.q_proj"] = {"group_size": 64, "bits": 4, "mode": "affine"}


def second_group(**changes: Any) -> Any:
    """A second config group like the first, with other weights or targets."""

    def change(data: Any) -> None:
        first = data["config_groups"]["group_0"]
        weight_keys = {k: v for k, v in changes.items() if k != "targets"}
        data["config_groups"]["group_1"] = {
            **first,
            "weights": {**first["weights"], **weight_keys},
            "targets": changes.get("targets", first["targets"]),
        }

    return section(change)


def targets(*names: str) -> Any:
    def change(data: Any) -> None:
        for group in data["config_groups"].values():
            group["targets"] = list(names)

    return section(change)


def static_inputs(folder: Path) -> None:
    def change(data: Any) -> None:
        for group in data["config_groups"].values():
            if group["input_activations"]:
                group["input_activations"].update(dynamic=False, strategy="tensor")

    section(change)(folder)


def dynamic_inputs(folder: Path) -> None:
    """Dynamic by declaration, scales stored."""

    def change(data: Any) -> None:
        for group in data["config_groups"].values():
            group["input_activations"]["dynamic"] = True

    section(change)(folder)


def kv_scheme(folder: Path) -> None:
    scheme = {
        "num_bits": 8,
        "type": "float",
        "dynamic": False,
        "strategy": "tensor",
        "symmetric": True,
    }
    setting(kv_cache_scheme=scheme)(folder)


def kv_ones(folder: Path) -> None:
    for name in (*names_in(folder, "k_scale"), *names_in(folder, "v_scale")):
        put(name, lambda values: np.full_like(values, 0x3F80))(folder)


def hf_quant(**keys: Any) -> Any:
    return in_json("hf_quant_config.json", lambda data: data["quantization"].update(keys))


def one_kv_gone(folder: Path) -> None:
    drop(folder, names_in(folder, f"{L1}self_attn.k_scale")[0])


CASES: tuple[Case, ...] = (
    # planes that are missing, cut, or of a wrong number of rows
    *(Case(f, "scales of q_proj missing", "SCALE-MISSING BNB", "violation", "q_proj", gone(f"{Q0}.{s}"))
      for f, _, s in FAMILIES),
    *(Case(f, "codes of k_proj missing, scales kept", "SCALE-MISSING BNB SUBMODULE", "violation", "k_proj",
           lambda folder, c=c: drop(folder, f"{K0}.{c}"))
      for f, c, _ in some(W3, "autoawq-gemv-g128", CT, CNV, MFP8, BNB, "mlx-q4-g64", "torchao-int8wo",
                          "quanto-qint4", "llmcompressor-fp8-block")),
    *(Case(f, "seven rows of codes too many", "PACK-BITS GROUP ORIENT BNB SCALE-SHAPE", "violation", "q_proj",
           put(f"{Q0}.{c}", taller))
      for f, c, _ in some(W3, V1, "autoawq-gemm-g128", "autoawq-gemv-g128", CT, CNV, MNV, BNB, "mlx-q4-g64",
                          "modelopt-int4-awq", "llmcompressor-w8a8-int", "torchao-intxwo-int4-g32")),
    *(Case(f, "a row of scales missing", "GROUP SCALE-SHAPE BNB ORIENT", "violation", "q_proj",
           put(f"{Q0}.{s}", fewer_rows))
      for f, _, s in some(V1, "autoawq-gemm-g128", CT, "llmcompressor-fp8-block", "llmcompressor-mxfp4",
                          BNB, "mlx-q4-g64", "torchao-int8wo", "quanto-qint4", "gptqmodel-fp8-row")),
    Case(V1, "a row of zero points missing", "GROUP ZP-PRESENCE", "violation", "q_proj",
         put(f"{Q0}.qzeros", fewer_rows)),
    Case("autoawq-gemm-g128", "zero points of q_proj missing", "ZP-PRESENCE SCALE-MISSING", "violation",
         "q_proj", gone(f"{Q0}.qzeros")),
    Case("mlx-q4-g64", "biases of q_proj missing", "SCALE-MISSING ZP-PRESENCE", "violation", "q_proj",
         gone(f"{Q0}.biases")),
    Case("modelopt-nvfp4", "weight_scale_2 of q_proj missing", "SCALE-MISSING", "violation", "q_proj",
         gone(f"{Q0}.weight_scale_2")),
    Case(CNV, "weight_global_scale of q_proj missing", "SCALE-MISSING", "violation", "q_proj",
         gone(f"{Q0}.weight_global_scale")),
    Case("torchao-int8wo", "zero points of q_proj missing", "ZP-PRESENCE SCALE-MISSING", "violation",
         "q_proj", gone(f"{Q0}._weight_zero_point")),
    Case(MNV, "block scales of q_proj retyped U8", "SCALE-DTYPE", "disagreement", "q_proj",
         retyped(f"{Q0}.weight_scale", "U8")),
    Case("llmcompressor-w8a8-int", "codes of q_proj retyped U8", "SIGN PACK-BITS", "warning violation", "q_proj",
         retyped(f"{Q0}.weight", "U8")),
    # zero points
    Case(V2, "planes of gptq_v2 declared gptq", "ZP-CONV", "disagreement", "checkpoint_format",
         setting(checkpoint_format="gptq", format="gptq")),
    Case(V1, "planes of gptq declared gptq_v2", "ZP-CONV", "disagreement", "checkpoint_format",
         setting(checkpoint_format="gptq_v2", format="gptq_v2")),
    Case(SYM, "symmetric planes of gptq declared gptq_v2", "ZP-CONV", "disagreement", "checkpoint_format",
         setting(checkpoint_format="gptq_v2", format="gptq_v2")),
    *(Case(f, "no key and no marker fixes the convention", "ZP-CONV", "warning", "proj", section(undeclared))
      for f in (V1, V2, SYM)),
    Case("auto-round-w2g32-asym-autoround", "auto_round planes declared auto_round:auto_gptq", "ZP-CONV",
         "disagreement", "packing_format", setting(packing_format="auto_round:auto_gptq")),
    Case(V2, "formats of two files contradict", "ZP-CONV CONFIG-CONFLICT", "disagreement", "quantize_config",
         in_json("quantize_config.json", lambda d: d.update(checkpoint_format="gptq", format="gptq"))),
    Case(V1, "zero points two steps off everywhere", "ZP-CONV", "warning", "",
         all_tensors(".qzeros", lambda _, item: entry("I32", third(item.array())))),
    Case(V1, "32 zero points all ones", "ZP-WRAP", "warning", "q_proj", put(f"{Q0}.qzeros", v1_wrapped)),
    Case(AUTOGPTQ, "four zero points all ones", "ZP-WRAP", "warning", "q_proj", put(f"{Q0}.qzeros", wrapped)),
    Case(SYM, "one zero point unlike the others under sym", "ZP-PRESENCE", "disagreement", "q_proj",
         put(f"{Q0}.qzeros", differing)),
    Case(V1, "asymmetric planes declared symmetric", "ZP-PRESENCE", "disagreement", "sym", setting(sym=True)),
    Case(CT, "zero points stored under a symmetric scheme", "ZP-PRESENCE", "disagreement", "symmetric",
         weights_scheme(symmetric=True)),
    Case(CTS, "asymmetric scheme without zero points", "ZP-PRESENCE", "violation", "symmetric",
         weights_scheme(symmetric=False)),
    Case(CT, "zero points of every module missing", "ZP-PRESENCE", "violation", "", gone("weight_zero_point")),
    Case("autoawq-gemm-g128", "zero_point false over stored zero points", "ZP-PRESENCE", "disagreement",
         "zero_point", setting(zero_point=False)),
    Case(V1, "zero points stored unpacked as F16", "ZP-PRESENCE", "disagreement", "q_proj", unpacked),
    # activation order
    *(Case(f, "g_idx names group 99", "G-IDX", "violation", "q_proj", put(f"{Q0}.g_idx", at(5, 99)))
      for f in (W3, DESC, AUTOGPTQ)),
    Case(V1, "a negative g_idx", "G-IDX", "violation", "q_proj", put(f"{Q0}.g_idx", at(5, -1))),
    *(Case(f, "three channels in another group", "G-IDX", "violation", "q_proj",
           put(f"{Q0}.g_idx", first_channels)) for f in (W3, V2, AUTOGPTQ)),
    *(Case(f, "g_idx permuted under desc_act false", "G-IDX", "disagreement", "q_proj",
           put(f"{Q0}.g_idx", permuted)) for f in (SYM, AUTOGPTQ, "auto-round-w4g128-asym-autogptq")),
    Case(DESC, "desc_act true and no g_idx", "G-IDX", "violation", "proj", gone(".g_idx")),
    Case(DESC, "g_idx of q_proj missing", "G-IDX", "violation", "q_proj", gone(f"{Q0}.g_idx")),
    Case(DESC, "desc_act false over permuted g_idx", "G-IDX", "disagreement", "desc_act",
         setting(desc_act=False)),
    Case(V1, "g_idx one entry short", "G-IDX", "violation", "q_proj", put(f"{Q0}.g_idx", fewer_rows)),
    Case(CTS, "actorder group declared, no g_idx", "G-IDX", "violation", "", weights_scheme(actorder="group")),
    # bits, groups, packing
    *(Case(f, f"bits {bits} declared", "BITS PACK-BITS CONFIG-CONFLICT", "disagreement", "bits",
           setting(bits=bits))
      for f, bits in ((V1, 8), (W3, 4), ("gptqmodel-w5g128-sym", 4), ("autoawq-gemm-g128", 8),
                      ("auto-round-w2g32-asym-autoround", 4), ("mlx-q4-g64", 8), ("mlx-q3-g64", 6),
                      ("mlx-nvfp4", 8), ("gptqmodel-fp8-row", 4))),
    *(Case(f, f"num_bits {bits} declared", "BITS", "disagreement", "num_bits", weights_scheme(num_bits=bits))
      for f, bits in ((CT, 8), (CT3, 4), ("llmcompressor-w8a8-int", 4), (CNV, 8))),
    Case("mlx-mixed_3_6", "an override of 4 bits over 3-bit planes", "BITS", "disagreement", "q_proj",
         section(bits_of_module)),
    Case(DYN, "the override for down_proj says 4 bits", "BITS CONFIG-CONFLICT", "disagreement", "dynamic",
         section(lambda s: s["dynamic"].__setitem__("+:.*\\.down_proj.*", {"bits": 4, "group_size": 64}))),
    Case(DYN, "the override for down_proj removed", "BITS", "disagreement", "down_proj",
         section(lambda s: s["dynamic"].pop("+:.*\\.down_proj.*"))),
    Case(BNB, "load_in_8bit over 4-bit planes", "BITS CONFIG-CONFLICT", "disagreement", "load_in",
         setting(load_in_4bit=False, load_in_8bit=True, _load_in_4bit=False, _load_in_8bit=True)),
    Case(MFP8, "quant_algo NVFP4 over FP8 planes", "BITS CONFIG-CONFLICT", "disagreement", "quant_algo",
         joined(setting(quant_algo="NVFP4"), hf_quant(quant_algo="NVFP4"))),
    *(Case(f, "half the group size declared", "GROUP CONFIG-CONFLICT", "violation disagreement",
           "group_size", section(lambda s: s.__setitem__("group_size", s["group_size"] // 2)))
      for f in (V1, "autoawq-gemm-g128", "autoawq-gemv-g128", "auto-round-w2g32-asym-autoround", "mlx-q4-g64",
                "auto-round-mxfp4")),
    *(Case(f, "half the group size declared", "GROUP CONFIG-CONFLICT", "violation disagreement",
           "group_size", weights_scheme(group_size=64)) for f in (CT, CT3, SHARDED)),
    Case("llmcompressor-fp8-block", "blocks of 64 declared", "GROUP SCALE-SHAPE CONFIG-CONFLICT",
         "violation disagreement", "block_structure", weights_scheme(block_structure=[64, 64])),
    Case("autoawq-gemm-g128", "gemm planes declared gemv", "PACK-AXIS", "disagreement", "version",
         setting(version="gemv")),
    Case("autoawq-gemv-g128", "gemv planes declared gemm", "PACK-AXIS", "disagreement", "version",
         setting(version="gemm")),
    Case(AUTOGPTQ, "gptq planes declared awq", "CONFIG-CONFLICT PACK-AXIS", "disagreement", "quant_method",
         setting(quant_method="awq", version="gemm", zero_point=True)),
    Case(W3, "3 bits and no format key", "PACK-ORDER PACK-BITS", "warning", "proj", section(format_undeclared)),
    Case(CT, "weight_shape turned round", "ORIENT GROUP PACK-BITS", "violation", "up_proj",
         put(f"{L0}mlp.up_proj.weight_shape", lambda v: v[::-1])),
    # ignore lists
    *(Case(f, "q_proj excluded, yet quantized", "IGNORE", "disagreement", "q_proj", ignoring(Q0))
      for f in (CT, MFP8, MNV, BNB, V1, "autoawq-gemm-g128", "torchao-int8wo", MIXED)),
    *(Case(f, "up_proj of layer 1 plain, not excluded", "IGNORE", "disagreement", "up_proj", plain_up(d))
      for f, d in ((CT, "F16"), (MFP8, "BF16"), (V1, "BF16"), ("autoawq-gemm-g128", "F16"), (BNB, "BF16"),
                   ("llmcompressor-w8a8-int", "BF16"), (MNV, "BF16"))),
    *(Case(f, "an excluded router that is not there", "IGNORE", "warning", "", ignoring(f"{L0}mlp.router"))
      for f in (CT, MFP8, "autoawq-gemm-g128", BNB)),
    Case(MFP8, "an exclusion that begins quantized names", "IGNORE", "warning", "", ignoring(f"{L0}self_attn.q")),
    Case(CT, "a pattern that excludes every attention", "IGNORE", "disagreement", "proj",
         ignoring("re:.*self_attn.*")),
    # sources
    Case(V1, "bits of two files differ", "CONFIG-CONFLICT BITS", "disagreement", "quantize_config",
         in_json("quantize_config.json", lambda d: d.update(bits=8))),
    Case(AUTOGPTQ, "group sizes of two files differ", "CONFIG-CONFLICT GROUP", "disagreement", "quantize_config",
         in_json("quantize_config.json", lambda d: d.update(group_size=64))),
    Case(V1, "sym of two files differs", "CONFIG-CONFLICT ZP-PRESENCE", "disagreement", "quantize_config",
         in_json("quantize_config.json", lambda d: d.update(sym=True))),
    Case(W3, "desc_act of two files differs", "CONFIG-CONFLICT G-IDX", "disagreement", "quantize_config",
         in_json("quantize_config.json", lambda d: d.update(desc_act=True))),
    Case("auto-round-mxfp4", "bits of two files differ", "CONFIG-CONFLICT BITS", "disagreement",
         "quantization_config", in_json("quantization_config.json", lambda d: d.update(bits=8))),
    Case(MNV, "group sizes of two files differ", "CONFIG-CONFLICT GROUP", "disagreement", "hf_quant_config",
         hf_quant(group_size=32)),
    Case(MFP8, "quant_algo of two files differs", "CONFIG-CONFLICT", "disagreement", "hf_quant_config",
         hf_quant(quant_algo="W4A16_AWQ")),
    Case(MFP8, "exclusions of two files differ", "CONFIG-CONFLICT", "disagreement", "exclude_modules",
         hf_quant(exclude_modules=["lm_head"])),
    Case(MNV, "KV cache declared in one file only", "CONFIG-CONFLICT KV-SCALE", "disagreement",
         "kv_cache_quant_algo", hf_quant(kv_cache_quant_algo="FP8")),
    Case(AUTOGPTQ, "bits in the header's metadata differ", "CONFIG-CONFLICT BITS", "disagreement", "gptq_bits",
         lambda folder: [StFile(tensors=StFile.read(p).tensors, metadata={**StFile.read(p).metadata,
                                "gptq_bits": "8"}).write(p) for p in weights(folder)]),
    *(Case(f, "nothing declares the quantization", "CONFIG-CONFLICT ZP-CONV BITS", "warning", "",
           joined(declarations_gone, without_metadata))
      for f in (V1, W3, "autoawq-gemm-g128", "mlx-q4-g64", MNV, CT)),
    Case(AUTOGPTQ, "quant_method misspelt", "CONFIG-CONFLICT", "warning", "quant_method",
         setting(quant_method="gtpq")),
    Case(CT, "two groups of unlike bits claim Linear", "CONFIG-GROUP", "violation", "config_groups",
         second_group(num_bits=8)),
    Case(CT, "targets that match nothing", "CONFIG-GROUP IGNORE", "warning violation", "",
         targets("re:.*nothing.*")),
    Case(CT, "9-bit integers declared", "CONFIG-GROUP BITS", "violation warning disagreement", "",
         weights_scheme(num_bits=9)),
    # KV and activation scales
    *(Case(f, "KV scheme declared, no scales", "KV-SCALE", "warning", "kv_cache_scheme", kv_scheme)
      for f in (CT, CNV)),
    Case(KV, "KV scales without a scheme", "KV-SCALE", "warning", "_scale", setting(kv_cache_scheme=None)),
    Case(KV, "KV scales all one", "KV-SCALE", "warning", "_scale", kv_ones),
    Case(KV, "one KV scale missing", "KV-SCALE", "warning", "layers.1", one_kv_gone),
    Case(KV, "all KV scales missing", "KV-SCALE", "warning", "kv_cache_scheme", gone("k_scale", "v_scale")),
    Case(MFP8, "input_scale of q_proj missing", "INPUT-SCALE", "violation", "q_proj", gone(f"{Q0}.input_scale")),
    Case(MNV, "input_scale of layer 1 missing", "INPUT-SCALE", "violation", "layers.1",
         lambda folder: drop(folder, *[n for n in names_in(folder, L1) if n.endswith("input_scale")])),
    Case(MFP8, "static scheme, no input_scale", "INPUT-SCALE", "disagreement", "", gone("input_scale")),
    Case(MFP8, "dynamic scheme, input scales stored", "INPUT-SCALE", "disagreement", "", dynamic_inputs),
    Case("llmcompressor-w8a8-int", "static scheme, no input_scale", "INPUT-SCALE", "disagreement", "",
         static_inputs),
    Case(MFP8, "input_scale zero", "SCALE-VALUE SCALE-RECIP INPUT-SCALE", "warning violation", "q_proj",
         scaled(f"{Q0}.input_scale", 0.0)),
    Case(CNV, "input_global_scale of v_proj infinite", "SCALE-VALUE SCALE-RECIP INPUT-SCALE", "violation",
         "v_proj", scaled(f"{V0}.input_global_scale", float("inf"))),
    Case(MFP8, "scales spelled scale_weight", "SCALE-NAME", "warning", "weight",
         renamed("weight_scale", "scale_weight")),
    # bitsandbytes
    *(Case(f, f"{part} of q_proj missing", "BNB SCALE-MISSING", "violation", "q_proj",
           gone(f"{Q0}.weight.{part}"))
      for f, part in ((BNB, "quant_map"), (BNB, "quant_state"), (BNBD, "nested_absmax"),
                      (BNBD, "nested_quant_map"), (BNBD, "absmax"))),
    Case(BNB, "absmax ten short", "BNB", "violation", "q_proj", put(f"{Q0}.weight.absmax", lambda v: v[:-10])),
    Case(BNB, "quant_map of 15", "BNB", "violation", "q_proj", put(f"{Q0}.weight.quant_map", fewer_rows)),
    Case(BNBD, "nested_quant_map of 255", "BNB", "violation", "q_proj",
         put(f"{Q0}.weight.nested_quant_map", fewer_rows)),
    Case(BNBD, "nested_absmax one short", "BNB", "violation", "q_proj",
         put(f"{Q0}.weight.nested_absmax", fewer_rows)),
    Case(BNB, "quant_state says blocks of 128", "BNB", "violation", "q_proj", quant_state(blocksize=128)),
    Case(BNB, "quant_state of a larger shape", "BNB ORIENT", "violation", "q_proj",
         quant_state(shape=[512, 256])),
    Case(BNBD, "quant_state says nested blocks of 128", "BNB", "violation", "q_proj",
         quant_state(nested_blocksize=128)),
    Case(BNB, "quant_state is no JSON", "BNB", "violation", "q_proj", junk_state),
    Case("bitsandbytes-int8", "SCB one short", "BNB GROUP SCALE-SHAPE", "violation", "q_proj",
         put(f"{Q0}.SCB", fewer_rows)),
    Case(V1, "hidden_size of another model", "CONFIG-CONFLICT", "disagreement", "hidden_size",
         config(hidden_size=512)),
)  # fmt: skip
