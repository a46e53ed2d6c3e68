"""Small checkpoints written byte by byte, for tests; nothing here packs codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {
    "u1": "U8",
    "i1": "I8",
    "u2": "U16",
    "i2": "I16",
    "u4": "U32",
    "i4": "I32",
    "i8": "I64",
    "f2": "F16",
    "f4": "F32",
    "b1": "BOOL",
}


class Raw:
    """Bytes with a dtype word that numpy has no type for (BF16, F8_E4M3, ...)."""

    def __init__(self, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        self.dtype, self.shape, self.data = dtype, shape, data


def raw(dtype: str, array: Any) -> Raw:
    """An array of bytes or bit patterns under another dtype word."""
    array = np.asarray(array)
    return Raw(dtype, array.shape, np.ascontiguousarray(array).tobytes())


def bf16(values: Any) -> Raw:
    """float32 values, cut to bfloat16 (exact where they fit)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16
    return Raw("BF16", bits.shape, bits.astype("<u2").tobytes())


def as_raw(value: Any) -> Raw:
    """What the file stores of a value."""
    if isinstance(value, Raw):
        return value
    array = np.asarray(value)
    return Raw(DTYPES[array.dtype.str[1:]], array.shape, np.ascontiguousarray(array).tobytes())


def write_safetensors(
    path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None = None
) -> Path:
    """Write a safetensors file with the tensors in the order given."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, value in tensors.items():
        stored = as_raw(value)
        end = len(body) + len(stored.data)
        header[name] = {
            "dtype": stored.dtype,
            "shape": list(stored.shape),
            "data_offsets": [len(body), end],
        }
        body += stored.data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def write_checkpoint(
    folder: Path,
    tensors: dict[str, Any],
    config: dict[str, Any] | None = None,
    metadata: dict[str, str] | None = None,
    **files: dict[str, Any],
) -> Path:
    """Write model.safetensors, config.json and any other JSON file (`quantize_config={...}`)."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors, metadata)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def read_safetensors_values(path: Path) -> dict[str, Any]:
    """Every tensor of a safetensors file as numpy; BF16 widened to float32, small floats as bytes."""
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    found: dict[str, Any] = {}
    kinds = {word: code for code, word in DTYPES.items()}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        data = blob[8 + size + begin : 8 + size + end]
        if entry["dtype"] == "BF16":
            wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
            array = wide.view(np.float32)
        else:
            array = np.frombuffer(data, "<" + kinds.get(entry["dtype"], "u1"))
        found[name] = array.reshape(entry["shape"])
    return found
