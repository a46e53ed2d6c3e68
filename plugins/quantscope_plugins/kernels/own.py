"""`own`: the project's own W4A16 product on raw GPTQ, AWQ and compressed-tensors bytes.

What holds here says that the bytes are read right on that device by this kernel. It says nothing about the kernel of any
runtime.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array
from quantscope.extras import absent_words
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

from quantscope_plugins.kernels import fixtures, own_compile, own_planes, own_source, torch_calls
from quantscope_plugins.kernels.base import AffineKernel, Buffers, file_sha256, versions
from quantscope_plugins.kernels.own_planes import Operands

LIMITS = ("whether any runtime reads these bytes right: this is the project's own kernel",)


class _Own(AffineKernel):
    """Layouts and fixtures are shared."""

    contracts = ("4 bit gptq", "4 bit awq_gemm", "4 bit ct_pack")
    limits: tuple[str, ...] = LIMITS

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit words of the three layouts."""
        return own_planes.problem(weight)

    def fixture(self, weight: Weight) -> Fixture | None:
        """Known words of the same layout."""
        family, reading = weight.tensor.family, weight.reading
        if family == "gptq":
            convention = "minus_one" if reading.zero_convention == "minus_one" else "as_is"
            return fixtures.gptq(convention)
        if family == "awq_gemm":
            return fixtures.awq_gemm()
        return (
            fixtures.symmetric("ct_pack")
            if reading.zero == "fixed"
            else fixtures.row_packed("ct_pack")
        )


class CudaSource(_Own):
    """The CUDA C++ source: on a device through NVRTC, on a host through a C++ compiler.

    Rounding points, counted in `own_source.CUDA_SOURCE`: code minus zero is an integer; times scale in float32, one
    rounding; times x, one; added up in float32 in order over K, one a step (fused on a device). Scales in half or widened
    from bfloat16 are exact.
    """

    name = "cuda_cpp"
    dtypes = ("f32", "f16")
    slowdown = 2.0

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype=dtype,
            weight_dtype="f32",
            weight_roundings=2,
            accumulate_dtype="f32",
            output_dtype="f32",
            statement="(q - z) exact; times scale and times x in float32, two roundings; float32 sum in order over K",
        )


class HostBuild(CudaSource):
    """The source compiled for this machine."""

    title = "own CUDA C++ source, compiled for this machine"
    device: Device = "cpu"

    def missing(self) -> Refusal | None:
        """A C++ compiler."""
        if own_compile.host_compiler() is None:
            return Refusal(
                reason="compiler_missing", detail="no C++ compiler found (g++, clang++ or $CXX)"
            )
        return None

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="quantscope-own-")

    @cached_property
    def _path(self) -> Path:
        return own_compile.host_library(Path(self._folder.name))

    @cached_property
    def _launch(self) -> Any:
        launch = ctypes.CDLL(str(self._path)).quantscope_launch
        launch.restype = ctypes.c_ulonglong
        launch.argtypes = (*(ctypes.c_void_p,) * 6, *(ctypes.c_int,) * 9)
        return launch

    def available(self) -> Available:
        """It compiles."""
        compiler = own_compile.host_compiler() or ""
        try:
            path = self._path
        except (OSError, RuntimeError) as problem:
            no = Refusal(reason="library_load_failed", detail=str(problem)[:300])
            return Available(refusal=no)
        return Available(
            versions={"compiler": os.path.basename(compiler), "library": path.name},
            device_name="CPU, host build",
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored words."""
        return Buffers(operands=Operands(raw))

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One launch over all outputs."""
        return self._run(prepared["operands"], x)[0]

    def _run(self, operands: Operands, x: Array) -> tuple[Array, int]:
        n, k, groups = operands.shape
        wide = np.ascontiguousarray(x, dtype=np.float32)
        y = np.empty((wide.shape[0], n), dtype=np.float32)
        pointers = (
            wide,
            operands.words,
            operands.zeros,
            operands.scales,
            operands.g_idx,
            y,
        )
        calls = self._launch(
            *(array.ctypes.data for array in pointers),
            wide.shape[0],
            n,
            k,
            groups,
            operands.layout,
            int(operands.scales.dtype == np.float16),
            int(operands.has_zeros),
            operands.zero_add,
            operands.midpoint,
        )
        return y, int(calls)

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The kernel's own counter, and the library that holds it."""
        _, calls = self._run(prepared["operands"], x)
        return TraceData(
            method="counter in the kernel",
            counted=calls,
            library=self._path.name,
            library_sha256=file_sha256(str(self._path)),
        )


class CudaNvrtc(CudaSource):
    """The source compiled at run time by torch's NVRTC and launched on torch tensors."""

    title = "own CUDA C++ source through torch.cuda._compile_kernel"
    device: Device = "cuda"
    dtypes = ("f32", "f16")
    slowdown = 0.005
    trace_rule = TraceRule(must=(own_source.KERNEL_NAME,), neutral=torch_calls.NEUTRAL)

    def missing(self) -> Refusal | None:
        """Torch built for CUDA."""
        return torch_calls.torch_missing("cuda")

    def available(self) -> Available:
        """A device, and a torch with the compiler's entry."""
        found = torch_calls.torch_available("cuda")
        if found.refusal is not None:
            return found
        import torch

        if not hasattr(torch.cuda, "_compile_kernel"):
            detail = (
                f"torch {torch.__version__} has no torch.cuda._compile_kernel (2.9 and later have)"
            )
            return Available(refusal=Refusal(reason="library_load_failed", detail=detail))
        return found

    @cached_property
    def _kernel(self) -> Any:
        import torch

        return torch.cuda._compile_kernel(own_source.CUDA_SOURCE, own_source.KERNEL_NAME)

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored words on the device."""
        import torch

        operands = Operands(raw)

        def placed(array: Array) -> Any:
            return torch.from_numpy(np.array(array)).to("cuda")

        return Buffers(
            operands=operands,
            words=placed(operands.words.view(np.int32)),
            zeros=placed(operands.zeros.view(np.int32)),
            scales=placed(operands.scales),
            g_idx=placed(operands.g_idx),
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        operands = prepared["operands"]
        n, k, groups = operands.shape
        y = torch.empty((x.shape[0], n), dtype=torch.float32, device="cuda")
        calls = torch.zeros(1, dtype=torch.int64, device="cuda")
        total = x.shape[0] * n
        self._kernel(
            grid=(-(-total // 128), 1, 1),
            block=(128, 1, 1),
            args=(
                x,
                prepared["words"],
                prepared["zeros"],
                prepared["scales"],
                prepared["g_idx"],
                y,
                x.shape[0],
                n,
                k,
                groups,
                operands.layout,
                int(operands.scales.dtype == np.float16),
                int(operands.has_zeros),
                operands.zero_add,
                operands.midpoint,
                calls,
            ),
        )
        torch.cuda.synchronize()
        return y

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One launch."""
        return torch_calls.numbers(self._call(prepared, torch_calls.tensor(x, "f32", "cuda")))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same launch under the profiler."""
        made = torch_calls.tensor(x, "f32", "cuda")
        return torch_calls.traced(lambda: self._call(prepared, made), "cuda")


class TritonKernel(_Own):
    """The Triton source: on a device with tensor cores, on a CPU through Triton's interpreter.

    Rounding points, counted in `own_triton.w4a16`: x in float16; code minus zero times scale in float32, one rounding,
    then one to float16; products in tensor cores with float32 sums (at least 2^-23 a step; counted as float32 twice for
    the order of partial sums); output in float32.
    """

    name = "triton"
    dtypes = ("f16",)

    def __init__(self, device: Device) -> None:
        self.device = device
        self.executes = device == "cuda"
        self.title = (
            "own Triton source"
            if device == "cuda"
            else "own Triton source, interpreted (no GPU code)"
        )
        self.slowdown = 0.001 if device == "cuda" else 100.0
        self.most_columns = 1 << 30 if device == "cuda" else 64
        self.trace_rule = TraceRule(must=(r"^w4a16$",), neutral=torch_calls.NEUTRAL)
        self.limits = LIMITS if device == "cuda" else (*LIMITS, "an interpreter ran the source")

    def missing(self) -> Refusal | None:
        """Torch and triton."""
        found = torch_calls.torch_missing(self.device)
        if found is None and versions("triton") == {}:
            return Refusal(reason="package_missing", detail=absent_words("triton"))
        return found

    def available(self) -> Available:
        """A device from sm_75 on, or the interpreter."""
        found = torch_calls.torch_available(
            self.device, (7, 5) if self.device == "cuda" else (0, 0)
        )
        if found.refusal is not None:
            return found
        if self.device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"
        try:
            import triton
        except (ImportError, OSError) as problem:
            no = Refusal(reason="library_load_failed", detail=f"triton: {problem}"[:300])
            return Available(refusal=no)
        name = found.device_name if self.device == "cuda" else "Triton interpreter on CPU"
        return Available(
            versions=found.versions | {"triton": str(triton.__version__)}, device_name=name
        )

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="f16",
            weight_dtype="f16",
            weight_roundings=1,
            accumulate_dtype="f32",
            output_dtype="f32",
            statement="(q - z) * scale in float32, then one rounding to f16 a weight; float32 sums; float32 output",
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored words."""
        import torch

        if self.device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"
        operands = Operands(raw)

        def placed(array: Array) -> Any:
            return torch.from_numpy(np.array(array)).to(self.device)

        return Buffers(
            operands=operands,
            words=placed(operands.words.view(np.int32)),
            zeros=placed(operands.zeros.view(np.int32)),
            scales=placed(operands.scales),
            g_idx=placed(operands.g_idx),
        )

    def _call(self, prepared: Any, x: Any) -> Any:
        import torch

        from quantscope_plugins.kernels import own_triton

        operands = prepared["operands"]
        n, k, groups = operands.shape
        tile = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64}
        if self.device == "cpu":
            tile = {"BLOCK_M": 16, "BLOCK_N": 256, "BLOCK_K": 256}
        y = torch.empty((x.shape[0], n), dtype=torch.float32, device=self.device)
        grid = (-(-x.shape[0] // tile["BLOCK_M"]), -(-n // tile["BLOCK_N"]))
        own_triton.w4a16[grid](
            x,
            prepared["words"],
            prepared["zeros"],
            prepared["scales"],
            prepared["g_idx"],
            y,
            x.shape[0],
            n,
            k,
            groups,
            LAYOUT=operands.layout,
            HAS_ZEROS=operands.has_zeros,
            ZERO_ADD=operands.zero_add,
            MIDPOINT=operands.midpoint,
            **tile,
        )
        return y

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One launch."""
        return torch_calls.numbers(self._call(prepared, torch_calls.tensor(x, "f16", self.device)))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same launch under the profiler; an interpreter launches nothing."""
        if self.device == "cpu":
            return TraceData(method="Triton's interpreter", complete=False)
        made = torch_calls.tensor(x, "f16", "cuda")
        return torch_calls.traced(lambda: self._call(prepared, made), "cuda")


class Own:
    """The project's own kernel."""

    name: ClassVar[str] = "own"
    title: ClassVar[str] = "the project's own W4A16 kernel on raw bytes"
    api_version: ClassVar[int] = API_VERSION

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, ...] = (
            CudaNvrtc(),
            TritonKernel("cuda"),
            HostBuild(),
            TritonKernel("cpu"),
        )

    def versions(self) -> dict[str, str]:
        """Installed versions."""
        return versions("torch", "triton")
