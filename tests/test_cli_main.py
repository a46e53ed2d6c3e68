"""The command line as a whole: what starts, what it costs, and every exit code that is not a result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from quantscope import __version__
from quantscope.cli import main
from quantscope.cli.lazy import Entry, LazyGroup
from report_checkpoints import config, write_gptq

HEAVY = ("numpy", "textual", "torch", "rich", "gguf", "safetensors", "quantscope.session.pipeline")


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["--version", "--verbose"]])
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    done = _python(
        "import sys\nfrom quantscope.cli.main import run\n"
        f"code = run({words!r})\n"
        f"loaded = [m for m in {HEAVY!r} if m in sys.modules]\n"
        "loaded += [m for m in sys.modules if m.startswith('quantscope.cli.') and m.rpartition('.')[2]"
        " not in ('main', 'lazy', 'diagnostics', 'output')]\n"
        "print('LOADED', code, loaded)"
    )
    assert done.stdout.splitlines()[-1] == "LOADED 0 []", done.stdout + done.stderr


def test_version_names_the_libraries_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"quantscope {__version__}\n"
    assert main.run(["--version", "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"quantscope {__version__}"
    assert any(line.startswith("numpy ") for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--verbose"],
        ["--vers"],
        ["--nope"],
        ["scna", "x"],
        ["scan"],
        ["scan", "--nope", "x"],
        ["scan", "--head", "x"],
        ["scan", "x", "--fail-on", "sometimes"],
        ["scan", "x", "--sample", "0"],
        ["scan", "x", "--sample", "many"],
        ["scan", "x", "--select", "12"],
        ["scan", "x", "--deep", "--headers-only"],
        ["scan", "x", "--baseline", "no-such-file.toml"],
        ["decode", "x"],
        ["decode", "x", "--tensor", "t", "--rows", "a:b"],
        ["decode", "x", "--tensor", "t", "--group", "1"],
        ["decode", "x", "--tensor", "t", "--group", "0,0", "--rows", "0:1"],
        ["decode", "x", "--tensor", "t", "--codes", "--as-producer"],
        ["decode", "x", "--tensor", "t", "--reading", "packing"],
        ["bytes", "x", "--tensor", "t"],
        ["bytes", "x", "--tensor", "t", "--at", "1;2"],
        ["open", "x", "--tab", "zero"],
        ["report", "x"],
        ["rule"],
        ["rule", "QZ999"],
        ["extract", "x", "--tensor", "t"],
        ["recheck", "no-such-report.json", "x"],
    ],
)
def test_wrong_words_give_64_and_nothing_on_stdout(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(words) == 64
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.strip()


def test_every_command_of_the_table_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    listed = main.cli.list_commands(
        main.cli.make_context("quantscope", ["--version"], resilient_parsing=True)
    )
    assert set(listed) == set(main.COMMANDS) - {"PATH"}
    for name in listed:
        if name in ("parity", "probe"):
            continue
        assert main.run([name, "--help"]) == 0, name
        assert "Usage: quantscope" in capsys.readouterr().out, name


def test_a_command_that_is_not_installed_says_so_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    group = LazyGroup(
        "quantscope",
        entries={"gone": Entry("quantscope.cli.no_such_module", "x"), "PATH": Entry("x", "x")},
        path_command="PATH",
    )
    with pytest.raises(Exception, match="gone is not available") as caught:
        group.main(["gone", "a", "--b"], standalone_mode=False)
    assert getattr(caught.value, "exit_code", None) == 4


def test_an_internal_error_gives_70_and_says_what_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("\x1b[31mboom")

    monkeypatch.setattr("quantscope.cli.running.inspect_opened", broken)
    assert main.run(["scan", str(tmp_path)]) == 70
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "internal error: RuntimeError: \\x1b[31mboom" in streams.err
    assert "--version --verbose" in streams.err
    assert f"quantscope scan {tmp_path}" in streams.err


def test_an_interrupt_gives_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quantscope.cli.running.opened", stopped)
    assert main.run(["scan", str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_path_without_a_command_is_scanned_where_stdout_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path)
    assert main.run([str(tmp_path)]) == 0
    bare = capsys.readouterr().out
    assert main.run(["scan", str(tmp_path)]) == 0
    scanned = capsys.readouterr().out
    assert bare.splitlines()[2:] == scanned.splitlines()[2:]


def test_a_missing_path_is_4_and_a_mistyped_command_64(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["scan", "no/such/file.gguf"]) == 4
    assert main.run(["no/such/file.gguf"]) == 4
    capsys.readouterr()
    assert main.run(["scam"]) == 64
    assert "did you mean scan?" in capsys.readouterr().err


def test_the_module_runs_and_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    write_gptq(tmp_path, tuple(f"model.layers.{i}.mlp.up_proj" for i in range(8)))
    child = subprocess.Popen(
        [sys.executable, "-m", "quantscope", "list", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(timeout=60) == 0


@pytest.mark.parametrize("words", [["open"], ["serve"], ["list"], ["scan"]])
def test_what_is_not_there_gives_4_before_anything_starts(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*words, "no/such/folder"]) == 4
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "no/such/folder" in streams.err


def test_a_url_is_refused_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["scan", "https://example.org/x.gguf"]) == 4
    assert "download" in capsys.readouterr().err


def test_typed_words_reach_stderr_without_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["scan", "./\x1b[31m\u202e\nx.gguf"]) == 4
    assert main.run(["show", "./x", "--tensor", "\x1b[31m"]) == 4
    assert main.run(["\x1b[31mx"]) == 64
    text = capsys.readouterr().err
    assert not any(mark in text for mark in ("\x1b", "\u202e"))


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_gptq(tmp_path / "f", ("model.layers.0.mlp.up_proj",), declared=config("gptq"))
    for words in (["scan", str(tmp_path / "f"), "--json"], ["report", str(tmp_path / "f"), "-o"]):
        assert main.run([*words, "absent/x.json"]) == 4
        assert "quantscope: absent/x.json: No such file or directory" in capsys.readouterr().err
