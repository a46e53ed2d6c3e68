"""GGUF files in memory, to be changed and written again, well formed or not (little-endian only)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec

from quantscope.containers.ggml_types import GGML_TYPES

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_SIZES = {U8: 1, I8: 1, U16: 2, I16: 2, U32: 4, I32: 4, F32: 4, BOOL: 1, U64: 8, I64: 8, F64: 8}
_CODES = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q",
    I64: "q", F64: "d",
}  # fmt: skip


class Key(msgspec.Struct, kw_only=True):
    """One key with its type and its value's bytes."""

    name: str
    type_id: int
    raw: bytes


class Tensor(msgspec.Struct, kw_only=True):
    """One tensor; dims are in file order, the fastest first."""

    name: str
    dims: list[int]
    type_id: int
    data: bytes
    offset: int | None = None
    """Written as it stands where it is set; the aligned running sum otherwise."""


def text(value: str) -> bytes:
    """A string as GGUF stores it."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_of(type_id: int, value: Any) -> bytes:
    """A scalar or a string as GGUF stores it."""
    return text(value) if type_id == STRING else struct.pack("<" + _CODES[type_id], value)


class GgufFile(msgspec.Struct, kw_only=True):
    """A file: keys, tensors, version and alignment."""

    keys: list[Key]
    tensors: list[Tensor]
    version: int = 3
    alignment: int = 32
    magic: bytes = b"GGUF"

    @classmethod
    def read(cls, path: Path) -> GgufFile:
        """Read a sound little-endian file."""
        return _Parser(path.read_bytes()).file()

    def key(self, name: str) -> Key:
        """A key by name.

        Raises:
            KeyError: there is none.
        """
        for key in self.keys:
            if key.name == name:
                return key
        raise KeyError(name)

    def put(self, name: str, type_id: int, value: Any) -> None:
        """Set or add a scalar or string key."""
        raw = value_of(type_id, value)
        for key in self.keys:
            if key.name == name:
                key.type_id, key.raw = type_id, raw
                return
        self.keys.append(Key(name=name, type_id=type_id, raw=raw))

    def drop(self, name: str) -> None:
        """Remove a key or a tensor."""
        self.keys = [key for key in self.keys if key.name != name]
        self.tensors = [tensor for tensor in self.tensors if tensor.name != name]

    def tensor(self, name: str) -> Tensor:
        """A tensor by name.

        Raises:
            KeyError: there is none.
        """
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def to_bytes(self, *, pad_tail: bool = True) -> bytes:
        """The file's bytes."""
        out = bytearray(self.magic)
        out += struct.pack("<Iqq", self.version, len(self.tensors), len(self.keys))
        for key in self.keys:
            out += text(key.name) + struct.pack("<i", key.type_id) + key.raw
        running = 0
        for tensor in self.tensors:
            offset = running if tensor.offset is None else tensor.offset
            out += text(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += b"".join(struct.pack("<q", extent) for extent in tensor.dims)
            out += struct.pack("<iQ", tensor.type_id, offset)
            running += len(tensor.data) + -len(tensor.data) % self.alignment
        out += b"\0" * (-len(out) % self.alignment)
        for number, tensor in enumerate(self.tensors):
            out += tensor.data
            if pad_tail or number + 1 < len(self.tensors):
                out += b"\0" * (-len(tensor.data) % self.alignment)
        return bytes(out)

    def write(self, path: Path, *, pad_tail: bool = True) -> None:
        """Write the file."""
        path.write_bytes(self.to_bytes(pad_tail=pad_tail))


class _Parser:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def _take(self, form: str) -> Any:
        values = struct.unpack_from("<" + form, self._raw, self._at)
        self._at += struct.calcsize("<" + form)
        return values[0] if len(values) == 1 else values

    def _text(self) -> str:
        length = self._take("Q")
        raw = self._raw[self._at : self._at + length]
        self._at += length
        return raw.decode()

    def _skip(self, type_id: int) -> None:
        if type_id == STRING:
            self._text()
        elif type_id == ARRAY:
            inner, count = self._take("iQ")
            if inner in _SIZES:
                self._at += _SIZES[inner] * count
            else:
                for _ in range(count):
                    self._skip(inner)
        else:
            self._at += _SIZES[type_id]

    def file(self) -> GgufFile:
        self._at = 4
        version, n_tensors, n_keys = self._take("Iqq")
        keys = []
        for _ in range(n_keys):
            name, type_id = self._text(), self._take("i")
            start = self._at
            self._skip(type_id)
            keys.append(Key(name=name, type_id=type_id, raw=self._raw[start : self._at]))
        heads = []
        for _ in range(n_tensors):
            name = self._text()
            dims = [self._take("q") for _ in range(self._take("I"))]
            type_id, offset = self._take("iQ")
            heads.append((name, dims, type_id, offset))
        alignment = next(
            (struct.unpack("<I", k.raw)[0] for k in keys if k.name == "general.alignment"), 32
        )
        base = self._at + -self._at % alignment
        tensors = []
        for name, dims, type_id, offset in heads:
            size = GGML_TYPES[type_id].nbytes(tuple(dims)) or 0
            data = self._raw[base + offset : base + offset + size]
            tensors.append(Tensor(name=name, dims=dims, type_id=type_id, data=data))
        return GgufFile(keys=keys, tensors=tensors, version=version, alignment=alignment)
