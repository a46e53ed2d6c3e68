"""What can be run on a tensor, at what cost, and the running of it; nothing here is on the event loop."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from quantscope.extras import install_hint
from quantscope.parity.model import BackendState, KernelState, ParityRun, Settings
from quantscope.parity.run import backends, estimate, run_inspected
from quantscope.probes.for_report import base_of, request_of
from quantscope.probes.likeness import why_unlike
from quantscope.probes.model import Cost, ProbeRequest, ProbeResult, SideResult
from quantscope.probes.run import ProbeFailedError, ProbeStoppedError, missing, run_probe
from quantscope.probes.run import estimate as probe_estimate
from quantscope.session.events import Progress
from quantscope.session.inspection import Inspection, TensorState

Cancelled = Callable[[], bool]
TENSOR_REFUSALS = frozenset({"contract_unsupported", "shape_unsupported"})
"""Refusals that are about the tensor: installing something does not change them."""


class KernelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of one backend for one tensor: whether it can run here, and what it would cost."""

    key: str
    """`backend:kernel@device`, as the command line takes it."""
    title: str
    runs: bool
    executes: bool
    """False for arithmetic that stands in for a kernel."""
    why_not: str = ""
    takes: bool = True
    """False where it would not take this tensor on any machine."""
    seconds: float = 0.0
    memory_bytes: int = 0


class LogitsOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A logits check that could be started, with its cost, or why it cannot."""

    request: ProbeRequest
    cost: Cost | None = None
    """None where it cannot be run."""
    why_not: str = ""
    note: str = ""
    """What this check will not tell."""
    title: str = "logits check"
    """Of the job."""
    command: str = ""
    """The command line that does the same."""


class LogitsRun(msgspec.Struct, frozen=True, kw_only=True):
    """A logits check of this session: its result, or why it has none and the sides that were finished."""

    request: ProbeRequest
    ended: Literal["done", "stopped", "refused", "failed"] = "done"
    result: ProbeResult | None = None
    done: tuple[SideResult, ...] = ()
    note: str = ""
    details: str = ""

    @property
    def base(self) -> str | None:
        """Path of the baseline; None where all sides are readings of one checkpoint."""
        return base_of(self.request)


def logits_words(runs: Sequence[LogitsRun]) -> str:
    """What the newest logits check of two readings of the checkpoint found; empty where none ended."""
    for run in reversed(runs):
        if run.base is None and run.result is not None:
            return f"its controls: {str(run.result.outcome).replace('_', ' ')}"
    return ""


class RunChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the Run tab offers for a tensor."""

    kernels: tuple[KernelChoice, ...]
    logits: LogitsOffer


def read_choices(
    path: str, inspection: Inspection, state: TensorState, cancelled: Cancelled | None = None
) -> RunChoices:
    """Look at what is installed, without importing it, and estimate each run."""
    kernels = [
        _kernel(backend, kernel, state) for backend in backends() for kernel in backend.kernels
    ]
    kernels.sort(key=lambda c: (not c.runs, not c.takes, not c.executes, c.key))
    return RunChoices(kernels=tuple(kernels), logits=logits_offer(path, inspection))


def _kernel(backend: BackendState, kernel: KernelState, state: TensorState) -> KernelChoice:
    key = f"{backend.name}:{kernel.name}@{kernel.device}"
    why, takes = "", True
    seconds, memory = 0.0, 0
    if backend.error is not None:
        why = f"not loaded: {backend.error}"
    elif any(equation.holds is False for equation in state.solved.equations):
        why, takes = "sizes: the stored planes do not hold the tensor's shape", False
    else:
        cost = estimate(state, key)
        seconds, memory = cost.seconds, cost.memory_bytes
        takes = cost.refusal not in TENSOR_REFUSALS
        if not takes:
            why = cost.refusal_detail or str(cost.refusal)
        elif kernel.reason is not None:
            why = kernel.detail or kernel.reason
        elif cost.refusal is not None:
            why = cost.refusal_detail or cost.refusal
    return KernelChoice(
        key=key,
        title=kernel.title,
        runs=not why,
        executes=kernel.executes,
        why_not=why,
        takes=takes,
        seconds=seconds,
        memory_bytes=memory,
    )


def run_kernel(
    inspection: Inspection,
    path: str,
    key: str,
    tensor: str,
    progress: Callable[[Progress], None],
    cancelled: Cancelled,
) -> ParityRun:
    """Run one kernel on one tensor in a child process.

    Raises:
        CancelledError: stopped.
        UsageError: no backend has the name.
    """
    return run_inspected(
        inspection,
        path,
        key,
        names=(tensor,),
        selection=f"{tensor}, by hand",
        settings=Settings(),
        progress=progress,
        cancelled=cancelled,
    )


def logits_offer(
    path: str,
    inspection: Inspection,
    base: tuple[str, Inspection] | None = None,
    *,
    two_readings: bool = False,
) -> LogitsOffer:
    """What a logits check of a checkpoint would cost, alone or against a base, or why it cannot be run.

    Args:
        path: the checkpoint.
        inspection: of it.
        base: path and inspection of the baseline.
        two_readings: there must be a second reading of the checkpoint to compare with.
    """
    opened = (base[0], base[1].checkpoint) if base is not None else None
    request = request_of(path, inspection, opened)
    checkpoints = [inspection.checkpoint, *([opened[1]] if opened is not None else [])]
    title = f"logits check against {os.path.basename(os.path.abspath(base[0]))}" if base else ""
    words = ["quantscope", "probe", path, *(["--against", base[0]] if base else [])]
    offer = LogitsOffer(request=request, title=title or "logits check", command=shlex.join(words))
    absent, unlike = missing(), why_unlike(checkpoints)
    why_not = ""
    if absent is not None:
        why_not = f"needs {absent}: {install_hint('probe')}"
    elif unlike is not None:
        why_not = unlike
    elif two_readings and len(request.sides) < 2:
        why_not = "no tensor has stored integer zeros: there is no second reading"
    if why_not:
        return msgspec.structs.replace(offer, why_not=why_not)
    note = ""
    if request.tokens.source == "random":
        note = "random ids, so KL only and no NLL: no tokenizer usable without guessing"
    return msgspec.structs.replace(offer, cost=probe_estimate(inspection, request), note=note)


def run_logits(
    request: ProbeRequest,
    progress: Callable[[Progress], None],
    cancelled: Cancelled,
    keep: Callable[[LogitsRun], None],
) -> LogitsRun:
    """Run the model under each side of a request on the same tokens, in a child process.

    Args:
        request: what is compared.
        progress: receives throttled progress.
        cancelled: polled; True kills the child.
        keep: receives what a check that did not end by itself had finished, before the error is raised.

    Raises:
        CancelledError: stopped.
        MissingExtraError: a package is not installed.
        QuantscopeError: the child refused, crashed, hung or ran out of memory.
    """
    try:
        result = run_probe(request, progress=progress, cancelled=cancelled)
    except ProbeStoppedError as problem:
        keep(LogitsRun(request=request, ended="stopped", done=problem.done, note="stopped by hand"))
        raise
    except ProbeFailedError as problem:
        failure = problem.failure
        keep(
            LogitsRun(
                request=request,
                ended="refused" if failure.reason == "refused" else "failed",
                done=failure.done,
                note=failure.message,
                details=failure.stderr_tail,
            )
        )
        raise
    return LogitsRun(request=request, result=result)


def newest(
    runs: Sequence[LogitsRun], request: ProbeRequest | None
) -> tuple[ProbeResult | None, LogitsRun | None]:
    """The newest result of a request, and the newest run of it where that has no result."""
    own = [run for run in reversed(runs) if run.request == request]
    result = next((run.result for run in own if run.result is not None), None)
    return result, (own[0] if own and own[0].result is None else None)


def to_report(runs: Sequence[LogitsRun]) -> tuple[LogitsRun, ...]:
    """The run of each request that speaks for it: the newest result, else the newest run; oldest first."""
    kept: list[LogitsRun] = []
    for run in reversed(runs):
        before = next((k for k in kept if k.request == run.request), None)
        if before is None:
            kept.append(run)
        elif before.result is None and run.result is not None:
            kept[kept.index(before)] = run
    return tuple(reversed(kept))
