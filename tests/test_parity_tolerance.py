"""The bound holds for arithmetic that was simulated apart from it, and is tight enough to see single faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from quantscope.decode.parts import Parts
from quantscope.families.base import FamilyBase
from quantscope.parity.model import ErrorModel
from quantscope.parity.tolerance import BlockModel

N, K, GROUP = 48, 512, 64


class _Family(FamilyBase):
    name = "test"


def _parts(seed: int, *, shift: int = 0) -> Parts:
    made = np.random.default_rng(seed)
    groups = K // GROUP
    return Parts(
        codes=made.integers(0, 16, (N, K)).astype(np.uint8),
        combine="affine",
        scale=(made.uniform(0.003, 0.02, (N, groups)).astype(np.float16).astype(np.float32),),
        zero=made.integers(3, 13, (N, groups)) + shift,
        group_of_column=np.arange(K) // GROUP,
    )


def _block(parts: Parts, model: ErrorModel) -> BlockModel:
    return BlockModel(parts, _Family(), None, model)  # type: ignore[arg-type]


def _bf16(values: Any) -> Any:
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _cut(values: Any) -> Any:
    bits = np.asarray(values, np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def _f16(values: Any) -> Any:
    return np.asarray(values, np.float32).astype(np.float16).astype(np.float32)


def _spread(plane: Any) -> Any:
    return np.repeat(np.asarray(plane, np.float32), GROUP, axis=1)


def _rounded_weights(parts: Parts, round_to: Any) -> Any:
    levels = parts.codes.astype(np.float32) - _spread(parts.zero)
    return round_to(levels * _spread(parts.scale[0]))


def _folded_weights(parts: Parts, round_to: Any) -> Any:
    """Scale and (8 - z) * s held in the narrow type, sum in float32."""
    scale = round_to(np.asarray(parts.scale[0], np.float32))
    zero = round_to((8 - np.asarray(parts.zero, np.float64)) * parts.scale[0])
    return (parts.codes.astype(np.float32) - 8) * _spread(scale) + _spread(zero)


def _sum_in_order(x: Any, weights: Any) -> Any:
    """A running float32 sum over K, one rounding a step: the least favourable order."""
    total = np.zeros((x.shape[0], weights.shape[0]), np.float32)
    for k in range(x.shape[1]):
        total = total + x[:, k : k + 1] * weights[:, k]
    return total


CASES = {
    "f16 weights": (
        _f16,
        _rounded_weights,
        ErrorModel(input_dtype="f16", weight_dtype="f16", weight_roundings=1, output_dtype="f16"),
    ),
    "bf16 weights": (
        _bf16,
        _rounded_weights,
        ErrorModel(
            input_dtype="bf16", weight_dtype="bf16", weight_roundings=1, output_dtype="bf16"
        ),
    ),
    "bf16 weights that are cut": (
        _cut,
        _rounded_weights,
        ErrorModel(
            input_dtype="bf16",
            weight_dtype="bf16_truncated",
            weight_roundings=1,
            output_dtype="bf16_truncated",
        ),
    ),
    "bf16 folded zeros": (
        _bf16,
        _folded_weights,
        ErrorModel(
            input_dtype="bf16",
            weight_dtype="f32",
            weight_roundings=2,
            scale_dtype="bf16",
            zero_dtype="bf16",
            pivot=8.0,
            output_dtype="bf16",
            magnitude="folded",
        ),
    ),
    "f16 folded zeros": (
        _f16,
        _folded_weights,
        ErrorModel(
            input_dtype="f16",
            weight_dtype="f32",
            weight_roundings=2,
            scale_dtype="f16",
            zero_dtype="f16",
            pivot=8.0,
            output_dtype="f16",
            magnitude="folded",
        ),
    ),
}

INPUTS = {
    "normal": lambda made: made.standard_normal((16, K)),
    "one loud channel": lambda made: (
        made.standard_normal((3, K)) * np.where(np.arange(K) == 9, 300, 1)
    ),
    "tiny": lambda made: made.standard_normal((3, K)) * 2.0**-12,
    "ones": lambda made: np.ones((1, K)),
    "cancelling": lambda made: np.where(np.arange(K) < K // 2, 1.0, -1.0)[None, :],
    "one-hot": lambda made: np.eye(K)[:16],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("seed", [101, 102])
def test_the_bound_holds_for_rounding_done_in_numpy(case: str, kind: str, seed: int) -> None:
    round_to, weights_of, model = CASES[case]
    parts = _parts(seed)
    x = round_to(INPUTS[kind](np.random.default_rng(seed + 7)).astype(np.float32))
    outputs = round_to(_sum_in_order(x, weights_of(parts, round_to)))
    bound = _block(parts, model).bound(x, random=kind in ("normal", "one loud channel", "tiny"))
    error = np.abs(outputs.astype(np.float64) - bound.reference)
    assert (error <= bound.tolerance).all(), float((error / bound.tolerance).max())


@pytest.mark.parametrize("case", CASES)
def test_the_bound_is_not_loose_by_orders_of_magnitude(case: str) -> None:
    round_to, weights_of, model = CASES[case]
    parts = _parts(3)
    x = round_to(np.random.default_rng(4).standard_normal((16, K)).astype(np.float32))
    outputs = round_to(_sum_in_order(x, weights_of(parts, round_to)))
    bound = _block(parts, model).bound(x, random=True)
    error = np.abs(outputs.astype(np.float64) - bound.reference)
    assert (error / bound.tolerance).max() > 0.1


@pytest.mark.parametrize("case", CASES)
def test_a_zero_off_by_one_is_far_beyond_the_bound(case: str) -> None:
    round_to, weights_of, model = CASES[case]
    right, wrong = _parts(3), _parts(3, shift=1)
    x = round_to(np.random.default_rng(4).standard_normal((16, K)).astype(np.float32))
    outputs = round_to(_sum_in_order(x, weights_of(right, round_to)))
    bound = _block(wrong, model).bound(x, random=True)
    over = np.abs(outputs.astype(np.float64) - bound.reference) > bound.tolerance
    assert over.mean() > 0.5


def test_a_truncating_kernel_breaks_a_bound_that_counts_on_rounding() -> None:
    """Why the conversion of a library has to be read from its source before the bound is fixed."""
    parts = _parts(3)
    x = np.eye(K)[:64]
    outputs = _rounded_weights(parts, _cut)[:, :64].T
    rounds = ErrorModel(input_dtype="bf16", weight_dtype="bf16", weight_roundings=1)
    cuts = ErrorModel(input_dtype="bf16", weight_dtype="bf16_truncated", weight_roundings=1)
    nearest = _block(parts, rounds).bound(x, random=False)
    assert (np.abs(outputs - nearest.reference) > nearest.tolerance).any()
    cut = _block(parts, cuts).bound(x, random=False)
    assert (np.abs(outputs - cut.reference) <= cut.tolerance).all()


@pytest.mark.parametrize("case", CASES)
def test_the_bound_of_single_weights_is_that_of_one_hot_rows(case: str) -> None:
    model = CASES[case][2]
    block = _block(_parts(3), model)
    columns = np.array([0, 5, 63, 64, 500])
    rows = np.zeros((5, K))
    rows[np.arange(5), columns] = 1.0
    whole = block.bound(rows, random=False).tolerance.T
    assert np.allclose(block.single(columns, 1.0), whole, rtol=1e-6)


def test_zero_weights_and_one_hot_inputs_make_no_ratio_of_nothing_by_nothing() -> None:
    parts = _parts(3)
    parts.zero = parts.codes[:, :1].astype(np.int64) + np.zeros((N, K // GROUP), np.int64)
    bound = _block(parts, CASES["f16 weights"][2]).bound(np.eye(K)[:1], random=False)
    assert (bound.reference == 0).all()
    assert (bound.tolerance >= 0).all()
    assert np.isfinite(bound.tolerance).all()


def test_a_scale_that_the_type_holds_adds_nothing() -> None:
    parts = _parts(3)
    coarse = ErrorModel(input_dtype="f16", scale_dtype="f16", output_dtype="f32")
    exact = ErrorModel(input_dtype="f16", output_dtype="f32")
    x = np.random.default_rng(4).standard_normal((3, K))
    same = _block(parts, coarse).bound(x, random=True).tolerance
    assert (same == _block(parts, exact).bound(x, random=True).tolerance).all()
    held = ErrorModel(input_dtype="f16", scale_dtype="bf16", output_dtype="f32")
    assert (_block(parts, held).bound(x, random=True).tolerance > same).all()
