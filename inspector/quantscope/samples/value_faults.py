"""Samples with values that no weight can have: scales, codes, KV and activation scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantscope.samples.folder_edit import (
    drop,
    edit_config,
    edit_gguf,
    edit_tensor,
    edit_weights,
    rename,
    weights,
)
from quantscope.samples.gguf_edit import U32, GgufFile, Tensor
from quantscope.samples.plane_faults import array, stored
from quantscope.samples.sample import Sample, faulty
from quantscope.samples.st_edit import Entry, StFile, entry

GPTQ, SHARDED, NVFP4, MXFP4 = (
    "smol-gptq-w4",
    "smol-ct-w4-sharded",
    "smol-ct-nvfp4",
    "smol-ct-mxfp4",
)
BLOCK, MODELOPT, INT8, KV, GGUF = (
    "smol-ct-fp8-block",
    "smol-modelopt-fp8",
    "smol-ct-int8",
    "smol-ct-kv-fp8",
    "smol-gguf-q4_k_m",
)
K0 = "model.layers.0.self_attn.k_proj"
Q0 = "model.layers.0.self_attn.q_proj"
Array = NDArray[Any]
BF16_NAN, BF16_HUGE = 0x7FC0, 0x7149


def one(name: str, index: int, value: float) -> Any:
    """A change of one value of a plane, in its storage type."""

    def change(values: Array) -> None:
        values.reshape(-1)[index] = value

    return array(name, change)


def sharded_nan(folder: Path) -> None:
    """One NaN scale in the second of three shards."""
    path = weights(folder)[1]
    file = StFile.read(path)
    name = next(n for n in file.tensors if n.endswith("weight_scale"))
    values = file.tensors[name].array()
    values.reshape(-1)[7] = np.float16("nan")
    file.tensors[name].put(values)
    file.write(path)


def zero_group(values: Array) -> None:
    values[0, 3] = 0


def every_other_negative(values: Array) -> None:
    values[:, ::2] *= np.float16(-1.0)


def all_equal(values: Array) -> None:
    values[...] = 1.0


def scale_as_bf16(folder: Path) -> None:
    """Scales cast to BF16 with the rest of the file, as a converter does; nothing declares the format."""

    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if n.endswith("weight_scale")]:
            values = file.tensors[name].array().astype(np.float32)
            bits = (values.reshape(1).view(np.uint32) >> 16).astype("<u2")
            file.tensors[name] = entry("BF16", bits)

    edit_weights(folder, change)


def reciprocal(folder: Path) -> None:
    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if n.endswith("weight_global_scale")]:
            item = file.tensors[name]
            item.put(1.0 / item.array())

    edit_weights(folder, change)


def one_by_one(folder: Path) -> None:
    edit_tensor(folder, f"{Q0}.weight_scale", lambda item: item.put(item.array().reshape(1, 1)))


def tiled(values: Array) -> Array:
    """The scales of a plane in cuBLAS 128x4 tile order under their plain shape."""
    rows, cols = values.shape
    tiles = values.reshape(rows // 128, 4, 32, cols // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(rows, cols)


def nan_codes(values: Array) -> None:
    values[3, :5] = 0x7F


def siblings_differ(folder: Path) -> None:
    array(f"{K0}.weight_global_scale", lambda values: values * np.float32(2.14))(folder)


def fused_parts(folder: Path) -> None:
    """q_proj renamed to a fused matrix with three unequal second-level scales."""

    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if ".k_proj." in n or ".v_proj." in n]:
            del file.tensors[name]
        for name in [n for n in file.tensors if n.endswith("q_proj.weight_global_scale")]:
            item = file.tensors[name]
            item.put(np.repeat(item.array(), 3) * np.array([1.0, 2.0, 1.0], np.float32))

    edit_weights(folder, change)
    rename(folder, lambda name: name.replace("q_proj", "qkv_proj"))


def fp8_scale_missing(folder: Path) -> None:
    """An unlisted FP8 matrix without a scale beside others that have one."""

    def change(file: StFile) -> None:
        source = file.tensors[f"{Q0}.weight"]
        file.tensors["mtp.fc.weight"] = Entry(
            dtype=source.dtype, shape=list(source.shape), data=source.data
        )

    edit_weights(folder, change)


def fp8_cast(folder: Path) -> None:
    drop(folder, *stored(folder, "_scale"))
    (folder / "hf_quant_config.json").unlink()
    edit_config(folder, lambda config: config.pop("quantization_config"))


def input_scale_missing(folder: Path) -> None:
    drop(folder, f"{K0}.input_scale", f"{K0.replace('.0.', '.1.')}.input_scale")


def input_scales_differ(folder: Path) -> None:
    one(f"{K0}.input_scale", 0, 0.5)(folder)


def kv_ones(folder: Path) -> None:
    for name in (*stored(folder, "k_scale"), *stored(folder, "v_scale")):
        array(name, lambda values: np.full_like(values, 0x3F80))(folder)


def dead(folder: Path) -> None:
    """Every code of k_proj at its zero point."""
    file = StFile.read(weights(folder)[0])
    zeros = file.tensors[f"{K0}.qzeros"].array().view("<u4")
    fields = ((zeros[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15) + 1) & 15
    column = fields.reshape(zeros.shape[0], -1)
    words = np.repeat(column, 16, axis=0).astype(np.uint32)
    packed = np.zeros_like(words)
    for place in range(8):
        packed |= words << np.uint32(4 * place)
    array(f"{K0}.qweight", lambda _: packed.view("<i4"))(folder)


def constant(values: Array) -> None:
    values.view("<u4")[:, :16] = np.uint32(0x33333333)


def one_sided(folder: Path) -> None:
    """Negative codes clipped to zero, as a converter does that forgets the sign."""

    def change(values: Array) -> Array:
        fields = (values.view("<u4")[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
        clipped = np.maximum(fields, 8).astype(np.uint32)
        packed: Array = (clipped << (4 * np.arange(8, dtype=np.uint32))).sum(
            axis=-1, dtype=np.uint32
        )
        return packed.view("<i4")

    name = stored(folder, f"{K0}.weight_packed")[0]
    array(name, change)(folder)


def gguf_bytes(name: str, start: int, data: bytes) -> Any:
    """A change that overwrites bytes of a GGUF tensor."""

    def change(file: GgufFile) -> None:
        tensor = file.tensor(name)
        raw = bytearray(tensor.data)
        raw[start : start + len(data)] = data
        tensor.data = bytes(raw)

    return lambda folder: edit_gguf(folder, change)


def random_bytes(count: int) -> bytes:
    """Reproducible noise."""
    return np.random.default_rng(5).integers(0, 256, count, dtype=np.uint8).tobytes()


def int8_random(folder: Path) -> None:
    def change(item: Entry) -> None:
        raw = bytearray(item.data)
        raw[32768 : 32768 + 8192] = random_bytes(8192)
        item.data = bytes(raw)

    edit_tensor(folder, f"{Q0}.weight", change)


def plain_nan(folder: Path) -> None:
    one("model.norm.weight", 11, BF16_NAN)(folder)


def gguf_key(name: str, type_id: int, value: Any) -> Any:
    """A change that sets one GGUF key."""
    return lambda folder: edit_gguf(folder, lambda file: file.put(name, type_id, value))


def rope_freqs(folder: Path) -> None:
    values = np.ones(32, dtype="<f4").tobytes()
    edit_gguf(
        folder,
        lambda file: file.tensors.append(
            Tensor(name="rope_freqs.weight", dims=[32], type_id=0, data=values)
        ),
    )


def reshape(folder: Path) -> None:
    """A vector quantized to Q8_0 whose byte count was saved as its length."""

    def change(file: GgufFile) -> None:
        for layer in (0, 1):
            file.tensors.append(
                Tensor(
                    name=f"blk.{layer}.attn_q_norm.weight",
                    dims=[544],
                    type_id=8,
                    data=(b"\x00\x20" + bytes(range(32))) * 17,
                )
            )

    edit_gguf(folder, change)


def mxfp4_exponent(values: Array) -> None:
    values[2, 1] = 0


SAMPLES: tuple[Sample, ...] = (
    faulty("gptq-scale-nan", "one NaN among the scales of k_proj", GPTQ,
           one(f"{K0}.scales", 5, float("nan")), ("QS001", "violation", "k_proj")),
    faulty("ct-sharded-scale-nan", "one NaN scale in the second of three shards", SHARDED, sharded_nan,
           ("QS001", "violation", "model-00002-of-00003.safetensors")),
    faulty("gptq-scale-zero", "one zero scale over live codes", GPTQ, array(f"{K0}.scales", zero_group),
           ("QS002", "warning", "k_proj")),
    faulty("mxfp4-exponent-zero", "exponent byte 0 over live codes", MXFP4,
           array(f"{K0}.weight_scale", mxfp4_exponent), ("QS003", "warning", "k_proj")),
    faulty("gptq-scale-negative", "half of the scales negative", GPTQ,
           array(f"{K0}.scales", every_other_negative), ("QS004", "warning", "k_proj")),
    faulty("fp8-scale-outlier", "one block scale of 1e30", BLOCK,
           one(f"{K0}.weight_scale", 1, BF16_HUGE), ("QS005", "warning", "k_proj")),
    faulty("gptq-scale-all-equal", "every scale of k_proj is 1", GPTQ, array(f"{K0}.scales", all_equal),
           ("QS006", "warning", "k_proj")),
    faulty("fp8-scale-bf16", "per-tensor scales cast to BF16", MODELOPT, scale_as_bf16,
           ("QS010", "warning", "k_proj")),
    faulty("nvfp4-scale-reciprocal", "global scales stored as multipliers", NVFP4, reciprocal,
           ("QS011", "warning", "k_proj")),
    faulty("fp8-scale-one-by-one", "scale of shape [1, 1]: a note", MODELOPT, one_by_one,
           ("QS012", "note", "q_proj")),
    faulty("nvfp4-scale-tiled", "scales of q_proj in tile order under their plain shape", NVFP4,
           array(f"{Q0}.weight_scale", tiled), ("QS014", "warning", "q_proj")),
    faulty("fp8-nan-codes", "five NaN bytes among FP8 codes", MODELOPT, array(f"{Q0}.weight", nan_codes),
           ("QS015", "warning", "q_proj")),
    faulty("nvfp4-siblings-differ", "k_proj's global scale 2.14 times its siblings'", NVFP4,
           siblings_differ, ("QS020", "warning", "q_proj")),
    faulty("nvfp4-fused-parts", "fused matrix with three unequal global scales", NVFP4, fused_parts,
           ("QS021", "warning", "qkv_proj")),
    faulty("fp8-scale-missing", "an FP8 matrix without a scale", MODELOPT, fp8_scale_missing,
           ("QP002", "violation", "mtp.fc")),
    faulty("fp8-cast", "FP8 matrices without any scale and without a declaration", MODELOPT, fp8_cast,
           ("QS022", "warning", "k_proj"), follows=("QD010",)),
    faulty("fp8-input-scale-missing", "static scheme, one module without input_scale", MODELOPT,
           input_scale_missing, ("QS030", "violation", "k_proj")),
    faulty("fp8-input-scales-differ", "input scales of q, k and v differ: a note", MODELOPT,
           input_scales_differ, ("QS031", "note", "q_proj")),
    faulty("kv-scales-one", "all KV scales exactly 1.0", KV, kv_ones, ("QS032", "warning", "scale")),
    faulty("gptq-dead-plane", "every code of k_proj at its zero point", GPTQ, dead,
           ("QV001", "violation", "k_proj")),
    faulty("gptq-constant-codes", "sixteen rows of one code", GPTQ, array(f"{K0}.qweight", constant),
           ("QV002", "warning", "k_proj")),
    faulty("ct-one-sided", "negative codes clipped to zero", SHARDED, one_sided,
           ("QV003", "warning", "k_proj")),
    faulty("gguf-blank-region", "8 KiB of zeros inside a tensor", GGUF,
           gguf_bytes("blk.0.ffn_up.weight", 8192, bytes(8192)), ("QV004", "warning", "ffn_up"),
           follows=("QV002",)),
    faulty("int8-random-bytes", "8 KiB of noise inside a tensor", MODELOPT, int8_random,
           ("QV005", "warning", "q_proj"), follows=("QS015",)),
    faulty("plain-nan", "one NaN in the final norm", GPTQ, plain_nan,
           ("QV006", "violation", "model.norm")),
    faulty("gguf-scale-nan", "one NaN super-block scale", GGUF,
           gguf_bytes("blk.0.ffn_up.weight", 144 * 48, b"\x00\x7e"), ("QS001", "violation", "ffn_up")),
    faulty("gguf-metadata", "feed_forward_length of 640 over tensors of 512", GGUF,
           gguf_key("llama.feed_forward_length", U32, 640), ("QV010", "violation", "feed_forward")),
    faulty("gguf-rope-freqs", "rope_freqs stored: a note", GGUF, rope_freqs,
           ("QV011", "note", "rope_freqs")),
    faulty("gguf-label", "file_type says Q6_K over Q4_K tensors", GGUF,
           gguf_key("general.file_type", U32, 18), ("QV012", "warning", "file_type")),
    faulty("gguf-reshape", "byte count of a vector saved as its length", GGUF, reshape,
           ("QV013", "violation", "attn_q_norm")),
)  # fmt: skip
