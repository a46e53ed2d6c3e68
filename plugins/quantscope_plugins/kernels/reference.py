"""`reference`: a second reading of the bytes by other code, multiplied in float32. It runs no kernel.

GGUF blocks go through gguf-py's own dequantizer, affine planes through this package's bit-by-bit unpacker. What holds
here says that two independent readers agree, never that a runtime does; the `kernel` gate stays unexecuted.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.model import ErrorModel
from quantscope.parity.protocol import (
    API_VERSION,
    Fixture,
    Kernel,
    RawWeight,
    Refusal,
    Weight,
)

from quantscope_plugins.kernels import gguf_blocks, layouts
from quantscope_plugins.kernels.base import AffineKernel, Buffers, KernelBase, versions

FLOAT32_PRODUCT = ErrorModel(
    input_dtype="f32",
    weight_dtype="f32",
    weight_roundings=3,
    accumulate_dtype="f32",
    output_dtype="f32",
    magnitude="parts",
    statement=(
        "float32 throughout: product with the scale, sum with the zero's term and the cast round each weight at "
        "most three times, the product accumulates in float32 and is rounded once more"
    ),
)


class _Float32Product(KernelBase):
    """numpy's float32 product over dequantized weights."""

    executes = False
    dtypes = ("f32",)
    slowdown = 0.1
    limits = ("no kernel ran: two readers of the bytes were compared, not a runtime",)

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """X @ W.T in float32."""
        product: Array = x.astype(np.float32) @ prepared["weights"].T
        return product

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """Float32 throughout."""
        return FLOAT32_PRODUCT


class AffineReference(_Float32Product, AffineKernel):
    """Affine planes unpacked bit by bit."""

    name = "affine"
    title = "planes unpacked bit by bit, float32 product"

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Any affine family and width."""
        problem = layouts.affine_problem(weight)
        return Refusal(reason="contract_unsupported", detail=problem) if problem else None

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Dequantized weights."""
        return Buffers(weights=layouts.affine_of(raw).weights().astype(np.float32))


class GgufPyReference(_Float32Product):
    """GGUF blocks dequantized by gguf-py."""

    name = "gguf-py"
    title = "gguf-py's dequantizer, float32 product"
    contracts = ("gguf",)
    packages = ("gguf",)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Block types that gguf-py knows."""
        problem = gguf_blocks.problem(weight)
        if problem is None and not gguf_blocks.gguf_py_decodes(weight.reading.element):
            problem = f"gguf-py does not dequantize {weight.reading.element}"
        return Refusal(reason="contract_unsupported", detail=problem) if problem else None

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Raw blocks."""
        return gguf_blocks.read(weight, n_rows, reader)

    def fixture(self, weight: Weight) -> Fixture | None:
        """A block type of the same kind."""
        return gguf_blocks.fixture(weight)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Blocks of every row moved by one."""
        return gguf_blocks.moved_by_one_block(raw)

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Dequantized weights."""
        return Buffers(weights=gguf_blocks.dequantized(raw))


class Reference:
    """Second readers of the bytes."""

    name: ClassVar[str] = "reference"
    title: ClassVar[str] = "second readers of the same bytes: no kernel runs"
    api_version: ClassVar[int] = API_VERSION

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, ...] = (AffineReference(), GgufPyReference())

    def versions(self) -> dict[str, str]:
        """What it uses."""
        return versions("numpy", "gguf")
