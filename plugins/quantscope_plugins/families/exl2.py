"""EXL2: groups of rows with bit widths of their own, 4-bit scale indices and a maximum a group.

Source: turboderp-org/exllamav2, exllamav2/conversion/adaptivegptq.py (planes), exllamav2_ext/cuda/pack_tensor.cu
(packing), quant/qdq_util.cuh, q_matrix.cu and ext.py (decode). Its packer and its dequantizer run on a GPU only,
so the rule has not been checked against them and nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import numpy as np
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import ceil_div
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import (
    Arithmetic,
    Claim,
    GroupLevel,
    LogicalTensor,
    Packing,
    Reading,
    Role,
    ScaleLevel,
)

from quantscope_plugins.families.listed import Listed, Size


class Exl2(Listed):
    """q_weight, q_scale, q_scale_max, q_groups and q_invperm."""

    name: ClassVar[str] = "exl2"
    title: ClassVar[str] = "EXL2 (mixed widths a group of rows)"
    reason: ClassVar[str] = (
        "the rule is read from the kernel's source and could not be checked against its dequantizer"
    )
    roles: ClassVar[Mapping[str, Role]] = {
        "q_weight": "codes",
        "q_scale": "scale",
        "q_scale_max": "scale2",
        "q_groups": "meta",
        "q_invperm": "permutation",
        "q_perm": "permutation",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("q_weight", "q_scale", "q_scale_max", "q_groups")
    markers: ClassVar[tuple[str, ...]] = ("q_weight", "q_groups")
    methods: ClassVar[tuple[str, ...]] = ("exl2",)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N of q_weight, K of the permutation or of the groups' rows."""
        weight = index.get(module, "q_weight")
        perm = index.get(module, "q_invperm") or index.get(module, "q_perm")
        if weight is None or len(weight.shape) != 2:
            return None
        rows = perm.shape[0] if perm is not None and perm.shape else 0
        return weight.shape[1], rows or sum(n for _, n in _groups(index, module))

    def facts_of(self, index: TensorIndex, module: str) -> tuple[tuple[str, str], ...]:
        """Width and rows of every group, as q_groups gives them."""
        text = ",".join(f"{bits}:{rows}" for bits, rows in _groups(index, module))
        return (("groups", text),)

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The layout that quant_method fixes."""
        for section in declared.with_method("exl2"):
            yield section.claim("packing", {"axis": "in"}, "quant_method", basis="by_definition")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """One reading; widths differ from group to group."""
        groups = _parsed(tensor.fact("groups"))
        n_out, n_in = tensor.shape
        total = sum(bits * rows for bits, rows in groups)
        widths = sorted({bits for bits, _ in groups})
        yield Reading(
            element=f"u{widths[0]}"
            if len(widths) == 1
            else "mixed " + "/".join(f"u{w}" for w in widths),
            bit_width=0,
            shape=(n_out, n_in),
            group=(GroupLevel(axis="in", size=groups[0][1] if groups else None),),
            scale=(
                ScaleLevel(dtype="u4*f16", name="q_scale"),
                ScaleLevel(dtype="f16", name="q_scale_max", per="group"),
            ),
            zero="fixed",
            packing=Packing(word="I32", axis="in", order="bitstream"),
            order="act_order" if tensor.plane("permutation") is not None else "natural",
            symmetric=True,
            arithmetic=Arithmetic(
                rule="(code - 2^(b-1)) * (index + 1)^2 * q_scale_max / 256", compute="f16"
            ),
            effective_bits=total / n_in if n_in else 0.0,
        )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Words of all groups, a 4-bit scale index a group and column."""
        groups = _parsed(tensor.fact("groups"))
        n_out, n_in = reading.shape
        words = sum(ceil_div(bits * rows, 32) for bits, rows in groups)
        columns = ceil_div(n_out, 32) * 32
        return [
            Size("q_weight", "I32 [sum(rows*b/32), N]", (words, columns), ("I32", "U32")),
            Size("q_scale", "I32 [G, N/8]", (len(groups), columns // 8), ("I32", "U32")),
            Size("q_scale_max", "F16 [G]", (len(groups),), ("F16",)),
            Size("q_groups", "I16 [2*G]", (2 * len(groups),), ("I16", "U16")),
            Size("q_invperm", "[K]", (n_in,), (), optional=True),
        ]


def _groups(index: TensorIndex, module: str) -> list[tuple[int, int]]:
    """(bits, rows) of every group: rows follow from where the next group's packed rows begin."""
    stored, weight = index.get(module, "q_groups"), index.get(module, "q_weight")
    perm = index.get(module, "q_invperm") or index.get(module, "q_perm")
    if stored is None or weight is None or stored.dtype not in ("I16", "U16"):
        return []
    pairs = np.frombuffer(index.small(stored), "<u2")
    if not pairs.size or pairs.size % 2 or not weight.shape:
        return []
    bits, first = pairs[0::2].astype(int), pairs[1::2].astype(int)
    if not all(1 <= width <= 8 for width in bits):
        return []
    ends = [*first[1:], weight.shape[0]]
    rows = [
        max(0, end - start) * 32 // width
        for width, start, end in zip(bits, first, ends, strict=True)
    ]
    n_in = perm.shape[0] if perm is not None and perm.shape else 0
    if n_in:
        rows[-1] = max(0, n_in - sum(rows[:-1]))
    return [(int(width), int(count)) for width, count in zip(bits, rows, strict=True)]


def _parsed(text: str) -> list[tuple[int, int]]:
    pairs = (part.split(":") for part in text.split(",") if part)
    return [(int(bits), int(rows)) for bits, rows in pairs]
