"""`bitsandbytes`: its 4-bit and int8 products, on CPU and CUDA, on the stored bytes."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.parity.model import Device, ErrorModel
from quantscope.parity.protocol import (
    API_VERSION,
    Available,
    Fixture,
    Kernel,
    RawWeight,
    Refusal,
    TraceData,
    TraceRule,
    Weight,
)

from quantscope_plugins.kernels import bnb_planes, byte_planes, fixtures, torch_calls
from quantscope_plugins.kernels.base import Buffers, KernelBase, versions

_NEUTRAL = (
    *torch_calls.NEUTRAL,
    r"^aten::(round|reciprocal|as_strided_|squeeze_|unsqueeze_)",
    r"^MatMul8bitLt$",
    r"^bitsandbytes::(int8_vectorwise_quant|int8_mm_dequant|int8_scaled_mm)$",
    r"kInt8VectorQuant|kdequant_mm_int32_fp16",
)


class _Bnb(KernelBase):
    """Packages and devices are shared."""

    packages = ("torch", "bitsandbytes")

    def __init__(self, device: Device) -> None:
        self.device = device

    def missing(self) -> Refusal | None:
        """Torch for the device, and bitsandbytes."""
        return torch_calls.torch_missing(self.device) or super().missing()

    def available(self) -> Available:
        """Torch's device and an importable package."""
        found = torch_calls.torch_available(self.device)
        if found.refusal is not None:
            return found
        try:
            import bitsandbytes
        except (ImportError, OSError, RuntimeError) as problem:
            no = Refusal(reason="library_load_failed", detail=f"bitsandbytes: {problem}"[:300])
            return Available(refusal=no, versions=found.versions)
        return Available(
            versions=found.versions | {"bitsandbytes": str(bitsandbytes.__version__)},
            device_name=found.device_name,
        )

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        return torch_calls.numbers(self._call(prepared, torch_calls.tensor(x, dtype, self.device)))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler."""
        made = torch_calls.tensor(x, dtype, self.device)
        return torch_calls.traced(lambda: self._call(prepared, made), self.device)

    def _call(self, prepared: Any, x: Any) -> Any:
        raise NotImplementedError


class _FourBit(_Bnb):
    """NF4 and FP4 planes through the package's own loader."""

    contracts = ("bnb nf4", "bnb fp4")

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit planes with their stored state."""
        return bnb_planes.problem(weight)

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Stored planes."""
        return bnb_planes.read(weight, n_rows, reader)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Nibbles exchanged."""
        return bnb_planes.corrupted(raw)

    def fixture(self, weight: Weight) -> Fixture | None:
        """Codes in turn."""
        return bnb_planes.fixture(weight.reading.element)

    def _state(self, raw: RawWeight, dtype: str) -> tuple[Any, Any]:
        """(codes [n, 1], quant state) by `QuantState.from_dict`, as transformers does when it loads."""
        import torch
        from bitsandbytes.functional import QuantState

        planes = {
            name: torch.from_numpy(np.array(values))
            for name, values in raw.arrays.items()
            if name != "weight"
        }
        kind = raw.facts["quant_type"]
        stored = np.frombuffer(json.dumps(json.loads(raw.facts["state"])).encode(), np.uint8)
        planes[f"quant_state.bitsandbytes__{kind}"] = torch.from_numpy(stored.copy())
        state = QuantState.from_dict(planes, device=torch.device(self.device))
        state.dtype = torch_calls.torch_dtype(dtype)
        codes = torch.from_numpy(np.array(raw.arrays["weight"])).reshape(-1, 1).to(self.device)
        return codes, state


class MatMul4(_FourBit):
    """`bitsandbytes.matmul_4bit`.

    Rounding points, counted in bitsandbytes 0.50, csrc/cpu_ops.cpp (dequantizeBlockwise4bitCpu) and backends/default/ops.py:
    level times absmax in float32 (a nested absmax takes two more float32 roundings), one rounding to the type of x;
    products accumulate in float32; one rounding to the type of x. The fused CUDA kernels (csrc/gemm_4bit.cu) have no more.
    On CPU the call dequantizes and multiplies full weights, which its trace shows: a fallback.
    """

    name = "matmul_4bit"
    title = "bitsandbytes.matmul_4bit"
    slowdown = 0.3

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.dtypes = ("bf16", "f16", "f32") if device == "cpu" else ("bf16", "f16")
        self.trace_rule = TraceRule(
            must=(r"^bitsandbytes::gemm_4bit$",)
            if device == "cpu"
            else (r"gemm_4bit|gemv_4bit|kgemm_4bit_inference_naive",),
            fallback=(
                *torch_calls.DENSE_PRODUCTS,
                r"^bitsandbytes::dequantize_4bit$",
                r"kDequantizeBlockwise",
            ),
            neutral=(*_NEUTRAL, r"^bitsandbytes::dequantize_blockwise$"),
        )

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype=dtype,
            weight_dtype=dtype,
            weight_roundings=4 if dtype == "f32" else 1,
            scale_dtype="exact",
            accumulate_dtype="f32",
            output_dtype=dtype,
            statement=(
                f"level * absmax in float32 (nested absmax: two more float32 roundings), one rounding to {dtype}; float32 "
                f"sum; one rounding to {dtype}"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored bytes."""
        codes, state = self._state(raw, dtype)
        return Buffers(codes=codes, state=state)

    def _call(self, prepared: Any, x: Any) -> Any:
        import bitsandbytes
        import torch

        with torch.no_grad():
            return bitsandbytes.matmul_4bit(x, prepared["codes"].t(), prepared["state"])


class Gemv4Cpu(_FourBit):
    """The fused AVX512-BF16 product behind `bitsandbytes.functional.gemv_4bit`, on converted bytes.

    Rounding points, counted in bitsandbytes 0.50, csrc/cpu_ops.cpp (tinygemm_kernel_nn): levels are held in bfloat16, one
    rounding a weight; absmax is held in bfloat16 (made by the converter, shared by a block); products of pairs accumulate
    in float32 (dpbf16); block sums times absmax add up in float32; one rounding to bfloat16.
    """

    name = "gemv_4bit"
    title = "bitsandbytes gemv_4bit, AVX512-BF16, converted bytes"
    dtypes = ("bf16",)
    slowdown = 0.3
    converts = True
    trace_rule = TraceRule(
        must=(r"^bitsandbytes::gemv_4bit$",),
        fallback=(*torch_calls.DENSE_PRODUCTS, r"^bitsandbytes::dequantize_4bit$"),
        neutral=_NEUTRAL,
    )

    def __init__(self) -> None:
        super().__init__("cpu")

    def available(self) -> Available:
        """A processor with AVX512-BF16 and a package that has the converter."""
        found = super().available()
        if found.refusal is not None:
            return found
        from bitsandbytes import functional

        has = getattr(functional, "has_avx512bf16", None)
        if not hasattr(functional, "_convert_weight_packed_for_cpu") or has is None:
            no = Refusal(
                reason="library_load_failed",
                detail="this bitsandbytes has no converter for its fused CPU product",
            )
            return Available(refusal=no, versions=found.versions)
        if not has():
            no = Refusal(
                reason="arch_unsupported", detail="the processor has no AVX512-BF16 instructions"
            )
            return Available(refusal=no, versions=found.versions)
        return found

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Besides, rows of whole blocks and whole 32 channels."""
        problem = super().refusal(weight, dtype)
        if problem is None and (weight.n_cols % weight.reading.group_size or weight.n_rows % 32):
            detail = "takes rows of whole blocks and a multiple of 32 output channels"
            return Refusal(reason="shape_unsupported", detail=detail)
        return problem

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="bf16",
            weight_dtype="bf16",
            weight_roundings=1,
            scale_dtype="bf16",
            accumulate_dtype="f32",
            output_dtype="bf16",
            statement=(
                "levels held in bf16, one rounding a weight; absmax held in bf16, shared by a block; float32 sums; one "
                "rounding to bf16"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Bytes in the order of the fused product, by the package's own converter."""
        from bitsandbytes import functional

        codes, state = self._state(raw, "bf16")
        if not self.converts:
            return Buffers(codes=codes, state=state)
        packed, state = functional._convert_weight_packed_for_cpu(codes, state)
        return Buffers({"packed": packed.numpy()}, codes=packed, state=state)

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch
        from bitsandbytes import functional

        with torch.no_grad():
            return functional.gemv_4bit(x, prepared["codes"].t(), state=prepared["state"])


class Int8(_Bnb):
    """`bitsandbytes.matmul` over int8 rows: activations are rounded to int8 per row, integer products are exact.

    Rounding points, counted in bitsandbytes 0.50, backends/default/ops.py (int8_vectorwise_quant, int8_mm_dequant): x in
    float16; each row of x is rounded to int8 with step max|x|/127; integer sums are exact; row and column scales and
    1/127^2 multiply in float32, three roundings; one rounding to float16.
    """

    name = "int8"
    title = "bitsandbytes.matmul, int8 rows"
    contracts = ("s8 per channel",)
    dtypes = ("f16",)
    slowdown = 0.3

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.trace_rule = TraceRule(
            must=(r"_int_mm|int8_linear_matmul|igemm|imma|s8",),
            fallback=(r"^aten::(mm|addmm|matmul|linear|bmm)$",),
            neutral=_NEUTRAL,
        )

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Rows of int8 with one scale each."""
        if weight.tensor.family != "bnb_int8":
            detail = f"takes planes that bitsandbytes wrote, not {weight.tensor.family}"
            return Refusal(reason="contract_unsupported", detail=detail)
        return byte_planes.int8_problem(weight)

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Bytes and SCB."""
        return byte_planes.read(weight, n_rows, reader)

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Codes moved by one column."""
        return byte_planes.halves_exchanged(raw)

    def fixture(self, weight: Weight) -> Fixture | None:
        """Signed bytes."""
        return fixtures.bytes_int8()

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="f16",
            weight_dtype="f32",
            weight_roundings=4,
            accumulate_dtype="exact",
            output_dtype="f16",
            activation="q8_block",
            activation_block=0,
            statement=(
                "each row of x rounded to int8; exact integer sums; three float32 roundings by scales; one rounding to f16"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored bytes; a scale per channel that is no SCB is multiplied by 127 first."""
        import torch

        codes = torch.from_numpy(np.ascontiguousarray(raw.arrays["weight"]).astype(np.int8))
        scb = (byte_planes.scales(raw)[:, 0] * 127.0).astype(np.float32)
        return Buffers(
            codes=codes.to(self.device), scb=torch.from_numpy(scb.copy()).to(self.device)
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import bitsandbytes
        import torch

        state = bitsandbytes.MatmulLtState()
        state.CB, state.SCB = prepared["codes"], prepared["scb"]
        state.threshold, state.has_fp16_weights, state.is_training = 0.0, False, False
        with torch.no_grad():
            return bitsandbytes.matmul(x, prepared["codes"], state=state)


class BitsAndBytes:
    """bitsandbytes' products."""

    name: ClassVar[str] = "bitsandbytes"
    title: ClassVar[str] = "bitsandbytes, 4-bit and int8"
    api_version: ClassVar[int] = API_VERSION

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """Fused products first."""
        return (MatMul4("cuda"), Gemv4Cpu(), MatMul4("cpu"), Int8("cuda"), Int8("cpu"))

    def versions(self) -> dict[str, str]:
        """Installed versions."""
        return versions("bitsandbytes", "torch")
