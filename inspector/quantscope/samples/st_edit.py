"""Safetensors files in memory, to be changed and written again, well formed or not.

The writer here makes what it is told to make: no rule of the format is enforced, so that broken samples can
be written too.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

Header = dict[str, Any]

NUMPY: dict[str, str] = {
    "BOOL": "u1", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    "F8_E4M3FNUZ": "u1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2", "I32": "<i4",
    "U32": "<u4", "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
"""Stored dtype -> numpy dtype; small floats and BF16 as their bit patterns."""


class Entry(msgspec.Struct, kw_only=True):
    """One tensor."""

    dtype: str
    shape: list[int]
    data: bytes

    def array(self) -> NDArray[Any]:
        """A writable copy in the storage type."""
        return np.frombuffer(self.data, dtype=NUMPY[self.dtype]).reshape(self.shape).copy()

    def put(self, array: NDArray[Any]) -> None:
        """Store an array of the storage type; the shape follows it."""
        self.shape = list(array.shape)
        self.data = np.ascontiguousarray(array, dtype=NUMPY[self.dtype]).tobytes()


def entry(dtype: str, array: NDArray[Any]) -> Entry:
    """An array as a tensor of a dtype."""
    made = Entry(dtype=dtype, shape=list(array.shape), data=b"")
    made.put(array)
    return made


class StFile(msgspec.Struct, kw_only=True):
    """A file: tensors in file order and the `__metadata__` strings."""

    tensors: dict[str, Entry]
    metadata: dict[str, str] = {}

    @classmethod
    def read(cls, path: Path) -> StFile:
        """Read a sound file."""
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        base = 8 + length
        placed = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        return cls(
            tensors={
                name: Entry(
                    dtype=item["dtype"],
                    shape=item["shape"],
                    data=raw[base + item["data_offsets"][0] : base + item["data_offsets"][1]],
                )
                for name, item in placed
            },
            metadata=metadata,
        )

    def header(self) -> Header:
        """The header of the tensors as they are."""
        header: Header = {"__metadata__": dict(self.metadata)} if self.metadata else {}
        offset = 0
        for name, item in self.tensors.items():
            header[name] = {
                "dtype": item.dtype,
                "shape": list(item.shape),
                "data_offsets": [offset, offset + len(item.data)],
            }
            offset += len(item.data)
        return header

    def to_bytes(self, change: Callable[[Header], None] | None = None) -> bytes:
        """The file's bytes, the header changed by `change` before it is written."""
        header = self.header()
        if change is not None:
            change(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        data = b"".join(item.data for item in self.tensors.values())
        return struct.pack("<Q", len(text)) + text + data

    def write(self, path: Path, change: Callable[[Header], None] | None = None) -> None:
        """Write the file."""
        path.write_bytes(self.to_bytes(change))
