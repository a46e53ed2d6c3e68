"""The fixtures for public reports about GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders as b
import numpy as np
from list_a_fixtures import ROWS, report
from quantscope.samples.gguf_edit import ARRAY, STRING, U32, Key, Tensor, text, value_of


def written(folder: Path, file: Any, name: str = "model-Q8_0.gguf", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file.write(folder / name, **options)
    return folder


def tokens(count: int) -> Key:
    raw = value_of(U32, STRING) + np.array(count, "<u8").tobytes()
    return Key(
        name="tokenizer.ggml.tokens",
        type_id=ARRAY,
        raw=raw + b"".join(text(f"t{i}") for i in range(count)),
    )


@report("A105", "GG-META", "violation", "tokenizer.ggml.tokens")
def a105(folder: Path) -> Path:
    file = b.small_gguf()
    file.keys.append(tokens(65))
    return written(folder, file)


@report("A106", "GG-DUP", "violation", "blk.0.attn_q.weight")
def a106(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(
        Tensor(name="blk.0.attn_q.weight", dims=[256, 256], type_id=8, data=b.q8_0(256, 256, 5))
    )
    return written(folder, file)


@report("A107", "GG-BOUNDS", "violation", "blk.0")
def a107(folder: Path) -> Path:
    written(folder, b.small_gguf())
    path = folder / "model-Q8_0.gguf"
    path.write_bytes(path.read_bytes()[:-4096])
    return folder


def poke(name: str, at: int, data: bytes, **keys: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = b.small_gguf(**keys)
        tensor = file.tensor(name)
        raw = bytearray(tensor.data)
        raw[at : at + len(data)] = data
        tensor.data = bytes(raw)
        return written(folder, file)

    return make


ROWS.append(
    (
        "A108",
        "SCALE-VALUE",
        "violation",
        "ffn_up",
        poke("blk.0.ffn_up.weight", 34 * 48, b"\x00\x7e"),
    )
)


@report("A109", "GG-SPLIT", "violation", "part1of2")
def a109(folder: Path) -> Path:
    raw = b.small_gguf().to_bytes()
    folder.mkdir()
    (folder / "model.gguf.part1of2").write_bytes(raw[: len(raw) // 2])
    return folder / "model.gguf.part1of2"


@report("A113", "GG-META", "violation", "feed_forward_length")
def a113(folder: Path) -> Path:
    return written(folder, b.small_gguf(llama__feed_forward_length=2048))


@report("A115", "GG-TYPE", "warning", "attn_q")
def a115(folder: Path) -> Path:
    file = b.small_gguf()
    tensor = file.tensor("blk.0.attn_q.weight")
    tensor.type_id, tensor.data = 31, b.q4_0(256, 256)
    return written(folder, file)


@report("A115 unknown", "GG-TYPE", "disagreement", "attn_q")
def a115_unknown(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensor("blk.0.attn_q.weight").type_id = 200
    return written(folder, file)


@report("A116", "GG-ALIGN", "note", "gguf")
def a116(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(Tensor(name="blk.0.ffn_norm.weight", dims=[5], type_id=0, data=bytes(20)))
    return written(folder, file, pad_tail=False)


@report("A118", "GG-RESHAPE", "violation", "norm")
def a118(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(
        Tensor(name="blk.0.attn_q_norm.weight", dims=[544], type_id=8, data=b.q8_0(17, 32, 1))
    )
    return written(folder, file)


@report("A119", "GG-HDR", "violation", "gguf")
def a119(folder: Path) -> Path:
    written(folder, b.small_gguf())
    path = folder / "model-Q8_0.gguf"
    raw = path.read_bytes()
    path.write_bytes(bytes(65536) + raw[65536:])
    return folder


@report("A121", "SCALE-VALUE", "violation", "ffn_up_exps")
def a121(folder: Path) -> Path:
    file = b.small_gguf(llama__expert_count=4, llama__expert_used_count=2)
    data = bytearray(b.q8_0(4 * 64, 256))
    for block in range(64 * 8):
        at = (2 * 64 * 8 + block) * 34
        data[at : at + 2] = b"\x00\x7e"
    file.tensors.append(
        Tensor(name="blk.0.ffn_up_exps.weight", dims=[256, 64, 4], type_id=8, data=bytes(data))
    )
    return written(folder, file)


@report("A122", "GG-RESHAPE", "note", "x_pad_token")
def a122(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(Tensor(name="x_pad_token", dims=[256], type_id=0, data=b.f32_bytes(256)))
    return written(folder, file)


@report("A123", "GG-LABEL", "warning", "file_type")
def a123(folder: Path) -> Path:
    tensors = {"token_embd.weight": ([2688, 8], 8, b.q8_0(8, 2688))}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up"):
        tensors[f"blk.0.{name}.weight"] = ([2688, 64], 6 if "v" not in name else 8, b"")
    made = {
        n: (d, t, b.q8_0(d[1], d[0]) if t == 8 else q5_0(d[1], d[0]))
        for n, (d, t, _) in tensors.items()
    }
    file = b.gguf(made, general__file_type=15, llama__embedding_length=2688)
    return written(folder, file, "model-Q4_K_M.gguf")


def q5_0(rows: int, cols: int) -> bytes:
    blocks = b.weights(rows, cols, 2).reshape(-1, 32)
    d = (np.abs(blocks).max(axis=1) / 15).astype("<f2")
    q = np.clip(np.round(blocks / d.astype(np.float32)[:, None]) + 16, 0, 31).astype(np.uint8)
    high = (q >> 4).astype(np.uint32)
    qh = (high << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    low = q & 15
    packed = low[:, :16] | low[:, 16:] << 4
    return np.concatenate(
        [d.view("u1").reshape(-1, 2), qh.view("u1").reshape(-1, 4), packed], axis=1
    ).tobytes()


def dims(*extents: int, type_id: int = 24) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = b.small_gguf()
        file.tensors.insert(3, Tensor(name="odd", dims=list(extents), type_id=type_id, data=b""))
        return written(folder, file)

    return make


ROWS.extend(
    [
        ("A124", "GG-DIMS", "violation", "odd", dims(*[1] * 9)),
        ("A126", "GG-DIMS", "violation", "odd", dims(0, 4)),
        ("A130", "GG-DIMS", "violation", "odd", dims(4194304, 4194304, 1048576, 1)),
        ("A131", "GG-DIMS", "violation", "odd", dims(2**63 - 1, 2)),
    ]
)


@report("A126 key", "GG-DIMS", "violation", "gguf")
def a126_key(folder: Path) -> Path:
    file = b.small_gguf()
    file.keys.append(Key(name="", type_id=U32, raw=value_of(U32, 1)))
    return written(folder, file)


@report("A127", "GG-META", "violation", "embedding_length")
def a127(folder: Path) -> Path:
    return written(folder, b.small_gguf(**{"llama__embedding_length": None}))


@report("A134", "GG-LABEL", "note", "file_type")
def a134(folder: Path) -> Path:
    file = b.small_gguf(general__file_type=2)
    for tensor in file.tensors:
        if tensor.type_id == 8 and tensor.name.startswith("blk"):
            tensor.type_id, tensor.data = 2, b.q4_0(tensor.dims[1], tensor.dims[0])
    down = file.tensor("blk.0.ffn_down.weight")
    blocks = np.frombuffer(down.data, np.uint8).reshape(-1, 18)
    down.data = np.insert(blocks, 2, [[0], [0x20]], axis=1).tobytes()
    down.type_id = 3
    embedding = file.tensor("token_embd.weight")
    embedding.type_id, embedding.data = 14, bytes(210 * 64)
    return written(folder, file, "model-Q4_0.gguf")


@report("A135", "GG-REGION", "violation", "blk.0")
def a135(folder: Path) -> Path:
    file = b.small_gguf()
    running = 0
    for number, tensor in enumerate(file.tensors):
        tensor.offset = running - (2048 if number > 4 else 0)
        running += len(tensor.data) + -len(tensor.data) % 32
    return written(folder, file)


def split(folder: Path, counts: tuple[int, ...], empty: int | None = None) -> Path:
    file = b.small_gguf()
    folder.mkdir()
    share_of = -(-len(file.tensors) // 3)
    for number in range(3):
        part = b.gguf({})
        part.keys = list(file.keys) if number == 0 else []
        part.tensors = file.tensors[number * share_of : (number + 1) * share_of]
        for name, kind, value in (
            ("split.no", 2, number),
            ("split.count", 2, counts[number]),
            ("split.tensors.count", 5, len(file.tensors)),
        ):
            part.keys.append(Key(name=name, type_id=kind, raw=value_of(kind, value)))
        path = folder / f"model-Q8_0-{number + 1:05d}-of-00003.gguf"
        part.write(path)
        if number == empty:
            path.write_bytes(b"")
    return folder


ROWS.extend(
    [
        ("A136", "GG-SPLIT", "violation", "00002-of-00003", lambda f: split(f, (3, 3, 3), empty=1)),
        ("A138", "GG-SPLIT", "violation", "of-00003", lambda f: split(f, (3, 3, 4))),
    ]
)
