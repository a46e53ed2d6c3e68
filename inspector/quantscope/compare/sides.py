"""One side of a comparison: decoded rows of quantized and plain weights alike, under one interface."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import msgspec
import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.compare.model import RowMap
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plain import decode_plain, plain_shape
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.window import decode_window, window_parts
from quantscope.errors import UndecodableError
from quantscope.model import Json, Reading
from quantscope.session.inspection import Inspection, TensorState


class Side:
    """A checkpoint with its inspection, ready to decode rows by weight name.

    Args:
        inspection: inspected checkpoint.
        reading_of: changes a tensor's reading (a what-if); its own in force by default.
        cancelled: polled before every read.
    """

    def __init__(
        self,
        inspection: Inspection,
        reading_of: Callable[[Reading], Reading] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.inspection = inspection
        self.checkpoint: Checkpoint = inspection.checkpoint
        self.reader: PlaneReader = self.checkpoint.reader(cancelled=cancelled)
        self._reading_of = reading_of

    @cached_property
    def states(self) -> dict[str, TensorState]:
        """States of quantized tensors by logical name."""
        return {state.tensor.name: state for state in self.inspection.states}

    @cached_property
    def metadata(self) -> dict[str, Json]:
        """Container metadata of all files, first come first."""
        merged: dict[str, Json] = {}
        for file in self.checkpoint.opened.files:
            for key, value in file.metadata.items():
                merged.setdefault(key, value)
        return merged

    @cached_property
    def is_gguf(self) -> bool:
        """Whether names are GGUF names."""
        return any(file.kind == "gguf" for file in self.checkpoint.opened.files)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight, quantized or plain, in stored order of names."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, state in self.states.items():
            reading = self.reading(name)
            shapes[name] = reading.shape if reading is not None else state.tensor.shape
        for stored in self.checkpoint.grouping.plain:
            shapes.setdefault(stored.name, stored.shape)
        return dict(sorted(shapes.items()))

    def reading(self, name: str) -> Reading | None:
        """The reading a quantized weight is decoded under."""
        state = self.states.get(name)
        if state is None or state.reading is None:
            return None
        return self._reading_of(state.reading) if self._reading_of else state.reading

    def extents(self, name: str, rows: RowMap) -> tuple[int, int]:
        """(rows, columns) of a weight after a row map."""
        if name in self.states:
            reading = self.reading(name)
            if reading is None:
                raise UndecodableError(f"{name} has no reading that fits its planes", source=name)
            n_rows, n_cols = reading.shape[-2], reading.shape[-1]
        else:
            stored = self.checkpoint.find_plain(name)
            if stored is None:
                raise UndecodableError(f"{name} is not stored", source=name)
            n_rows, n_cols = plain_shape(self.checkpoint.index, stored)
        return (rows.count if rows.count is not None else n_rows - rows.first), n_cols

    def decode(self, name: str, rows: range, row_map: RowMap | None = None) -> Array:
        """Float32 [rows, columns] of whole rows, in Hugging Face row order.

        Args:
            name: weight name.
            rows: rows after the row map; whole heads where the map permutes them.
            row_map: cut and order of rows.
        """
        row_map = row_map or RowMap()
        stored_rows = range(rows.start + row_map.first, rows.stop + row_map.first)
        n_rows, n_cols = self.extents(name, row_map)
        state = self.states.get(name)
        window = Window(stored_rows, range(n_cols))
        if state is not None:
            reading = self.reading(name)
            assert reading is not None
            family = self.checkpoint.family(state.tensor)
            values = decode_window(family, state.tensor, reading, window, self.reader)
        else:
            stored = self.checkpoint.find_plain(name)
            assert stored is not None
            values = decode_plain(self.checkpoint.index, stored, window, self.reader)
        return _unpermuted(values, n_rows, row_map.heads)

    def parts(self, name: str, rows: range, row_map: RowMap | None = None) -> Parts | None:
        """Parts of whole rows; None for plain weights and rows in another order."""
        row_map = row_map or RowMap()
        state, reading = self.states.get(name), self.reading(name)
        if state is None or reading is None or row_map.heads:
            return None
        stored_rows = range(rows.start + row_map.first, rows.stop + row_map.first)
        window = Window(stored_rows, range(reading.shape[-1]))
        return window_parts(
            self.checkpoint.family(state.tensor), state.tensor, reading, window, self.reader
        )


def _unpermuted(values: Array, n_rows: int, heads: int) -> Array:
    """Rows of whole heads from llama.cpp's rotary order to the Hugging Face order."""
    if not heads:
        return values
    head = n_rows // heads
    count = values.shape[0] // head
    turned: Array = (
        values.reshape(count, head // 2, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
    )
    return turned


def with_convention(convention: str) -> Callable[[Reading], Reading]:
    """A what-if that decodes every stored zero under one convention."""

    def change(reading: Reading) -> Reading:
        if reading.zero != "integer" or reading.zero_convention == "not_applicable":
            return reading
        return msgspec.structs.replace(reading, zero_convention=convention)

    return change


def row_step(n_rows: int, n_cols: int, heads: int, elements: int = 1 << 21) -> int:
    """Rows of one streamed piece: bounded, and whole heads where rows are permuted."""
    step = max(1, elements // max(1, n_cols))
    if heads:
        head = n_rows // heads
        step = max(head, step // head * head)
    return int(np.clip(step, 1, max(1, n_rows)))
