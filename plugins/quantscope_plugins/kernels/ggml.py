"""`ggml`: the product that llama.cpp runs, on raw GGUF blocks, by the library of an installed package."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.extras import install_hint
from quantscope.parity.model import Device, ErrorModel
from quantscope.parity.protocol import (
    API_VERSION,
    Available,
    Fixture,
    Kernel,
    RawWeight,
    Refusal,
    TraceData,
    Weight,
)

from quantscope_plugins.kernels import ggml_library, gguf_blocks
from quantscope_plugins.kernels.base import Buffers, KernelBase, file_sha256, versions
from quantscope_plugins.kernels.ggml_library import Ggml, find_libraries

Q8_1_TYPES = ("Q4_1", "Q5_1")
Q8_0_TYPES = ("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4", "Q1_0")
"""Types whose products take activations in blocks of 32; all others take Q8_K, blocks of 256.

Source: llama.cpp, ggml/src/ggml-cpu/ggml-cpu.c, type_traits_cpu.vec_dot_type.
"""


def activation_type(element: str) -> str:
    """Q8_0, Q8_1 or Q8_K: how activations are rounded for a weight type."""
    if element in Q8_1_TYPES:
        return "Q8_1"
    return "Q8_0" if element in Q8_0_TYPES else "Q8_K"


def rounded_activations(x: Array, kind: str) -> Array:
    """X as ggml rounds it for its integer products, float64.

    Q8_0 and Q8_1: step max|x|/127 of a block of 32, held in half; codes are x * (127/max|x|) to nearest. Q8_K: the
    block of 256 is scaled by -127 over its value of largest magnitude (with its sign), the step is the reciprocal in
    float32. Source: llama.cpp, ggml/src/ggml-cpu/arch/x86/quants.c (quantize_row_q8_0) and ggml/src/ggml-quants.c
    (quantize_row_q8_K_ref).
    """
    wide = np.asarray(x, dtype=np.float32)
    block = 256 if kind == "Q8_K" else 32
    runs = wide.reshape(wide.shape[0], -1, block)
    place = np.abs(runs).argmax(axis=2)[..., None]
    peak = np.take_along_axis(runs, place, axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "Q8_K":
            inverse = np.where(peak != 0, np.float32(-127) / peak, np.float32(0))
            step = np.where(peak != 0, np.float32(1) / inverse, np.float32(0)).astype(np.float64)
            codes = np.minimum(127, np.rint(inverse * runs))
        else:
            size = np.abs(peak)
            inverse = np.where(size != 0, np.float32(127) / size, np.float32(0))
            step = (size / np.float32(127)).astype(np.float16).astype(np.float64)
            codes = np.rint(runs * inverse)
    rounded: Array = (codes.astype(np.float64) * step).reshape(wide.shape)
    return rounded


class MulMat(KernelBase):
    """`ggml_mul_mat` on raw blocks.

    Rounding points, counted in llama.cpp, ggml/src/ggml-cpu/quants.c (ggml_vec_dot_*): activations are rounded to int8 in
    blocks (see `rounded_activations`); integer products within a sub-block are exact; they are scaled by the weight's
    and the activation's step in float32 (at most three roundings a block), minima are taken off as a product of their own,
    and blocks add up in float32. Q4_1 and Q5_1 hold the block's sum of activations in half: one more rounding, shared by
    the block. One-hot rows of height 127 have step 1 and are exact.
    """

    name = "mul_mat"
    contracts = ("gguf",)
    dtypes = ("f32",)
    amplitude = 127.0
    slowdown = 0.5

    def __init__(self, device: Device) -> None:
        self.device = device
        self.title = f"ggml_mul_mat on {device.upper()}, raw blocks"

    def missing(self) -> Refusal | None:
        """A package with the libraries."""
        found = find_libraries()
        if not found:
            detail = f"no ggml library found (pywhispercpp or llama-cpp-python): {install_hint('kernels')}"
            return Refusal(reason="package_missing", detail=detail)
        if self.device == "cuda" and not any(libraries.cuda for libraries in found):
            detail = "the ggml libraries found here are built without CUDA (llama-cpp-python with GGML_CUDA=on has it)"
            return Refusal(reason="package_missing", detail=detail)
        return None

    def available(self) -> Available:
        """Libraries that load, and a device."""
        try:
            engine = self._engine
        except (OSError, AttributeError) as problem:
            return Available(
                refusal=Refusal(reason="library_load_failed", detail=str(problem)[:300])
            )
        except RuntimeError as problem:
            return Available(refusal=Refusal(reason="no_cuda_device", detail=str(problem)))
        assert engine is not None
        path = self._libraries.cuda if self.device == "cuda" else self._libraries.cpu
        return Available(
            versions={"ggml": str(path.name if path else ""), "carrier": self._libraries.carrier},
            device_name=self.device.upper(),
        )

    @property
    def _libraries(self) -> ggml_library.Libraries:
        sets = find_libraries()
        return next((s for s in sets if self.device == "cpu" or s.cuda is not None), sets[0])

    @cached_property
    def _ggml(self) -> Ggml:
        return Ggml(self._libraries)

    @cached_property
    def _engine(self) -> Any:
        if self.device == "cpu":
            return self._ggml
        from quantscope_plugins.kernels.ggml_cuda import GgmlCuda

        return GgmlCuda(self._ggml)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Little-endian GGUF blocks."""
        problem = gguf_blocks.problem(weight)
        return Refusal(reason="contract_unsupported", detail=problem) if problem else None

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        kind = activation_type(weight.reading.element)
        minima = weight.reading.zero == "additive_min"
        return ErrorModel(
            input_dtype="f32",
            weight_dtype="f32",
            weight_roundings=3,
            zero_dtype="f16" if kind == "Q8_1" else "exact",
            accumulate_dtype="f32",
            output_dtype="f32",
            magnitude="parts" if minima else "difference",
            activation="q8_block",
            activation_block=256 if kind == "Q8_K" else 32,
            statement=(
                f"activations rounded to {kind}; integer sums exact; three float32 roundings a block; float32 sum over "
                "blocks" + ("; block sums of activations held in half" if kind == "Q8_1" else "")
            ),
        )

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
        """Nothing is repacked.

        Raises:
            ValueError: the library has another size for a row of this type.
        """
        type_id = gguf_blocks.type_id(raw.facts["type"])
        blocks = raw.arrays["blocks"]
        expected = self._ggml.row_bytes(type_id, raw.shape[1])
        if expected != blocks.shape[1]:
            raise ValueError(
                f"the library takes {expected} bytes a row of {raw.facts['type']}, the file has {blocks.shape[1]}"
            )
        return Buffers(blocks=blocks, type_id=type_id, n_cols=raw.shape[1])

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One product."""
        product: Array = self._engine.multiply(
            prepared["blocks"], prepared["type_id"], prepared["n_cols"], x
        )
        return product

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """No profiler sees the call; the library that made it is named."""
        path = self._libraries.cuda if self.device == "cuda" else self._libraries.cpu
        assert path is not None
        return TraceData(
            method="library called by address",
            complete=False,
            library=path.name,
            library_sha256=file_sha256(str(path)),
        )

    def quantized_input(self, weight: Weight, x: Array) -> Array | None:
        """X as the CPU library rounds it; the CUDA one rounds in other blocks."""
        if self.device == "cuda":
            return None
        return rounded_activations(x, activation_type(weight.reading.element))


class GgmlBackend:
    """llama.cpp's products on raw GGUF blocks."""

    name: ClassVar[str] = "ggml"
    title: ClassVar[str] = "ggml, the library of llama.cpp, on raw GGUF blocks"
    api_version: ClassVar[int] = API_VERSION

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, ...] = (MulMat("cuda"), MulMat("cpu"))

    def versions(self) -> dict[str, str]:
        """Packages that carry the library."""
        return versions("pywhispercpp", "llama-cpp-python", "gguf")
