"""SINQ: HQQ-like codes under `W_q` with scales on both axes under `meta.`.

Source: sinq 0.2.0, sinq/patch_model.py (names: tensors of a layer's meta become `<layer>.meta.<key>`, all other
values lie in `model.safetensors.index.json.meta.json`), sinq/quantizer.py and bitpack.py (packing). Whether codes
are integers or NF4 levels is said only in that side file, which is no declaration read here: nothing is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.families.base import SCALE_WORDS, ceil_div
from quantscope.families.index import TensorIndex
from quantscope.model import GroupLevel, LogicalTensor, Packing, Reading, Role, ScaleLevel

from quantscope_plugins.families.listed import Listed, Size

WIDTHS = {
    ("U8", 1): 8,
    ("U8", 2): 4,
    ("U8", 4): 2,
    ("U8", 8): 1,
    ("I32", 5): 6,
    ("I32", 6): 5,
    ("I32", 10): 3,
}
"""Codes of a word -> bits."""


class Sinq(Listed):
    """W_q with meta.scale, meta.zero and meta.scale2."""

    name: ClassVar[str] = "sinq"
    title: ClassVar[str] = "SINQ (W_q with scales of rows and columns)"
    reason: ClassVar[str] = (
        "whether codes are integers or NF4 levels lies in a side file not read here"
    )
    roles: ClassVar[Mapping[str, Role]] = {
        "W_q": "codes",
        "meta.scale": "scale",
        "meta.scale.x": "scale",
        "meta.scale.s": "scale2",
        "meta.scale.m": "meta",
        "meta.zero": "zero",
        "meta.zero.x": "zero",
        "meta.zero.s": "meta",
        "meta.zero.m": "meta",
        "meta.scale2": "scale2",
        "meta.awq_scale": "meta",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("W_q", "meta.scale", "meta.zero")
    markers: ClassVar[tuple[str, ...]] = ("meta.scale", "meta.scale.x", "meta.zero", "meta.scale2")
    methods: ClassVar[tuple[str, ...]] = ("sinq",)

    def needed_of(self, index: TensorIndex, module: str) -> tuple[str, ...]:
        """Scales and zeros are tensors, or 8-bit codes with a scale and an offset of their own."""
        codes, *rest = self.needed
        nested = (f"{one}.x" if index.get(module, f"{one}.x") is not None else one for one in rest)
        return (codes, *nested)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """K of scale2; N from one scale a group of as many elements as W_q has columns."""
        codes, second = index.get(module, "W_q"), index.get(module, "meta.scale2")
        scale = index.get(module, "meta.scale") or index.get(module, "meta.scale.x")
        if codes is None or scale is None or len(codes.shape) != 2:
            return None
        total = math.prod(scale.shape) * codes.shape[1]
        n_in = codes.shape[1]
        if second is not None:
            n_in = math.prod(second.shape) if len(second.shape) == 2 else n_in
        return (total // n_in if n_in else 0), n_in

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The width that the number of codes a word gives."""
        scale, codes = tensor.plane("scale"), tensor.plane("codes")
        if scale is None or codes is None or not codes.shape[0]:
            return
        rows = math.prod(scale.shape)
        width = next(
            (
                bits
                for (dtype, fields), bits in WIDTHS.items()
                if dtype == codes.dtype and ceil_div(rows, fields) == codes.shape[0]
            ),
            0,
        )
        levels = [ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name=scale.suffix)]
        second = tensor.plane_named("meta.scale2")
        if second is not None:
            word = SCALE_WORDS.get(second.dtype, second.dtype)
            levels.append(ScaleLevel(dtype=word, name="meta.scale2", per="input channel"))
        tiled = len(scale.shape) == 3
        yield Reading(
            element=f"u{width}" if width else "",
            bit_width=width,
            shape=tensor.shape,
            group=(GroupLevel(axis="in", size=codes.shape[1]),),
            scale=tuple(levels),
            zero="float_zero",
            packing=Packing(word=codes.dtype, axis="out", order="row_chunks_high_first"),
            symmetric=False,
            basis="square tiles; the planes do not say how many lie side by side"
            if tiled
            else "plain",
        )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Codes of all groups in words, one zero a scale or one for all."""
        scale, codes = tensor.plane("scale"), tensor.plane("codes")
        zero = tensor.plane("zero")
        scales = scale.shape if scale is not None else ()
        columns = codes.shape[-1] if codes is not None and codes.shape else 0
        fields = next((f for (_, f), bits in WIDTHS.items() if bits == reading.bit_width), 1)
        return [
            Size(
                "W_q",
                f"[ceil(G/{fields}), g]",
                (ceil_div(math.prod(scales), fields), columns),
                ("U8", "I32"),
            ),
            Size(
                zero.suffix if zero is not None else "meta.zero",
                "like meta.scale",
                scales,
                alternatives=((), (1,), (1, 1), (math.prod(scales), 1)),
            ),
        ]
