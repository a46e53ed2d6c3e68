"""Faults of GGUF files and split sets, one a real folder."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from break_edits import (
    Case,
    GgufFile,
    block_bytes,
    gguf,
    key,
    raw,
)
from quantscope.containers.ggml_types import GGML_TYPES
from quantscope.samples.folder_edit import gguf_path
from quantscope.samples.gguf_edit import Tensor

Q4, Q4K, Q5, Q6, Q8 = "gguf-q4_0", "gguf-q4_k_m", "gguf-q5_0", "gguf-q6_k", "gguf-q8_0"
Q41, Q2K, Q5K, IQ4, IQ1, IQ2, TQ1 = (
    "gguf-q4_1", "gguf-q2_k", "gguf-q5_k_m", "gguf-iq4_nl", "gguf-iq1_s-imat", "gguf-iq2_xxs-imat",
    "gguf-tq1_0",
)  # fmt: skip
MXFP4, NVFP4, SPLIT = "gguf-mxfp4", "gguf-nvfp4", "gguf-split-q4_k_m"
UP, DOWN = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"
HALF_AT = {Q4: (18, 0), Q41: (20, 0), Q5: (22, 0), Q8: (34, 0), Q2K: (84, 80), Q4K: (144, 0),
           Q5K: (176, 0), Q6: (210, 208), IQ4: (18, 0), IQ1: (50, 0), IQ2: (66, 0), TQ1: (54, 52)}  # fmt: skip
"""Folder -> bytes of a block of ffn_up and where its half-precision scale lies."""


def half(folder: str, bits: int, block: int = 40) -> Any:
    size, at = HALF_AT[folder]
    return block_bytes(UP, block * size + at, struct.pack("<H", bits))


def tensor(name: str, **keys: Any) -> Any:
    def change(file: GgufFile) -> None:
        for attribute, value in keys.items():
            setattr(file.tensor(name), attribute, value)

    return gguf(change)


def moved(shift: int) -> Any:
    """Tensors after the fifth lie `shift` bytes further than their sizes say; no byte is added."""

    def change(file: GgufFile) -> None:
        running = 0
        for number, item in enumerate(file.tensors):
            item.offset = running + (shift if number > 4 else 0)
            running += len(item.data) + -len(item.data) % file.alignment

    return gguf(change)


def twice(name: str) -> Any:
    def change(file: GgufFile) -> None:
        first = file.tensor(name)
        file.tensors.append(
            Tensor(name=first.name, dims=first.dims, type_id=first.type_id, data=first.data)
        )

    return gguf(change)


def key_twice(name: str) -> Any:
    return gguf(lambda file: file.keys.append(file.key(name)))


def key_gone(name: str) -> Any:
    def change(file: GgufFile) -> None:
        file.keys = [item for item in file.keys if item.name != name]

    return gguf(change)


def without(*names: str) -> Any:
    def change(file: GgufFile) -> None:
        file.tensors = [item for item in file.tensors if item.name not in names]

    return gguf(change)


def dims_field(name: bytes, dims: bytes) -> Any:
    """Overwrite a tensor's dimensions in the header, from n_dims on."""

    def change(data: bytes) -> bytes:
        at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        return data[:at] + dims + data[at + len(dims) :]

    return raw(change)


def string_length(data: bytes) -> bytes:
    name = b"general.name"
    at = data.index(name) + len(name) + 4
    return data[:at] + struct.pack("<Q", 1 << 40) + data[at + 8 :]


def array_length(data: bytes) -> bytes:
    name = b"tokenizer.ggml.token_type"
    at = data.index(name) + len(name) + 4 + 4
    return data[:at] + struct.pack("<Q", 1 << 40) + data[at + 8 :]


def empty_key(file: GgufFile) -> None:
    file.key("general.size_label").name = ""


def cut_row(file: GgufFile) -> None:
    """A row of 250 elements in a type of 32-element blocks."""
    file.tensor(UP).dims = [250, 512]


def fewer_tokens(file: GgufFile) -> None:
    """The embedding one row short of the token list."""
    item = file.tensor("token_embd.weight")
    item.dims = [item.dims[0], item.dims[1] - 1]
    item.data = item.data[: GGML_TYPES[item.type_id].nbytes(tuple(item.dims))]


def turned(name: str) -> Any:
    def change(file: GgufFile) -> None:
        file.tensor(name).dims.reverse()

    return gguf(change)


def filled(data: bytes | None) -> Any:
    def change(file: GgufFile) -> None:
        item = file.tensor(UP)
        item.data = (data or b"\0") * (len(item.data) // len(data or b"\0"))

    return gguf(change)


def noise(count: int) -> bytes:
    return np.random.default_rng(2).integers(0, 256, count, dtype=np.uint8).tobytes()


def orig_shape(file: GgufFile) -> None:
    raw_value = struct.pack("<iQ", 5, 3) + struct.pack("<3i", 512, 16, 17)
    file.keys.append(
        type(file.keys[0])(name=f"comfy.gguf.orig_shape.{UP}", type_id=9, raw=raw_value)
    )


def byte_dims(file: GgufFile) -> None:
    """Norms of both layers quantized to Q8_0, their byte count saved as their length."""
    for layer in (0, 1):
        item = file.tensor(f"blk.{layer}.attn_norm.weight")
        item.dims, item.type_id, item.data = [272], 8, (b"\x00\x20" + bytes(32)) * 8 + bytes(17)
        item.data = (b"\x00\x20" + bytes(range(32))) * 8 + (b"\x00\x20" + bytes(32))[:18]


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.gguf"))


def part(number: int, change: Any) -> Any:
    def edit(folder: Path) -> None:
        path = parts(folder)[number]
        file = GgufFile.read(path)
        change(file)
        file.write(path)

    return edit


def part_key(number: int, name: str, value: int, type_id: int) -> Any:
    return part(number, lambda file: file.put(name, type_id, value))


def renamed_total(folder: Path) -> None:
    for path in parts(folder):
        path.rename(folder / path.name.replace("-of-00003", "-of-00004"))


def shared_name(folder: Path) -> None:
    """The second part holds a tensor of the third once more."""
    second, third = GgufFile.read(parts(folder)[1]), GgufFile.read(parts(folder)[2])
    second.tensors.append(third.tensors[0])
    second.write(parts(folder)[1])


CASES: tuple[Case, ...] = (
    Case(Q4, "magic of zeros", "GG-HDR DEAD-PLANE", "violation", ".gguf", raw(lambda d: bytes(4) + d[4:])),
    Case(Q8, "first megabyte zero", "GG-HDR DEAD-PLANE", "violation", ".gguf",
         raw(lambda d: bytes(1 << 20) + d[1 << 20 :])),
    Case(Q6, "version 9", "GG-HDR", "violation", ".gguf", gguf(lambda f: setattr(f, "version", 9))),
    Case(Q5, "version 0", "GG-HDR", "violation", ".gguf", gguf(lambda f: setattr(f, "version", 0))),
    Case(Q41, "an older container", "GG-HDR", "violation", ".gguf", raw(lambda d: b"tjgg" + d[4:])),
    Case(IQ4, "empty file", "GG-HDR", "violation", ".gguf", raw(lambda _: b"")),
    Case(TQ1, "only the header", "GG-BOUNDS GG-HDR", "violation", "", raw(lambda d: d[:80_000])),
    Case(IQ1, "header cut in its keys", "GG-HDR GG-DIMS", "violation", ".gguf", raw(lambda d: d[:500])),
    Case(Q4, "4 KiB missing", "GG-BOUNDS", "violation", "blk.1", raw(lambda d: d[:-4096])),
    Case(MXFP4, "half missing", "GG-BOUNDS", "violation", "blk.", raw(lambda d: d[: len(d) // 2])),
    Case(Q5K, "an offset past the end", "GG-BOUNDS", "violation", UP, tensor(UP, offset=1 << 40)),
    Case(Q8, "regions 4 KiB too short", "GG-REGION", "violation", "blk.0", moved(-4096)),
    Case(NVFP4, "an offset off the alignment", "GG-REGION", "violation", "blk.0", moved(4)),
    Case(Q6, "a hole of 4 KiB between tensors", "GG-REGION GG-BOUNDS", "violation", "blk.", moved(4096)),
    Case(Q4, "five dimensions", "GG-DIMS GG-HDR", "violation", "", dims_field(UP.encode(), struct.pack("<I", 5))),
    Case(Q4, "a million dimensions", "GG-DIMS GG-HDR", "violation", "",
         dims_field(UP.encode(), struct.pack("<I", 10**6))),
    Case(Q41, "a dimension of zero", "GG-DIMS", "violation", UP, tensor(UP, dims=[256, 0])),
    Case(Q5, "a negative dimension", "GG-DIMS", "violation", UP, tensor(UP, dims=[256, -512])),
    Case(Q8, "dimensions that overflow", "GG-DIMS", "violation", UP, tensor(UP, dims=[2**62, 8])),
    Case(Q6, "a row that is no whole number of blocks", "GG-DIMS", "violation", UP, gguf(cut_row)),
    Case(Q2K, "a string longer than the file", "GG-DIMS GG-HDR", "violation", "", raw(string_length)),
    Case(Q4K, "an array longer than the file", "GG-DIMS GG-HDR", "violation", "", raw(array_length)),
    Case(Q4, "an empty key", "GG-DIMS", "violation", "", gguf(empty_key)),
    Case(Q8, "alignment 24", "GG-ALIGN", "violation", ".gguf", key("general.alignment", 24)),
    Case(Q4, "alignment 0", "GG-ALIGN", "violation", ".gguf", key("general.alignment", 0)),
    Case(Q8, "one tensor twice", "GG-DUP", "violation", UP, twice(UP)),
    Case(Q4K, "one key twice", "GG-DUP", "violation", "llama.block_count", key_twice("llama.block_count")),
    Case(Q4, "type 200", "GG-TYPE", "disagreement", UP, tensor(UP, type_id=200)),
    Case(Q5, "type 31, withdrawn", "GG-TYPE", "warning", UP, tensor(UP, type_id=31)),
    Case(Q8, "type 4, withdrawn", "GG-TYPE", "warning", UP, tensor(UP, type_id=4)),
    # split sets
    Case(SPLIT, "second part missing", "GG-SPLIT", "violation", "", lambda d: parts(d)[1].unlink()),
    Case(SPLIT, "last part missing", "GG-SPLIT", "violation", "", lambda d: parts(d)[2].unlink()),
    Case(SPLIT, "second part empty", "GG-SPLIT GG-HDR", "violation", "00002",
         lambda d: parts(d)[1].write_bytes(b"")),
    Case(SPLIT, "third part counts four", "GG-SPLIT", "violation", "00003", part_key(2, "split.count", 4, 2)),
    Case(SPLIT, "two parts of one number", "GG-SPLIT", "violation", "00003", part_key(2, "split.no", 1, 2)),
    Case(SPLIT, "tensor count of the set wrong", "GG-SPLIT", "violation", "", part_key(0, "split.tensors.count", 99, 5)),
    Case(SPLIT, "names say four parts", "GG-SPLIT", "violation", "", renamed_total),
    Case(SPLIT, "one tensor in two parts", "GG-DUP", "violation", "blk", shared_name),
    Case(SPLIT, "third part cut short", "GG-BOUNDS", "violation", "blk", raw(lambda d: d[:-5000], 2)),
    # metadata against dimensions
    *(Case(f, "one block more than stored", "GG-META", "violation", "block_count", key("llama.block_count", 3))
      for f in (Q4, NVFP4)),
    Case(Q8, "one block less than stored", "GG-META", "violation", "block_count", key("llama.block_count", 1)),
    Case(Q6, "embedding_length 512", "GG-META", "violation", "embedding_length", key("llama.embedding_length", 512)),
    Case(IQ2, "feed_forward_length 640", "GG-META", "violation", "feed_forward_length",
         key("llama.feed_forward_length", 640)),
    Case(Q5K, "two key heads", "GG-META", "violation", "head_count_kv", key("llama.attention.head_count_kv", 2)),
    Case(Q41, "eight heads", "GG-META", "violation", "head_count", key("llama.attention.head_count", 8)),
    Case(MXFP4, "four experts declared", "GG-META", "violation", "expert_count", key("llama.expert_count", 4)),
    Case(Q4, "embedding_length missing", "GG-META", "violation", "embedding_length",
         key_gone("llama.embedding_length")),
    Case(TQ1, "block_count missing", "GG-META", "violation", "block_count", key_gone("llama.block_count")),
    Case(Q8, "an embedding row short of the tokens", "GG-META", "violation", "token", gguf(fewer_tokens)),
    Case(Q4K, "ffn_up of layer 1 missing", "SUBMODULE GG-META GG-COUNT", "violation", "ffn_up",
         without("blk.1.ffn_up.weight")),
    Case(Q6, "ffn_down stored with turned dimensions", "GG-META ORIENT", "violation", "ffn_down", turned(DOWN)),
    # labels
    Case(Q4, "Q4_0 labelled Q8_0", "GG-LABEL", "warning", "file_type", key("general.file_type", 7)),
    Case(Q8, "Q8_0 labelled Q4_0", "GG-LABEL", "warning", "file_type", key("general.file_type", 2)),
    Case(Q5, "Q5_0 labelled Q6_K", "GG-LABEL", "warning", "file_type", key("general.file_type", 18)),
    Case(Q4K, "Q4_K_M labelled F16", "GG-LABEL", "warning", "file_type", key("general.file_type", 1)),
    Case(IQ1, "IQ1_S labelled Q2_K", "GG-LABEL", "warning", "file_type", key("general.file_type", 10)),
    Case(Q8, "Q8_0 named Q4_K_M", "GG-LABEL", "warning", "gguf",
         lambda d: gguf_path(d).rename(d / "smol2l-h256-Q4_K_M.gguf")),
    Case(Q8, "byte counts of norms saved as lengths", "GG-RESHAPE GG-META", "violation", "attn_norm", gguf(byte_dims)),
    Case(Q4, "orig_shape of other elements", "GG-RESHAPE", "violation", "ffn_up", gguf(orig_shape)),
    # values
    *(Case(f, "one NaN block scale", "SCALE-VALUE", "violation", "ffn_up", half(f, 0x7E00)) for f in HALF_AT),
    *(Case(f, "one infinite block scale", "SCALE-VALUE", "violation", "ffn_up", half(f, 0x7C00))
      for f in (Q4, Q8, Q4K, IQ2)),
    *(Case(f, "one block scale an outlier", "SCALE-VALUE", "warning", "ffn_up", half(f, 0x7BFF))
      for f in (Q41, Q6, Q5K)),
    Case(Q4K, "a NaN minimum", "SCALE-VALUE", "violation", "ffn_up", block_bytes(UP, 40 * 144 + 2, b"\x00\x7e")),
    Case(MXFP4, "one E8M0 byte of 255", "SCALE-VALUE", "violation", "ffn_up", block_bytes(UP, 17 * 40, b"\xff")),
    Case(NVFP4, "one E4M3 byte of 7F", "SCALE-VALUE", "violation", "ffn_up", block_bytes(UP, 36 * 40, b"\x7f")),
    *(Case(f, "all bytes zero", "DEAD-PLANE", "violation", "ffn_up", filled(None)) for f in (Q4, Q8, Q4K, MXFP4)),
    *(Case(f, "8 KiB of zero bytes", "DEAD-PLANE", "warning", "ffn_up", block_bytes(UP, 8192, bytes(8192)))
      for f in (Q41, Q6, Q5K, NVFP4, IQ2)),
    *(Case(f, "8 KiB of noise", "DEAD-PLANE", "warning", "ffn_up", block_bytes(UP, 8160, noise(8192)))
      for f in (Q8, Q6, Q4K)),
)  # fmt: skip
