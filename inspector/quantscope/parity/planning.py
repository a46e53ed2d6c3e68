"""Which kernel takes a weight, and what a check of it costs."""

from __future__ import annotations

from typing import NamedTuple

from quantscope.closest import closest_hint
from quantscope.errors import UsageError
from quantscope.parity.check import planned_calls, rows_to_check
from quantscope.parity.misreadings import BY_NAME
from quantscope.parity.model import Cost, Settings
from quantscope.parity.probing import backend_named, split_name
from quantscope.parity.protocol import Kernel, Refusal, Weight
from quantscope.session.inspection import TensorState

CHILD_START_S = 2.0
REFERENCE_NS = 2.0
"""Rough time of a multiply-add of the reference, all its terms and controls included."""


class Choice(NamedTuple):
    """Kernels that take a weight, best first, and why the others do not."""

    kernels: list[Kernel]
    refusal: Refusal | None


def choose(name: str, weight: Weight, settings: Settings) -> Choice:
    """Kernels of a backend for a weight.

    Args:
        name: `backend`, `backend:kernel` or `backend:kernel@device`.
        weight: the weight.
        settings: may fix device and type.

    Raises:
        UsageError: no backend or kernel has the name.
    """
    backend_name, kernel_name, device = split_name(name)
    device = device or settings.device
    asked = [
        kernel
        for kernel in backend_named(backend_name).kernels
        if kernel_name in (None, kernel.name) and device in (None, kernel.device)
    ]
    if not asked:
        known = ", ".join(f"{k.name}@{k.device}" for k in backend_named(backend_name).kernels)
        raise UsageError(f"{name} names no kernel", hint=f"{backend_name} has: {known}")
    taken: list[Kernel] = []
    would: list[tuple[Kernel, Refusal]] = []
    never: list[Refusal] = []
    for kernel in asked:
        no = kernel.refusal(weight, settings.dtype or kernel.dtypes[0])
        missing = kernel.missing()
        if no is not None:
            never.append(no)
        elif missing is not None:
            would.append((kernel, missing))
        else:
            taken.append(kernel)
    if taken:
        return Choice(taken, None)
    # A kernel that would take the weight if it were installed says more than one that never would.
    if would:
        said = [f"{kernel.name}@{kernel.device}: {refusal.detail}" for kernel, refusal in would]
        return Choice([], Refusal(reason=would[-1][1].reason, detail="; ".join(said)))
    return Choice([], never[0])


def check_emulation(name: str | None) -> None:
    """Refuse a fault that nobody knows.

    Raises:
        UsageError: with the known ones as a hint.
    """
    if name is not None and name not in BY_NAME:
        raise UsageError(
            f"no fault is called {name}",
            hint=closest_hint(name, BY_NAME, f"one of {', '.join(BY_NAME)}"),
        )


def cost_of(state: TensorState, name: str, settings: Settings) -> Cost:
    """What a check of one tensor takes."""
    if state.reading is None or state.undecodable is not None:
        return Cost(
            backend=name,
            kernel=None,
            device=None,
            refusal="contract_unsupported",
            refusal_detail=state.undecodable or "no reading fits its planes",
        )
    weight = Weight(tensor=state.tensor, reading=state.reading)
    choice = choose(name, weight, settings)
    if not choice.kernels:
        refusal = choice.refusal
        assert refusal is not None
        return Cost(
            backend=name,
            kernel=None,
            device=None,
            refusal=refusal.reason,
            refusal_detail=refusal.detail,
        )
    kernel = choice.kernels[0]
    calls, rows = planned_calls(kernel, weight, settings.dtype or kernel.dtypes[0], settings)
    n_rows = rows_to_check(weight, settings)
    products = rows * n_rows * weight.n_cols
    elements = n_rows * weight.n_cols
    return Cost(
        backend=name,
        kernel=kernel.name,
        device=kernel.device,
        calls=calls,
        multiply_adds=products,
        bytes_read=sum(plane.nbytes for plane in state.tensor.planes),
        memory_bytes=elements * 12 + (1 << 28),
        seconds=round(CHILD_START_S + products * (kernel.slowdown + REFERENCE_NS) * 1e-9, 1),
    )
