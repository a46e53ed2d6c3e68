"""The only module that writes stderr: messages, progress, errors, and their exit codes."""

from __future__ import annotations

import sys
from enum import IntEnum

from quantscope.errors import QuantscopeError
from quantscope.session.events import Progress


class ExitCode(IntEnum):
    """Exit statuses of every command but `evidence`."""

    OK = 0
    VIOLATION = 1
    CHECK_FAILED = 1
    DISAGREEMENT = 2
    WARNING = 3
    COULD_NOT_RUN = 4
    USAGE = 64
    INTERNAL = 70
    INTERRUPTED = 130


def message(text: str) -> None:
    """One line to stderr."""
    sys.stderr.write(inert(text) + "\n")
    sys.stderr.flush()


def error(problem: QuantscopeError) -> int:
    """Say what stopped the command and what helps; returns its exit code."""
    message(f"quantscope: {problem.message}")
    if problem.hint:
        message(f"  try: {problem.hint}")
    return problem.exit_code


def progress(step: Progress) -> None:
    """One line that overwrites itself, only where stderr is a terminal."""
    if not sys.stderr.isatty():
        return
    total = f"/{step.total}" if step.total else ""
    left = step.remaining_s
    tail = f", {left:.0f} s left" if left is not None else ""
    sys.stderr.write(f"\r\x1b[K{step.stage} {step.done}{total} {step.unit}{tail}")
    if step.total and step.done >= step.total:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()


def inert(text: str) -> str:
    """Text with every control, bidi and line-breaking character shown as a visible escape."""
    from quantscope.text import inert as escape

    return escape(text)
