"""Inputs are fixed, exactly representable, and cover what a check must cover."""

from __future__ import annotations

import numpy as np
import pytest
from quantscope.parity.grids import nearest_small, representable, small_exponent
from quantscope.parity.inputs import make_inputs, one_hot, one_hot_columns


def test_batches_are_one_sixteen_and_an_odd_number() -> None:
    batches = {batch.x.shape[0] for batch in make_inputs(64, "f32", 1, None)}
    assert {1, 16} <= batches
    assert any(batch % 2 and batch > 1 for batch in batches)


def test_kinds_of_inputs() -> None:
    names = [batch.name for batch in make_inputs(64, "f32", 1, None)]
    assert {"normal", "large", "tiny", "one loud channel", "ones", "zeros"} <= set(names)


def test_equal_seeds_give_equal_digests_and_other_seeds_others() -> None:
    first = [batch.sha256 for batch in make_inputs(64, "f16", 1, None)]
    assert first == [batch.sha256 for batch in make_inputs(64, "f16", 1, None)]
    other = [b.sha256 for b in make_inputs(64, "f16", 2, None) if b.random]
    assert not set(first) & set(other)


@pytest.mark.parametrize(("dtype", "storage"), [("f16", np.float16), ("f32", np.float32)])
def test_every_value_survives_the_type(dtype: str, storage: type) -> None:
    for batch in make_inputs(96, dtype, 3, 51):
        assert (batch.x.astype(storage).astype(np.float32) == batch.x).all()


def test_bf16_values_have_no_bits_below_the_type() -> None:
    for batch in make_inputs(96, "bf16", 3, None):
        assert not (batch.x.view(np.uint32) & 0xFFFF).any()


def test_e4m3_rounds_to_the_nearest_of_its_values() -> None:
    grid = np.array([0, 0.001953125, 0.015625, 1.0, 1.125, 240, 256, 448])
    assert (nearest_small(grid, "e4m3") == grid).all()
    assert nearest_small(np.array([1.06, 1.07, 500.0, -1.06]), "e4m3").tolist() == [
        1.0,
        1.125,
        448.0,
        -1.0,
    ]
    assert nearest_small(np.array([1.0625]), "e4m3").tolist() == [1.0], (
        "a tie goes to the even code"
    )


def test_e2m1_has_eight_magnitudes() -> None:
    values = np.linspace(-6, 6, 1001)
    assert set(np.abs(nearest_small(values, "e2m1")).tolist()) == {0, 0.5, 1, 1.5, 2, 3, 4, 6}


@pytest.mark.parametrize("dtype", ["e4m3", "e2m1"])
def test_small_floats_are_on_a_grid_moved_by_a_power_of_two(dtype: str) -> None:
    x = representable(np.random.default_rng(2).standard_normal((3, 64)) * 1e-3, dtype)
    shift = 2.0 ** small_exponent(x, dtype)
    assert (nearest_small(x / shift, dtype) == x / shift).all()


def test_a_batch_above_the_threshold_is_labelled() -> None:
    above = [batch for batch in make_inputs(64, "f16", 1, 51) if batch.fallback]
    assert [batch.x.shape[0] for batch in above] == [51]


def test_one_hot_columns_hold_first_and_last_and_are_sorted() -> None:
    columns = one_hot_columns(4096, 100, 9)
    assert columns.size == 100
    assert columns[0] == 0
    assert columns[-1] == 4095
    assert (np.diff(columns) > 0).all()
    assert (one_hot_columns(64, 100, 9) == np.arange(64)).all()


def test_one_hot_rows() -> None:
    rows = one_hot(8, np.array([3, 7]), 127.0)
    assert rows.sum() == 254.0
    assert rows[0, 3] == rows[1, 7] == 127.0
