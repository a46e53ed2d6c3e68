from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from quantscope.evidence import logits as module
from quantscope.evidence.logits import (
    likelihood,
    logits_metrics,
    loss_means,
    perplexity,
    row_statistics,
    shifted_target_count,
    target_nll,
)
from quantscope.evidence.metrics import NonFiniteError, NumericError, ShapeMismatchError

ALL = np.array([True])


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def kl(reference: list[float], candidate: list[float]) -> float:
    return float(row_statistics(rows(reference), rows(candidate)).kl[0])


def exact_kl(reference: np.ndarray, candidate: np.ndarray) -> mpmath.mpf:
    """KL(p || q) as sum p (log p - log q), whose cancellation 90 digits outlive by 40."""
    with mpmath.workdps(90):
        x = [mpmath.mpf(float(value)) for value in reference]
        y = [mpmath.mpf(float(value)) for value in candidate]
        log_x = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in x))
        log_y = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in y))
        return mpmath.fsum(
            mpmath.exp(a - log_x) * ((a - log_x) - (b - log_y)) for a, b in zip(x, y, strict=True)
        )


@pytest.mark.parametrize("vocabulary_size", [2, 3, 33, 1000])
@pytest.mark.parametrize("noise", [1e-12, 1e-11, 1e-9, 1e-6, 1e-4, 1e-3, 0.03, 0.3, 1, 10, 60, 400])
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_kl_meets_40_digit_references(vocabulary_size: int, noise: float, shift: float) -> None:
    rng = np.random.default_rng(int(noise * 1e15) + vocabulary_size)
    x = rng.normal(size=vocabulary_size) * 4
    y = x + rng.normal(size=vocabulary_size) * noise + shift
    exact = exact_kl(x, y)
    found = float(row_statistics(x[None], y[None]).kl[0])
    assert exact > 0
    relative = abs(float((mpmath.mpf(found) - exact) / exact))
    assert relative < (1e-9 if exact > 1e-10 else 1e-3), (float(exact), relative)
    assert relative < 1e-12


def test_kl_references_reach_from_1e_25_to_500() -> None:
    small = exact_kl(np.array([0.0, 0.0]), np.array([0.0, 9e-13]))
    large = exact_kl(np.array([0.0, 0.0, -1000.0]), np.array([0.0, -1000.0, 0.0]))
    assert small < 1.1e-25
    assert abs(large - 500) < 1e-9
    assert kl([0, 0], [0, 9e-13]) == pytest.approx(float(small), rel=1e-3, abs=0)
    assert kl([0, 0, -1000], [0, -1000, 0]) == pytest.approx(float(large), rel=1e-9, abs=0)


def test_kl_of_float32_rows_is_computed_in_float64() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 500)).astype(np.float32)
    y = (x + rng.normal(size=x.shape) * 1e-3).astype(np.float32)
    found = row_statistics(x, y).kl
    for row in range(4):
        exact = float(exact_kl(x[row], y[row]))
        assert found[row] == pytest.approx(exact, rel=1e-12, abs=0)


def test_equal_rows_give_exactly_zero() -> None:
    x = np.random.default_rng(4).normal(size=(5, 1000)) * 10
    found = row_statistics(x, x.copy())
    assert found.kl.tolist() == [0.0] * 5
    assert not found.kl_lost.any()
    assert row_statistics(x, x.copy()).max_abs_logit_error.tolist() == [0.0] * 5


def test_constant_shift_gives_exactly_zero() -> None:
    assert kl([1.0, 2.0, -4.0], [9.0, 10.0, 4.0]) == 0.0


def test_kl_is_directional() -> None:
    a, b = [0.0, math.log(3.0)], [0.0, 0.0]
    assert kl(a, b) == pytest.approx(0.75 * math.log(3) - math.log(2), rel=1e-14, abs=0)
    assert kl(b, a) == pytest.approx(0.5 * math.log(4 / 3), rel=1e-14, abs=0)


def test_tiny_p_is_not_flushed_before_a_large_log_ratio_multiplies_it() -> None:
    # p alone is 80 steps of the least number, so it would carry an error of half a percent.
    x, y = [0.0, -740.0], [0.0, -1e16]
    exact = float(exact_kl(np.array(x), np.array(y)))
    assert 0 < math.exp(-740.0) < 1e-321
    assert exact > 1e-306
    assert kl(x, y) == pytest.approx(exact, rel=1e-9, abs=0)


def test_mass_that_moves_by_more_than_exp_can_hold() -> None:
    assert kl([0, 0], [0, 800]) == pytest.approx(400 - math.log(2), rel=1e-14, abs=0)
    assert kl([0, 0], [0, 1e6]) == pytest.approx(5e5 - math.log(2), rel=1e-14, abs=0)


def test_nearly_equal_rows_never_come_out_negative() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 300)) * 5
    for noise in (1e-16, 1e-15, 1e-14, 1e-8):
        assert (row_statistics(x, x + rng.normal(size=x.shape) * noise).kl >= 0).all()


def test_kl_too_small_for_binary64_is_a_numeric_error_not_a_zero() -> None:
    x, y = rows([0.0, -1000.0]), rows([0.0, -2000.0])
    assert row_statistics(x, y).kl_lost.tolist() == [True]
    with pytest.raises(NumericError) as caught:
        logits_metrics(x, y, np.array([0]), ALL)
    assert caught.value.field == "logits.kl_mean"


def test_top1_ties_resolve_to_the_lowest_index_on_both_sides() -> None:
    found = row_statistics(rows([1, 3, 3], [2, 2, 0]), rows([0, 5, 5], [0, 7, 7]))
    assert found.reference_top1.tolist() == [1, 0]
    assert found.candidate_top1.tolist() == [1, 1]


def test_flip_within_twice_the_error_is_not_called_safe() -> None:
    found = row_statistics(rows([1, 1.000001]), rows([1.000002, 1.000001]))
    assert found.reference_top1[0] != found.candidate_top1[0]
    assert found.max_abs_logit_error[0] == pytest.approx(2e-6)
    assert found.margin[0] == pytest.approx(1e-6)
    assert not found.argmax_safe[0]


def test_same_argmax_is_not_the_same_distribution() -> None:
    found = row_statistics(rows([0, 1]), rows([0, 10]))
    assert found.reference_top1[0] == found.candidate_top1[0]
    assert found.kl[0] > 0.5
    assert not found.argmax_safe[0]


def test_margin_of_exactly_twice_the_error_is_not_safe() -> None:
    assert not row_statistics(rows([0, 2]), rows([0, 1])).argmax_safe[0]
    assert row_statistics(rows([0, 2]), rows([0, 1.0000001])).argmax_safe[0]


def test_safety_is_decided_on_exact_differences() -> None:
    # 1 - 2**-60 rounds to 1, so margin and twice the error are equal only after rounding.
    tiny = 2.0**-60
    assert not row_statistics(rows([tiny, 1.0]), rows([tiny, 0.5])).argmax_safe[0]
    assert row_statistics(rows([-tiny, 1.0]), rows([-tiny, 0.5])).argmax_safe[0]


def test_tied_reference_is_never_safe() -> None:
    assert not row_statistics(rows([1, 1]), rows([1, 1])).argmax_safe[0]


def test_safe_rows_never_flip() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(2000, 8))
    found = row_statistics(x, x + rng.normal(size=x.shape) * 0.2)
    assert 0 < found.argmax_safe.sum() < 2000
    same = found.reference_top1 == found.candidate_top1
    assert same[found.argmax_safe].all()


def test_perplexity_comes_from_the_total() -> None:
    losses = np.array([math.log(2), *[math.log(4)] * 3])
    found = likelihood(losses, field="logits.reference")
    assert found.ppl == pytest.approx(3.3635856610, abs=5e-11)
    assert found.nll_sum == pytest.approx(math.log(2) + 3 * math.log(4), rel=1e-15, abs=0)
    batches = math.exp((losses[:1].mean() + losses[1:].mean()) / 2)
    assert batches == pytest.approx(2.8284271247, abs=5e-11)
    assert found.ppl != pytest.approx(batches, rel=0.1)


def test_perplexity_that_overflows_is_a_numeric_error() -> None:
    with pytest.raises(NumericError) as caught:
        perplexity(710.0, 1, "logits.candidate")
    assert (caught.value.stage, caught.value.field) == ("exp", "logits.candidate.ppl")
    assert perplexity(709.0, 1) < math.inf


@pytest.mark.parametrize("target", [0, 1, 2])
def test_nll_meets_40_digit_references(target: int) -> None:
    row = [100.0, 0.0, -650.0]
    with mpmath.workdps(400):
        total = mpmath.fsum(mpmath.exp(mpmath.mpf(value)) for value in row)
        exact = float(mpmath.log(total) - mpmath.mpf(row[target]))
    found = float(target_nll(rows(row), np.array([target]))[0])
    assert found == pytest.approx(exact, rel=1e-14, abs=0)
    assert found > 0


def test_all_figures_are_over_the_same_scored_rows() -> None:
    x = rows([0, 1, 0], [5, 0, 0], [0, 0, 9])
    y = rows([0, 1, 0], [0, 5, 0], [0, 0, 9])
    mask = np.array([True, False, True])
    found = logits_metrics(x, y, np.array([1, 1, 2]), mask)
    assert (found.kl_mean, found.top1_agreement, found.scored_rows) == (0.0, 1.0, 2)
    assert found.reference == found.candidate
    assert found.reference.count == 2
    assert found.max_abs_logit_error == 0.0
    every = logits_metrics(x, y, np.array([1, 1, 2]), np.array([True] * 3))
    assert every.top1_agreement == pytest.approx(2 / 3)
    assert every.kl_max == pytest.approx(every.kl_mean * 3)


def test_nonfinite_logits_are_refused_on_masked_rows_as_well() -> None:
    x = rows([0, 1], [0, 1])
    y = rows([0, 1], [math.nan, math.inf])
    with pytest.raises(NonFiniteError) as caught:
        logits_metrics(x, y, np.array([0, 0]), np.array([True, False]))
    assert caught.value.reference is None
    assert caught.value.candidate is not None
    assert (caught.value.candidate.count, caught.value.candidate.first_position) == (2, 2)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1e308, -1e308], [0.0, 0.0]),
        ([0.0, 0.0], [1e308, -1e308]),
        ([0.0, 0.0], [-1e308, 1e308]),
        ([1e308, 0.0], [-1e308, 0.0]),
    ],
)
def test_logits_whose_differences_overflow_are_a_numeric_error(
    x: list[float], y: list[float]
) -> None:
    with pytest.raises(NumericError) as caught:
        logits_metrics(rows(x), rows(y), np.array([0]), ALL)
    assert caught.value.stage == "logit difference"


def test_padding_logits_of_float32_minimum_are_fine() -> None:
    low = float(np.finfo(np.float32).min)
    found = row_statistics(rows([1, 2, low, low]), rows([1, 2.5, low, -1e9]))
    assert found.kl[0] == pytest.approx(float(exact_kl(np.array([1.0, 2.0]), np.array([1, 2.5]))))


def test_shapes_and_empty_masks_are_refused() -> None:
    with pytest.raises(ShapeMismatchError):
        row_statistics(rows([0, 1]), rows([0, 1], [0, 1]))
    with pytest.raises(ShapeMismatchError):
        row_statistics(rows([0.0]), rows([0.0]))
    with pytest.raises(ShapeMismatchError):
        logits_metrics(rows([0, 1]), rows([0, 1]), np.array([0]), np.array([False]))
    with pytest.raises(ShapeMismatchError):
        target_nll(rows([0, 1]), np.array([2]))
    with pytest.raises(ShapeMismatchError):
        likelihood(np.array([]), field="x")


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(23, 50)), rng.normal(size=(23, 50))
    targets = rng.integers(0, 50, size=23)
    whole, nll = row_statistics(x, y), target_nll(x, targets)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 120)
    parts = row_statistics(x, y)
    for name in whole.__struct_fields__:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    np.testing.assert_array_equal(target_nll(x, targets), nll)


def test_shifted_targets_are_counted_from_the_mask_itself() -> None:
    assert shifted_target_count([-100, 2, 3, -100]) == 2
    assert shifted_target_count([-100, -100, 3, 4]) == 2
    assert shifted_target_count([5, -100]) == 0
    assert shifted_target_count([5]) == 0
    assert shifted_target_count(np.array([0, 1, 2]), ignore_index=2) == 1
    with pytest.raises(ShapeMismatchError):
        shifted_target_count(np.zeros((2, 2), dtype=int))


def test_document_mean_and_token_mean_are_both_named() -> None:
    found = loss_means([[2.0, 2.0], [1.0] * 8])
    assert (found.per_document_mean, found.per_token_mean) == (1.5, 1.2)
    assert (found.documents, found.tokens) == (2, 10)
    for empty in ([], [[1.0], []]):
        with pytest.raises(ShapeMismatchError):
            loss_means(empty)
