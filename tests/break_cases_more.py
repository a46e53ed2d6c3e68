"""Neighbours of the common faults: odd types, one plane of a module, files of another kind, keys of other values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from break_cases_declared import (
    AUTOGPTQ,
    BNB,
    BNBD,
    CNV,
    CT,
    KV,
    MFP8,
    MNV,
    SHARDED,
    V1,
    W3,
    hf_quant,
    quant_state,
    state,
)  # fmt: skip
from break_cases_gguf import NVFP4, Q4, Q8, UP, key_gone, tensor
from break_edits import (
    INF,
    K0,
    L0,
    L1,
    NAN,
    Q0,
    Array,
    Case,
    Edit,
    Entry,
    StFile,
    added,
    all_tensors,
    block_bytes,
    drop,
    edit_index,
    edit_tensor,
    entry,
    gguf,
    gone,
    header,
    header_text,
    in_json,
    joined,
    key,
    put,
    raw,
    renamed,
    retyped,
    scaled,
    section,
    setting,
    weights,
    weights_scheme,
    word,
)  # fmt: skip
from quantscope.samples.gguf_edit import GgufFile

BLOCK, MX, INT4, QUANTO, ROW = (
    "llmcompressor-fp8-block", "llmcompressor-mxfp4", "torchao-intxwo-int4-g32", "quanto-qint4",
    "gptqmodel-fp8-row",
)  # fmt: skip
INT8, MLX, W4AWQ = "llmcompressor-w8a8-int", "mlx-q4-g64", "modelopt-int4-awq"
STATE = f"{K0}.weight.quant_state.bitsandbytes__nf4"
INDEX = "model.safetensors.index.json"


def text(name: str, content: str) -> Edit:
    """Replace a file's text."""
    return lambda folder: (folder / name).write_text(content)


def shard_of(name: str, value: Any) -> Edit:
    """Map a name of the index to something else."""
    return lambda folder: edit_index(folder, lambda weight_map: weight_map.__setitem__(name, value))


def entry_keys(**keys: Any) -> Edit:
    """Overwrite keys of q_proj.scales in the header."""
    return header(lambda head: head[f"{Q0}.scales"].update(keys))


def element(name: str, at: int, value: int) -> Edit:
    def change(values: Array) -> None:
        values.reshape(-1)[at] = value

    return put(name, change)


def noisy(name: str) -> Edit:
    """Random bytes of the same length."""

    def change(item: Entry) -> None:
        item.data = np.random.default_rng(3).bytes(len(item.data))

    return lambda folder: edit_tensor(folder, name, change)


def times_zero(name: str) -> Edit:
    return put(name, lambda values: values * 0)


def as_int64(folder: Path) -> None:
    """Two words of qweight taken for one."""

    def change(item: Entry) -> None:
        item.dtype, item.shape = "I64", [32, 128]

    edit_tensor(folder, f"{Q0}.qweight", change)


def as_double(folder: Path) -> None:
    def change(item: Entry) -> None:
        item.data = item.array().astype("<f8").tobytes()
        item.dtype = "F64"

    edit_tensor(folder, f"{Q0}.scales", change)


def flat(name: str) -> Edit:
    return put(name, lambda values: values.reshape(-1))


def no_index_no_shard(folder: Path) -> None:
    (folder / INDEX).unlink()
    weights(folder)[1].unlink()


def metadata(change: Callable[[dict[str, str]], object]) -> Edit:
    def edit(folder: Path) -> None:
        for path in weights(folder):
            file = StFile.read(path)
            change(file.metadata)
            file.write(path)

    return edit


def torchao_word(old: str, new: str) -> Edit:
    """Replace a word in the metadata of q_proj."""

    def change(found: dict[str, str]) -> None:
        for name in [n for n in found if Q0 in n]:
            found[name] = found[name].replace(old, new)

    return metadata(change)


def quanto_map(change: Callable[[dict[str, Any]], object]) -> Edit:
    return in_json("quanto_qmap.json", change)


def granularity(data: Any) -> None:
    data["quant_type"]["default"]["_data"]["granularity"]["_data"]["group_size"] = 64


def format_of_groups(word_: str) -> Edit:
    def change(data: Any) -> None:
        data["format"] = data["config_groups"]["group_0"]["format"] = word_

    return section(change)


def both_32(data: Any) -> None:
    for group in data["config_groups"].values():
        group["weights"]["group_size"] = group["input_activations"]["group_size"] = 32


def short_norm(file: GgufFile) -> None:
    norm = file.tensor("blk.0.attn_norm.weight")
    norm.dims, norm.data = [200], norm.data[:800]


def blank_tail(file: GgufFile) -> None:
    embedding = file.tensor("token_embd.weight")
    embedding.data = embedding.data[:200_000] + bytes(len(embedding.data) - 200_000)


def zero_scales(file: GgufFile) -> None:
    weight = file.tensor(UP)
    weight.data = (bytes(4) + b"\x12" * 32) * (len(weight.data) // 36)


def block_gone(file: GgufFile) -> None:
    file.tensors = [item for item in file.tensors if not item.name.startswith("blk.1.")]


def norm_gone(file: GgufFile) -> None:
    file.tensors = [item for item in file.tensors if item.name != "blk.1.attn_norm.weight"]


def long_name(file: GgufFile) -> None:
    file.tensor(UP).name = "blk.0." + "x" * 100 + ".weight"


def other_quantization(data: Any) -> None:
    data["quantization_config"] = {**data["quantization"], "bits": 8}


def ghost(data: dict[str, Any]) -> None:
    data[f"{L0}ghost"] = {"weights": "qint4", "activations": "none"}


CASES: tuple[Case, ...] = (
    # files of another kind, entries of other types
    Case(CT, "an index without a map", "IDX-SHARD IDX-MAP IDX-OMIT", "violation", "index.json",
         text(INDEX, '{"metadata": {}}')),
    Case(SHARDED, "an index that is no JSON", "IDX-SHARD IDX-MAP IDX-OMIT", "violation", "index.json",
         text(INDEX, "{")),
    Case(SHARDED, "a shard that is a number", "IDX-SHARD IDX-MAP", "violation", "index.json",
         shard_of(f"{Q0}.weight_scale", 3)),
    Case(SHARDED, "no index and a shard missing", "IDX-SHARD", "violation", "", no_index_no_shard),
    Case(W3, "a web page", "ST-HDR", "violation", "model.safetensors",
         raw(lambda _: b"<!DOCTYPE html><html><body>404</body></html>")),
    Case(W3, "a zip archive", "ST-HDR", "violation", "model.safetensors", raw(lambda d: b"PK\3\4" + d[4:])),
    Case(W3, "an unknown dtype", "ST-SIZE ST-HDR", "violation", "", entry_keys(dtype="F7")),
    Case(W3, "a shape that overflows", "ST-SIZE ST-HDR", "violation", "", entry_keys(shape=[2**40, 2**40])),
    Case(W3, "a negative shape", "ST-SIZE ST-HDR ST-TRUNC", "violation", "", entry_keys(shape=[-2, -256])),
    Case(W3, "a shape that is text", "ST-SIZE ST-HDR", "violation", "", entry_keys(shape="x")),
    Case(W3, "an entry without offsets", "ST-SIZE ST-HDR ST-TRUNC", "violation", "",
         header(lambda head: head[f"{Q0}.scales"].pop("data_offsets"))),
    Case(W3, "a number in the metadata", "ST-HDR", "violation warning", "",
         header(lambda head: head.__setitem__("__metadata__", {"a": 1}))),
    Case(W3, "one name twice in the header", "ST-HDR", "violation warning", "",
         header_text(lambda t: t.replace(b"layers.0.self_attn.k_proj.scales",
                                         b"layers.0.self_attn.q_proj.scales"))),
    # qweight planes and their keys
    Case(W3, "pack_dtype int64 over int32 planes", "CONFIG-CONFLICT", "disagreement", "pack_dtype",
         setting(pack_dtype="int64")),
    Case(V1, "lm_head true and none quantized", "IGNORE", "disagreement", "lm_head", setting(lm_head=True)),
    Case(V1, "one group a row declared", "GROUP", "disagreement violation", "group_size",
         setting(group_size=-1)),
    Case(V1, "a group size that is text", "GROUP", "warning", "group_size", setting(group_size="x")),
    Case(V1, "bits that are null", "BITS", "warning", "bits", setting(bits=None)),
    Case(V1, "plain planes declared marlin", "CONFIG-CONFLICT SCALE-LAYOUT ZP-CONV ZP-PRESENCE",
         "disagreement", "format", setting(checkpoint_format="marlin", format="marlin")),
    Case(V1, "qweight as int64", "PACK-BITS", "violation", "q_proj", as_int64),
    Case(V1, "qweight flattened", "PACK-BITS GROUP", "violation", "q_proj", flat(f"{Q0}.qweight")),
    Case(V1, "scales flattened", "SCALE-SHAPE GROUP SCALE-LAYOUT", "violation", "q_proj",
         flat(f"{Q0}.scales")),
    Case(V1, "scales as float64", "SCALE-DTYPE", "disagreement", "q_proj", as_double),
    Case(V1, "every zero point zero", "ZP-CONV ZP-PRESENCE DEAD-PLANE ZP-WRAP", "warning", "",
         all_tensors(".qzeros", lambda _, item: entry("I32", item.array() * 0))),
    Case(V1, "zero points of q_proj zero", "ZP-CONV ZP-PRESENCE DEAD-PLANE ZP-WRAP", "warning", "q_proj",
         times_zero(f"{Q0}.qzeros")),
    Case(V1, "zero points of q_proj noise", "ZP-CONV ZP-PRESENCE DEAD-PLANE ZP-WRAP", "warning", "q_proj",
         noisy(f"{Q0}.qzeros")),
    Case(V1, "codes of q_proj noise", "DEAD-PLANE", "warning", "q_proj", noisy(f"{Q0}.qweight")),
    Case(V1, "a bias of NaN", "SCALE-VALUE", "violation", "q_proj.bias",
         added(f"{Q0}.bias", lambda _: entry("F16", np.full(256, np.nan)))),
    Case(V1, "a NaN in the embedding", "SCALE-VALUE", "violation", "embed", word("model.embed_tokens.weight", NAN, 77)),
    Case(V1, "an infinity in the embedding", "SCALE-VALUE", "violation", "embed",
         word("model.embed_tokens.weight", INF, 500_000)),
    # bitsandbytes
    Case(BNB, "fp4 declared over nf4", "BNB BITS CONFIG-CONFLICT", "disagreement violation", "quant_type",
         setting(bnb_4bit_quant_type="fp4")),
    Case(BNB, "quant_state says fp4", "BNB", "violation", "q_proj", quant_state(quant_type="fp4")),
    Case(BNB, "quant_state of a type of nobody", "BNB", "violation", "q_proj", quant_state(quant_type="zf9")),
    Case(BNB, "quant_state of blocks of 0", "BNB", "violation", "q_proj", quant_state(blocksize=0)),
    Case(BNB, "quant_state of blocks of 63", "BNB", "violation", "q_proj", quant_state(blocksize=63)),
    Case(BNB, "quant_state of the turned shape", "BNB ORIENT", "violation", "k_proj",
         lambda folder: state(folder, STATE, shape=[256, 64])),
    Case(BNB, "quant_map turned round", "BNB", "violation", "q_proj",
         put(f"{Q0}.weight.quant_map", lambda values: values[::-1])),
    Case(BNB, "quant_map of zeros", "BNB", "violation", "q_proj", times_zero(f"{Q0}.weight.quant_map")),
    Case(BNB, "quant_map of NaN", "BNB SCALE-VALUE", "violation", "q_proj",
         put(f"{Q0}.weight.quant_map", lambda values: values * np.float32("nan"))),
    Case(BNBD, "nested_offset NaN", "BNB SCALE-VALUE", "violation", "q_proj",
         quant_state(nested_offset=float("nan"))),
    Case(BNBD, "a NaN in nested_absmax", "BNB SCALE-VALUE", "violation", "q_proj",
         word(f"{Q0}.weight.nested_absmax", NAN, 1)),
    # FP8 and compressed-tensors
    Case(ROW, "E4M3 codes under the word E5M2", "FP8-VARIANT BITS", "warning disagreement", "q_proj",
         retyped(f"{Q0}.weight", "F8_E5M2")),
    Case(BLOCK, "blocks of 128 x 64 declared", "GROUP", "disagreement violation", "block_structure",
         weights_scheme(block_structure=[128, 64])),
    *(Case(BLOCK, f"blocks of {value} declared", "CONFIG-GROUP", "violation", "block_structure",
           weights_scheme(block_structure=value)) for value in ([-1, -1], ["x", 3], None)),
    Case(INT8, "one scale a tensor declared", "GROUP SCALE-SHAPE", "violation disagreement", "strategy",
         weights_scheme(strategy="tensor")),
    Case(INT8, "a strategy of nobody", "CONFIG-GROUP", "violation", "strategy", weights_scheme(strategy="foo")),
    Case(CT, "a group size that is text", "CONFIG-GROUP", "violation", "group_size", weights_scheme(group_size="x")),
    Case(CT, "packed planes declared int-quantized", "BITS PACK-ORDER", "disagreement warning", "",
         format_of_groups("int-quantized")),
    Case(CT, "weight_shape of q_proj missing", "BITS SCALE-MISSING PACK-BITS", "violation", "q_proj",
         gone(f"{Q0}.weight_shape")),
    Case(CT, "weight_shape of zeros", "ORIENT GROUP PACK-BITS", "violation", "q_proj",
         times_zero(f"{Q0}.weight_shape")),
    Case(CT, "zero points of q_proj missing", "ZP-PRESENCE", "violation", "q_proj",
         gone(f"{Q0}.weight_zero_point")),
    Case(CT, "layers 0 and 5 of two", "SUBMODULE", "violation", "layers", renamed("layers.1.", "layers.5.")),
    Case(KV, "a KV scale of NaN", "SCALE-VALUE KV-SCALE", "violation", "k_scale",
         word(f"{L0}self_attn.k_scale", NAN, 0)),
    Case(KV, "a KV scale of zero", "SCALE-VALUE KV-SCALE SCALE-RECIP", "warning violation", "k_scale",
         times_zero(f"{L0}self_attn.k_scale")),
    Case(KV, "two spellings of KV scales", "KV-SCALE", "warning", "scale",
         renamed("layers.1.self_attn.k_scale", "layers.1.self_attn.k_proj.k_scale")),
    Case(KV, "KV scales of one layer only", "KV-SCALE", "warning note", "scale",
         lambda folder: drop(folder, f"{L1}self_attn.k_scale", f"{L1}self_attn.v_scale")),
    # NVFP4 and MXFP4
    Case(MNV, "groups of 32 declared", "GROUP", "violation disagreement", "group_size",
         joined(hf_quant(group_size=32), section(both_32))),
    Case(CNV, "groups of 32 declared", "GROUP", "violation disagreement", "group_size", weights_scheme(group_size=32)),
    Case(MNV, "two second-level scales", "SCALE-SHAPE SCALE-FUSED", "violation warning", "q_proj",
         put(f"{Q0}.weight_scale_2", lambda values: np.repeat(values.reshape(1), 2))),
    Case(MNV, "an infinite input scale", "SCALE-VALUE", "violation", "q_proj", scaled(f"{Q0}.input_scale", np.inf)),
    Case(MNV, "a negative second-level scale", "SCALE-SIGN", "warning", "q_proj",
         scaled(f"{Q0}.weight_scale_2", -1.0)),
    Case(MNV, "a second-level scale 1e8 too large", "SCALE-VALUE SCALE-RECIP SCALE-FUSED", "warning", "q_proj",
         scaled(f"{Q0}.weight_scale_2", 1e8)),
    Case(MNV, "block scales of q_proj all zero", "SCALE-VALUE DEAD-PLANE", "warning violation", "q_proj",
         times_zero(f"{Q0}.weight_scale")),
    *(Case(MX, f"one exponent byte {value}", "SCALE-VALUE SCALE-DTYPE", severity, "q_proj",
           element(f"{Q0}.weight_scale", 5, value))
      for value, severity in ((255, "violation"), (0, "warning"), (250, "warning"))),
    Case(MX, "exponents of q_proj under the word E4M3", "SCALE-DTYPE", "disagreement", "q_proj",
         retyped(f"{Q0}.weight_scale", "F8_E4M3")),
    Case(MX, "all exponents under the word E4M3", "SCALE-DTYPE", "disagreement", "weight_scale",
         all_tensors("weight_scale", lambda _, i: Entry(dtype="F8_E4M3", shape=i.shape, data=i.data))),
    Case("auto-round-mxfp4", "groups of 64 declared", "GROUP", "violation disagreement", "group_size",
         setting(group_size=64)),
    # MLX, quanto, torchao, ModelOpt
    Case(MLX, "two sections of unlike bits", "CONFIG-CONFLICT BITS", "disagreement", "quantization",
         in_json("config.json", other_quantization)),
    Case(MLX, "mode mxfp4 over affine planes", "CONFIG-CONFLICT SCALE-DTYPE BITS ZP-PRESENCE", "disagreement",
         "mode", setting(mode="mxfp4")),
    Case(MLX, "a NaN bias", "SCALE-VALUE", "violation", "q_proj", word(f"{Q0}.biases", NAN, 2)),
    Case("mlx-mixed_3_6", "the override of a 6-bit module removed", "BITS", "disagreement", "v_proj",
         section(lambda s: s.pop(f"{L1}self_attn.v_proj"))),
    *(Case(QUANTO, f"{qtype} in the map", "BITS", "disagreement", "quanto_qmap",
           quanto_map(lambda m, q=qtype: m[Q0].__setitem__("weights", q))) for qtype in ("qint8", "qint2")),
    Case(QUANTO, "q_proj not in the map", "SUBMODULE", "disagreement", "q_proj", quanto_map(lambda m: m.pop(Q0))),
    Case(QUANTO, "a module in the map that is not stored", "SUBMODULE", "disagreement", "ghost", quanto_map(ghost)),
    Case(QUANTO, "a NaN shift", "SCALE-VALUE", "violation", "q_proj", word(f"{Q0}.weight._shift", NAN, 2)),
    Case(INT4, "groups of 64 declared", "GROUP CONFIG-CONFLICT", "disagreement violation", "group_size",
         section(granularity)),
    Case(INT4, "blocks of 64 in the metadata", "GROUP CONFIG-CONFLICT", "disagreement violation", "q_proj",
         torchao_word("[1, 32]", "[1, 64]")),
    Case(INT4, "int8 in the metadata", "BITS CONFIG-CONFLICT", "disagreement violation", "q_proj",
         torchao_word('"int4"', '"int8"')),
    Case(MNV, "quant_algo FP8 in one file", "CONFIG-CONFLICT BITS", "disagreement", "hf_quant_config",
         hf_quant(quant_algo="FP8")),
    Case(W4AWQ, "quant_algo FP8 in both files", "BITS CONFIG-CONFLICT", "disagreement", "quant_algo",
         joined(setting(quant_algo="FP8"), hf_quant(quant_algo="FP8"))),
    Case(W4AWQ, "a pre_quant_scale of NaN", "SCALE-VALUE", "violation", "pre_quant_scale",
         added(f"{Q0}.pre_quant_scale", lambda _: entry("F32", np.full(256, np.nan)))),
    Case(AUTOGPTQ, "a tied head of 100 rows", "TIED", "violation disagreement", "lm_head",
         put("lm_head.weight", lambda values: values[:100])),
    Case(AUTOGPTQ, "a tied head of zeros", "TIED DEAD-PLANE", "disagreement violation", "lm_head",
         times_zero("lm_head.weight")),
    Case(MFP8, "E4M3 codes under the word E5M2", "FP8-VARIANT BITS", "warning disagreement", "q_proj",
         retyped(f"{Q0}.weight", "F8_E5M2")),
    # GGUF
    Case(Q4, "a vocabulary larger than the embedding", "GG-META", "violation", "vocab_size",
         key("llama.vocab_size", 4096)),
    Case(Q4, "no heads", "GG-META", "violation", "head_count", key("llama.attention.head_count", 0)),
    Case(Q4, "an architecture of nobody", "GG-META", "violation", "foo", key("general.architecture", "foo")),
    Case(Q4, "no architecture", "GG-META", "violation", "architecture", key_gone("general.architecture")),
    Case(Q4, "a block count that is text", "GG-META", "violation", "block_count", key("llama.block_count", "two")),
    Case(Q4, "attn_norm of block 1 missing", "SUBMODULE", "violation", "attn_norm", gguf(norm_gone)),
    Case(Q4, "block 1 missing", "SUBMODULE GG-META", "violation", "blk.1", gguf(block_gone)),
    Case(Q4, "attn_norm of block 0 short", "GG-META", "violation", "attn_norm", gguf(short_norm)),
    Case(Q4, "a NaN in a norm", "SCALE-VALUE", "violation", "attn_norm",
         block_bytes("blk.0.attn_norm.weight", 8, b"\0\0\xc0\x7f")),
    Case(Q4, "a name of 113 characters", "GG-DIMS GG-HDR", "violation", "", gguf(long_name)),
    Case(Q4, "a negative tensor count", "GG-HDR", "violation", "",
         raw(lambda d: d[:8] + (-1).to_bytes(8, "little", signed=True) + d[16:])),
    Case(Q4, "Q4_0 bytes under the type Q4_1", "GG-REGION", "violation", UP, tensor(UP, type_id=3)),
    Case(Q8, "more than half of the embedding blank", "DEAD-PLANE", "warning", "token_embd", gguf(blank_tail)),
    Case(NVFP4, "all block scales zero", "SCALE-VALUE DEAD-PLANE", "warning violation", "ffn_up", gguf(zero_scales)),
)  # fmt: skip
