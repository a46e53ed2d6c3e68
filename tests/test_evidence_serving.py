from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from quantscope.evidence.serving import ALL_REQUESTS, Slo, read_serving
from quantscope.evidence.strict_json import dump_canonical


def request(start: float, ttft: float, tpot: float, tokens: int, **more: Any) -> dict[str, Any]:
    """A completed request with given latencies."""
    return {
        "request_start_s": start,
        "first_token_s": start + ttft,
        "last_token_s": start + ttft + tpot * (tokens - 1),
        "output_tokens": tokens,
        "status": "completed",
        **more,
    }


def lost(start: float, status: str, **more: Any) -> dict[str, Any]:
    return {"request_start_s": start, "status": status, **more}


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def figures(*records: dict[str, Any], slo: Slo | None = None) -> dict[str, Any]:
    entry = read_serving(lines(*records), "records.jsonl", slo=slo)
    assert entry.problems == ()
    dump_canonical(entry.as_json())
    assert entry.status == "reported_unverified"
    assert entry.gate == "serving"
    return entry.computed_from_claimed


def test_ttft_and_tpot_follow_their_definitions() -> None:
    found = figures(request(10.0, 0.5, 0.125, 9))
    assert found["ttft_s"]["p50"] == 0.5
    assert found["tpot_s"]["p50"] == 0.125


def test_a_single_token_has_no_tpot_and_is_kept_apart() -> None:
    found = figures(request(0, 0.5, 0, 1), request(0, 0.5, 0.25, 3))
    assert found["tpot_s"]["count"] == 1
    assert found["tpot_s"]["undefined_single_token"] == 1
    assert found["tpot_s"]["p50"] == 0.25
    only = figures(request(0, 0.5, 0, 1))
    assert (only["tpot_s"]["p50"], only["tpot_s"]["count"]) == (None, 0)
    assert only["tpot_s"]["reason"]


def test_percentiles_and_run_count_are_shown() -> None:
    rng = np.random.default_rng(0)
    latencies = rng.exponential(size=301)
    records = [request(i, float(t), 0.01, 5, run=i % 3) for i, t in enumerate(latencies)]
    found = figures(*records)
    ordered = sorted(record["first_token_s"] - record["request_start_s"] for record in records)
    # 301 values: the 50th and 99th percentile are values of the sample, the 95th is as well.
    assert found["ttft_s"]["p50"] == pytest.approx(ordered[150], rel=1e-12)
    assert found["ttft_s"]["p95"] == pytest.approx(ordered[285], rel=1e-12)
    assert found["ttft_s"]["p99"] == pytest.approx(ordered[297], rel=1e-12)
    assert found["ttft_s"]["count"] == 301
    assert found["run_count"] == 3
    assert [run["requests"] for run in found["per_run"]] == [101, 100, 100]
    assert "interpolation" in found["percentile_method"]


def test_records_without_run_count_as_one_and_say_so() -> None:
    entry = read_serving(lines(request(0, 1, 1, 2)), "r")
    assert entry.computed_from_claimed["run_count"] == 1
    assert "no record names a run" in entry.computed_from_claimed["run_count_basis"]
    assert entry.flags == ("runs_not_stated",)


def test_attainment_counts_errors_timeouts_and_unfinished_requests() -> None:
    slo = Slo(ttft_s=1.0, tpot_s=0.125)
    found = figures(
        request(0, 0.5, 0.05, 11),
        request(0, 1.0, 0.125, 2),
        request(0, 1.5, 0.05, 11),
        request(0, 0.5, 0.2, 11),
        lost(0, "error"),
        lost(0, "timeout", first_token_s=0.1, end_s=30),
        lost(0, "unfinished", first_token_s=0.1, last_token_s=0.2),
        request(0, 0.5, 0, 1),
        slo=slo,
    )
    attainment = found["slo_attainment"]
    assert (attainment["qualified"], attainment["requests"]) == (3, 8)
    assert attainment["fraction"] == 3 / 8
    assert attainment["denominator"] == ALL_REQUESTS
    assert found["slo"] == {
        "ttft_s": 1.0,
        "tpot_s": 0.125,
        "end_to_end_s": None,
        "attainment_target": None,
    }


def test_end_to_end_limit() -> None:
    slo = Slo(end_to_end_s=1.0)
    found = figures(request(0, 0.5, 0.25, 3), request(0, 0.5, 0.25, 4), slo=slo)
    assert found["slo_attainment"]["qualified"] == 1


def test_without_limits_attainment_is_not_stated() -> None:
    found = figures(request(0, 1, 1, 2))
    assert found["slo"] is None
    assert "no limits" in found["slo_reason"]
    assert "slo_attainment" not in found


def test_qualified_completions_per_second_use_the_runs_own_intervals() -> None:
    slo = Slo(ttft_s=1.0)
    found = figures(
        request(100, 0.5, 0.5, 2, run="a"),
        request(100, 3.0, 1.0, 2, run="a"),
        request(500, 0.5, 0.5, 2, run="b"),
        lost(500, "timeout", end_s=506, run="b"),
        slo=slo,
    )
    assert found["qualified_completions_per_second"]["interval_s"] == 4 + 6
    assert found["qualified_completions_per_second"]["value"] == 0.2
    assert found["completions_per_second"]["value"] == 0.3


def test_runs_without_duration_have_no_rate() -> None:
    found = figures(lost(5, "error"))
    assert found["completions_per_second"]["value"] is None
    assert found["completions_per_second"]["value_reason"]


def test_highest_load_meeting_the_target_is_its_own_figure() -> None:
    slo = Slo(ttft_s=1.0, attainment_target=0.75)
    records = []
    for load, good, bad in ((1, 4, 0), (2, 3, 1), (4, 1, 3), (8, 4, 0)):
        records += [request(0, 0.5, 0.1, 3, offered_load_rps=load)] * good
        records += [lost(0, "timeout", offered_load_rps=load)] * bad
    found = figures(*records, slo=slo)["loads"]
    assert [row["fraction"] for row in found["by_load"]] == [1.0, 0.75, 0.25, 1.0]
    assert found["highest_meeting_target_rps"] == 8
    assert found["lower_loads_that_miss_it"] == 1
    assert found["target"] == 0.75


def test_a_load_that_just_reaches_the_target_meets_it() -> None:
    slo = Slo(ttft_s=1.0, attainment_target=0.75)
    records = [request(0, 0.5, 0.1, 3, offered_load_rps=2)] * 3
    found = figures(*records, lost(0, "timeout", offered_load_rps=2), slo=slo)["loads"]
    assert found["highest_meeting_target_rps"] == 2


def test_highest_load_is_null_with_a_reason_where_it_cannot_be_told() -> None:
    slow = request(0, 9, 1, 2, offered_load_rps=1)
    for records, slo, word in (
        ([request(0, 1, 1, 2)], Slo(ttft_s=1, attainment_target=1), "offered_load_rps"),
        ([slow], Slo(ttft_s=1), "target"),
        ([slow], Slo(ttft_s=1, attainment_target=1), "no load"),
    ):
        found = figures(*records, slo=slo)["loads"]
        assert found["highest_meeting_target_rps"] is None
        assert word in found["highest_meeting_target_rps_reason"]


def test_claims_name_every_status() -> None:
    entry = read_serving(lines(lost(0, "error"), lost(0, "error"), lost(0, "unfinished")), "r")
    assert entry.claimed == {
        "requests": 3,
        "statuses": {"completed": 0, "error": 2, "timeout": 0, "unfinished": 1},
    }


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"request_start_s": None}, "request_start_s"),
        ({"request_start_s": "0"}, "request_start_s"),
        ({"request_start_s": True}, "request_start_s"),
        ({"request_start_s": 1e300}, "request_start_s"),
        ({"status": "ok"}, "status"),
        ({"status": None}, "status"),
        ({"first_token_s": None}, "first_token_s"),
        ({"last_token_s": None}, "last_token_s"),
        ({"output_tokens": None}, "chunks are not tokens"),
        ({"output_tokens": 0}, "chunks are not tokens"),
        ({"output_tokens": 3.0}, "output_tokens"),
        ({"output_tokens": True}, "output_tokens"),
        ({"output_tokens": None, "chunks": 5}, "chunks are not tokens"),
        ({"first_token_s": -1}, "order"),
        ({"last_token_s": 0.1}, "order"),
        ({"end_s": 0.1}, "order"),
        ({"run": 1.5}, "run"),
        ({"run": False}, "run"),
        ({"offered_load_rps": 0}, "offered_load_rps"),
        ({"offered_load_rps": "9"}, "offered_load_rps"),
    ],
)
def test_one_bad_line_leaves_the_file_without_figures(change: dict[str, Any], word: str) -> None:
    good = request(0, 0.5, 0.5, 3)
    entry = read_serving(lines(good, {**good, **change}), "r")
    assert entry.problems[0].startswith("line 2:")
    assert word in entry.problems[0]
    assert entry.claimed == {}
    assert entry.computed_from_claimed == {}


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "no request"),
        (b"\n\n", "no request"),
        (b"[1]\n", "object"),
        (b'{"request_start_s":NaN,"status":"error"}\n', "NaN"),
        (b'{"status":"error","status":"completed","request_start_s":0}', "more than once"),
        (b"\xff\n", "UTF-8"),
    ],
)
def test_malformed_lines_are_named(data: bytes, word: str) -> None:
    assert word in read_serving(data, "r").problems[0]


def test_other_fields_are_allowed_and_not_read() -> None:
    record = request(0, 1, 1, 2, prompt="x", ttft_s=99.0, kernel_pass=True)
    assert figures(record)["ttft_s"]["p50"] == 1
