"""Deliberately wrong decoders must turn the oracle comparison red: the comparison itself is on trial here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import real_oracle
from checkpoint_builder import read_safetensors_values
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Parts, Window
from quantscope.session.pipeline import inspect

DATA = Path(__file__).parent / "data"

CASES = (
    ("gptqmodel-v2", "w4_square.weight"),
    ("gptqmodel-v2", "w8.weight"),
    ("gptqmodel-planar", "p5.weight"),
    ("autoawq-gemm", "g32.weight"),
    ("autoawq-gemv", "g32.weight"),
    ("compressed-tensors-pack", "asym4.weight"),
    ("compressed-tensors-pack", "asym3.weight"),
)

RULE = {"compare_in": "tolerance:0.003", "tolerance_f32": 0.003}
"""Oracles in half and bfloat16 agree with plain float32 to 2e-3; each fault below is far beyond that."""


def faulty(fault: str) -> Callable[[Parts], Parts]:
    """A function that damages parts as a wrong decoder would."""

    def swap(parts: Parts) -> Parts:
        codes = parts.codes.copy()
        even = codes.shape[1] // 2 * 2
        codes[:, 0:even:2], codes[:, 1:even:2] = parts.codes[:, 1:even:2], parts.codes[:, 0:even:2]
        return rebuilt(parts, codes=codes)

    def off_by_one(parts: Parts) -> Parts:
        assert parts.zero is not None
        return rebuilt(parts, zero=np.asarray(parts.zero) + 1)

    def transposed(parts: Parts) -> Parts:
        scale = parts.scale[0]
        return rebuilt(parts, scale=(scale.T.reshape(scale.shape),))

    return {"codes swapped": swap, "zero off by one": off_by_one, "scales transposed": transposed}[
        fault
    ]


def rebuilt(parts: Parts, **changes: object) -> Parts:
    kept = {
        name: getattr(parts, name)
        for name in ("codes", "combine", "scale", "zero", "minimum", "lut", "group_of_column")
    }
    return Parts(**(kept | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}:{case[1]}")
def case(request: pytest.FixtureRequest):
    folder, name = request.param
    checkpoint = Checkpoint.open(str(DATA / folder))
    state = inspect(checkpoint).state(name)
    wanted = read_safetensors_values(DATA / folder / "oracle.safetensors")[name]
    return checkpoint, state, wanted.astype(np.float32)


def decoded(case, damage: Callable[[Parts], Parts] | None) -> np.ndarray:
    checkpoint, state, _ = case
    reading = state.reading
    family = checkpoint.family(state.tensor)
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    parts = family.parts(state.tensor, reading, window, checkpoint.reader())
    return family.combine(damage(parts) if damage else parts, reading, False)


def test_the_right_decoder_passes(case) -> None:
    real_oracle.compare(decoded(case, None), case[2], RULE)


@pytest.mark.parametrize("fault", ["codes swapped", "zero off by one", "scales transposed"])
def test_a_wrong_decoder_fails(case, fault: str) -> None:
    with pytest.raises(AssertionError):
        real_oracle.compare(decoded(case, faulty(fault)), case[2], RULE)


@pytest.mark.parametrize("fault", ["codes swapped", "zero off by one"])
def test_a_wrong_decoder_fails_an_exact_comparison(case, fault: str) -> None:
    rule = {"compare_in": "f32_exact"}
    with pytest.raises(AssertionError):
        real_oracle.compare(decoded(case, faulty(fault)), decoded(case, None), rule)


def test_wrong_readings_of_the_same_bytes_fail(case) -> None:
    checkpoint, state, wanted = case
    reading = state.reading
    wrong = []
    if reading.zero_convention == "as_is":
        wrong.append(msgspec.structs.replace(reading, zero_convention="minus_one"))
    if reading.packing.order == "awq":
        packing = msgspec.structs.replace(reading.packing, order="sequential")
        wrong.append(msgspec.structs.replace(reading, packing=packing))
    family = checkpoint.family(state.tensor)
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    assert wrong
    for other in wrong:
        parts = family.parts(state.tensor, other, window, checkpoint.reader())
        with pytest.raises(AssertionError):
            real_oracle.compare(family.combine(parts, other, False), wanted, RULE)


@pytest.mark.real
@pytest.mark.parametrize("folder", ["gptqmodel-w4g128-asym-v1", "autoawq-gemm-g128"])
@pytest.mark.parametrize("fault", ["codes swapped", "zero off by one", "scales transposed"])
def test_a_wrong_decoder_fails_on_the_real_set(real_set: Path, folder: str, fault: str) -> None:
    real = real_oracle.RealCheckpoint(real_set / folder)
    rule = real.expected["oracle"]
    name = rule["tensors"][0]
    state = real.inspection.state(name)
    wanted = real.oracle()[name]
    real_oracle.compare(real.decode(name, as_producer=False), wanted, rule)
    wrong = decoded((real.checkpoint, state, wanted), faulty(fault))
    with pytest.raises(AssertionError):
        real_oracle.compare(wrong, wanted, rule)
