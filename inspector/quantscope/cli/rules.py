"""`quantscope rules`: the catalogue."""

from __future__ import annotations

import click

from quantscope.cli import output, tables
from quantscope.cli.diagnostics import ExitCode
from quantscope.report.words import SEVERITY_WORDS


@click.command("rules", short_help="The catalogue of rules.")
@click.option(
    "--json", "as_json", type=click.Choice(["-"]), metavar="-", help="One JSON document to stdout."
)
def command(as_json: str | None) -> int:
    """List every rule: code, name, the most that its findings can be, and what it needs to read."""
    from quantscope.rules.catalogue import catalogue

    rules = catalogue()
    if as_json is not None:
        document = [
            {
                "code": rule.code,
                "name": rule.name,
                "kind": rule.kind,
                "severity": rule.severity,
                "gate": rule.gate,
                "needs": rule.needs,
                "page": rule.page,
            }
            for rule in rules.values()
        ]
        output.write_json({"rules": document})
        return ExitCode.OK
    rows = [
        (rule.code, SEVERITY_WORDS[rule.severity], rule.needs, rule.kind or "-", rule.name)
        for rule in rules.values()
    ]
    output.write_text(
        "\n".join(
            tables.columns(
                ("code", "at most", "needs", "kind", "name"), rows, tables.terminal_columns()
            )
        )
    )
    return ExitCode.OK
