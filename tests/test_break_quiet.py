"""Nothing is said above a note of the real checkpoints, however harmlessly they are stored otherwise."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from break_edits import (
    L1,
    UP1,
    Edit,
    added,
    all_tensors,
    config,
    copy_of,
    edit_config,
    edit_index,
    edit_json,
    edit_quantization,
    edit_tensor,
    entry,
    gguf,
    gone,
    joined,
    key,
    names_in,
    normal,
    put,
    resharded,
    scan,
    section,
    stored,
    true_total,
    weights,
)
from quantscope.samples.folder_edit import gguf_path
from quantscope.samples.gguf_edit import GgufFile, Key, Tensor, value_of
from quantscope.samples.st_edit import Entry, StFile

LABELLED = ("gguf-mxfp4", "gguf-nvfp4")
"""Their producer labels them Q8_0: the one warning that real files earn."""

PACKED = {
    "gptqmodel-w4g128-asym-v1", "gptqmodel-w3g128-sym", "gptqmodel-w4g128-sym-descact", "autoawq-gemm-g128",
    "autogptq-w4g128-asym", "auto-round-w2g32-asym-autoround", "llmcompressor-w4a16-asym-g128",
    "llmcompressor-nvfp4", "llmcompressor-fp8-block", "modelopt-nvfp4", "modelopt-fp8", "bitsandbytes-nf4",
    "bitsandbytes-int8", "mlx-q4-g64", "mlx-mixed_3_6", "quanto-qint4", "torchao-int8wo",
    "gptqmodel-qqq-g128", "gptqmodel-w4g128-dynamic-mixed", "llmcompressor-kv-fp8-w4a16",
    "llmcompressor-mixed-w4-fp8", "modelopt-int4-awq", "llmcompressor-mxfp4", "auto-round-mxfp4",
}  # fmt: skip


class Harmless(NamedTuple):
    """A change that makes nothing wrong."""

    folder: str
    what: str
    edit: Edit


def sharded(folder: Path) -> None:
    resharded(folder)


def sharded_without_index(folder: Path) -> None:
    resharded(folder, index=False)


def uneven(folder: Path) -> None:
    """Nine shards, the last of one tensor."""
    resharded(folder, 9)


def renamed_file(folder: Path) -> None:
    path = weights(folder)[0]
    path.rename(folder / "weights-final.safetensors")
    for index in folder.glob("*.index.json"):
        index.unlink()


def no_metadata(folder: Path) -> None:
    """`__metadata__` gone where it holds no declaration."""
    for path in weights(folder):
        StFile(tensors=StFile.read(path).tensors).write(path)


def keys_reversed(folder: Path) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: turned(item) for name, item in reversed(value.items())}
        return value

    for path in folder.glob("*.json"):
        if not path.name.endswith("index.json"):
            path.write_text(json.dumps(turned(json.loads(path.read_text()))))


def strangers(folder: Path) -> None:
    (folder / "README.md").write_text("# a model\n\nquantization: none of these words count\n")
    (folder / "LICENSE").write_text("Apache-2.0\n")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (folder / "training_args.json").write_text('{"bits": 3, "group_size": 7}')
    (folder / "figure.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))


def no_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()
    (folder / "generation_config.json").unlink(missing_ok=True)


def other_order(folder: Path) -> None:
    """Tensors laid out from last to first."""
    for path in weights(folder):
        file = StFile.read(path)
        StFile(tensors=dict(reversed(file.tensors.items())), metadata=file.metadata).write(path)


def shuffled(folder: Path) -> None:
    generator = np.random.default_rng(4)
    for path in weights(folder):
        file = StFile.read(path)
        names = list(file.tensors)
        generator.shuffle(names)
        StFile(tensors={n: file.tensors[n] for n in names}, metadata=file.metadata).write(path)


def padded_header(folder: Path) -> None:
    """4 KiB of blanks after the header's JSON."""
    path = weights(folder)[0]
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size] + b" " * 4096
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def vocabulary_padded(folder: Path) -> None:
    """64 rows of zeros at the end of a plain embedding, as for tensor parallelism."""
    name = names_in(folder, "embed_tokens.weight")[0]

    def change(item: Entry) -> None:
        values = item.array()
        if item.dtype in ("F16", "BF16", "F32"):
            item.put(np.concatenate([values, np.zeros_like(values[:64])]))

    edit_tensor(folder, name, change)


def head_stored(folder: Path) -> None:
    """The tied head stored as well, equal to the embedding."""
    name = names_in(folder, "embed_tokens.weight")[0]
    item = stored(folder, name)
    added(
        "lm_head.weight", lambda _: Entry(dtype=item.dtype, shape=list(item.shape), data=item.data)
    )(folder)


def untied(folder: Path) -> None:
    """A head of its own and the flag that says so."""
    embedding = stored(folder, names_in(folder, "embed_tokens.weight")[0])
    added("lm_head.weight", lambda _: normal(embedding.dtype, *embedding.shape))(folder)
    edit_config(folder, lambda data: data.update(tie_word_embeddings=False))


def one_layer(folder: Path) -> None:
    gone("layers.1.")(folder)

    def change(data: Any) -> None:
        data["num_hidden_layers"] = 1
        for name in ("layer_types", "no_rope_layers"):
            if isinstance(data.get(name), list):
                data[name] = data[name][:1]

    edit_config(folder, change)
    true_total(folder)
    for name in ("quanto_qmap.json",):
        if (folder / name).exists():
            edit_json(
                folder, name, lambda data: [data.pop(k) for k in list(data) if "layers.1." in k]
            )


def unquantized(dtype: str) -> Edit:
    """up_proj of layer 1 plain, and every list says so."""

    def change(data: Any) -> None:
        method = data.get("quant_method")
        if method in ("compressed-tensors", "modelopt"):
            data["ignore"] = [*data["ignore"], UP1]
        elif method == "bitsandbytes":
            data["llm_int8_skip_modules"] = [UP1]
        elif method == "gptq" or "dynamic" in data:
            data["dynamic"] = {**data.get("dynamic", {}), rf"-:{UP1}": {}}
        elif method is None:
            data[UP1] = False
        else:
            data["modules_to_not_convert"] = [UP1]

    def edit(folder: Path) -> None:
        gone(UP1)(folder)
        added(f"{UP1}.weight", lambda _: normal(dtype, 512, 256))(folder)
        edit_quantization(folder, change)
        if (folder / "hf_quant_config.json").exists():
            edit_json(
                folder,
                "hf_quant_config.json",
                lambda data: data["quantization"]["exclude_modules"].append(UP1),
            )
        true_total(folder)

    return edit


def no_act_order(folder: Path) -> None:
    """g_idx left out where it is the natural order."""
    gone(".g_idx")(folder)


def scales_as(dtype: str, part: str) -> Edit:
    """All scales in another float format, as loaders that cast the whole model save them."""

    def change(_: str, item: Entry) -> Entry:
        wide = (
            (item.array().astype(np.uint32) << 16).view(np.float32)
            if item.dtype == "BF16"
            else item.array().astype(np.float32)
        )
        return entry(dtype, wide.view(np.uint32) >> 16 if dtype == "BF16" else wide)

    return all_tensors(part, change)


def model_dtype(dtype: str) -> Edit:
    """The plain weights and the scales of one dtype, and the config says which."""
    word = {"BF16": "bfloat16", "F16": "float16"}[dtype]

    def change(name: str, item: Entry) -> Entry:
        if item.dtype not in ("F16", "BF16"):
            return item
        wide = (
            (item.array().astype(np.uint32) << 16).view(np.float32)
            if item.dtype == "BF16"
            else item.array().astype(np.float32)
        )
        return entry(dtype, wide.view(np.uint32) >> 16 if dtype == "BF16" else wide)

    return joined(all_tensors("", change), config(torch_dtype=word, dtype=word))


def empty_tensor(folder: Path) -> None:
    added("scaled_marker", lambda _: Entry(dtype="F32", shape=[0], data=b""))(folder)


def position_ids(folder: Path) -> None:
    ids = np.arange(512).reshape(1, 512)
    added("model.position_ids", lambda _: entry("I64", ids))(folder)


def rotary(folder: Path) -> None:
    for layer in (0, 1):
        name = f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"
        added(name, lambda _: entry("F32", 1 / 10000 ** np.arange(0, 1, 1 / 32)))(folder)


def prefixed(folder: Path) -> None:
    """A language model inside a larger one: every name under `language_model.`."""
    from quantscope.samples.folder_edit import rename

    rename(folder, lambda name: f"language_model.{name}")
    edit_index(
        folder,
        lambda m: [m.__setitem__(f"language_model.{n}", m.pop(n)) for n in list(m)],
    )


def utf8_bom(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4) + "\n\n")


def alignment(value: int) -> Edit:
    """The same file laid out with another alignment."""

    def edit(folder: Path) -> None:
        path = gguf_path(folder)
        file = GgufFile.read(path)
        file.put("general.alignment", 4, value)
        file.alignment = value
        file.write(path)

    return edit


def unpadded_tail(folder: Path) -> None:
    path = gguf_path(folder)
    GgufFile.read(path).write(path, pad_tail=False)


def other_tensor_order(file: GgufFile) -> None:
    file.tensors.reverse()


def untied_gguf(file: GgufFile) -> None:
    embedding = file.tensor("token_embd.weight")
    file.tensors.append(
        Tensor(name="output.weight", dims=list(embedding.dims), type_id=embedding.type_id,
               data=embedding.data)
    )  # fmt: skip


def unknown_keys(file: GgufFile) -> None:
    file.keys.append(
        Key(name="general.url", type_id=8, raw=value_of(8, "https://example.org/\U0001f98a"))
    )
    file.put("quantize.imatrix.entries_count", 5, 14)
    file.put("general.quantized_by", 8, "somebody")


def metadata_first(folder: Path) -> None:
    """A set whose first part has keys only."""
    path = gguf_path(folder)
    file = GgufFile.read(path)
    path.unlink()
    total = len(file.tensors)
    for number, tensors in enumerate(([], file.tensors)):
        part = GgufFile(keys=list(file.keys) if number == 0 else [], tensors=tensors)
        part.put("split.no", 2, number)
        part.put("split.count", 2, 2)
        part.put("split.tensors.count", 5, total)
        part.write(folder / f"{path.stem}-{number + 1:05d}-of-00002.gguf")


SAFETENSORS: tuple[tuple[str, Edit], ...] = (
    ("shards with an index", sharded),
    ("shards without an index", sharded_without_index),
    ("nine uneven shards", uneven),
    ("another file name", renamed_file),
    ("config keys turned round", keys_reversed),
    ("files of other people", strangers),
    ("no tokenizer", no_tokenizer),
    ("tensors in reverse", other_order),
    ("tensors shuffled", shuffled),
    ("a padded header", padded_header),
    ("config spaced otherwise", utf8_bom),
    ("an empty tensor", empty_tensor),
    ("position ids", position_ids),
    ("rotary tables", rotary),
    ("one layer", one_layer),
)
PLAIN_EMBEDDING: tuple[tuple[str, Edit], ...] = (
    ("64 padded vocabulary rows", vocabulary_padded),
    ("the tied head stored", head_stored),
    ("an untied head", untied),
)
GGUF: tuple[tuple[str, Edit], ...] = (
    ("alignment 64", alignment(64)),
    ("alignment 8", alignment(8)),
    ("no padding after the last tensor", unpadded_tail),
    ("tensors in reverse", gguf(other_tensor_order)),
    ("keys of other people", gguf(unknown_keys)),
    ("a name", key("general.name", "Some Model [v1.5]")),
    ("a first part of keys only", metadata_first),
    ("version 2", gguf(lambda file: setattr(file, "version", 2))),
)


def of_kind(real: Path, pattern: str) -> list[str]:
    return sorted(
        p.name for p in real.iterdir() if list(p.glob(pattern)) and p.name not in LABELLED
    )


def cases(real: Path) -> Iterator[Harmless]:
    """Every real folder under every change that makes sense for it."""
    for folder in of_kind(real, "*.gguf"):
        if "bigendian" not in folder and "split" not in folder:
            yield from (Harmless(folder, what, edit) for what, edit in GGUF)
    for folder in sorted(PACKED):
        for what, edit in SAFETENSORS:
            if not (what == "one layer" and folder.endswith("dynamic-mixed")):
                yield Harmless(folder, what, edit)
        if "mlx" not in folder and "autogptq" not in folder:
            yield from (Harmless(folder, what, edit) for what, edit in PLAIN_EMBEDDING)


OTHERS: tuple[Harmless, ...] = (
    *(Harmless(f, "no metadata in the header", no_metadata)
      for f in sorted(PACKED) if "torchao" not in f and "autogptq" not in f),
    *(Harmless(f, "up_proj of layer 1 plain and listed", unquantized(d))
      for f, d in (("gptqmodel-w4g128-asym-v1", "BF16"), ("autoawq-gemm-g128", "F16"),
                   ("llmcompressor-w4a16-asym-g128", "F16"), ("llmcompressor-nvfp4", "BF16"),
                   ("modelopt-fp8", "BF16"), ("modelopt-nvfp4", "BF16"), ("bitsandbytes-nf4", "BF16"),
                   ("bitsandbytes-int8", "F16"), ("torchao-int8wo", "BF16"), ("mlx-q4-g64", "F16"),
                   ("llmcompressor-fp8-block", "BF16"))),
    *(Harmless(f, "natural order and no g_idx", no_act_order)
      for f in ("gptqmodel-w4g128-asym-v1", "gptqmodel-w3g128-sym", "auto-round-w4g128-asym-autogptq")),
    *(Harmless(f, "a model in bfloat16", model_dtype("BF16"))
      for f in ("gptqmodel-w4g128-sym", "llmcompressor-w4a16-asym-g128", "autoawq-gemm-g128",
                "mlx-q4-g64", "llmcompressor-w4a16-sym-g128")),
    *(Harmless(f, "a model in float16", model_dtype("F16"))
      for f in ("llmcompressor-w3a16-g128-asym", "llmcompressor-w8a8-int", "llmcompressor-fp8-block")),
    *(Harmless(f, "float32 scales", scales_as("F32", part))
      for f, part in (("llmcompressor-w8a8-int", "weight_scale"), ("llmcompressor-fp8-block", "weight_scale"))),
    *(Harmless(f, "a language model inside another", prefixed)
      for f in ("llmcompressor-w4a16-asym-g128", "mlx-q4-g64", "llmcompressor-fp8-block", "modelopt-fp8")),
    Harmless("gguf-q6_k", "an untied head", gguf(untied_gguf)),
    Harmless("gptqmodel-w4g128-sym", "desc_act true over a natural g_idx",
             section(lambda s: s.__setitem__("desc_act", True))),
    Harmless("llmcompressor-kv-fp8-w4a16", "scales of one value near one",
             put(f"{L1}self_attn.k_scale", lambda v: np.full_like(v, 0x3F81))),
)  # fmt: skip


def loud(folder: Path) -> list[tuple[str, str, str | None, str]]:
    return [(f.severity, f.code, f.kind, f.message) for f in scan(folder) if f.severity != "note"]


@pytest.mark.real
def test_every_real_folder_is_quiet(real_set: Path) -> None:
    found = {folder.name: loud(folder) for folder in sorted(real_set.iterdir()) if folder.is_dir()}
    assert {n: f for n, f in found.items() if f and n not in LABELLED} == {}
    for name in LABELLED:
        assert [kind for _, _, kind, _ in found[name]] == ["GG-LABEL"]


@pytest.mark.real
@pytest.mark.parametrize("case", OTHERS, ids=lambda c: f"{c.folder}-{c.what}".replace(" ", "_"))
def test_a_harmless_variant_is_quiet(case: Harmless, real_set: Path, tmp_path: Path) -> None:
    folder = copy_of(real_set, case.folder, tmp_path)
    case.edit(folder)
    assert loud(folder) == []


CHANGES: dict[str, Edit] = dict((*SAFETENSORS, *PLAIN_EMBEDDING, *GGUF))


@pytest.mark.real
@pytest.mark.parametrize("what", CHANGES, ids=lambda w: w.replace(" ", "_"))
def test_a_harmless_change_keeps_every_folder_quiet(
    what: str, real_set: Path, tmp_path: Path
) -> None:
    found = {}
    for case in cases(real_set):
        if case.what == what:
            folder = copy_of(real_set, case.folder, tmp_path)
            case.edit(folder)
            found[case.folder] = loud(folder)
    assert found, "no folder takes the change"
    assert {name: findings for name, findings in found.items() if findings} == {}
