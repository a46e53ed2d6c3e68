"""`quantscope rule CODE`: one page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from quantscope.cli import output
from quantscope.cli.diagnostics import ExitCode
from quantscope.report.words import SEVERITY_WORDS

if TYPE_CHECKING:
    from quantscope.rules.base import Rule

WIDTH = 88


@click.command("rule", short_help="One rule's page.")
@click.argument("code")
def command(code: str) -> int:
    """Show the page of the rule CODE (or of its kebab name)."""
    from quantscope.rules.catalogue import catalogue

    rules = catalogue()
    found = rules.get(code.upper()) or next((r for r in rules.values() if r.name == code), None)
    if found is None:
        raise click.UsageError(f"no rule is called {code}; `quantscope rules` lists them")
    output.write_text("\n".join(page_lines(found)))
    return ExitCode.OK


def page_lines(rule: Rule) -> Iterator[str]:
    """The page of a rule as text."""
    page = rule.page
    yield f"{rule.code}  {rule.name}"
    yield f"at most {SEVERITY_WORDS[rule.severity]}; needs {rule.needs}; kind {rule.kind or '-'}"
    for title, text in (
        ("What it checks", page.checks),
        ("Why that is bad", page.why),
        ("Evidence", page.evidence),
        ("What it does not prove", page.proves_not),
        ("Sample", page.sample),
        ("Public reports", ", ".join(page.reports)),
    ):
        if text:
            yield ""
            yield title
            yield from textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
