"""The only owner of thread workers: runs the engine off the event loop and posts what it tells.

Every kind of work has a group of its own; a newer job of a group stops the older one through its token.
Nothing here touches a widget.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quantscope.errors import CancelledError, QuantscopeError
from quantscope.session.events import CancelToken, Progress
from textual.message import Message

from quantscope_views import messages

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.session.inspection import Inspection, TensorState
    from quantscope.session.pipeline import Judge, Scope
    from textual.app import App

Work = Callable[[CancelToken], None]

FACTS_CHUNK = 2000
"""Rows a message carries at most, so that taking them in never holds the event loop."""

FIRST_REJUDGE_S = 2.0
"""A scan that takes longer gives its first findings after this time, then after twice as long each time."""


class Bridge:
    """Starts, stops and reports background work for one app."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._tokens: dict[str, CancelToken] = {}

    def post(self, message: Message) -> None:
        """Post a message to the app from any thread; after the app ended nothing happens."""
        self._app.post_message(message)

    def start(self, group: str, work: Work, title: str = "") -> CancelToken:
        """Run work in a thread of its own group; with a title it is a job that people see.

        Args:
            group: jobs of one group replace each other.
            work: called in the thread with the token it must poll.
            title: words for the list of jobs; silent work has none.
        """
        old = self._tokens.get(group)
        if old is not None:
            old.cancel()
        token = CancelToken()
        self._tokens[group] = token
        if title:
            self.post(messages.JobStarted(group, title))
        self._app.run_worker(
            partial(self._guarded, group, work, token, bool(title)),
            group=group,
            exclusive=True,
            exit_on_error=False,
            thread=True,
        )
        return token

    def stop(self, group: str) -> None:
        """Ask the job of a group to stop."""
        token = self._tokens.get(group)
        if token is not None:
            token.cancel()

    def stop_all(self) -> None:
        """Ask everything to stop; called before the app ends."""
        for token in self._tokens.values():
            token.cancel()

    def _guarded(self, group: str, work: Work, token: CancelToken, seen: bool) -> None:
        try:
            work(token)
        except CancelledError:
            if seen:
                self.post(messages.JobEnded(group, "stopped"))
        except QuantscopeError as problem:
            self.post(messages.JobEnded(group, "failed", problem.message, problem))
        except Exception as problem:  # the boundary: a failed job becomes a state, never a crash
            note = f"{type(problem).__name__}: {problem}"
            details = traceback.format_exc(limit=-6)
            self.post(messages.JobEnded(group, "failed", note, None, details))
        else:
            if seen:
                outcome = "stopped" if token() else "done"
                self.post(messages.JobEnded(group, outcome))

    def open(self, path: str) -> None:
        """Open a checkpoint, list its tensors, then inspect headers and a sample of bytes."""
        self.start("scan", partial(self._open, path), f"open and scan {path}")

    def deep_scan(self, checkpoint: Checkpoint) -> None:
        """Inspect every byte of every plane."""
        self.start("scan", partial(self._scan_bytes, checkpoint, "deep"), "deep scan")

    def page(self, channel: str, tensor: str, read: Callable[[CancelToken], Any]) -> None:
        """Read the bytes around a cursor; panes of different channels do not stop each other."""

        def work(token: CancelToken) -> None:
            page = read(token)
            if not token():
                self.post(messages.PageRead(channel, tensor, page))

        self.start(f"page:{channel}", work)

    def small(self, key: str, compute: Callable[[CancelToken], Any], title: str = "") -> None:
        """Compute something for one pane; the answer comes as `ResultReady` with the key."""

        def work(token: CancelToken) -> None:
            result = compute(token)
            if not token():
                self.post(messages.ResultReady(key, result))

        self.start(key, work, title)

    def watch_files(self, checkpoint: Checkpoint) -> None:
        """See whether the files are still what they were when opened."""

        def work(_: CancelToken) -> None:
            try:
                checkpoint.sources.check_unchanged()
            except QuantscopeError as problem:
                self.post(messages.FilesChanged(problem.message))

        self.start("watch", work)

    # Work that runs in threads

    def _open(self, path: str, token: CancelToken) -> None:
        from quantscope.checkpoint import Checkpoint

        from quantscope_views.present.headline import grouped_overview, overview_of
        from quantscope_views.present.tensor_table import (
            TensorTable,
            listed_facts,
            stored_facts,
        )

        checkpoint = Checkpoint.open(path)
        overview = overview_of(checkpoint)
        self.post(messages.CheckpointOpened(checkpoint, overview))
        _check(token)
        overview = grouped_overview(checkpoint, overview)
        grouping = checkpoint.grouping
        rows = [listed_facts(tensor) for tensor in grouping.tensors]
        rows += [stored_facts(stored, "unrecognised") for stored in grouping.unrecognised]
        rows += [stored_facts(stored, "plain") for stored in grouping.plain]
        _check(token)
        self.post(messages.TensorsListed(TensorTable(rows), overview))
        self._scan_bytes(checkpoint, "headers", token)
        if grouping.tensors:
            self._scan_bytes(checkpoint, "sample", token)

    def _scan_bytes(self, checkpoint: Checkpoint, mode: str, token: CancelToken) -> None:
        from quantscope.session.pipeline import Scope, inspect

        scope = Scope(mode=mode)  # type: ignore[arg-type]
        feed = _Feed(self, checkpoint, scope, quiet=mode == "headers")
        inspection = inspect(
            checkpoint,
            scope,
            judge=_judge(),
            progress=self._progress,
            cancelled=token,
            on_batch=feed.batch,
        )
        if mode == "headers" and token():
            raise CancelledError("stopped")
        feed.all_states(inspection.states)
        self.post(messages.InspectionJudged(inspection, mode))

    def _progress(self, progress: Progress) -> None:
        self.post(messages.JobProgressed(progress))


class _Feed:
    """Turns batches of examined tensors into messages, and judges them now and then on a long scan."""

    def __init__(self, bridge: Bridge, checkpoint: Checkpoint, scope: Scope, quiet: bool) -> None:
        from quantscope_views.present.tensor_table import FactsMaker

        self._bridge = bridge
        self._checkpoint = checkpoint
        self._scope = scope
        self._quiet = quiet
        self._maker = FactsMaker()
        self._states: list[TensorState] = []
        self._started = time.monotonic()
        self._next_judge_s = FIRST_REJUDGE_S

    def batch(self, states: Sequence[TensorState]) -> None:
        """A batch in file order."""
        first = len(self._states)
        self._states.extend(states)
        self._send(first, states)
        elapsed = time.monotonic() - self._started
        if not self._quiet and elapsed > self._next_judge_s:
            self._next_judge_s = 2 * elapsed
            self._judge_part()

    def all_states(self, states: Sequence[TensorState]) -> None:
        """Every state again, now with what the whole set says."""
        if not self._quiet:
            self._send(0, states)

    def _send(self, first: int, states: Sequence[TensorState]) -> None:
        for start in range(0, len(states), FACTS_CHUNK):
            chunk = states[start : start + FACTS_CHUNK]
            facts = [self._maker.facts(state) for state in chunk]
            self._bridge.post(messages.TensorsExamined(first + start, facts))

    def _judge_part(self) -> None:
        from quantscope.decode.plane_reader import ReadLedger
        from quantscope.session.inspection import Inspection

        part = Inspection(
            checkpoint=self._checkpoint,
            mode=self._scope.mode,
            sample_groups=self._scope.groups,
            states=tuple(self._states),
            ledger=ReadLedger(),
        )
        judge = _judge()
        if judge is not None:
            self._bridge.post(messages.InspectionJudged(judge(part), "part"))


def _judge() -> Judge | None:
    """The rules' catalogue; None where it cannot be loaded."""
    try:
        from quantscope.rules.catalogue import judge
    except ImportError:
        return None
    found: Callable[[Inspection], Inspection] = judge
    return found


def _check(token: CancelToken) -> None:
    if token():
        raise CancelledError("stopped")
