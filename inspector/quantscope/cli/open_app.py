"""`quantscope open PATH`: the app at a tensor, a tab or a byte."""

from __future__ import annotations

import importlib
import os
import sys

import click

from quantscope.cli import params
from quantscope.cli.diagnostics import ExitCode
from quantscope.errors import MissingExtraError, QuantscopeError, UnreadableError

_DRIVER = "TEXTUAL_DRIVER"
"""Set by a server that shows the app in a browser: then stdout is its pipe."""

TABS = ("contract", "zero", "bytes", "run")


@click.command("open", short_help="The app, at a tensor, a tab or a byte.")
@params.path_argument
@click.option("--tensor", metavar="NAME", help="Logical name, module, or a stored plane's name.")
@click.option("--tab", type=click.Choice(TABS), help="Tab of the tensor.")
@click.option("--at", type=params.PAIR, metavar="ROW,COL", help="Element of the tensor.")
@click.option("--ascii", "ascii_only", is_flag=True, help="ASCII glyphs only.")
@click.option("--no-restore", is_flag=True, help="Do not offer the last place.")
def command(
    path: str,
    tensor: str | None,
    tab: str | None,
    at: tuple[int, int] | None,
    ascii_only: bool,
    no_restore: bool,
) -> int:
    """Open PATH in the app; the app's `y` copies such a command."""
    if tensor is None and (tab is not None or at is not None):
        raise click.UsageError("--tab and --at need --tensor")
    return open_app(
        path, tensor=tensor, tab=tab, at=at, ascii_only=ascii_only, restore=not no_restore
    )


def open_app(
    path: str | None,
    *,
    tensor: str | None = None,
    tab: str | None = None,
    at: tuple[int, int] | None = None,
    ascii_only: bool = False,
    restore: bool = True,
) -> int:
    """Runs the app until it is left; its exit code. Without a path it offers what was open before, and samples.

    Raises:
        UnreadableError: there is nothing at the path.
        QuantscopeError: stdout is no terminal.
        MissingExtraError: the app is not installed.
    """
    if path is not None and not os.path.lexists(path):
        raise UnreadableError(f"{path} does not exist", hint="check the spelling", source=path)
    if not (sys.stdout.isatty() or os.environ.get(_DRIVER)):
        words = "show PATH --tensor NAME" if tensor is not None else "scan PATH"
        raise QuantscopeError(
            "the app needs a terminal, and stdout is none", hint=f"`quantscope {words}` prints text"
        )
    try:
        launch = importlib.import_module("quantscope_views.launch")
    except ModuleNotFoundError as problem:
        if not (problem.name or "").startswith("quantscope_views"):
            raise
        raise MissingExtraError(
            "the app is not available in this installation",
            hint="`quantscope scan PATH` needs no app",
            source=path or "",
        ) from None
    result = launch.run(path, tensor=tensor, tab=tab, at=at, ascii_only=ascii_only, restore=restore)
    return result if isinstance(result, int) else ExitCode.OK
