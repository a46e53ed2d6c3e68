"""vLLM's CUTLASS operators: FP8 and NVFP4 products. Sources as in `vllm_cuda`."""

from __future__ import annotations

from typing import Any

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.grids import small_exponent
from quantscope.parity.model import ErrorModel
from quantscope.parity.protocol import Fixture, RawWeight, Refusal, TraceRule, Weight

from quantscope_plugins.kernels import (
    byte_planes,
    fixtures,
    nvfp4_planes,
    torch_calls,
    vllm_library,
)
from quantscope_plugins.kernels.base import Buffers
from quantscope_plugins.kernels.vllm_cuda import CudaOperator, placed


class CutlassFp8(CudaOperator):
    """`_C::cutlass_scaled_mm` over E4M3 bytes.

    Rounding points: bytes and activations exact; sums keep 14 bits in FP8 tensor cores; scales multiply in float32, three
    roundings; one rounding to bfloat16. Source: csrc/quantization/w8a8/cutlass.
    """

    name = "cutlass_fp8"
    title = "_C::cutlass_scaled_mm, E4M3"
    operator_name = "cutlass_scaled_mm"
    capability = (8, 9)
    contracts = ("e4m3fn per tensor", "e4m3fn per channel")
    dtypes = ("e4m3",)
    trace_rule = TraceRule(must=(r"cutlass|Kernel2|device_kernel",), neutral=torch_calls.NEUTRAL)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """E4M3 bytes with one scale a channel or tensor, whole tiles of 16."""
        problem = byte_planes.e4m3_problem(weight)
        if problem is None and (weight.n_cols % 16 or weight.n_rows % 16):
            detail = f"[{weight.n_rows}, {weight.n_cols}] is no whole number of tiles of 16"
            return Refusal(reason="shape_unsupported", detail=detail)
        return problem

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Bytes and scales."""
        return byte_planes.read(weight, n_rows, reader)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Codes moved by one column."""
        return byte_planes.halves_exchanged(raw)

    def fixture(self, weight: Weight) -> Fixture | None:
        """Every finite E4M3 byte."""
        return fixtures.bytes_e4m3()

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="e4m3",
            weight_dtype="f32",
            weight_roundings=3,
            accumulate_dtype="fp8_accumulate",
            output_dtype="bf16",
            statement="products exact; 14-bit sums; three float32 roundings by scales; one rounding to bf16",
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored bytes, viewed as E4M3."""
        import torch

        codes = placed(np.ascontiguousarray(raw.arrays["weight"]).view(np.uint8))
        return Buffers(
            weight=codes.view(torch.float8_e4m3fn),
            scales=placed(byte_planes.scales(raw).T.astype(np.float32)),
            n_rows=raw.shape[0],
        )

    def _call(self, prepared: Any, x: Array) -> Any:
        import torch

        shift = 2.0 ** small_exponent(x, "e4m3")
        made = torch.from_numpy(np.ascontiguousarray(x / shift, dtype=np.float32)).to("cuda")
        out = torch.empty((x.shape[0], prepared["n_rows"]), dtype=torch.bfloat16, device="cuda")
        values = {
            "out": out,
            "a": made.to(torch.float8_e4m3fn),
            "b": prepared["weight"].t(),
            "a_scales": torch.full((x.shape[0], 1), shift, device="cuda"),
            "b_scales": prepared["scales"],
        }
        vllm_library.call("cutlass_scaled_mm", values)
        return out


class CutlassFp4(CudaOperator):
    """`_C::cutlass_scaled_fp4_mm` over NVFP4 planes, scales in tiles of 128 by 4, activations in E2M1.

    Rounding points: products of two E2M1 values with E4M3 scales are exact in float32; sums in float32; the factor alpha
    multiplies the sum, two roundings; one rounding to bfloat16. Source: csrc/quantization/fp4.
    """

    name = "cutlass_fp4"
    title = "_C::cutlass_scaled_fp4_mm, NVFP4"
    operator_name = "cutlass_scaled_fp4_mm"
    capability = (10, 0)
    contracts = ("nvfp4",)
    dtypes = ("e2m1",)
    trace_rule = TraceRule(must=(r"cutlass|device_kernel",), neutral=torch_calls.NEUTRAL)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """NVFP4 planes, whole tiles of 32."""
        return nvfp4_planes.problem(weight)

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Codes, block scales and the tensor's scale."""
        return nvfp4_planes.read(weight, n_rows, reader)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Halves of every byte exchanged."""
        return nvfp4_planes.corrupted(raw)

    def fixture(self, weight: Weight) -> Fixture | None:
        """Codes in turn."""
        return nvfp4_planes.fixture()

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="e2m1",
            weight_dtype="f32",
            weight_roundings=3,
            accumulate_dtype="f32",
            output_dtype="bf16",
            statement="products and block scales exact; float32 sums; alpha in float32; one rounding to bf16",
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Stored codes; block scales moved into tiles; alpha from the tensor's scale."""
        import torch

        tiles = nvfp4_planes.tiled(raw.arrays["scale"])
        return Buffers(
            {"scale_tiles": tiles},
            codes=placed(raw.arrays["weight"]),
            scales=placed(tiles).view(torch.float8_e4m3fn),
            alpha=nvfp4_planes.tensor_scale(raw),
            n_rows=raw.shape[0],
        )

    def _call(self, prepared: Any, x: Array) -> Any:
        import torch

        shift = 2.0 ** small_exponent(x, "e2m1")
        codes, ones = nvfp4_planes.activations(x / shift)
        out = torch.empty((x.shape[0], prepared["n_rows"]), dtype=torch.bfloat16, device="cuda")
        alpha = torch.tensor(prepared["alpha"] * shift, dtype=torch.float32, device="cuda")
        values = {
            "out": out,
            "a": placed(codes),
            "b": prepared["codes"],
            "block_scale_a": placed(ones).view(torch.float8_e4m3fn),
            "block_scale_b": prepared["scales"],
            "alpha": alpha,
        }
        vllm_library.call("cutlass_scaled_fp4_mm", values)
        return out
