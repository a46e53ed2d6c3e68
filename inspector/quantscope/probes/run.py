"""The logits check as a function: cost first, then a child process that can be stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from quantscope.errors import CancelledError, MissingExtraError, QuantscopeError
from quantscope.extras import install_hint
from quantscope.parity.runner import ChildFailedError, Worker, default_memory
from quantscope.probes.cost import estimate
from quantscope.probes.model import (
    READING_STAGE,
    ProbeFailure,
    ProbeRequest,
    ProbeResult,
    SideResult,
)
from quantscope.session.events import Progress, ProgressThrottle

__all__ = ["ProbeFailedError", "ProbeStoppedError", "estimate", "missing", "run_probe"]

CHILD_COMMAND = (sys.executable, "-P", "-m", "quantscope.probes.child")
"""`-P` keeps the working folder out of the module path: it may be a checkpoint with a file called torch.py."""

CONTROL_PASSES = 3
"""Passes beside the sides: the base again, the planted misreading, the base at the end."""

ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
"""Waiting threads sleep: spinning ones take the processor from the app that shows the progress."""


class ProbeFailedError(QuantscopeError):
    """The check could not finish; `failure` says how, and holds the sides that were finished before."""

    def __init__(self, failure: ProbeFailure) -> None:
        super().__init__(f"the logits check could not finish: {failure.message}")
        self.failure = failure


class ProbeStoppedError(CancelledError):
    """The check was stopped; `done` holds the sides that were finished before."""

    def __init__(self, done: tuple[SideResult, ...]) -> None:
        super().__init__(f"the logits check was stopped after {len(done)} finished sides")
        self.done = done


def missing() -> str | None:
    """The first package that the check needs and that is not installed."""
    import importlib.util

    for name in ("torch", "transformers", "tokenizers", "accelerate"):
        if importlib.util.find_spec(name) is None:
            return name
    return None


def run_probe(
    request: ProbeRequest,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ProbeResult:
    """Run a check in a child process.

    Args:
        request: sides, tokens, device, caps.
        progress: receives throttled progress.
        cancelled: polled every 50 ms; True kills the child.

    Raises:
        MissingExtraError: a package of the extra `probe` is not installed.
        ProbeFailedError: the child refused, crashed, hung or ran out of memory.
        ProbeStoppedError: the check was stopped; a CancelledError.
    """
    absent = missing()
    if absent is not None:
        raise MissingExtraError(
            f"the logits check needs {absent}",
            hint=install_hint("probe"),
        )
    finished: list[SideResult] = []
    told = _Told(request, progress)

    def on_step(stage: str, done: int, total: int, side: Any = None) -> None:
        if side is not None:
            finished.append(msgspec.convert(side, SideResult))
        else:
            told.step(stage, done, total)

    with Worker(
        memory_bytes=request.memory_bytes or default_memory(),
        command=CHILD_COMMAND,
        environment=ENVIRONMENT,
    ) as worker:
        try:
            answer = worker.run(
                msgspec.to_builtins(request),
                timeout_s=request.timeout_s,
                on_step=on_step,
                cancelled=cancelled,
            )
        except CancelledError:
            raise ProbeStoppedError(tuple(finished)) from None
        except ChildFailedError as problem:
            failure = problem.failure
            raise ProbeFailedError(
                ProbeFailure(
                    reason=failure.reason,
                    message=failure.message,
                    stderr_tail=failure.stderr_tail,
                    done=tuple(finished),
                )
            ) from None
    return msgspec.convert(answer, ProbeResult)


class _Told:
    """Progress of the whole check, so that rate and time left mean something in every pass."""

    def __init__(self, request: ProbeRequest, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self._passes = len(request.sides) + CONTROL_PASSES + request.by_layer
        self._stages: list[str] = []
        self._throttle = ProgressThrottle("probe", progress)

    def step(self, stage: str, done: int, total: int) -> None:
        """A step of reading the checkpoints, or of one pass."""
        if stage == READING_STAGE:
            self._throttle(stage, done, total, "checkpoints", always=True)
            return
        if not self._stages:
            # Passes have a pace of their own: what came before them does not count.
            self._throttle = ProgressThrottle("probe", self._progress)
        if stage not in self._stages:
            self._stages.append(stage)
        before = min(len(self._stages), self._passes) - 1
        whole = self._passes * total
        self._throttle(stage, before * total + done, whole, "units", always=done >= total)
