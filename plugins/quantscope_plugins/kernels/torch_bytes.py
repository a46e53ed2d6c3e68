"""PyTorch's kernels over whole bytes: weight-only int8 and FP8."""

from __future__ import annotations

from typing import Any

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.grids import small_exponent
from quantscope.parity.model import Device, ErrorModel
from quantscope.parity.protocol import (
    Available,
    Fixture,
    RawWeight,
    Refusal,
    RefusedError,
    TraceData,
    TraceRule,
    Weight,
)

from quantscope_plugins.kernels import byte_planes, fixtures, torch_calls
from quantscope_plugins.kernels.base import Buffers, KernelBase


class _BytesKernel(KernelBase):
    """Reading, corruption and calling are shared."""

    packages = ("torch",)

    def missing(self) -> Refusal | None:
        """Torch, and a build for the device."""
        return torch_calls.torch_missing(self.device)

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Bytes and scales."""
        return byte_planes.read(weight, n_rows, reader)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Codes moved by one column."""
        return byte_planes.halves_exchanged(raw)

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        return torch_calls.numbers(self._call(prepared, x, dtype))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler."""
        return torch_calls.traced(lambda: self._call(prepared, x, dtype), self.device)

    def _call(self, prepared: Any, x: Array, dtype: str) -> Any:
        raise NotImplementedError


class Int8Kernel(_BytesKernel):
    """`aten::_weight_int8pack_mm`.

    Rounding points, counted in PyTorch 2.13, aten/src/ATen/native/cpu/int8mm_kernel.cpp: the channel's scale comes in the
    type of x (one rounding, shared by the channel); byte times scale in float32, one rounding; float32 sum over K in
    lanes of 16; one rounding to the type of x. The CUDA kernel (native/cuda/int8mm.cu) has the same points.
    """

    name = "int8"
    title = "aten::_weight_int8pack_mm"
    contracts = ("s8 per channel",)
    slowdown = 0.5
    trace_rule = TraceRule(
        must=(r"_weight_int8pack_mm|weight_int8pack_mm_kernel",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )

    def __init__(self, device: Device) -> None:
        self.device = device
        self.dtypes = ("f16", "bf16", "f32") if device == "cpu" else ("f16", "bf16")

    def available(self) -> Available:
        """Torch with the operator on the device."""
        found = torch_calls.torch_available(self.device)
        no = found.refusal or torch_calls.operator_missing("_weight_int8pack_mm", self.device)
        return Available(refusal=no, versions=found.versions, device_name=found.device_name)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Signed bytes with one scale a channel; rows of whole 16."""
        problem = byte_planes.int8_problem(weight)
        if problem is None and weight.n_cols % 16:
            detail = f"rows of {weight.n_cols} are no whole lanes of 16"
            return Refusal(reason="shape_unsupported", detail=detail)
        return problem

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype=dtype,
            weight_dtype="f32",
            weight_roundings=2,
            scale_dtype=dtype,
            accumulate_dtype="f32",
            output_dtype=dtype,
            statement=(
                f"scale held in {dtype}, shared by a channel; byte * scale in float32 (and one rounding of the scale's own "
                f"quotient by 127 where there is one); float32 sum over K; one rounding to {dtype}"
            ),
        )

    def fixture(self, weight: Weight) -> Fixture | None:
        """Signed bytes."""
        return fixtures.bytes_int8()

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored bytes; refuses stored zeros that are not zero."""
        import torch

        zero = raw.arrays.get("zero_point")
        if zero is not None and bool((zero != 0).any()):
            detail = "takes symmetric bytes; the stored zeros are not all zero"
            raise RefusedError(Refusal(reason="contract_unsupported", detail=detail))
        made = torch.from_numpy(np.ascontiguousarray(raw.arrays["weight"]).astype(np.int8))
        scales = byte_planes.scales(raw)[:, 0]
        held = torch.from_numpy(np.ascontiguousarray(scales)).to(torch_calls.torch_dtype(dtype))
        return Buffers(weight=made.to(self.device), scales=held.to(self.device))

    def _call(self, prepared: Any, x: Array, dtype: str) -> Any:
        import torch

        made = torch_calls.tensor(x, dtype, self.device)
        return torch.ops.aten._weight_int8pack_mm(made, prepared["weight"], prepared["scales"])


class Fp8Kernel(_BytesKernel):
    """`aten::_scaled_mm` over E4M3 bytes, activations in E4M3 with a power-of-two scale.

    Rounding points: bytes and activations are exact; products of two E4M3 values are exact in float32; the sum over K
    is float32 on CPU (oneDNN, or a float32 product over widened bytes) and keeps 14 bits inside Hopper's tensor cores;
    scale of the weight (divided or not) and of the activations multiply the sum, at most three float32 roundings; one
    rounding to the output type. Source: PyTorch 2.13, aten/src/ATen/native/Blas.cpp and native/cuda/ScaledBlas.cpp.
    """

    name = "fp8"
    title = "aten::_scaled_mm"
    contracts = ("e4m3fn per tensor", "e4m3fn per channel")
    dtypes = ("e4m3",)
    slowdown = 0.5

    def __init__(self, device: Device) -> None:
        self.device = device
        must = r"^aten::_scaled_mm$" if device == "cpu" else r"e4m3|fp8|f8|cutlass.*gemm|nvjet"
        products = torch_calls.DENSE_PRODUCTS if device == "cpu" else ()
        self.trace_rule = TraceRule(must=(must,), fallback=products, neutral=torch_calls.NEUTRAL)

    @property
    def output_dtype(self) -> str:
        """Type that is asked for as output."""
        return "f32" if self.device == "cpu" else "bf16"

    def available(self) -> Available:
        """Torch with the operator; sm_89 and up on CUDA."""
        found = torch_calls.torch_available(
            self.device, (8, 9) if self.device == "cuda" else (0, 0)
        )
        no = found.refusal or torch_calls.operator_missing("_scaled_mm", self.device)
        return Available(refusal=no, versions=found.versions, device_name=found.device_name)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """E4M3 bytes with one scale a channel or tensor; whole tiles of 16."""
        problem = byte_planes.e4m3_problem(weight)
        if problem is None and (weight.n_cols % 16 or weight.n_rows % 16):
            detail = f"[{weight.n_rows}, {weight.n_cols}] is no whole number of tiles of 16"
            return Refusal(reason="shape_unsupported", detail=detail)
        return problem

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        on_device = self.device == "cuda"
        return ErrorModel(
            input_dtype="e4m3",
            weight_dtype="f32",
            weight_roundings=3,
            accumulate_dtype="fp8_accumulate" if on_device else "f32",
            output_dtype=self.output_dtype,
            statement=(
                "bytes, activations and their products exact; sum over K in "
                + ("14 bits of FP8 tensor cores" if on_device else "float32")
                + f"; three float32 roundings by scales; one rounding to {self.output_dtype}"
            ),
        )

    def fixture(self, weight: Weight) -> Fixture | None:
        """Every finite E4M3 byte."""
        return fixtures.bytes_e4m3()

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored bytes, viewed as E4M3."""
        import torch

        octets = torch.from_numpy(np.ascontiguousarray(raw.arrays["weight"]).view(np.uint8).copy())
        scales = torch.from_numpy(np.ascontiguousarray(byte_planes.scales(raw).T, dtype=np.float32))
        return Buffers(
            weight=octets.view(torch.float8_e4m3fn).to(self.device),
            scales=scales.contiguous().to(self.device),
        )

    def _call(self, prepared: Any, x: Array, dtype: str) -> Any:
        import torch

        shift = 2.0 ** small_exponent(x, "e4m3")
        made = torch.from_numpy(np.ascontiguousarray(x / shift, dtype=np.float32))
        eight = made.to(self.device).to(torch.float8_e4m3fn)
        return torch._scaled_mm(
            eight,
            prepared["weight"].t(),
            scale_a=torch.full((x.shape[0], 1), shift, device=self.device),
            scale_b=prepared["scales"],
            out_dtype=torch_calls.torch_dtype(self.output_dtype),
        )
