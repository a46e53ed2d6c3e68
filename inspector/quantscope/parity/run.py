"""The kernel check as a function: what runs here, what it costs, one tensor, a whole checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quantscope.parity.model import (
    BackendState,
    Cost,
    ParityResult,
    ParityRun,
    Settings,
)
from quantscope.session.events import Progress
from quantscope.session.inspection import TensorState

__all__ = ["backends", "estimate", "run_checkpoint", "run_parity"]


def backends(*, probe: bool = False) -> list[BackendState]:
    """Every registered backend with the reason of each kernel that cannot run.

    Args:
        probe: ask a child process, which imports the packages and looks for devices; otherwise only
            what is installed is looked at, without importing anything heavy.
    """
    raise NotImplementedError


def estimate(state: TensorState, backend: str, settings: Settings | None = None) -> Cost:
    """What a check of one tensor would read, compute and take; its refusal where it would not run.

    Args:
        state: the tensor's state of an inspection.
        backend: name of a backend, or `backend:kernel`.
        settings: as for the run.
    """
    raise NotImplementedError


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
    raise NotImplementedError


def run_checkpoint(
    checkpoint_path: str,
    backend: str,
    *,
    tensors: Sequence[str] | None = None,
    sample: int | None = None,
    settings: Settings | None = None,
    resume: bool = False,
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
        progress: receives throttled progress.
        cancelled: polled; a stopped run keeps what it has and says so in `partial`.
        on_result: receives each result as it comes.
    """
    raise NotImplementedError
