"""Values and planes that no weight can have, one a real folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from break_edits import (
    DOWN0,
    GATE0,
    HUGE,
    INF,
    K0,
    L0,
    NAN,
    ONE,
    Q0,
    TINY,
    V0,
    Array,
    Case,
    Entry,
    all_tensors,
    edit_tensor,
    entry,
    flip_signs,
    names_in,
    put,
    scaled,
    section,
    stored,
    word,
    words,
)

# folder, codes, scales: one of every family
FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("gptqmodel-w4g128-asym-v1", "qweight", "scales"),
    ("gptqmodel-w3g128-sym", "qweight", "scales"),
    ("auto-round-w2g32-asym-autoround", "qweight", "scales"),
    ("autoawq-gemm-g128", "qweight", "scales"),
    ("autoawq-gemv-g128", "qweight", "scales"),
    ("autoawq-gemvfast-g128", "qweight", "scales"),
    ("gptqmodel-awq-gemm-g128-asym", "qweight", "scales"),
    ("gptqmodel-qqq-g128", "B", "s_group"),
    ("gptqmodel-fp8-row", "weight", "weight_scale_inv"),
    ("llmcompressor-w4a16-asym-g128", "weight_packed", "weight_scale"),
    ("llmcompressor-w3a16-g128-asym", "weight_packed", "weight_scale"),
    ("llmcompressor-w8a8-int", "weight", "weight_scale"),
    ("llmcompressor-fp8-block", "weight", "weight_scale"),
    ("llmcompressor-nvfp4", "weight_packed", "weight_scale"),
    ("llmcompressor-mxfp4", "weight_packed", "weight_scale"),
    ("modelopt-nvfp4", "weight", "weight_scale"),
    ("modelopt-int4-awq", "weight", "weight_scale"),
    ("modelopt-fp8", "weight", "weight_scale"),
    ("bitsandbytes-nf4", "weight", "weight.absmax"),
    ("bitsandbytes-int8", "weight", "SCB"),
    ("mlx-q4-g64", "weight", "scales"),
    ("mlx-nvfp4", "weight", "scales"),
    ("quanto-qint4", "weight._data._data", "weight._scale"),
    ("torchao-int8wo", "_weight_qdata", "_weight_scale"),
    ("torchao-intxwo-int4-g32", "_weight_qdata", "_weight_scale"),
)
E4M3 = {"llmcompressor-nvfp4", "modelopt-nvfp4", "mlx-nvfp4"}
NO_INF = {*E4M3, "llmcompressor-mxfp4"}
NO_SIGN = {*NO_INF, "mlx-q4-g64", "gptqmodel-w4g128-asym-v1", "auto-round-w2g32-asym-autoround"}
EVERY = {folder: (codes, scales) for folder, codes, scales in FAMILIES}


def some(*folders: str) -> list[tuple[str, str, str]]:
    return [(folder, *EVERY[folder]) for folder in folders]


def is_nan(folder: str) -> dict[str, int]:
    return {**NAN, "U8": 0x7F} if folder == "mlx-nvfp4" else NAN


def blank(folder: str, codes: str) -> Any:
    """8 KiB in the middle of gate_proj's codes set to zero bytes."""
    return region(f"{GATE0}.{codes}", bytes(8192))


def region(name: str, data: bytes, start: int = 8192) -> Any:
    def change(item: Entry) -> None:
        body = bytearray(item.data)
        body[start : start + len(data)] = data
        item.data = bytes(body[: len(item.data)])

    return lambda folder: edit_tensor(folder, name, change)


def noise(count: int) -> bytes:
    return np.random.default_rng(11).integers(0, 256, count, dtype=np.uint8).tobytes()


def zeroed(name: str) -> Any:
    return put(name, np.zeros_like)


def shuffled_signs(values: Array) -> Array:
    """Two's complement nibbles where an offset is the rule."""
    return (values.view("<u4") ^ np.uint32(0x88888888)).view("<i4")


def one_sided(values: Array) -> Array:
    """Codes under 8 clipped to 8."""
    fields = (values.view("<u4")[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    clipped = np.maximum(fields, 8).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))
    packed: Array = clipped.sum(axis=-1, dtype=np.uint32)
    return packed.view("<i4")


def tiled(values: Array) -> Array:
    rows, cols = values.shape
    tiles = values.reshape(rows // 128, 4, 32, cols // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(rows, cols)


def mantissas(folder: Path) -> None:
    """DeepSeek's scale_fmt over scales that are no powers of two."""

    def widen(_: str, item: Entry) -> Entry:
        wide = (item.array().astype(np.uint32) << 16).view(np.float32)
        return entry("F32", wide)

    all_tensors("weight_scale", widen)(folder)
    section(lambda s: s.__setitem__("scale_fmt", "ue8m0"))(folder)


def as_dtype(part: str, dtype: str) -> Any:
    def change(_: str, item: Entry) -> Entry:
        values = item.array().astype(np.float32)
        return entry(dtype, values.view(np.uint32) >> 16 if dtype == "BF16" else values)

    return all_tensors(part, change)


def constant_word(name: str, value: int) -> Any:
    def change(item: Entry) -> None:
        item.data = np.full(len(item.data) // 4, value, "<u4").tobytes()

    return lambda folder: edit_tensor(folder, name, change)


def nan_codes(values: Array) -> None:
    values[5, :7] = 0x7F


def negative_zeros(values: Array) -> None:
    values[:, ::40] = 0x80


def plain_nan(folder: Path) -> None:
    name = f"{L0}input_layernorm.weight"
    word(name, NAN, 9)(folder)


def ratio(folder: Path) -> None:
    name = names_in(folder, f"{K0}.weight_scale_2") or names_in(folder, f"{K0}.weight_global_scale")
    scaled(name[0], 3.0)(folder)


def transposed(folder: Path) -> None:
    name = next(
        n for n in names_in(folder, f"{K0}.weight") if not n.endswith(("_scale", "_inv", "_2"))
    )
    put(name, lambda values: np.ascontiguousarray(values.T))(folder)


def invert_all(part: str) -> Any:
    return lambda folder: [scaled(name, 1.0, -1.0)(folder) for name in names_in(folder, part)]


def half_codes_zero(folder: Path) -> None:
    item = stored(folder, f"{GATE0}.weight_packed")
    values = words(item)
    values[:128] = 0
    put(f"{GATE0}.weight_packed", lambda _: values.view(item.array().dtype))(folder)


CASES: tuple[Case, ...] = (
    *(Case(f, "one NaN scale", "SCALE-VALUE", "violation", "q_proj", word(f"{Q0}.{s}", is_nan(f), 1))
      for f, _, s in FAMILIES),
    *(Case(f, "one infinite scale", "SCALE-VALUE", "violation", "q_proj", word(f"{Q0}.{s}", INF, 1))
      for f, _, s in FAMILIES if f not in NO_INF),
    *(Case(f, "one scale an outlier", "SCALE-VALUE", "warning", "q_proj", word(f"{Q0}.{s}", HUGE, 5))
      for f, _, s in some("gptqmodel-fp8-row", "bitsandbytes-nf4", "bitsandbytes-int8", "torchao-int8wo",
                          "modelopt-int4-awq", "llmcompressor-w8a8-int", "gptqmodel-w4g128-asym-v1",
                          "quanto-qint4")),
    *(Case(f, "one scale zero under live codes", "SCALE-VALUE", "warning", "q_proj",
           word(f"{Q0}.{s}", dict.fromkeys(("F16", "BF16", "F32", "F8_E4M3"), 0), 5))
      for f, _, s in some("gptqmodel-w4g128-asym-v1", "autoawq-gemm-g128", "llmcompressor-w8a8-int",
                          "llmcompressor-nvfp4", "modelopt-int4-awq", "torchao-int8wo", "mlx-q4-g64",
                          "bitsandbytes-nf4")),
    *(Case(f, "one subnormal scale", "SCALE-VALUE", "warning", "q_proj", word(f"{Q0}.{s}", TINY, 5))
      for f, _, s in some("llmcompressor-w3a16-g128-asym", "llmcompressor-w8a8-int", "gptqmodel-fp8-row",
                          "bitsandbytes-int8", "modelopt-int4-awq")),
    *(Case(f, "scales all equal", "SCALE-VALUE", "warning", "q_proj", word(f"{Q0}.{s}", ONE, slice(None)))
      for f, _, s in some("gptqmodel-w4g128-asym-v1", "autoawq-gemm-g128", "llmcompressor-w4a16-asym-g128",
                          "llmcompressor-w8a8-int", "llmcompressor-mxfp4", "modelopt-nvfp4")),
    *(Case(f, "every other scale negative", "SCALE-SIGN", "warning", "q_proj", flip_signs(f"{Q0}.{s}"))
      for f, _, s in some("gptqmodel-w3g128-sym", "autoawq-gemm-g128", "llmcompressor-w4a16-asym-g128",
                          "gptqmodel-fp8-row", "modelopt-int4-awq", "bitsandbytes-nf4",
                          "torchao-int8wo", "modelopt-nvfp4", "llmcompressor-w8a8-int")),
    *(Case(f, "all code bytes zero", "DEAD-PLANE", "violation", "gate_proj", zeroed(f"{GATE0}.{c}"))
      for f, c, _ in some("llmcompressor-w8a8-int", "llmcompressor-fp8-block", "llmcompressor-nvfp4",
                          "modelopt-fp8", "bitsandbytes-int8", "torchao-int8wo", "modelopt-int4-awq")),
    *(Case(f, "all code bytes zero: one code everywhere", "DEAD-PLANE", "warning", "gate_proj",
           zeroed(f"{GATE0}.{c}"))
      for f, c, _ in some("gptqmodel-w4g128-asym-v1", "autoawq-gemm-g128", "bitsandbytes-nf4", "mlx-q4-g64",
                          "llmcompressor-w4a16-asym-g128", "gptqmodel-qqq-g128")),
    *(Case(f, "8 KiB of zero bytes in the codes", "DEAD-PLANE", "warning", "gate_proj", blank(f, c))
      for f, c, _ in some("gptqmodel-w3g128-sym", "autoawq-gemv-g128", "llmcompressor-w8a8-int",
                          "llmcompressor-nvfp4", "modelopt-int4-awq", "mlx-q4-g64", "bitsandbytes-nf4",
                          "quanto-qint4", "torchao-intxwo-int4-g32", "gptqmodel-qqq-g128")),
    *(Case(f, "16 KiB of noise in the codes", "DEAD-PLANE", "warning", "gate_proj",
           region(f"{GATE0}.{c}", noise(16384)))
      for f, c, _ in some("llmcompressor-w8a8-int", "modelopt-fp8", "torchao-int8wo", "bitsandbytes-int8")),
    Case("gptqmodel-w4g128-sym", "codes all 8, the zero point", "DEAD-PLANE", "violation", "gate_proj",
         constant_word(f"{GATE0}.qweight", 0x88888888)),
    Case("llmcompressor-w4a16-sym-g128", "codes all 8, the zero point", "DEAD-PLANE", "violation",
         "gate_proj", constant_word(f"{GATE0}.weight_packed", 0x88888888)),
    Case("gptqmodel-w4g128-sym", "codes all 3", "DEAD-PLANE", "warning", "gate_proj",
         constant_word(f"{GATE0}.qweight", 0x33333333)),
    Case("llmcompressor-nvfp4", "half of gate_proj's rows zero", "DEAD-PLANE", "warning", "gate_proj",
         half_codes_zero),
    Case("llmcompressor-w4a16-sym-g128", "codes of one side only", "DEAD-PLANE SIGN", "warning", "q_proj",
         put(f"{Q0}.weight_packed", one_sided)),
    Case("gptqmodel-w4g128-sym", "two's complement codes", "SIGN", "warning", "q_proj",
         put(f"{Q0}.qweight", shuffled_signs)),
    Case("llmcompressor-w4a16-sym-g128", "two's complement codes", "SIGN", "warning", "q_proj",
         put(f"{Q0}.weight_packed", shuffled_signs)),
    Case("llmcompressor-kv-fp8-w4a16", "two's complement codes", "SIGN", "warning", "down_proj",
         put(f"{DOWN0}.weight_packed", shuffled_signs)),
    # second levels and their direction
    *(Case(f, "global scale zero", "SCALE-RECIP SCALE-VALUE", "violation", "q_proj",
           put(f"{Q0}.{n}", lambda values: values * 0))
      for f, n in (("llmcompressor-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2"))),
    *(Case(f, "global scale infinite", "SCALE-RECIP SCALE-VALUE", "violation", "q_proj",
           put(f"{Q0}.{n}", lambda values: values * 0 + np.float32("inf")))
      for f, n in (("llmcompressor-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2"))),
    *(Case(f, "global scale inverted everywhere", "SCALE-RECIP", "warning", "weight", invert_all(n))
      for f, n in (("llmcompressor-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2"))),
    Case("modelopt-fp8", "weight_scale inverted", "SCALE-RECIP SCALE-VALUE", "warning", "q_proj",
         scaled(f"{Q0}.weight_scale", 1.0, -1.0)),
    Case("gptqmodel-fp8-row", "weight_scale_inv inverted everywhere", "SCALE-RECIP", "warning", "weight",
         invert_all("weight_scale_inv")),
    *(Case(f, "global scale of k_proj three times q_proj's", "SCALE-FUSED", "warning", "proj", ratio)
      for f in ("llmcompressor-nvfp4", "modelopt-nvfp4")),
    Case("modelopt-nvfp4", "global scale of gate_proj unlike up_proj's", "SCALE-FUSED", "warning", "proj",
         scaled(f"{GATE0}.weight_scale_2", 2.5)),
    # formats and shapes of scales
    Case("llmcompressor-fp8-block", "scale_fmt ue8m0 over scales with mantissas", "SCALE-DTYPE",
         "disagreement", "scale_fmt", mantissas),
    Case("gptqmodel-fp8-row", "float32 scales cast to BF16", "SCALE-DTYPE", "warning", "weight",
         as_dtype("weight_scale_inv", "BF16")),
    Case("llmcompressor-nvfp4", "scales of q_proj in 128x4 tiles", "SCALE-LAYOUT", "warning", "q_proj",
         put(f"{Q0}.weight_scale", tiled)),
    Case("modelopt-nvfp4", "scales of v_proj flattened", "SCALE-LAYOUT SCALE-SHAPE GROUP", "violation",
         "v_proj", put(f"{V0}.weight_scale", lambda values: values.reshape(-1))),
    Case("modelopt-fp8", "seven NaN codes", "FP8-VARIANT SCALE-VALUE", "warning", "q_proj",
         put(f"{Q0}.weight", nan_codes)),
    Case("llmcompressor-fp8-block", "negative zeros, as fnuz has its NaN", "FP8-VARIANT", "note",
         "q_proj", put(f"{Q0}.weight", negative_zeros)),
    *(Case(f, "k_proj stored [in, out]", "ORIENT PACK-BITS GROUP SCALE-SHAPE", "violation", "k_proj",
           transposed)
      for f in ("llmcompressor-fp8-block", "modelopt-fp8", "modelopt-nvfp4", "llmcompressor-w8a8-int",
                "gptqmodel-fp8-row")),
    *(Case(f, "scales of k_proj stored [in, out]", "ORIENT GROUP SCALE-SHAPE", "violation", "k_proj",
           put(f"{K0}.{s}", lambda values: np.ascontiguousarray(values.T)))
      for f, _, s in some("llmcompressor-fp8-block", "llmcompressor-nvfp4", "llmcompressor-mxfp4", "mlx-q4-g64",
                          "llmcompressor-w4a16-asym-g128", "autoawq-gemm-g128", "modelopt-int4-awq",
                          "llmcompressor-w8a8-int")),
    *(Case(f, "a NaN in a norm", "SCALE-VALUE", "violation", "input_layernorm", plain_nan)
      for f in ("gptqmodel-w3g128-sym", "autoawq-gemm-g128", "mlx-q4-g64")),
)  # fmt: skip
