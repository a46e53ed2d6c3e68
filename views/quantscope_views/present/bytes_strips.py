"""Strips: the bytes of scales, zeros and minimums that an element uses, decoded in place."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from quantscope.decode.plane_reader import STORAGE, PlaneReader, to_float32
from quantscope.decode.small_floats import float_table
from quantscope.model import BitSpan, Cell, LogicalTensor, Plane, Reading

from quantscope_views.present.bytes_cut import plane_at
from quantscope_views.present.bytes_layout import pieces_of
from quantscope_views.present.bytes_model import CURSOR, PlaneStrip, mark_bits
from quantscope_views.present.words import fixed_words, number_words

STRIP_BYTES = 8
PIECES = "  +  "
"""Stands between the pieces of a code that lies in more than one word."""
BYTE_FLOATS = {
    "e8m0": "e8m0",
    "e4m3": "e4m3fn",
    "e4m3fn": "e4m3fn",
    "ue5m3": "ue5m3",
    "e5m2": "e5m2",
    "s8_exponent": "",
}
"""Small floats that producers store as plain bytes: the contract's word and the engine's table of values."""
FLOAT_DTYPES = frozenset(
    {"F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}
)


def strips_of(
    tensor: LogicalTensor,
    reading: Reading,
    cell: Cell,
    reader: PlaneReader,
    used: float | None = None,
) -> Iterator[PlaneStrip]:
    """One strip for every other plane that the element uses; `used` is the finest scale as it is applied."""
    for role, spans in cell.per_plane.items():
        if not spans:
            continue
        plane = plane_at(tensor, spans[0])
        yield _strip(role, spans, plane, reading, reader, used if role == "scale" else None)


def _strip(
    role: str,
    spans: tuple[BitSpan, ...],
    plane: Plane | None,
    reading: Reading,
    reader: PlaneReader,
    used: float | None,
) -> PlaneStrip:
    low = min(span.byte_offset for span in spans)
    high = max(span.byte_offset + span.nbytes for span in spans)
    nbytes = min(high - low, 2 * STRIP_BYTES)
    data = reader.read_bytes("view", spans[0].file_id, low, nbytes)
    big = plane is not None and plane.byte_order == "big"
    marks = bytearray(2 * nbytes)
    for piece in pieces_of(spans, big):
        mark_bits(marks, low, nbytes, piece.address, piece.width, CURSOR)
    suffix = plane.suffix if plane is not None else role
    if role.startswith("minimum") and "min" not in suffix:
        suffix += " min"
    raw = field_value(spans, low, data, big)
    value, note = _value(role, spans, plane, data, raw, reading, used)
    return PlaneStrip(
        role=role,
        file_id=spans[0].file_id,
        title=suffix,
        byte_offset=low,
        data=data,
        marks=bytes(marks),
        value=value,
        note=note,
    )


def field_value(spans: tuple[BitSpan, ...], start: int, data: bytes, big: bool) -> int:
    """Bits of the spans joined, the first span lowest."""
    value = shift = 0
    for span in spans:
        first = span.byte_offset - start
        word = int.from_bytes(data[first : first + span.nbytes], "big" if big else "little")
        value |= (word >> span.low_bit & ((1 << span.bit_width) - 1)) << shift
        shift += span.bit_width
    return value


def _value(
    role: str,
    spans: tuple[BitSpan, ...],
    plane: Plane | None,
    data: bytes,
    raw: int,
    reading: Reading,
    used: float | None,
) -> tuple[str, str]:
    width = sum(span.bit_width for span in spans)
    if plane is not None and plane.dtype in FLOAT_DTYPES and width == len(data) * 8:
        order = ">" if plane.byte_order == "big" else "<"
        stored = np.frombuffer(data, dtype=np.dtype(order + STORAGE[plane.dtype]))
        native = stored.astype(stored.dtype.newbyteorder("="))
        value = float(to_float32(native, plane.dtype)[0])
        word = plane.dtype.lower().removeprefix("f8_")
        return _float_text(value) + (_used(value, used) if len(data) == 1 else ""), word
    small = _byte_float(role, plane, reading)
    if small and width == 8:
        value = byte_value(small, raw)
        return _float_text(value) + _used(value, used), small
    if role == "zero" and reading.zero_convention in ("minus_one", "minus_one_unwrapped"):
        used = raw + 1
        if reading.zero_convention == "minus_one":
            used &= (1 << width) - 1
        return f"{raw}, used {used}", f"{width} bits"
    return str(raw), f"{width} bits"


def _float_text(value: float) -> str:
    return fixed_words(value) if abs(value) < 1000 else number_words(value)


def _used(value: float, used: float | None) -> str:
    """What a format makes of a small float where that is another number: ggml halves, others read 255 as Inf."""
    same = used is None or used == value or (math.isnan(used) and math.isnan(value))
    return "" if same or used is None else f", used {_float_text(used)}"


def _byte_float(role: str, plane: Plane | None, reading: Reading) -> str:
    """The small float that the reading takes the bytes of a scale for; empty where they are integers."""
    level = {"scale": 0, "scale2": 1}.get(role, len(reading.scale))
    if plane is None or plane.dtype not in ("U8", "I8") or level >= len(reading.scale):
        return ""
    word = reading.scale[level].dtype
    return word if word in BYTE_FLOATS else ""


def byte_value(word: str, raw: int) -> float:
    """What a byte means as a small float: a table of the engine, or a power of two with a signed exponent."""
    table = BYTE_FLOATS[word]
    return float(float_table(table)[raw]) if table else 2.0 ** (raw - 256 * (raw > 127))


def word_words(cell: Cell, reader: PlaneReader, big: bool) -> str:
    """`byte 0x106B85 bits 7..4   word 0xb8768fc8, code 3 of 0..7`; the pieces of a straddling code one by one."""
    texts = []
    for span in cell.bits:
        data = reader.read_bytes("view", span.file_id, span.byte_offset, span.nbytes)
        word = int.from_bytes(data, "big" if big else "little")
        piece = pieces_of((span,), big)[0]
        byte, bit = divmod(piece.address, 8)
        top = bit + span.bit_width - 1
        bits = f"bits {top}..{bit}" if top < 8 and span.bit_width > 1 else f"bit {bit}"
        if span.bit_width >= 8 and bit == 0:
            bits = f"{span.bit_width} bits"
        elif top >= 8:
            bits = f"bits from {bit}, into the next byte"
        text = f"byte 0x{byte:X} {bits}"
        if span.nbytes > 1:
            text += f"   word 0x{word:0{2 * span.nbytes}x}"
            whole = len(cell.bits) == 1 and span.low_bit % span.bit_width == 0
            if whole and span.nbytes * 8 % span.bit_width == 0:
                count = span.nbytes * 8 // span.bit_width
                text += f", code {span.low_bit // span.bit_width} of 0..{count - 1}"
            else:
                last = span.low_bit + span.bit_width - 1
                one = last == span.low_bit
                text += f", bit {last}" if one else f", bits {span.low_bit}..{last}"
        texts.append(text)
    joined = PIECES.join(texts)
    if len(cell.bits) > 1:
        joined += "   (low bits first)"
    return joined
