"""`quantscope compare A B [--base C]`: contracts, zero planes and decoded values side by side."""

from __future__ import annotations

import click

from quantscope.cli import diagnostics, output


@click.command("compare", short_help="Two checkpoints side by side.")
@click.argument("a", type=click.Path(path_type=str))
@click.argument("b", type=click.Path(path_type=str))
@click.option(
    "--base", type=click.Path(path_type=str), help="Float checkpoint that both came from."
)
@click.option("--json", "json_to", metavar="FILE", help="Write JSON; `-` is stdout.")
@click.option("--deep", is_flag=True, help="Compare every row of large weights too.")
@click.option(
    "--reading-b",
    metavar="FIELD=VALUE",
    help="Decode B under another reading, e.g. zero_convention=as_is.",
)
@click.pass_context
def command(
    ctx: click.Context,
    a: str,
    b: str,
    base: str | None,
    json_to: str | None,
    deep: bool,
    reading_b: str | None,
) -> None:
    """Compare checkpoint A with checkpoint B, field by field, byte by byte, value by value."""
    from contextlib import ExitStack

    import msgspec

    from quantscope.checkpoint import Checkpoint
    from quantscope.compare.run import compare_sides
    from quantscope.compare.sides import Side, with_convention
    from quantscope.compare.text import render
    from quantscope.errors import UsageError
    from quantscope.session.pipeline import inspect

    change = None
    if reading_b is not None:
        field, _, value = reading_b.partition("=")
        if field != "zero_convention" or value not in ("as_is", "minus_one"):
            raise UsageError(
                f"--reading-b {reading_b} is not a reading that compare knows",
                hint="zero_convention=as_is or zero_convention=minus_one",
            )
        change = with_convention(value)
    with ExitStack() as stack:
        paths = [a, b, *([base] if base else [])]
        opened = [stack.enter_context(Checkpoint.open(path)) for path in paths]
        inspections = [inspect(checkpoint, progress=diagnostics.progress) for checkpoint in opened]
        found = compare_sides(
            Side(inspections[0]),
            Side(inspections[1], change),
            Side(inspections[2]) if base else None,
            everything=deep,
            progress=diagnostics.progress,
        )
    if json_to is None:
        output.write_text(render(found))
    elif json_to == "-":
        output.write_json(msgspec.to_builtins(found))
    else:
        from quantscope.report.canonical import canonical_bytes

        with open(json_to, "wb") as target:
            target.write(canonical_bytes(msgspec.to_builtins(found)))
    ctx.exit(0)
