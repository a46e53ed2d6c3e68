"""What a person reads: no raw words of the document, right plurals, nothing wider than 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.cli.scan_text import scan_lines
from quantscope.compare.text import render
from quantscope.report.builder import ReportOptions, build
from quantscope.report.render import rendered
from quantscope.report.selection import Selection
from quantscope.rules.catalogue import judge
from quantscope.session.pipeline import inspect
from test_compare import compared

RAW = re.compile(r"(?<![\w=])(minus_one|as_is)(?!\w)")
"""A convention as JSON spells it; `--reading zero_convention=as_is` is typed so."""
ODD_COUNT = re.compile(
    r"(?<![\w.,/@-])1 (?:quantized |unquantized |other |size )*"
    r"(tensors|findings|files|groups|modules|layers|weights|statements|checks|kinds|rules|equations)\b"
)
OF_ONE = re.compile(r"\bof 1 (tensors|modules|layers|files|weights)\b")
SAMPLES = Path(__file__).parents[1] / "sample_checkpoints"


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Everything that a person can be shown of a report on a checkpoint."""
    with Checkpoint.open(str(folder)) as checkpoint:
        inspection = inspect(checkpoint, judge=judge)
        draft = build([inspection], ReportOptions(digests=False))
        yield "scan", "\n".join(scan_lines(draft.report(), full=True, width=200))
        for form in ("markdown", "html"):
            yield form, b"".join(rendered(draft, form)).decode()
        for finding in inspection.findings:
            selection = Selection(findings=(finding.id,))
            ticket = build(
                [inspection], ReportOptions(digests=False, selection=selection), judge=judge
            )
            yield f"ticket {finding.id}", b"".join(rendered(ticket, "markdown")).decode()


def test_every_text_of_every_sample_speaks_in_words(every_sample: list[Path]) -> None:
    for folder in every_sample:
        for what, text in texts(folder):
            where = f"{folder.name} {what}"
            plain = text.replace("\\_", "_")
            assert not RAW.search(plain), (where, RAW.search(plain))
            assert not ODD_COUNT.search(plain), (where, ODD_COUNT.search(plain))
            assert not OF_ONE.search(plain), (where, OF_ONE.search(plain))
            assert not re.search(r"\b0 other", plain), where


@pytest.mark.parametrize("words", [["show", "--tab", "zero"], ["show"]])
def test_show_speaks_in_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("smol-w4-liar", "twin-awq", "smol-gptq-v2-w4"):
        with Checkpoint.open(str(SAMPLES / name)) as checkpoint:
            tensor = checkpoint.grouping.tensors[0].name
        assert main.run([words[0], str(SAMPLES / name), "--tensor", tensor, *words[1:]]) == 0
        text = capsys.readouterr().out
        assert "zero = stored" in text
        assert not RAW.search(text), RAW.search(text)


def test_a_comparison_speaks_in_words_and_fits_80_columns() -> None:
    for a, b in (("twin-gptq", "twin-awq"), ("smol-gptq-w4", "smol-w4-liar")):
        text = render(compared(SAMPLES / a, SAMPLES / b))
        assert "zero_convention A zero = stored + 1              B zero = stored   (" in text
        assert not RAW.search(text), RAW.search(text)
        body = text.splitlines()[2:]
        assert max(len(line) for line in body) <= 80


def test_what_a_ticket_leaves_out_is_counted_in_words(tmp_path: Path) -> None:
    target = tmp_path / "t.md"

    def left_out(*words: str) -> str:
        assert main.run(["report", str(SAMPLES / "smol-w4-liar"), "-o", str(target), *words]) == 0
        (line,) = [line for line in target.read_text().splitlines() if "left out of this" in line]
        return line

    everything = left_out("--finding", "QZ002")
    assert "everything else in the checkpoint" in everything
    tensor = "model.layers.0.self_attn.k_proj"
    assert "3 other quantized tensors, and all else" in left_out("--tensor", tensor)


def unbroken(text: str) -> list[str]:
    """Lines over 80 columns that could have been broken."""
    lines = [line for line in text.splitlines() if len(line) > 80]
    return [line for line in lines if len(line.split()) > 1]


@pytest.mark.parametrize("tab", ["contract", "zero"])
@pytest.mark.parametrize(
    "name", ["smol-w4-liar", "smol-ct-nvfp4", "smol-bnb-nf4", "smol-gguf-q4_k_m"]
)
def test_show_fits_80_columns_and_breaks_no_name(
    name: str, tab: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Checkpoint.open(str(SAMPLES / name)) as checkpoint:
        tensor = checkpoint.grouping.tensors[0]
    assert main.run(["show", str(SAMPLES / name), "--tensor", tensor.name, "--tab", tab]) == 0
    text = capsys.readouterr().out
    assert not unbroken(text)
    assert not re.search(r"\w_(as_is|minus_one)|in None|  \?;", text)
    assert tensor.name in text


def test_the_list_of_kernels_fits_80_columns_and_says_each_reason_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["parity", "--list", "--no-probe"]) == 0
    text = capsys.readouterr().out
    assert not unbroken(text)
    assert text.count("not yet run on CUDA by the project") == 1
    assert re.search(r"^own +cuda_cpp@cuda +no \(\d(, \d)*\)|installed \(\d", text, re.MULTILINE)


def test_tables_fit_a_terminal_and_are_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(SAMPLES / "smol-ct-nvfp4")
    assert main.run(["list", folder]) == 0
    piped = capsys.readouterr().out
    assert "compressed_tensors:nvfp4-pack-quantized" in piped
    assert "  model.layers.0.self_attn.k_proj.weight_packed" in piped
    monkeypatch.setattr("quantscope.cli.tables.terminal_columns", lambda: 80)
    for words in (["list", folder], ["plugins"], ["rules"]):
        main.run(words)
        assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80, words
    main.run(["list", folder])
    shown = capsys.readouterr().out
    assert "\nmodel.layers.0.self_attn.k_proj.weight " in shown
    assert "\n  weight_packed " in shown


def test_the_line_of_a_contradiction_says_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["scan", str(SAMPLES / "smol-w4-liar")])
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "CONTRADICTS" in x]
    assert "config: zero = stored + 1; codes: stored " in line


def test_a_window_of_weights_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["decode", str(SAMPLES / "smol-gptq-v2-w4"), "--tensor"]
    assert main.run([*words, "model.layers.0.self_attn.k_proj"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    heads = [line.split()[2:] for line in lines if line.startswith("out")]
    assert [int(col) for head in heads for col in head] == list(range(16))


def test_a_kernel_check_names_the_convention_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["parity", str(SAMPLES / "smol-gptq-v2-w4"), "--backend", "reference", "--tensor"]
    assert main.run([*words, "model.layers.0.self_attn.k_proj"]) == 0
    text = capsys.readouterr().out
    assert "zero = stored" in text
    assert not RAW.search(text)
    assert not unbroken(text)


def test_a_recheck_names_each_tensor_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "r.json"
    main.run(["report", str(SAMPLES / "smol-gptq-w4"), "-o", str(report)])
    capsys.readouterr()
    assert main.run(["recheck", str(report), str(SAMPLES / "smol-w4-liar")]) == 1
    text = capsys.readouterr().out
    assert not unbroken(text)
    assert "(in model.layers" not in text
