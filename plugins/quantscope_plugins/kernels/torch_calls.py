"""What kernels that run under torch share: types, availability, and a trace of the very call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from quantscope.decode.parts import Array
from quantscope.extras import absent_words
from quantscope.parity.model import Device, TraceEvent
from quantscope.parity.protocol import Available, Refusal, TraceData

from quantscope_plugins.kernels.base import version

NEUTRAL = (
    r"^aten::(empty|view|t$|transpose|as_strided|reshape|_reshape_alias|copy_|to$|_to_copy|contiguous|clone|expand"
    r"|slice|detach|resolve_conj|resolve_neg|fill_|zero_|zeros|ones|resize_|unsqueeze|squeeze|select|permute|item"
    r"|_local_scalar_dense|is_nonzero|narrow|flatten|alias|lift_fresh|set_|result_type|div|mul|max|min|abs|amax|gt|lt|ge|le|eq|ne|any|all|bitwise_and|__rshift__|__lshift__|nonzero|where|cat|stack|index)",
    r"^(Memcpy|Memset|cudaLaunchKernel|cudaDeviceSynchronize|cudaStreamSynchronize|cudaMemcpy|cudaFuncGet)",
    r"^quantscope_call$",
    r"^\[memory\]$",
    r"elementwise_kernel|FillFunctor|CatArray|copy_device_to_device|reduce_kernel",
)
"""Names that move, shape or convert data and multiply nothing."""

DENSE_PRODUCTS = (
    r"^aten::(mm|addmm|matmul|linear|bmm|_scaled_dot|einsum|addmv|mv|dot)$",
    r"^mkldnn::|^onednn::",
    r"gemm(?!.*(int4|i4|nf4|4bit|fp8|e4m3|f8))|cublas|cutlass.*_(f16|bf16|tf32|s1688|s16816)gemm",
)
"""Names of products over full-width weights: a kernel that dequantizes first ends in one of them."""

_TORCH_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def torch_dtype(word: str) -> Any:
    """A torch dtype by our word."""
    import torch

    return getattr(torch, _TORCH_DTYPES[word])


def tensor(values: Array, dtype: str, device: Device = "cpu") -> Any:
    """A torch tensor of values that the type holds exactly."""
    import torch

    made = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return made.to(torch_dtype(dtype)).to(device)


def numbers(output: Any) -> Array:
    """A torch tensor as float64."""
    array: Array = output.detach().to("cpu").double().numpy()
    return array


def torch_missing(device: Device) -> Refusal | None:
    """What can be told about torch without importing it."""
    found = version("torch")
    if found is None:
        return Refusal(
            reason="torch_missing",
            detail=absent_words("torch"),
        )
    if device == "cuda" and "+cpu" in found:
        return Refusal(reason="torch_cpu_only_build", detail=f"torch {found} is built without CUDA")
    return None


def torch_available(device: Device, capability: tuple[int, int] = (0, 0)) -> Available:
    """Child: whether torch has the device, and its name.

    Args:
        device: wanted.
        capability: least CUDA compute capability.
    """
    import torch

    versions = {"torch": str(torch.__version__)}
    if device == "cpu":
        name = str(torch.backends.cpu.get_cpu_capability())
        return Available(versions=versions, device_name=f"CPU {name}")
    if torch.version.cuda is None:
        detail = f"torch {torch.__version__} is built without CUDA"
        return Available(refusal=Refusal(reason="torch_cpu_only_build", detail=detail))
    if not torch.cuda.is_available():
        detail = f"torch is built for CUDA {torch.version.cuda} and finds no device"
        return Available(refusal=Refusal(reason="no_cuda_device", detail=detail))
    has = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    versions |= {"cuda": str(torch.version.cuda), "capability": f"{has[0]}.{has[1]}"}
    if has < capability:
        wanted = f"{capability[0]}.{capability[1]}"
        detail = f"{name} has compute capability {has[0]}.{has[1]}, the kernel needs {wanted}"
        return Available(
            refusal=Refusal(reason="arch_unsupported", detail=detail), versions=versions
        )
    return Available(versions=versions, device_name=f"{name}, sm_{has[0]}{has[1]}")


def operator_missing(name: str, device: Device) -> Refusal | None:
    """Child: whether an operator of `aten` has a kernel for the device (CUDA-less builds carry empty ones)."""
    import torch

    packet = getattr(torch.ops.aten, name, None)
    key = "CUDA" if device == "cuda" else "CPU"
    has = packet is not None and torch._C._dispatch_has_kernel_for_dispatch_key(
        f"aten::{name}", key
    )
    if has:
        return None
    return Refusal(
        reason="library_load_failed", detail=f"this torch has no {key} kernel of aten::{name}"
    )


def traced(call: Callable[[], Any], device: Device) -> TraceData:
    """Run a call under torch's profiler, warmed up before, and list what it launched.

    On CPU the names are those of operators inside the call; on CUDA those of device kernels. An empty list on
    CUDA is no evidence: the profiler may lack the right to look.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    call()
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities) as profiler:
        with record_function("quantscope_call"):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
    events = _device_events(profiler) if device == "cuda" else _operator_events(profiler)
    return TraceData(
        events=events,
        method="torch.profiler, device kernels"
        if device == "cuda"
        else "torch.profiler, operators",
        complete=bool(events),
    )


def _operator_events(profiler: Any) -> tuple[TraceEvent, ...]:
    inside: dict[tuple[str, str], list[float]] = {}
    roots = [event for event in profiler.events() if event.name == "quantscope_call"]
    todo = [(child, "") for root in roots for child in root.cpu_children]
    while todo:
        event, parent = todo.pop()
        times = inside.setdefault((event.name, parent), [])
        times.append(float(event.self_cpu_time_total))
        todo += [(child, event.name) for child in event.cpu_children]
    return tuple(
        TraceEvent(
            name=name, device="cpu", count=len(times), microseconds=sum(times), parent=parent
        )
        for (name, parent), times in sorted(inside.items())
    )


def _device_events(profiler: Any) -> tuple[TraceEvent, ...]:
    import torch

    found: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name, []).append(float(event.device_time_total))
    return tuple(
        TraceEvent(name=name, device="cuda", count=len(times), microseconds=sum(times))
        for name, times in sorted(found.items())
    )
