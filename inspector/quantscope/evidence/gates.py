"""The six gates: what each compares, what passing does not show, and how one is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

GateName = Literal[
    "graph_rewrite", "numeric_reference", "packing_layout", "kernel", "model_quality", "serving"
]
GateStatus = Literal["executed", "skipped", "failed", "reported_unverified"]
GateOutcome = Literal["held", "did_not_hold", "inconclusive"]

OVERALL: Literal["incomplete"] = "incomplete"
"""The only value of `overall`: no report accepts a model."""


class GateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What one gate is about, in words that a report can show as they are."""

    name: GateName
    compares: str
    not_shown: str
    """What passing does not show."""


GATES: tuple[GateInfo, ...] = (
    GateInfo(
        name="graph_rewrite",
        compares="the float graph before and after fusing, scaling or rotating, with no quantization",
        not_shown="that quantization error or low-bit execution is fine",
    ),
    GateInfo(
        name="numeric_reference",
        compares="the float tensor with the declared rule's quantize-dequantize",
        not_shown="that packed bytes or a GPU kernel are right",
    ),
    GateInfo(
        name="packing_layout",
        compares="known codes, fixed byte vectors and an independent unpack",
        not_shown="that any kernel uses that layout",
    ),
    GateInfo(
        name="kernel",
        compares="a real kernel with a high-precision computation on the same quantized data",
        not_shown="that task quality holds",
    ),
    GateInfo(
        name="model_quality",
        compares="the baseline model with the quantized one under one evaluation protocol",
        not_shown="anything on other tasks or other text",
    ),
    GateInfo(
        name="serving",
        compares="two services under one load and one resource budget",
        not_shown="anything under other traffic or on other hardware",
    ),
)
"""All six, in the order in which every report lists them."""

GATE_NAMES: tuple[GateName, ...] = tuple(gate.name for gate in GATES)


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """How one gate went.

    `outcome` is None unless the gate was executed; `scope` then says what was compared: which
    tensors, how many of how many, which bytes, shapes, device, dtype, tolerance, seed, and whether
    the comparison is one that should be exact.

    Raises:
        ValueError: an outcome without execution, an execution without outcome or scope, or
            another status without a reason.
    """

    status: GateStatus
    outcome: GateOutcome | None = None
    reason: str | None = None
    scope: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.status == "executed":
            if self.outcome is None or not self.scope:
                raise ValueError("an executed gate carries its outcome and its scope")
        elif self.outcome is not None:
            raise ValueError("only an executed gate has an outcome")
        elif not self.reason:
            raise ValueError(f"a gate that is {self.status} says why")

    def as_json(self) -> dict[str, Any]:
        """The four keys as the report writes them."""
        return {
            "status": self.status,
            "outcome": self.outcome,
            "reason": self.reason,
            "scope": self.scope,
        }


def all_gates(known: Mapping[GateName, Gate], *, otherwise: str) -> dict[GateName, Gate]:
    """All six gates in order; those that are not `known` are skipped for the reason `otherwise`."""
    return {name: known.get(name, Gate(status="skipped", reason=otherwise)) for name in GATE_NAMES}


def reported(where: str) -> Gate:
    """A gate about which an input says something: it stays a claim, whatever the claim is."""
    return Gate(
        status="reported_unverified",
        reason=f"stated by {where}; nothing of it was checked here",
    )
