"""`quantscope extract PATH --tensor NAME -o DIR`: a minimal reproducer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quantscope.cli import diagnostics, output, params, running
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.running import RunOptions
from quantscope.report.words import bytes_words, count_words

if TYPE_CHECKING:
    from quantscope.model import Finding


@click.command("extract", short_help="A minimal reproducer of one tensor.")
@params.path_argument
@params.tensor_option
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=str),
    metavar="DIR",
    help="A new or empty folder.",
)
def command(path: str, tensor: str, out: str) -> int:
    """Write one tensor's planes and the config files into DIR, and say which findings it shows.

    Bytes are copied as they are. Exit code 1 where a finding of the tensor does not show in the copy.
    """
    from quantscope.report.reproducer import check_folder, reproduce

    check_folder(out)
    with running.opened(path) as checkpoint:
        wanted = checkpoint.find(tensor)
        inspection = running.inspect_opened(checkpoint, RunOptions())
        made = reproduce(
            checkpoint,
            inspection.findings,
            wanted,
            out,
            write=output.write_file,
            rescan=_findings_of,
        )
    output.write_text("\n".join(diagnostics.inert(f"{out}/{name}") for name in made.files))
    diagnostics.message(
        f"{count_words(len(made.files), 'file')}, {bytes_words(made.nbytes)}; tensors: "
        + ", ".join(made.tensors)
    )
    for shown in made.shown:
        diagnostics.message(f"same finding: {shown}")
    for missing, reason in made.not_shown:
        diagnostics.message(f"NOT in the copy: {missing}: {reason}")
    return ExitCode.CHECK_FAILED if made.not_shown else ExitCode.OK


def _findings_of(path: str) -> Sequence[Finding]:
    with running.opened(path) as checkpoint:
        return running.inspect_opened(checkpoint, RunOptions(quiet=True)).findings
