"""Which backends and kernels there are: cheaply by looking at what is installed, or by trying in a child process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quantscope.closest import closest_hint
from quantscope.errors import UsageError
from quantscope.parity.model import BackendState, KernelState
from quantscope.parity.protocol import Backend, Kernel, Refusal, load_backends
from quantscope.parity.records import CUDA_RECORDS


def listed() -> list[BackendState]:
    """Every registered backend; nothing heavy is imported."""
    states = []
    for backend, record in load_backends():
        if backend is None:
            states.append(
                BackendState(
                    name=record.name,
                    title=record.value,
                    kernels=(),
                    distribution=record.distribution,
                    error=record.error,
                )
            )
            continue
        states.append(
            BackendState(
                name=backend.name,
                title=backend.title,
                kernels=tuple(_state(kernel, kernel.missing()) for kernel in backend.kernels),
                versions=backend.versions(),
                distribution=record.distribution,
                ran_on_cuda=backend.name in CUDA_RECORDS,
            )
        )
    return states


def _state(kernel: Kernel, refusal: Refusal | None) -> KernelState:
    return KernelState(
        name=kernel.name,
        title=kernel.title,
        device=kernel.device,
        executes=kernel.executes,
        contracts=kernel.contracts,
        reason=refusal.reason if refusal is not None else None,
        detail=refusal.detail if refusal is not None else "",
    )


def probe_all(names: Sequence[str]) -> list[dict[str, Any]]:
    """Child: what each kernel of the named backends says when it is really tried."""
    found = []
    for backend, _ in load_backends():
        if backend is None or (names and backend.name not in names):
            continue
        for kernel in backend.kernels:
            refusal = kernel.missing()
            versions: dict[str, str] = {}
            if refusal is None:
                available = kernel.available()
                refusal, versions = available.refusal, available.versions
            found.append(
                {
                    "backend": backend.name,
                    "kernel": kernel.name,
                    "device": kernel.device,
                    "reason": refusal.reason if refusal is not None else None,
                    "detail": refusal.detail if refusal is not None else "",
                    "versions": versions,
                }
            )
    return found


def merged(states: Sequence[BackendState], answers: Sequence[dict[str, Any]]) -> list[BackendState]:
    """States with what a child process found."""
    by_key = {(a["backend"], a["kernel"], a["device"]): a for a in answers}
    result = []
    for state in states:
        kernels, versions = [], dict(state.versions)
        for kernel in state.kernels:
            answer = by_key.get((state.name, kernel.name, kernel.device))
            if answer is None:
                kernels.append(kernel)
                continue
            versions |= answer["versions"]
            kernels.append(
                msgspec.structs.replace(kernel, reason=answer["reason"], detail=answer["detail"])
            )
        result.append(
            msgspec.structs.replace(state, kernels=tuple(kernels), versions=versions, probed=True)
        )
    return result


def split_name(name: str) -> tuple[str, str | None, str | None]:
    """`torch`, `torch:int4` or `torch:int4@cuda` as (backend, kernel, device)."""
    rest, _, device = name.partition("@")
    backend, _, kernel = rest.partition(":")
    return backend, kernel or None, device or None


def backend_named(name: str) -> Backend:
    """A loaded backend by name.

    Raises:
        UsageError: none has it, or it did not load; the hint lists those there are.
    """
    known = load_backends()
    for backend, record in known:
        if backend is not None and backend.name == name:
            return backend
        if backend is None and record.name == name:
            raise UsageError(f"backend {name} could not be loaded: {record.error}")
    names = sorted(b.name for b, _ in known if b is not None)
    raise UsageError(f"no backend is called {name}", hint=closest_hint(name, names))


def kernel_named(backend: str, key: str) -> Kernel:
    """A kernel by `name@device`.

    Raises:
        UsageError: the backend has no such kernel.
    """
    for kernel in backend_named(backend).kernels:
        if key == f"{kernel.name}@{kernel.device}":
            return kernel
    raise UsageError(f"backend {backend} has no kernel {key}")
