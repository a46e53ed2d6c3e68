"""`quantscope scan`: exit codes, one JSON document, a text that fits a screen and never says more than it read."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.cli import main
from quantscope.cli.scan_text import scan_lines
from quantscope.report.schema import FindingEntry, Report, SubjectEntry, json_schema
from quantscope.rules.suppress import suppression_text
from quantscope.samples import write_samples
from report_checkpoints import HOSTILE, config, write_gptq, write_liar

ACTIVE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff]")
LAYERS = tuple(
    f"model.layers.{i}.{name}"
    for i in range(30)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj")
)


def scan_json(path: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main.run(["scan", str(path), "--json", "-", *words])
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(json_schema()).validate(document)
    return code, document


def test_a_clean_model_of_30_layers_fits_one_screen_and_claims_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path, LAYERS)
    assert main.run(["scan", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 24
    assert "nothing found in what was read" in text
    assert "not run" in text
    assert not re.search(r"\b(clean|passed|verdict|ok)\b", text, re.IGNORECASE)
    code, document = scan_json(tmp_path, capsys=capsys)
    assert code == 0
    assert document["overall"] == "incomplete"
    assert len(json.dumps(document)) < 80_000
    assert sum(entry["count"] for entry in document["tensors"]) == 120


def test_what_held_is_said_of_the_scales_that_were_read_and_of_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path, LAYERS[:2])
    file = tmp_path / "model.safetensors"
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    planes = {
        name: (entry["shape"], entry["data_offsets"])
        for name, entry in json.loads(raw[8 : 8 + size]).items()
        if name.endswith(".scales")
    }
    counts = [int(np.prod(shape)) for shape, _ in planes.values()]

    def words() -> str:
        main.run(["scan", str(tmp_path)])
        return " ".join(capsys.readouterr().out.split())

    assert f"no NaN or Inf in the {sum(counts)} scale values read" in words()
    last = max(planes, key=lambda name: planes[name][1][1])
    file.write_bytes(raw[: 8 + size + planes[last][1][0]])
    cut = words()
    left = sum(counts) - int(np.prod(planes[last][0]))
    assert f"no NaN or Inf in the {left} scale values read" in cut
    assert "no NaN or Inf in scales" not in cut
    main.run(["scan", str(tmp_path), "--headers-only"])
    assert "NaN or Inf" not in capsys.readouterr().out


def test_a_contradiction_gives_2_and_fail_on_lowers_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path)
    assert main.run(["scan", str(tmp_path)]) == 2
    text = capsys.readouterr().out
    assert "CONTRADICTS" in text
    assert "zero = stored + 1" in text
    for word, code in (("violation", 0), ("disagreement", 2), ("warning", 2), ("never", 0)):
        assert main.run(["scan", str(tmp_path), "--quiet", "--fail-on", word]) == code, word
    assert capsys.readouterr().out == ""


def test_json_to_stdout_is_one_document_even_with_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path)
    code, document = scan_json(tmp_path, capsys=capsys)
    assert code == 2
    severities = [finding["severity"] for finding in document["findings"]]
    assert "disagreement" in severities
    assert document["summary"]["findings"]["disagreement"] == severities.count("disagreement")


def test_a_broken_size_gives_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planes = write_gptq(tmp_path)
    module = "model.layers.0.self_attn.q_proj"
    tensors = planes[module].tensors(module, minus_one=False)
    tensors[f"{module}.scales"] = tensors[f"{module}.scales"][:, :-8].copy()
    write_checkpoint(tmp_path, tensors, config())
    assert main.run(["scan", str(tmp_path)]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_unrecognised_quantized_tensors_give_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = {"model.layers.0.odd.codes7": np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)}
    write_gptq(tmp_path, extra=strange)
    code, document = scan_json(tmp_path, capsys=capsys)
    assert code == 3
    assert document["scope"]["unrecognised"] == 1
    assert main.run(["scan", str(tmp_path), "--quiet", "--fail-on", "disagreement"]) == 0


def test_nothing_to_parse_gives_4(tmp_path: Path) -> None:
    assert main.run(["scan", str(tmp_path)]) == 4
    assert main.run(["scan", str(tmp_path / "missing")]) == 4
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert main.run(["scan", str(tmp_path), "--quiet"]) == 4


def test_one_unreadable_file_beside_readable_ones_gives_1(tmp_path: Path) -> None:
    write_gptq(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(b"\xff" * 64)
    assert main.run(["scan", str(tmp_path), "--quiet"]) == 1


def test_several_paths_stand_in_one_document_and_one_missing_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "a")
    write_liar(tmp_path / "b")
    assert main.run(["scan", str(tmp_path / "a"), str(tmp_path / "b"), "--json", "-"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [entry["input"] for entry in document["tensors"]] == [0, 1]
    assert {
        finding["input"]
        for finding in document["findings"]
        if finding["severity"] == "disagreement"
    } == {1}
    words = ["scan", str(tmp_path / "a"), str(tmp_path / "none"), "--json", "-"]
    assert main.run(words) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json_schema())
    assert [entry["kind"] for entry in document["inputs"]] == ["folder", "unreadable"]


def test_selected_and_ignored_rules_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path)
    code, document = scan_json(tmp_path, "--ignore", "QZ", capsys=capsys)
    assert code == 0
    skipped = {entry["code"] for entry in document["scope"]["rules_skipped"]}
    assert {"QZ001", "QZ002"} <= skipped
    code, document = scan_json(tmp_path, "--select", "QP,QC", capsys=capsys)
    assert code == 0
    assert {entry[:2] for entry in document["scope"]["rules_run"]} == {"QP", "QC"}


def test_a_baseline_accepts_findings_until_it_expires(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c")
    _, document = scan_json(tmp_path / "c", capsys=capsys)
    ids = [f["id"] for f in document["findings"] if f["severity"] != "note"]
    baseline = tmp_path / "quantscope.toml"
    later = datetime.date(2999, 1, 1)
    baseline.write_text("\n".join(suppression_text(i, "known, fixed in r2", later) for i in ids))
    words = ["--baseline", str(baseline)]
    code, document = scan_json(tmp_path / "c", *words, capsys=capsys)
    assert code == 0
    assert sorted(entry["id"] for entry in document["scope"]["suppressed"]) == sorted(ids)
    earlier = datetime.date(2001, 1, 1)
    baseline.write_text("\n".join(suppression_text(i, "known", earlier) for i in ids))
    assert main.run(["scan", str(tmp_path / "c"), "--quiet", *words]) == 2
    assert "expired on 2001-01-01" in capsys.readouterr().err


def test_a_baseline_entry_that_accepts_nothing_is_named_with_the_id_that_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c")
    _, document = scan_json(tmp_path / "c", capsys=capsys)
    whole = next(f["id"] for f in document["findings"] if f["severity"] != "note")
    baseline = tmp_path / "quantscope.toml"
    short = whole.partition("|")[0] + "|zero_convention"
    baseline.write_text(suppression_text(short, "known", datetime.date(2999, 1, 1)))
    words = ["scan", str(tmp_path / "c"), "--quiet", "--baseline", str(baseline)]
    assert main.run(words) == 2
    said = capsys.readouterr().err
    assert f"baseline: {short} accepts nothing here" in said
    assert whole in said
    baseline.write_text(suppression_text(whole, "known", datetime.date(2999, 1, 1)))
    assert main.run(words) == 0
    assert "accepts nothing" not in capsys.readouterr().err


def test_a_baseline_that_does_not_exist_is_said_to_be_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_liar(tmp_path / "c")
    assert main.run(["scan", str(tmp_path / "c"), "--baseline", str(tmp_path / "no.toml")]) == 64
    said = capsys.readouterr().err
    assert "no.toml is no file" in said
    assert "Errno" not in said


def test_a_baseline_may_be_a_report(tmp_path: Path) -> None:
    write_liar(tmp_path / "c")
    report = tmp_path / "report.json"
    assert main.run(["scan", str(tmp_path / "c"), "--quiet", "--json", str(report)]) == 2
    words = ["scan", str(tmp_path / "c"), "--quiet", "--baseline", str(report)]
    assert main.run(words) == 0


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert_in_text_and_json(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"model.layers.0.{name}"
    write_liar(tmp_path, (module,))
    main.run(["scan", str(tmp_path), "--full"])
    text = capsys.readouterr().out
    assert not ACTIVE.search(text)
    assert max(map(len, text.splitlines())) <= 130
    main.run(["scan", str(tmp_path), "--json", "-"])
    raw = capsys.readouterr().out
    assert not ACTIVE.search(raw)
    assert json.loads(raw)["tensors"][0]["name"] == f"{module}.weight"


def test_headers_only_reads_no_plane_and_deep_reads_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path)
    _, headers = scan_json(tmp_path, "--headers-only", capsys=capsys)
    assert headers["scope"]["mode"] == "headers"
    assert all(count["bytes_read"] == 0 for count in headers["scope"]["planes"].values())
    assert headers["tensors"][0]["statistics"] is None
    _, deep = scan_json(tmp_path, "--deep", capsys=capsys)
    planes = deep["scope"]["planes"].values()
    assert all(count["bytes_read"] == count["bytes_total"] for count in planes)
    assert deep["inputs"][0]["files"][0]["sha256"] is not None


def test_a_sample_of_groups_is_stated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gptq(tmp_path)
    _, document = scan_json(tmp_path, "--sample", "32", capsys=capsys)
    scope = document["scope"]
    assert scope["sample_groups"] == 32
    assert scope["groups_total"] == 256
    assert scope["groups_examined"] == 32
    assert any("224 of 256 groups" in item["what"] for item in document["not_checked"])


def test_full_unfolds_every_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gptq(tmp_path, LAYERS[:8])
    _, folded = scan_json(tmp_path, capsys=capsys)
    _, full = scan_json(tmp_path, "--full", capsys=capsys)
    assert len(folded["tensors"]) < len(full["tensors"]) == 8
    assert {entry["count"] for entry in full["tensors"]} == {1}


def _note(number: int) -> FindingEntry:
    subject = SubjectEntry(
        tensor=f"t{number}", stored=None, file=None, byte_range=None, field=None, config_key=None
    )
    return FindingEntry(
        id=f"QD900:t{number}",
        input=0,
        code="QD900",
        name="n",
        kind=None,
        severity="note",
        confidence="proved",
        subject=subject,
        message=f"note {number}",
        data={},
        impact="",
        who="nobody",
        who_detail=None,
        try_="",
        would_settle="",
        gate=None,
        members=[],
        members_form="literal",
        count=1,
        readers=[],
        example=None,
    )


def sample_text(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a scan of a bundled sample prints."""
    main.run(["scan", str(write_samples(folder / name, [name])[0])])
    return capsys.readouterr().out


def test_what_is_found_is_called_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = sample_text("gptq-scale-zero", tmp_path, capsys)
    assert "Nothing here says the model is good: 1 finding above note," in checked
    noted = sample_text("smol-gguf-q4_k_m", tmp_path, capsys)
    assert "nothing found" not in noted
    assert noted.count("nothing above note in what was read") == 2
    liar = sample_text("smol-w4-liar", tmp_path, capsys)
    assert "a contradiction in 4 of 4 tensors" in liar
    assert "not run: QR008 (needs a deep scan" in liar


def test_a_cut_note_says_where_it_stands_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--full shows why" in sample_text("smol-gguf-q4_k_m", tmp_path, capsys)
    folder = tmp_path / "smol-gguf-q4_k_m" / "smol-gguf-q4_k_m"
    main.run(["scan", str(folder), "--full"])
    assert "tied embedding" in " ".join(capsys.readouterr().out.split())


def test_findings_that_read_the_same_begin_with_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        line
        for line in sample_text("gptq-method-awq", tmp_path, capsys).splitlines()
        if line.startswith("!=")
    ]
    assert len(rows) == len(set(rows)) == 2
    both = sample_text("gptq-sources-contradict", tmp_path, capsys)
    assert "group: quantize_config.json group_size says 64" in both


def test_the_why_rows_have_no_empty_value_and_no_stand_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert " declared  multiplies   config.json#" in sample_text(
        "fp8-declared-scale", tmp_path, capsys
    )
    text = sample_text("gguf-scale-nan", tmp_path, capsys)
    assert "<tensor>" not in text
    assert "stored planes and dtypes\n" in text


def test_notes_fold_to_ten_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_gptq(tmp_path)
    _, document = scan_json(tmp_path, capsys=capsys)
    report = msgspec.convert(document, Report)
    many = msgspec.structs.replace(report, findings=[_note(n) for n in range(30)])
    lines = [line for line in scan_lines(many) if line.startswith("i  note")]
    assert len(lines) == 10
    assert "21 more: QD900 x21" in lines[-1]
    assert len([line for line in scan_lines(many, full=True) if line.startswith("i  note")]) == 30


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(
    width: int, every_sample: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for sample in every_sample[::6]:
        if main.run(["scan", str(sample), "--json", "-"]) == 4:
            capsys.readouterr()
            continue
        report = msgspec.convert(json.loads(capsys.readouterr().out), Report)
        for line in scan_lines(report, width=width, full=True):
            assert len(line) <= width, (sample.name, line)


def test_a_stopped_scan_keeps_what_it_has_labelled_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from contextlib import contextmanager

    write_gptq(tmp_path, LAYERS[:8])

    @contextmanager
    def stopped_after_a_while() -> Any:
        asked = iter(range(10_000))
        yield lambda: next(asked) > 40

    monkeypatch.setattr("quantscope.cli.running.stopped_by_interrupt", stopped_after_a_while)
    code, document = scan_json(tmp_path, capsys=capsys)
    assert code == 130
    assert "stopped after" in document["scope"]["partial"]
    assert 0 < document["scope"]["tensors_quantized"] < 8
