"""vLLM's CUDA operators on integer weights: GPTQ (exllama), AWQ and Marlin products.

Operands and repacks follow vLLM 0.32 (csrc/quantization, model_executor/layers/quantization/utils/marlin_utils.py);
arguments are matched by the names in the operator's own schema, since signatures differ by release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from quantscope.decode.parts import Array
from quantscope.parity.model import Device, ErrorModel
from quantscope.parity.protocol import (
    Available,
    Fixture,
    RawWeight,
    Refusal,
    RefusedError,
    TraceData,
    TraceRule,
    Weight,
)

from quantscope_plugins.kernels import (
    fixtures,
    layouts,
    torch_calls,
    vllm_library,
)
from quantscope_plugins.kernels.base import AffineKernel, Buffers, KernelBase

GPTQ_FALLBACK_BATCH = 51
"""Rows from which gptq_gemm reconstructs weights and multiplies with cuBLAS. Source: csrc/quantization/gptq/q_gemm.cu,
MAX_Q_GEMM_ROWS = 50."""


class CudaOperator(KernelBase):
    """Library and device are shared."""

    device: Device = "cuda"
    slowdown = 0.001
    operator_name = ""
    capability = (7, 5)

    def missing(self) -> Refusal | None:
        """Torch built for CUDA, and the library."""
        return torch_calls.torch_missing("cuda") or vllm_library.missing("cuda")

    def available(self) -> Available:
        """A device, a library that loads, the operator in it."""
        found = torch_calls.torch_available("cuda", self.capability)
        if found.refusal is not None:
            return found
        path = vllm_library.library_path("cuda")
        problem = vllm_library.load(str(path)) if path is not None else "no library"
        if problem is None and vllm_library.operator(self.operator_name) is None:
            problem = f"this vLLM has no operator {self.operator_name}"
        if problem is None:
            return found
        no = Refusal(reason="library_load_failed", detail=problem)
        return Available(refusal=no, versions=found.versions)

    def run(self, prepared: Any, x: Array, dtype: str) -> Array:
        """One call."""
        return torch_calls.numbers(self._call(prepared, x))

    def trace(self, prepared: Any, x: Array, dtype: str) -> TraceData:
        """The same call under the profiler."""
        return torch_calls.traced(lambda: self._call(prepared, x), "cuda")

    def _call(self, prepared: Any, x: Array) -> Any:
        raise NotImplementedError


class _Affine(CudaOperator, AffineKernel):
    """Integer weights, activations in half."""

    dtypes = ("f16",)

    def missing(self) -> Refusal | None:
        """Torch built for CUDA, and the library."""
        return CudaOperator.missing(self)


def placed(array: Array) -> Any:
    """An array as a tensor on the device."""
    import torch

    return torch.from_numpy(np.array(array)).to("cuda")


class GptqGemm(_Affine):
    """`_C::gptq_gemm` (exllama v2) on shuffled words.

    Rounding points, counted in csrc/quantization/gptq/q_gemm.cu: code minus zero exact in half; sums of eight products in
    half (four fused steps), times scale in float32, float32 sums within a block of 128 input channels, blocks added to
    the output in half.
    """

    name = "gptq_gemm"
    title = "_C::gptq_gemm (exllama)"
    operator_name = "gptq_gemm"
    contracts = ("gptq 4 bit",)
    fallback_batch = GPTQ_FALLBACK_BATCH
    trace_rule = TraceRule(
        must=(r"gemm_half_q_half_gptq_4bit_kernel",),
        fallback=(r"reconstruct_exllama", *torch_calls.DENSE_PRODUCTS),
        neutral=(*torch_calls.NEUTRAL, r"shuffle_4bit_kernel"),
    )

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit GPTQ with stored zeros."""
        reading = weight.reading
        if weight.tensor.family != "gptq" or reading.element != "u4" or reading.zero != "integer":
            detail = f"takes 4-bit GPTQ with stored zeros, not {weight.contract}"
            return Refusal(reason="contract_unsupported", detail=detail)
        if reading.zero_convention not in ("as_is", "minus_one"):
            detail = f"zeros read as {reading.zero_convention}"
            return Refusal(reason="contract_unsupported", detail=detail)
        return None

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="f16",
            weight_dtype="exact",
            scale_dtype="f16",
            accumulate_dtype="f16",
            accumulate_steps=4 + -(-weight.n_cols // 128),
            output_dtype="f16",
            statement=(
                "sums of eight products in f16, four steps; float32 within 128 channels; blocks added to the output in f16"
            ),
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """Words shuffled in place on a copy; act-order through the permutation of g_idx."""
        import torch

        g_idx = raw.arrays.get("g_idx", np.arange(raw.shape[1]) // raw.group_size)
        in_order = bool((np.diff(g_idx.astype(np.int64)) >= 0).all())
        perm = np.zeros(0, np.int32) if in_order else np.argsort(g_idx, kind="stable")
        words, order = placed(raw.arrays["qweight"]), placed(perm.astype(np.int32))
        vllm_library.call("gptq_shuffle", {"q_weight": words, "q_perm": order, "bit": 4})
        return Buffers(
            {"words": words.cpu().numpy()},
            words=words,
            zeros=placed(raw.arrays["qzeros"]),
            scales=placed(raw.arrays["scales"]).to(torch.float16),
            order=order,
            v2=raw.facts.get("zeros") != "minus_one",
        )

    def _call(self, prepared: Any, x: Array) -> Any:
        return vllm_library.call(
            "gptq_gemm",
            {
                "a": torch_calls.tensor(x, "f16", "cuda"),
                "b_q_weight": prepared["words"],
                "b_gptq_qzeros": prepared["zeros"],
                "b_gptq_scales": prepared["scales"],
                "b_g_idx": prepared["order"],
                "use_exllama": True,
                "use_v2_format": prepared["v2"],
                "bit": 4,
            },
        )


class AwqGemm(_Affine):
    """`_C::awq_gemm` on stored words.

    Rounding points, counted in csrc/quantization/awq/gemm_kernels.cu: code minus zero exact in half, times scale one
    rounding to half; tensor cores sum in float32; eight splits of K are rounded to half and added in half.
    """

    name = "awq_gemm"
    title = "_C::awq_gemm"
    operator_name = "awq_gemm"
    contracts = ("awq_gemm 4 bit",)
    splits = 8
    trace_rule = TraceRule(
        must=(r"gemm_forward_4bit_cuda_m16n",),
        fallback=(r"dequantize_weights", *torch_calls.DENSE_PRODUCTS),
        neutral=torch_calls.NEUTRAL,
    )

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit AWQ GEMM planes in half, whole tiles of 64 channels."""
        scale = weight.tensor.plane("scale")
        if weight.tensor.family != "awq_gemm" or scale is None or scale.dtype != "F16":
            detail = f"takes AWQ GEMM planes with f16 scales, not {weight.contract}"
            return Refusal(reason="contract_unsupported", detail=detail)
        if weight.n_rows % 64 or weight.n_cols % 32:
            detail = f"[{weight.n_rows}, {weight.n_cols}] is no whole number of tiles of 64 by 32"
            return Refusal(reason="shape_unsupported", detail=detail)
        return None

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="f16",
            weight_dtype="f16",
            weight_roundings=1,
            accumulate_dtype="f16",
            accumulate_steps=2 * self.splits,
            output_dtype="f16",
            statement="one f16 rounding a weight; float32 sums in tensor cores; eight splits rounded and added in f16",
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """The stored words."""
        return Buffers(**{name: placed(array) for name, array in raw.arrays.items()})

    def _call(self, prepared: Any, x: Array) -> Any:
        made = torch_calls.tensor(x, "f16", "cuda")
        values = {
            "_in_feats": made,
            "input": made,
            "_kernel": prepared["qweight"],
            "qweight": prepared["qweight"],
            "_scaling_factors": prepared["scales"],
            "scales": prepared["scales"],
            "_zeros": prepared["qzeros"],
            "qzeros": prepared["qzeros"],
            "split_k_iters": self.splits,
        }
        return vllm_library.call("awq_gemm", values)


_SCALE_ORDER = [i + 8 * j for i in range(8) for j in range(8)]
_SCALE_ORDER_ROW = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
"""Order of scales in Marlin's tiles. Source: vLLM, marlin_utils.py, get_scale_perms."""


class Marlin(_Affine):
    """`_C::gptq_marlin_gemm` on symmetric 4-bit weights, repacked by `_C::gptq_marlin_repack`.

    Rounding points, counted in csrc/quantization/marlin: code less 8 exact in half, times scale one rounding to half (with
    groups; per channel the scale multiplies the float32 sum); tensor cores sum in float32; splits of K add up in float32;
    one rounding to half.
    """

    name = "marlin"
    title = "_C::marlin_gemm after gptq_marlin_repack"
    operator_name = "gptq_marlin_repack"
    capability = (8, 0)
    contracts = ("gptq 4 bit symmetric", "ct_pack 4 bit symmetric")
    trace_rule = TraceRule(
        must=(r"[Mm]arlin",),
        fallback=torch_calls.DENSE_PRODUCTS,
        neutral=torch_calls.NEUTRAL,
    )

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """4-bit GPTQ or compressed-tensors, groups of 32 to 128, whole tiles of 64 by 128."""
        reading = weight.reading
        if weight.tensor.family not in ("gptq", "ct_pack") or reading.element != "u4":
            detail = f"takes 4-bit GPTQ and compressed-tensors, not {weight.contract}"
            return Refusal(reason="contract_unsupported", detail=detail)
        if reading.group_size not in (32, 64, 128, weight.n_cols):
            detail = f"takes groups of 32, 64, 128 or whole rows, not {reading.group_size}"
            return Refusal(reason="shape_unsupported", detail=detail)
        if weight.n_rows % 64 or weight.n_cols % 128:
            detail = f"[{weight.n_rows}, {weight.n_cols}] is no whole number of tiles of 64 by 128"
            return Refusal(reason="shape_unsupported", detail=detail)
        return None

    def fixture(self, weight: Weight) -> Fixture | None:
        """Symmetric words."""
        return fixtures.symmetric("ct_pack")

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """See the class."""
        return ErrorModel(
            input_dtype="f16",
            weight_dtype="f16",
            weight_roundings=1,
            scale_dtype="f16",
            accumulate_dtype="f32",
            output_dtype="f16",
            statement="one f16 rounding a weight, scale held in f16; float32 sums; one rounding to f16",
        )

    def prepare(self, raw: RawWeight, dtype: str) -> Buffers:
        """GPTQ words, then the library's repack; scales in the order of its tiles; refuses zeros other than 8."""
        import torch

        affine = layouts.affine_of(raw)
        if affine.zero is None or bool((affine.zero != 8).any()):
            detail = "takes symmetric weights; the stored zeros are not all 8"
            raise RefusedError(Refusal(reason="contract_unsupported", detail=detail))
        n, k = affine.codes.shape
        words = np.zeros((k // 8, n), dtype=np.uint32)
        for place in range(8):
            words |= affine.codes.T[place::8].astype(np.uint32) << np.uint32(4 * place)
        scale = affine.scale.T
        order = _SCALE_ORDER if affine.group_size < k else _SCALE_ORDER_ROW
        permuted = scale.reshape(-1, len(order))[:, order].reshape(-1, n)
        empty = torch.empty(0, dtype=torch.int32, device="cuda")
        packed = vllm_library.call(
            "gptq_marlin_repack",
            {
                "b_q_weight": placed(words.view(np.int32)),
                "perm": empty,
                "size_k": k,
                "size_n": n,
                "num_bits": 4,
            },
        )
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        return Buffers(
            {"packed": packed.cpu().numpy()},
            packed=packed,
            scales=placed(np.ascontiguousarray(permuted)).to(torch.float16),
            workspace=torch.zeros(sms * 4, dtype=torch.int32, device="cuda"),
            empty=empty,
            order=affine.order,
            shape=(n, k),
        )

    def _call(self, prepared: Any, x: Array) -> Any:
        n, k = prepared["shape"]
        order = prepared["order"]
        made = torch_calls.tensor(x if order is None else x[:, order], "f16", "cuda")
        name = "marlin_gemm" if vllm_library.operator("marlin_gemm") else "gptq_marlin_gemm"
        return vllm_library.call(
            name,
            {
                "a": made,
                "b_q_weight": prepared["packed"],
                "b_scales": prepared["scales"],
                "workspace": prepared["workspace"],
                "b_q_type": UINT4_BIAS_8,
                "b_q_type_id": UINT4_BIAS_8,
                "b_type_id": UINT4_BIAS_8,
                "size_m": int(made.shape[0]),
                "size_n": n,
                "size_k": k,
                "is_k_full": True,
                "use_atomic_add": False,
                "use_fp32_reduce": True,
                "is_zp_float": False,
            },
        )


UINT4_BIAS_8 = 4 << 8 | 8 << 17 | 1 << 50
"""Id of scalar type uint4b8: mantissa bits from bit 8, bias from bit 17, the NaN rule from bit 50.

Source: vLLM, vllm/scalar_type.py, ScalarType.id.
"""
