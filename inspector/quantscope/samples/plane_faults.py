"""Samples whose planes are missing, cut, permuted or at odds: sizes, zero points, g_idx, layers, experts, ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantscope.samples.folder_edit import (
    drop,
    edit_config,
    edit_quantization,
    edit_tensor,
    edit_weights,
    rename,
    weights,
)
from quantscope.samples.sample import Sample, faulty
from quantscope.samples.st_edit import Entry, StFile, entry

GPTQ, V2, ACT, AUTOGPTQ, SHARDED = (
    "smol-gptq-w4",
    "smol-gptq-v2-w4",
    "smol-gptq-act-order",
    "smol-autogptq-w4",
    "smol-ct-w4-sharded",
)
BLOCK, MODELOPT, INT8 = "smol-ct-fp8-block", "smol-modelopt-fp8", "smol-ct-int8"
K0, K1 = "model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.k_proj"
Array = NDArray[Any]


def array(name: str, change: Callable[[Array], Array | None]) -> Callable[[Path], None]:
    """A change to the array of one tensor; in place where `change` returns nothing."""

    def edit(item: Entry) -> None:
        values = item.array()
        changed = change(values)
        item.put(values if changed is None else changed)

    return lambda folder: edit_tensor(folder, name, edit)


def stored(folder: Path, part: str) -> list[str]:
    """Names of stored tensors that hold a part."""
    return [n for p in weights(folder) for n in StFile.read(p).tensors if part in n]


def dropping(part: str) -> Callable[[Path], None]:
    """A change that removes every tensor whose name holds a part."""
    return lambda folder: drop(folder, *stored(folder, part))


def taller(values: Array) -> Array:
    """Seven rows more, as a wrong size equation makes them."""
    return np.concatenate([values, values[:7]])


def scale_without_codes(folder: Path) -> None:
    drop(folder, f"{K0}.weight")


def ragged(folder: Path) -> None:
    """Nothing is wrong: 64 rows make half a block of 128."""
    edit_config(folder, lambda config: config.__setitem__("use_cache", False))


def transposed(folder: Path) -> None:
    array(f"{K0}.weight", lambda values: np.ascontiguousarray(values.T))(folder)


def liar(folder: Path) -> None:
    """Planes of gptq_v2 declared gptq: every zero point is taken for one less than it is."""

    def change(section: dict[str, Any]) -> None:
        section["checkpoint_format"] = section["format"] = "gptq"

    edit_quantization(folder, change)


def undeclared(folder: Path) -> None:
    def change(section: dict[str, Any]) -> None:
        for key in ("checkpoint_format", "format", "meta"):
            section.pop(key, None)

    edit_quantization(folder, change)


def zeros_wrap(values: Array) -> None:
    values.view("<u4")[0, :4] |= np.uint32(0xF)


def zeros_differ(values: Array) -> None:
    values.view("<u4")[0, 0] ^= np.uint32(0x3)


def zeros_unpacked(folder: Path) -> None:
    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if n.endswith(".qzeros")]:
            words = file.tensors[name].array().view("<u4")
            fields = words[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
            file.tensors[name] = entry("F16", fields.reshape(words.shape[0], -1).astype("<f2"))

    edit_weights(folder, change)


def zeros_shuffled(folder: Path) -> None:
    """Every zero point moved half a step beyond both conventions: the codes follow a third one."""

    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if n.endswith(".qzeros")]:
            item = file.tensors[name]
            words = item.array().view("<u4")
            item.put((words - np.uint32(0x22222222)).view("<i4"))

    edit_weights(folder, change)


def shuffled(values: Array) -> Array:
    return np.random.default_rng(1).permutation(values)


def range_index(values: Array) -> None:
    values[5] = 99


def uneven_index(values: Array) -> None:
    values[:3] = 1


def act_order_natural(folder: Path) -> None:
    edit_quantization(folder, lambda section: section.__setitem__("desc_act", True))


def tied_differs(folder: Path) -> None:
    def change(item: Entry) -> None:
        values = item.array()
        values[:3] += np.float16(1.0)
        item.put(values)

    edit_tensor(folder, "lm_head.weight", change)


def quantized_head(folder: Path) -> None:
    """k_proj's planes stored once more as an untied head."""
    head = "lm_head"

    def change(file: StFile) -> None:
        for suffix in ("qweight", "qzeros", "scales", "g_idx"):
            source = file.tensors[f"{K0}.{suffix}"]
            file.tensors[f"{head}.{suffix}"] = Entry(
                dtype=source.dtype, shape=list(source.shape), data=source.data
            )

    edit_weights(folder, change)
    edit_config(folder, lambda config: config.__setitem__("tie_word_embeddings", False))


def layers_missing(folder: Path) -> None:
    drop(folder, *stored(folder, "layers.1."))


def module_missing(folder: Path) -> None:
    drop(folder, *stored(folder, K1))


def experts_missing(folder: Path) -> None:
    """k_proj of both layers renamed to experts 0, 1 and 3 of four."""
    base = "model.layers.0.mlp.experts"

    def change(file: StFile) -> None:
        source = {n: t for n, t in file.tensors.items() if n.startswith(K0)}
        for expert in (0, 1, 3):
            for name, item in source.items():
                file.tensors[f"{base}.{expert}.up_proj.{name[len(K0) + 1 :]}"] = item
                file.tensors[
                    f"{base.replace('.0.', '.1.')}.{expert}.up_proj.{name[len(K0) + 1 :]}"
                ] = item
        for expert in (2,):
            for name, item in source.items():
                file.tensors[
                    f"{base.replace('.0.', '.1.')}.{expert}.up_proj.{name[len(K0) + 1 :]}"
                ] = item

    edit_weights(folder, change)
    edit_config(folder, lambda config: config.__setitem__("num_local_experts", 4))


def mtp_missing(folder: Path) -> None:
    edit_config(folder, lambda config: config.__setitem__("num_nextn_predict_layers", 1))


def sign_doubtful(folder: Path) -> None:
    """Codes written as two's complement nibbles under a format that stores an offset."""
    array(f"{K0}.qweight", lambda v: (v.view("<u4") ^ np.uint32(0x88888888)).view("<i4"))(folder)


def bnb_incomplete(folder: Path) -> None:
    drop(folder, *stored(folder, f"{K0}.weight.quant_"))


def bnb_broken(folder: Path) -> None:
    name = stored(folder, f"{K0}.weight.quant_state")[0]
    array(name, lambda values: values[: len(values) // 2])(folder)


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def plain_order(folder: Path) -> None:
    """Every packed word of AWQ written in plain order."""

    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if n.endswith((".qweight", ".qzeros"))]:
            item = file.tensors[name]
            words = item.array().view("<u4")
            plain = np.zeros_like(words)
            for nibble, channel in enumerate(AWQ_ORDER):
                plain |= (words >> np.uint32(4 * nibble) & np.uint32(15)) << np.uint32(4 * channel)
            item.put(plain.view("<i4"))

    edit_weights(folder, change)


def renamed_scales(folder: Path) -> None:
    rename(folder, lambda name: name.replace("weight_scale", "scale_weight"))
    edit_config(folder, lambda config: config.pop("quantization_config"))
    (folder / "hf_quant_config.json").unlink()


SAMPLES: tuple[Sample, ...] = (
    faulty("gptq-qweight-rows", "k_proj's qweight seven rows too tall", GPTQ,
           array(f"{K0}.qweight", taller), ("QP001", "violation", "k_proj")),
    faulty("gptq-scales-missing", "scales of one module left out", GPTQ,
           lambda folder: drop(folder, f"{K0}.scales"), ("QP002", "violation", "k_proj")),
    faulty("bnb-state-missing", "quant_state and quant_map of one module left out", "smol-bnb-nf4",
           bnb_incomplete, ("QP002", "violation", "k_proj")),
    faulty("bnb-state-broken", "quant_state of one module cut in half", "smol-bnb-nf4", bnb_broken,
           ("QP009", "violation", "k_proj")),
    faulty("awq-plain-order", "AWQ planes packed in plain order", "smol-awq-w4", plain_order,
           ("QD004", "warning", "_proj")),
    faulty("fp8-scale-without-codes", "codes of one module left out, its scale kept", BLOCK,
           scale_without_codes, ("QP003", "violation", "k_proj")),
    faulty("fp8-block-ragged", "64 rows make half a block: a note", BLOCK, ragged,
           ("QP005", "note", "k_proj")),
    faulty("fp8-transposed", "k_proj stored as [in, out]", MODELOPT, transposed,
           ("QP008", "violation", "k_proj")),
    faulty("smol-w4-liar", "planes of gptq_v2 declared gptq", V2, liar,
           ("QZ002", "disagreement", "checkpoint_format")),
    faulty("gptq-convention-undeclared", "no key and no marker fixes the zero convention", GPTQ,
           undeclared, ("QZ001", "warning", "k_proj")),
    faulty("gptq-zeros-wrap", "four stored zero points all ones under stored + 1", GPTQ,
           array(f"{K0}.qzeros", zeros_wrap), ("QZ003", "warning", "k_proj")),
    faulty("gptq-sym-zeros-differ", "one odd zero point under sym = true", ACT,
           array(f"{K0}.qzeros", zeros_differ), ("QZ005", "disagreement", "k_proj")),
    faulty("gptq-zeros-unpacked", "zero points stored one an element", GPTQ, zeros_unpacked,
           ("QZ006", "disagreement", "k_proj")),
    faulty("gptq-zeros-shuffled", "zero points two steps off", GPTQ, zeros_shuffled,
           ("QZ007", "warning", "")),
    faulty("gptq-g-idx-range", "g_idx names group 99", GPTQ, array(f"{K0}.g_idx", range_index),
           ("QG001", "violation", "k_proj")),
    faulty("gptq-g-idx-uneven", "three channels moved to another group", GPTQ,
           array(f"{K0}.g_idx", uneven_index), ("QG002", "violation", "k_proj")),
    faulty("gptq-act-order-undeclared", "g_idx permuted under desc_act false", GPTQ,
           array(f"{K0}.g_idx", shuffled), ("QG003", "disagreement", "k_proj")),
    faulty("gptq-g-idx-absent", "desc_act true and no g_idx", ACT, dropping(".g_idx"),
           ("QG004", "violation", "k_proj")),
    faulty("gptq-act-order-natural", "desc_act true over a natural g_idx: a note", GPTQ,
           act_order_natural, ("QG005", "note", "k_proj")),
    faulty("gptq-sign-doubtful", "two's complement codes in an offset format", GPTQ, sign_doubtful,
           ("QB003", "warning", "k_proj")),
    faulty("tied-head-differs", "tied head differs from the embedding in three rows", AUTOGPTQ,
           tied_differs, ("QW010", "disagreement", "lm_head")),
    faulty("ct-quantized-head", "an untied, quantized output head", GPTQ, quantized_head,
           ("QW011", "note", "lm_head")),
    faulty("layers-missing", "layer 1 of two left out", INT8, layers_missing,
           ("QW012", "violation", "layers.1")),
    faulty("module-missing", "k_proj of layer 1 left out", INT8, module_missing,
           ("QW013", "violation", "k_proj")),
    faulty("experts-missing", "expert 2 of four missing in layer 0", INT8, experts_missing,
           ("QW014", "violation", "experts.2")),
    faulty("mtp-missing", "an MTP layer declared and not stored", INT8, mtp_missing,
           ("QW015", "disagreement", "num_nextn_predict_layers")),
    faulty("fp8-scale-name", "scales spelled scale_weight", MODELOPT, renamed_scales,
           ("QS013", "warning", "k_proj"), follows=("QD010", "QS020")),
)  # fmt: skip
