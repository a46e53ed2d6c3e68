"""The Run tab and the run menu as lines: what each run would cost and what it needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

import msgspec
from quantscope.session.inspection import TensorState

from quantscope_views.lines import Line, Span, labelled, line, rule
from quantscope_views.present.headline import Overview
from quantscope_views.present.words import count_words, seconds_words, size_words

DECODE_BYTES_PER_S = 150e6
"""Rate assumed for estimates before anything was measured here: bytes of planes decoded a second."""


def deep_cost(overview: Overview) -> tuple[str, ...]:
    """What a deep scan reads and about how long that takes."""
    nbytes = sum(overview.plane_bytes.values())
    return (
        f"A deep scan reads all {size_words(nbytes)} of planes of "
        f"{count_words(overview.quantized, 'tensor')}.",
        f"About {seconds_words(max(0.1, nbytes / DECODE_BYTES_PER_S))} at 150 MB/s; "
        "x stops it, and what was read is kept.",
    )


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A check that a person may start."""

    title: str
    module: str
    """Engine module that runs it."""
    extra: str
    packages: tuple[str, ...]
    cost: str
    what: str


CHECKS: tuple[Check, ...] = (
    Check(
        title="kernel check",
        module="quantscope.parity",
        extra="torch",
        packages=("torch",),
        cost="seconds a tensor on this CPU",
        what="a real kernel against a float64 product of the same bytes",
    ),
    Check(
        title="logits check",
        module="quantscope.probes",
        extra="probe",
        packages=("torch", "transformers", "tokenizers"),
        cost="64 tokens a reading, the whole model in memory",
        what="the model's logits under each reading on the same tokens",
    ),
)


def missing_of(check: Check) -> tuple[str, ...]:
    """What is not installed for a check."""
    return tuple(name for name in (check.module, *check.packages) if not _found(name))


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def run_lines(state: TensorState | None, results: Mapping[str, str], width: int) -> list[Line]:
    """The Run tab: each check with its cost first, whether it can run, and its result."""
    lines: list[Line] = []
    for check in CHECKS:
        lines.append(rule(check.title, width, check.cost))
        lines += labelled("compares", check.what, width)
        missing = missing_of(check)
        result = results.get(check.title)
        if result is not None:
            lines += labelled("result", result, width, tone="strong")
        elif missing:
            lines += labelled(
                "not run",
                f"needs {', '.join(missing)}: pip install 'quantscope[{check.extra}]'",
                width,
                tone="check",
                about=(f"{check.title} runs with the extra `{check.extra}`",),
            )
        else:
            command = "parity" if check.title.startswith("kernel") else "probe"
            lines += labelled(
                "not run",
                f"can run here: quantscope {command} PATH"
                + (
                    f" --tensor {state.tensor.name}"
                    if state is not None and command == "parity"
                    else ""
                ),
                width,
            )
        lines.append(line(""))
    lines.append(
        line((" A check that held says nothing about task quality or other kernels.", "dim"))
    )
    return lines


def menu_lines(overview: Overview | None) -> list[Line]:
    """The run menu: one line a run, with its cost."""
    lines = []
    if overview is not None:
        nbytes = sum(overview.plane_bytes.values())
        cost = f"{size_words(nbytes)}, {seconds_words(max(0.1, nbytes / DECODE_BYTES_PER_S))}"
        lines.append(
            Line(
                spans=(Span(" deep scan      "), Span(cost, "number"), Span("  reads every code")),
                action="app.deep-scan",
            )
        )
    for check in CHECKS:
        missing = missing_of(check)
        note = f"needs {', '.join(missing)}" if missing else check.cost
        lines.append(
            Line(
                spans=(
                    Span(f" {check.title:14} "),
                    Span(note, "check" if missing else "number"),
                ),
                about=(check.what, f"extra: {check.extra}"),
                action="tensor.run",
            )
        )
    lines.append(
        Line(
            spans=(Span(" compare        "), Span("reads headers and a sample of both", "number")),
            action="app.show-compare",
        )
    )
    return lines
