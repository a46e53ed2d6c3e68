"""Computes what a strict evidence file asks for and says which of the six gates that executes."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import msgspec
import numpy as np

from quantscope import __version__
from quantscope.evidence.gates import GATE_NAMES, OVERALL, Gate, GateName, all_gates, reported
from quantscope.evidence.logits import Likelihood, logits_metrics
from quantscope.evidence.metrics import NumericError, tensor_metrics
from quantscope.evidence.packing import check_packing, decode_codes
from quantscope.evidence.schema import (
    GROUPS,
    SCHEMA_VERSION,
    EvidenceFile,
    LogitsGroup,
    TensorGroup,
    Uint4Group,
    validate,
)
from quantscope.evidence.strict_json import decode

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INPUT = 2

SKIPPED = "skipped"

_NO_LINK = "that the groups belong to one model, or to any checkpoint: no link is assumed"
_UNVERIFIED: dict[str, str] = {
    "tensor": "where the two vectors of `tensor` come from",
    "logits": "model, tokenizer, chat template, positions and text behind `logits`",
    "uint4": "that any file or kernel uses the layout of `uint4`",
    "external_evidence": "all of `external_evidence`: it is echoed as text of others",
}


class GroupResult(msgspec.Struct, frozen=True, kw_only=True):
    """One group's part of the output."""

    result: dict[str, Any]
    scope: dict[str, Any]
    failure: str | None = None
    """What failed, for stderr; None where the computation completed."""
    gate: Gate | None = None


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """The output document, the exit code, and what to say on stderr."""

    document: dict[str, Any]
    exit_code: int
    diagnostics: tuple[str, ...] = ()


def evaluate(data: bytes) -> Evaluation:
    """Runs one evidence file.

    Args:
        data: the file's bytes.

    Returns:
        Exit code 0 where all that was asked for was computed (which accepts nothing), 1 where a
        number could not be stated or packing parity failed.

    Raises:
        EvidenceInputError: the bytes are no valid evidence file (exit code 2).
    """
    file = validate(decode(data))
    digest = hashlib.sha256(data).hexdigest()
    parts: dict[str, GroupResult] = {}
    if file.tensor is not None:
        parts["tensor"] = _tensor(file.tensor)
    if file.logits is not None:
        parts["logits"] = _logits(file.logits)
    if file.uint4 is not None:
        parts["uint4"] = _uint4(file.uint4, digest)
    failures = tuple(part.failure for part in parts.values() if part.failure is not None)
    document = {
        "schema_version": SCHEMA_VERSION,
        "input_sha256": digest,
        "results": {group: parts[group].result if group in parts else SKIPPED for group in GROUPS},
        "external_evidence": _external(file),
        "gates": _gates(file, parts),
        "verified_scope": _scope({group: part.scope for group, part in parts.items()}),
        "unverified": [_NO_LINK, *(text for key, text in _UNVERIFIED.items() if _holds(file, key))],
        "overall": OVERALL,
    }
    return Evaluation(
        document=document,
        exit_code=EXIT_FAILED if failures else EXIT_DONE,
        diagnostics=failures,
    )


def empty_document(reason: str) -> dict[str, Any]:
    """The document of a run without an input: every group and gate skipped for `reason`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "input_sha256": None,
        "input_sha256_reason": reason,
        "results": dict.fromkeys(GROUPS, SKIPPED),
        "external_evidence": SKIPPED,
        "gates": {name: gate.as_json() for name, gate in all_gates({}, otherwise=reason).items()},
        "verified_scope": _scope({}),
        "unverified": ["everything but this program's own arithmetic on its built-in cases"],
        "overall": OVERALL,
    }


def _tensor(group: TensorGroup) -> GroupResult:
    scope = {"elements": int(group.reference.size), "dtype": "binary64"}
    try:
        metrics = tensor_metrics(group.reference, group.candidate, field="tensor")
    except NumericError as error:
        return _numeric_failure(error, scope)
    result: dict[str, Any] = {
        "mse": metrics.mse,
        "relative_squared_l2": metrics.relative_squared_l2,
        "cosine": metrics.cosine,
        "max_abs_error": metrics.max_abs_error,
    }
    if metrics.relative_squared_l2 is None:
        result["relative_squared_l2_reason"] = metrics.relative_squared_l2_reason
    if metrics.cosine is None:
        result["cosine_reason"] = metrics.cosine_reason
    return GroupResult(result=result, scope=scope)


def _logits(group: LogitsGroup) -> GroupResult:
    rows, vocabulary_size = group.reference.shape
    scope: dict[str, Any] = {
        "rows": rows,
        "scored_rows": int(np.count_nonzero(group.mask)),
        "vocabulary_size": vocabulary_size,
        "dtype": "binary64",
        "kl": "KL(reference || candidate), nats, temperature 1, mean over scored rows",
        "targets": "aligned with the rows as given, no shift",
    }
    try:
        metrics = logits_metrics(
            group.reference, group.candidate, group.targets, group.mask, field="logits"
        )
    except NumericError as error:
        return _numeric_failure(error, scope)
    scope["argmax_safe_rows"] = metrics.argmax_safe_rows
    scope["argmax_safe_means"] = "reference margin > 2 x the row's largest logit error, strictly"
    scope["max_abs_logit_error"] = metrics.max_abs_logit_error
    return GroupResult(
        result={
            "kl_mean": metrics.kl_mean,
            "top1_agreement": metrics.top1_agreement,
            "scored_rows": metrics.scored_rows,
            "reference": _likelihood(metrics.reference),
            "candidate": _likelihood(metrics.candidate),
        },
        scope=scope,
    )


def _uint4(group: Uint4Group, digest: str) -> GroupResult:
    packing = check_packing(group.codes, group.packed_bytes)
    scope = {
        "codes": group.logical_length,
        "bytes": int(group.packed_bytes.size),
        "layout": "low_first",
        "decoded_from": "codes",
    }
    gate = Gate(
        status="executed",
        outcome="held" if packing.packing_parity else "did_not_hold",
        reason=packing.first_mismatch,
        scope={
            "compared": "packed_bytes unpacked low nibble first with codes, unused tail included",
            "codes_compared": f"{group.logical_length} of {group.logical_length}",
            "bytes_compared": f"{group.packed_bytes.size} of {group.packed_bytes.size}",
            "input_sha256": digest,
            "dtype": "uint4 in uint8",
            "device": "host",
            "tolerance": 0,
            "seed": None,
            "should_be": "exact",
        },
    )
    result: dict[str, Any] = {
        "packing_parity": packing.packing_parity,
        "endpoint_fraction": packing.endpoint_fraction,
    }
    failures = [f"uint4.packing_parity: {packing.first_mismatch}"] if packing.first_mismatch else []
    try:
        decoded = decode_codes(group.codes, scale=group.scale, zero_point=group.zero_point)
        result["decoded"] = decoded.tolist()
    except NumericError as error:
        result |= {"decoded": None, "decoded_reason": "numeric_error"}
        result["numeric_error"] = _error_json(error)
        failures.append(error.message)
    return GroupResult(
        result=result, scope=scope, failure="; ".join(failures) if failures else None, gate=gate
    )


def _numeric_failure(error: NumericError, scope: dict[str, Any]) -> GroupResult:
    return GroupResult(
        result={"numeric_error": _error_json(error)},
        scope={**scope, "completed": False},
        failure=f"numeric_error {error.message}",
    )


def _error_json(error: NumericError) -> dict[str, str]:
    return {"stage": error.stage, "field": error.field, "message": error.reason}


def _likelihood(side: Likelihood) -> dict[str, float]:
    return {"nll_sum": side.nll_sum, "nll_mean": side.nll_mean, "ppl": side.ppl}


def _holds(file: EvidenceFile, key: str) -> bool:
    return getattr(file, key) is not None


def _external(file: EvidenceFile) -> Any:
    if file.external_evidence is None:
        return SKIPPED
    return {"status": "reported_unverified", "content": file.external_evidence}


def _gates(file: EvidenceFile, parts: dict[str, GroupResult]) -> dict[str, Any]:
    known: dict[GateName, Gate] = {}
    for name in GATE_NAMES:
        if file.external_evidence is not None and name in file.external_evidence:
            known[name] = reported(f"external_evidence.{name} of the input")
    if "uint4" in parts and parts["uint4"].gate is not None:
        known["packing_layout"] = parts["uint4"].gate
    gates = all_gates(known, otherwise="no group of this input executes it")
    return {name: gate.as_json() for name, gate in gates.items()}


def _scope(groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "identity": {
            "tool": "quantscope",
            "version": __version__,
            "libraries": {"numpy": np.__version__, "python": platform.python_version()},
            "device": "host",
        },
        **groups,
    }
