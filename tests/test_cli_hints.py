"""A word that does not exist is answered with the word that was meant, and a wrong order with the right one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from quantscope import extras
from quantscope.cli import main
from quantscope.closest import closest
from report_checkpoints import write_gptq

MODULE = "model.layers.0.self_attn.q_proj"
NAMES = (MODULE, "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.up_proj")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    path = tmp_path / "c"
    write_gptq(path, NAMES)
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    assert main.run(list(words)) == code
    streams = capsys.readouterr()
    assert streams.out == ""
    return streams.err


@pytest.mark.parametrize(
    ("word", "best"),
    [
        ("q_proj", f"{MODULE}.weight"),
        ("self_attn.q_proj", f"{MODULE}.weight"),
        ("layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj.weight"),
        ("model.layers.0.self_atn.q_proj", f"{MODULE}.weight"),
        ("model.layers.0.self_attn.q_proj.wieght", f"{MODULE}.weight"),
        ("up_porj", "model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_the_closest_name_is_the_one_meant(word: str, best: str) -> None:
    assert closest(word, [f"{name}.weight" for name in NAMES])[0] == best
    assert closest("zzzzzz", NAMES) == []
    assert closest("", NAMES) == []


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["decode"],
        ["bytes", "--at", "0,0"],
        ["report", "-o", "-"],
        ["extract", "-o", "DIR"],
        ["parity", "--backend", "reference"],
    ],
)
def test_an_unknown_tensor_names_the_closest_everywhere(
    words: list[str], folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = [word.replace("DIR", str(tmp_path / "x")) for word in words[1:]]
    error = refused(capsys, 4, words[0], folder, "--tensor", "q_proj", *rest)
    assert f"closest: {MODULE}.weight, model.layers.1.self_attn.q_proj.weight" in error


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (4, ["bytes", "--tensor", MODULE, "--at", "0,0", "--plane", "qzero"], "closest: qzeros"),
        (64, ["report", "-o", "-", "--finding", "QZ01"], "found here: QW"),
        (64, ["scan", "--select", "QZ01"], "closest: QZ0"),
        (64, ["scan", "--ignore", "QX"], "`quantscope rules` lists them"),
        (64, ["parity", "--backend", "refrence"], "closest: reference"),
        (64, ["report", "-o", "-", "--with", "parity", "--backend", "torhc"], "closest: torch"),
        (
            64,
            ["parity", "--backend", "reference", "--emulate", "zero_plus"],
            "closest: zero_plus_one",
        ),
        (
            4,
            ["decode", "--tensor", MODULE, "--reading", "zero_conventon=as_is"],
            "closest: zero_convention",
        ),
        (
            4,
            ["decode", "--tensor", MODULE, "--reading", "zero_convention=minusone"],
            "closest: minus_one",
        ),
        (4, ["decode", "--tensor", MODULE, "--reading", "packing=planr"], "closest: planar"),
        (4, ["probe", "--reading", "zero_convntion=as_is"], "closest: zero_convention"),
        (4, ["probe", "--reading", "zero_convention=plus_one"], "minus_one"),
    ],
)
def test_unknown_words_name_the_closest(
    code: int, words: list[str], hint: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in refused(capsys, code, words[0], folder, *words[1:])


def test_an_unknown_rule_or_sample_names_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "closest: QZ001" in refused(capsys, 64, "rule", "QZ01")
    assert "no-zero-convention-fits" in refused(capsys, 64, "rule", "zero-convention-fit")
    assert "closest: smol-w4-liar" in refused(capsys, 64, "demo", "w4-liar")


def test_options_before_a_path_are_taken_and_before_a_command_explained(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["--ascii", "--no-restore", folder]) in (0, 1, 2, 3)
    assert "gptq" in capsys.readouterr().out
    error = refused(capsys, 64, "--deep", folder)
    assert "--deep is an option of scan" in error
    assert "quantscope scan PATH --deep" in error
    assert "--tensor is an option of" in refused(capsys, 64, folder, "--tensor", "q_proj")
    assert "--tensor is an option of" in refused(capsys, 64, "scan", folder, "--tensor", "q_proj")
    assert "a command comes first" in refused(capsys, 64, folder, "scan")
    assert "no command takes the option --wat" in refused(capsys, 64, "--wat", folder)
    assert "Did you mean '--headers-only'" in refused(capsys, 64, "scan", folder, "--header-only")


def test_an_ending_without_a_format_is_refused_before_anything_is_read(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "ticket.pdf"
    error = refused(capsys, 64, "report", folder, "-o", str(target))
    assert all(
        ending in error for ending in (".pdf", ".json", ".md", ".sarif", ".html", "--format")
    )
    assert not target.exists()
    assert main.run(["report", folder, "-o", str(target), "--format", "html"]) == 0
    assert target.read_text().startswith("<!doctype html>")
    assert main.run(["report", folder, "-o", str(tmp_path / "ticket")]) == 0
    assert (tmp_path / "ticket").read_text().startswith("{")


@pytest.mark.parametrize("ending", ["md", "html"])
def test_recheck_of_a_ticket_says_which_report_it_needs(
    ending: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ticket = tmp_path / f"ticket.{ending}"
    assert main.run(["report", folder, "-o", str(ticket)]) == 0
    capsys.readouterr()
    error = refused(capsys, 64, "recheck", str(ticket), folder)
    assert "JSON form" in error
    assert "quantscope report PATH -o report.json" in error
    assert "malformed" not in error


def test_the_app_is_not_drawn_into_a_pipe(folder: str) -> None:
    words = [sys.executable, "-m", "quantscope", "open", folder]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert "quantscope scan PATH" in done.stderr


def test_an_install_hint_names_what_is_missing_and_the_pip_of_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stated = importlib.metadata.requires("quantscope") or []
    probe = [line.partition(";")[0].strip() for line in stated if "extra == 'probe'" in line]
    assert extras.packages_of("probe") == probe
    monkeypatch.setattr(extras, "_installed", lambda requirement: requirement.startswith("torch"))
    hint = extras.install_hint("probe")
    assert "'transformers>=" in hint
    assert "torch" not in hint
    assert "quantscope[" not in hint
    assert hint.endswith("(the extra `probe`)")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pip").touch()
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.chdir(tmp_path)
    assert extras.install_hint("probe").startswith("bin/pip install '")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    assert extras.install_hint("probe").startswith("pip install '")


def test_the_readme_names_every_extra_and_what_it_brings() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert set(extras.EXTRAS) == set(project["project"]["optional-dependencies"])
    for name, brings in extras.EXTRAS.items():
        assert f"| `{name}` | {brings} |" in readme, name
