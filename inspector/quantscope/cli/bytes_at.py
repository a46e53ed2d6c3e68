"""`quantscope bytes PATH --tensor NAME --plane P --at ROW,COL`: hex and nibbles with their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from quantscope.cli import output, params
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.one_tensor import OneTensor, opened_tensor, plane_of, reading_in_force
from quantscope.errors import QuantscopeError, UndecodableError, WindowError
from quantscope.report.words import value_words
from quantscope.text import inert

if TYPE_CHECKING:
    from quantscope.model import BitSpan, Cell, Plane, Reading

LINE_BYTES = 16
LINES_AROUND = 2
NEIGHBOURS = 64
"""Rows and columns around the element in which other owners of the same word are looked for."""


@click.command("bytes", short_help="Hex and nibbles with their meaning.")
@params.path_argument
@params.tensor_option
@click.option(
    "--plane", default="codes", show_default=True, metavar="P", help="Role or stored suffix."
)
@click.option("--at", type=params.PAIR, required=True, metavar="ROW,COL", help="The element.")
def command(path: str, tensor: str, plane: str, at: tuple[int, int]) -> int:
    """Show where an element's bits lie in a plane: file, byte, bits, word, and what shares the word."""
    with opened_tensor(path, tensor) as one:
        output.write_text("\n".join(lines_of(one, plane, *at)))
    return ExitCode.OK


def lines_of(one: OneTensor, plane_name: str, row: int, col: int) -> Iterator[str]:
    """The element's place, the bytes around it, the fields of its word, and its value."""
    state = one.state
    reading = reading_in_force(state)
    n_rows, n_cols = reading.shape[-2:]
    if row >= n_rows or col >= n_cols:
        raise WindowError(
            f"out {row}, in {col} lies outside {state.tensor.name}",
            hint=f"out 0..{n_rows - 1}, in 0..{n_cols - 1}",
        )
    plane = plane_of(state, plane_name)
    cell = _locate(one, reading, row, col)
    spans = spans_of(cell, plane)
    if not spans:
        known = ", ".join(["codes", *cell.per_plane])
        raise WindowError(
            f"out {row}, in {col} has no bits of its own in {plane.suffix}",
            hint=f"planes with bits of it: {known}",
        )
    yield f"{inert(state.tensor.name)}  out {row}, in {col}, group {cell.group}"
    yield f"{inert(plane.suffix)} ({plane.role})  {plane.dtype} {list(plane.shape)}  {inert(plane.stored_name)}"
    for span in spans:
        yield from _span_lines(one, plane, span)
    yield ""
    yield from _hex_lines(one, plane, spans)
    yield ""
    yield from _field_lines(one, reading, plane, spans[0], row, col)
    yield from _value_lines(one, reading, row, col)


def spans_of(cell: Cell, plane: Plane) -> tuple[BitSpan, ...]:
    """The element's bits in a plane: its code's, or those of the plane's role or suffix."""
    if plane.role == "codes" and "codes" not in cell.per_plane:
        inside = tuple(span for span in cell.bits if _inside(span, plane))
        return inside or cell.bits
    return cell.per_plane.get(plane.role) or cell.per_plane.get(plane.suffix) or ()


def _inside(span: BitSpan, plane: Plane) -> bool:
    return any(
        part.file_id == span.file_id
        and part.byte_offset
        <= span.byte_offset
        < part.byte_offset + max(part.nbytes, (part.count - 1) * part.stride_bytes + part.nbytes)
        for part in plane.spans
    )


def _locate(one: OneTensor, reading: Reading, row: int, col: int) -> Cell:
    family = one.checkpoint.family(one.state.tensor)
    name = one.state.tensor.name
    if one.state.undecodable is not None:
        raise UndecodableError(
            f"{name}: no element can be located: {one.state.undecodable}", source=name
        )
    try:
        return family.locate(one.state.tensor, reading, row, col, one.checkpoint.reader())
    except QuantscopeError:
        raise
    except Exception as problem:  # plugin boundary: becomes an error with its cause
        raise QuantscopeError(
            f"{name}: the element cannot be located ({type(problem).__name__}: {problem})",
            source=name,
        ) from problem


def _word(one: OneTensor, plane: Plane, span: BitSpan) -> int:
    data = one.checkpoint.sources[span.file_id].read_at(span.byte_offset, span.nbytes)
    return int.from_bytes(data, plane.byte_order)


def _span_lines(one: OneTensor, plane: Plane, span: BitSpan) -> Iterator[str]:
    word = _word(one, plane, span)
    high = span.low_bit + span.bit_width - 1
    raw = word >> span.low_bit & ((1 << span.bit_width) - 1)
    file = inert(one.checkpoint.file(span.file_id).name)
    byte = span.byte_offset + _byte_in_word(plane, span)
    bits = f"bits {high}..{span.low_bit}" if span.bit_width > 1 else f"bit {high}"
    yield f"{file} byte 0x{byte:X}, word 0x{word:0{span.nbytes * 2}x} @0x{span.byte_offset:X}, {bits}"
    if span.bit_width % 4 == 0 and span.bit_width <= 8:
        size = "nibble" if span.bit_width == 4 else "byte"
        last = span.nbytes * 8 // span.bit_width - 1
        yield f"{size} {span.low_bit // span.bit_width} of 0..{last} = {raw} (0x{raw:x})"
    else:
        yield f"stored {raw} (0x{raw:0{-(-span.bit_width // 4)}x}){_number_words(plane, span, raw)}"


def _number_words(plane: Plane, span: BitSpan, raw: int) -> str:
    """` = 0.122803` for a whole stored number of a floating dtype."""
    import numpy as np

    from quantscope.decode.plane_reader import STORAGE, STORAGE_BITS, to_float32
    from quantscope.infer.examine import FLOAT_PLANES

    if plane.dtype not in FLOAT_PLANES or STORAGE_BITS[plane.dtype] != span.bit_width:
        return ""
    data = raw.to_bytes(span.bit_width // 8, "little")
    stored = np.frombuffer(data, dtype="<" + STORAGE[plane.dtype])
    return f" = {float(to_float32(stored, plane.dtype)[0]):.7g}"


def _byte_in_word(plane: Plane, span: BitSpan) -> int:
    byte = span.low_bit // 8
    return span.nbytes - 1 - byte if plane.byte_order == "big" else byte


def _hex_lines(one: OneTensor, plane: Plane, spans: tuple[BitSpan, ...]) -> Iterator[str]:
    """Lines of 16 bytes around the element; its bytes in brackets, nibbles in the order of the file."""
    first = spans[0]
    source = one.checkpoint.sources[first.file_id]
    middle = first.byte_offset // LINE_BYTES
    start = max(0, (middle - LINES_AROUND) * LINE_BYTES)
    stop = min(source.size, (middle + LINES_AROUND + 1) * LINE_BYTES)
    data = source.read_at(start, stop - start)
    marked = {
        position
        for span in spans
        if span.file_id == first.file_id
        for position in _bytes_of(plane, span)
    }
    for offset in range(start, stop, LINE_BYTES):
        row = data[offset - start : offset - start + LINE_BYTES]
        cells = "".join(
            f"[{byte:02x}]" if offset + i in marked else f" {byte:02x} "
            for i, byte in enumerate(row)
        )
        yield f"{offset:10x} {cells}".rstrip()


def _bytes_of(plane: Plane, span: BitSpan) -> range:
    low = span.low_bit // 8
    high = (span.low_bit + span.bit_width - 1) // 8
    if plane.byte_order == "big":
        low, high = span.nbytes - 1 - high, span.nbytes - 1 - low
    return range(span.byte_offset + low, span.byte_offset + high + 1)


def _field_lines(
    one: OneTensor, reading: Reading, plane: Plane, span: BitSpan, row: int, col: int
) -> Iterator[str]:
    """Every field of the element's word that a neighbouring element owns, lowest bits first."""
    owners = _owners(one, reading, plane, span, row, col)
    if len(owners) < 2:
        return
    word = _word(one, plane, span)
    yield f"word @0x{span.byte_offset:X}, lowest bits first"
    for (low, width), owner in sorted(owners.items()):
        raw = word >> low & ((1 << width) - 1)
        mark = ">" if (low, width) == (span.low_bit, span.bit_width) else " "
        yield f"{mark} bits {low + width - 1:>3}..{low:<3} {raw:>3} (0x{raw:x})  {owner}"


def _owners(
    one: OneTensor, reading: Reading, plane: Plane, span: BitSpan, row: int, col: int
) -> dict[tuple[int, int], str]:
    n_rows, n_cols = reading.shape[-2:]
    owners: dict[tuple[int, int], str] = {}
    rows = range(max(0, row - NEIGHBOURS), min(n_rows, row + NEIGHBOURS))
    cols = range(max(0, col - NEIGHBOURS), min(n_cols, col + NEIGHBOURS))
    places = [(row, c) for c in cols] + [(r, col) for r in rows]
    for place in sorted(places, key=lambda p: abs(p[0] - row) + abs(p[1] - col)):
        cell = _locate(one, reading, *place)
        for other in spans_of(cell, plane):
            if (other.file_id, other.byte_offset) == (span.file_id, span.byte_offset):
                owner = _owner_words(plane, cell)
                owners.setdefault((other.low_bit, other.bit_width), owner)
    return owners


def _owner_words(plane: Plane, cell: Cell) -> str:
    if plane.role == "codes":
        return f"out {cell.row}, in {cell.col}"
    return f"out {cell.row}, group {cell.group}"


def _value_lines(one: OneTensor, reading: Reading, row: int, col: int) -> Iterator[str]:
    yield ""
    try:
        claimed = one.state.declared_reading
        apart = claimed is not None and claimed != reading and claimed.shape == reading.shape
        says = ", as the bytes say," if apart else ""
        yield f"value{says} {_value_words(one, reading, row, col)}"
        if claimed is not None and apart:
            yield f"as the file claims {_value_words(one, claimed, row, col)}"
    except QuantscopeError as problem:
        yield f"value unknown: {inert(problem.message)}"


def _value_words(one: OneTensor, reading: Reading, row: int, col: int) -> str:
    """`(8 - 8) * 0.122803 = 0  (zero = stored)`."""
    from quantscope.decode.parts import Window
    from quantscope.decode.window import decode_window, window_parts
    from quantscope.report.example import plane_value, scale_value

    tensor = one.state.tensor
    family = one.checkpoint.family(tensor)
    window = Window(range(row, row + 1), range(col, col + 1))
    reader = one.checkpoint.reader()
    value = float(decode_window(family, tensor, reading, window, reader)[0, 0])
    words = f"{value:.7g}"
    parts = window_parts(family, tensor, reading, window, reader)
    scale = scale_value(parts, 0)
    if parts.combine == "affine" and scale is not None:
        zero = plane_value(parts, parts.zero, 0)
        shown = scale if isinstance(scale, str) else f"{scale:.6g}"
        words = f"({parts.codes[0, 0]} - {zero or 0}) * {shown} = {words}"
    if reading.zero == "integer" and reading.zero_convention != "not_applicable":
        words += f"  ({value_words('zero_convention', reading.zero_convention)})"
    return words
