"""`torch`: the low-bit kernels that PyTorch itself carries, on CPU and CUDA."""

from __future__ import annotations

import platform
from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.parity.model import Device, ErrorModel
from quantscope.parity.protocol import (
    API_VERSION,
    Available,
    Fixture,
    Kernel,
    RawWeight,
    Refusal,
    RefusedError,
    TraceData,
    TraceRule,
    Weight,
)

from quantscope_plugins.kernels import fixtures, layouts, torch_calls
from quantscope_plugins.kernels.base import AffineKernel, Buffers, versions
from quantscope_plugins.kernels.torch_bytes import Fp8Kernel, Int8Kernel
from quantscope_plugins.kernels.unpacking import Affine

INT4_GROUPS = (32, 64, 128, 256)
"""Group sizes that the int4 kernels take. Source: PyTorch 2.13, aten/src/ATen/native/LinearAlgebra.cpp."""


def _unsigned(affine: Affine) -> tuple[Array, Array, Array]:
    """(codes 0..15, scale, offset) with signed codes moved up by 8."""
    low = int(affine.codes.min(initial=0))
    if low >= 0:
        return affine.codes, affine.scale, affine.offset
    return affine.codes + 8, affine.scale, affine.offset - 8 * affine.scale


def unsigned_zeros(affine: Affine) -> tuple[Array, Array]:
    """(codes 0..15, integer zeros [N, G]) with signed codes moved up by 8.

    Raises:
        RefusedError: a zero is no integer from 0 to 15.
    """
    zero = affine.zero if affine.zero is not None else np.zeros_like(affine.scale)
    codes = affine.codes
    if int(codes.min(initial=0)) < 0 or affine.zero is None:
        codes, zero = codes + 8, zero + 8
    if bool((zero != np.rint(zero)).any()) or bool(((zero < 0) | (zero > 15)).any()):
        detail = "takes integer zeros from 0 to 15; these are others"
        raise RefusedError(Refusal(reason="contract_unsupported", detail=detail))
    return codes, zero.astype(np.int64)


def four_bit_problem(weight: Weight) -> Refusal | None:
    """Why a weight is no affine 4-bit one, or None."""
    problem = layouts.affine_problem(weight)
    if problem is not None:
        return Refusal(reason="contract_unsupported", detail=problem)
    if weight.reading.element not in ("u4", "s4"):
        detail = f"takes 4-bit codes, these are {weight.reading.element}"
        return Refusal(reason="contract_unsupported", detail=detail)
    return None


class _Int4(AffineKernel):
    """Codes repacked, zeros folded around 8: w = (q - 8) * scale + zero."""

    packages = ("torch",)
    contracts = ("4 bit affine: " + " ".join(layouts.AFFINE_FAMILIES),)

    def missing(self) -> Refusal | None:
        """Torch, and a build for the device."""
        return torch_calls.torch_missing(self.device)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit affine weights with groups of 32 to 256."""
        problem = four_bit_problem(weight)
        if problem is not None:
            return problem
        if weight.reading.group_size not in INT4_GROUPS:
            sizes = ", ".join(map(str, INT4_GROUPS))
            detail = f"takes groups of {sizes}, these have {weight.reading.group_size}"
            return Refusal(reason="shape_unsupported", detail=detail)
        return None

    def _operands(self, raw: RawWeight, dtype: str) -> tuple[Any, Any, Array | None, int]:
        """(codes int32 [N, K], scales and zeros [K/g, N, 2], column order, group size)."""
        import torch

        affine = layouts.affine_of(raw)
        codes, scale, offset = _unsigned(affine)
        both = np.stack([scale, offset + 8 * scale], axis=-1).transpose(1, 0, 2)
        packed = torch.from_numpy(np.ascontiguousarray(both, dtype=np.float64))
        packed = packed.to(torch_calls.torch_dtype(dtype)).contiguous().to(self.device)
        made = torch.from_numpy(np.ascontiguousarray(codes, dtype=np.int32))
        return made, packed, affine.order, affine.group_size

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        return torch_calls.numbers(self._call(prepared, self._input(prepared, x, dtype)))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler."""
        made = self._input(prepared, x, dtype)
        return torch_calls.traced(lambda: self._call(prepared, made), self.device)

    def _input(self, prepared: Any, x: Array, dtype: str) -> Any:
        order = prepared["order"]
        return torch_calls.tensor(x if order is None else x[:, order], dtype, self.device)

    def _call(self, prepared: Any, x: Any) -> Any:
        raise NotImplementedError


class Int4Cpu(_Int4):
    """`aten::_weight_int4pack_mm_for_cpu`.

    Rounding points, counted in PyTorch 2.13, aten/src/ATen/native/cpu/int4mm_kernel.cpp: scale and folded zero come in
    the type of x (one rounding each, made by the repack, shared by a group); code times scale plus zero in float32,
    fused in the vector path, two roundings in the plain one; products accumulate in float32 over K; one rounding to
    the type of x. bfloat16 takes the AVX-512 path, float16 and float32 the plain one.
    """

    name = "int4"
    title = "aten::_weight_int4pack_mm_for_cpu"
    dtypes = ("bf16", "f16", "f32")
    slowdown = 0.3
    trace_rule = TraceRule(
        must=(r"^aten::_weight_int4pack_mm_for_cpu$",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )

    def available(self) -> Available:
        """Torch with the operator."""
        found = torch_calls.torch_available("cpu")
        no = torch_calls.operator_missing("_weight_int4pack_mm_for_cpu", "cpu")
        return Available(refusal=no, versions=found.versions, device_name=found.device_name)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Besides, whole blocks of 16 output channels."""
        problem = super().refusal(weight, dtype)
        if problem is None and weight.n_rows % 16:
            detail = f"{weight.n_rows} output channels are no whole blocks of 16"
            return Refusal(reason="shape_unsupported", detail=detail)
        return problem

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype=dtype,
            weight_dtype="f32",
            weight_roundings=2,
            scale_dtype=dtype,
            zero_dtype=dtype,
            pivot=8.0,
            accumulate_dtype="f32",
            output_dtype=dtype,
            magnitude="folded",
            statement=(
                f"scale and folded zero (8 - z) * s held in {dtype}, shared by a group; (q - 8) * s + zero in float32, "
                f"two roundings; float32 sum over K; one rounding to {dtype}"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Repack by the library's own converter."""
        import torch

        codes, scales, order, group_size = self._operands(raw, dtype)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        return Buffers(
            {"packed": packed.numpy(), "scales_and_zeros": scales.float().numpy()},
            packed=packed,
            scales=scales,
            order=order,
            group_size=group_size,
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        return torch.ops.aten._weight_int4pack_mm_for_cpu(
            x, prepared["packed"], prepared["group_size"], prepared["scales"]
        )


class Int4Cuda(_Int4):
    """`aten::_weight_int4pack_mm` (tinygemm), bfloat16 only.

    Rounding points, counted in PyTorch 2.13, aten/src/ATen/native/cuda/int4mm.cu: scale and folded zero in bfloat16, shared
    by a group; code times scale plus zero as one fused bfloat16 operation, one rounding a weight; tensor cores
    accumulate in float32; one rounding to bfloat16.
    """

    name = "int4"
    title = "aten::_weight_int4pack_mm (tinygemm)"
    device: Device = "cuda"
    dtypes = ("bf16",)
    slowdown = 0.001
    trace_rule = TraceRule(
        must=(r"tinygemm_m16n8k16_chunk_kernel",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )
    inner_tiles = 2

    def available(self) -> Available:
        """A CUDA device from sm_80 on."""
        return torch_calls.torch_available("cuda", (8, 0))

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Besides, whole tiles of 16 * 2 columns and of 8 rows."""
        problem = super().refusal(weight, dtype)
        if problem is None and (weight.n_cols % 32 or weight.n_rows % 8):
            detail = f"[{weight.n_rows}, {weight.n_cols}] is no whole number of tiles of 8 by 32"
            return Refusal(reason="shape_unsupported", detail=detail)
        return problem

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="bf16",
            weight_dtype="bf16",
            weight_roundings=1,
            scale_dtype="bf16",
            zero_dtype="bf16",
            pivot=8.0,
            accumulate_dtype="f32",
            output_dtype="bf16",
            magnitude="folded",
            statement=(
                "scale and folded zero held in bf16, shared by a group; one fused bf16 rounding a weight; float32 sum in "
                "tensor cores; one rounding to bf16"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Two codes a byte, the even column above, then the library's own tiling."""
        import torch

        codes, scales, order, group_size = self._operands(raw, "bf16")
        octets = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8).to("cuda")
        packed = torch.ops.aten._convert_weight_to_int4pack(octets, self.inner_tiles)
        return Buffers(
            {"packed": packed.cpu().numpy(), "scales_and_zeros": scales.float().cpu().numpy()},
            packed=packed,
            scales=scales,
            order=order,
            group_size=group_size,
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        return torch.ops.aten._weight_int4pack_mm(
            x, prepared["packed"], prepared["group_size"], prepared["scales"]
        )


class DynQuant4(AffineKernel):
    """`aten::_dyn_quant_matmul_4bit`: symmetric 4-bit weights, activations quantized to int8 per row.

    Rounding points, counted in PyTorch 2.13, aten/src/ATen/native/cpu/int4mm_kernel.cpp, the plain group-wise kernel: each
    row of x is rounded to int8 over its range with a rounded zero point; integer sums within a group are exact; group
    sums times scales accumulate in float32, one more product with the row's scale. KleidiAI (AArch64) takes scales in
    bfloat16, the plain kernel in float32.
    """

    name = "dyn_quant"
    title = "aten::_dyn_quant_matmul_4bit"
    dtypes = ("f32",)
    packages = ("torch",)
    slowdown = 3.0
    contracts = ("symmetric 4 bit, zero 8",)
    trace_rule = TraceRule(
        must=(r"^aten::_dyn_quant_matmul_4bit$",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )

    @property
    def scale_dtype(self) -> str:
        """Type in which scales are handed over."""
        return "bf16" if platform.machine().lower() in ("aarch64", "arm64") else "f32"

    def missing(self) -> Refusal | None:
        """Torch."""
        return torch_calls.torch_missing("cpu")

    def available(self) -> Available:
        """Torch with the operator."""
        found = torch_calls.torch_available("cpu")
        no = torch_calls.operator_missing("_dyn_quant_matmul_4bit", "cpu")
        return Available(refusal=no, versions=found.versions, device_name=found.device_name)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit codes with zero 8 (or signed ones with zero 0), whole groups of 32."""
        problem = four_bit_problem(weight)
        if problem is not None:
            return problem
        reading = weight.reading
        if reading.zero not in ("fixed", "none", "integer"):
            detail = f"takes symmetric weights, these have {reading.zero}"
            return Refusal(reason="contract_unsupported", detail=detail)
        if reading.group_size % 32:
            detail = f"takes groups of whole 32, these have {reading.group_size}"
            return Refusal(reason="shape_unsupported", detail=detail)
        return None

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="f32",
            weight_dtype="f32",
            weight_roundings=2,
            scale_dtype=self.scale_dtype,
            accumulate_dtype="f32",
            output_dtype="f32",
            activation="int8_row",
            statement=(
                "x rounded to int8 per row with a rounded zero point; exact integer sums in a group; float32 sum over groups"
            ),
        )

    def fixture(self, weight: Weight) -> Fixture | None:
        """Symmetric codes."""
        return fixtures.symmetric("ct_pack")

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Two codes a byte, the even column below; refuses stored zeros that are not in the middle."""
        import torch

        affine = layouts.affine_of(raw)
        codes, scale, offset = _unsigned(affine)
        if bool((offset + 8 * scale != 0).any()):
            detail = "takes symmetric weights; the stored zeros are not all in the middle"
            raise RefusedError(Refusal(reason="contract_unsupported", detail=detail))
        octets = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8)
        scales = torch.from_numpy(np.ascontiguousarray(scale, dtype=np.float32))
        scales = scales.to(torch_calls.torch_dtype(self.scale_dtype))
        n, k = raw.shape
        packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
            torch.from_numpy(octets), scales, None, raw.group_size, k, n
        )
        return Buffers(
            {"packed": packed.numpy()},
            packed=packed,
            order=affine.order,
            group_size=raw.group_size,
            shape=(n, k),
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        n, k = prepared["shape"]
        return torch.ops.aten._dyn_quant_matmul_4bit(
            x, prepared["packed"], prepared["group_size"], k, n
        )

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        order = prepared["order"]
        made = torch_calls.tensor(x if order is None else x[:, order], "f32")
        return torch_calls.numbers(self._call(prepared, made))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler."""
        made = torch_calls.tensor(x, "f32")
        return torch_calls.traced(lambda: self._call(prepared, made), "cpu")


class TorchBuiltin:
    """PyTorch's own low-bit kernels."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "PyTorch's own low-bit kernels"
    api_version: ClassVar[int] = API_VERSION

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, ...] = (
            Int4Cuda(),
            Int4Cpu(),
            Int8Kernel("cuda"),
            Int8Kernel("cpu"),
            Fp8Kernel("cuda"),
            Fp8Kernel("cpu"),
            DynQuant4(),
        )

    def versions(self) -> dict[str, str]:
        """Torch's version."""
        return versions("torch")
