from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from quantscope.evidence import logits, metrics, packing, run, schema, self_test, strict_json
from quantscope.evidence.self_test import run_self_test


def failed_cases() -> set[str]:
    evaluation = run_self_test()
    result = evaluation.document["self_test"]
    names = {case["name"] for case in result["cases"] if not case["passed"]}
    assert evaluation.exit_code == (1 if names else 0)
    assert result["status"] == ("failed" if names else "passed")
    assert result["failed"] == len(names) == len(evaluation.diagnostics)
    return names


def test_self_test_passes_and_the_top_level_stays_incomplete() -> None:
    assert failed_cases() == set()
    document = run_self_test().document
    assert document["overall"] == "incomplete"
    assert document["results"] == dict.fromkeys(("tensor", "logits", "uint4"), "skipped")
    assert {gate["status"] for gate in document["gates"].values()} == {"skipped"}
    counts = document["self_test"]
    assert counts["known_answers"] >= 14
    assert counts["injected_faults"] >= 40
    strict_json.dump_canonical(document)


def test_every_case_has_its_own_name() -> None:
    cases = run_self_test().document["self_test"]["cases"]
    assert len({(case["kind"], case["name"]) for case in cases}) == len(cases)


def _scaled_mse(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return metrics.TensorMetrics(
            **{
                name: getattr(found, name) * 2 if name == "mse" else getattr(found, name)
                for name in found.__struct_fields__
            }
        )

    return wrong


def test_a_wrong_mse_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "tensor_metrics", _scaled_mse(metrics.tensor_metrics))
    assert "tensor [1,2] against [2,4]" in failed_cases()


def test_a_high_first_unpack_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def high_first(packed: np.ndarray) -> np.ndarray:
        return np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)

    monkeypatch.setattr(packing, "unpack_low_first", high_first)
    failed = failed_cases()
    assert "codes [0,1,2] in the bytes 10 02" in failed
    assert "swapped nibbles" in failed


def test_a_lenient_decoder_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    monkeypatch.setattr(run, "decode", lambda data: json.loads(data.decode("utf-8-sig", "replace")))
    failed = failed_cases()
    assert {"byte order mark", "invalid UTF-8", "duplicate key", "number that underflows"} <= failed


def test_unchecked_fields_fail_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_fields", lambda *args, **kwargs: None)
    assert "unknown field" in failed_cases()


def test_a_clamped_kl_fails_the_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    original = logits._kl_terms

    def clamped(log_p: np.ndarray, log_ratio: np.ndarray, candidate: np.ndarray) -> np.ndarray:
        return original(log_p, np.clip(log_ratio, -20, 20), candidate)

    monkeypatch.setattr(logits, "_kl_terms", clamped)
    assert "KL of disjoint tails is 500" in failed_cases()


def test_a_known_answer_that_any_method_meets_fails_the_self_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(self_test, "_plain_kl", self_test._row_kl)
    assert failed_cases() == {"KL as a plain sum of p (log p - log q)"}


def test_a_crash_is_a_failed_case_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(run, "check_packing", crash)
    assert "codes [0,1,2] in the bytes 10 02" in failed_cases()
