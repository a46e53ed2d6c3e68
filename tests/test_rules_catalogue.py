"""The catalogue: unique codes, whole pages, fixtures for every rule, isolation, folding, selection, suppression."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quantscope.containers.issues import ISSUES
from quantscope.errors import UsageError
from quantscope.model import Finding, Subject
from quantscope.rules import catalogue as catalogue_module
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.builtin import BUILTIN
from quantscope.rules.catalogue import catalogue, load
from quantscope.rules.container_rule import ContainerRule
from quantscope.rules.fold import fold, natural_key
from quantscope.rules.pages import markdown, render
from quantscope.rules.suppress import Suppression, load_suppressions
from quantscope.samples import list_samples, make_sample
from quantscope.samples.library import shipped_folder
from rules_support import scan

DOCS = Path(__file__).parents[1] / "docs" / "rules"
SAMPLES = {sample.name: sample for sample in list_samples()}
CODES = sorted(kind.code for kind in BUILTIN)


def test_codes_and_names_are_unique_and_well_formed() -> None:
    assert len(CODES) == len(set(CODES))
    assert len({kind.name for kind in BUILTIN}) == len(BUILTIN)
    prefixes = {"QB", "QC", "QD", "QG", "QH", "QP", "QR", "QS", "QV", "QW", "QZ"}
    assert {code[:2] for code in CODES} == prefixes


@pytest.mark.parametrize("code", CODES)
def test_a_rule_has_a_page_a_failing_and_a_passing_fixture(code: str) -> None:
    rule = catalogue()[code]
    for part in ("checks", "why", "evidence", "proves_not"):
        text = getattr(rule.page, part)
        assert text.endswith(".")
        assert len(text) > 10
    shown = SAMPLES[rule.page.sample]
    assert code in {expected.code for expected in shown.expected}
    passing = [
        s for s in SAMPLES.values() if s.make is None and code not in {e.code for e in s.expected}
    ]
    assert passing


@pytest.mark.parametrize("code", CODES)
def test_the_documentation_is_written_from_the_page(code: str) -> None:
    assert (DOCS / f"{code}.md").read_text() == markdown(code)


def test_no_page_is_left_from_a_rule_that_is_gone() -> None:
    assert {path.stem for path in DOCS.glob("Q*.md")} == set(CODES)


def test_a_page_is_printed_with_its_reports_and_its_sample() -> None:
    text = render("qz002")
    assert text.startswith("QZ002  zero-convention-contradicted")
    assert "smol-w4-liar" in text
    assert "GPTQModel#2350" in text
    assert max(map(len, text.splitlines())) <= 96
    with pytest.raises(UsageError, match="no rule"):
        render("QZ999")


def test_every_slug_of_the_containers_is_some_rules_business() -> None:
    known = {slug for kind in BUILTIN if issubclass(kind, ContainerRule) for slug in kind.slugs}
    assert known == set(ISSUES)


def test_severity_of_a_rule_is_the_worst_that_its_fixtures_show() -> None:
    for sample in SAMPLES.values():
        for expected in sample.expected:
            order = ("violation", "disagreement", "warning", "note")
            rule = catalogue()[expected.code]
            if isinstance(rule, ContainerRule):
                continue
            assert order.index(rule.severity) <= order.index(expected.severity), sample.name


class Broken(Rule):
    code = "XX001"
    name = "broken"
    severity = "note"
    page = Page(checks=".", why=".", evidence=".", proves_not=".", sample="")

    def check(self, facts: Any) -> Iterator[Finding | Hit]:
        yield self.finding(Subject(file="a"), "said", impact="none", try_="")
        raise ZeroDivisionError("on purpose")


def test_a_failing_rule_is_named_as_skipped_and_harms_no_other() -> None:
    rules = {"XX001": Broken(), "QW003": catalogue()["QW003"]}
    inspection = scan(shipped_folder() / "smol-ct-int8", rules=rules)
    assert [f.code for f in inspection.findings] == ["QW003"]
    assert inspection.rules_run == ("QW003",)
    assert inspection.rules_skipped[0][0] == "XX001"
    assert "ZeroDivisionError: on purpose" in inspection.rules_skipped[0][1]


def test_select_and_ignore_take_codes_and_prefixes(tmp_path: Path) -> None:
    folder = make_sample(SAMPLES["gptq-scale-nan"], tmp_path / "s")
    assert {f.code for f in scan(folder, select=["qs"]).findings} == {"QS001"}
    assert not scan(folder, ignore=["QS001"]).findings
    skipped = dict(scan(folder, ignore=["QS001"]).rules_skipped)
    assert skipped["QS001"] == "ignored on request"


def test_rules_that_need_bytes_are_skipped_with_the_reason_in_a_headers_scan() -> None:
    inspection = scan(shipped_folder() / "smol-gptq-w4", "headers")
    skipped = dict(inspection.rules_skipped)
    assert "headers only" in skipped["QS001"]
    assert inspection.ledger.files() == set()
    assert "QR008" in dict(scan(shipped_folder() / "smol-gptq-w4").rules_skipped)


def _point(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    class Point:
        name = "mine"
        dist = None

        def __init__(self) -> None:
            self.value = "somewhere:Mine"

        def load(self) -> Any:
            return value

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point()])
    load.cache_clear()


def test_a_third_partys_rule_is_taken_and_may_not_reuse_a_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        _point(monkeypatch, Broken)
        assert isinstance(catalogue()["XX001"], Broken)
        twin = type("Twin", (Broken,), {"code": "QZ001"})
        _point(monkeypatch, twin)
        assert not isinstance(catalogue()["QZ001"], Broken)
        assert load().records[0].error == "code QZ001 is taken"
        _point(monkeypatch, object)
        assert "is no quantscope.rules.base.Rule" in str(load().records[0].error)
    finally:
        monkeypatch.undo()
        catalogue_module.load.cache_clear()


def _hit(tensor: str, fold_key: str, severity: Any = "warning", **data: Any) -> Hit:
    return Hit(
        finding=Finding(
            code="QS001",
            name="n",
            kind=None,
            severity=severity,
            confidence="proved",
            subject=Subject(tensor=tensor),
            message=f"{tensor} has one",
            data=data,
        ),
        fold=fold_key,
        many="{bad} bad in {count} tensors, {unknown} {0.__class__} {bad.real}",
    )


def test_the_same_fact_over_many_tensors_is_one_finding_with_sorted_members() -> None:
    hits = [_hit(f"layers.{i}.x", "nan", bad=i) for i in (10, 2, 1)] + [_hit("layers.3.x", "inf")]
    folded = fold(hits)
    assert [(f.count, f.members) for f in folded] == [
        (3, ("layers.1.x", "layers.2.x", "layers.10.x")),
        (1, ()),
    ]
    assert folded[0].subject.tensor == "layers.1.x"
    assert folded[0].data == {"bad": {"min": 1, "max": 10, "sum": 13}}
    assert fold(reversed(hits)) == folded


def test_folded_messages_honour_names_only() -> None:
    """Names come from files: nothing of Python's format language may be evaluated."""
    folded = fold([_hit("a", "x", bad=1), _hit("b", "x", bad=2)])
    assert folded[0].message == "3 bad in 2 tensors, {unknown} {0.__class__} {bad.real}"


def test_findings_are_sorted_worst_first() -> None:
    hits = [_hit("a", "1", "note"), _hit("b", "2", "violation"), _hit("c", "3", "disagreement")]
    assert [f.severity for f in fold(hits)] == ["violation", "disagreement", "note"]


def test_natural_order_of_names() -> None:
    names = ["layers.10.a", "layers.9.b", "a10", "a9", "", "a"]
    assert sorted(names, key=natural_key) == ["", "a", "a9", "a10", "layers.9.b", "layers.10.a"]


def test_finding_ids_are_stable_over_two_scans(tmp_path: Path) -> None:
    folder = make_sample(SAMPLES["gptq-scale-nan"], tmp_path / "s")
    first, second = scan(folder), scan(folder, "deep")
    assert [f.id for f in first.findings] == [f.id for f in second.findings if f.code == "QS001"]


def test_a_suppressed_finding_is_left_out_and_named_with_its_reason(tmp_path: Path) -> None:
    folder = make_sample(SAMPLES["gptq-scale-nan"], tmp_path / "s")
    found = scan(folder).findings[0]
    accepted = [Suppression(id=found.id, reason="known since March")]
    inspection = scan(folder, suppressions=accepted)
    assert not inspection.findings
    assert inspection.suppressed[0].id == found.id
    assert inspection.suppressed[0].reason == "known since March"


def test_suppression_lists_are_read_with_expiry_and_refused_without_reason(tmp_path: Path) -> None:
    listed = tmp_path / "quantscope.toml"
    listed.write_text(
        '[[suppress]]\nid = "QS001:a"\nreason = "r"\nexpires = 2026-01-01\n'
        '[[suppress]]\nid = "QS002:b"\nreason = "r"\nexpires = "2030-01-01"\n'
    )
    day = datetime.date(2026, 6, 1)
    assert [entry.id for entry in load_suppressions(listed, day)] == ["QS002:b"]
    listed.write_text('[[suppress]]\nid = "QS001:a"\nreason = " "\n')
    with pytest.raises(UsageError, match="reason"):
        load_suppressions(listed)
    listed.write_text("suppress = 3\n")
    with pytest.raises(UsageError):
        load_suppressions(listed)


def test_two_hundred_layers_with_one_fault_are_one_row(tmp_path: Path) -> None:
    from quantscope.samples.st_edit import StFile

    base = shipped_folder() / "smol-gptq-w4"
    source = StFile.read(base / "model.safetensors")
    planes = {
        n: t for n, t in source.tensors.items() if n.startswith("model.layers.0.self_attn.k_proj.")
    }
    planes.pop("model.layers.0.self_attn.k_proj.scales")
    many = {
        name.replace("layers.0", f"layers.{layer}"): item
        for layer in range(200)
        for name, item in planes.items()
    }
    folder = tmp_path / "many"
    folder.mkdir()
    StFile(tensors=many).write(folder / "model.safetensors")
    (folder / "quantize_config.json").write_bytes((base / "quantize_config.json").read_bytes())
    inspection = scan(folder)
    rows = [f for f in inspection.findings if f.code == "QP002"]
    assert len(rows) == 1
    assert rows[0].count == 200
    assert len(inspection.findings) < 6
