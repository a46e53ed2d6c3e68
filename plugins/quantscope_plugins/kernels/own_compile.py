"""Compiling the own kernel without a device: cubins by Triton and by nvcc, a host library by a C++ compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from quantscope_plugins.kernels import own_source

CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
"""Compute capabilities that cubins are made for: Turing to Blackwell."""

TENSOR_CORES_FROM = 80
TILE = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64}


class Cubin(NamedTuple):
    """A compiled kernel: its size, and how many tensor-core products its text holds."""

    capability: int
    nbytes: int
    products: int
    registers: int | None = None


def triton_cubin(capability: int, layout: int = 0) -> Cubin:
    """Compile the Triton source for a capability, without a device.

    Raises:
        ImportError: triton is not installed.
        Exception: whatever its compiler raises.
    """
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from quantscope_plugins.kernels import own_triton

    constants = {
        "LAYOUT": layout,
        "HAS_ZEROS": True,
        "ZERO_ADD": 1 if layout == 0 else 0,
        "MIDPOINT": 8,
        **TILE,
    }
    signature = dict(own_triton.SIGNATURE) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=own_triton.w4a16, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    text = made.asm["ptx"]
    products = len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", text))
    return Cubin(capability, len(made.asm["cubin"]), products)


def nvcc_cubin(capability: int) -> Cubin:
    """Compile the CUDA C++ source by nvcc for a capability, without a device.

    Raises:
        FileNotFoundError: no nvcc.
        RuntimeError: it did not compile; its messages.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise FileNotFoundError("nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "w4a16.cu", Path(folder) / "w4a16.cubin"
        source.write_text(own_source.CUDA_SOURCE, encoding="utf-8")
        command = [nvcc, "-cubin", f"-arch=sm_{capability}", "-o", str(cubin), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        return Cubin(capability, cubin.stat().st_size, 0)


def host_compiler() -> str | None:
    """A C++ compiler: `CXX`, then g++, clang++, c++."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    return None


def host_library(folder: Path) -> Path:
    """Compile the CUDA C++ source as a host library.

    Contraction of products and sums is off, so that each step rounds as it is written.

    Raises:
        FileNotFoundError: no compiler.
        RuntimeError: it did not compile; its messages.
    """
    compiler = host_compiler()
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    source, library = folder / "w4a16.cpp", folder / "w4a16.so"
    source.write_text(own_source.host_source(), encoding="utf-8")
    options = ["-O2", "-fPIC", "-shared", "-std=c++17", "-ffp-contract=off", "-fno-math-errno"]
    command = [compiler, *options, "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return library
