from __future__ import annotations

import pytest
from quantscope.evidence.gates import GATE_NAMES, GATES, OVERALL, Gate, all_gates, reported

# In the order of the table that the report follows.
ORDER = (
    "graph_rewrite",
    "numeric_reference",
    "packing_layout",
    "kernel",
    "model_quality",
    "serving",
)


def test_six_gates_in_order_each_with_what_passing_does_not_show() -> None:
    assert GATE_NAMES == ORDER
    assert all(gate.compares and gate.not_shown for gate in GATES)
    assert OVERALL == "incomplete"


def test_unknown_gates_are_skipped_with_the_reason() -> None:
    held = Gate(status="executed", outcome="held", scope={"tensors": "1 of 1"})
    gates = all_gates({"kernel": held}, otherwise="not run")
    assert tuple(gates) == ORDER
    assert gates["kernel"] is held
    assert gates["serving"].as_json() == {
        "status": "skipped",
        "outcome": None,
        "reason": "not run",
        "scope": None,
    }


def test_a_claim_has_no_outcome() -> None:
    gate = reported("a log")
    assert (gate.status, gate.outcome) == ("reported_unverified", None)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "executed", "scope": {"a": 1}},
        {"status": "executed", "outcome": "held"},
        {"status": "skipped"},
        {"status": "failed"},
        {"status": "skipped", "outcome": "held", "reason": "x"},
        {"status": "reported_unverified", "outcome": "held", "reason": "x"},
    ],
)
def test_a_gate_that_says_too_much_or_too_little_cannot_be_built(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="gate"):
        Gate(**fields)  # type: ignore[arg-type]
