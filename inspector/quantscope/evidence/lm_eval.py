"""Results files of lm-evaluation-harness.

Format: `results_*.json` as EvalAcc._to_eval_results and simple_evaluate write it
(lm_eval/evaluator_utils.py and lm_eval/evaluator.py of lm-evaluation-harness 0.4.13); the
same reader takes the metric names without filter of 0.3.
"""

from __future__ import annotations

import math
from typing import Any

from quantscope.evidence.external import ExternalEvidence, external_evidence
from quantscope.evidence.strict_json import EvidenceInputError, Json, child_path, decode

NORMAL_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""

_NO_METRICS = frozenset({"alias", "name", "sample_len", "sample_count", "samples"})
"""Keys of a task's entry that describe it."""

_RUN_KEYS = ("lm_eval_version", "transformers_version", "git_hash", "date", "chat_template_sha")
_CONFIG_KEYS = (
    "model",
    "model_args",
    "model_dtype",
    "model_revision",
    "model_sha",
    "batch_size",
    "device",
    "limit",
    "bootstrap_iters",
    "gen_kwargs",
    "random_seed",
    "numpy_seed",
    "torch_seed",
    "fewshot_seed",
)


def read_lm_eval(data: bytes, name: str) -> ExternalEvidence:
    """Reads one results file.

    Flags: `smoke_test` where the run had a limit, `limit_not_stated` where the file does not say,
    `partial_samples` where a task scored fewer documents than it has, `sample_counts_not_stated`,
    and `without_stderr` where a metric has no standard error.
    """
    try:
        document = decode(data, nonfinite_as_text=True)
    except EvidenceInputError as error:
        return _entry(data, name, problems=[error.message])
    if not isinstance(document, dict):
        return _entry(data, name, problems=["$: must be an object"])
    problems: list[str] = []
    tasks = _tasks(document, problems)
    config = _member(document, "config", problems)
    claimed: dict[str, Any] = {
        "tasks": tasks,
        "groups": sorted(_member(document, "groups", problems)),
        "config": {key: config.get(key) for key in _CONFIG_KEYS if key in config},
        **{key: document.get(key) for key in _RUN_KEYS if key in document},
    }
    return _entry(
        data,
        name,
        problems=problems,
        flags=_flags(config, tasks),
        claimed=claimed,
        computed={
            "intervals_95": _intervals(tasks),
            "intervals_95_method": "value +- 1.96 x the claimed standard error, normal",
        },
    )


def _entry(data: bytes, name: str, **parts: Any) -> ExternalEvidence:
    return external_evidence(data, kind="lm_eval_results", name=name, gate="model_quality", **parts)


def _member(document: dict[str, Json], key: str, problems: list[str]) -> dict[str, Json]:
    value = document.get(key, {})
    if isinstance(value, dict):
        return value
    problems.append(f"{child_path('$', key)}: must be an object")
    return {}


def _tasks(document: dict[str, Json], problems: list[str]) -> dict[str, Any]:
    results = _member(document, "results", problems)
    if not results and not problems:
        problems.append("$.results: holds no task")
    versions = _member(document, "versions", problems)
    shots = _member(document, "n-shot", problems)
    samples = _member(document, "n-samples", problems)
    better = _member(document, "higher_is_better", problems)
    tasks: dict[str, Any] = {}
    for task, entries in results.items():
        path = child_path("$.results", task)
        if not isinstance(entries, dict):
            problems.append(f"{path}: must be an object")
            continue
        directions = better.get(task)
        tasks[task] = {
            "version": versions.get(task),
            "n_shot": shots.get(task),
            "n_samples": _sample_counts(
                samples.get(task), child_path("$.n-samples", task), problems
            ),
            "metrics": _metrics(
                entries, directions if isinstance(directions, dict) else {}, path, problems
            ),
        }
    return tasks


def _sample_counts(value: Json, path: str, problems: list[str]) -> dict[str, int] | None:
    if value is None:
        return None
    counts = {
        key: value.get(key) if isinstance(value, dict) else None
        for key in ("original", "effective")
    }
    whole = {key: count for key, count in counts.items() if type(count) is int and count >= 0}
    if len(whole) != len(counts):
        problems.append(f"{path}: must hold the counts original and effective")
        return None
    return whole


def _metrics(
    entries: dict[str, Json], directions: dict[str, Json], path: str, problems: list[str]
) -> list[dict[str, Any]]:
    """Metric keys are `name,filter`; `name_stderr,filter` is the standard error of that one."""
    metrics = []
    for key, value in entries.items():
        metric, _, filter_name = key.partition(",")
        if key in _NO_METRICS or not metric.strip() or metric.endswith("_stderr"):
            continue
        if isinstance(value, bool | dict | list):
            problems.append(f"{child_path(path, key)}: must be a number")
            continue
        stderr_key = f"{metric}_stderr" + (f",{filter_name}" if filter_name else "")
        entry: dict[str, Any] = {
            "metric": metric,
            "filter": filter_name or None,
            "higher_is_better": directions.get(metric),
        }
        entry |= _stated_number("value", value)
        entry |= _stated_number("stderr", entries.get(stderr_key))
        if entry["stderr"] is not None and entry["stderr"] < 0:
            problems.append(f"{child_path(path, stderr_key)}: a standard error is not negative")
        metrics.append(entry)
    return metrics


def _stated_number(key: str, value: Json) -> dict[str, Any]:
    """The number, or None beside what the file says in its place."""
    if type(value) in (int, float):
        return {key: value}
    said = "is not in the file" if value is None else f"is stated as {value}"
    return {key: None, f"{key}_reason": said}


def _flags(config: dict[str, Json], tasks: dict[str, Any]) -> list[str]:
    flags = []
    if config.get("limit") is not None:
        flags.append("smoke_test")
    elif "limit" not in config:
        flags.append("limit_not_stated")
    counts = [task["n_samples"] for task in tasks.values()]
    if any(count is not None and count["effective"] < count["original"] for count in counts):
        flags.append("partial_samples")
    if all(count is None for count in counts):
        flags.append("sample_counts_not_stated")
    if any(metric["stderr"] is None for task in tasks.values() for metric in task["metrics"]):
        flags.append("without_stderr")
    return flags


def _intervals(tasks: dict[str, Any]) -> list[dict[str, Any]]:
    intervals = []
    for task, content in tasks.items():
        for metric in content["metrics"]:
            if metric["value"] is None or metric["stderr"] is None:
                continue
            entry = {"task": task, "metric": metric["metric"], "filter": metric["filter"]}
            intervals.append(entry | _interval(float(metric["value"]), float(metric["stderr"])))
    return intervals


def _interval(value: float, stderr: float) -> dict[str, Any]:
    half = NORMAL_95 * stderr
    if stderr == 0.0:
        reason = "a standard error of 0 gives no interval"
    elif not (math.isfinite(value - half) and math.isfinite(value + half)):
        reason = "the interval overflows"
    else:
        return {"low": value - half, "high": value + half}
    return {"low": None, "high": None, "low_reason": reason, "high_reason": reason}
