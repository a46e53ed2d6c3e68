"""Who must act is who can do what the finding says to try."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from quantscope.report.builder import build
from quantscope.rules.catalogue import catalogue
from quantscope.rules.container_rule import AGAIN, Advice, ContainerRule
from rules_support import scan

SLUGS = [
    pytest.param(slug, advice, id=slug)
    for rule in catalogue().values()
    if isinstance(rule, ContainerRule)
    for slug, advice in rule.slugs.items()
]


@pytest.mark.parametrize(("slug", "advice"), SLUGS)
def test_a_fault_of_a_file_is_nobodys_to_mend_in_a_config(slug: str, advice: Advice) -> None:
    again = AGAIN in advice.try_ or "git lfs" in advice.try_
    assert (advice.who == "download") == again
    if advice.who == "config":
        assert slug.startswith("config-")
    if advice.who == "nobody":
        assert slug in ("folder-over-limit", "snapshot-choice") or not advice.try_


def test_who_must_act_can_do_what_is_to_try(every_sample: list[Path]) -> None:
    for folder in every_sample:
        for finding in scan(folder).findings:
            said = f"{folder.name} {finding.code} {finding.who}: {finding.try_}"
            if re.match(r"(set|remove|declare|add .* to) .*(json|toml|config\S*)#", finding.try_):
                assert finding.who == "config", said
            if finding.try_.startswith("compare the file's SHA-256") and finding.code != "QS005":
                assert finding.who == "download", said
            if re.search(r"\b(re)?(quantize|calibrate|pack)\b.*\b(again|with)\b", finding.try_):
                assert finding.who in ("producer", "config"), said
            if finding.who == "download":
                assert re.search(r"download|SHA-256|git lfs|complete", finding.try_), said
            if finding.who == "nobody":
                assert not re.match(r"(set|write|add|store|remove)\b", finding.try_), said


def test_truncation_and_a_pointer_ask_for_another_download(tmp_path: Path) -> None:
    pointer = tmp_path / "pointer"
    pointer.mkdir()
    (pointer / "model.safetensors").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1048576\n"
    )
    (finding,) = [f for f in scan(pointer).findings if f.severity == "violation"]
    assert finding.who == "download"
    assert "git lfs pull" in finding.try_


def test_a_report_says_who_in_the_four_words_and_what_in_detail(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1048576\n"
    )
    report = build([scan(tmp_path)]).report()
    (entry,) = [f for f in report.findings if f.severity == "violation"]
    assert (entry.who, entry.who_detail) == ("reader", "download")
