"""SpQR: 3-bit tiles with second-order scales, and sparse outliers.

Source: spqr_quant 0.2.0, spqr_quant/inference.py (planes, the layout of a word); transformers,
utils/quantization_config.py. How the second-order slices of the words join is not proved, so nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import ceil_div
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import Claim, GroupLevel, LogicalTensor, Packing, Reading, Role, ScaleLevel

from quantscope_plugins.families.listed import Listed, Size

TILE = 16


class Spqr(Listed):
    """dense_weights, row_offsets, col_vals and in_perm."""

    name: ClassVar[str] = "spqr"
    title: ClassVar[str] = "SpQR (3-bit tiles and sparse outliers)"
    reason: ClassVar[str] = "how the second-order scales join across words is not proved"
    roles: ClassVar[Mapping[str, Role]] = {
        "dense_weights": "codes",
        "row_offsets": "meta",
        "col_vals": "meta",
        "in_perm": "permutation",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("dense_weights", "row_offsets", "col_vals")
    markers: ClassVar[tuple[str, ...]] = ("dense_weights",)
    methods: ClassVar[tuple[str, ...]] = ("spqr",)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N of row_offsets, K of the number of words."""
        dense, rows = index.get(module, "dense_weights"), index.get(module, "row_offsets")
        if dense is None or rows is None or len(dense.shape) != 1 or len(rows.shape) != 1:
            return None
        n_out = max(rows.shape[0] - 1, 0)
        tiles = ceil_div(n_out, TILE)
        return n_out, dense.shape[0] // (TILE * tiles) * TILE if tiles else 0

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """bits, beta1."""
        for section in declared.with_method("spqr"):
            bits = section.get("bits")
            if isinstance(bits, int) and 0 < bits <= 8:
                yield section.claim("element", f"u{bits}", "bits")
            size = section.get("beta1")
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                yield section.claim("group", {"size": size}, "beta1")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """3 bits in tiles of 16 by 16."""
        n_out, n_in = tensor.shape
        yield Reading(
            element="u3",
            bit_width=3,
            shape=(n_out, n_in),
            group=(GroupLevel(axis="in", size=TILE),),
            scale=(ScaleLevel(dtype="u3*f16", name="dense_weights"),),
            zero="integer",
            packing=Packing(word="I64", axis="in", order="tile"),
            placement="spqr",
            order="act_order" if tensor.plane("permutation") is not None else "natural",
            effective_bits=64 / TILE,
        )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """A word a tile row, offsets of every row, the permutation."""
        n_out, n_in = reading.shape
        words = TILE * ceil_div(n_out, TILE) * ceil_div(n_in, TILE)
        return [
            Size("dense_weights", "I64 [16*ceil(N/16)*ceil(K/16)]", (words,), ("I64",)),
            Size("row_offsets", "I32 [N + 1]", (n_out + 1,), ("I32",)),
            Size("in_perm", "[K]", (n_in,), optional=True),
        ]
