"""Logits checks for `quantscope report --with probe`: entries of `probes`, and the `model_quality` gate."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.evidence.gates import Gate, GateName
from quantscope.extras import install_hint
from quantscope.probes.model import ProbeRequest, ProbeResult, SideRequest, TokenRequest
from quantscope.probes.run import ProbeFailedError, missing, run_probe
from quantscope.probes.tokens import has_tokenizer
from quantscope.session.events import Progress
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import Scope, inspect

OWN = "as the bytes say"
UNTIMED = ("seconds", "cpu_seconds", "peak_rss_bytes", "fingerprints")
"""Left out of an entry or written another way: what differs between two runs on the same bytes."""
OTHER = {"as_is": "minus_one", "minus_one": "as_is"}


def for_report(
    path: str,
    tensors: tuple[str, ...],
    backend: str,
    base: str | None = None,
    tokens: str | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> tuple[list[dict[str, Any]], dict[GateName, Gate]]:
    """One logits check of a checkpoint: under its own reading, the other zero convention, and a base.

    Args:
        path: the checkpoint.
        tensors: unused: logits need every tensor.
        backend: unused: the weights are decoded by the engine.
        base: the baseline; without one the gate is skipped.
        tokens: an ids file or the word `random`; by default the bundled passage, or random ids where the
            checkpoint has no tokenizer.
        progress: receives throttled progress.
    """
    del tensors, backend
    absent = missing()
    if absent is not None:
        reason = f"{absent} is not installed: {install_hint('probe')}"
        return [], {"model_quality": Gate(status="skipped", reason=reason)}
    try:
        result = run_probe(report_request(path, base, tokens), progress=progress)
    except ProbeFailedError as problem:
        reason = problem.failure.message
        return [failed_entry(path, reason, base is not None)], {
            "model_quality": Gate(status="failed", reason=reason)
        }
    return [report_entry(result, base is not None)], {
        "model_quality": model_quality_gate(result, base)
    }


def failed_entry(path: str, reason: str, against_base: bool) -> dict[str, Any]:
    """A check that could not finish, as the report lists it."""
    return {
        "path": os.path.basename(os.path.abspath(path)),
        "status": "failed",
        "outcome": None,
        "reason": reason,
        "controls": [],
        "execution_proof": "not_applicable",
        "comparison": "approximate" if against_base else "exact",
        "fingerprint": [],
    }


def report_request(path: str, base: str | None, tokens: str | None = None) -> ProbeRequest:
    """Sides and tokens of a report's check."""
    with Checkpoint.open(path) as checkpoint:
        inspection = inspect(checkpoint, Scope(mode="headers"))
        if base is None:
            return request_of(path, inspection, tokens=tokens)
        with Checkpoint.open(base) as other:
            return request_of(path, inspection, (base, other), tokens)


def request_of(
    path: str,
    inspection: Inspection,
    base: tuple[str, Checkpoint] | None = None,
    tokens: str | None = None,
) -> ProbeRequest:
    """Sides and tokens of a check of an opened checkpoint: its own reading, the other zero convention, a base.

    Args:
        path: the checkpoint.
        inspection: of it; headers suffice.
        base: path of the baseline and the baseline, opened.
        tokens: an ids file or the word `random`; by default the bundled passage, or random ids where no side
            has a tokenizer.
    """
    other = other_convention(inspection)
    checkpoints = [inspection.checkpoint, *([base[1]] if base else [])]
    sides = [SideRequest(label="base", path=base[0])] if base else []
    sides.append(SideRequest(label="checkpoint" if base else OWN, path=path))
    if other is not None:
        sides.append(
            SideRequest(
                label=f"zero_convention={other}", path=path, reading={"zero_convention": other}
            )
        )
    if tokens is not None and tokens != "random":
        request = TokenRequest(source="ids", path=tokens)
    else:
        known = tokens is None and any(map(has_tokenizer, checkpoints))
        request = TokenRequest(source="passage" if known else "random")
    return ProbeRequest(sides=tuple(sides), tokens=request)


def base_of(request: ProbeRequest) -> str | None:
    """Path of the baseline of a request; None where all sides are readings of one checkpoint."""
    base = request.sides[0].path
    return base if base != request.sides[-1].path else None


def other_convention(inspection: Inspection) -> str | None:
    """The zero convention that most tensors with integer zeros are not read under; None without any."""
    counts: dict[str, int] = {}
    for state in inspection.states:
        if state.reading is not None and state.reading.zero == "integer":
            word = OTHER.get(state.reading.zero_convention)
            if word is not None:
                counts[word] = counts.get(word, 0) + 1
    return max(counts, key=lambda word: counts[word]) if counts else None


def report_entry(result: ProbeResult, against_base: bool) -> dict[str, Any]:
    """A result as the report lists it; without times, so that equal input gives equal bytes."""
    entry: dict[str, Any] = {
        key: value for key, value in msgspec.to_builtins(result).items() if key not in UNTIMED
    }
    for side in entry["sides"]:
        side["path"] = os.path.basename(os.path.abspath(side["path"]))
    entry["status"] = "executed"
    entry["fingerprint"] = _fingerprints(result)
    entry["comparison"] = "approximate" if against_base else "exact"
    entry["execution_proof"] = "not_applicable"
    return entry


def model_quality_gate(result: ProbeResult, base: str | None) -> Gate:
    """How the gate went: executed where a baseline was compared, which says that figures were measured.

    No threshold is set here, so that the outcome speaks of the controls alone.
    """
    if base is None:
        return Gate(
            status="skipped",
            reason="no baseline was given: --base PATH, or probe PATH --against BASE",
        )
    pair = result.pairs[0]
    own = result.sides[1]
    return Gate(
        status="executed",
        outcome=result.outcome,
        reason=f"{result.reason}; no threshold was set: read KL and NLL in `probes`",
        scope={
            "tensors": "every weight of the model",
            "readings": own.readings,
            "bytes": _fingerprints(result),
            "positions": pair.rows,
            "targets": result.targets_counted,
            "vocabulary": result.vocabulary,
            "ids": result.ids_source,
            "ids_sha256": result.ids_sha256,
            "device": result.device,
            "dtype": result.dtype,
            "tolerance": "none: figures are reported, not judged",
            "seed": None,
            "comparison": "approximate",
            "not_verified": list(result.unverified),
        },
    )


def _fingerprints(result: ProbeResult) -> list[dict[str, str]]:
    return [
        {"file": os.path.basename(path), "fingerprint": mark}
        for path, mark in sorted(result.fingerprints.items())
    ]
