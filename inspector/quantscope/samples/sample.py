"""What a sample is: where it comes from, what was done to it, and what must be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from quantscope.model import Severity


class Expected(msgspec.Struct, frozen=True):
    """A finding that a sample must give; `subject` is a part of the subject's names."""

    code: str
    severity: Severity
    subject: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample checkpoint; `make` changes a copy of `base` in place, None for a good one."""

    name: str
    what: str
    base: str
    expected: tuple[Expected, ...] = ()
    follows: tuple[str, ...] = ()
    """Codes of further findings above note that the fault brings with it."""
    make: Callable[[Path], None] | None = None


def faulty(
    name: str,
    what: str,
    base: str,
    make: Callable[[Path], None],
    *expected: tuple[str, Severity, str],
    follows: tuple[str, ...] = (),
) -> Sample:
    """A faulty copy of a good sample."""
    return Sample(
        name=name,
        what=what,
        base=base,
        expected=tuple(Expected(*item) for item in expected),
        follows=follows,
        make=make,
    )
