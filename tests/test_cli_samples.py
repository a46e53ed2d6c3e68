"""`samples`, `demo`, `rules`, `rule`, `plugins`: what is bundled and what is registered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quantscope.cli import main
from quantscope.rules.catalogue import catalogue
from quantscope.samples.library import list_samples


def test_samples_writes_every_sample_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "samples"
    assert main.run(["samples", str(target)]) == 0
    printed = capsys.readouterr().out.splitlines()
    names = {sample.name for sample in list_samples()}
    assert {Path(line).name for line in printed} == names
    assert set(json.loads((target / "MANIFEST.json").read_text())["samples"]) == names
    assert main.run(["samples", str(target)]) == 4
    assert main.run(["samples"]) == 64
    assert main.run(["samples", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in names)


def test_samples_touches_nothing_that_is_there(tmp_path: Path) -> None:
    mine = tmp_path / list_samples()[0].name
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    assert main.run(["samples", str(tmp_path)]) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [mine.name]
    assert (mine / "notes.txt").read_text() == "mine"


def test_demo_scans_a_faulty_sample_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["demo"]) == 0
    assert "CONTRADICTS" in capsys.readouterr().out
    assert main.run(["demo", "no-such-sample"]) == 64


def test_every_rule_has_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["rules"]) == 0
    listed = capsys.readouterr().out
    assert main.run(["rules", "--json", "-"]) == 0
    assert [r["code"] for r in json.loads(capsys.readouterr().out)["rules"]] == list(catalogue())
    for code, rule in catalogue().items():
        assert code in listed
        assert main.run(["rule", code]) == 0
        by_code = capsys.readouterr().out
        assert by_code.startswith(f"{code}  {rule.name}")
        assert main.run(["rule", rule.name]) == 0
        assert capsys.readouterr().out == by_code
        assert main.run(["rule", code.lower()]) == 0
        capsys.readouterr()


def test_plugins_names_what_failed_to_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.metadata

    assert main.run(["plugins"]) == 0
    assert "quantscope_plugins.families.gptq:Gptq" in capsys.readouterr().out
    points = importlib.metadata.entry_points

    def with_broken(**wanted: str) -> object:
        found = list(points(**wanted))
        if wanted.get("group") == "quantscope.families":
            broken = importlib.metadata.EntryPoint("broken", "no_such_module:X", wanted["group"])
            found.append(broken)
        return found

    monkeypatch.setattr(importlib.metadata, "entry_points", with_broken)
    assert main.run(["plugins", "--json", "-"]) == 1
    plugins = json.loads(capsys.readouterr().out)["plugins"]
    assert [p["name"] for p in plugins if p["error"]] == ["broken"]
