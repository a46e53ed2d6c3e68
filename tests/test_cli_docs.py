"""The documentation names what there is, and its examples run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from quantscope.cli import main
from report_checkpoints import write_liar

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    text = (DOCS / name).read_text(encoding="utf-8")
    return [body for kind, body in BLOCK.findall(text) if kind == language]


def test_every_command_and_option_is_documented() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    context = click.Context(main.cli, info_name="quantscope")
    for name in main.cli.list_commands(context):
        command = main.cli.get_command(context, name)
        assert command is not None
        assert command.callback is not None
        if command.callback.__module__ == "quantscope.cli.lazy":
            continue
        section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert section is not None, name
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in parameter.opts:
                    assert option in section[1], f"{name} {option}: run docs/make_commands.py"


@pytest.mark.parametrize("number", range(len(blocks("api.md", "python"))))
def test_the_examples_of_the_api_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_liar(tmp_path / "checkpoint")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("api.md", "python")[number], f"api.md, example {number}", "exec"), {})


def test_the_api_names_what_it_documents() -> None:
    import quantscope
    from quantscope import api

    text = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in ("open_checkpoint", "inspect", "Report"):
        assert getattr(quantscope, name) is getattr(api, name)
        assert f"quantscope.{name}" in text
    for name in vars(api.Report):
        if not name.startswith("_"):
            assert name in text, name
    with pytest.raises(AttributeError):
        quantscope.nothing


def test_the_ci_snippets_are_yaml_and_toml_and_their_commands_parse(tmp_path: Path) -> None:
    for body in blocks("ci.md", "yaml"):
        assert yaml.safe_load(body)
    for body in blocks("ci.md", "toml"):
        assert set(tomllib.loads(body)["suppress"][0]) == {"id", "reason", "expires"}
    write_liar(tmp_path / "checkpoint")
    words = ["scan", str(tmp_path / "checkpoint"), "--quiet"]
    assert main.run([*words, "--fail-on", "disagreement"]) == 2
    assert main.run([*words, "--fail-on", "violation"]) == 0


def test_importing_the_package_imports_no_engine() -> None:
    import subprocess
    import sys

    code = "import sys, quantscope; print([m for m in sys.modules if m.startswith(('numpy', 'quantscope.'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
