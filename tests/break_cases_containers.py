"""Faults of safetensors files, indexes and layers, one a real folder."""

from __future__ import annotations

from pathlib import Path

from break_edits import (
    L1,
    Q0,
    UP1,
    Case,
    Header,
    StFile,
    added,
    config,
    edit_index,
    edit_json,
    edit_weights,
    gone,
    header,
    header_text,
    in_json,
    joined,
    normal,
    raw,
    rename,
    resharded,
    stored,
    weights,
)

GPTQ, AWQ, CT, SHARDED, MLX = (
    "gptqmodel-w3g128-sym",
    "autoawq-gemm-g128",
    "llmcompressor-w4a16-asym-g128",
    "llmcompressor-w4a16-sharded",
    "mlx-q3-g64",
)
FP8, NVFP4, BNB, INT8, QUANTO = (
    "modelopt-fp8",
    "modelopt-nvfp4",
    "bitsandbytes-nf4",
    "llmcompressor-w8a8-int",
    "quanto-qint4",
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 1789000\n"
FILE = "model.safetensors"


def offsets(name: str, begin: int, end: int) -> object:
    """Move a tensor's range in the header."""

    def change(head: Header) -> None:
        first, last = head[name]["data_offsets"]
        head[name]["data_offsets"] = [first + begin, last + end]

    return header(change)


def entry_of(name: str, **keys: object) -> object:
    """Overwrite keys of a header entry."""
    return header(lambda head: head[name].update(keys))


def alias(head: Header) -> None:
    head[f"{Q0}.scales"]["data_offsets"] = list(
        head[f"{Q0.replace('.0.', '.1.')}.scales"]["data_offsets"]
    )


def hole(head: Header) -> None:
    """Everything after the first tensor moves 64 bytes on."""
    listed = sorted((n for n in head if n != "__metadata__"), key=lambda n: head[n]["data_offsets"])
    for name in listed[1:]:
        head[name]["data_offsets"] = [place + 64 for place in head[name]["data_offsets"]]


def hole_with_room(data: bytes) -> bytes:
    return data + bytes(64)


def swapped(folder: Path) -> None:
    """Two entries of the index change places."""

    def change(weight_map: dict[str, str]) -> None:
        first = next(n for n, f in weight_map.items() if "-00001-" in f)
        second = next(n for n, f in weight_map.items() if "-00003-of" in f)
        weight_map[first], weight_map[second] = weight_map[second], weight_map[first]

    edit_index(folder, change)


def wrong_shard(folder: Path) -> None:
    edit_index(folder, lambda m: m.__setitem__(f"{Q0}.weight_packed", other_than(m, Q0)))


def other_than(weight_map: dict[str, str], part: str) -> str:
    mine = next(f for n, f in weight_map.items() if part in n)
    return next(f for f in weight_map.values() if f != mine)


def omitted(folder: Path) -> None:
    edit_index(folder, lambda m: [m.pop(n) for n in list(m) if f"{Q0}.weight_scale" in n])


def extra_shard(folder: Path) -> None:
    StFile(tensors={f"{L1}extra.weight": normal("F16", 8, 8)}).write(folder / "more.safetensors")


def in_two_files(folder: Path) -> None:
    """One tensor stored a second time, in another shard."""
    item = stored(folder, f"{Q0}.weight_scale")
    for path in weights(folder):
        file = StFile.read(path)
        if f"{Q0}.weight_scale" not in file.tensors:
            file.tensors[f"{Q0}.weight_scale"] = item
            file.write(path)
            return


def total_size(folder: Path) -> None:
    edit_json(
        folder,
        "model.safetensors.index.json",
        lambda index: index["metadata"].__setitem__("total_size", 17),
    )


def extra_name(folder: Path) -> None:
    """The index lists a tensor that the shard does not have."""
    edit_index(folder, lambda m: m.__setitem__(f"{L1}ghost.weight", next(iter(m.values()))))


def absent_file(folder: Path) -> None:
    edit_index(
        folder,
        lambda m: [m.__setitem__(n, "model-00009-of-00009.safetensors") for n in m if Q0 in n],
    )


def shard_gone(folder: Path) -> None:
    weights(folder)[1].unlink()


def lfs_shard(folder: Path) -> None:
    weights(folder)[1].write_bytes(LFS)


def empty_shard(folder: Path) -> None:
    weights(folder)[2].write_bytes(b"")


def resharded_swapped(folder: Path) -> None:
    resharded(folder)
    edit_index(
        folder, lambda m: m.__setitem__("model.norm.weight", other_than(m, "model.norm.weight"))
    )


def resharded_total(folder: Path) -> None:
    resharded(folder)
    total_size(folder)


def moved_layer(folder: Path) -> None:
    """The second layer numbered 2: a hole in the numbers."""
    rename(folder, lambda name: name.replace("layers.1.", "layers.2."))
    edit_json(folder, "config.json", lambda data: data.__setitem__("num_hidden_layers", 3))


def experts(folder: Path, *, missing: int) -> None:
    """MLP matrices renamed to experts 0..3 of both layers, one left out in layer 1."""

    def change(file: StFile) -> None:
        for name in [n for n in file.tensors if ".mlp." in n]:
            item = file.tensors.pop(name)
            for number in range(4):
                if not ("layers.1." in name and number == missing and "up_proj" in name):
                    file.tensors[name.replace(".mlp.", f".mlp.experts.{number}.")] = item

    edit_weights(folder, change)
    edit_json(folder, "config.json", lambda data: data.__setitem__("num_local_experts", 4))


def head_of(dtype: str) -> object:
    return added("lm_head.weight", lambda _: normal(dtype, 2048, 256))


def deep_header(text: bytes) -> bytes:
    return text.replace(b"[", b"{", 1)


CASES: tuple[Case, ...] = (
    # the safetensors header
    Case(GPTQ, "header longer than the file", "ST-HDR", "violation", FILE,
         raw(lambda d: (10**7).to_bytes(8, "little") + d[8:])),
    Case(CT, "header of 200 MB", "ST-HDR", "violation", FILE,
         raw(lambda d: (200 << 20).to_bytes(8, "little") + d[8:])),
    Case(MLX, "header is a list", "ST-HDR", "violation", FILE, header_text(lambda _: b"[1, 2]  ")),
    Case(AWQ, "header cut in its JSON", "ST-HDR", "violation", FILE, header_text(deep_header)),
    Case(FP8, "empty file", "ST-HDR", "violation", FILE, raw(lambda _: b"")),
    Case(BNB, "Git-LFS pointer", "ST-HDR", "violation", FILE, raw(lambda _: LFS)),
    Case(NVFP4, "five bytes", "ST-HDR", "violation", FILE, raw(lambda d: d[:5])),
    Case(INT8, "header that is not UTF-8", "ST-HDR", "violation", FILE,
         header_text(lambda t: t.replace(b"model.norm", b"model.n\xffrm"))),
    Case(SHARDED, "second of three shards is a pointer", "ST-HDR", "violation", "00002", lfs_shard),
    Case(SHARDED, "third of three shards is empty", "ST-HDR", "violation", "00003", empty_shard),
    # its data section
    Case(GPTQ, "last byte missing", "ST-TRUNC", "violation", FILE, raw(lambda d: d[:-1])),
    Case(FP8, "half of the file missing", "ST-TRUNC", "violation", FILE,
         raw(lambda d: d[: len(d) // 2])),
    Case(CT, "a range that ends before it begins", "ST-TRUNC", "violation", "q_proj.weight_scale",
         header(lambda h: h[f"{Q0}.weight_scale"]["data_offsets"].reverse())),
    Case(AWQ, "a negative offset", "ST-TRUNC ST-HDR", "violation", "", offsets(f"{Q0}.scales", -(10**9), 0)),
    Case(BNB, "a range past the end", "ST-TRUNC", "violation", "",
         offsets(f"{Q0}.weight.absmax", 10**8, 10**8)),
    Case(SHARDED, "a shard cut short", "ST-TRUNC", "violation", "00002", raw(lambda d: d[:-100], 1)),
    Case(GPTQ, "shape one row longer than its bytes", "ST-SIZE", "violation", "q_proj.scales",
         entry_of(f"{Q0}.scales", shape=[3, 256])),
    Case(INT8, "shape one row shorter than its bytes", "ST-SIZE", "violation", "q_proj.weight",
         entry_of(f"{Q0}.weight", shape=[255, 256])),
    Case(CT, "F16 declared F32", "ST-SIZE", "violation", "q_proj.weight_scale",
         entry_of(f"{Q0}.weight_scale", dtype="F32")),
    Case(NVFP4, "dtype F4 over bytes", "ST-SIZE", "violation", "q_proj.weight",
         entry_of(f"{Q0}.weight", dtype="F4", shape=[256, 128])),
    Case(GPTQ, "two tensors over the same bytes", "ST-OVERLAP", "violation", "scales", header(alias)),
    Case(MLX, "a range that begins in the one before", "ST-OVERLAP ST-SIZE", "violation", "",
         joined(offsets(f"{Q0}.scales", -16, -16))),
    Case(AWQ, "a hole of 64 bytes", "ST-OVERLAP", "violation", "",
         joined(header(hole), raw(hole_with_room))),
    Case(QUANTO, "64 bytes after the last tensor", "ST-OVERLAP", "violation", FILE,
         raw(lambda d: d + bytes(64))),
    # the index
    Case(SHARDED, "second shard deleted", "IDX-SHARD", "violation", "index.json", shard_gone),
    Case(SHARDED, "index names a ninth shard", "IDX-SHARD", "violation", "index.json", absent_file),
    Case(MLX, "index names a file that is not there", "IDX-SHARD", "violation", "index.json", absent_file),
    Case(SHARDED, "two entries swapped", "IDX-MAP", "violation", "", swapped),
    Case(SHARDED, "one entry in the wrong shard", "IDX-MAP", "violation", "q_proj.weight_packed",
         wrong_shard),
    Case(SHARDED, "index names a tensor that no shard has", "IDX-MAP", "violation", "ghost", extra_name),
    Case(GPTQ, "shards made of one file, norm in the wrong one", "IDX-MAP", "violation", "model.norm",
         resharded_swapped),
    Case(SHARDED, "a scale left out of the index", "IDX-OMIT", "disagreement", "q_proj.weight_scale",
         omitted),
    Case(SHARDED, "a file that the index does not know", "IDX-OMIT", "disagreement", "more.safetensors",
         extra_shard),
    Case(SHARDED, "one scale in two shards", "IDX-OMIT", "disagreement", "q_proj.weight_scale",
         in_two_files),
    Case(SHARDED, "total_size of 17", "IDX-OMIT", "disagreement", "index.json", total_size),
    Case(FP8, "shards made of one file, total_size wrong", "IDX-OMIT", "disagreement", "index.json",
         resharded_total),
    # layers, modules, experts, ends
    *(Case(f, "layer 1 of two missing", "SUBMODULE", "violation", "layers.1", gone("layers.1."))
      for f in (GPTQ, MLX, BNB, NVFP4, "torchao-int8wo")),
    Case(CT, "layers 0 and 2 of three", "SUBMODULE", "violation", "layers.1", moved_layer),
    *(Case(f, "up_proj of layer 1 missing", "SUBMODULE", "violation", "up_proj", gone(UP1))
      for f in (AWQ, INT8, BNB, FP8, "gptqmodel-qqq-g128")),
    Case(CT, "norm of layer 1 missing", "SUBMODULE", "violation", "post_attention_layernorm",
         gone(f"{L1}post_attention_layernorm")),
    Case(CT, "expert 2 of four without up_proj in layer 1", "SUBMODULE", "violation", "experts.2",
         lambda folder: experts(folder, missing=2)),
    Case(NVFP4, "last of four experts without up_proj in layer 1", "SUBMODULE", "violation", "experts.3",
         lambda folder: experts(folder, missing=3)),
    Case(INT8, "an MTP layer declared, none stored", "SUBMODULE", "disagreement",
         "num_nextn_predict_layers", config(num_nextn_predict_layers=1)),
    Case("auto-round-w4g128-asym-autogptq", "layer 1 quantized outside the declared blocks", "SUBMODULE",
         "disagreement", "layers.1",
         in_json("config.json", lambda c: c["quantization_config"].__setitem__(
             "block_name_to_quantize", "model.layers.0"))),
    *(Case(f, "tied by flag, another head stored", "TIED", "disagreement", "lm_head", head_of(d))
      for f, d in ((GPTQ, "BF16"), (CT, "F16"), (BNB, "BF16"), (FP8, "BF16"))),
    *(Case(f, "untied by flag, no head stored", "TIED", "violation", "", config(tie_word_embeddings=False))
      for f in (AWQ, SHARDED, NVFP4, MLX, "torchao-int8wo")),
)  # fmt: skip
