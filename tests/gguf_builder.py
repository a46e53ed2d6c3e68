"""GGUF files for tests, written by the gguf package; block bytes are random, half fields tame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from quantscope.decode.ggml import BLOCK_TYPES

DECODED_BY_GGUF = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ2_XXS", "IQ2_XS",
    "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
)  # fmt: skip
"""Types that gguf-py 0.19 dequantizes."""


def random_blocks(type_name: str, n_blocks: int, seed: int = 0) -> Any:
    """uint8 [n_blocks, bytes]: random codes, half fields small and finite, E8M0 bytes in the middle."""
    block = BLOCK_TYPES[type_name]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (n_blocks, block.type_bytes), dtype=np.uint8)
    for field in block.fields:
        if field.name in ("d", "dmin", "m", "s") and field.nbytes == 2:
            halves = (rng.standard_normal(n_blocks) * 0.1).astype("<f2")
            data[:, field.byte_offset : field.byte_offset + 2] = halves.view(np.uint8).reshape(
                -1, 2
            )
        elif field.name == "e":
            data[:, field.byte_offset] = rng.integers(110, 130, n_blocks)
    if type_name == "IQ1_M":  # the half is spread over the top nibbles: exponent bits kept small
        data[:, 55] = (data[:, 55] & 0x0F) | 0x20
    return data


def write_gguf(
    path: Path,
    tensors: dict[str, tuple[str, Any]],
    *,
    architecture: str = "llama",
    keys: dict[str, int | str] | None = None,
    big_endian: bool = False,
) -> Path:
    """Write tensors given as (ggml type name, array).

    Block types take uint8 [..., bytes of a row]; floats and integers take their own arrays.
    """
    endianess = gguf.GGUFEndian.BIG if big_endian else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(str(path), architecture, endianess=endianess)
    for key, value in (keys or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    for name, (type_name, array) in tensors.items():
        kind = gguf.GGMLQuantizationType[type_name]
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def retype(path: Path, name: str, type_name: str) -> Path:
    """Give a 2-D tensor that was written as I8 bytes its block type: type id and row length in the header."""
    block = BLOCK_TYPES[type_name]
    blob = bytearray(path.read_bytes())
    at = blob.index(name.encode()) + len(name) + 4
    row_bytes = int.from_bytes(blob[at : at + 8], "little")
    columns = row_bytes // block.type_bytes * block.block_size
    blob[at : at + 8] = columns.to_bytes(8, "little")
    blob[at + 16 : at + 20] = block.type_id.to_bytes(4, "little")
    path.write_bytes(blob)
    return path


def write_blocks(path: Path, name: str, type_name: str, data: Any) -> Path:
    """Write one tensor of any block type, also of those that the gguf package does not know."""
    write_gguf(path, {name: ("I8", data.view(np.int8))})
    return retype(path, name, type_name)


def weight(type_name: str, rows: int, blocks_per_row: int, seed: int = 0) -> Any:
    """uint8 [rows, bytes of a row] of random blocks."""
    return random_blocks(type_name, rows * blocks_per_row, seed).reshape(rows, -1)


def by_gguf(type_name: str, data: Any) -> Any:
    """The gguf package's own float32 values of rows of blocks."""
    return gguf.dequantize(data, gguf.GGMLQuantizationType[type_name])
