"""nunchaku: SVDQuant W4A4 and its AWQ W4A16, both in the register order of their kernels.

Source: nunchaku-tech/nunchaku, nunchaku/models/linear.py (planes), nunchaku/lora/flux/packer.py,
nunchaku/merge_safetensors.py (metadata). The packer's permutation is not proved here, so nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from quantscope.families.base import SCALE_WORDS
from quantscope.families.index import TensorIndex
from quantscope.model import GroupLevel, LogicalTensor, Packing, Reading, Role, ScaleLevel

from quantscope_plugins.families.listed import Listed, Size


class NunchakuSvdq(Listed):
    """qweight, wscales and the low-rank branch."""

    name: ClassVar[str] = "nunchaku_svdq"
    title: ClassVar[str] = "nunchaku SVDQuant (W4A4 with a low-rank branch)"
    reason: ClassVar[str] = "the register order of the kernel's fragments is not proved"
    word: ClassVar[str] = "nunchaku:svdquant"
    roles: ClassVar[Mapping[str, Role]] = {
        "qweight": "codes",
        "wscales": "scale",
        "wtscale": "scale2",
        "wcscales": "scale2",
        "proj_down": "meta",
        "proj_up": "meta",
        "lora_down": "meta",
        "lora_up": "meta",
        "smooth_factor": "meta",
        "smooth_factor_orig": "meta",
        "smooth": "meta",
        "smooth_orig": "meta",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("qweight", "wscales")
    markers: ClassVar[tuple[str, ...]] = ("wscales",)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """N rows of two codes a byte."""
        codes = index.get(module, "qweight")
        if codes is None or codes.dtype not in ("I8", "U8") or len(codes.shape) != 2:
            return None
        return codes.shape[0], codes.shape[1] * 2

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Signed int4 over 64 with float scales, E2M1 over 16 with FP8 scales."""
        scale = tensor.plane("scale")
        if scale is None:
            return
        fp8 = scale.dtype == "F8_E4M3"
        yield Reading(
            element="e2m1" if fp8 else "s4",
            bit_width=4,
            shape=tensor.shape,
            group=(GroupLevel(axis="in", size=16 if fp8 else 64),),
            scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="wscales"),),
            zero="none",
            packing=Packing(word="I8", axis="none", order="tile"),
            placement="nunchaku",
            basis="input channels rescaled, low-rank part apart",
            symmetric=None if fp8 else True,
        )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Bytes of two codes, scales [K/g, N], the branch's factors."""
        n_out, n_in = reading.shape
        ranks = [
            plane.shape[1]
            for suffix in ("proj_down", "lora_down")
            if (plane := tensor.plane_named(suffix)) is not None and len(plane.shape) == 2
        ]
        rank = ranks[0] if ranks else 0
        sizes = [
            Size("qweight", "I8 [N, K/2]", (n_out, n_in // 2)),
            Size("wscales", "[K/g, N]", (n_in // reading.group_size, n_out)),
        ]
        for down, up in (("proj_down", "proj_up"), ("lora_down", "lora_up")):
            if tensor.plane_named(down) is not None:
                sizes.append(Size(down, "[K, R]", (n_in, rank)))
                sizes.append(Size(up, "[N, R]", (n_out, rank)))
        return sizes


class NunchakuAwq(Listed):
    """qweight, wscales and wzeros."""

    name: ClassVar[str] = "nunchaku_awq"
    title: ClassVar[str] = "nunchaku AWQ W4A16"
    reason: ClassVar[str] = "the order of codes inside the kernel's words is not proved"
    word: ClassVar[str] = "nunchaku:awq"
    roles: ClassVar[Mapping[str, Role]] = {
        "qweight": "codes",
        "wscales": "scale",
        "wzeros": "zero",
        "bias": "bias",
    }
    needed: ClassVar[tuple[str, ...]] = ("qweight", "wscales", "wzeros")
    markers: ClassVar[tuple[str, ...]] = ("wzeros",)

    def shape_of(self, index: TensorIndex, module: str) -> tuple[int, int] | None:
        """Four rows and two columns a word."""
        codes = index.get(module, "qweight")
        if codes is None or codes.dtype != "I32" or len(codes.shape) != 2:
            return None
        return codes.shape[0] * 4, codes.shape[1] * 2

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Unsigned int4 over 64 with float zeros."""
        scale = tensor.plane("scale")
        if scale is None:
            return
        yield Reading(
            element="u4",
            bit_width=4,
            shape=tensor.shape,
            group=(GroupLevel(axis="in", size=64),),
            scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="wscales"),),
            zero="additive_min",
            packing=Packing(word="I32", axis="none", order="tile"),
            placement="nunchaku",
            symmetric=False,
        )

    def sizes(self, tensor: LogicalTensor, reading: Reading) -> list[Size]:
        """Words of eight codes, scales and zeros [K/g, N]."""
        n_out, n_in = reading.shape
        return [
            Size("qweight", "I32 [N/4, K/2]", (n_out // 4, n_in // 2), ("I32",)),
            Size("wscales", "[K/64, N]", (n_in // 64, n_out)),
            Size("wzeros", "[K/64, N]", (n_in // 64, n_out)),
        ]
