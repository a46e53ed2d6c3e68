"""The ggml shared libraries of packages that carry them, and the few functions of theirs that a product needs."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CARRIERS = ("pywhispercpp", "llama_cpp")
"""Modules whose wheels or builds hold libggml-base and libggml-cpu."""

THREADS = 2
OVERHEAD_BYTES = 1 << 24
F32 = 0
"""GGML_TYPE_F32. Source: llama.cpp, ggml/include/ggml.h."""


class Libraries(NamedTuple):
    """Paths of one set of ggml libraries; `cuda` is None where the build has none."""

    carrier: str
    base: Path
    cpu: Path
    cuda: Path | None


@cache
def find_libraries() -> tuple[Libraries, ...]:
    """Sets of ggml libraries beside installed packages, without importing those."""
    found = []
    for carrier in CARRIERS:
        spec = importlib.util.find_spec(carrier)
        if spec is None or spec.origin is None:
            continue
        package = Path(spec.origin).parent
        site = package.parent
        for folder in (site / f"{carrier}.libs", package / "lib", package, site):
            base, cpu = _one(folder, "base"), _one(folder, "cpu")
            if base is not None and cpu is not None:
                found.append(Libraries(carrier, base, cpu, _one(folder, "cuda")))
                break
    return tuple(found)


def _one(folder: Path, part: str) -> Path | None:
    """The library of a part in a folder, the file with the longest name of its kind last."""
    if not folder.is_dir():
        return None
    names = sorted(
        name
        for name in os.listdir(folder)
        if name.startswith((f"libggml-{part}", f"ggml-{part}"))
        and (".so" in name or name.endswith((".dylib", ".dll")))
    )
    return folder / names[0] if names else None


class _InitParams(ctypes.Structure):
    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


class Ggml:
    """Loaded libraries.

    Raises:
        OSError: a library cannot be loaded.
    """

    def __init__(self, libraries: Libraries) -> None:
        self.libraries = libraries
        mode = getattr(ctypes, "RTLD_GLOBAL", 0)
        self.base = ctypes.CDLL(str(libraries.base), mode=mode)
        self.cpu = ctypes.CDLL(str(libraries.cpu), mode=mode)
        pointer, long = ctypes.c_void_p, ctypes.c_int64
        declared: Sequence[tuple[Any, str, Any, tuple[Any, ...]]] = (
            (self.base, "ggml_init", pointer, (_InitParams,)),
            (self.base, "ggml_free", None, (pointer,)),
            (self.base, "ggml_new_tensor_2d", pointer, (pointer, ctypes.c_int, long, long)),
            (self.base, "ggml_mul_mat", pointer, (pointer, pointer, pointer)),
            (self.base, "ggml_new_graph", pointer, (pointer,)),
            (self.base, "ggml_build_forward_expand", None, (pointer, pointer)),
            (self.base, "ggml_get_data", pointer, (pointer,)),
            (self.base, "ggml_row_size", ctypes.c_size_t, (ctypes.c_int, long)),
            (self.base, "ggml_type_name", ctypes.c_char_p, (ctypes.c_int,)),
            (self.cpu, "ggml_cpu_init", None, ()),
            (
                self.cpu,
                "ggml_graph_compute_with_ctx",
                ctypes.c_int,
                (pointer, pointer, ctypes.c_int),
            ),
        )
        for library, name, result, arguments in declared:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self.cpu.ggml_cpu_init()

    def type_name(self, type_id: int) -> str:
        """The library's own name of a type; empty where it does not know it."""
        try:
            name = self.base.ggml_type_name(type_id)
        except OSError:
            return ""
        return name.decode("ascii", "replace") if name else ""

    def row_bytes(self, type_id: int, n_cols: int) -> int:
        """Bytes that the library expects of a row."""
        return int(self.base.ggml_row_size(type_id, n_cols))

    def multiply(
        self, blocks: NDArray[np.uint8], type_id: int, n_cols: int, x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """`ggml_mul_mat` of raw blocks [N, bytes] with x [M, K]; float32 [M, N]."""
        n_rows, batch = blocks.shape[0], x.shape[0]
        wide = np.ascontiguousarray(x, dtype=np.float32)
        # Room for the operands, for x once more as the library quantizes it, and for its own records.
        size = blocks.nbytes + 3 * wide.nbytes + n_rows * batch * 4 + OVERHEAD_BYTES
        context = self.base.ggml_init(_InitParams(size, None, False))
        if not context:
            raise MemoryError(f"ggml_init of {size} bytes failed")
        try:
            weight = self.base.ggml_new_tensor_2d(context, type_id, n_cols, n_rows)
            inputs = self.base.ggml_new_tensor_2d(context, F32, n_cols, batch)
            _fill(self.base.ggml_get_data(weight), blocks)
            _fill(self.base.ggml_get_data(inputs), wide)
            product = self.base.ggml_mul_mat(context, weight, inputs)
            graph = self.base.ggml_new_graph(context)
            self.base.ggml_build_forward_expand(graph, product)
            status = self.cpu.ggml_graph_compute_with_ctx(context, graph, THREADS)
            if status != 0:
                raise RuntimeError(f"ggml_graph_compute_with_ctx gave status {status}")
            result = np.empty((batch, n_rows), dtype=np.float32)
            ctypes.memmove(result.ctypes.data, self.base.ggml_get_data(product), result.nbytes)
        finally:
            self.base.ggml_free(context)
        return result


def _fill(address: int, values: NDArray[Any]) -> None:
    data = np.ascontiguousarray(values)
    ctypes.memmove(address, data.ctypes.data, data.nbytes)
