"""Load records of a serving test: JSON Lines, one request a line, times taken at the client.

Fields of a line:

- `request_start_s`, number: when the client sent the request (required);
- `status`, one of `completed`, `error`, `timeout`, `unfinished` (required);
- `first_token_s`, `last_token_s`, numbers on the same clock, and `output_tokens`, integer: required
  of a completed request. Chunks of a stream are not tokens and do not stand in for them;
- `end_s`, number: when a request without last token was given up;
- `run`, string or integer: which repetition the request belongs to;
- `offered_load_rps`, number > 0: requests a second offered while it ran.

Other fields are allowed and not read. TTFT = first_token_s - request_start_s. TPOT =
(last_token_s - first_token_s) / (output_tokens - 1), which a single token leaves undefined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from quantscope.evidence.external import ExternalEvidence, external_evidence
from quantscope.evidence.strict_json import EvidenceInputError, Json, decode

Status = Literal["completed", "error", "timeout", "unfinished"]
STATUSES: tuple[str, ...] = get_args(Status)

PERCENTILES = (50, 95, 99)
PERCENTILE_METHOD = "linear interpolation between order statistics"

ALL_REQUESTS = "all requests, with errors, time-outs and unfinished ones"

_LONGEST_TIME_S = 1e12
_MOST_TOKENS = 2**53


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a completed request must keep, fixed by the caller; None sets no limit.

    A request with one token has no TPOT and is judged by the other limits.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    end_to_end_s: float | None = None
    attainment_target: float | None = None
    """Share of requests, 0 to 1, that decides the highest load that meets it."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    status: Status
    start_s: float
    first_token_s: float | None
    last_token_s: float | None
    end_s: float | None
    output_tokens: int | None
    run: str | int | None
    offered_load_rps: float | None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, None where none came."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for fewer than two tokens."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        if self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    @property
    def last_event_s(self) -> float:
        """The latest time that the record holds."""
        times = (self.start_s, self.first_token_s, self.last_token_s, self.end_s)
        return max(time for time in times if time is not None)

    def qualifies(self, slo: Slo) -> bool:
        """Completed, and within every limit that applies to it."""
        if self.status != "completed" or self.last_token_s is None:
            return False
        held = (
            (self.ttft_s, slo.ttft_s),
            (self.tpot_s, slo.tpot_s),
            (self.last_token_s - self.start_s, slo.end_to_end_s),
        )
        return all(limit is None or value is None or value <= limit for value, limit in held)


def read_serving(data: bytes, name: str, *, slo: Slo | None = None) -> ExternalEvidence:
    """Reads the records of one load test; a single bad line leaves the file without figures.

    Args:
        data: JSON Lines, UTF-8; empty lines are skipped.
        name: the file's name.
        slo: limits fixed beforehand; without them attainment is not stated.
    """
    problems: list[str] = []
    records: list[RequestRecord] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        record = _record(line, f"line {number}", problems)
        if record is not None:
            records.append(record)
    if not records and not problems:
        problems.append("the file holds no request")
    if problems:
        return _entry(data, name, problems=problems)
    flags = []
    if all(record.run is None for record in records):
        flags.append("runs_not_stated")
    return _entry(
        data,
        name,
        flags=flags,
        claimed={"requests": len(records), "statuses": _status_counts(records)},
        computed=_figures(records, slo),
    )


def _entry(data: bytes, name: str, **parts: Any) -> ExternalEvidence:
    return external_evidence(data, kind="serving_records", name=name, gate="serving", **parts)


def _record(line: bytes, where: str, problems: list[str]) -> RequestRecord | None:
    before = len(problems)
    try:
        fields = decode(line)
    except EvidenceInputError as error:
        problems.append(f"{where}: {error.message}")
        return None
    if not isinstance(fields, dict):
        problems.append(f"{where}: must be an object")
        return None
    start = _time(fields, "request_start_s", where, problems, required=True)
    first = _time(fields, "first_token_s", where, problems)
    last = _time(fields, "last_token_s", where, problems)
    end = _time(fields, "end_s", where, problems)
    status = _status(fields, where, problems)
    tokens = fields.get("output_tokens")
    if tokens is not None and not (type(tokens) is int and 0 <= tokens <= _MOST_TOKENS):
        problems.append(f"{where}: output_tokens must be a count")
    run = fields.get("run")
    if run is not None and (isinstance(run, bool) or not isinstance(run, str | int)):
        problems.append(f"{where}: run must be a string or an integer")
    load = _number(fields, "offered_load_rps")
    if load is not None and not 0 < load <= _LONGEST_TIME_S:
        problems.append(f"{where}: offered_load_rps must be a positive number")
    if len(problems) > before or start is None or status is None:
        return None
    record = RequestRecord(
        status=status,
        start_s=start,
        first_token_s=first,
        last_token_s=last,
        end_s=end,
        output_tokens=tokens if type(tokens) is int else None,
        run=run if isinstance(run, str | int) else None,
        offered_load_rps=load,
    )
    problems += [f"{where}: {problem}" for problem in _contradictions(record)]
    return record


def _time(
    fields: dict[str, Json], key: str, where: str, problems: list[str], *, required: bool = False
) -> float | None:
    value = _number(fields, key)
    if value is None and not required:
        return None
    if value is not None and abs(value) <= _LONGEST_TIME_S:
        return value
    problems.append(f"{where}: {key} must be a time in seconds")
    return None


def _number(fields: dict[str, Json], key: str) -> float | None:
    """The number of a field, None where it is absent, NaN where it is something else."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None if value is None else math.nan
    return float(value)


def _status(fields: dict[str, Json], where: str, problems: list[str]) -> Status | None:
    value = fields.get("status")
    if value == "completed":
        return "completed"
    if value == "error":
        return "error"
    if value == "timeout":
        return "timeout"
    if value == "unfinished":
        return "unfinished"
    problems.append(f"{where}: status must be one of {', '.join(STATUSES)}")
    return None


def _contradictions(record: RequestRecord) -> list[str]:
    found = []
    if record.status == "completed":
        if record.first_token_s is None or record.last_token_s is None:
            found.append("a completed request has first_token_s and last_token_s")
        if not record.output_tokens:
            found.append("a completed request has output_tokens > 0; chunks are not tokens")
    if record.last_token_s is not None and record.first_token_s is None:
        found.append("last_token_s without first_token_s")
    times = (record.start_s, record.first_token_s, record.last_token_s, record.end_s)
    known = [time for time in times if time is not None]
    if known != sorted(known):
        found.append("start, first token, last token and end are not in this order")
    return found


def _figures(records: Sequence[RequestRecord], slo: Slo | None) -> dict[str, Any]:
    runs: dict[str | int | None, list[RequestRecord]] = {}
    for record in records:
        runs.setdefault(record.run, []).append(record)
    figures: dict[str, Any] = {
        "run_count": len(runs),
        "run_count_basis": "distinct values of run"
        if set(runs) != {None}
        else "no record names a run: the file counts as one",
        "percentile_method": PERCENTILE_METHOD,
        **_latencies(records),
        "per_run": [
            {"run": run, "requests": len(members), **_latencies(members)}
            for run, members in runs.items()
        ],
        "completions_per_second": _rate(runs, lambda record: record.status == "completed"),
    }
    if slo is None:
        reason = "no limits were given before the run"
        return figures | {"slo": None, "slo_reason": reason}
    return figures | {
        "slo": msgspec.to_builtins(slo),
        "slo_attainment": _attainment(records, slo),
        "qualified_completions_per_second": _rate(runs, lambda record: record.qualifies(slo)),
        "loads": _loads(records, slo),
    }


def _status_counts(records: Sequence[RequestRecord]) -> dict[str, int]:
    return {status: sum(r.status == status for r in records) for status in STATUSES}


def _latencies(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """TTFT and TPOT of completed requests; those with one token are counted apart."""
    completed = [record for record in records if record.status == "completed"]
    ttft = [record.ttft_s for record in completed if record.ttft_s is not None]
    tpot = [record.tpot_s for record in completed if record.tpot_s is not None]
    return {
        "ttft_s": _percentiles(ttft, "completed requests"),
        "tpot_s": {
            **_percentiles(tpot, "completed requests with at least 2 tokens"),
            "undefined_single_token": len(completed) - len(tpot),
        },
    }


def _percentiles(values: Sequence[float], of: str) -> dict[str, Any]:
    result: dict[str, Any] = {"count": len(values), "of": of}
    if not values:
        return result | {f"p{q}": None for q in PERCENTILES} | {"reason": f"no {of}"}
    points = np.percentile(np.array(values, dtype=np.float64), PERCENTILES, method="linear")
    return result | {f"p{q}": float(point) for q, point in zip(PERCENTILES, points, strict=True)}


def _attainment(records: Sequence[RequestRecord], slo: Slo) -> dict[str, Any]:
    qualified = sum(record.qualifies(slo) for record in records)
    return {
        "qualified": qualified,
        "requests": len(records),
        "fraction": qualified / len(records),
        "denominator": ALL_REQUESTS,
    }


def _rate(
    runs: dict[str | int | None, list[RequestRecord]], counts: Callable[[RequestRecord], bool]
) -> dict[str, Any]:
    """Requests a second over the runs' intervals, each from first start to last recorded event."""
    interval_s = math.fsum(
        max(record.last_event_s for record in members) - min(record.start_s for record in members)
        for members in runs.values()
    )
    number = sum(counts(record) for members in runs.values() for record in members)
    result: dict[str, Any] = {
        "requests": number,
        "interval_s": interval_s,
        "interval": "first request start to last recorded event, summed over runs",
    }
    if interval_s <= 0 or not math.isfinite(number / interval_s):
        return result | {"value": None, "value_reason": "the runs have no duration"}
    return result | {"value": number / interval_s}


def _loads(records: Sequence[RequestRecord], slo: Slo) -> dict[str, Any]:
    """Attainment at each offered load, and the highest load that meets the target."""
    stated = [record.offered_load_rps for record in records]
    if None in stated:
        reason = "not every request states offered_load_rps"
        return {"highest_meeting_target_rps": None, "highest_meeting_target_rps_reason": reason}
    by_load: dict[float, list[RequestRecord]] = {}
    for record in records:
        if record.offered_load_rps is not None:
            by_load.setdefault(record.offered_load_rps, []).append(record)
    table = [
        {"offered_load_rps": load, **_attainment(by_load[load], slo)} for load in sorted(by_load)
    ]
    target = slo.attainment_target
    if target is None:
        reason = "no attainment target was given"
        return {
            "by_load": table,
            "highest_meeting_target_rps": None,
            "highest_meeting_target_rps_reason": reason,
        }
    meeting = [row["offered_load_rps"] for row in table if row["fraction"] >= target]
    result: dict[str, Any] = {"by_load": table, "target": target}
    if not meeting:
        reason = "no load meets the target"
        return result | {
            "highest_meeting_target_rps": None,
            "highest_meeting_target_rps_reason": reason,
        }
    below = [row for row in table if row["offered_load_rps"] < max(meeting)]
    return result | {
        "highest_meeting_target_rps": max(meeting),
        "lower_loads_that_miss_it": sum(row["fraction"] < target for row in below),
    }
