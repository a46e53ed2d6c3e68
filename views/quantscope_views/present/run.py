"""The Run tab and the run menu as lines: each run with its cost first, then what it found."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from quantscope.parity.model import ParityResult, ParityRun
from quantscope.report.words import OUTCOME_WORDS

from quantscope_views.lines import Line, Span, cells, cut_end, fit, labelled, line, rule, wrap
from quantscope_views.present.headline import Overview
from quantscope_views.present.logits import LogitsState, logits_lines
from quantscope_views.present.run_facts import KernelChoice, RunChoices
from quantscope_views.present.states import progress_words
from quantscope_views.present.words import count_words, seconds_words, size_words

if TYPE_CHECKING:
    from quantscope_views.workspace import Job

DECODE_BYTES_PER_S = 150e6
"""Rate assumed for estimates before anything was measured here: bytes of planes decoded a second."""

PROBE_PACKAGES = ("torch", "transformers", "tokenizers")
MAX_RESULTS = 3
"""Results of kernels shown in full, the newest."""
RESULT_LABEL = 18
"""Cells before what a line of a result says."""
HIDDEN_KERNELS = 6
"""Kernels that cannot run are listed one by one up to this many, then counted."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """What the Run tab shows of one tensor."""

    tensor: str
    choices: RunChoices | None = None
    kernel_results: tuple[ParityResult, ...] = ()
    logits: LogitsState | None = None
    running: str = ""
    """A kernel check that runs, in words."""


def deep_cost(overview: Overview) -> tuple[str, ...]:
    """What a deep scan reads and about how long that takes."""
    nbytes = sum(overview.plane_bytes.values())
    return (
        f"A deep scan reads all {size_words(nbytes)} of planes of "
        f"{count_words(overview.quantized, 'tensor')}.",
        f"About {seconds_words(max(0.1, nbytes / DECODE_BYTES_PER_S))} at 150 MB/s; "
        "x stops it, and what was read is kept.",
    )


def results_of(runs: Sequence[ParityRun], tensor: str) -> tuple[ParityResult, ...]:
    """Results of a tensor, newest first."""
    return tuple(
        result for run in reversed(runs) for result in run.results if result.tensor == tensor
    )


def newest_by_kernel(results: Sequence[ParityResult]) -> dict[str, ParityResult]:
    """The newest result of every kernel, by the kernel's key, newest first."""
    found: dict[str, ParityResult] = {}
    for result in results:
        found.setdefault(f"{result.backend}:{result.kernel}@{result.device}", result)
    return found


def run_lines(state: RunState, width: int, ascii_only: bool, mark: str) -> list[Line]:
    """The Run tab: kernels with cost and reason, logits with cost, then results."""
    lines = [
        rule("kernel check: a real kernel against float64 on the same bytes", width, mark=mark)
    ]
    if state.running:
        lines.append(line((cut_end(f" {state.running}", width), "check")))
    newest = newest_by_kernel(state.kernel_results)
    lines += _kernel_lines(state.choices, newest, width)
    for result in list(newest.values())[:MAX_RESULTS]:
        lines += kernel_result_lines(result, width, ascii_only)
    lines.append(rule("logits check: the model under each reading, same tokens", width, mark=mark))
    if state.logits is not None:
        lines += logits_lines(state.logits, width, ascii_only)
    lines.append(
        line((" A check that held says nothing about task quality or other kernels.", "dim"))
    )
    return lines


def _kernel_lines(
    choices: RunChoices | None, newest: Mapping[str, ParityResult], width: int
) -> list[Line]:
    if choices is None:
        return [line((" looking at what is installed", "dim"))]
    lines = []
    can = [choice for choice in choices.kernels if choice.runs]
    cannot = [choice for choice in choices.kernels if not choice.runs]
    wide = max((len(choice.key) for choice in (*can, *cannot[:HIDDEN_KERNELS])), default=0)
    for choice in can:
        lines.append(_runnable(choice, newest.get(choice.key), width, wide))
    if not any(choice.executes for choice in can):
        only = "but arithmetic " if can else ""
        lines += labelled(
            "no kernel", f"nothing {only}can run here on this tensor", width, tone="check"
        )
    for choice in cannot[:HIDDEN_KERNELS]:
        text = f"   {fit(choice.key, wide + 2)}{choice.why_not}"
        why = (f"{choice.key}: {choice.title}", choice.why_not)
        lines.append(line((cut_end(text, width), "dim"), about=why))
    if len(cannot) > HIDDEN_KERNELS:
        about = tuple(f"{c.key}: {c.why_not}" for c in cannot[HIDDEN_KERNELS:])
        more = f"   {len(cannot) - HIDDEN_KERNELS} more cannot run here; i lists them"
        lines.append(line((more, "dim"), about=about))
    return lines


def _runnable(choice: KernelChoice, result: ParityResult | None, width: int, wide: int) -> Line:
    cost = f"about {seconds_words(max(0.1, choice.seconds))}, {size_words(choice.memory_bytes)}"
    room = max(8, width - wide - 2 - 20 - 4)
    said, tone = "not run: enter starts it", "plain"
    if result is not None:
        said, tone = f"{_outcome_words(result)}; enter again", _tone(result)
    if not choice.executes:
        said = next(
            text
            for text in (f"{said}  (arithmetic, no kernel)", f"no kernel: {said}", said)
            if len(text) <= room or text == said
        )
    return Line(
        spans=(
            Span(" > ", "key"),
            Span(fit(choice.key, wide + 2), "strong"),
            Span(fit(cost, 20), "number"),
            Span(cut_end(said, room), tone),
        ),
        about=(
            f"{choice.key}: {choice.title}",
            "cost: multiply-adds and bytes of this tensor at the rate of the backend",
            f"quantscope parity PATH --tensor NAME --backend {choice.key}",
        ),
        action="tensor.start-run",
        key=choice.key,
    )


def _tone(result: ParityResult) -> str:
    return {"held": "agrees", "did_not_hold": "broken"}.get(str(result.outcome), "check")


def _outcome_words(result: ParityResult) -> str:
    if result.status != "executed":
        return "did not finish" if result.status == "failed" else "refused"
    return OUTCOME_WORDS[result.outcome or "inconclusive"]


def kernel_result_lines(result: ParityResult, width: int, ascii_only: bool) -> list[Line]:
    """A kernel's result: two answers, and the error of every input as a bar."""
    from quantscope.parity.text import result_lines

    tone = _tone(result)
    lines = []
    for number, text in enumerate(result_lines(result)):
        shade = tone if number in (2, 3) else "plain"
        lines += [line((piece, shade)) for piece in _folded_result(f" {text}", width)]
    if result.inputs:
        lines.append(
            line((" error as a share of its tolerance, by input (full: 1 and more)", "head"))
        )
    for batch in result.inputs:
        ratio = batch.worst_ratio
        share = 1.0 if ratio is None else min(1.0, ratio)
        room = max(8, min(40, width - 56))
        filled = round(share * room)
        bar = ("#" if ascii_only else "█") * filled
        words = "beyond" if ratio is None else f"{ratio:.3g}"
        lines.append(
            line(
                (f"   {fit(f'{batch.name}, {batch.batch}', 30)}", "plain"),
                (fit(words, 10), "number"),
                (bar, "bar" if batch.held else "broken"),
                about=(
                    f"{batch.outputs} outputs, {batch.over_tolerance} beyond their tolerance, "
                    f"{batch.nonfinite} not finite",
                    f"max abs error {batch.max_abs_error}, max tolerance {batch.max_tolerance}",
                ),
            )
        )
    return lines


def _folded_result(text: str, width: int) -> list[str]:
    """A line of a result folded where it is too long; what follows stands under what it says."""
    if cells(text) <= width:
        return [text]
    label = min(RESULT_LABEL, width // 2) if text.startswith("   ") else 3
    head, rest = text[:label], text[label:]
    return [
        (head if number == 0 else " " * label) + piece
        for number, piece in enumerate(wrap(rest, width - label))
    ]


def running_words(job: Job) -> str:
    """A check under way, how far it is and how to stop it."""
    far = f" {progress_words(job.progress)};" if job.progress is not None else ""
    return f"{job.title} runs:{far} x stops it, what is done is kept"


def menu_lines(overview: Overview | None, logits_here: tuple[str, str] | None = None) -> list[Line]:
    """The run menu: one line a run, with its cost.

    Args:
        overview: of the open checkpoint.
        logits_here: the logits check that the screen offers: its cost in words, and the action behind it.
    """
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
    absent = [name for name in PROBE_PACKAGES if importlib.util.find_spec(name) is None]
    logits = f"needs {', '.join(absent)}" if absent else "whole model once a reading"
    logits, opens = logits_here or (logits, "app.open-run")
    for title, note, what, action in (
        (
            "kernel check",
            "cost by kernel on the next screen",
            "a real kernel on the same bytes",
            "app.open-run",
        ),
        ("logits check", logits, "the model under each reading, or on both sides", opens),
    ):
        lines.append(
            Line(
                spans=(Span(f" {title:14} "), Span(note, "number")),
                about=(what, note),
                action=action,
            )
        )
    lines.append(
        Line(
            spans=(Span(" compare        "), Span("reads headers and a sample of both", "number")),
            action="app.show-compare",
        )
    )
    return lines
