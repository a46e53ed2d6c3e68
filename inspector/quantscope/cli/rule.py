"""`quantscope rule CODE`: one page."""

from __future__ import annotations

import click

from quantscope.cli import output
from quantscope.cli.diagnostics import ExitCode

WIDTH = 80


@click.command("rule", short_help="One rule's page.")
@click.argument("code")
def command(code: str) -> int:
    """Show the page of the rule CODE (or of its kebab name)."""
    from quantscope.rules.pages import render

    output.write_text(render(code, WIDTH))
    return ExitCode.OK
