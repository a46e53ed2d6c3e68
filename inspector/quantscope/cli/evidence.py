"""`quantscope evidence FILE` and `quantscope evidence --self-test`."""

from __future__ import annotations

import os
import stat

import click

from quantscope.cli import diagnostics, output
from quantscope.evidence.run import EXIT_INPUT, Evaluation, evaluate
from quantscope.evidence.self_test import run_self_test
from quantscope.evidence.strict_json import EvidenceInputError, dump_canonical, visible

MAX_INPUT_BYTES = 512 * 1024 * 1024
"""Larger files are refused unread; their numbers would need several times that in memory."""


class EvidenceUsageError(click.ClickException):
    """Wrong words on the command line; `evidence` says 2 where other commands say 64."""

    exit_code = EXIT_INPUT


class EvidenceCommand(click.Command):
    """A command whose usage errors keep the exit code of the evidence rules."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses as usual, with the exit code of this command where the words are wrong."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise EvidenceUsageError(
                f"{diagnostics.inert(error.format_message())} ({ctx.get_usage()})"
            ) from None


@click.command(
    "evidence",
    cls=EvidenceCommand,
    short_help="Compute what a strict evidence file asks for.",
)
@click.argument("file", required=False, type=click.Path(path_type=str))
@click.option("--self-test", is_flag=True, help="Run known answers and injected faults instead.")
@click.pass_context
def command(ctx: click.Context, file: str | None, self_test: bool) -> None:
    """Compute the tensor, logits and packing groups of FILE, a strict JSON evidence file.

    Exit codes: 0 the computation completed (this accepts nothing), 1 a number could not be
    stated, packing parity failed or the self-test failed, 2 usage or input error.
    """
    if self_test == (file is not None):
        raise EvidenceUsageError(
            f"give either FILE or --self-test, one of them ({ctx.get_usage()})"
        )
    try:
        evaluation = run_self_test() if file is None else evaluate(read_input(file))
    except EvidenceInputError as error:
        ctx.exit(diagnostics.error(error))
    ctx.exit(_write(evaluation))


def read_input(path: str) -> bytes:
    """The bytes of a regular file.

    Raises:
        EvidenceInputError: no regular file, not readable, or over `MAX_INPUT_BYTES`.
    """
    shown = visible(path, 200)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise EvidenceInputError("is no regular file", path=shown)
        with open(path, "rb") as stream:
            data = stream.read(MAX_INPUT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise EvidenceInputError(
            f"cannot be read: {reason or 'no such path'}", path=shown
        ) from None
    if len(data) > MAX_INPUT_BYTES:
        raise EvidenceInputError(f"holds more than {MAX_INPUT_BYTES} bytes", path=shown)
    return data


def _write(evaluation: Evaluation) -> int:
    output.write_bytes(dump_canonical(evaluation.document))
    for line in evaluation.diagnostics:
        diagnostics.message(f"quantscope: {line}")
    return evaluation.exit_code
