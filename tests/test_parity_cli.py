"""The command: two answers on stdout, one JSON document on request, exit codes that scripts rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parity_builder
import pytest
from quantscope.cli.main import run as main
from quantscope.parity.store import ResultStore
from test_parity_child import checkpoint, plugin

__all__ = ["checkpoint", "plugin"]

LAYER = "model.layers.0.mlp.up_proj"
FEW = ("--columns", "16")


def command(*words: str) -> int:
    return main(["parity", *words])


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = command(*words, "--json", "-")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_a_result_that_holds_is_0_and_says_both_answers(
    plugin: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(checkpoint, "--tensor", LAYER, "--backend", "faulty:plain", *FEW) == 0
    text = capsys.readouterr().out
    assert "computed right ran: held" in text
    assert "that kernel ran proved" in text
    assert "2048 of 2048 codes, compared exactly" in text


@pytest.mark.parametrize(
    ("kernel", "code"),
    [("off_by_one", 1), ("zero", 1), ("blind", 4), ("exits", 4), ("raises", 4), ("falls", 0)],
)
def test_exit_codes(
    plugin: Path, checkpoint: str, capsys: pytest.CaptureFixture[str], kernel: str, code: int
) -> None:
    assert command(checkpoint, "--backend", f"faulty:{kernel}", *FEW) == code
    assert capsys.readouterr().out


def test_a_fallback_is_said_although_it_holds(
    plugin: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command(checkpoint, "--backend", "faulty:falls", *FEW)
    text = capsys.readouterr().out
    assert "computed right ran: held" in text
    assert "that kernel ran not shown: fallback" in text
    assert "1 of 2 traced calls" in text


def test_nothing_that_can_run_is_4_with_the_reason(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(checkpoint, "--backend", "reference:gguf-py") == 4
    assert "contract_unsupported" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("PATH",),
        ("PATH", "--backend", "nothing"),
        ("PATH", "--backend", "reference", "--emulate", "nothing"),
        ("PATH", "--backend", "reference", "--all", "--sample", "2"),
    ],
)
def test_usage_errors_are_64(checkpoint: str, words: tuple[str, ...]) -> None:
    assert command(*(checkpoint if word == "PATH" else word for word in words)) == 64


def test_an_unknown_tensor_is_4(checkpoint: str) -> None:
    assert command(checkpoint, "--tensor", "nope", "--backend", "reference") == 4


def test_an_emulated_fault_that_is_noticed_is_0(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(checkpoint, "--emulate", "zero_plus_one", *FEW) == 0
    text = capsys.readouterr().out
    assert "did not hold" in text
    assert "behaves like   zero point one too high" in text
    assert "that kernel ran no kernel ran" in text


def test_json_is_one_document_with_gate_and_coverage(
    plugin: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = document(capsys, checkpoint, "--backend", "faulty:plain", "--all", *FEW)
    assert code == 0
    entry = found["results"][0]
    assert entry["outcome"] == "held"
    assert entry["execution_proof"] == "proved"
    assert entry["fingerprint"]
    assert {control["state"] for control in entry["controls"]} >= {"held", "detected"}
    assert found["gate"]["kernel"]["status"] == "executed"
    assert found["coverage"]["layers_in_checkpoint"] == found["coverage"]["layers_run"] == 1


def test_a_wrong_result_in_json_names_the_fault(
    plugin: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = document(capsys, checkpoint, "--backend", "faulty:off_by_one", *FEW)
    assert code == 1
    assert found["results"][0]["symptoms"][0]["fault"] == "zero_plus_one"
    assert found["gate"]["kernel"]["outcome"] == "did_not_hold"


def test_text_of_a_library_reaches_the_screen_inert(
    plugin: Path, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command(checkpoint, "--backend", "faulty:raises", *FEW)
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\\x1b[31m" in text


def test_a_run_is_resumed_where_the_bytes_are_unchanged(
    plugin: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUANTSCOPE_STATE", str(tmp_path / "state"))
    path = str(parity_builder.gptq(tmp_path / "model"))
    words = (path, "--backend", "faulty:plain", "--all", *FEW)
    _, first = document(capsys, *words)
    _, second = document(capsys, *words, "--resume")
    assert (first["resumed"], second["resumed"]) == (0, 1)
    assert first["results"] == second["results"]
    parity_builder.gptq(tmp_path / "model", seed=99)
    _, third = document(capsys, *words, "--resume")
    assert third["resumed"] == 0
    assert third["results"][0]["fingerprint"] != first["results"][0]["fingerprint"]


def test_other_settings_never_resume(tmp_path: Path) -> None:
    from quantscope.parity.model import Settings

    first = ResultStore("a", "torch", Settings(), tmp_path)
    assert first.file == ResultStore("a", "torch", Settings(), tmp_path).file
    assert first.file != ResultStore("a", "torch", Settings(seed=1), tmp_path).file
    assert first.file != ResultStore("a", "ggml", Settings(), tmp_path).file


def test_a_damaged_store_is_no_error(tmp_path: Path) -> None:
    from quantscope.parity.model import Settings

    store = ResultStore("a", "torch", Settings(), tmp_path)
    store.file.write_bytes(b'{"half\n\xff\n{}\n')
    assert store.load() == {}


def test_a_report_with_parity_lists_the_runs_and_validates(
    plugin: Path, checkpoint: str, tmp_path: Path
) -> None:
    import jsonschema
    from quantscope.report.schema import json_schema

    out = tmp_path / "report.json"
    words = ["report", checkpoint, "-o", str(out), "--with", "parity", "--backend", "faulty:plain"]
    assert main(words) == 0
    report = json.loads(out.read_bytes())
    jsonschema.validate(report, json_schema())
    assert report["parity"][0]["execution_proof"] == "proved"
    assert report["gates"]["kernel"]["outcome"] == "held"
    assert report["overall"] == "incomplete"


def test_the_list_names_every_backend_and_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--list", "--no-probe") == 0
    text = capsys.readouterr().out
    for name in ("torch", "ggml", "bitsandbytes", "own", "vllm", "reference", "gptqmodel"):
        assert f"\n{name} " in text
    assert "not yet run on CUDA by the project" in text


def test_the_list_with_a_path_says_what_each_would_take(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(checkpoint, "--list", "--no-probe") == 0
    text = capsys.readouterr().out
    assert "tensors it takes" in text
    reference = next(
        line for line in text.splitlines() if line.startswith("reference ") and " of 1" in line
    )
    assert "1 of 1" in reference


@pytest.mark.parametrize("ending", ["md", "html"])
def test_a_readable_report_gives_both_answers(
    plugin: Path, checkpoint: str, tmp_path: Path, ending: str
) -> None:
    out = tmp_path / f"report.{ending}"
    words = ["report", checkpoint, "-o", str(out), "--with", "parity", "--backend", "faulty:falls"]
    assert main(words) == 0
    text = out.read_text()
    assert "computed right" in text
    assert "ran: held" in text
    assert "not shown" in text
    assert "inconclusive" in text, "the gate does not hold without proof"
