"""QuIP#: lattice codebooks in a rotated basis.

Source: Cornell-RelaxML/quip-sharp, lib/linear/quantized_linear.py (planes), lib/codebook/ (codebooks). The order
of packed sign bits and the incoherence transform run on a GPU only, so nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.families.index import TensorIndex
from quantscope.model import GroupLevel, LogicalTensor, Packing, Reading, Role, ScaleLevel

from quantscope_plugins.families.listed import Listed, Size


class QuipSharp(Listed):
    """Qidxs, SU, SV, Wscale and codebook_id."""

    name: ClassVar[str] = "quip"
    title: ClassVar[str] = "QuIP# (lattice codebooks)"
    reason: ClassVar[str] = (
        "the packing of the lattice's signs and the transform back are not proved here"
    )
    roles: ClassVar[Mapping[str, Role]] = {
        "Qidxs": "codes",
        "SU": "sign",
        "SV": "sign",
        "Wscale": "scale",
        "codebook_id": "meta",
        "fuse_scales": "meta",
        "A": "meta",
        "B": "meta",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("Qidxs", "SU", "SV", "Wscale")
    markers: ClassVar[tuple[str, ...]] = ("Qidxs",)
    methods: ClassVar[tuple[str, ...]] = ("quip", "quip_sharp")

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N of SV, K of SU."""
        left, right = index.get(module, "SV"), index.get(module, "SU")
        codes = index.get(module, "Qidxs")
        if left is None or right is None or codes is None or len(codes.shape) != 2:
            return None
        if len(left.shape) != 1 or len(right.shape) != 1:
            return None
        return left.shape[0], right.shape[0]

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """2 bits a weight (one word for 32), 4 bits (16), 3 bits (codes of two codebooks)."""
        codes = tensor.plane("codes")
        n_out, n_in = tensor.shape
        if codes is None or not codes.shape[-1]:
            return
        for per_word, element in ((32, "codebook(E8P12)"), (16, "codebook(E8P12RVQ)")):
            yield Reading(
                element=element,
                bit_width=0,
                shape=(n_out, n_in),
                group=(GroupLevel(axis="tensor"),),
                scale=(ScaleLevel(dtype="f32", name="Wscale"),),
                zero="none",
                packing=Packing(word=codes.dtype, axis="none", order="tile"),
                placement="quip",
                basis="rotated: random Hadamard on both sides",
                effective_bits=64 / per_word,
                extra=(("per_word", str(per_word)),),
            )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Words of the lattice, signs of both sides, one scale."""
        n_out, n_in = reading.shape
        per_word = int(reading.fact("per_word"))
        return [
            Size("Qidxs", f"I64 [N, K/{per_word}]", (n_out, n_in // per_word), ("I64",)),
            Size("SU", "[K]", (n_in,)),
            Size("SV", "[N]", (n_out,)),
            Size("Wscale", "[]", (), (), alternatives=((1,),)),
        ]
