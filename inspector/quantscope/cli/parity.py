"""`quantscope parity PATH --backend B`: a real kernel against the reference, with proof that it ran."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from quantscope.cli import diagnostics, output, params, running
from quantscope.cli.diagnostics import ExitCode
from quantscope.cli.tables import folded, wrapped
from quantscope.text import inert

if TYPE_CHECKING:
    from quantscope.parity.model import ParityResult, ParityRun, Settings


@click.command("parity", short_help="A real kernel against the reference.")
@click.argument("path", required=False, type=click.Path(path_type=str))
@click.option(
    "--tensor", "tensors", multiple=True, metavar="NAME", help="One tensor; again for more."
)
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="N tensors, every contract first."
)
@click.option("--all", "everything", is_flag=True, help="Every quantized tensor.")
@click.option(
    "--backend", metavar="B", help="A backend, or backend:kernel, or backend:kernel@device."
)
@click.option("--emulate", metavar="FAULT", help="A faulty reader in the kernel's place.")
@click.option("--resume", is_flag=True, help="Go on with an earlier run of the same kind.")
@click.option("--list", "list_only", is_flag=True, help="Backends, and why each can or cannot run.")
@click.option("--no-probe", is_flag=True, help="With --list: look only at what is installed.")
@click.option(
    "--dtype", type=click.Choice(["f32", "f16", "bf16", "e4m3"]), help="Type of activations."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to run.")
@click.option(
    "--columns",
    "max_columns",
    type=click.IntRange(min=1),
    metavar="N",
    help="Input channels read out one by one (1024).",
)
@click.option("--seed", type=int, metavar="N", help="First seed of the inputs.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), metavar="S", help="Seconds a tensor (600)."
)
@click.option(
    "--memory", type=click.IntRange(min=256), metavar="MIB", help="Cap on the child's memory."
)
@params.json_option
def command(
    path: str | None,
    tensors: tuple[str, ...],
    sample: int | None,
    everything: bool,
    backend: str | None,
    emulate: str | None,
    resume: bool,
    list_only: bool,
    no_probe: bool,
    dtype: str | None,
    device: str | None,
    max_columns: int | None,
    seed: int | None,
    timeout: float | None,
    memory: int | None,
    json_file: str | None,
) -> int:
    """Run a low-bit kernel on bytes of PATH and compare with float64 on the same quantized data.

    Two answers are printed: whether it computed right, and whether that kernel really ran.

    Exit code 0: what was run held (with --emulate: the fault was noticed). 1: it did not hold (with --emulate: the
    fault went unnoticed). 4: nothing could be run or decided; the reason is printed.
    """
    if list_only:
        return _list(path, no_probe, json_file)
    if path is None:
        raise click.UsageError("PATH is needed, or --list")
    if backend is None and emulate is not None:
        backend = "reference"
    if backend is None:
        raise click.UsageError(
            "--backend is needed; `quantscope parity --list` shows which there are"
        )
    if sum((bool(tensors), sample is not None, everything)) > 1:
        raise click.UsageError("--tensor, --sample and --all exclude each other")
    import msgspec

    from quantscope.parity.model import Settings
    from quantscope.parity.run import run_checkpoint

    wanted: dict[str, object] = {
        "emulate": emulate,
        "dtype": dtype,
        "device": device,
        "max_columns": max_columns,
        "seed": seed,
        "timeout_s": timeout,
        "memory_bytes": memory << 20 if memory is not None else None,
    }
    settings: Settings = msgspec.structs.replace(
        Settings(), **{key: value for key, value in wanted.items() if value is not None}
    )
    with running.stopped_by_interrupt() as stopped:
        run = run_checkpoint(
            path,
            backend,
            tensors=tensors or None,
            sample=None if tensors or everything else sample or 1,
            settings=settings,
            resume=resume,
            keep=everything or sample is not None or len(tensors) > 1,
            progress=diagnostics.progress,
            cancelled=stopped,
        )
    _write(run, json_file)
    return exit_code(run)


def exit_code(run: ParityRun) -> int:
    """The exit status that a run has."""
    if run.partial:
        return ExitCode.INTERRUPTED
    if any(_failed(result) for result in run.results):
        return ExitCode.CHECK_FAILED
    decided = [
        r for r in run.results if r.status == "executed" and (r.outcome == "held" or r.emulated)
    ]
    broken = [
        result
        for result in run.results
        if result.status == "failed" or (result.outcome == "inconclusive" and not result.emulated)
    ]
    if not decided or broken:
        return ExitCode.COULD_NOT_RUN
    return ExitCode.OK


def _failed(result: ParityResult) -> bool:
    if result.status != "executed":
        return False
    if result.emulated:
        return result.outcome != "did_not_hold"
    return result.outcome == "did_not_hold"


def _write(run: ParityRun, json_file: str | None) -> None:
    if json_file is None:
        from quantscope.parity.text import run_lines

        lines = list(run_lines(run))
        # Rows of a table over several tensors stand as they are, for grep and column.
        rows = [] if len(run.results) == 1 else lines[: lines.index("")]
        output.write_text("\n".join([*rows, *folded(lines[len(rows) :], labels=(3, 17))]))
        return
    import msgspec

    from quantscope.parity.entries import kernel_gate, report_entry

    _json(
        {
            "path": run.path,
            "backend": run.backend,
            "selection": run.selection,
            "results": [report_entry(result) for result in run.results],
            "coverage": msgspec.to_builtins(run.coverage),
            "gate": {"kernel": kernel_gate(run).as_json()},
            "resumed": run.resumed,
            "partial": run.partial,
        },
        json_file,
    )


def _json(document: object, json_file: str) -> None:
    from quantscope.report.canonical import canonical_bytes

    if json_file == "-":
        output.write_json(document)
    else:
        output.write_file(json_file, (canonical_bytes(document),))


def _list(path: str | None, no_probe: bool, json_file: str | None) -> int:
    """Backends with reasons; with PATH also what each would do with it."""
    from quantscope.parity.run import backends
    from quantscope.parity.text import backend_rows, short_rows

    states = backends(probe=not no_probe)
    fits = _fits(path, states) if path is not None else {}
    if json_file is not None:
        import msgspec

        document: dict[str, object] = {"backends": msgspec.to_builtins(states)}
        if path is not None:
            document["takes"] = fits
        _json(document, json_file)
        return ExitCode.OK
    rows, reasons = short_rows(list(backend_rows(states)))
    lines = list(wrapped(("backend", "kernel", "state", "takes"), rows))
    for number, reason in enumerate(reasons, 1):
        lines += textwrap.wrap(f"{number:>2}  {inert(reason)}", 80, subsequent_indent="    ")
    if path is not None:
        fitting = [(name, *words) for name, words in fits.items()]
        lines += ["", *wrapped(("backend", "tensors it takes", "or why not"), fitting)]
    output.write_text("\n".join(lines))
    return ExitCode.OK


def _fits(path: str, states: object) -> dict[str, tuple[str, str]]:
    """How many tensors of PATH each backend takes, and the first reason where it takes none."""
    from quantscope.parity.model import BackendState
    from quantscope.parity.run import estimate
    from quantscope.session.pipeline import Scope, inspect

    assert isinstance(states, list)
    fits: dict[str, tuple[str, str]] = {}
    with running.opened(path) as checkpoint:
        inspection = inspect(checkpoint, Scope(mode="headers"))
        for state in states:
            assert isinstance(state, BackendState)
            if state.error is not None:
                continue
            costs = [estimate(tensor, state.name) for tensor in inspection.states]
            taken = sum(cost.refusal is None for cost in costs)
            reasons = [f"{c.refusal}: {c.refusal_detail}" for c in costs if c.refusal is not None]
            why = reasons[0] if reasons and not taken else ""
            fits[state.name] = (f"{taken} of {len(costs)}", why)
    return fits
