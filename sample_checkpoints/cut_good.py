"""Cut the good sample checkpoints from full ones: q, k and v of both layers, norms, 16 rows of embedding.

    python sample_checkpoints/cut_good.py SOURCE_FOLDER [NAME...]

SOURCE_FOLDER holds one folder a producer, each with the producer's files and PROVENANCE.json. Planes are kept
byte for byte; only whole tensors are left out, and rows of the embedding and of token lists. The weights are
those of SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0), leading rows and columns of its first two layers.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

from quantscope.samples.folder_edit import weights
from quantscope.samples.gguf_edit import GgufFile, text
from quantscope.samples.st_edit import StFile

HERE = Path(__file__).parent
VOCABULARY = 16
LICENCE = "Apache-2.0 (weights of SmolLM2-135M-Instruct, HuggingFaceTB)"

QKV = r"self_attn\.[qkv]_proj"
KV = r"self_attn\.[kv]_proj"
GGUF_QKV = r"attn_[qkv]|ffn_up"

WORDS = {
    QKV: "q, k and v",
    KV: "k and v",
    GGUF_QKV: "q, k, v and the up projection",
    r"attn_[kv]": "k and v",
}

GOOD: dict[str, tuple[str, str]] = {
    "smol-gptq-w4": ("gptqmodel-w4g128-asym-v1", QKV),
    "smol-gptq-v2-w4": ("gptqmodel-w4g128-asym-v2", KV),
    "smol-gptq-act-order": ("gptqmodel-w4g128-sym-descact", KV),
    "smol-gptq-3bit": ("gptqmodel-w3g128-sym", KV),
    "smol-autogptq-w4": ("autogptq-w4g128-asym", KV),
    "smol-awq-w4": ("autoawq-gemm-g128", KV),
    "smol-ct-w4-sharded": ("llmcompressor-w4a16-sharded", QKV),
    "smol-ct-w4-asym": ("llmcompressor-w4a16-asym-g128", KV),
    "smol-ct-int8": ("llmcompressor-w8a8-int", KV),
    "smol-ct-nvfp4": ("llmcompressor-nvfp4", QKV),
    "smol-ct-mxfp4": ("llmcompressor-mxfp4", KV),
    "smol-ct-fp8-block": ("llmcompressor-fp8-block", KV),
    "smol-ct-kv-fp8": ("llmcompressor-kv-fp8-w4a16", KV),
    "smol-modelopt-fp8": ("modelopt-fp8", QKV),
    "smol-bnb-nf4": ("bitsandbytes-nf4-dq", KV),
    "smol-mlx-q4": ("mlx-q4-g64", KV),
    "smol-gguf-q4_k_m": ("gguf-q4_k_m", GGUF_QKV),
    "smol-gguf-mxfp4": ("gguf-mxfp4", r"attn_[kv]"),
}
"""Name -> (source folder, projections that are kept)."""


def main(arguments: list[str]) -> None:
    source, wanted = Path(arguments[0]), arguments[1:]
    for name, (folder, keep) in GOOD.items():
        if not wanted or name in wanted:
            cut(source / folder, HERE / name, keep)
            size = sum(p.stat().st_size for p in (HERE / name).iterdir())
            print(f"{name:24} {size:8}")


def cut(source: Path, target: Path, keep: str) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    if list(source.glob("*.gguf")):
        for path in source.glob("*.gguf"):
            cut_gguf(path, target / path.name, keep)
    else:
        cut_safetensors(source, target, keep)
        cut_configs(source, target, keep)
    (target / "PROVENANCE.json").write_text(json.dumps(provenance(source, keep), indent=1) + "\n")


def cut_safetensors(source: Path, target: Path, keep: str) -> None:
    weight_map: dict[str, str] = {}
    total = 0
    for path in weights(source):
        file = StFile.read(path)
        kept = {name: item for name, item in file.tensors.items() if is_kept(name, keep)}
        for name, item in kept.items():
            module = name.rpartition(".")[0]
            if module.endswith(("embed_tokens", "lm_head")):
                row = len(item.data) // item.shape[0]
                item.shape[0] = VOCABULARY
                item.data = item.data[: row * VOCABULARY]
            weight_map[name] = path.name
            total += len(item.data)
        metadata = {k: v for k, v in file.metadata.items() if is_kept(k, keep) or "." not in k}
        StFile(tensors=kept, metadata=metadata).write(target / path.name)
    for path in source.glob("*.index.json"):
        index = json.loads(path.read_text())
        index["metadata"]["total_size"] = total
        if "total_parameters" in index["metadata"]:
            del index["metadata"]["total_parameters"]
        index["weight_map"] = dict(sorted(weight_map.items()))
        (target / path.name).write_text(json.dumps(index, indent=1) + "\n")


def is_kept(name: str, keep: str) -> bool:
    if re.search(r"\.layers\.\d+\.", name) is None:
        return True
    return (
        "layernorm" in name
        or re.search(keep, name) is not None
        or name.endswith(("k_scale", "v_scale"))
    )


def cut_configs(source: Path, target: Path, keep: str) -> None:
    for path in sorted([*source.glob("*.json"), *source.glob("*.yaml")]):
        if path.name in ("EXPECTED.json", "PROVENANCE.json", "generation_config.json"):
            continue
        if "index" in path.name or path.name.startswith(("tokenizer", "special_tokens", "vocab")):
            continue
        if path.name == "config.json":
            config: dict[str, Any] = json.loads(path.read_text())
            config["vocab_size"] = VOCABULARY
            (target / path.name).write_text(json.dumps(config, indent=1) + "\n")
        else:
            shutil.copyfile(path, target / path.name)


def cut_gguf(source: Path, target: Path, keep: str) -> None:
    file = GgufFile.read(source)
    file.tensors = [
        t
        for t in file.tensors
        if not t.name.startswith("blk.") or "norm" in t.name or re.search(keep, t.name)
    ]
    embedding = file.tensor("token_embd.weight")
    row = len(embedding.data) // embedding.dims[1]
    embedding.dims[1] = VOCABULARY
    embedding.data = embedding.data[: row * VOCABULARY]
    file.keys = [
        k
        for k in file.keys
        if not k.name.startswith("tokenizer.")
        or k.name in ("tokenizer.ggml.model", "tokenizer.ggml.tokens")
    ]
    tokens = file.key("tokenizer.ggml.tokens")
    kind, _ = struct.unpack("<iQ", tokens.raw[:12])
    at, kept = 12, []
    for _ in range(VOCABULARY):
        (length,) = struct.unpack_from("<Q", tokens.raw, at)
        kept.append(tokens.raw[at + 8 : at + 8 + length].decode())
        at += 8 + length
    tokens.raw = struct.pack("<iQ", kind, VOCABULARY) + b"".join(map(text, kept))
    for key in file.keys:
        if key.name.endswith(".vocab_size"):
            key.raw = struct.pack("<I", VOCABULARY)
    file.write(target)


def provenance(source: Path, keep: str) -> dict[str, Any]:
    known = json.loads((source / "PROVENANCE.json").read_text())
    return {
        "producer": known["producer"],
        "version": known["version"],
        "settings": known["settings"],
        "licence": LICENCE,
        "what": f"{known['producer']} {known['version']}: {WORDS[keep]} of both layers, norms, "
        f"{VOCABULARY} rows of embedding",
    }


if __name__ == "__main__":
    main(sys.argv[1:])
