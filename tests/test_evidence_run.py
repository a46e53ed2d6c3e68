from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from quantscope.evidence.gates import GATE_NAMES
from quantscope.evidence.run import evaluate
from quantscope.evidence.strict_json import EvidenceInputError, dump_canonical

TENSOR = {"reference": [1, 2], "candidate": [2, 4]}
LOGITS = {
    "reference": [[0, 0, -1000]],
    "candidate": [[0, -1000, 0]],
    "targets": [0],
    "mask": [True],
}
UINT4 = {
    "codes": [0, 1, 2],
    "packed_bytes": [16, 2],
    "logical_length": 3,
    "scale": 0.5,
    "zero_point": 1,
    "rounding": "ties_to_even",
    "layout": "low_first",
}


def run(**groups: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and document of one input, as a reader of the output sees them."""
    evaluation = evaluate(json.dumps({"schema_version": 1, **groups}).encode())
    document: dict[str, Any] = json.loads(dump_canonical(evaluation.document))
    return evaluation.exit_code, document


def test_output_has_exactly_the_fixed_keys() -> None:
    code, document = run(tensor=TENSOR, logits=LOGITS, uint4=UINT4, external_evidence={"a": 1})
    assert code == 0
    assert set(document) == {
        "schema_version",
        "input_sha256",
        "results",
        "external_evidence",
        "gates",
        "verified_scope",
        "unverified",
        "overall",
    }
    results = document["results"]
    assert set(results["tensor"]) == {"mse", "relative_squared_l2", "cosine", "max_abs_error"}
    assert set(results["logits"]) == {
        "kl_mean",
        "top1_agreement",
        "scored_rows",
        "reference",
        "candidate",
    }
    assert set(results["logits"]["reference"]) == {"nll_sum", "nll_mean", "ppl"}
    assert set(results["logits"]["candidate"]) == {"nll_sum", "nll_mean", "ppl"}
    assert set(results["uint4"]) == {"packing_parity", "decoded", "endpoint_fraction"}
    assert document["schema_version"] == 1
    assert document["overall"] == "incomplete"


def test_known_answers_come_out() -> None:
    _, document = run(tensor=TENSOR, logits=LOGITS, uint4=UINT4)
    results = document["results"]
    assert results["tensor"] == {
        "mse": 2.5,
        "relative_squared_l2": 1.0,
        "cosine": 1.0,
        "max_abs_error": 2.0,
    }
    assert results["logits"]["kl_mean"] == pytest.approx(500, rel=1e-12)
    assert results["logits"]["reference"]["ppl"] == pytest.approx(2, rel=1e-15)
    assert results["uint4"]["decoded"] == [-0.5, 0.0, 0.5]
    assert results["uint4"]["packing_parity"] is True


def test_one_and_three_targets_give_the_perplexity_of_the_total() -> None:
    half = [0.0, 0.0, -2000.0, -2000.0]
    quarter = [0.0, 0.0, 0.0, 0.0]
    rows = [half, quarter, quarter, quarter]
    logits = {"reference": rows, "candidate": rows, "targets": [1, 1, 2, 3], "mask": [True] * 4}
    _, document = run(logits=logits)
    assert document["results"]["logits"]["reference"]["ppl"] == pytest.approx(
        3.3635856610, abs=5e-11
    )
    assert document["results"]["logits"]["kl_mean"] == 0


@pytest.mark.parametrize("group", ["tensor", "logits", "uint4"])
def test_absent_groups_are_skipped(group: str) -> None:
    given = {"tensor": TENSOR, "logits": LOGITS, "uint4": UINT4}[group]
    code, document = run(**{group: given})
    assert code == 0
    for name in ("tensor", "logits", "uint4"):
        assert (document["results"][name] == "skipped") == (name != group)
    assert document["external_evidence"] == "skipped"


def test_the_input_is_named_by_its_hash() -> None:
    data = json.dumps({"schema_version": 1, "tensor": TENSOR}).encode() + b"\n "
    assert evaluate(data).document["input_sha256"] == hashlib.sha256(data).hexdigest()


def test_only_uint4_executes_a_gate() -> None:
    _, document = run(tensor=TENSOR, logits=LOGITS)
    assert {gate["status"] for gate in document["gates"].values()} == {"skipped"}
    _, document = run(uint4=UINT4)
    gates = document["gates"]
    assert set(gates) == set(GATE_NAMES)
    packing = gates.pop("packing_layout")
    assert (packing["status"], packing["outcome"]) == ("executed", "held")
    assert packing["scope"]["should_be"] == "exact"
    assert packing["scope"]["codes_compared"] == "3 of 3"
    assert packing["scope"]["bytes_compared"] == "2 of 2"
    assert all(
        (gate["status"], gate["outcome"]) == ("skipped", None) and gate["reason"]
        for gate in gates.values()
    )


def test_packing_failure_is_exit_1_and_leaves_the_values_standing() -> None:
    code, document = run(uint4={**UINT4, "packed_bytes": [1, 2]})
    assert code == 1
    assert document["results"]["uint4"]["packing_parity"] is False
    assert document["results"]["uint4"]["decoded"] == [-0.5, 0.0, 0.5]
    packing = document["gates"]["packing_layout"]
    assert (packing["status"], packing["outcome"]) == ("executed", "did_not_hold")
    assert document["overall"] == "incomplete"


def test_nonzero_unused_nibble_is_a_packing_failure() -> None:
    code, document = run(uint4={**UINT4, "packed_bytes": [16, 0x12]})
    assert (code, document["results"]["uint4"]["packing_parity"]) == (1, False)


def test_changed_scale_leaves_packing_parity_true() -> None:
    code, document = run(uint4={**UINT4, "scale": 3})
    assert (code, document["results"]["uint4"]["packing_parity"]) == (0, True)
    assert document["results"]["uint4"]["decoded"] == [-3.0, 0.0, 3.0]


def test_consistent_change_of_codes_and_bytes_passes_parity() -> None:
    code, document = run(uint4={**UINT4, "codes": [5, 1, 2], "packed_bytes": [21, 2]})
    assert (code, document["results"]["uint4"]["packing_parity"]) == (0, True)


@pytest.mark.parametrize(
    "change",
    [
        {"packed_bytes": [16]},
        {"packed_bytes": [16, 2, 0]},
        {"logical_length": 2},
        {"codes": [0, 1]},
    ],
)
def test_wrong_lengths_in_uint4_are_input_errors(change: dict[str, Any]) -> None:
    with pytest.raises(EvidenceInputError) as caught:
        run(uint4={**UINT4, **change})
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("group", "content", "stage", "field"),
    [
        (
            "tensor",
            {"reference": [-1e308], "candidate": [1e308]},
            "difference",
            "tensor.max_abs_error",
        ),
        ("tensor", {"reference": [0], "candidate": [1e-200]}, "squared error", "tensor.mse"),
        (
            "tensor",
            {"reference": [1e-160], "candidate": [1e150]},
            "ratio",
            "tensor.relative_squared_l2",
        ),
        ("logits", {**LOGITS, "targets": [2]}, "exp", "logits.reference.ppl"),
        ("logits", {**LOGITS, "targets": [1]}, "exp", "logits.candidate.ppl"),
        (
            "logits",
            {**LOGITS, "reference": [[1e308, -1e308, 0]]},
            "logit difference",
            "logits.kl_mean",
        ),
        (
            "uint4",
            {**UINT4, "scale": 1e308, "zero_point": -9},
            "(code - zero_point) * scale",
            "uint4.decoded",
        ),
    ],
)
def test_numeric_failure_is_exit_1_with_stage_and_field_and_no_number(
    group: str, content: dict[str, Any], stage: str, field: str
) -> None:
    code, document = run(**{group: content})
    assert code == 1
    result = document["results"][group]
    assert result["numeric_error"]["stage"] == stage
    assert result["numeric_error"]["field"] == field
    if group != "uint4":
        assert set(result) == {"numeric_error"}


def test_failed_decoding_does_not_hide_the_packing_result() -> None:
    code, document = run(uint4={**UINT4, "scale": 1e308, "zero_point": -9})
    assert code == 1
    assert document["results"]["uint4"]["packing_parity"] is True
    assert document["results"]["uint4"]["decoded"] is None
    assert document["gates"]["packing_layout"]["outcome"] == "held"


def test_one_failing_group_leaves_the_others_computed() -> None:
    code, document = run(tensor={"reference": [-1e308], "candidate": [1e308]}, uint4=UINT4)
    assert code == 1
    assert document["results"]["uint4"]["packing_parity"] is True


def test_undefined_quantities_are_null_with_a_reason_and_no_failure() -> None:
    code, document = run(tensor={"reference": [0, 0], "candidate": [1, 0]})
    assert code == 0
    tensor = document["results"]["tensor"]
    assert tensor["mse"] == 0.5
    for key in ("relative_squared_l2", "cosine"):
        assert tensor[key] is None
        assert "all zero" in tensor[f"{key}_reason"]


def test_external_evidence_is_echoed_and_never_upgraded() -> None:
    external = {
        "kernel_pass": True,
        "kernel": {"status": "executed", "outcome": "held"},
        "serving": "all fine",
        "overall": "accepted",
        "n": 2**70 + 1,
        "text": "\x1b[31m\u202e[bold]",
    }
    code, document = run(external_evidence=external)
    assert code == 0
    assert document["external_evidence"] == {"status": "reported_unverified", "content": external}
    gates = document["gates"]
    assert gates["kernel"]["status"] == "reported_unverified"
    assert gates["serving"]["status"] == "reported_unverified"
    assert gates["model_quality"]["status"] == "skipped"
    assert all(gate["outcome"] is None for gate in gates.values())
    assert document["overall"] == "incomplete"
    assert document["results"] == dict.fromkeys(("tensor", "logits", "uint4"), "skipped")


def test_a_claim_does_not_replace_an_executed_gate() -> None:
    _, document = run(
        uint4=UINT4, external_evidence={"packing_layout": {"outcome": "did_not_hold"}}
    )
    assert document["gates"]["packing_layout"]["status"] == "executed"
    assert document["gates"]["packing_layout"]["outcome"] == "held"


def test_masked_rows_count_for_nothing() -> None:
    rows = [[0.0, 1.0], [7.0, -7.0]]
    other = [[0.0, 1.0], [-7.0, 7.0]]
    logits = {"reference": rows, "candidate": other, "targets": [1, 0], "mask": [True, False]}
    _, document = run(logits=logits)
    result = document["results"]["logits"]
    assert (result["kl_mean"], result["top1_agreement"], result["scored_rows"]) == (0.0, 1.0, 1)
    assert result["reference"]["nll_sum"] == pytest.approx(math.log1p(math.exp(-1)), rel=1e-15)
    assert document["verified_scope"]["logits"]["rows"] == 2


def test_argmax_safety_is_stated_beside_the_agreement() -> None:
    rows = [[1.0, 1.000001], [0.0, 1.0]]
    other = [[1.000002, 1.000001], [0.0, 1.1]]
    logits = {"reference": rows, "candidate": other, "targets": [1, 1], "mask": [True, True]}
    _, document = run(logits=logits)
    assert document["results"]["logits"]["top1_agreement"] == 0.5
    assert document["verified_scope"]["logits"]["argmax_safe_rows"] == 1


def test_no_field_says_accepted() -> None:
    _, document = run(tensor=TENSOR, logits=LOGITS, uint4=UINT4)
    assert "accepted" not in json.dumps(document)


def test_scope_names_tool_and_libraries() -> None:
    _, document = run(tensor=TENSOR)
    identity = document["verified_scope"]["identity"]
    assert identity["tool"] == "quantscope"
    assert identity["libraries"]["numpy"] == np.__version__
    assert document["unverified"]


def test_equal_input_gives_equal_bytes() -> None:
    data = json.dumps({"schema_version": 1, "tensor": TENSOR, "uint4": UINT4}).encode()
    first, second = evaluate(data), evaluate(data)
    assert dump_canonical(first.document) == dump_canonical(second.document)
