"""`quantscope show PATH --tensor NAME`: one tensor's contract, equations and zero point."""

from __future__ import annotations

from typing import Any

import click

from quantscope.cli import output, params, tables
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.one_tensor import OneTensor, opened_tensor

TABS = ("contract", "zero")


@click.command("show", short_help="One tensor: contract, equations, zero point.")
@params.path_argument
@params.tensor_option
@click.option(
    "--tab", type=click.Choice(TABS), default="contract", show_default=True, help="What to show."
)
@click.option(
    "--json", "as_json", type=click.Choice(["-"]), metavar="-", help="One JSON document to stdout."
)
def command(path: str, tensor: str, tab: str, as_json: str | None) -> int:
    """Show what is declared and inferred about one tensor, with sources, evidence and equations."""
    with opened_tensor(path, tensor) as one:
        if as_json is not None:
            output.write_json(document(one))
            return ExitCode.OK
        from quantscope.cli import show_text

        lines = show_text.zero_lines(one) if tab == "zero" else show_text.contract_lines(one)
        output.write_text("\n".join(tables.folded(lines, show_text.LABELS)))
    return ExitCode.OK


def document(one: OneTensor) -> dict[str, Any]:
    """The tensor as a report writes it, with every solution and what known runtimes do."""
    from quantscope.report.folding import Fold, tensor_entry

    fold = Fold(one.state)
    fold.add(one.state)
    return {"tensor": tensor_entry(fold, one.checkpoint, 0), "readers": list(one.state.stances)}
