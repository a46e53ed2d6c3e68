"""HIGGS: vector codebooks in FLUTE's kernel order, in a rotated basis.

Source: transformers, integrations/higgs.py (planes). The FLUTE packing is kernel-specific and stated by no source,
so nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import Claim, GroupLevel, LogicalTensor, Packing, Reading, Role, ScaleLevel

from quantscope_plugins.families.listed import Listed, Size


class Higgs(Listed):
    """weight, scales, tables and tables2."""

    name: ClassVar[str] = "higgs"
    title: ClassVar[str] = "HIGGS (FLUTE tables)"
    reason: ClassVar[str] = "the order of codes in FLUTE's kernel layout is not proved"
    roles: ClassVar[Mapping[str, Role]] = {
        "weight": "codes",
        "scales": "scale",
        "tables": "codebook",
        "tables2": "codebook",
        "workspace": "companion",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("weight", "scales", "tables", "tables2")
    markers: ClassVar[tuple[str, ...]] = ("tables2", "tables")
    methods: ClassVar[tuple[str, ...]] = ("higgs",)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N of scales, K of weight."""
        weight, scales = index.get(module, "weight"), index.get(module, "scales")
        if weight is None or scales is None or weight.dtype != "I16":
            return None
        if len(weight.shape) != 2 or len(scales.shape) != 2:
            return None
        return scales.shape[0], weight.shape[1]

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Bits and group_size."""
        for section in declared.with_method("higgs"):
            bits = section.get("bits")
            if isinstance(bits, int) and 0 < bits <= 8:
                yield section.claim("element", f"codebook({1 << bits})", "bits")
            size = section.get("group_size")
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                yield section.claim("group", {"size": size}, "group_size")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The width that the table has."""
        tables, scales = tensor.plane("codebook"), tensor.plane("scale")
        if tables is None or scales is None or not tables.shape or not scales.shape[1]:
            return
        width = max(1, (tables.shape[0] - 1).bit_length())
        n_out, n_in = tensor.shape
        yield Reading(
            element=f"codebook({tables.shape[0]})",
            bit_width=width,
            shape=(n_out, n_in),
            group=(GroupLevel(axis="in", size=max(1, n_in // scales.shape[1])),),
            scale=(ScaleLevel(dtype="f16", name="scales"),),
            zero="none",
            packing=Packing(word="I16", axis="none", order="tile"),
            placement="flute",
            basis="rotated: 1024-point Hadamard along the input",
            effective_bits=float(width),
        )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Words along N, one scale a run, both tables."""
        n_out, n_in = reading.shape
        entries = 1 << reading.bit_width
        return [
            Size("weight", "I16 [N*b/16, K]", (n_out * reading.bit_width // 16, n_in), ("I16",)),
            Size("scales", "[N, K/g]", (n_out, n_in // reading.group_size)),
            Size("tables", "[2^b]", (entries,)),
            Size(
                "tables2",
                "[2^b, 2^b, 2]",
                (entries, entries, 2),
                alternatives=((entries, entries),),
            ),
        ]
