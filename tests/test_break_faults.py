"""A fault put into a real checkpoint is named: its kind, how grave it is, and where."""

from __future__ import annotations

from pathlib import Path

import break_cases_containers
import break_cases_declared
import break_cases_gguf
import break_cases_more
import break_cases_values
import pytest
from break_edits import Case, copy_of, names_of, scan

CASES = (
    *break_cases_containers.CASES,
    *break_cases_values.CASES,
    *break_cases_declared.CASES,
    *break_cases_gguf.CASES,
    *break_cases_more.CASES,
)


def case_id(case: Case) -> str:
    return f"{case.folder}-{case.what}".replace(" ", "_")


@pytest.mark.real
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_planted_fault_is_found(case: Case, real_set: Path, tmp_path: Path) -> None:
    folder = copy_of(real_set, case.folder, tmp_path)
    case.edit(folder)
    found = scan(folder)
    of_kind = [f for f in found if f.kind in case.kinds.split()]
    assert of_kind, [(f.severity, f.code, f.kind, f.message) for f in found]
    of_severity = [f for f in of_kind if f.severity in case.severity.split()]
    assert of_severity, [(f.severity, f.code, f.message) for f in of_kind]
    assert any(case.subject in names_of(f) for f in of_severity), [f.subject for f in of_severity]


def test_every_case_names_a_kind_and_a_severity() -> None:
    for case in CASES:
        assert case.kinds, case.what
        assert set(case.severity.split()) <= {"violation", "disagreement", "warning", "note"}
    assert len({(case.folder, case.what, case.kinds) for case in CASES}) == len(CASES)
