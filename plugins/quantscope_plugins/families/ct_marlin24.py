"""compressed-tensors marlin-24: 2:4 sparse codes in the Marlin order with CUTLASS metadata.

`weight_packed` I32 [K/32, N*b/2], `scale_packed` F16 [ceil(K/g) or 1, N], `meta` I16 [K/32, 2*N]; 4 or 8 bits,
symmetric, codes stored plus 2^(b-1), groups of 128 or a channel. Source: compressed-tensors 0.10.2,
compressors/sparse_quantized_compressors/marlin_24.py, utils/semi_structured_conversions.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import ceil_div
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import (
    Claim,
    GroupLevel,
    LogicalTensor,
    Packing,
    Reading,
    Role,
    ScaleLevel,
)

from quantscope_plugins.families import ct_config
from quantscope_plugins.families.listed import Listed, Size

GROUP = 128
PLACEMENT = "marlin_24"
ROWS = 32
"""Input channels of one stored row: a tile of 16 kept ones."""


class CtMarlin24(Listed):
    """2:4 sparse Marlin; its own producer has no decompressor."""

    name: ClassVar[str] = "ct_marlin24"
    title: ClassVar[str] = "compressed-tensors marlin-24 (2:4 sparse Marlin tiles)"
    word: ClassVar[str] = "compressed_tensors:marlin-24"
    reason: ClassVar[str] = (
        "the producer has no decompressor for marlin-24, so no rule for its 2:4 metadata is proved"
    )
    roles: ClassVar[Mapping[str, Role]] = {
        "weight_packed": "codes",
        "scale_packed": "scale",
        "meta": "meta",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("weight_packed", "scale_packed", "meta")
    markers: ClassVar[tuple[str, ...]] = ("scale_packed",)
    methods: ClassVar[tuple[str, ...]] = ct_config.METHODS

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N from the scales, K from the rows of tiles."""
        codes, scale = index.get(module, "weight_packed"), index.get(module, "scale_packed")
        if codes is None or scale is None or len(codes.shape) != 2 or len(scale.shape) != 2:
            return None
        return scale.shape[1], codes.shape[0] * ROWS

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The config group of the module, and the tile order that the format word stands for."""
        yield from ct_config.claims(tensor.module, declared)
        for scheme in ct_config.schemes(declared, tensor.module):
            if scheme.format == "marlin-24":
                yield scheme.section.claim("placement", PLACEMENT, "format", basis="by_definition")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """4 and 8 bits; groups of 128 where there is more than one row of scales."""
        scale = tensor.plane("scale")
        n_cols = tensor.shape[1]
        if scale is None or min(tensor.shape) < 1:
            return
        grouped = scale.shape[0] > 1
        level = GroupLevel(axis="in", size=GROUP) if grouped else GroupLevel(axis="channel")
        for bits in (4, 8):
            yield Reading(
                element=f"u{bits}",
                bit_width=bits,
                shape=(tensor.shape[0], n_cols),
                group=(level,),
                scale=(ScaleLevel(dtype="f16", name="scale_packed"),),
                zero="fixed",
                midpoint=1 << (bits - 1),
                packing=Packing(word="I32", axis="in", order="tile"),
                placement=PLACEMENT,
                symmetric=True,
            )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """What each plane must measure."""
        n_rows, n_cols = reading.shape
        bits = reading.bit_width
        return [
            Size(
                "weight_packed",
                "I32 [K/32, N*b/2]",
                (n_cols // ROWS, n_rows * bits // 2),
                ("I32",),
            ),
            Size(
                "scale_packed",
                "F16 [ceil(K/g), N]",
                (ceil_div(n_cols, reading.group_size), n_rows),
                ("F16",),
            ),
            Size("meta", "I16 [K/32, 2*N]", (n_cols // ROWS, 2 * n_rows), ("I16",)),
        ]
