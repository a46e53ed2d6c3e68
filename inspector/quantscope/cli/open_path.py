"""`quantscope PATH`: the app where stdout is a terminal, a scan where it is not."""

from __future__ import annotations

import sys

import click

from quantscope.cli.running import RunOptions


@click.command("PATH", hidden=True)
@click.argument("path", type=click.Path(path_type=str), metavar="")
@click.option("--ascii", "ascii_only", is_flag=True, help="ASCII glyphs only.")
@click.option("--no-restore", is_flag=True, help="Do not offer the last place.")
def command(path: str, ascii_only: bool, no_restore: bool) -> int:
    """Open PATH in the app, or scan it where stdout is no terminal."""
    if sys.stdout.isatty() and sys.stdin.isatty():
        from quantscope.cli.open_app import open_app

        return open_app(path, ascii_only=ascii_only, restore=not no_restore)
    from quantscope.cli.scan import scan

    return scan((path,), RunOptions())
