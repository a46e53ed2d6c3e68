"""The kernel check as a function: what runs here, what it costs, one tensor, a whole checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.errors import CancelledError
from quantscope.parity.coverage import coverage_of, spread
from quantscope.parity.model import (
    BackendState,
    Cost,
    Execution,
    Failure,
    ParityResult,
    ParityRun,
    Settings,
    SkipReason,
)
from quantscope.parity.planning import check_emulation, choose, cost_of
from quantscope.parity.probing import backend_named, listed, merged, split_name
from quantscope.parity.protocol import Kernel, Weight
from quantscope.parity.runner import ChildFailedError, Worker
from quantscope.parity.store import ResultStore
from quantscope.session.events import Progress, ProgressThrottle
from quantscope.session.inspection import Inspection, TensorState

__all__ = ["backends", "estimate", "run_checkpoint", "run_inspected", "run_parity"]

PROBE_TIMEOUT_S = 120.0
SET_MEMBERS = 64
"""Tensors of the same family that are inspected beside the one, so that evidence over a set speaks."""

_NEXT_KERNEL = ("no_cuda_device", "arch_unsupported", "library_load_failed", "compiler_missing")


def backends(*, probe: bool = False) -> list[BackendState]:
    """Every registered backend with the reason of each kernel that cannot run.

    Args:
        probe: ask a child process, which imports the packages and looks for devices; otherwise only
            what is installed is looked at, without importing anything heavy.
    """
    states = listed()
    if not probe:
        return states
    found: list[BackendState] = []
    with Worker() as worker:
        for state in states:
            try:
                answers = worker.run(
                    {"kind": "probe", "backends": [state.name]}, timeout_s=PROBE_TIMEOUT_S
                )
            except ChildFailedError as problem:
                message = f"{problem.failure.reason}: {problem.failure.message}"
                found.append(_broken(state, message))
                continue
            found += merged([state], answers)
    return found


def _broken(state: BackendState, message: str) -> BackendState:
    reason: SkipReason = "library_load_failed"
    kernels = tuple(
        msgspec.structs.replace(k, reason=k.reason or reason, detail=k.detail or message)
        for k in state.kernels
    )
    return msgspec.structs.replace(state, kernels=kernels, probed=True)


def estimate(state: TensorState, backend: str, settings: Settings | None = None) -> Cost:
    """What a check of one tensor would read, compute and take; its refusal where it would not run.

    Args:
        state: the tensor's state of an inspection.
        backend: name of a backend, or `backend:kernel`.
        settings: as for the run.

    Raises:
        UsageError: no backend has the name.
    """
    return cost_of(state, backend, settings or Settings())


def run_parity(
    checkpoint_path: str,
    tensor: str,
    backend: str,
    *,
    settings: Settings | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> ParityResult:
    """Check one tensor in a child process.

    A kernel that crashes, hangs or runs out of memory is a result with `status` failed, never an
    exception.

    Args:
        checkpoint_path: as given to `Checkpoint.open`.
        tensor: logical name, module or stored name.
        backend: name of a backend, or `backend:kernel`.
        settings: seed, type, caps, emulated fault.
        progress: receives throttled progress.
        cancelled: polled every 50 ms; True kills the child.

    Raises:
        CancelledError: the check was stopped.
        NoSuchTensorError: no tensor has the name.
        UsageError: no backend has the name.
    """
    run = run_checkpoint(
        checkpoint_path,
        backend,
        tensors=[tensor],
        settings=settings,
        progress=progress,
        cancelled=cancelled,
        keep=False,
    )
    if run.partial or not run.results:
        raise CancelledError("stopped")
    return run.results[0]


def run_checkpoint(
    checkpoint_path: str,
    backend: str,
    *,
    tensors: Sequence[str] | None = None,
    sample: int | None = None,
    settings: Settings | None = None,
    resume: bool = False,
    keep: bool = True,
    folder: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_result: Callable[[ParityResult], None] | None = None,
) -> ParityRun:
    """Check every quantized layer, a stated sample of them, or those named.

    Args:
        checkpoint_path: as given to `Checkpoint.open`.
        backend: name of a backend, or `backend:kernel`.
        tensors: names; all quantized tensors by default.
        sample: so many tensors, spread over the checkpoint and over its contracts.
        settings: for every tensor alike.
        resume: take finished results of an earlier run with the same settings where the bytes are equal.
        keep: keep finished results for a later `resume`.
        folder: where they are kept; the user's state folder by default.
        progress: receives throttled progress.
        cancelled: polled; a stopped run keeps what it has and says so in `partial`.
        on_result: receives each result as it comes.

    Raises:
        NoSuchTensorError: no tensor has one of the names.
        UsageError: no backend or fault has the name.
    """
    from quantscope.session.pipeline import inspect

    settings = settings or Settings()
    backend_named(split_name(backend)[0])
    check_emulation(settings.emulate)
    with Checkpoint.open(checkpoint_path) as checkpoint:
        names = _names(checkpoint, tensors)
        inspection = inspect(
            checkpoint,
            only=_with_mates(checkpoint, names) if tensors else None,
            progress=progress if len(names) > 1 else None,
            cancelled=cancelled,
        )
        if inspection.partial:
            raise CancelledError("stopped")
        store = ResultStore(checkpoint_path, backend, settings, folder) if keep else None
        return run_inspected(
            inspection,
            checkpoint_path,
            backend,
            names=spread(inspection, names, sample) if sample else names,
            selection="tensor" if tensors else f"sample {sample}" if sample else "all",
            settings=settings,
            store=store,
            resume=resume,
            progress=progress,
            cancelled=cancelled,
            on_result=on_result,
        )


def run_inspected(
    inspection: Inspection,
    checkpoint_path: str,
    backend: str,
    *,
    names: Sequence[str],
    selection: str,
    settings: Settings,
    store: ResultStore | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    on_result: Callable[[ParityResult], None] | None = None,
) -> ParityRun:
    """Check tensors of an inspection that is at hand.

    Args:
        inspection: the inspection, its checkpoint open.
        checkpoint_path: the path it was opened from, for the child process.
        backend: name of a backend, or `backend:kernel`.
        names: logical names.
        selection: how they were chosen, in words.
        settings: for every tensor alike.
        store: keeps results.
        resume: take results of the store where the bytes are equal.
        progress: receives throttled progress.
        cancelled: polled.
        on_result: receives each result as it comes.
    """
    earlier = store.load() if store is not None and resume else {}
    if store is not None and not resume:
        store.start()
    throttle = ProgressThrottle("parity", progress)
    results: list[ParityResult] = []
    resumed = 0
    partial: str | None = None
    with Worker(memory_bytes=settings.memory_bytes) as worker:
        for number, name in enumerate(names):
            state = inspection.state(name)
            known = earlier.get(name)
            if known is not None and _same_bytes(inspection, state, known):
                result, resumed = known, resumed + 1
            else:

                def step(stage: str, done: int, total: int, number: int = number) -> None:
                    part = done / total if total else 0.0
                    throttle(stage, int(100 * (number + part)), 100 * len(names), "%")

                try:
                    result = _one(
                        worker, checkpoint_path, state, backend, settings, step, cancelled
                    )
                except CancelledError:
                    partial = f"stopped after {len(results)} of {len(names)} tensors"
                    break
                if store is not None:
                    store.add(result)
            results.append(result)
            throttle("tensor", 100 * (number + 1), 100 * len(names), "%")
            if on_result is not None:
                on_result(result)
    return ParityRun(
        path=checkpoint_path,
        backend=backend,
        selection=selection,
        results=tuple(results),
        coverage=coverage_of(results, len(inspection.checkpoint.grouping.tensors), len(names)),
        resumed=resumed,
        partial=partial,
    )


def _one(
    worker: Worker,
    path: str,
    state: TensorState,
    backend: str,
    settings: Settings,
    step: Callable[[str, int, int], None],
    cancelled: Callable[[], bool] | None,
) -> ParityResult:
    """One tensor through the first kernel of the backend that runs here."""
    backend_name = split_name(backend)[0]
    if state.reading is None or state.undecodable is not None:
        why = state.undecodable or "no reading fits its planes"
        return _not_run(state, backend_name, settings, "contract_unsupported", why)
    weight = Weight(tensor=state.tensor, reading=state.reading)
    kernels: list[Kernel | None] = [None]
    if settings.emulate is None:
        choice = choose(backend, weight, settings)
        if choice.refusal is not None:
            refusal = choice.refusal
            return _not_run(state, backend_name, settings, refusal.reason, refusal.detail, weight)
        kernels = list(choice.kernels)
    result: ParityResult | None = None
    for kernel in kernels:
        result = _in_child(worker, path, weight, backend_name, kernel, settings, step, cancelled)
        if result.skip not in _NEXT_KERNEL:
            break
    assert result is not None
    return result


def _in_child(
    worker: Worker,
    path: str,
    weight: Weight,
    backend: str,
    kernel: Kernel | None,
    settings: Settings,
    step: Callable[[str, int, int], None],
    cancelled: Callable[[], bool] | None,
) -> ParityResult:
    job: dict[str, Any] = {
        "kind": "check",
        "path": path,
        "tensor": weight.tensor.name,
        "reading": msgspec.to_builtins(weight.reading),
        "backend": backend,
        "kernel": f"{kernel.name}@{kernel.device}" if kernel is not None else "",
        "settings": msgspec.to_builtins(settings),
    }
    try:
        answer = worker.run(job, timeout_s=settings.timeout_s, on_step=step, cancelled=cancelled)
        result = msgspec.convert(answer, ParityResult)
    except ChildFailedError as problem:
        return _failed(weight, backend, kernel, settings, problem.failure)
    return msgspec.structs.replace(result, stderr_tail=worker.stderr_tail[-2000:])


def _failed(
    weight: Weight, backend: str, kernel: Kernel | None, settings: Settings, failure: Failure
) -> ParityResult:
    return ParityResult(
        tensor=weight.tensor.name,
        backend=backend,
        kernel=kernel.name if kernel is not None else None,
        device=kernel.device if kernel is not None else None,
        status="failed",
        outcome=None,
        executes_kernel=kernel is not None and kernel.executes,
        execution=Execution(proof="unproven", reason="the check did not finish"),
        reason=failure.message,
        failure=failure,
        contract=weight.contract,
        reading=weight.reading.contract_values(),
        shape=weight.reading.shape,
        settings=settings,
        emulated=settings.emulate,
        stderr_tail=failure.stderr_tail[-2000:],
    )


def _not_run(
    state: TensorState,
    backend: str,
    settings: Settings,
    reason: SkipReason,
    detail: str,
    weight: Weight | None = None,
) -> ParityResult:
    return ParityResult(
        tensor=state.tensor.name,
        backend=backend,
        kernel=None,
        device=None,
        status="skipped",
        outcome=None,
        executes_kernel=False,
        execution=Execution(proof="not_applicable", reason="nothing was run"),
        reason=detail,
        skip=reason,
        contract=weight.contract if weight is not None else state.tensor.word,
        shape=state.reading.shape if state.reading is not None else state.tensor.shape,
        settings=settings,
        emulated=settings.emulate,
    )


def _same_bytes(inspection: Inspection, state: TensorState, known: ParityResult) -> bool:
    from quantscope.parity.check import planes_fingerprint

    if state.reading is None or not known.fingerprint:
        return False
    weight = Weight(tensor=state.tensor, reading=state.reading)
    same_reading = known.reading == weight.reading.contract_values()
    return same_reading and planes_fingerprint(inspection.checkpoint, weight) == known.fingerprint


def _names(checkpoint: Checkpoint, tensors: Sequence[str] | None) -> list[str]:
    if tensors is None:
        return [tensor.name for tensor in checkpoint.grouping.tensors]
    return list(dict.fromkeys(checkpoint.find(name).name for name in tensors))


def _with_mates(checkpoint: Checkpoint, names: Sequence[str]) -> set[str]:
    """The tensors and a spread of others of their families, so that set-level evidence is the scan's."""
    wanted = set(names)
    families = {checkpoint.find(name).family for name in names}
    for family in families:
        mates = [t.name for t in checkpoint.grouping.tensors if t.family == family]
        wanted.update(mates[:: max(1, -(-len(mates) // SET_MEMBERS))])
    return wanted
