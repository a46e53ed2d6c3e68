"""GGUF rows as they lie in the file: whole blocks, one row after the other."""

from __future__ import annotations

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.model import LogicalTensor
from quantscope.parity.protocol import Fixture, RawWeight, Weight

N, K = 64, 512
_ROW, _COL = np.arange(N)[:, None], np.arange(K)[None, :]

K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0")


def problem(weight: Weight) -> str | None:
    """Why these are no raw GGUF blocks, or None."""
    if weight.tensor.family != "gguf":
        return f"family {weight.tensor.family} stores no GGUF blocks"
    if any(plane.byte_order == "big" for plane in weight.tensor.planes):
        return "blocks are stored big-endian"
    return None


def read(weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
    """Blocks of the first rows, uint8 [rows, bytes of a row]."""
    start, stop, file_id = _extent(weight.tensor)
    row_bytes = (stop - start) // weight.n_rows
    data = reader.read_bytes("codes", file_id, start, row_bytes * n_rows)
    return RawWeight(
        contract="gguf",
        arrays={"blocks": np.frombuffer(data, np.uint8).reshape(n_rows, row_bytes)},
        shape=(n_rows, weight.n_cols),
        bit_width=weight.reading.bit_width,
        group_size=weight.reading.group_size,
        facts={"type": weight.reading.element},
    )


def _extent(tensor: LogicalTensor) -> tuple[int, int, int]:
    """(first byte, one past the last, file) over all fields of the blocks."""
    spans = [span for plane in tensor.planes for span in plane.spans]
    start = min(span.byte_offset for span in spans)
    stop = max(s.byte_offset + (s.count - 1) * s.stride_bytes + s.nbytes for s in spans)
    return start, stop, spans[0].file_id


def type_id(name: str) -> int:
    """Number of a ggml type.

    Raises:
        KeyError: gguf-py does not know it.
    """
    import gguf

    return int(gguf.GGMLQuantizationType[name])


def gguf_py_decodes(name: str) -> bool:
    """Whether gguf-py has a dequantizer for a type."""
    try:
        import gguf
        from gguf.quants import _type_traits
    except ImportError:
        return False
    try:
        return gguf.GGMLQuantizationType[name] in _type_traits and name != "Q1_0"
    except KeyError:
        return False


def dequantized(raw: RawWeight) -> Array:
    """Float32 weights by gguf-py."""
    import gguf
    from gguf.quants import dequantize

    kind = gguf.GGMLQuantizationType[raw.facts["type"]]
    weights: Array = dequantize(raw.arrays["blocks"], kind).astype(np.float32)
    return weights.reshape(raw.shape)


def moved_by_one_block(raw: RawWeight) -> tuple[str, RawWeight] | None:
    """Blocks of every row moved by one, or rows where a row is one block."""
    import gguf

    blocks = raw.arrays["blocks"]
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[raw.facts["type"]]]
    if blocks.shape[1] > size:
        moved, what = np.roll(blocks, size, axis=1), "blocks of every row moved by one"
    else:
        moved, what = np.roll(blocks, 1, axis=0), "rows moved by one"
    if bool((moved == blocks).all()):
        return None
    return what, raw.with_arrays(blocks=moved)


def fixture(weight: Weight) -> Fixture:
    """Q4_0 blocks for types over 32 elements, Q4_K blocks for super-blocks."""
    element = weight.reading.element
    if element in K_TYPES or element.startswith(("IQ1", "IQ2", "IQ3", "IQ4_XS")):
        return q4_k_fixture()
    return q8_0_fixture() if element == "Q8_0" else q4_0_fixture()


def _raw(kind: str, blocks: Array) -> RawWeight:
    return RawWeight(
        contract="gguf",
        arrays={"blocks": np.ascontiguousarray(blocks)},
        shape=(N, K),
        bit_width=4,
        group_size=32,
        facts={"type": kind},
    )


def _half(value: float) -> Array:
    return np.frombuffer(np.float16(value).tobytes(), np.uint8)


def q4_0_fixture() -> Fixture:
    """Half 2^-4, then byte i holds element i below and element i + 16 above: value (code - 8) * 2^-4."""
    low, high = np.arange(16), 15 - np.arange(16)
    block = np.concatenate([_half(2.0**-4), (low | high << 4).astype(np.uint8)])
    blocks = np.tile(block, (N, K // 32))
    element = _COL % 32
    codes = np.where(element < 16, element, 31 - element)
    weights = np.broadcast_to((codes - 8) * 2.0**-4, (N, K))
    return Fixture(name="Q4_0 blocks", raw=_raw("Q4_0", blocks), weights=weights)


def q8_0_fixture() -> Fixture:
    """Half 2^-4, then 32 signed bytes: value byte * 2^-4."""
    codes = ((_COL * 7 + _ROW * 3) % 255 - 127).astype(np.int8)
    octets = codes.view(np.uint8).reshape(N, K // 32, 32)
    scale = np.broadcast_to(_half(2.0**-4), (N, K // 32, 2))
    blocks = np.concatenate([scale, octets], axis=2).reshape(N, -1)
    weights = codes.astype(np.float64) * 2.0**-4
    return Fixture(name="Q8_0 blocks", raw=_raw("Q8_0", blocks), weights=weights)


def q4_k_fixture() -> Fixture:
    """Scales 1 and minima 2 in all eight sub-blocks, d 2^-4, dmin 2^-3; 64 codes in 32 bytes, low halves first.

    Packed scales and minima of 6 bits: bytes 0-3 scales 0-3, 4-7 minima 0-3, 8-11 low halves of scales 4-7 and of
    minima 4-7. Source: llama.cpp, ggml/src/ggml-quants.c, get_scale_min_k4.
    """
    packed = np.array([1] * 4 + [2] * 4 + [1 | 2 << 4] * 4, dtype=np.uint8)
    place = np.arange(32)
    octets = ((place % 16) | (15 - place % 16) << 4).astype(np.uint8)
    block = np.concatenate([_half(2.0**-4), _half(2.0**-3), packed, np.tile(octets, 4)])
    blocks = np.tile(block, (N, K // 256))
    inside = _COL % 64
    codes = np.where(inside < 32, inside % 16, 15 - inside % 16)
    weights = np.broadcast_to(codes * 2.0**-4 - 2 * 2.0**-3, (N, K))
    return Fixture(name="Q4_K blocks", raw=_raw("Q4_K", blocks), weights=weights)
