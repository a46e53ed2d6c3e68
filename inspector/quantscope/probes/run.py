"""The logits check as a function: cost first, then a child process that can be stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from quantscope.errors import MissingExtraError, QuantscopeError
from quantscope.parity.runner import ChildFailedError, Worker, default_memory
from quantscope.probes.model import Cost, ProbeFailure, ProbeRequest, ProbeResult
from quantscope.session.events import Progress, ProgressThrottle
from quantscope.session.inspection import Inspection

CHILD_COMMAND = (sys.executable, "-m", "quantscope.probes.child")

DECODE_SECONDS_PER_WEIGHT = 6e-9
"""Measured on two cores: about 1.7 s for the 134.5 M weights of SmolLM2."""
FLOPS = 2.5e10
"""Float32 matmul rate assumed of a CPU with two threads."""


class ProbeFailedError(QuantscopeError):
    """The check could not finish; `failure` says how."""

    def __init__(self, failure: ProbeFailure) -> None:
        super().__init__(f"the logits check could not finish: {failure.message}")
        self.failure = failure


def missing() -> str | None:
    """The first package that the check needs and that is not installed."""
    import importlib.util

    for name in ("torch", "transformers", "tokenizers", "accelerate"):
        if importlib.util.find_spec(name) is None:
            return name
    return None


def estimate(inspection: Inspection, request: ProbeRequest) -> Cost:
    """What a request would cost on this checkpoint, from headers alone."""
    parameters = largest = nbytes = 0
    for state in inspection.states:
        shape = state.reading.shape if state.reading is not None else state.tensor.shape
        count = 1
        for extent in shape:
            count *= extent
        parameters += count
        largest = max(largest, count)
        nbytes += sum(plane.nbytes for plane in state.tensor.planes)
    for stored in inspection.checkpoint.grouping.plain:
        count = 1
        for extent in stored.shape:
            count *= extent
        parameters += count
        largest = max(largest, count)
        nbytes += stored.nbytes
    passes = len(request.sides) + 3 + (2 if request.by_layer else 0)
    tokens = request.tokens.targets + 1
    seconds = passes * (parameters * DECODE_SECONDS_PER_WEIGHT + 2.0 * parameters * tokens / FLOPS)
    resident = 3 * largest * 4 if request.stream else parameters * 4
    return Cost(
        passes=passes,
        bytes_read=nbytes * passes,
        parameters=parameters,
        tokens=tokens,
        seconds=round(4.0 + seconds, 1),
        memory_bytes=600_000_000 + resident,
        how="weights decoded once a pass, 2 FLOPs a weight and token, two CPU threads assumed",
    )


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
        CancelledError: the check was stopped.
    """
    absent = missing()
    if absent is not None:
        raise MissingExtraError(
            f"the logits check needs {absent}",
            hint="pip install torch, then pip install 'quantscope[probe]'",
        )
    throttle = ProgressThrottle("probe", progress)
    with Worker(
        memory_bytes=request.memory_bytes or default_memory(), command=CHILD_COMMAND
    ) as worker:
        try:
            answer = worker.run(
                msgspec.to_builtins(request),
                timeout_s=request.timeout_s,
                on_step=lambda stage, done, total: throttle(stage, done, total, "units"),
                cancelled=cancelled,
            )
        except ChildFailedError as problem:
            failure = problem.failure
            raise ProbeFailedError(
                ProbeFailure(
                    reason=failure.reason,
                    message=failure.message,
                    stderr_tail=failure.stderr_tail,
                )
            ) from None
    return msgspec.convert(answer, ProbeResult)
