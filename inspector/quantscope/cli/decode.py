"""`quantscope decode PATH --tensor NAME`: weights or codes of a window."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from quantscope.cli import diagnostics, output, params
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.one_tensor import OneTensor, chosen_reading, opened_tensor
from quantscope.cli.tables import WIDTH, terminal_columns
from quantscope.errors import NoSuchTensorError, WindowError
from quantscope.report.words import value_words

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.decode.parts import Array, Window
    from quantscope.model import Reading

TEXT_ROWS, TEXT_COLS = 8, 16
Bound = tuple[int | None, int | None]


@click.command("decode", short_help="Weights or codes of a window, to text or .npy.")
@params.path_argument
@params.tensor_option
@click.option("--rows", type=params.RANGE, help="Output channels, half-open.")
@click.option("--cols", type=params.RANGE, help="Input channels, half-open.")
@click.option("--group", type=params.PAIR, metavar="ROW,G", help="One group of one row instead.")
@click.option("--out", type=click.Path(path_type=str), metavar="FILE.npy", help="Write .npy.")
@click.option("--codes", is_flag=True, help="Stored codes instead of weights.")
@click.option("--as-producer", is_flag=True, help="In the producer's own arithmetic.")
@click.option("--reading", type=params.READING, help="Under another reading.")
def command(
    path: str,
    tensor: str,
    rows: Bound | None,
    cols: Bound | None,
    group: tuple[int, int] | None,
    out: str | None,
    codes: bool,
    as_producer: bool,
    reading: dict[str, str] | None,
) -> int:
    """Decode a window of one tensor: float32 [out, in], exact unless --as-producer.

    Text shows 8 rows and 16 columns where no window is given; --out writes all of the tensor then.
    """
    if group is not None and (rows is not None or cols is not None):
        raise click.UsageError("--group and --rows or --cols exclude each other")
    if codes and as_producer:
        raise click.UsageError("--codes and --as-producer exclude each other")
    try:
        with opened_tensor(path, tensor) as one:
            decoder = _Decoder(one, chosen_reading(one.state, reading or {}), codes, as_producer)
            if reading is None:
                _say_reading(one)
            return _run(decoder, rows, cols, group, out)
    except NoSuchTensorError:
        if codes or as_producer or reading or group:
            raise
        return _plain(path, tensor, rows, cols, out)


class _Decoder:
    """Windows of one tensor under one reading."""

    def __init__(self, one: OneTensor, reading: Reading, codes: bool, as_producer: bool) -> None:
        self.reading = reading
        self.shape = (reading.shape[-2], reading.shape[-1])
        self._one = one
        self._codes = codes
        self._as_producer = as_producer
        self._family = one.checkpoint.family(one.state.tensor)
        self._reader = one.checkpoint.reader()

    def __call__(self, window: Window) -> Array:
        from quantscope.decode.window import decode_window, window_parts

        tensor = self._one.state.tensor
        if self._codes:
            return window_parts(self._family, tensor, self.reading, window, self._reader).codes
        return decode_window(
            self._family,
            tensor,
            self.reading,
            window,
            self._reader,
            as_producer=self._as_producer,
        )


def _say_reading(one: OneTensor) -> None:
    """Say on stderr where the reading in force is not the one that the files claim."""
    state = one.state
    if state.declared_reading is None or state.reading is None:
        return
    values, claimed = state.reading.contract_values(), state.declared_reading.contract_values()
    for field, value in values.items():
        if claimed.get(field) != value:
            diagnostics.message(
                f"decoded with {field} {value_words(field, value)}, as the bytes say; the files "
                f"claim {value_words(field, claimed.get(field))} (--reading {field}=...)"
            )


def _run(
    decoder: _Decoder,
    rows: Bound | None,
    cols: Bound | None,
    group: tuple[int, int] | None,
    out: str | None,
) -> int:
    if group is not None:
        window = _group_window(decoder.reading, *group)
    else:
        window = _window(decoder.shape, rows, cols, whole=out is not None)
    if out is not None:
        output.write_file(out, npy_chunks(decoder, window))
        diagnostics.message(f"wrote {out}: {list(window.shape)}")
        return ExitCode.OK
    output.write_text("\n".join(_text(decoder(window), window)))
    return ExitCode.OK


def _group_window(reading: Reading, row: int, group: int) -> Window:
    from quantscope.decode.parts import Window

    size = reading.group_size
    first = group * size
    if row >= reading.shape[-2] or first >= reading.shape[-1]:
        count = -(-reading.shape[-1] // max(1, size))
        raise WindowError(
            f"row {row}, group {group} lies outside the tensor",
            hint=f"rows 0..{reading.shape[-2] - 1}, groups 0..{count - 1}",
        )
    return Window(range(row, row + 1), range(first, min(first + size, reading.shape[-1])))


def _window(
    shape: tuple[int, int], rows: Bound | None, cols: Bound | None, *, whole: bool
) -> Window:
    from quantscope.decode.parts import Window

    limits = (shape[0], shape[1]) if whole or rows or cols else (TEXT_ROWS, TEXT_COLS)
    if (
        not whole
        and rows is None
        and cols is None
        and (shape[0] > limits[0] or shape[1] > limits[1])
    ):
        diagnostics.message(f"the first {limits[0]} rows and {limits[1]} columns of {list(shape)}")
    ranges = []
    for bound, extent, limit in zip((rows, cols), shape, limits, strict=True):
        first, last = bound if bound is not None else (0, min(extent, limit))
        ranges.append(range(first or 0, extent if last is None else last))
    for wanted, extent, what in zip(ranges, shape, ("rows", "columns"), strict=True):
        if wanted.start > wanted.stop or wanted.stop > extent:
            raise WindowError(
                f"{what} {wanted.start}:{wanted.stop} lie outside the tensor",
                hint=f"{what} 0:{extent}",
            )
    return Window(ranges[0], ranges[1])


def npy_chunks(decode: Any, window: Window) -> Iterator[bytes]:
    """A .npy file of a window, decoded in pieces of whole rows.

    Format version 1.0, C order, little-endian (numpy, numpy/lib/format.py).
    """
    import numpy as np

    from quantscope.decode.parts import Window
    from quantscope.decode.window import STREAM_ELEMENTS, row_major

    step = max(1, STREAM_ELEMENTS // max(1, len(window.cols)))
    first = np.asarray(
        decode(
            Window(
                range(window.rows.start, min(window.rows.start + step, window.rows.stop)),
                window.cols,
            )
        )
    )
    dtype = first.dtype.newbyteorder("<")
    shape = (len(window.rows), len(window.cols))
    head = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = head + " " * (-(len(head) + 11) % 64) + "\n"
    yield b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode("latin-1")
    yield row_major(first, dtype).tobytes()
    for start in range(window.rows.start + step, window.rows.stop, step):
        rows = range(start, min(start + step, window.rows.stop))
        yield row_major(np.asarray(decode(Window(rows, window.cols))), dtype).tobytes()


def _text(values: Array, window: Window) -> Iterator[str]:
    """Rows and columns with their numbers, in blocks of columns."""
    whole = values.dtype.kind in "iu"
    cells = [[str(v) if whole else f"{v:.6g}" for v in row] for row in values.tolist()]
    heads = [str(col) for col in window.cols]
    width = max([1, *map(len, heads), *(len(cell) for row in cells for cell in row)])
    label = max(3, len(str(window.rows.stop)))
    fitting = max(1, ((terminal_columns() or WIDTH) - label - 5) // (width + 1))
    for first in range(0, len(heads), min(TEXT_COLS, fitting)):
        block = slice(first, first + min(TEXT_COLS, fitting))
        yield "out".ljust(label) + "  in " + " ".join(head.rjust(width) for head in heads[block])
        for row, line in zip(window.rows, cells, strict=True):
            shown = " ".join(cell.rjust(width) for cell in line[block])
            yield str(row).ljust(label) + "     " + shown


def _plain(path: str, name: str, rows: Bound | None, cols: Bound | None, out: str | None) -> int:
    """A tensor that no family claims, stored as plain numbers."""
    from quantscope.cli import running
    from quantscope.decode.plain import decode_plain, plain_shape

    with running.opened(path) as checkpoint:
        stored = checkpoint.find_plain(name) or checkpoint.find_plain(f"{name}.weight")
        if stored is None:
            checkpoint.find(name)
            raise NoSuchTensorError(f"{name} has no plain numbers", source=name)
        return _run_plain(
            checkpoint, stored, plain_shape(checkpoint.index, stored), rows, cols, out, decode_plain
        )


def _run_plain(
    checkpoint: Checkpoint,
    stored: Any,
    shape: tuple[int, int],
    rows: Bound | None,
    cols: Bound | None,
    out: str | None,
    decode_plain: Any,
) -> int:
    reader = checkpoint.reader()

    def decode(window: Window) -> Array:
        values: Array = decode_plain(checkpoint.index, stored, window, reader)
        return values

    window = _window(shape, rows, cols, whole=out is not None)
    if out is not None:
        output.write_file(out, npy_chunks(decode, window))
        diagnostics.message(f"wrote {out}: {list(window.shape)}")
    else:
        output.write_text("\n".join(_text(decode(window), window)))
    return ExitCode.OK
