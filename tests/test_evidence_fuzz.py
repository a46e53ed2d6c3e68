"""No input whatever gives a traceback, a NaN or an Infinity."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from quantscope.evidence.kernel_log import read_kernel_log
from quantscope.evidence.lm_eval import read_lm_eval
from quantscope.evidence.run import Evaluation, evaluate
from quantscope.evidence.self_test_files import LOGITS, TENSOR, UINT4, evidence_file
from quantscope.evidence.serving import Slo, read_serving
from quantscope.evidence.strict_json import EvidenceInputError, dump_canonical

WHOLE = evidence_file(TENSOR, LOGITS, UINT4, '"external_evidence":{"a":[1,"\\u00e9"]}')
FUZZ = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 20),
    st.floats(),
    st.floats(-3, 3),
    st.text(max_size=5),
    st.sampled_from([1e308, -1e308, 5e-324, 1e-200, 2**53 + 1, 2**1024, 1e154, "NaN", "N/A"]),
)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


def refuse_constant(literal: str) -> Any:
    raise AssertionError(f"{literal} in the output")


def check_finite(value: Any) -> None:
    if isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, dict):
        for member in value.values():
            check_finite(member)
    elif isinstance(value, list):
        for member in value:
            check_finite(member)


def check(data: bytes) -> Evaluation | None:
    """One input: refused with exit code 2, or a clean document and 0 or 1."""
    refusal = None
    try:
        evaluation = evaluate(data)
    except EvidenceInputError as error:
        refusal = error
    if refusal is not None:
        assert refusal.exit_code == 2
        assert refusal.message.isprintable()
        return None
    assert evaluation.exit_code in (0, 1)
    assert (evaluation.exit_code == 1) == bool(evaluation.diagnostics)
    written = dump_canonical(evaluation.document)
    document = json.loads(written, parse_constant=refuse_constant)
    check_finite(document)
    assert document["overall"] == "incomplete"
    return evaluation


def group(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A group of the schema whose values are sometimes right and sometimes anything."""
    return st.fixed_dictionaries(
        {key: st.one_of(strategy, json_values) for key, strategy in fields.items()}
    )


vector = st.lists(st.one_of(st.floats(), st.integers(-9, 9)), min_size=1, max_size=4)
near_files = st.fixed_dictionaries(
    {"schema_version": st.sampled_from([1, 1, 1, 1.0, True, 2])},
    optional={
        "tensor": group({"reference": vector, "candidate": vector}),
        "logits": group(
            {
                "reference": st.lists(vector, min_size=1, max_size=3),
                "candidate": st.lists(vector, min_size=1, max_size=3),
                "targets": st.lists(st.integers(-1, 4), max_size=3),
                "mask": st.lists(st.booleans(), max_size=3),
            }
        ),
        "uint4": group(
            {
                "codes": st.lists(st.integers(-1, 16), max_size=4),
                "packed_bytes": st.lists(st.integers(-1, 256), max_size=2),
                "logical_length": st.integers(0, 4),
                "scale": st.floats(),
                "zero_point": st.integers(),
                "rounding": st.just("ties_to_even"),
                "layout": st.just("low_first"),
            }
        ),
        "external_evidence": json_values,
    },
)


@FUZZ
@given(st.binary(max_size=200))
@example(b"")
@example(b"\xff\xfe")
@example(b"[" * 5000)
@example(b'{"a":' * 5000)
@example(b"9" * 6000)
@example(b'{"schema_version":1,"external_evidence":{"a":' + b"9" * 5000 + b"}}")
def test_any_bytes(data: bytes) -> None:
    check(data)


@FUZZ
@given(st.text(alphabet='{}[]",:\\eE+-.0123456789truefalsnNaIity_ \n', max_size=80))
def test_any_text_made_of_json_characters(text: str) -> None:
    check(text.encode())


@FUZZ
@given(
    st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 3), st.binary(max_size=6)),
        min_size=1,
        max_size=4,
    )
)
def test_any_damage_to_a_valid_file(damage: list[tuple[int, int, bytes]]) -> None:
    data = bytearray(WHOLE)
    for start, length, replacement in damage:
        data[start : start + length] = replacement
    check(bytes(data))


@FUZZ
@given(json_values)
def test_any_json_value(value: Any) -> None:
    check(json.dumps(value).encode())


@FUZZ
@given(near_files)
def test_any_file_near_the_schema(document: dict[str, Any]) -> None:
    check(json.dumps(document).encode())


wide_floats = st.floats(allow_nan=False, allow_infinity=False)


@FUZZ
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.tuples(
            st.lists(wide_floats, min_size=n, max_size=n),
            st.lists(wide_floats, min_size=n, max_size=n),
        )
    )
)
def test_any_finite_tensors_are_computed_or_fail_by_name(
    sides: tuple[list[float], list[float]],
) -> None:
    tensor = {"reference": sides[0], "candidate": sides[1]}
    assert check(json.dumps({"schema_version": 1, "tensor": tensor}).encode()) is not None


@FUZZ
@given(
    st.tuples(st.integers(1, 3), st.integers(2, 4)).flatmap(
        lambda shape: st.lists(
            st.lists(
                st.one_of(wide_floats, st.floats(-50, 50)), min_size=shape[1], max_size=shape[1]
            ),
            min_size=2 * shape[0],
            max_size=2 * shape[0],
        )
    )
)
def test_any_finite_logits_are_computed_or_fail_by_name(rows: list[list[float]]) -> None:
    half = len(rows) // 2
    logits = {
        "reference": rows[:half],
        "candidate": rows[half:],
        "targets": [0] * half,
        "mask": [True] * half,
    }
    evaluation = check(json.dumps({"schema_version": 1, "logits": logits}).encode())
    assert evaluation is not None
    result = evaluation.document["results"]["logits"]
    if "kl_mean" in result:
        assert result["kl_mean"] >= 0
        assert result["reference"]["nll_sum"] >= 0


lines = st.lists(
    st.one_of(
        st.binary(max_size=30),
        json_values.map(lambda value: json.dumps(value).encode()),
        st.fixed_dictionaries(
            {
                "request_start_s": st.one_of(st.floats(0, 5), scalars),
                "status": st.sampled_from(["completed", "error", "timeout", "unfinished", "ok"]),
            },
            optional={
                "first_token_s": st.one_of(st.floats(0, 5), scalars),
                "last_token_s": st.one_of(st.floats(0, 5), scalars),
                "output_tokens": st.one_of(st.integers(0, 9), scalars),
                "run": scalars,
                "offered_load_rps": scalars,
            },
        ).map(lambda value: json.dumps(value).encode()),
    ),
    max_size=4,
).map(b"\n".join)


@FUZZ
@given(lines)
def test_any_serving_records(data: bytes) -> None:
    slo = Slo(ttft_s=1.0, tpot_s=0.1, attainment_target=0.9)
    for limits in (None, slo):
        entry = read_serving(data, "records.jsonl", slo=limits).as_json()
        check_finite(json.loads(dump_canonical(entry), parse_constant=refuse_constant))
        assert entry["status"] == "reported_unverified"


@FUZZ
@given(
    st.one_of(
        st.binary(max_size=80),
        json_values.map(lambda value: json.dumps(value).encode()),
        st.fixed_dictionaries(
            {"results": json_values},
            optional={
                "versions": json_values,
                "n-shot": json_values,
                "n-samples": json_values,
                "higher_is_better": json_values,
                "config": json_values,
                "groups": json_values,
            },
        ).map(lambda value: json.dumps(value).encode()),
        st.dictionaries(st.text(max_size=4), st.dictionaries(st.text(max_size=9), scalars)).map(
            lambda tasks: json.dumps({"results": tasks}).encode()
        ),
    )
)
def test_any_results_file_and_any_log(data: bytes) -> None:
    for entry in (read_lm_eval(data, "r.json"), read_kernel_log(data, "k.log")):
        written = dump_canonical(entry.as_json())
        check_finite(json.loads(written, parse_constant=refuse_constant))
        assert entry.status == "reported_unverified"
