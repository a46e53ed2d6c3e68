"""The only owner of thread workers: runs the engine off the event loop and posts what it tells.

Every kind of work has a group of its own; a newer job of a group stops the older one through its token.
Nothing here touches a widget.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.session.events import CancelToken, Progress
from textual.message import Message

from quantscope_views import messages

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint
    from quantscope.session.inspection import Inspection, TensorState
    from quantscope.session.pipeline import Judge, Scope
    from textual.app import App

    from quantscope_views.present.run_facts import LogitsOffer

Work = Callable[[CancelToken], None]

FACTS_CHUNK = 500
"""Rows a message carries at most, so that taking them in never holds the event loop."""

BUSY_SWITCH_S = 0.0005
"""Seconds after which a running thread gives way while work is under way."""

IDLE_SWITCH_S = 0.005
"""CPython's own value."""

HOT_S = 0.25
"""How long after a key jobs make way."""

ASIDE_S = 0.004
"""How long a job steps aside each time it polls while the event loop is wanted."""

YOUNG_OBJECTS = 20_000
"""Objects made between two looks of the collector: a checkpoint is hundreds of thousands that all stay."""

_LATER_SCREENS = (
    "tensors",
    "tensor",
    "report",
    "compare",
    "pair",
    "jobs",
    "pages",
    "prompts",
    "raw",
    "start",
)
LATER_MODULES = (
    *(f"quantscope_views.screens.{name}" for name in _LATER_SCREENS),
    "quantscope.rules.catalogue",
    "quantscope_views.palette",
)
"""Modules that the first screen does without."""

WEIGHT_ENDINGS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")

GIVE_UP_S = 0.02
"""How soon a worker notices that its job was given up."""

FIRST_REJUDGE_S = 2.0
"""A scan that takes longer gives its first findings after this time, then after twice as long each time."""


class JobToken(CancelToken):
    """Stops a job, or gives it up: a job given up may go on a little, but nothing it says is heard.

    Jobs poll it often, so it is also where they step aside while a person types.
    """

    def __init__(self, hot: Callable[[], bool]) -> None:
        super().__init__()
        self.abandoned = False
        self._hot = hot

    def __call__(self) -> bool:
        """Whether the job should stop; makes way first where the event loop is wanted."""
        if self._hot():
            time.sleep(ASIDE_S)
        return super().__call__()

    def abandon(self) -> None:
        """Give the job up."""
        self.abandoned = True
        self.cancel()


class Bridge:
    """Starts, stops and reports background work for one app.

    The engine runs in a daemon thread that its worker waits for, so that a job that is given up while it
    is deep in one long step keeps nobody from leaving.
    """

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._tokens: dict[str, JobToken] = {}
        self._busy = 0
        self._hot_until = 0.0
        self._lock = threading.Lock()
        self._local = threading.local()
        self._known_states: tuple[TensorState, ...] = ()

    def post(self, message: Message) -> None:
        """Post a message to the app from any thread; a job that was given up says nothing any more."""
        token = getattr(self._local, "token", None)
        if token is None or not token.abandoned:
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
            old.abandon()
        token = JobToken(self._is_hot)
        self._tokens[group] = token
        if title:
            self.post(messages.JobStarted(group, title))
        self._app.run_worker(
            partial(self._wait, group, work, token, bool(title)),
            group=group,
            exclusive=True,
            exit_on_error=False,
            thread=True,
        )
        return token

    def stop(self, group: str) -> None:
        """Ask the job of a group to stop; what it has is kept."""
        token = self._tokens.get(group)
        if token is not None:
            token.cancel()

    def stop_all(self) -> None:
        """Give everything up; called before the app ends or opens something else."""
        for token in self._tokens.values():
            token.abandon()

    def touch(self) -> None:
        """A person pressed a key or moved the mouse: jobs make way for a moment."""
        self._hot_until = time.monotonic() + HOT_S

    def _is_hot(self) -> bool:
        return time.monotonic() < self._hot_until

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        """While work runs, threads hand the interpreter over often, so that the event loop never waits long."""
        with self._lock:
            self._busy += 1
            if self._busy == 1:
                sys.setswitchinterval(BUSY_SWITCH_S)
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1
                if not self._busy:
                    sys.setswitchinterval(IDLE_SWITCH_S)

    def _wait(self, group: str, work: Work, token: JobToken, seen: bool) -> None:
        """Body of the worker: wait for the daemon thread until it ends or is given up."""
        thread = threading.Thread(
            target=self._run, args=(group, work, token, seen), name=group, daemon=True
        )
        thread.start()
        while thread.is_alive() and not token.abandoned:
            thread.join(GIVE_UP_S)

    def _run(self, group: str, work: Work, token: JobToken, seen: bool) -> None:
        self._local.token = token
        with self._sharing():
            try:
                work(token)
            except CancelledError:
                if seen:
                    self.post(messages.JobEnded(group, "stopped"))
            except QuantscopeError as problem:
                self.post(messages.JobEnded(group, "failed", problem.message, problem))
            except (
                Exception
            ) as problem:  # the boundary: a failed job becomes a state, never a crash
                note = f"{type(problem).__name__}: {problem}"
                details = traceback.format_exc(limit=-6)
                self.post(messages.JobEnded(group, "failed", note, None, details))
            else:
                if seen:
                    self.post(messages.JobEnded(group, "stopped" if token() else "done"))

    def open(self, path: str) -> None:
        """Open a checkpoint, list its tensors, then inspect headers and a sample of bytes.

        Names and states live as long as the checkpoint is open, so the garbage collector is told to leave
        them alone: walking a million of them would hold the event loop for half a second.
        """
        self.start("scan", partial(self._open, path), f"open and scan {path}")

    def warm(self) -> None:
        """Import the screens that a person may ask for next, off the loop."""

        def work(_: CancelToken) -> None:
            for name in LATER_MODULES:
                importlib.import_module(name)

        self.start("warm", work)

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
        """Compute something for one pane; the answer comes as `ResultReady` with the key.

        Work that is stopped may still answer with what it has, labelled partial by itself.
        """

        def work(token: CancelToken) -> None:
            self.post(messages.ResultReady(key, compute(token)))

        self.start(key, work, title)

    def progress_of(self, key: str) -> Callable[[Progress], None]:
        """Passes progress on as that of the job with a key."""

        def progress(step: Progress) -> None:
            self.post(messages.JobProgressed(msgspec.structs.replace(step, job=key)))

        return progress

    def logits(self, offer: LogitsOffer) -> None:
        """Run an offered logits check; a stopped or failed one leaves what it had finished."""
        from quantscope_views.present.run_facts import run_logits

        self.small(
            "check",
            lambda token: run_logits(
                offer.request,
                self.progress_of("check"),
                token,
                lambda part: self.post(messages.ResultReady("check", part)),
            ),
            offer.title,
        )

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

        self._known_states = ()
        gc.unfreeze()
        gc.set_threshold(YOUNG_OBJECTS)
        self.post(messages.FolderSeen(folder_words(path)))
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
        gc.freeze()
        self.post(messages.TensorsListed(TensorTable(rows), overview))
        self._scan_bytes(checkpoint, "headers", token, last=not grouping.tensors)
        if grouping.tensors:
            self._scan_bytes(checkpoint, "sample", token)

    def _scan_bytes(
        self, checkpoint: Checkpoint, mode: str, token: CancelToken, *, last: bool = True
    ) -> None:
        """Inspect in one mode; a stopped scan keeps what it examined beside what was known of the rest before."""
        from quantscope.session.pipeline import Scope, inspect

        scope = Scope(mode=mode)  # type: ignore[arg-type]
        feed = _Feed(self, checkpoint, scope, self._known_states)
        inspection = inspect(
            checkpoint, scope, progress=self._progress, cancelled=token, on_batch=feed.batch
        )
        if mode == "headers":
            if token():
                raise CancelledError("stopped")
            self._known_states = inspection.states
            gc.freeze()
        inspection = feed.completed(inspection)
        if mode != "headers":
            self._known_states = inspection.states
            feed.send(0, inspection.states)
        judge = _judge()
        stage = "sample" if mode == "headers" and last else mode
        self.judged(judge(inspection) if judge is not None else inspection, stage)

    def judged(self, inspection: Inspection, stage: str) -> None:
        """Count what the screens show, here in the thread, and post it with the inspection."""
        from quantscope_views.present.scan_tally import tally_of

        self.post(messages.InspectionJudged(inspection, tally_of(inspection), stage))

    def _progress(self, progress: Progress) -> None:
        self.post(messages.JobProgressed(progress))


class _Feed:
    """Turns batches of examined tensors into messages, and judges them now and then on a long scan.

    Args:
        bridge: where messages go.
        checkpoint: what is scanned.
        scope: how much is read.
        known: states of all tensors as scans before left them; empty while headers are read.
    """

    def __init__(
        self,
        bridge: Bridge,
        checkpoint: Checkpoint,
        scope: Scope,
        known: tuple[TensorState, ...],
    ) -> None:
        from quantscope_views.present.tensor_table import FactsMaker

        self._bridge = bridge
        self._checkpoint = checkpoint
        self._scope = scope
        self._known = known
        self._maker = FactsMaker()
        self._states: list[TensorState] = []
        self._started = time.monotonic()
        self._next_judge_s = FIRST_REJUDGE_S

    def batch(self, states: Sequence[TensorState]) -> None:
        """A batch in file order."""
        first = len(self._states)
        self._states.extend(states)
        self.send(first, states)
        elapsed = time.monotonic() - self._started
        if self._known and elapsed > self._next_judge_s:
            self._next_judge_s = 2 * elapsed
            self._judge_part()

    def send(self, first: int, states: Sequence[TensorState]) -> None:
        """Rows of states, in messages that are quick to take in."""
        for start in range(0, len(states), FACTS_CHUNK):
            chunk = states[start : start + FACTS_CHUNK]
            facts = [self._maker.facts(state) for state in chunk]
            self._bridge.post(messages.TensorsExamined(first + start, facts))

    def completed(self, inspection: Inspection) -> Inspection:
        """The inspection with every tensor in it: those not reached as they were known before."""
        missing = self._known[len(inspection.states) :]
        if not missing:
            return inspection
        return msgspec.structs.replace(inspection, states=(*inspection.states, *missing))

    def _judge_part(self) -> None:
        from quantscope.decode.ledger import ReadLedger
        from quantscope.session.inspection import Inspection

        judge = _judge()
        if judge is None:
            return
        part = Inspection(
            checkpoint=self._checkpoint,
            mode=self._scope.mode,
            sample_groups=self._scope.groups,
            states=tuple(self._states),
            ledger=ReadLedger(),
        )
        self._bridge.judged(judge(self.completed(part)), "part")


def folder_words(path: str) -> str:
    """`160 weight files, 668 GB`, from the folder's listing alone; empty where there is nothing to list."""
    from quantscope_views.present.words import count_words, size_words

    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                sizes = [
                    entry.stat().st_size for entry in entries if entry.name.endswith(WEIGHT_ENDINGS)
                ]
        else:
            sizes = [os.stat(path).st_size]
    except OSError:
        return ""
    return f"{count_words(len(sizes), 'weight file')}, {size_words(sum(sizes))}" if sizes else ""


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
