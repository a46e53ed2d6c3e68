"""Kernels that run under torch, on the bytes of real files: held, read out whole, every fault noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from quantscope.parity.model import ParityResult, Settings
from quantscope.parity.run import run_checkpoint, run_parity

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

INT4 = (
    "autogptq-w4g128-asym",
    "auto-round-w4g128-asym-autogptq",
    "gptqmodel-w4g128-asym-v1",
    "gptqmodel-w4g128-asym-v2",
    "gptqmodel-w4g128-sym",
    "gptqmodel-w4g128-sym-descact",
    "autoawq-gemm-g128",
    "autoawq-gemv-g128",
    "gptqmodel-awq-gemm-g128-asym",
    "hqq-native-w4g64-axis1",
    "llmcompressor-w4a16-asym-g128",
    "llmcompressor-w4a16-sym-g128",
    "llmcompressor-w4a16-sharded",
    "llmcompressor-kv-fp8-w4a16",
    "mlx-q4-g64",
    "modelopt-int4-awq",
    "quanto-qint4",
    "torchao-intxwo-int4-g32",
)
INT8 = ("bitsandbytes-int8", "llmcompressor-w8a8-int", "torchao-int8wo")
FP8 = ("modelopt-fp8", "gptqmodel-fp8-row")
DYN_QUANT = ("llmcompressor-w4a16-sym-g128", "torchao-intxwo-int4-g32", "modelopt-int4-awq")


def holds(result: ParityResult) -> None:
    assert result.outcome == "held", (result.tensor, result.reason)
    assert result.readout is not None
    assert result.readout.complete, result.readout
    negative = [c for c in result.controls if c.kind == "negative" and c.state != "not_applicable"]
    assert negative
    assert all(control.state == "detected" for control in negative)
    assert any(c.kind == "positive" and c.state == "held" for c in result.controls)


def ran(path: Path, backend: str, sample: int = 1, **settings: object) -> list[ParityResult]:
    wanted = Settings(**settings)  # type: ignore[arg-type]
    run = run_checkpoint(str(path), backend, sample=sample, keep=False, settings=wanted)
    executed = [result for result in run.results if result.status == "executed"]
    assert executed, [result.reason for result in run.results]
    return executed


@pytest.mark.real
@pytest.mark.parametrize("folder", INT4)
def test_int4_holds_with_proof(real_set: Path, folder: str) -> None:
    for result in ran(real_set / folder, "torch:int4@cpu"):
        holds(result)
        assert result.execution_proof == "proved", result.execution.reason
        assert result.execution.fallback.calls[0] == 0


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_int4_holds_in_every_type(real_set: Path, dtype: str) -> None:
    for result in ran(real_set / "autogptq-w4g128-asym", "torch:int4@cpu", 3, dtype=dtype):
        holds(result)
        assert result.dtype == dtype


@pytest.mark.real
@pytest.mark.parametrize("folder", INT8)
def test_int8_holds_with_proof(real_set: Path, folder: str) -> None:
    for result in ran(real_set / folder, "torch:int8@cpu"):
        holds(result)
        assert result.execution_proof == "proved"


@pytest.mark.real
@pytest.mark.parametrize("folder", FP8)
def test_fp8_holds_and_a_fallback_is_labelled(real_set: Path, folder: str) -> None:
    for result in ran(real_set / folder, "torch:fp8@cpu"):
        holds(result)
        names = set(result.execution.fallback.names)
        if result.execution_proof == "proved":
            assert not names
        else:
            assert names & {"aten::mm", "aten::matmul"} or "not known" in result.execution.reason


@pytest.mark.real
@pytest.mark.parametrize("folder", DYN_QUANT)
def test_dyn_quant_holds_with_proof(real_set: Path, folder: str) -> None:
    for result in ran(real_set / folder, "torch:dyn_quant@cpu"):
        holds(result)
        assert result.execution_proof == "proved"


@pytest.mark.real
def test_a_kernel_that_takes_no_asymmetric_zeros_refuses_them(real_set: Path) -> None:
    run = run_checkpoint(
        str(real_set / "autogptq-w4g128-asym"), "torch:dyn_quant", sample=1, keep=False
    )
    assert run.results[0].status == "skipped"
    assert run.results[0].skip == "contract_unsupported"


@pytest.mark.real
@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("gptqmodel-w3g128-sym", "contract_unsupported"),
        ("gguf-q4_0", "contract_unsupported"),
        ("llmcompressor-fp8-block", "contract_unsupported"),
    ],
)
def test_what_no_kernel_takes_is_refused_with_a_reason(
    real_set: Path, folder: str, reason: str
) -> None:
    run = run_checkpoint(str(real_set / folder), "torch", sample=1, keep=False)
    assert run.results[0].skip == reason
    assert run.results[0].reason


def test_a_cpu_only_build_is_told_without_a_device() -> None:
    import torch
    from quantscope.parity.run import backends

    if torch.version.cuda is not None:
        pytest.skip("this torch is built for CUDA")
    state = next(state for state in backends(probe=True) if state.name == "torch")
    reasons = {kernel.reason for kernel in state.kernels if kernel.device == "cuda"}
    assert reasons == {"torch_cpu_only_build"}


@pytest.mark.real
class TestBitsAndBytes:
    """NF4 and int8 of real files."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("bitsandbytes")

    @pytest.mark.parametrize("folder", ["bitsandbytes-nf4", "bitsandbytes-nf4-dq"])
    def test_the_public_product_holds_and_its_fallback_is_found(
        self, real_set: Path, folder: str
    ) -> None:
        for result in ran(real_set / folder, "bitsandbytes:matmul_4bit@cpu"):
            holds(result)
            assert result.execution_proof == "unproven"
            assert "bitsandbytes::dequantize_4bit" in result.execution.fallback.names
            assert "aten::mm" in result.execution.fallback.names

    @pytest.mark.parametrize("folder", ["bitsandbytes-nf4", "bitsandbytes-nf4-dq"])
    def test_the_fused_product_holds_with_proof(self, real_set: Path, folder: str) -> None:
        run = run_checkpoint(str(real_set / folder), "bitsandbytes:gemv_4bit", sample=2, keep=False)
        if run.results[0].skip == "arch_unsupported":
            pytest.skip(run.results[0].reason)
        for result in run.results:
            holds(result)
            assert result.execution_proof == "proved", result.execution.reason

    def test_int8_holds_with_proof(self, real_set: Path) -> None:
        for result in ran(real_set / "bitsandbytes-int8", "bitsandbytes:int8@cpu"):
            holds(result)
            assert result.execution_proof == "proved"

    def test_unconverted_bytes_in_the_fused_product_are_found(self, real_set: Path) -> None:
        """A defect of a library: wrong numbers without an error where its converter is left out."""
        from quantscope.checkpoint import Checkpoint
        from quantscope.parity.check import check_tensor
        from quantscope.parity.protocol import Weight
        from quantscope.session.pipeline import inspect
        from quantscope_plugins.kernels.bitsandbytes_kernels import Gemv4Cpu

        class Unconverted(Gemv4Cpu):
            """The same call on the stored bytes."""

            converts = False

        kernel = Unconverted()
        no = kernel.available().refusal
        if no is not None:
            pytest.skip(no.detail)
        with Checkpoint.open(str(real_set / "bitsandbytes-nf4")) as checkpoint:
            state = inspect(checkpoint).states[0]
            assert state.reading is not None
            weight = Weight(tensor=state.tensor, reading=state.reading)
            result = check_tensor(
                checkpoint, weight, "bitsandbytes", kernel, Settings(), lambda *step: None
            )
        assert result.outcome == "did_not_hold"
        assert max(batch.error_over_sum or 0 for batch in result.inputs) > 0.05


@pytest.mark.real
def test_a_layer_that_ignores_asymmetric_zeros_is_found_in_the_package_itself(
    real_set: Path,
) -> None:
    """GPTQModel 7.7 TorchFusedLinear on CPU packs every zero as the midpoint."""
    run = run_parity(
        str(real_set / "autogptq-w4g128-asym"),
        "model.layers.0.self_attn.k_proj",
        "gptqmodel:torch_fused",
        settings=Settings(max_columns=64),
    )
    if run.status == "skipped":
        pytest.skip(run.reason)
    if run.versions.get("gptqmodel") != "7.7.0":
        pytest.skip(f"gptqmodel {run.versions.get('gptqmodel')} is not the version with the defect")
    assert run.outcome == "did_not_hold"
    assert "zeros_ignored" in [symptom.fault for symptom in run.symptoms if symptom.matches]
    plain = run_parity(
        str(real_set / "autogptq-w4g128-asym"),
        "model.layers.0.self_attn.k_proj",
        "gptqmodel:torch@cpu",
        settings=Settings(max_columns=64),
    )
    assert plain.outcome == "held"
    assert "aten::mm" in plain.execution.fallback.names
