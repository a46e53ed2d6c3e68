"""`quantscope plugins`: families, rules and kernels, where each comes from and what failed to load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quantscope.cli import output, tables
from quantscope.cli.diagnostics import ExitCode

if TYPE_CHECKING:
    from quantscope.families.registry import PluginRecord

KERNEL_GROUP = "quantscope.kernels"


@click.command("plugins", short_help="Families, rules, kernels and what failed to load.")
@click.option(
    "--json", "as_json", type=click.Choice(["-"]), metavar="-", help="One JSON document to stdout."
)
def command(as_json: str | None) -> int:
    """List every registered family, rule plugin and kernel; exit code 1 where one failed to load."""
    from quantscope.families.registry import FamilyRegistry

    records = list(FamilyRegistry.from_entry_points().records)
    records += _rule_records()
    records += _kernel_records()
    if as_json is not None:
        output.write_json({"plugins": list(records)})
    else:
        rows = [
            (r.group.rpartition(".")[2], r.name, r.value, r.distribution, r.error or "loaded")
            for r in records
        ]
        output.write_text(
            "\n".join(
                tables.columns(
                    ("group", "name", "from", "package", "state"), rows, tables.terminal_columns()
                )
            )
        )
    return ExitCode.CHECK_FAILED if any(record.error for record in records) else ExitCode.OK


def _rule_records() -> Sequence[PluginRecord]:
    from quantscope.rules.catalogue import load

    return load().records


def _kernel_records() -> Sequence[PluginRecord]:
    from quantscope.families.registry import load_entry_points

    return [record for _, record in load_entry_points(KERNEL_GROUP, _any_kernel)]


def _any_kernel(instance: object) -> str | None:
    return None if getattr(instance, "name", None) else "has no name"
