"""What a running job tells: progress as plain values, cancellation as a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is. `total` is 0 where it is not known yet; `unit` is what is counted."""

    job: str
    stage: str
    done: int
    total: int
    unit: str = "tensors"
    elapsed_s: float = 0.0

    @property
    def rate(self) -> float:
        """Units a second so far."""
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at the present rate; None while it means nothing."""
        if self.elapsed_s < 1.0 or not self.done or not self.total:
            return None
        return (self.total - self.done) / self.rate


class CancelToken:
    """Set once to stop a job; the job polls it at least every 50 ms."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Ask the job to stop."""
        self._event.set()

    def __call__(self) -> bool:
        """Whether the job should stop."""
        return self._event.is_set()


class ProgressThrottle:
    """Passes progress on at most every `interval_s` seconds, and always the last step."""

    def __init__(
        self, job: str, sink: Callable[[Progress], None] | None, interval_s: float = 0.1
    ) -> None:
        self._job = job
        self._sink = sink
        self._interval_s = interval_s
        self._started = time.monotonic()
        self._last = 0.0

    def __call__(
        self, stage: str, done: int, total: int, unit: str = "tensors", *, always: bool = False
    ) -> None:
        """Report a step; `always` whatever the time."""
        if self._sink is None:
            return
        now = time.monotonic()
        if not always and done < total and now - self._last < self._interval_s:
            return
        self._last = now
        self._sink(
            Progress(
                job=self._job,
                stage=stage,
                done=done,
                total=total,
                unit=unit,
                elapsed_s=now - self._started,
            )
        )
