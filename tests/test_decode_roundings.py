"""Roundings to half types against torch's casts and numpy's half."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantscope.decode.roundings import round_to, to_bf16, to_f16

FIXTURE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "small_floats.json").read_text()
)
VALUES: NDArray[np.float32] = np.frombuffer(bytes.fromhex(FIXTURE["torch"]["inputs"]), "<f4")


def torch_words(name: str) -> NDArray[np.uint16]:
    return np.frombuffer(bytes.fromhex(FIXTURE["torch"]["encode"][name]), "<u2")


def test_bf16_rounding_is_that_of_torch() -> None:
    expected = torch_words("bf16").astype(np.uint32) << np.uint32(16)
    rounded = to_bf16(VALUES)
    finite = ~np.isnan(VALUES)
    assert np.array_equal(rounded.view(np.uint32)[finite], expected[finite])


def test_f16_rounding_is_that_of_torch() -> None:
    expected = torch_words("f16").view(np.float16).astype(np.float32)
    finite = ~np.isnan(VALUES)
    assert np.array_equal(to_f16(VALUES).view(np.uint32)[finite], expected.view(np.uint32)[finite])


@pytest.mark.parametrize("rounding", [to_bf16, to_f16])
def test_nan_stays_nan_with_its_sign(rounding: Any) -> None:
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF], np.uint32)
    rounded = rounding(nans.view(np.float32))
    assert np.isnan(rounded).all()
    assert np.signbit(rounded).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_rounding_in_place_gives_the_same(kind: str) -> None:
    values = VALUES.copy()
    expected = round_to(VALUES, kind)
    assert round_to(values, kind, out=values) is values
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_rounding_leaves_its_argument_alone() -> None:
    before = VALUES.tobytes()
    round_to(VALUES, "bf16")
    round_to(VALUES, "f16")
    assert VALUES.tobytes() == before


def test_f32_is_no_rounding_and_no_copy() -> None:
    assert round_to(VALUES, "f32") is VALUES
    out = np.empty_like(VALUES)
    assert np.array_equal(round_to(VALUES, "f32", out=out), VALUES, equal_nan=True)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not f8"):
        round_to(VALUES, "f8")
