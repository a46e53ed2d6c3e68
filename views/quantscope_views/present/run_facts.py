"""What can be run on a tensor, at what cost, and the running of it; nothing here is on the event loop."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from quantscope.parity.model import BackendState, KernelState, ParityRun, Settings
from quantscope.parity.run import backends, estimate, run_inspected
from quantscope.probes.for_report import OWN, other_convention
from quantscope.probes.model import ProbeRequest, ProbeResult, SideRequest, TokenRequest
from quantscope.probes.run import estimate as probe_estimate
from quantscope.probes.run import missing, run_probe
from quantscope.probes.text import render_cost
from quantscope.session.events import Progress
from quantscope.session.inspection import Inspection, TensorState

Cancelled = Callable[[], bool]


class KernelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of one backend for one tensor: whether it can run here, and what it would cost."""

    key: str
    """`backend:kernel@device`, as the command line takes it."""
    title: str
    runs: bool
    executes: bool
    """False for arithmetic that stands in for a kernel."""
    why_not: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0


class RunChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the Run tab offers for a tensor."""

    kernels: tuple[KernelChoice, ...]
    logits_cost: str = ""
    """Cost of the logits check in words; empty where it cannot run."""
    logits_missing: str = ""


def read_choices(
    path: str, inspection: Inspection, state: TensorState, cancelled: Cancelled | None = None
) -> RunChoices:
    """Look at what is installed, without importing it, and estimate each run."""
    kernels = [
        _kernel(backend, kernel, state) for backend in backends() for kernel in backend.kernels
    ]
    kernels.sort(key=lambda choice: (not choice.runs, not choice.executes, choice.key))
    absent = missing()
    cost = "" if absent else render_cost(probe_estimate(inspection, _request(path, inspection)))
    return RunChoices(kernels=tuple(kernels), logits_cost=cost, logits_missing=absent or "")


def _kernel(backend: BackendState, kernel: KernelState, state: TensorState) -> KernelChoice:
    key = f"{backend.name}:{kernel.name}@{kernel.device}"
    why = ""
    seconds, memory = 0.0, 0
    if backend.error is not None:
        why = f"not loaded: {backend.error}"
    elif kernel.reason is not None:
        why = f"{kernel.reason}: {kernel.detail}"
    elif any(equation.holds is False for equation in state.solved.equations):
        why = "sizes: the stored planes do not hold the tensor's shape"
    else:
        cost = estimate(state, key)
        seconds, memory = cost.seconds, cost.memory_bytes
        if cost.refusal is not None:
            why = f"{cost.refusal}: {cost.refusal_detail}"
    return KernelChoice(
        key=key,
        title=kernel.title,
        runs=not why,
        executes=kernel.executes,
        why_not=why,
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


def _request(path: str, inspection: Inspection) -> ProbeRequest:
    other = other_convention(inspection)
    sides = [SideRequest(label=OWN, path=path)]
    if other is not None:
        label = f"zero_convention={other}"
        sides.append(SideRequest(label=label, path=path, reading={"zero_convention": other}))
    return ProbeRequest(sides=tuple(sides), tokens=_tokens(inspection))


def _tokens(inspection: Inspection) -> TokenRequest:
    from quantscope.probes.tokens import has_tokenizer

    known = has_tokenizer(inspection.checkpoint)
    return TokenRequest(source="passage" if known else "random")


def run_logits(
    inspection: Inspection,
    path: str,
    progress: Callable[[Progress], None],
    cancelled: Cancelled,
) -> ProbeResult:
    """Run the model under each zero reading on the same tokens, in a child process.

    Raises:
        CancelledError: stopped.
        MissingExtraError: a package is not installed.
        QuantscopeError: the child refused, crashed, hung or ran out of memory.
    """
    return run_probe(_request(path, inspection), progress=progress, cancelled=cancelled)
