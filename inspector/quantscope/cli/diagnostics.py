"""The only module that writes stderr: messages, progress, errors, and their exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from quantscope.errors import QuantscopeError
from quantscope.text import inert

if TYPE_CHECKING:
    from quantscope.session.events import Progress

__all__ = ["ExitCode", "error", "inert", "internal", "lines", "message", "progress"]

_FRAMES = 6
"""Innermost frames of an internal error that are shown."""


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
    """One line to stderr; a reader that is gone is no error."""
    try:
        sys.stderr.write(inert(text) + "\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        pass


def lines(text: str) -> None:
    """Several lines of this program's own words to stderr."""
    for line in text.splitlines():
        message(line)


def error(problem: QuantscopeError) -> int:
    """Say what stopped the command and what helps; returns its exit code."""
    message(f"quantscope: {problem.message}")
    if problem.hint:
        message(f"  try: {problem.hint}")
    return problem.exit_code


def internal(problem: BaseException, arguments: Sequence[str]) -> int:
    """Say that the program itself failed and what a report of it needs; returns exit code 70."""
    message(f"quantscope: internal error: {type(problem).__name__}: {problem}")
    frames = traceback.extract_tb(problem.__traceback__)[-_FRAMES:]
    for frame in frames:
        folder, name = os.path.split(frame.filename)
        message(f"  at {os.path.basename(folder)}/{name}:{frame.lineno} in {frame.name}")
    message("  this is a fault of quantscope, not of the checkpoint; please report it with")
    message("  these lines, `quantscope --version --verbose`, and the command:")
    message("  quantscope " + " ".join(arguments))
    return ExitCode.INTERNAL


def progress(step: Progress) -> None:
    """One line that overwrites itself, only where stderr is a terminal."""
    if not sys.stderr.isatty():
        return
    total = f"/{step.total}" if step.total else ""
    left = step.remaining_s
    tail = f", {left:.0f} s left" if left is not None else ""
    sys.stderr.write(f"\r\x1b[K{inert(step.stage)} {step.done}{total} {inert(step.unit)}{tail}")
    if step.total and step.done >= step.total:
        sys.stderr.write("\r\x1b[K")
    sys.stderr.flush()
