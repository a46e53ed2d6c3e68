from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from quantscope.evidence.external import MAX_PROBLEMS, ExternalEvidence
from quantscope.evidence.kernel_log import MAX_ECHO_BYTES, read_kernel_log
from quantscope.evidence.lm_eval import read_lm_eval
from quantscope.evidence.readers import read_external, sniff
from quantscope.evidence.strict_json import dump_canonical

DATA = Path(__file__).parent / "data"


def written(name: str) -> bytes:
    """A results file that lm-evaluation-harness wrote."""
    return (DATA / f"lm_eval_{name}.json").read_bytes()


def results(**changes: Any) -> bytes:
    document: dict[str, Any] = {
        "results": {"t": {"alias": "t", "acc,none": 0.5, "acc_stderr,none": 0.1}},
        "versions": {"t": 1.0},
        "n-shot": {"t": 0},
        "n-samples": {"t": {"original": 10, "effective": 10}},
        "higher_is_better": {"t": {"acc": True}},
        "config": {"model": "hf", "limit": None},
    }
    document.update(changes)
    return json.dumps(document).encode()


def check_entry(entry: ExternalEvidence, data: bytes, gate: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(dump_canonical(entry.as_json()))
    assert shown["status"] == "reported_unverified"
    assert shown["sha256"] == hashlib.sha256(data).hexdigest()
    assert shown["size_bytes"] == len(data)
    assert shown["gate"] == gate
    assert shown["form"] == ("malformed" if entry.problems else "valid")
    if entry.problems:
        assert shown["claimed"] == {}
        assert shown["computed_from_claimed"] == {}
    return shown


def test_results_of_a_whole_run_are_listed_with_versions_counts_and_errors() -> None:
    data = written("full")
    shown = check_entry(read_lm_eval(data, "r.json"), data, "model_quality")
    assert shown["flags"] == []
    tasks = shown["claimed"]["tasks"]
    assert set(tasks) == {"sums", "sums_a", "sums_b"}
    assert shown["claimed"]["groups"] == ["sums"]
    assert tasks["sums_a"]["version"] == 1.0
    assert tasks["sums_a"]["n_shot"] == 0
    assert tasks["sums_a"]["n_samples"] == {"original": 40, "effective": 40}
    assert tasks["sums_a"]["metrics"][0] == {
        "metric": "acc",
        "filter": "none",
        "higher_is_better": True,
        "value": 0.275,
        "stderr": 0.0714995069016527,
    }
    assert [metric["metric"] for metric in tasks["sums"]["metrics"]] == ["acc"]
    assert shown["claimed"]["lm_eval_version"] == "0.4.13"
    assert shown["claimed"]["config"]["model"] == "dummy"


def test_intervals_stand_under_computed_from_claimed() -> None:
    shown = read_lm_eval(written("full"), "r.json").as_json()
    first = shown["computed_from_claimed"]["intervals_95"][0]
    assert first["task"] == "sums_a"
    assert first["low"] == pytest.approx(0.275 - 1.959964 * 0.0714995069016527, rel=1e-6)
    assert first["high"] == pytest.approx(0.275 + 1.959964 * 0.0714995069016527, rel=1e-6)
    assert "claimed" in shown["computed_from_claimed"]["intervals_95_method"]


def test_a_limited_run_is_flagged_as_a_smoke_test() -> None:
    entry = read_lm_eval(written("limit"), "r.json")
    assert entry.flags == ("smoke_test", "partial_samples")
    assert entry.claimed["config"]["limit"] == 5.0
    assert entry.claimed["tasks"]["sums_a"]["n_samples"] == {"original": 40, "effective": 5}


def test_a_limit_of_a_fraction_or_zero_is_a_smoke_test_too() -> None:
    for limit in (0.1, 0, 1):
        assert "smoke_test" in read_lm_eval(results(config={"limit": limit}), "r").flags


def test_chosen_samples_are_partial_without_a_limit() -> None:
    assert read_lm_eval(written("samples"), "r.json").flags == ("partial_samples",)


def test_a_standard_error_that_is_not_stated_is_null_with_what_the_file_says() -> None:
    entry = read_lm_eval(written("one"), "r.json")
    assert "without_stderr" in entry.flags
    metric = entry.claimed["tasks"]["sums_a"]["metrics"][0]
    assert (metric["stderr"], metric["stderr_reason"]) == (None, "is stated as N/A")
    assert entry.computed_from_claimed["intervals_95"] == []


def test_a_standard_error_of_zero_gives_no_interval() -> None:
    first = read_lm_eval(written("limit"), "r.json").computed_from_claimed["intervals_95"][0]
    assert (first["low"], first["high"]) == (None, None)
    assert "0" in first["low_reason"]


def test_a_file_that_does_not_state_its_limit_is_flagged() -> None:
    assert "limit_not_stated" in read_lm_eval(results(config={}), "r").flags
    document = json.loads(results())
    del document["config"]
    del document["n-samples"]
    flags = read_lm_eval(json.dumps(document).encode(), "r").flags
    assert flags == ("limit_not_stated", "sample_counts_not_stated")


def test_metric_names_without_filter_are_read() -> None:
    data = json.dumps(
        {
            "results": {"lambada": {"ppl": 5.5, "ppl_stderr": 0.1, "acc": 0.6, "acc_stderr": 0.01}},
            "versions": {"lambada": 0},
            "config": {"limit": None, "model": "gpt2"},
        }
    ).encode()
    metrics = read_lm_eval(data, "r").claimed["tasks"]["lambada"]["metrics"]
    assert [(m["metric"], m["filter"], m["value"], m["stderr"]) for m in metrics] == [
        ("ppl", None, 5.5, 0.1),
        ("acc", None, 0.6, 0.01),
    ]


def test_nan_in_a_results_file_is_null_with_the_reason() -> None:
    data = results(results={"t": {"acc,none": float("nan"), "acc_stderr,none": 0.1}})
    assert b"NaN" in data
    entry = read_lm_eval(data, "r")
    metric = entry.claimed["tasks"]["t"]["metrics"][0]
    assert (metric["value"], metric["value_reason"]) == (None, "is stated as NaN")
    dump_canonical(entry.as_json())


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"not json", "JSON"),
        (b"[]", "object"),
        (b"{}", "no task"),
        (results(results={}), "no task"),
        (results(results=[1]), "$.results"),
        (results(results={"t": 1}), "$.results.t"),
        (results(results={"t": {"acc,none": [1]}}), "acc,none"),
        (results(results={"t": {"acc,none": True}}), "acc,none"),
        (results(results={"t": {"acc,none": 1, "acc_stderr,none": -1}}), "negative"),
        (results(**{"n-samples": {"t": {"original": 1.0, "effective": 1}}}), "n-samples"),
        (results(**{"n-samples": {"t": 5}}), "n-samples"),
        (results(config=1), "$.config"),
        (results().replace(b'"versions"', b'"results"'), "more than once"),
    ],
)
def test_malformed_results_are_listed_without_claims(data: bytes, word: str) -> None:
    entry = read_lm_eval(data, "r.json")
    check_entry(entry, data, "model_quality")
    assert word in entry.problems[0]


def test_problems_beyond_the_list_are_counted() -> None:
    data = results(results={f"t{i}": 1 for i in range(50)})
    problems = read_lm_eval(data, "r").problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1] == "and 30 more"


def test_text_log_is_quoted_and_not_interpreted() -> None:
    data = b"kernel_pass: true\nall 210 layers held\n"
    entry = read_kernel_log(data, "k.log")
    shown = check_entry(entry, data, "kernel")
    assert shown["claimed"]["lines"] == 2
    assert shown["claimed"]["first_lines"][0] == "kernel_pass: true"
    assert shown["flags"] == ["not_interpreted"]
    assert shown["computed_from_claimed"] == {}


def test_json_log_is_echoed_whole_or_by_its_keys() -> None:
    small = b'{"kernel":"marlin","pass":true,"err":NaN}'
    claimed = read_kernel_log(small, "k.json").claimed
    assert claimed["content"] == {"kernel": "marlin", "pass": True, "err": "NaN"}
    big = json.dumps({"pass": True, "rows": ["x" * MAX_ECHO_BYTES]}).encode()
    assert read_kernel_log(big, "k.json").claimed["top_level_keys"] == ["pass", "rows"]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b" \n\t\n", "empty"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b"abc\x00def", "control"),
        (b"line\nmore \x01", "line 2"),
        (b'{"a":1,"a":2}', "more than once"),
        (b"{broken", "JSON"),
    ],
)
def test_malformed_logs_are_listed_without_claims(data: bytes, word: str) -> None:
    entry = read_kernel_log(data, "k.log")
    check_entry(entry, data, "kernel")
    assert word in entry.problems[0]


def test_kind_is_told_from_the_content() -> None:
    serving = b'{"request_start_s":0,"status":"error"}\n'
    assert sniff(serving) == "serving_records"
    assert sniff(written("full")) == "lm_eval_results"
    for log in (b"", b"text", b'{"kernel":1}', b"[1]"):
        assert sniff(log) == "kernel_log"
    for data in (serving, written("full"), b"text"):
        assert read_external(data, "f").kind == sniff(data)
        assert read_external(data, "f", kind="lm_eval_results").kind == "lm_eval_results"
