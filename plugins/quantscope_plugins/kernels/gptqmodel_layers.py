"""`gptqmodel`: quantized layers of GPTQModel on stored GPTQ planes, built as its loader builds them."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.parity.model import Device, ErrorModel
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

from quantscope_plugins.kernels import torch_calls
from quantscope_plugins.kernels.base import AffineKernel, Buffers, versions


class _Layer(AffineKernel):
    """A layer class of GPTQModel: buffers from the stored planes, zeros converted by its own function."""

    contracts = ("gptq 4 bit with stored zeros",)
    packages = ("torch", "gptqmodel")
    dtypes = ("bf16", "f16")
    module = ""
    layer = ""
    slowdown = 0.5

    def __init__(self, device: Device) -> None:
        self.device = device

    def missing(self) -> Refusal | None:
        """Torch for the device, and gptqmodel."""
        return torch_calls.torch_missing(self.device) or super().missing()

    def available(self) -> Available:
        """An importable layer class."""
        found = torch_calls.torch_available(self.device)
        if found.refusal is not None:
            return found
        try:
            self._class()
            import gptqmodel
        except (ImportError, AttributeError, OSError, RuntimeError) as problem:
            no = Refusal(reason="library_load_failed", detail=f"gptqmodel: {problem}"[:300])
            return Available(refusal=no, versions=found.versions)
        number = str(getattr(gptqmodel, "__version__", ""))
        return Available(
            versions=found.versions | {"gptqmodel": number}, device_name=found.device_name
        )

    def _class(self) -> Any:
        return getattr(importlib.import_module(self.module), self.layer)

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit GPTQ planes with zeros and g_idx."""
        reading, tensor = weight.reading, weight.tensor
        known = reading.zero_convention in ("as_is", "minus_one") and reading.zero == "integer"
        if tensor.family != "gptq" or reading.element != "u4" or not known:
            detail = f"takes 4-bit GPTQ with stored zeros, not {weight.contract}"
            return Refusal(reason="contract_unsupported", detail=detail)
        if reading.group_size not in (32, 64, 128):
            detail = f"takes groups of 32, 64 and 128, not {reading.group_size}"
            return Refusal(reason="shape_unsupported", detail=detail)
        return None

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """A layer with the stored planes in its buffers."""
        import torch
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

        n, k = raw.shape
        arrays = raw.arrays
        g_idx = arrays.get("g_idx", np.arange(k) // raw.group_size).astype(np.int32)
        in_order = bool((np.diff(g_idx) >= 0).all())
        layer = self._class()(
            bits=4,
            group_size=raw.group_size,
            sym=False,
            desc_act=not in_order,
            in_features=k,
            out_features=n,
            bias=False,
            register_buffers=True,
        )
        held = torch_calls.torch_dtype(dtype)
        for name, values in (
            ("qweight", arrays["qweight"]),
            ("qzeros", arrays["qzeros"]),
            ("g_idx", g_idx),
        ):
            getattr(layer, name).data = torch.from_numpy(np.array(values))
        layer.scales.data = torch.from_numpy(np.array(arrays["scales"])).to(held)
        if raw.facts.get("zeros") == "minus_one":
            convert_gptq_v1_to_v2_format_module(layer, bits=4, pack_dtype=torch.int32)
        layer = layer.to(self.device)
        layer.post_init()
        layer.eval()
        return Buffers(layer=layer)

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        with torch.inference_mode():
            return prepared["layer"](x)

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        return torch_calls.numbers(self._call(prepared, torch_calls.tensor(x, dtype, self.device)))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler."""
        made = torch_calls.tensor(x, dtype, self.device)
        return torch_calls.traced(lambda: self._call(prepared, made), self.device)


class TorchFused(_Layer):
    """`TorchFusedLinear`: torch's int4 product behind GPTQModel's own packing.

    Rounding points: those of `torch_builtin.Int4Cpu`; scale and zero in the type of x. Source: GPTQModel 7.7,
    gptqmodel/nn_modules/qlinear/torch_fused.py.
    """

    name = "torch_fused"
    title = "TorchFusedLinear"
    module = "gptqmodel.nn_modules.qlinear.torch_fused"
    layer = "TorchFusedLinear"
    trace_rule = TraceRule(
        must=(r"^aten::_weight_int4pack_mm_for_cpu$",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )

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
            statement=f"scale and folded zero held in {dtype}; float32 weights and sums; one rounding to {dtype}",
        )


class TorchPlain(_Layer):
    """`TorchLinear`: dequantized weights in the type of x, then a dense product.

    Rounding points: code minus zero exact, times scale one rounding; products sum in float32; one rounding. Source:
    GPTQModel 7.7, gptqmodel/nn_modules/qlinear/torch.py.
    """

    name = "torch"
    title = "TorchLinear (dequantizes, then multiplies)"
    module = "gptqmodel.nn_modules.qlinear.torch"
    layer = "TorchLinear"
    trace_rule = TraceRule(
        must=(r"int4|gptq",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=(*torch_calls.NEUTRAL, r"^aten::(sub|bitwise_right_shift|mul|index_select)"),
    )

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype=dtype,
            weight_dtype=dtype,
            weight_roundings=2,
            scale_dtype=dtype,
            accumulate_dtype="f32",
            output_dtype=dtype,
            statement=f"scale held in {dtype}; at most two roundings a weight to {dtype}; float32 sums; one rounding to {dtype}",
        )


class GptqModel:
    """GPTQModel's layers."""

    name: ClassVar[str] = "gptqmodel"
    title: ClassVar[str] = "GPTQModel's quantized layers"
    api_version: ClassVar[int] = API_VERSION

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, ...] = (
            TorchFused("cpu"),
            TorchPlain("cpu"),
            TorchPlain("cuda"),
        )

    def versions(self) -> dict[str, str]:
        """Installed versions."""
        return versions("gptqmodel", "torch")
