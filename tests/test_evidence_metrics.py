from __future__ import annotations

import math

import numpy as np
import pytest
from quantscope.evidence import metrics
from quantscope.evidence.metrics import (
    NonFiniteError,
    NumericError,
    ShapeMismatchError,
    TensorAccumulator,
    all_close,
    code_fractions,
    endpoint_fraction,
    tensor_metrics,
)


def f64(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_known_answer() -> None:
    found = tensor_metrics(f64(1, 2), f64(2, 4))
    assert (found.mse, found.relative_squared_l2, found.cosine) == (2.5, 1.0, 1.0)
    assert (found.max_abs_error, found.max_abs_error_position, found.count) == (2.0, 1, 2)


def test_equal_tensors_give_exactly_zero_and_one() -> None:
    x = np.random.default_rng(0).normal(size=1000)
    found = tensor_metrics(x, x.copy())
    assert (found.mse, found.relative_squared_l2, found.cosine) == (0.0, 0.0, 1.0)


def test_all_zero_reference_leaves_ratios_undefined_with_a_reason() -> None:
    found = tensor_metrics(f64(0, -0.0), f64(1, 0))
    assert found.mse == 0.5
    assert found.relative_squared_l2 is None
    assert found.relative_squared_l2_reason == "the reference is all zero"
    assert found.cosine is None
    assert found.cosine_reason == "the reference is all zero"


def test_all_zero_candidate_leaves_only_the_cosine_undefined() -> None:
    found = tensor_metrics(f64(3, 4), f64(0, 0))
    assert found.relative_squared_l2 == 1.0
    assert (found.cosine, found.cosine_reason) == (None, "the candidate is all zero")


def test_opposite_direction_is_minus_one_and_orthogonal_zero() -> None:
    assert tensor_metrics(f64(1, 2), f64(-1, -2)).cosine == -1.0
    assert tensor_metrics(f64(1, 0), f64(0, 1)).cosine == 0.0


@pytest.mark.parametrize("factor", [1e200, 1e-150, 2.0**-1000])
def test_huge_and_tiny_values_keep_their_ratios(factor: float) -> None:
    x, y = f64(1, 2) * factor, f64(1, 2) * factor
    found = tensor_metrics(x, y)
    assert (found.relative_squared_l2, found.cosine, found.mse) == (0.0, 1.0, 0.0)


def test_tiny_reference_with_a_representable_error() -> None:
    found = tensor_metrics(f64(1e-160), f64(2e-160))
    assert found.relative_squared_l2 == pytest.approx(1.0, rel=1e-15, abs=0)
    assert found.mse == pytest.approx(1e-320, rel=1e-3, abs=0)


@pytest.mark.parametrize(
    ("x", "y", "stage", "field"),
    [
        ([-1e308], [1e308], "difference", "tensor.max_abs_error"),
        ([1e200], [0.0], "mean", "tensor.mse"),
        ([0.0], [1e-200], "squared error", "tensor.mse"),
        ([0.0, 0.0], [1e-200, 1.0], "squared error", "tensor.mse"),
        ([1e-160], [1e150], "ratio", "tensor.relative_squared_l2"),
        ([1e160, 0.0], [1e160, 1e-10], "ratio", "tensor.relative_squared_l2"),
    ],
)
def test_numeric_failure_names_stage_and_field(
    x: list[float], y: list[float], stage: str, field: str
) -> None:
    with pytest.raises(NumericError) as caught:
        tensor_metrics(np.array(x), np.array(y))
    assert (caught.value.stage, caught.value.field) == (stage, field)
    assert caught.value.exit_code == 1


def test_cosine_that_cannot_be_told_from_zero_is_a_numeric_error() -> None:
    x, y = f64(1e150, 1e-180), f64(0.0, 1e150)
    with pytest.raises(NumericError) as caught:
        tensor_metrics(x, y * 1e-150)
    assert caught.value.field == "tensor.cosine"


def test_overflow_of_intermediates_does_not_hide_a_representable_result() -> None:
    found = tensor_metrics(f64(1.2e154, 0), f64(0, 1.2e154))
    assert found.mse == pytest.approx(1.44e308, rel=1e-14, abs=0)


def test_nonfinite_values_come_first_with_count_and_position_on_each_side() -> None:
    x = f64(1, math.nan, math.inf, 2)
    y = f64(1, 2, 3, -math.inf)
    with pytest.raises(NonFiniteError) as caught:
        tensor_metrics(x, y)
    assert caught.value.reference is not None
    assert (caught.value.reference.count, caught.value.reference.first_position) == (2, 1)
    assert caught.value.candidate is not None
    assert (caught.value.candidate.count, caught.value.candidate.first_position) == (1, 3)


def test_nonfinite_position_counts_over_pieces() -> None:
    accumulator = TensorAccumulator()
    accumulator.add(f64(1, 2), f64(1, 2))
    accumulator.add(f64(1, math.nan), f64(1, 2))
    accumulator.add(f64(math.nan), f64(2))
    with pytest.raises(NonFiniteError) as caught:
        accumulator.result()
    assert caught.value.reference is not None
    assert (caught.value.reference.count, caught.value.reference.first_position) == (2, 3)


def test_shapes_are_never_broadcast() -> None:
    with pytest.raises(ShapeMismatchError):
        tensor_metrics(np.zeros((2, 3)), np.zeros(3))
    with pytest.raises(ShapeMismatchError):
        tensor_metrics(np.zeros((0,)), np.zeros((0,)))
    with pytest.raises(ShapeMismatchError):
        all_close(np.zeros((2, 1)), np.zeros((1, 2)), atol=0, rtol=0)


def test_pieces_and_chunks_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 70)).astype(np.float32)
    y = (x + rng.normal(size=x.shape) * 0.01).astype(np.float32)
    whole = tensor_metrics(x, y)
    monkeypatch.setattr(metrics, "CHUNK_ELEMENTS", 97)
    accumulator = TensorAccumulator()
    for start in range(0, 40, 8):
        accumulator.add(x[start : start + 8], y[start : start + 8])
    pieces = accumulator.result()
    assert pieces.mse == pytest.approx(whole.mse, rel=1e-13, abs=0)
    assert pieces.cosine == pytest.approx(whole.cosine, rel=1e-14, abs=0)
    assert pieces.relative_squared_l2 == pytest.approx(whole.relative_squared_l2, rel=1e-13, abs=0)
    assert pieces.max_abs_error == whole.max_abs_error
    assert pieces.max_abs_error_position == whole.max_abs_error_position


def test_chunks_of_very_different_size_merge() -> None:
    accumulator = TensorAccumulator()
    accumulator.add(f64(1e200), f64(1e200))
    accumulator.add(f64(1.0), f64(2.0))
    with pytest.raises(NumericError, match="relative_squared_l2"):
        accumulator.result()
    other = TensorAccumulator()
    other.add(f64(1e140), f64(1e140))
    other.add(f64(1.0), f64(2.0))
    found = other.result()
    assert found.mse == 0.5
    assert found.relative_squared_l2 == pytest.approx(1e-280, rel=1e-12, abs=0)


def test_tolerance_is_absolute_plus_relative_to_the_reference() -> None:
    assert all_close(f64(100, 0), f64(101, 0.5), atol=0.5, rtol=0.005).held
    found = all_close(f64(100, 0), f64(101, 0.6), atol=0.5, rtol=0.005)
    assert not found.held
    assert (found.outside, found.first_outside_position, found.count) == (1, 1, 2)
    assert found.worst_ratio == pytest.approx(1.2)
    assert (found.atol, found.rtol) == (0.5, 0.005)


def test_tolerance_is_relative_to_the_reference_not_the_candidate() -> None:
    assert not all_close(f64(1.0), f64(2.0), atol=0, rtol=0.6).held
    assert all_close(f64(2.0), f64(1.0), atol=0, rtol=0.6).held


def test_zero_error_at_a_zero_bound_holds() -> None:
    found = all_close(f64(0, 1), f64(0, 1), atol=0, rtol=0)
    assert (found.held, found.worst_ratio) == (True, 0.0)
    assert all_close(f64(0.0), f64(1.0), atol=0, rtol=0).worst_ratio is None


def test_tolerance_refuses_nonfinite_values_and_thresholds() -> None:
    with pytest.raises(NonFiniteError):
        all_close(f64(math.nan), f64(math.nan), atol=1, rtol=1)
    for atol, rtol in ((-1.0, 0.0), (0.0, math.inf), (math.nan, 0.0)):
        with pytest.raises(ValueError, match="finite"):
            all_close(f64(1), f64(1), atol=atol, rtol=rtol)


def test_clamp_endpoint_and_range_are_three_ratios() -> None:
    found = code_fractions(f64(0, 7, 7.2, 100), scale=1.0, zero_point=0, qmin=-7, qmax=7)
    ratios = (found.code_clamp_fraction, found.endpoint_fraction, found.range_fraction)
    assert ratios == (1 / 4, 3 / 4, 2 / 4)


def test_rounding_comes_before_the_zero_point() -> None:
    # RNE(0.5) + 1 = 1 stays in 0..1, RNE(0.5 + 1) = 2 would not.
    found = code_fractions(f64(0.5), scale=1.0, zero_point=1, qmin=0, qmax=1)
    assert found.code_clamp_fraction == 0.0
    assert found.endpoint_fraction == 1.0


def test_ties_round_to_even() -> None:
    found = code_fractions(f64(0.5, 1.5, 2.5), scale=1.0, zero_point=0, qmin=1, qmax=2)
    assert found.code_clamp_fraction == pytest.approx(1 / 3)


def test_scales_may_differ_by_value_but_are_not_broadcast() -> None:
    found = code_fractions(f64(8, 8), scale=f64(1, 2), zero_point=0, qmin=-7, qmax=7)
    assert found.code_clamp_fraction == 0.5
    with pytest.raises(ShapeMismatchError):
        code_fractions(np.ones((2, 2)), scale=f64(1, 2), zero_point=0, qmin=-7, qmax=7)


def test_code_fractions_refuse_bad_scales_and_overflow() -> None:
    with pytest.raises(ValueError, match="scales"):
        code_fractions(f64(1), scale=0.0, zero_point=0, qmin=0, qmax=1)
    with pytest.raises(NonFiniteError):
        code_fractions(f64(math.inf), scale=1.0, zero_point=0, qmin=0, qmax=1)
    with pytest.raises(NumericError):
        code_fractions(f64(1e300), scale=1e-300, zero_point=0, qmin=0, qmax=1)


def test_endpoint_fraction_needs_codes_only() -> None:
    assert endpoint_fraction(np.array([0, 15, 3, 4]), qmin=0, qmax=15) == 0.5
    with pytest.raises(ShapeMismatchError):
        endpoint_fraction(np.array([]), qmin=0, qmax=15)
