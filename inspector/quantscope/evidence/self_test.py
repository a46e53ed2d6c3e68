"""Known answers, and faults put in on purpose: each of them has to be caught.

A known answer compares what the program computes with numbers worked out by hand. An input fault
spoils one place of a file, which must then be refused or fail. A method fault replaces one
computation by a well-known wrong one, with which the known answer must no longer come out: a known
answer that any method meets would show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quantscope.evidence import run
from quantscope.evidence.logits import loss_means, perplexity, row_statistics, shifted_target_count
from quantscope.evidence.metrics import code_fractions
from quantscope.evidence.packing import unpack_low_first
from quantscope.evidence.self_test_files import known_answers, spoiled_files
from quantscope.evidence.strict_json import EvidenceInputError

Check = Callable[[], str | None]
"""Answers None, or what is wrong."""

Rows = npt.NDArray[np.float64]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case and how it went."""

    name: str
    kind: str
    """`known_answer` or `injected_fault`."""
    passed: bool
    detail: str | None = None


def run_self_test() -> run.Evaluation:
    """Runs every case; exit code 1 where any known answer fails or any fault goes unseen."""
    cases = [*_known_cases(), *_input_faults(), *_method_faults()]
    failed = [case for case in cases if not case.passed]
    document = run.empty_document("a self-test reads no input")
    document["self_test"] = {
        "status": "failed" if failed else "passed",
        "known_answers": sum(case.kind == "known_answer" for case in cases),
        "injected_faults": sum(case.kind == "injected_fault" for case in cases),
        "failed": len(failed),
        "cases": [msgspec.to_builtins(case) for case in cases],
    }
    return run.Evaluation(
        document=document,
        exit_code=run.EXIT_FAILED if failed else run.EXIT_DONE,
        diagnostics=tuple(f"self-test: {case.name}: {case.detail}" for case in failed),
    )


def _case(name: str, kind: str, check: Check) -> Case:
    """One check; the boundary at which any failure of the program becomes a failed case."""
    try:
        detail = check()
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
    return Case(name=name, kind=kind, passed=detail is None, detail=detail)


def _known_cases() -> list[Case]:
    checks: list[tuple[str, Check]] = [
        (name, partial(_check_file, data, group, expected))
        for name, data, group, expected in known_answers()
    ]
    checks += [
        ("fixed bytes of the codes 0..15", _fixed_nibbles),
        ("clamp, endpoint and range are three ratios", _three_ratios),
        ("round first, then add the zero point", _rounding_order),
        ("shifted targets are counted from the mask", _shift_counts),
        ("per-document and per-token mean", _two_means),
        ("perplexity of unequal batches", _unequal_batches),
        ("KL of nearly equal rows", _near_equal_kl),
        ("KL is directional", _directional_kl),
        ("a row that flips is not called safe", _argmax_flip),
    ]
    return [_case(name, "known_answer", check) for name, check in checks]


def _input_faults() -> list[Case]:
    return [
        _case(name, "injected_fault", partial(_check_caught, data, code, word))
        for name, data, code, word in spoiled_files()
    ]


def _method_faults() -> list[Case]:
    faults: list[tuple[str, Check]] = [
        ("high nibble first", partial(_fixed_nibbles, _unpack_high_first)),
        ("zero point added before rounding", partial(_rounding_order, _add_then_round)),
        ("masked labels counted before the shift", partial(_shift_counts, _count_then_drop)),
        ("mean of batch means in perplexity", partial(_unequal_batches, _mean_of_means)),
        ("KL as a plain sum of p (log p - log q)", partial(_near_equal_kl, _plain_kl)),
        ("KL in float32", partial(_near_equal_kl, _float32_kl)),
        ("KL of the candidate against the reference", partial(_directional_kl, _reversed_kl)),
        ("argmax called safe at margin > 0", partial(_argmax_flip, _loose_margin)),
    ]
    return [_case(name, "injected_fault", partial(_must_differ, check)) for name, check in faults]


def _must_differ(check: Check) -> str | None:
    return None if check() is not None else "the wrong method meets the known answer"


def _check_file(data: bytes, group: str, expected: dict[str, Any]) -> str | None:
    evaluation = run.evaluate(data)
    if evaluation.exit_code != run.EXIT_DONE:
        return f"exit code {evaluation.exit_code}"
    for key, wanted in expected.items():
        found: Any = evaluation.document["results"][group]
        for part in key.split("."):
            found = found[part]
        if not _same(found, wanted):
            return f"{key} is {found!r}, not {wanted!r}"
    return None


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=0.0)
    return type(found) is type(wanted) and bool(found == wanted)


def _check_caught(data: bytes, wanted: int, word: str) -> str | None:
    """The fault is caught for its own reason, not by luck for another."""
    try:
        evaluation = run.evaluate(data)
        code, said = evaluation.exit_code, "; ".join(evaluation.diagnostics)
    except EvidenceInputError as error:
        code, said = error.exit_code, error.message
    if code != wanted:
        return f"exit code {code} where {wanted} shows the fault"
    return None if word in said else f"caught as something else: {said}"


def _fixed_nibbles(
    unpack: Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]] = unpack_low_first,
) -> str | None:
    packed = np.frombuffer(bytes.fromhex("1032547698badcfe"), dtype=np.uint8)
    found = unpack(packed).tolist()
    return None if found == list(range(16)) else f"bytes of 0..15 give {found}"


def _unpack_high_first(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return unpack_low_first(packed).reshape(-1, 2)[:, ::-1].reshape(-1)


def _three_ratios() -> str | None:
    values = np.array([0, 7, 7.2, 100.0])
    found = code_fractions(values, scale=1.0, zero_point=0, qmin=-7, qmax=7)
    ratios = (found.code_clamp_fraction, found.endpoint_fraction, found.range_fraction)
    return None if ratios == (0.25, 0.75, 0.5) else f"clamp, endpoint, range are {ratios}"


def _round_then_add(value: float) -> bool:
    """Whether 0.5 with zero point 1 stays at code 1, inside 0..1."""
    found = code_fractions(np.array([value]), scale=1.0, zero_point=1, qmin=0, qmax=1)
    return found.code_clamp_fraction == 0.0


def _add_then_round(value: float) -> bool:
    return bool(np.rint(value + 1) <= 1)


def _rounding_order(inside: Callable[[float], bool] = _round_then_add) -> str | None:
    return None if inside(0.5) else "RNE(0.5) + 1 is not 1"


def _shift_counts(count: Callable[[list[int]], int] = shifted_target_count) -> str | None:
    found = [count([-100, 2, 3, -100]), count([-100, -100, 3, 4])]
    return None if found == [2, 2] else f"counts are {found}"


def _count_then_drop(labels: list[int]) -> int:
    return sum(label != -100 for label in labels) - 1


def _two_means() -> str | None:
    found = loss_means([[2.0] * 2, [1.0] * 8])
    means = (found.per_document_mean, found.per_token_mean)
    return None if means == (1.5, 1.2) else f"means are {means}"


def _total_over_count(batches: Sequence[Sequence[float]]) -> float:
    losses = [loss for batch in batches for loss in batch]
    return perplexity(math.fsum(losses), len(losses))


def _mean_of_means(batches: Sequence[Sequence[float]]) -> float:
    return math.exp(sum(sum(batch) / len(batch) for batch in batches) / len(batches))


def _unequal_batches(
    ppl: Callable[[Sequence[Sequence[float]]], float] = _total_over_count,
) -> str | None:
    found = ppl([[math.log(2.0)], [math.log(4.0)] * 3])
    close = math.isclose(found, 3.3635856610148585, rel_tol=1e-12)
    return None if close else f"perplexity is {found!r}"


def _row_kl(reference: Rows, candidate: Rows) -> float:
    return float(row_statistics(reference, candidate).kl[0])


def _plain_kl(reference: Rows, candidate: Rows) -> float:
    log_p = reference - np.log(np.exp(reference).sum())
    log_q = candidate - np.log(np.exp(candidate).sum())
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _float32_kl(reference: Rows, candidate: Rows) -> float:
    low, low_candidate = reference.astype(np.float32), candidate.astype(np.float32)
    log_p = low - np.log(np.exp(low).sum())
    log_q = low_candidate - np.log(np.exp(low_candidate).sum())
    return float((np.exp(log_p) * (log_p - log_q)).sum())


def _reversed_kl(reference: Rows, candidate: Rows) -> float:
    return _row_kl(candidate, reference)


def _near_equal_kl(kl: Callable[[Rows, Rows], float] = _row_kl) -> str | None:
    """Two tokens, one moved by 1e-9: KL is p (1 - p) 1e-18 / 2 up to terms of 1e-27."""
    value = kl(np.array([[0.0, 0.0]]), np.array([[0.0, 1e-9]]))
    return None if math.isclose(value, 1.25e-19, rel_tol=1e-6) else f"KL is {value!r}"


def _directional_kl(kl: Callable[[Rows, Rows], float] = _row_kl) -> str | None:
    """P = (1/4, 3/4) and q = (1/2, 1/2): KL(p || q) = 3/4 ln 3 - ln 2."""
    value = kl(np.array([[0.0, math.log(3.0)]]), np.array([[0.0, 0.0]]))
    wanted = 0.75 * math.log(3.0) - math.log(2.0)
    return None if math.isclose(value, wanted, rel_tol=1e-9) else f"KL is {value!r}"


def _exact_margin(reference: Rows, candidate: Rows) -> bool:
    return bool(row_statistics(reference, candidate).argmax_safe[0])


def _loose_margin(reference: Rows, candidate: Rows) -> bool:
    return bool(row_statistics(reference, candidate).margin[0] > 0)


def _argmax_flip(safe: Callable[[Rows, Rows], bool] = _exact_margin) -> str | None:
    reference, candidate = np.array([[1.0, 1.000001]]), np.array([[1.000002, 1.000001]])
    rows = row_statistics(reference, candidate)
    if rows.reference_top1[0] == rows.candidate_top1[0]:
        return "the argmax did not flip"
    return "a row that flips counts as safe" if safe(reference, candidate) else None
