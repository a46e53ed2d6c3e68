"""Open a path, inspect it, judge it: what every command that looks at bytes does first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click
import msgspec

from quantscope.cli import diagnostics

MAX_NAMED = 3
"""Entries of a baseline that accept nothing, named one by one."""

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.rules.suppress import Suppression
    from quantscope.session.inspection import Inspection
    from quantscope.session.pipeline import Scope

    Judge = Callable[[Inspection], Inspection]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much to read and which rules to run."""

    deep: bool = False
    sample: int | None = None
    headers_only: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    baseline: str | None = None
    quiet: bool = False

    @property
    def scope(self) -> Scope:
        """The pipeline's scope.

        Raises:
            click.UsageError: options that exclude each other.
        """
        from quantscope.decode.sampling import DEFAULT_GROUPS
        from quantscope.session.pipeline import Scope

        if self.deep + self.headers_only + (self.sample is not None) > 1:
            raise click.UsageError("--deep, --sample and --headers-only exclude each other")
        if self.deep:
            return Scope(mode="deep")
        if self.headers_only:
            return Scope(mode="headers")
        return Scope(sample_groups=self.sample or DEFAULT_GROUPS)


@contextmanager
def opened(path: str) -> Iterator[Checkpoint]:
    """An opened checkpoint.

    Raises:
        MissingExtraError: the path is a URL.
    """
    from quantscope.checkpoint import Checkpoint
    from quantscope.errors import MissingExtraError

    if "://" in path:
        raise MissingExtraError(
            f"{path} is a URL, and this version reads local files only",
            hint="download the checkpoint and give its folder",
            source=path,
        )
    with Checkpoint.open(path) as checkpoint:
        yield checkpoint


def judge_of(options: RunOptions) -> Judge:
    """The rules as a function over inspections, with the selection and the baseline in place.

    Raises:
        UsageError: the baseline cannot be read, or a selection names no rule.
    """
    from quantscope.closest import closest_hint
    from quantscope.errors import UsageError
    from quantscope.rules.catalogue import catalogue, judge

    for code in (*options.select, *options.ignore):
        if not any(known.startswith(code) for known in catalogue()):
            raise UsageError(
                f"no rule is called {code}",
                hint=closest_hint(code, catalogue(), "`quantscope rules` lists them"),
            )
    suppressions = _baseline(options.baseline) if options.baseline else ()

    def run(inspection: Inspection) -> Inspection:
        return judge(
            inspection,
            select=options.select,
            ignore=options.ignore,
            suppressions=suppressions,
        )

    return run


def _baseline(path: str) -> tuple[Suppression, ...]:
    """Entries of a baseline that are in force; those that are not any more are named on stderr."""
    import datetime
    from pathlib import Path

    from quantscope.errors import UsageError
    from quantscope.rules.suppress import load_suppressions

    if not Path(path).is_file():
        raise UsageError(
            f"{path} is no file",
            hint="a baseline is a TOML list of accepted ids, or an earlier JSON report",
        )
    today = datetime.datetime.now(datetime.UTC).date()
    entries = load_suppressions(Path(path), datetime.date.min)
    for entry in entries:
        if entry.expires is not None and entry.expires < today:
            diagnostics.message(f"baseline: {entry.id} expired on {entry.expires}; it counts again")
    return tuple(e for e in entries if e.expires is None or e.expires >= today)


def name_unmatched(options: RunOptions, inspections: Sequence[Inspection]) -> None:
    """Say on stderr which entries of the baseline accept nothing: the finding is gone, or the id is not whole."""
    import datetime
    from pathlib import Path

    from quantscope.closest import closest_hint
    from quantscope.rules.suppress import load_suppressions

    if not options.baseline or options.select or options.ignore:
        return
    met = {entry.id for one in inspections for entry in one.suppressed}
    left = [finding.id for one in inspections for finding in one.findings]
    today = datetime.datetime.now(datetime.UTC).date()
    entries = load_suppressions(Path(options.baseline), today)
    lost = [entry.id for entry in entries if entry.id not in met]
    for name in lost[:MAX_NAMED]:
        same = [known for known in left if known.partition(":")[0] == name.partition(":")[0]]
        hint = closest_hint(name, same, "no finding of that code is left")
        diagnostics.message(f"baseline: {name} accepts nothing here; {hint}")
    if len(lost) > MAX_NAMED:
        diagnostics.message(f"baseline: {len(lost) - MAX_NAMED} more entries accept nothing here")


def inspect_opened(
    checkpoint: Checkpoint, options: RunOptions, judge: Judge | None = None
) -> Inspection:
    """A judged inspection; Ctrl-C ends it early and keeps what it has."""
    from quantscope.session.pipeline import inspect

    with stopped_by_interrupt() as stopped:
        return inspect(
            checkpoint,
            options.scope,
            judge=judge or judge_of(options),
            progress=None if options.quiet else diagnostics.progress,
            cancelled=stopped,
        )


@contextmanager
def stopped_by_interrupt() -> Iterator[Callable[[], bool]]:
    """A token that the first Ctrl-C sets; the second one interrupts as usual."""
    from quantscope.session.events import CancelToken

    token = CancelToken()
    if threading.current_thread() is not threading.main_thread():
        yield token
        return

    def stop(number: int, frame: FrameType | None) -> None:
        if token():
            raise KeyboardInterrupt
        token.cancel()

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield token
    finally:
        signal.signal(signal.SIGINT, previous)


def command_line(arguments: Sequence[str] | None = None) -> str:
    """The command as it was typed, for the report."""
    import shlex

    return "quantscope " + shlex.join(sys.argv[1:] if arguments is None else arguments)


def flat(groups: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Values of an option given several times, each a list."""
    return tuple(value for group in groups for value in group)
