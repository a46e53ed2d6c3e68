"""FP-Quant: MXFP4 or NVFP4 codes of weights in a Hadamard basis.

Source: fp_quant 0.3.2, fp_quant/module/linear.py (planes). Codes are written and read by GPU kernels only, so the
order of the two nibbles of a byte is not proved and nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import Claim, GroupLevel, LogicalTensor, Packing, Reading, Role, ScaleLevel

from quantscope_plugins.families.listed import Listed, Size

FORMATS = {"mxfp4": ("e8m0", 32), "nvfp4": ("e4m3", 16)}


class FpQuant(Listed):
    """qweight and scales as bytes beside the Hadamard matrices."""

    name: ClassVar[str] = "fp_quant"
    title: ClassVar[str] = "FP-Quant (FP4 in a Hadamard basis)"
    reason: ClassVar[str] = "the order of the two codes of a byte is not proved"
    roles: ClassVar[Mapping[str, Role]] = {
        "qweight": "codes",
        "scales": "scale",
        "weight_global_scale": "scale2",
        "act_global_scale": "companion",
        "forward_hadamard_matrix": "meta",
        "backward_hadamard_matrix": "meta",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("qweight", "scales", "forward_hadamard_matrix")
    markers: ClassVar[tuple[str, ...]] = ("forward_hadamard_matrix",)
    methods: ClassVar[tuple[str, ...]] = ("fp_quant",)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N rows of two codes a byte."""
        codes, scales = index.get(module, "qweight"), index.get(module, "scales")
        if codes is None or scales is None or codes.dtype != "U8":
            return None
        if len(codes.shape) != 2 or len(scales.shape) != 2:
            return None
        return codes.shape[0], codes.shape[1] * 2

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """forward_dtype."""
        for section in declared.with_method("fp_quant"):
            known = FORMATS.get(str(section.get("forward_dtype")))
            if known is not None:
                yield section.claim("scale", {"dtype": known[0]}, "forward_dtype")
                yield section.claim("group", {"axis": "in", "size": known[1]}, "forward_dtype")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Both formats; the number of scales a row tells them apart."""
        for word, size in FORMATS.values():
            levels = [ScaleLevel(dtype=word, name="scales")]
            if tensor.plane("scale2") is not None:
                levels.append(
                    ScaleLevel(
                        dtype="f32", direction="divide", name="weight_global_scale", per="tensor"
                    )
                )
            yield Reading(
                element="e2m1",
                bit_width=4,
                shape=tensor.shape,
                group=(GroupLevel(axis="in", size=size),),
                scale=tuple(levels),
                zero="none",
                packing=Packing(word="U8", axis="in", order="low_first"),
                basis="rotated: forward_hadamard_matrix along the input",
            )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Bytes of two codes, one scale a run."""
        n_out, n_in = reading.shape
        return [
            Size("qweight", "U8 [N, K/2]", (n_out, n_in // 2), ("U8",)),
            Size("scales", "U8 [N, K/g]", (n_out, n_in // reading.group_size), ("U8",)),
            Size("weight_global_scale", "[1]", (1,), optional=True, alternatives=((),)),
        ]
