"""`quantscope scan PATH...`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from quantscope.cli import diagnostics, output, params, running
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.running import RunOptions
from quantscope.errors import QuantscopeError

if TYPE_CHECKING:
    from quantscope.cli.running import Judge
    from quantscope.report.builder import Draft
    from quantscope.session.inspection import Inspection

FAIL_ON = ("violation", "disagreement", "warning", "never")
_CODES = {
    "violation": ExitCode.VIOLATION,
    "disagreement": ExitCode.DISAGREEMENT,
    "warning": ExitCode.WARNING,
}


@click.command("scan", short_help="Findings, by rule, worst first.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=str), metavar="PATH...")
@params.json_option
@params.scope_options
@params.rule_options
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    default="warning",
    show_default=True,
    help="Findings below this do not raise the exit code.",
)
@click.option(
    "--base",
    type=click.Path(path_type=str),
    metavar="PATH",
    help="Float checkpoint to compare with.",
)
@click.option("--full", is_flag=True, help="Every tensor and finding for itself.")
@click.option(
    "--quiet", is_flag=True, help="No text and no progress; the exit code and --json stay."
)
def command(
    paths: tuple[str, ...],
    json_file: str | None,
    deep: bool,
    sample: int | None,
    headers_only: bool,
    select: tuple[tuple[str, ...], ...],
    ignore: tuple[tuple[str, ...], ...],
    baseline: str | None,
    fail_on: str,
    base: str | None,
    full: bool,
    quiet: bool,
) -> int:
    """Say what is declared, what the bytes say, and where the two part, for every PATH.

    Exit codes: 0 nothing above note in what was read, 1 violation, 2 disagreement, 3 warnings,
    unrecognised quantized tensors or a family that failed on one, 4 nothing could be parsed.
    """
    options = RunOptions(
        deep=deep,
        sample=sample,
        headers_only=headers_only,
        select=running.flat(select),
        ignore=running.flat(ignore),
        baseline=baseline,
        quiet=quiet,
    )
    return scan(paths, options, json_file=json_file, fail_on=fail_on, base=base, full=full)


def scan(
    paths: Sequence[str],
    options: RunOptions,
    *,
    json_file: str | None = None,
    fail_on: str = "warning",
    base: str | None = None,
    full: bool = False,
) -> int:
    """Scans paths, writes text or JSON, and gives the exit code."""
    from quantscope.report.builder import ReportOptions, build

    options.scope  # noqa: B018  (refuses options that exclude each other before anything is read)
    judge = running.judge_of(options)
    with ExitStack() as stack:
        inspections, failed = _inspect_all(paths, options, judge, stack)
        if not inspections:
            return ExitCode.COULD_NOT_RUN
        running.name_unmatched(options, inspections)
        gates = {}
        if base is not None:
            from quantscope.cli.against_base import base_gates

            gates = base_gates(inspections, base, options)
        draft = build(
            inspections,
            ReportOptions(
                full=full,
                digests=json_file is not None,
                whole_files=options.deep and json_file is not None,
                command=running.command_line(),
                gates=gates,
                unreadable=tuple(failed),
            ),
        )
        code = exit_code(inspections, fail_on, unreadable=bool(failed))
        _write(draft, json_file, full, options.quiet)
    return code


def _inspect_all(
    paths: Sequence[str], options: RunOptions, judge: Judge, stack: ExitStack
) -> tuple[list[Inspection], list[tuple[str, str]]]:
    inspections: list[Inspection] = []
    failed: list[tuple[str, str]] = []
    for path in paths:
        try:
            checkpoint = stack.enter_context(running.opened(path))
            inspections.append(running.inspect_opened(checkpoint, options, judge))
        except QuantscopeError as problem:
            if problem.exit_code != ExitCode.COULD_NOT_RUN:
                raise
            diagnostics.error(problem)
            failed.append((path, problem.message))
        if inspections and inspections[-1].partial:
            break
    return inspections, failed


def _write(draft: Draft, json_file: str | None, full: bool, quiet: bool) -> None:
    if json_file == "-":
        output.write_chunks(draft.chunks())
        return
    if json_file is not None:
        output.write_file(json_file, draft.chunks())
    if not quiet:
        from quantscope.cli.scan_text import scan_lines

        output.write_text("\n".join(scan_lines(draft.report(), full=full)))


def exit_code(
    inspections: Sequence[Inspection], fail_on: str, *, unreadable: bool = False
) -> ExitCode:
    """The exit code of a scan.

    Args:
        inspections: judged inspections.
        fail_on: findings below this severity do not count.
        unreadable: some path beside readable ones could not be opened.
    """
    files = [file for inspection in inspections for file in inspection.checkpoint.opened.files]
    if not any(file.parsed for file in files):
        return ExitCode.COULD_NOT_RUN
    if any(inspection.partial for inspection in inspections):
        return ExitCode.INTERRUPTED
    found = {finding.severity for inspection in inspections for finding in inspection.findings}
    if unreadable or not all(file.parsed for file in files):
        found.add("violation")
    if any(
        inspection.checkpoint.grouping.unrecognised or inspection.failures
        for inspection in inspections
    ):
        found.add("warning")
    for severity in FAIL_ON[:-1]:
        if severity in found and _counts(severity, fail_on):
            return _CODES[severity]
    return ExitCode.OK


def _counts(severity: str, fail_on: str) -> bool:
    return fail_on != "never" and FAIL_ON.index(severity) <= FAIL_ON.index(fail_on)
