"""`quantscope serve PATH`: the app in a browser."""

from __future__ import annotations

import shlex
import sys

import click

from quantscope.cli import diagnostics, params
from quantscope.cli.diagnostics import ExitCode
from quantscope.errors import MissingExtraError, UnreadableError


@click.command("serve", short_help="The app in a browser.")
@params.path_argument
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="H", help="Address to listen on."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    metavar="P",
    help="Port.",
)
def command(path: str, host: str, port: int) -> int:
    """Serve the app on PATH to a browser, on this machine only unless --host says otherwise."""
    import os

    if not os.path.lexists(path):
        raise UnreadableError(f"{path} does not exist", hint="check the spelling", source=path)
    try:
        from quantscope.cli.serve_guard import LOOPBACK, GuardedServer
    except ModuleNotFoundError:
        from quantscope.extras import install_hint

        raise MissingExtraError(
            "serving needs the extra `serve`", hint=install_hint("serve")
        ) from None
    if host not in LOOPBACK:
        diagnostics.message(
            f"quantscope: everybody who reaches {host}:{port} can read this checkpoint; "
            "there is no password"
        )
    words = [sys.executable, "-P", "-m", "quantscope", "open", path, "--no-restore"]
    GuardedServer(shlex.join(words), host=host, port=port, title="quantscope").serve()
    return ExitCode.OK
