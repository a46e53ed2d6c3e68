"""`quantscope report PATH -o FILE`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, cast

import click

from quantscope.cli import diagnostics, output, params, running
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.running import RunOptions

FORMATS = ("json", "markdown", "sarif", "html")
_BY_ENDING = {
    ".json": "json",
    ".md": "markdown",
    ".sarif": "sarif",
    ".html": "html",
    ".htm": "html",
}


@click.command("report", short_help="A report as JSON, Markdown, SARIF or HTML.")
@params.path_argument
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=str, allow_dash=True),
    metavar="FILE",
    help="Where to write; - is stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="By the ending of FILE (.json .md .sarif .html); json without one.",
)
@click.option(
    "--tensor", "tensors", multiple=True, metavar="NAME", help="Only this tensor; again for more."
)
@click.option(
    "--finding", "findings", multiple=True, metavar="ID", help="Only this finding, by id or code."
)
@click.option("--with", "runs", metavar="parity,probe", help="Run these too and put them in.")
@click.option(
    "--backend",
    default="reference",
    show_default=True,
    metavar="B",
    help="Kernel of --with parity.",
)
@click.option(
    "--tokens",
    metavar="FILE",
    help="Token ids of --with probe (JSON list or .npy), or the word random.",
)
@click.option("--redact-paths", is_flag=True, help="Leave out folders of this machine.")
@click.option(
    "--external",
    "external",
    multiple=True,
    type=click.Path(path_type=str),
    metavar="FILE",
    help="Results of others: listed as claimed, not checked.",
)
@click.option(
    "--base",
    type=click.Path(path_type=str),
    metavar="PATH",
    help="Float checkpoint to compare with.",
)
@click.option("--full", is_flag=True, help="Every tensor for itself.")
@params.scope_options
@params.rule_options
def command(
    path: str,
    out: str,
    form: str | None,
    tensors: tuple[str, ...],
    findings: tuple[str, ...],
    runs: str | None,
    backend: str,
    tokens: str | None,
    redact_paths: bool,
    external: tuple[str, ...],
    base: str | None,
    full: bool,
    deep: bool,
    sample: int | None,
    headers_only: bool,
    select: tuple[tuple[str, ...], ...],
    ignore: tuple[tuple[str, ...], ...],
    baseline: str | None,
) -> int:
    """Write a report on PATH; it claims nothing beyond the tensors and findings that it is about."""
    from quantscope.report.builder import ReportOptions, build
    from quantscope.report.render import rendered
    from quantscope.report.selection import Selection

    options = RunOptions(
        deep=deep,
        sample=sample,
        headers_only=headers_only,
        select=running.flat(select),
        ignore=running.flat(ignore),
        baseline=baseline,
    )
    chosen = form or _format_of(out)
    wanted = _wanted(runs)
    if tokens is not None and "probe" not in wanted:
        raise click.UsageError("--tokens goes with --with probe")
    options.scope  # noqa: B018  (refuses options that exclude each other before anything is read)
    judge = running.judge_of(options)
    with running.opened(path) as checkpoint:
        inspection = running.inspect_opened(checkpoint, options, judge)
        gates: dict[Any, Any] = {}
        if base is not None:
            from quantscope.cli.against_base import base_gates

            gates |= base_gates([inspection], base, options)
        extra: dict[str, Any] = {}
        if wanted:
            from quantscope.cli.report_runs import run_for_report

            extra = run_for_report(inspection, wanted, tensors, backend, base, tokens)
            gates |= extra.pop("gates")
        claimed, claimed_gates = _external(external)
        draft = build(
            [inspection],
            ReportOptions(
                full=full,
                selection=Selection(tensors=tensors, findings=findings),
                redact_paths=redact_paths,
                command=running.command_line(),
                gates={**claimed_gates, **gates},
                external_evidence=claimed,
                **extra,
            ),
            judge=judge,
        )
        _write(out, rendered(draft, cast(Any, chosen)))
    if inspection.partial:
        diagnostics.message(f"quantscope: partial: {inspection.partial}")
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _format_of(out: str) -> str:
    """The format by the ending of a file; JSON for stdout and for a name without one.

    Raises:
        UsageError: no format has the ending.
    """
    ending = os.path.splitext(out)[1].lower()
    if not ending:
        return "json"
    if ending not in _BY_ENDING:
        known = ", ".join(f"{form} ({end})" for end, form in _BY_ENDING.items() if end != ".htm")
        raise click.UsageError(f"no format has the ending {ending}: there are {known}, or --format")
    return _BY_ENDING[ending]


def _write(out: str, chunks: Iterable[bytes]) -> None:
    if out == "-":
        output.write_chunks(chunks)
    else:
        output.write_file(out, chunks)
        diagnostics.message(f"wrote {out}")


def _wanted(runs: str | None) -> tuple[str, ...]:
    """Kinds of runs, each a word that there is."""
    wanted = tuple(part.strip() for part in (runs or "").split(",") if part.strip())
    odd = [name for name in wanted if name not in ("parity", "probe")]
    if odd:
        raise click.UsageError(f"--with takes parity and probe, not {odd[0]}")
    return wanted


def _external(files: tuple[str, ...]) -> tuple[tuple[dict[str, Any], ...], dict[Any, Any]]:
    """Results of others as the report lists them, with the gates that they speak about."""
    if not files:
        return (), {}
    from quantscope.cli.report_external import read_external

    return read_external(files)
