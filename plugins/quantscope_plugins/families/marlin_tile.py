"""The Marlin tile order, as AutoGPTQ and AutoAWQ store it, and the family shared by both names.

A weight [K, N] is cut into 16 x 16 tiles; the 1024 codes of four neighbouring tiles are permuted so that a
tensor-core fragment reads them in one load, eight codes a word. Scales are permuted inside runs of 64
columns (32 where one group covers a column). Zero is fixed at 8. Source: AutoGPTQ,
auto_gptq/nn_modules/qlinear/qlinear_marlin.py; AutoAWQ, awq/modules/linear/marlin.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import ClassVar

import numpy as np
from quantscope.decode.bits import unpack_words
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Equation,
    LogicalTensor,
    Packing,
    Reading,
    ScaleLevel,
)

from quantscope_plugins.families import qweight_config, scale_grid

TILE = 16
RUN = 1024
"""Codes that one permutation covers: 16 rows of 64 columns."""
RUN_COLUMNS = RUN // TILE
FLOATS = ("F16", "BF16", "F32")


@cache
def code_places() -> tuple[Array, Array]:
    """Where the codes of a run lie.

    Returns:
        `place` int64 [1024]: position in the stored run of code number (tile * 256 + row * 16 + column);
        `source` int64 [1024]: its inverse.
    """
    lane = np.arange(32)[:, None, None, None]
    tile = np.arange(4)[None, :, None, None]
    half = np.arange(2)[None, None, :, None]
    pair = np.array([0, 1, 8, 9])[None, None, None, :]
    source = 256 * tile + 16 * (2 * (lane % 4) + pair) + lane // 4 + 8 * half
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    flat = source.reshape(-1, 8)[:, order].ravel()
    place = np.empty(RUN, dtype=np.int64)
    place[flat] = np.arange(RUN)
    return place, flat


@cache
def scale_places(grouped: bool) -> Array:
    """Stored place of each scale inside its run of columns: 64 where columns have groups, 32 where not."""
    if grouped:
        source = (np.arange(8)[:, None] + 8 * np.arange(8)[None, :]).ravel()
    else:
        steps = np.array([0, 1, 8, 9, 16, 17, 24, 25])
        source = (2 * np.arange(4)[:, None] + steps[None, :]).ravel()
    place = np.empty(source.size, dtype=np.int64)
    place[source] = np.arange(source.size)
    return place


class MarlinTile(FamilyBase):
    """4-bit symmetric weights in the Marlin order; subclasses give names and suffixes."""

    codes_suffix: ClassVar[str] = ""
    scales_suffix: ClassVar[str] = ""

    def signature(self) -> Signature:
        """The code plane's suffix."""
        return Signature(last_parts=(self.codes_suffix,))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor]:
        """One logical tensor per module whose code plane is twice as wide as its scales."""
        for module in index.modules_with(self.codes_suffix):
            codes = index.get(module, self.codes_suffix)
            scales = index.get(module, self.scales_suffix)
            if codes is None or scales is None or codes.dtype not in ("I32", "U32"):
                continue
            if len(codes.shape) != 2 or len(scales.shape) != 2 or scales.dtype not in FLOATS:
                continue
            if codes.shape[1] != 2 * scales.shape[1] or scales.shape[1] % RUN_COLUMNS:
                continue
            if index.get(module, "qzeros") is not None:
                continue
            planes = (
                index.plane("codes", module, self.codes_suffix),
                index.plane("scale", module, self.scales_suffix),
                index.plane("bias", module, "bias"),
                index.plane("companion", module, "workspace"),
            )
            sizes = qweight_config.declared_sizes(module, declared)
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word=self.name,
                shape=(scales.shape[1], codes.shape[0] * TILE),
                planes=tuple(plane for plane in planes if plane is not None),
                certainty=3,
                facts=(("sizes", ",".join(map(str, sizes))),) if sizes else (),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about qweight planes."""
        return qweight_config.qweight_claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Group sizes."""
        codes, scales = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scales is None:
            return
        n_in = codes.shape[0] * TILE
        declared = [int(size) for size in tensor.fact("sizes").split(",") if size]
        for level in scale_grid.in_levels(n_in, scales.shape[0], declared):
            yield Reading(
                element="u4",
                bit_width=4,
                shape=(scales.shape[1], n_in),
                group=(level,),
                scale=(
                    ScaleLevel(
                        dtype=SCALE_WORDS.get(scales.dtype, scales.dtype), name=scales.suffix
                    ),
                ),
                zero="fixed",
                midpoint=8,
                packing=Packing(word=codes.dtype, axis="in", order="tile"),
                placement="marlin",
                symmetric=True,
                arithmetic=Arithmetic(output="f16"),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of the code and scale planes."""
        n_out, n_in = reading.shape
        return [
            demand(
                tensor.plane("codes"),
                self.codes_suffix,
                "I32 [K/16, 2*N]",
                (ceil_div(n_in, TILE), 2 * n_out),
                dtypes=("I32", "U32"),
                substituted=f"[{n_in}/16, 2*{n_out}]",
            ),
            demand(
                tensor.plane("scale"),
                self.scales_suffix,
                "[ceil(K/g), N]",
                (ceil_div(n_in, reading.group_size), n_out),
                dtypes=FLOATS,
                substituted=f"[ceil({n_in}/{reading.group_size}), {n_out}]",
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window, put back from the runs of four tiles that it touches."""
        plane, scales = tensor.plane("codes"), tensor.plane("scale")
        assert plane is not None
        assert scales is not None
        rows, cols = window.rows, window.cols
        runs = range(rows.start // RUN_COLUMNS, ceil_div(rows.stop, RUN_COLUMNS))
        tiles = range(cols.start // TILE, ceil_div(cols.stop, TILE))
        per_run = RUN // 8
        words = reader.read(plane, tiles, range(runs.start * per_run, runs.stop * per_run))
        stored = unpack_words(words, 4, axis=-1).reshape(len(tiles), len(runs), RUN)
        grid = stored[:, :, code_places()[0]].reshape(len(tiles), len(runs), 4, TILE, TILE)
        weight = grid.transpose(1, 2, 4, 0, 3).reshape(len(runs) * RUN_COLUMNS, len(tiles) * TILE)
        top, left = runs.start * RUN_COLUMNS, tiles.start * TILE
        codes = weight[rows.start - top : rows.stop - top, cols.start - left : cols.stop - left]
        first = cols.start // reading.group_size
        used = range(first, ceil_div(cols.stop, reading.group_size) if len(cols) else first)
        return Parts(
            codes=codes,
            combine="affine",
            scale=(self._scales(tensor, reading, used, rows, reader),),
            zero=np.full((1, 1), reading.midpoint, dtype=np.int16),
            group_of_column=np.arange(cols.start, cols.stop) // reading.group_size - first,
        )

    def _scales(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        used: range,
        rows: range,
        reader: PlaneReader,
    ) -> Array:
        """Scales in the order of the rows wanted, [rows, groups]."""
        plane = tensor.plane("scale")
        assert plane is not None
        place = scale_places(_grouped(reading))
        run = place.size
        first = rows.start // run * run
        stored = reader.floats(plane, used, range(first, ceil_div(rows.stop, run) * run))
        wanted = np.arange(rows.start, rows.stop)
        columns = wanted // run * run + place[wanted % run] - first
        return stored[:, columns].T

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits in the permuted run, and the permuted scale."""
        plane, scales = tensor.plane("codes"), tensor.plane("scale")
        assert plane is not None
        tile = row % RUN_COLUMNS // TILE
        number = tile * 256 + col % TILE * TILE + row % TILE
        stored = row // RUN_COLUMNS * RUN + int(code_places()[0][number])
        word = col // TILE * plane.shape[1] + stored // 8
        group = col // reading.group_size
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            place = scale_places(_grouped(reading))
            column = row // place.size * place.size + int(place[row % place.size])
            per_plane["scale"] = (element_span(scales, group * scales.shape[1] + column),)
        spans = (element_span(plane, word, stored % 8 * 4, 4),)
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)


def _grouped(reading: Reading) -> bool:
    return reading.group_size < reading.shape[1]
