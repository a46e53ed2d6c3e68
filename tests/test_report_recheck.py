"""`recheck`: what holds, what does not, and what nobody ever looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantscope.cli import main
from report_checkpoints import config, write_gptq, write_liar

MODULES = tuple(f"model.layers.{i}.mlp.up_proj" for i in range(3))


def written(folder: Path, *words: str) -> Path:
    target = folder.parent / "report.json"
    assert main.run(["report", str(folder), "-o", str(target), *words]) == 0
    return target


def rechecked(
    report: Path, folder: Path, capsys: pytest.CaptureFixture[str], code: int
) -> dict[str, list[dict[str, Any]]]:
    capsys.readouterr()
    assert main.run(["recheck", str(report), str(folder), "--json", "-"]) == code
    document = json.loads(capsys.readouterr().out)
    found: dict[str, list[dict[str, Any]]] = {"holds": [], "does_not_hold": [], "not_examined": []}
    for statement in document["statements"]:
        found[statement["state"]].append(statement)
    return found


def flip(folder: Path, name: str, byte: int = 0) -> None:
    """One bit of one stored tensor, the file's times kept as they may be."""
    path = folder / "model.safetensors"
    blob = bytearray(path.read_bytes())
    size = int.from_bytes(blob[:8], "little")
    begin = json.loads(blob[8 : 8 + size])[name]["data_offsets"][0]
    blob[8 + size + begin + byte] ^= 1
    path.write_bytes(blob)


@pytest.mark.parametrize("mode", ["--headers-only", "--sample=64", "--deep"])
def test_everything_holds_for_the_same_bytes(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c", MODULES)
    report = written(tmp_path / "c", mode)
    found = rechecked(report, tmp_path / "c", capsys, 0)
    assert found["does_not_hold"] == []
    assert any(s["about"] == "tensors" for s in found["holds"])
    if mode != "--sample=64":
        assert (found["not_examined"] == []) == (mode == "--deep")


@pytest.mark.parametrize("suffix", ["qweight", "qzeros", "scales"])
def test_one_flipped_bit_of_a_plane_read_at_deep_is_caught(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "c", MODULES)
    report = written(tmp_path / "c", "--deep")
    flip(tmp_path / "c", f"{MODULES[1]}.{suffix}", 5)
    found = rechecked(report, tmp_path / "c", capsys, 1)
    assert any(s["about"] == "file" and "digest" not in s["what"] for s in found["does_not_hold"])


def test_examined_ranges_alone_catch_the_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "c", MODULES)
    report = written(tmp_path / "c", "--deep")
    document = json.loads(report.read_bytes())
    document["inputs"][0]["files"][0]["sha256"] = None
    report.write_text(json.dumps(document))
    flip(tmp_path / "c", f"{MODULES[1]}.qweight", 5)
    found = rechecked(report, tmp_path / "c", capsys, 1)
    assert any("bytes read" in s["what"] for s in found["does_not_hold"])


def test_a_plane_that_was_never_read_is_not_examined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "c", MODULES)
    report = written(tmp_path / "c", "--headers-only")
    flip(tmp_path / "c", f"{MODULES[1]}.qweight", 5)
    found = rechecked(report, tmp_path / "c", capsys, 0)
    about = [s["what"] for s in found["not_examined"] if s["about"] == "scope"]
    assert any(what.startswith("codes: 24576 of 24576 bytes") for what in about)


def test_a_changed_declaration_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c", MODULES)
    report = written(tmp_path / "c")
    (tmp_path / "c" / "config.json").write_text(json.dumps(config("gptq_v2")))
    found = rechecked(report, tmp_path / "c", capsys, 1)
    kinds = {statement["about"] for statement in found["does_not_hold"]}
    assert {"config", "tensors", "finding"} <= kinds
    assert any("contract.zero_convention" in s["detail"] for s in found["does_not_hold"])
    assert any(s["detail"] == "not found any more" for s in found["does_not_hold"])


def test_a_new_finding_and_a_missing_tensor_do_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "c", MODULES)
    report = written(tmp_path / "c")
    write_liar(tmp_path / "c", MODULES[:2])
    found = rechecked(report, tmp_path / "c", capsys, 1)
    details = " ".join(statement["detail"] for statement in found["does_not_hold"])
    assert "1 tensor not there" in details
    assert "found now; the report does not have it" in details


def test_a_report_on_one_tensor_says_nothing_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c", MODULES)
    report = written(tmp_path / "c", "--tensor", MODULES[0])
    flip(tmp_path / "c", f"{MODULES[2]}.qweight", 5)
    found = rechecked(report, tmp_path / "c", capsys, 0)
    assert found["does_not_hold"] == []
    flip(tmp_path / "c", f"{MODULES[0]}.qweight", 5)
    assert rechecked(report, tmp_path / "c", capsys, 1)["does_not_hold"]


def test_another_tool_version_names_the_rules_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "c", MODULES)
    report = written(tmp_path / "c")
    document = json.loads(report.read_bytes())
    document["tool"]["version"] = "0.0.1"
    document["scope"]["rules_run"].remove("QZ002")
    document["scope"]["rules_run"].append("QZ999")
    report.write_text(json.dumps(document))
    found = rechecked(report, tmp_path / "c", capsys, 0)
    rules = {s["what"] for s in found["not_examined"] if s["about"] == "rules"}
    assert rules == {"QZ999", "QZ002"}
    assert any("0.0.1" in s["what"] for s in found["not_examined"] if s["about"] == "tool")


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    write_gptq(tmp_path / "c", MODULES)
    odd = tmp_path / "odd.json"
    for text in (
        "",
        "{}",
        "[]",
        '{"schema_version": 2}',
        "\ud800".encode("utf-8", "replace").decode(),
    ):
        odd.write_text(text)
        assert main.run(["recheck", str(odd), str(tmp_path / "c")]) == 64


def test_a_redacted_report_can_be_rechecked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c", MODULES)
    report = written(tmp_path / "c", "--redact-paths", "--deep")
    assert rechecked(report, tmp_path / "c", capsys, 0)["does_not_hold"] == []
