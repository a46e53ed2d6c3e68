"""ParoQuant: AWQ planes of weights in a basis rotated by pairs of channels.

Source: ModelCloud/GPTQModel, gptqmodel/nn_modules/qlinear/paroquant.py (planes, rotations of the input). The AWQ
planes decode as AWQ's do; the weights are those of the rotated, rescaled input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
from quantscope.families.base import demand
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Equation, LogicalTensor, Reading

from quantscope_plugins.families.awq_gemm import AwqGemm
from quantscope_plugins.families.listed import planes_of

ROTATED = "rotated: pairs of input channels (theta, pairs) and channel_scales"
ROTATION = ("theta", "pairs", "channel_scales")


class ParoQuant(AwqGemm):
    """AWQ planes beside theta, pairs and channel_scales."""

    name: ClassVar[str] = "paroquant"
    title: ClassVar[str] = "ParoQuant (AWQ planes in a rotated basis)"

    def signature(self) -> Signature:
        """`theta`."""
        return Signature(last_parts=("theta", "channel_scales"))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor]:
        """The AWQ modules that have rotation planes."""
        for tensor in super().group(index, declared):
            extra = planes_of(index, tensor.module, dict.fromkeys(ROTATION, "meta"))
            if tensor.part is not None or len(extra) < 2:
                continue
            yield msgspec.structs.replace(
                tensor, word="paroquant", basis=ROTATED, planes=(*tensor.planes, *extra)
            )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """AWQ's readings in the rotated basis."""
        for reading in super().candidates(tensor):
            yield msgspec.structs.replace(reading, basis=ROTATED)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """AWQ's sizes, angles and pairs of every rotation, one factor an input channel."""
        n_in = reading.shape[1]
        theta = tensor.plane_named("theta")
        steps = theta.shape[0] if theta is not None and len(theta.shape) == 2 else 0
        return [
            *super().equations(tensor, reading),
            demand(theta, "theta", "[R, K/2]", (steps, n_in // 2)),
            demand(tensor.plane_named("pairs"), "pairs", "[R, K]", (steps, n_in)),
            demand(
                tensor.plane_named("channel_scales"),
                "channel_scales",
                "[1, K]",
                (1, n_in),
                alternatives=((n_in,),),
                optional=True,
            ),
        ]
