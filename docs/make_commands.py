"""Writes docs/commands.md from the commands themselves: `python docs/make_commands.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from quantscope.cli.main import COMMANDS, cli

TARGET = Path(__file__).with_name("commands.md")

HEAD = """\
# Commands

`PATH` is a file, a checkpoint folder, a `*.safetensors.index.json`, or one part of a split GGUF set. Everything is
read only. Data goes to stdout, messages and progress to stderr; `--json -` gives one JSON document and nothing else.
Option names cannot be abbreviated.

`quantscope PATH` opens the app on a path, or scans it where stdout is no terminal.

| exit code | of `scan` | of other commands |
| --- | --- | --- |
| 0 | nothing above a note in what was read | done |
| 1 | violation | the check failed |
| 2 | disagreement | - (`evidence`: usage or input error) |
| 3 | warnings only, or quantized tensors that no family recognises | - |
| 4 | nothing could be parsed | could not run, with the reason |
| 64 | wrong words on the command line | the same |
| 70 | internal error, with what to report | the same |
| 130 | interrupted; what was finished is kept, labelled partial | the same |

`--tensor` takes the logical name (`...q_proj.weight`, the name in reports), the module without `.weight`, or the name
of a stored plane. `--plane` takes a role (`codes`, `scale`, `zero`, ...) or the stored suffix (`qzeros`).
"""


def sections() -> Iterator[tuple[str, str]]:
    """Each command's name and its section."""
    context = click.Context(cli, info_name="quantscope")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is None or command.callback is None:
            continue
        if command.callback.__module__ == "quantscope.cli.lazy":
            continue
        own = click.Context(command, info_name=name, parent=context, max_content_width=100)
        own.terminal_width = 100
        text = command.get_help(own)
        yield name, f"## {name}\n\n{COMMANDS[name].summary}\n\n```\n{text}\n```\n"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(text for _, text in sections())])


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
