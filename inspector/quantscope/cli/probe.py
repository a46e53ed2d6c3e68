"""`quantscope probe PATH`: logits, KL and NLL under readings, against another checkpoint or its base."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from quantscope.cli import diagnostics, output
from quantscope.cli.params import READING
from quantscope.cli.tables import folded

if TYPE_CHECKING:
    from quantscope.probes.model import TokenRequest
    from quantscope.session.inspection import Inspection


@click.command("probe", short_help="Logits, KL and NLL under readings.")
@click.argument("path", type=click.Path(path_type=str))
@click.option("--against", type=click.Path(path_type=str), help="Another checkpoint, or the base.")
@click.option(
    "--reading",
    "readings",
    type=READING,
    multiple=True,
    help="A what-if reading, once per reading: zero_convention=as_is; packing=awq; scale=divide.",
)
@click.option("--by-layer", is_flag=True, help="Per-layer output error; the first layer apart.")
@click.option("--tokens", metavar="FILE", help="Ids (JSON list or .npy), or the word `random`.")
@click.option("--text", metavar="FILE", help="UTF-8 text through the checkpoint's own tokenizer.")
@click.option(
    "--targets",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    metavar="N",
    help="Positions whose next token is scored.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Type of weights and activations.",
)
@click.option("--device", default="cpu", show_default=True, metavar="D", help="cpu, cuda, cuda:1.")
@click.option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Threads; 0 as torch chooses.",
)
@click.option("--full-load", is_flag=True, help="Load every layer at once (same bits).")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    metavar="S",
    help="Seconds for the whole check.",
)
@click.option("--json", "json_to", metavar="FILE", help="Write JSON; `-` is stdout.")
@click.pass_context
def command(
    ctx: click.Context,
    path: str,
    against: str | None,
    readings: tuple[dict[str, str], ...],
    by_layer: bool,
    tokens: str | None,
    text: str | None,
    targets: int,
    dtype: str,
    device: str,
    threads: int,
    full_load: bool,
    timeout: float,
    json_to: str | None,
) -> None:
    """Feed the same tokens under several readings and say which one the text prefers, if any."""
    import msgspec

    from quantscope.probes.model import ProbeRequest, SideRequest
    from quantscope.probes.run import estimate, missing, run_probe
    from quantscope.probes.text import render, render_cost
    from quantscope.session.what_if import check_fields

    if tokens is not None and text is not None:
        raise click.UsageError("--tokens and --text exclude each other", ctx)
    sides = [SideRequest(label="base" if against else "as the bytes say", path=against or path)]
    if against:
        sides.append(SideRequest(label="checkpoint", path=path))
    for fields in readings:
        check_fields(fields)
        label = ",".join(f"{field}={value}" for field, value in fields.items())
        sides.append(SideRequest(label=label, path=path, reading=fields))
    request = ProbeRequest(
        sides=tuple(sides),
        tokens=_tokens(tokens, text, targets),
        device=device,
        dtype=dtype,  # type: ignore[arg-type]
        threads=threads,
        stream=not full_load,
        by_layer=by_layer,
        timeout_s=timeout,
    )
    absent = missing()
    if absent is None:
        with _headers(path) as inspection:
            diagnostics.message(render_cost(estimate(inspection, request)))
    result = run_probe(request, progress=diagnostics.progress)
    if json_to is None:
        output.write_text("\n".join(folded(render(result).splitlines(), labels=())))
    elif json_to == "-":
        output.write_json(msgspec.to_builtins(result))
    else:
        from quantscope.report.canonical import canonical_bytes

        output.write_file(json_to, (canonical_bytes(msgspec.to_builtins(result)),))
    ctx.exit(0 if result.outcome == "held" else 1)


def _tokens(tokens: str | None, text: str | None, targets: int) -> TokenRequest:
    from quantscope.probes.model import TokenRequest

    if tokens == "random":
        return TokenRequest(source="random", targets=targets)
    if tokens is not None:
        return TokenRequest(source="ids", path=tokens, targets=targets)
    if text is not None:
        return TokenRequest(source="text", path=text, targets=targets)
    return TokenRequest(targets=targets)


@contextmanager
def _headers(path: str) -> Iterator[Inspection]:
    from quantscope.checkpoint import Checkpoint
    from quantscope.session.pipeline import Scope, inspect

    with Checkpoint.open(path) as checkpoint:
        yield inspect(checkpoint, Scope(mode="headers"))
