"""`quantscope demo`: the app on a bundled sample."""

from __future__ import annotations

import sys

import click

from quantscope.cli.running import RunOptions


@click.command("demo", short_help="The app on a bundled sample.")
@click.argument("sample", required=False)
@click.option("--ascii", "ascii_only", is_flag=True, help="ASCII glyphs only.")
def command(sample: str | None, ascii_only: bool) -> int:
    """Open the app on a bundled sample, or scan the sample where stdout is no terminal.

    SAMPLE is a name that `quantscope samples --list` gives; by default a checkpoint whose zeros mean something else than
    it declares.
    """
    from quantscope.samples.library import DEMO, sample_path

    path = str(sample_path(sample or DEMO))
    if sys.stdout.isatty() and sys.stdin.isatty():
        from quantscope.cli.open_app import open_app

        return open_app(path, ascii_only=ascii_only, restore=False)
    from quantscope.cli.scan import scan

    return scan((path,), RunOptions(), fail_on="never")
