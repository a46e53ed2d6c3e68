"""The foot of the Report screen: what the report does not claim, where it goes, how to make and check it again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from quantscope_views.lines import Line, labelled, line, rule
from quantscope_views.present.report import Preview, ReportChoice
from quantscope_views.present.words import count_words, size_words

MAX_LINES = 10
"""Lines that the foot takes from the preview at most; the CI command gives way first."""


def foot_lines(
    choice: ReportChoice,
    preview: Preview | None,
    headless: Sequence[str],
    written: Sequence[str],
    width: int,
) -> list[Line]:
    """Lines under the preview.

    Args:
        choice: what a person chose.
        preview: the report, None while it is made.
        headless: words of the command that makes the same report.
        written: paths of reports of this scope that were written in this session, newest last.
        width: cells.
    """
    size = (
        f"{count_words(preview.lines, 'line')}, {size_words(preview.size)}"
        if preview is not None
        else "being made"
    )
    left_out = (
        f"about the {preview.left_out_tensors} other quantized tensors, nor "
        if preview is not None and preview.left_out_tensors
        else ""
    )
    name = choice.file_name
    there = name if choice.redact else os.path.join(os.getcwd(), name)
    own = [path for path in written if path.endswith(os.path.splitext(name)[1])]
    path = shlex.quote(headless[2]) if len(headless) > 2 else "PATH"
    lines = [
        rule(size, width),
        line((f" claims nothing {left_out}about model quality", "dim")),
    ]
    goes = ("written", own[-1]) if own else ("goes to", f"{there}   (w: write)")
    for label, text in (
        goes,
        ("same by", shlex.join(headless) + _runs_note(choice)),
        ("later", _recheck_words(choice, written, path)),
        ("in CI", f"quantscope scan {path} --fail-on disagreement"),
    ):
        block = labelled(label, text, width, tone="dim")
        if label == "in CI" and len(lines) + len(block) > MAX_LINES:
            break
        lines += block
    return lines


def _runs_note(choice: ReportChoice) -> str:
    return "   (without the runs)" if choice.runs and choice.with_runs else ""


def _recheck_words(choice: ReportChoice, written: Sequence[str], path: str) -> str:
    """How to check the report again: by its JSON, where one was written; else how to come by one."""
    known = [name for name in written if name.endswith(".json")]
    if known:
        return f"quantscope recheck {shlex.quote(known[-1])} {path}   (exit 1 if it differs)"
    steps = "w" if choice.form_name == "json" else "f to json, w"
    return f"{steps}, then quantscope recheck report.json {path}"
