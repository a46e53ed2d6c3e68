"""Small checkpoints for tickets: stored tensors copied byte for byte into a safetensors or GGUF file.

Sources: safetensors (safetensors/src/tensor.rs), ggml docs/gguf.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence

from quantscope.containers.gguf_kv import Cursor, HeaderEndError, read_value
from quantscope.containers.records import OpenedFile, StoredTensor
from quantscope.containers.source import ByteSource, SourceSet
from quantscope.errors import ContainerError

CHUNK_BYTES = 1 << 22
MAX_KEY_BYTES = 4096
"""A longer GGUF key-value (a vocabulary) is left out."""
ALIGNMENT = 32
"""GGUF's alignment where `general.alignment` says nothing."""


def tensor_chunks(sources: SourceSet, tensor: StoredTensor) -> Iterator[bytes]:
    """A stored tensor's bytes as they are."""
    source = sources[tensor.file_id]
    for start in range(0, tensor.nbytes, CHUNK_BYTES):
        yield source.read_at(tensor.byte_offset + start, min(CHUNK_BYTES, tensor.nbytes - start))


def safetensors_chunks(
    tensors: Sequence[StoredTensor], metadata: Mapping[str, str], sources: SourceSet
) -> Iterator[bytes]:
    """A safetensors file of the tensors, without gaps, the header padded to eight bytes."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", errors="surrogatepass"
    )
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for tensor in tensors:
        yield from tensor_chunks(sources, tensor)


def gguf_chunks(
    file: OpenedFile, tensors: Sequence[StoredTensor], sources: SourceSet
) -> Iterator[bytes]:
    """A GGUF file of the tensors with the key-values of `file`, in its version and byte order.

    Key-values are copied as they stand; long ones and those of a split set are left out.

    Raises:
        ContainerError: the key-values of `file` cannot be followed.
    """
    mark = "<" if file.byte_order == "little" else ">"
    pairs = list(_key_values(sources[file.file_id], file))
    alignment = file.alignment or ALIGNMENT
    infos, position = [], 0
    for tensor in tensors:
        name = tensor.name.encode("utf-8", errors="surrogatepass")
        dims = tuple(reversed(tensor.shape))
        infos.append(
            struct.pack(f"{mark}Q", len(name))
            + name
            + struct.pack(f"{mark}I{len(dims)}QIQ", len(dims), *dims, tensor.type_id or 0, position)
        )
        position += _padded(tensor.nbytes, alignment)
    head = b"GGUF" + struct.pack(f"{mark}IQQ", max(2, file.version or 3), len(tensors), len(pairs))
    header = head + b"".join(pairs) + b"".join(infos)
    yield header + b"\0" * (_padded(len(header), alignment) - len(header))
    for tensor in tensors:
        yield from tensor_chunks(sources, tensor)
        yield b"\0" * (_padded(tensor.nbytes, alignment) - tensor.nbytes)


def _padded(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _key_values(source: ByteSource, file: OpenedFile) -> Iterator[bytes]:
    cursor = Cursor(source, file.byte_order, 8)
    try:
        cursor.u64("the number of tensors")
        for place in range(cursor.u64("the number of keys")):
            start = cursor.position
            key = cursor.name(f"key {place}")
            read_value(cursor, key, cursor.u32(f"the type of {key}"))
            nbytes = cursor.position - start
            if nbytes <= MAX_KEY_BYTES and not key.startswith("split."):
                yield source.read_at(start, nbytes)
    except HeaderEndError as problem:
        raise ContainerError(
            f"the key-values of {file.name} cannot be copied: {problem.message}", source=file.name
        ) from None
