"""What a check says: two answers, controls that decide, faults that are named."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import parity_builder
import pytest
from quantscope.errors import UsageError
from quantscope.parity.entries import kernel_gate, report_entry
from quantscope.parity.misreadings import BY_NAME
from quantscope.parity.model import ParityResult, Settings
from quantscope.parity.run import backends, estimate, run_checkpoint, run_parity
from test_parity_child import check, checkpoint, plugin

__all__ = ["checkpoint", "plugin"]

TENSOR = "model.layers.0.mlp.up_proj"


@cache
def seen(checkpoint: str, kernel: str) -> ParityResult:
    """A check that several tests look at."""
    return check(checkpoint, kernel)


def controls(result: ParityResult) -> dict[str, str]:
    return {control.name: control.state for control in result.controls}


def emulated(path: Path, fault: str) -> ParityResult:
    return run_parity(
        str(path), TENSOR, "reference", settings=Settings(emulate=fault, max_columns=64)
    )


def test_every_control_that_a_contract_allows_is_detected(plugin: Path, checkpoint: str) -> None:
    states = controls(seen(checkpoint, "plain"))
    assert states["gptq 4 bit minus_one"] == "held"
    for name in (
        "zero_plus_one",
        "zero_minus_one",
        "nibbles_swapped",
        "scales_rolled",
        "wrong_bytes",
    ):
        assert states[name] == "detected", name
    assert states["awq_as_linear"] == states["scale_doubled"] == "not_applicable"


def test_right_and_ran_are_two_answers(plugin: Path, checkpoint: str) -> None:
    for kernel, proof, words in (
        ("falls", "unproven", "fallback: the call went through dequantize"),
        ("unknown", "unproven", "not known: something_else"),
        ("silent", "unproven", "does not name the kernel"),
    ):
        result = seen(checkpoint, kernel)
        assert result.outcome == "held", kernel
        assert result.execution_proof == proof
        assert words in result.execution.reason


def test_a_fallback_is_counted_by_calls_and_by_time(plugin: Path, checkpoint: str) -> None:
    fallback = seen(checkpoint, "falls").execution.fallback
    assert fallback.calls == (1, 2)
    assert fallback.microseconds == (2.0, 4.0)
    assert fallback.names == ("dequantize",)


def test_wrong_outputs_are_named_after_the_fault_that_makes_them(
    plugin: Path, checkpoint: str
) -> None:
    result = seen(checkpoint, "off_by_one")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["zero_plus_one"]
    assert "zero point one too high" in result.reason
    assert result.readout is not None
    assert result.readout.recovered == 0
    assert result.readout.first_wrong is not None


def test_a_layer_that_ignores_asymmetric_zeros_is_found_and_named(
    plugin: Path, checkpoint: str
) -> None:
    result = seen(checkpoint, "ignores_zeros")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["zeros_ignored"]


def test_a_kernel_of_zeros_does_not_hold(plugin: Path, checkpoint: str) -> None:
    assert seen(checkpoint, "zero").outcome == "did_not_hold"


def test_a_value_that_is_not_finite_is_counted_and_does_not_hold(
    plugin: Path, checkpoint: str
) -> None:
    result = seen(checkpoint, "not_finite")
    assert result.outcome == "did_not_hold"
    assert all(batch.nonfinite == 1 for batch in result.inputs)


def test_a_missed_negative_control_makes_it_inconclusive(plugin: Path, checkpoint: str) -> None:
    result = seen(checkpoint, "blind")
    assert result.outcome == "inconclusive"
    assert "zero_plus_one" in result.reason


def test_zeros_in_must_give_exact_zeros_out(plugin: Path, checkpoint: str) -> None:
    batch = next(b for b in seen(checkpoint, "plain").inputs if b.name == "zeros")
    assert batch.max_tolerance == 0.0
    assert batch.held


def test_the_record_names_bytes_seed_model_and_versions(plugin: Path, checkpoint: str) -> None:
    result = check(checkpoint, "plain", seed=77)
    assert result.settings.seed == 77
    assert {plane.name.rpartition(".")[2] for plane in result.planes} == {
        "qweight",
        "qzeros",
        "scales",
        "g_idx",
    }
    assert all(len(plane.sha256) == 64 for plane in result.planes)
    assert len(result.fingerprint) == 64
    assert result.error_model is not None
    assert result.shape == (128, 256)


def test_the_fingerprint_follows_the_bytes(plugin: Path, checkpoint: str, tmp_path: Path) -> None:
    same = parity_builder.gptq(tmp_path / "same")
    other = parity_builder.gptq(tmp_path / "other", seed=9)
    first = seen(checkpoint, "plain").fingerprint
    assert check(str(same), "plain").fingerprint == first
    assert check(str(other), "plain").fingerprint != first


def test_equal_runs_give_equal_entries(plugin: Path, checkpoint: str) -> None:
    first, second = (report_entry(check(checkpoint, "plain")) for _ in range(2))
    assert first == second
    assert first["execution_proof"] == "proved"
    assert first["comparison"] == "approximate"
    assert len(first["fingerprint"]) == 64
    msgspec.json.encode(first)


# The five classes of public incidents, each as a reader with that fault and no other.


def test_signed_scales_read_as_unsigned_are_caught_and_named(tmp_path: Path) -> None:
    result = emulated(parity_builder.gptq(tmp_path / "m", signed=True), "scales_unsigned")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["scales_unsigned"]
    assert max(batch.max_abs_error or 0 for batch in result.inputs) > 10


def test_swizzled_scales_read_as_linear_are_caught_and_named(tmp_path: Path) -> None:
    result = emulated(parity_builder.nvfp4(tmp_path / "m"), "swizzled_as_linear")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["swizzled_as_linear"]


def test_a_dropped_scale_plane_is_caught_and_named(tmp_path: Path) -> None:
    result = emulated(parity_builder.gptq(tmp_path / "m"), "scale_dropped")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["scale_dropped"]


def test_e8m0_scales_copied_by_value_are_caught_and_named(tmp_path: Path) -> None:
    result = emulated(parity_builder.mxfp4(tmp_path / "m"), "e8m0_by_value")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["e8m0_by_value"]


def test_zero_points_of_zero_that_wrap_are_caught_and_named(tmp_path: Path) -> None:
    result = emulated(parity_builder.awq(tmp_path / "m", zero_codes=True), "zero_wrapped")
    assert result.outcome == "did_not_hold"
    assert [s.fault for s in result.symptoms if s.matches] == ["zero_wrapped"]


@pytest.mark.parametrize(
    ("build", "fault"),
    [
        ("gptq", "zero_plus_one"),
        ("gptq", "zero_minus_one"),
        ("gptq", "zeros_ignored"),
        ("gptq", "nibbles_swapped"),
        ("gptq", "scales_rolled"),
        ("gptq", "group_128"),
        ("awq", "awq_as_linear"),
        ("mxfp4", "e8m0_as_number"),
        ("nvfp4", "second_scale_dropped"),
        ("nvfp4", "second_scale_inverted"),
    ],
)
def test_other_faults_are_caught_and_named(tmp_path: Path, build: str, fault: str) -> None:
    result = emulated(getattr(parity_builder, build)(tmp_path / "m"), fault)
    assert result.outcome == "did_not_hold", result.reason
    assert [s.fault for s in result.symptoms if s.matches] == [fault]
    assert result.execution_proof == "not_applicable"
    assert BY_NAME[fault].title in result.reason


@pytest.mark.parametrize(
    ("build", "fault"),
    [
        ("gptq", "e8m0_by_value"),
        ("gptq", "second_scale_dropped"),
        ("gptq", "scales_unsigned"),
        ("gptq", "awq_as_linear"),
        ("nvfp4", "zero_plus_one"),
        ("awq", "zero_wrapped"),
    ],
)
def test_a_fault_that_the_bytes_cannot_show_is_refused_with_a_reason(
    tmp_path: Path, build: str, fault: str
) -> None:
    result = emulated(getattr(parity_builder, build)(tmp_path / "m"), fault)
    assert result.status == "skipped"
    assert fault in result.reason


def test_unknown_names_are_usage_errors_that_list_the_known_ones(checkpoint: str) -> None:
    with pytest.raises(UsageError) as fault:
        run_parity(checkpoint, TENSOR, "reference", settings=Settings(emulate="nothing"))
    assert "zero_plus_one" in fault.value.hint
    with pytest.raises(UsageError) as backend:
        run_parity(checkpoint, TENSOR, "nothing")
    assert "reference" in backend.value.hint
    with pytest.raises(UsageError) as kernel:
        run_parity(checkpoint, TENSOR, "reference:nothing")
    assert "affine@cpu" in kernel.value.hint


def test_the_reference_backend_never_executes_the_kernel_gate(checkpoint: str) -> None:
    run = run_checkpoint(checkpoint, "reference", keep=False, settings=Settings(max_columns=32))
    result = run.results[0]
    assert result.outcome == "held"
    assert result.execution_proof == "not_applicable"
    gate = kernel_gate(run)
    assert gate.status == "skipped"
    assert gate.outcome is None


def gate(plugin: Path, checkpoint: str, kernel: str) -> Any:
    settings = Settings(max_columns=16)
    return kernel_gate(
        run_checkpoint(checkpoint, f"faulty:{kernel}", keep=False, settings=settings)
    )


def test_the_kernel_gate_holds_only_with_proof(plugin: Path, checkpoint: str) -> None:
    assert (
        gate(plugin, checkpoint, "plain").status,
        gate(plugin, checkpoint, "plain").outcome,
    ) == (
        "executed",
        "held",
    )
    assert gate(plugin, checkpoint, "falls").outcome == "inconclusive"
    assert gate(plugin, checkpoint, "off_by_one").outcome == "did_not_hold"
    crashed = gate(plugin, checkpoint, "exits")
    assert (crashed.status, crashed.outcome) == ("failed", None)


def test_the_gate_carries_its_scope(plugin: Path, checkpoint: str) -> None:
    scope = gate(plugin, checkpoint, "plain").scope
    assert scope["tensors"] == [1, 1]
    assert scope["proved"] == [1, 1]
    assert scope["codes_recovered"] == [128 * 16, 128 * 16]
    assert scope["tolerance"] is not None


def test_an_estimate_says_what_it_takes_or_why_not(plugin: Path, checkpoint: str) -> None:
    from quantscope.checkpoint import Checkpoint
    from quantscope.session.pipeline import inspect

    with Checkpoint.open(checkpoint) as opened:
        state = inspect(opened).states[0]
        cost = estimate(state, "reference")
        assert cost.refusal is None
        assert cost.kernel == "affine"
        assert cost.calls > 10
        assert cost.bytes_read == 128 * 256 // 2 + 2 * 4 * 128 + 4 * 16 * 4 + 256 * 4
        refused = estimate(state, "ggml")
        assert refused.refusal in ("contract_unsupported", "package_missing")
        assert refused.refusal_detail


def test_listing_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from quantscope.parity.run import backends; states = backends(); "
        "print([m for m in ('torch', 'triton', 'bitsandbytes', 'vllm', 'textual', 'transformers') if m in sys.modules])"
        "; print(len(states))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, count = done.stdout.splitlines()
    assert heavy == "[]"
    assert int(count) >= 6


def test_every_kernel_that_cannot_run_says_why() -> None:
    for state in backends():
        for kernel in state.kernels:
            if kernel.reason is not None:
                assert kernel.detail, (state.name, kernel.name)
