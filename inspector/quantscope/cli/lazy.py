"""A command group that imports a subcommand only when it runs or shows its own help."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from quantscope.errors import QuantscopeError
from quantscope.text import inert


class Entry(NamedTuple):
    """Where a subcommand lives and what the list of commands says about it."""

    module: str
    """Module whose attribute `command` is the click command."""
    summary: str


class LazyGroup(click.Group):
    """Commands by name from a table; a first word that is none of them is a path to open.

    Args:
        entries: command name -> where it lives.
        path_command: name of the hidden command that takes `quantscope PATH`.
    """

    def __init__(
        self, *args: Any, entries: Mapping[str, Entry], path_command: str, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._entries = dict(entries)
        self._path_command = path_command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table, without the hidden one."""
        return [name for name in self._entries if name != self._path_command]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; a stand-in that says why where its module is not installed."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        try:
            module = importlib.import_module(entry.module)
        except ModuleNotFoundError as problem:
            if problem.name is None or not entry.module.startswith(problem.name):
                raise
            return _unavailable(cmd_name, entry.summary)
        command: click.Command = module.command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options before a path are taken as if they stood behind it; before a command nobody knows whose they are."""
        own = {name for param in self.params for name in param.opts} | set(ctx.help_option_names)
        first = next((n for n, word in enumerate(args) if not word.startswith("-")), len(args))
        leading = [word for word in args[:first] if word.split("=")[0] not in own]
        if not leading or "--" in leading:
            return super().parse_args(ctx, args)
        takers = set.intersection(*({*self.commands_with(ctx, word)} for word in leading))
        if (first < len(args) and args[first] in takers | {self._path_command}) or (
            first < len(args) and args[first] not in self._entries and self._path_command in takers
        ):
            moved = [args[first], *leading, *args[first + 1 :]]
        else:
            raise click.UsageError(self.misplaced(ctx, leading[0]), ctx)
        return super().parse_args(ctx, moved)

    def commands_with(self, ctx: click.Context, option: str) -> list[str]:
        """Commands that take an option, the hidden one for paths among them."""
        wanted = option.split("=", maxsplit=1)[0]
        found = []
        for name in self._entries:
            command = self.get_command(ctx, name)
            if command is not None and any(wanted in param.opts for param in command.params):
                found.append(name)
        return found

    def misplaced(self, ctx: click.Context, option: str) -> str:
        """What to say of an option that stands where nobody takes it."""
        wanted = option.split("=", maxsplit=1)[0]
        takers = [name for name in self.commands_with(ctx, wanted) if name != self._path_command]
        if not takers:
            return f"no command takes the option {inert(wanted)}; `quantscope COMMAND --help` lists options"
        some = ", ".join(takers[:6]) + (", ..." if len(takers) > 6 else "")
        return (
            f"{inert(wanted)} is an option of {some}: put it behind the command, as in "
            f"`quantscope {takers[0]} PATH {inert(wanted)}`"
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A known command, or the path command with every word as its argument."""
        word = args[0]
        if word in self._entries and word != self._path_command:
            return super().resolve_command(ctx, args)
        if word.startswith("-") or not _looks_like_path(word):
            close = difflib.get_close_matches(word, self.list_commands(ctx), n=1)
            hint = f"did you mean {close[0]}?" if close else "`quantscope --help` lists commands"
            raise click.UsageError(f"no command and no file is called {inert(word)}; {hint}", ctx)
        return self._path_command, self.get_command(ctx, self._path_command), args

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the table, so that help imports none of them."""
        rows = [(name, self._entries[name].summary) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _looks_like_path(word: str) -> bool:
    separators = {os.sep, os.altsep or os.sep, "."}
    return any(mark in word for mark in separators) or os.path.lexists(word)


def _unavailable(name: str, summary: str) -> click.Command:
    """A command that takes anything and says that this installation lacks it."""

    def run(**_: object) -> None:
        raise QuantscopeError(
            f"the command {name} is not available in this installation",
            hint="`quantscope --version --verbose` shows what is installed",
            source=name,
        )

    return click.Command(
        name,
        callback=run,
        help=summary,
        params=[click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
