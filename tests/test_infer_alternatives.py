"""Readings that sizes leave open: decided by a statistic, by a set of modules, or said to be undecidable."""

from __future__ import annotations

from pathlib import Path

import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.infer.alternatives import ALTERNATIVES, joined_alternatives
from quantscope.model import Evidence
from quantscope.session.pipeline import inspect

AWQ = {"word": "I32", "axis": "out", "order": "awq"}
LINEAR = {"word": "I32", "axis": "out", "order": "sequential"}


def step(value: dict[str, str] | None) -> list[Evidence]:
    supports = (value,) if value is not None else ()
    strength = "strong" if value is not None else None
    return [
        Evidence(field="packing", method=ALTERNATIVES, supports=supports, strength=strength)  # type: ignore[arg-type]
    ]


def test_eight_modules_that_agree_are_decisive_also_for_those_that_cannot_tell() -> None:
    joined = joined_alternatives("packing", [step(AWQ)] * 8 + [step(None)])
    assert joined is not None
    assert joined.supports == (AWQ,)
    assert joined.strength == "decisive"


@pytest.mark.parametrize(
    "steps", [[step(AWQ)] * 7, [step(AWQ)] * 8 + [step(LINEAR)], [step(None)] * 9]
)
def test_too_few_or_contrary_modules_decide_nothing_together(steps: list[list[Evidence]]) -> None:
    assert joined_alternatives("packing", steps) is None


@pytest.mark.real
def test_awq_order_is_decided_from_codes_on_every_module(real_set: Path) -> None:
    with Checkpoint.open(str(real_set / "autoawq-gemm-g128")) as checkpoint:
        found = inspect(checkpoint)
    for state in found.states:
        inferred = state.contract["packing"].inferred
        assert inferred is not None, state.tensor.name
        assert inferred.value == AWQ
        assert inferred.strength == "decisive"


@pytest.mark.real
def test_fp4_nibble_order_is_said_to_be_undecidable_with_the_reason(real_set: Path) -> None:
    with Checkpoint.open(str(real_set / "llmcompressor-nvfp4")) as checkpoint:
        found = inspect(checkpoint)
    for state in found.states:
        steps = [e for e in state.evidence if e.field == "packing" and e.method == ALTERNATIVES]
        assert len(steps) == 1
        assert steps[0].supports == ()
        assert "undecidable from codes" in steps[0].numbers["decided_by"]
        assert state.contract["packing"].match == "declared_only"
