"""`ggml_mul_mat` on a CUDA device, through the libggml-cuda of a llama-cpp-python build."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantscope_plugins.kernels.ggml_library import F32, OVERHEAD_BYTES, Ggml, _InitParams


class GgmlCuda:
    """A CUDA backend of ggml with one product at a time.

    Raises:
        OSError: the library cannot be loaded.
        RuntimeError: no device, or a step failed.
    """

    def __init__(self, ggml: Ggml) -> None:
        self._base = ggml.base
        cuda = ggml.libraries.cuda
        if cuda is None:
            raise OSError("this build has no libggml-cuda")
        library = ctypes.CDLL(str(cuda), mode=getattr(ctypes, "RTLD_GLOBAL", 0))
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, result, arguments in (
            ("ggml_backend_alloc_ctx_tensors", pointer, (pointer, pointer)),
            ("ggml_backend_tensor_set", None, (pointer, pointer, size, size)),
            ("ggml_backend_tensor_get", None, (pointer, pointer, size, size)),
            ("ggml_backend_graph_compute", ctypes.c_int, (pointer, pointer)),
            ("ggml_backend_buffer_free", None, (pointer,)),
        ):
            function = getattr(self._base, name)
            function.restype, function.argtypes = result, arguments
        library.ggml_backend_cuda_init.restype = pointer
        library.ggml_backend_cuda_init.argtypes = (ctypes.c_int,)
        library.ggml_backend_cuda_get_device_count.restype = ctypes.c_int
        if library.ggml_backend_cuda_get_device_count() < 1:
            raise RuntimeError("ggml finds no CUDA device")
        self._backend = library.ggml_backend_cuda_init(0)
        if not self._backend:
            raise RuntimeError("ggml_backend_cuda_init failed")

    def multiply(
        self, blocks: NDArray[np.uint8], type_id: int, n_cols: int, x: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """`ggml_mul_mat` of raw blocks [N, bytes] with x [M, K]; float32 [M, N]."""
        base, n_rows, batch = self._base, blocks.shape[0], x.shape[0]
        context = base.ggml_init(_InitParams(OVERHEAD_BYTES, None, True))
        buffer: Any = None
        try:
            weight = base.ggml_new_tensor_2d(context, type_id, n_cols, n_rows)
            inputs = base.ggml_new_tensor_2d(context, F32, n_cols, batch)
            product = base.ggml_mul_mat(context, weight, inputs)
            graph = base.ggml_new_graph(context)
            base.ggml_build_forward_expand(graph, product)
            buffer = base.ggml_backend_alloc_ctx_tensors(context, self._backend)
            if not buffer:
                raise RuntimeError("CUDA out of memory: ggml could not allocate its tensors")
            for target, values in ((weight, blocks), (inputs, x.astype(np.float32))):
                data = np.ascontiguousarray(values)
                base.ggml_backend_tensor_set(target, data.ctypes.data, 0, data.nbytes)
            status = base.ggml_backend_graph_compute(self._backend, graph)
            if status != 0:
                raise RuntimeError(f"ggml_backend_graph_compute gave status {status}")
            result = np.empty((batch, n_rows), dtype=np.float32)
            base.ggml_backend_tensor_get(product, result.ctypes.data, 0, result.nbytes)
        finally:
            if buffer:
                base.ggml_backend_buffer_free(buffer)
            base.ggml_free(context)
        return result
