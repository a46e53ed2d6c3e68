"""`quantscope recheck REPORT PATH`: which statements of a report still hold for these bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from quantscope.cli import diagnostics, output, running
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.tables import folded
from quantscope.report.words import count_words
from quantscope.text import inert

if TYPE_CHECKING:
    from quantscope.report.recheck import Recheck, Statement

_WORDS = {"holds": "holds", "does_not_hold": "DOES NOT HOLD", "not_examined": "not examined"}


@click.command("recheck", short_help="What of a report still holds for these bytes.")
@click.argument("report", type=click.Path(path_type=str))
@click.argument("path", type=click.Path(path_type=str))
@click.option(
    "--json", "as_json", type=click.Choice(["-"]), metavar="-", help="One JSON document to stdout."
)
@click.option("--full", is_flag=True, help="Name every statement that holds.")
def command(report: str, path: str, as_json: str | None, full: bool) -> int:
    """Compare the JSON report REPORT with the bytes at PATH; exit code 1 where something differs."""
    from quantscope.report.recheck import load_report, recheck_path

    with running.stopped_by_interrupt() as stopped:
        result = recheck_path(load_report(report), path, diagnostics.progress, stopped)
    if as_json is not None:
        output.write_json(result)
    else:
        output.write_text("\n".join(folded(lines_of(result, full), labels=(15, 24))))
    return ExitCode.CHECK_FAILED if result.differs else ExitCode.OK


def lines_of(result: Recheck, full: bool) -> Iterator[str]:
    """What does not hold first, then what was never examined, then what holds."""
    by_state: dict[str, list[Statement]] = {"does_not_hold": [], "not_examined": [], "holds": []}
    for statement in result.statements:
        by_state[statement.state].append(statement)
    for state, statements in by_state.items():
        if state == "holds" and not full:
            continue
        for statement in statements:
            detail = f": {statement.detail}" if statement.detail else ""
            yield inert(f"{_WORDS[state]:<14} {statement.about:<8} {statement.what}{detail}")
    yield (
        f"{count_words(len(by_state['holds']), 'statement holds', 'statements hold')}, "
        f"{len(by_state['does_not_hold'])} do not, {len(by_state['not_examined'])} were not examined"
    )
