"""Did that kernel really run: names from the very call, or a trace that only the kernel can leave in its outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np

from quantscope.decode.parts import Array
from quantscope.parity.model import Execution, Fallback, TraceEvent
from quantscope.parity.protocol import TraceData, TraceRule

AGREEING_SHARE = 0.95
"""Part of the telling outputs that must follow the kernel's rounding of activations. A float product follows it in
none of them by definition; a tie that a library rounds the other way moves single outputs."""


def judge_trace(trace: TraceData | None, rule: TraceRule) -> Execution:
    """What a trace proves.

    A name that must be there and no name of another path: proved. A fallback name: unproven, whatever else
    ran, with its share of calls and time. Names that the rule does not know: unproven, listed. Nothing seen by
    an observer that may be blind is no evidence in either direction.
    """
    if trace is None:
        return Execution(proof="unproven", reason="nothing observed the call")
    seen = Execution(
        proof="unproven",
        reason="",
        method=trace.method,
        events=trace.events,
        library=trace.library,
        library_sha256=trace.library_sha256,
    )
    if trace.counted is not None and trace.counted > 0:
        reason = f"the kernel's own counter rose by {trace.counted} during the call"
        return msgspec.structs.replace(seen, proof="proved", reason=reason)
    work = [event for event in trace.events if not _matches(event.name, rule.neutral)]
    fallen = [
        event
        for event in work
        if _matches(event.name, rule.fallback) and not _matches(event.name, rule.must)
    ]
    hits = [p for p in rule.must if any(re.search(p, event.name) for event in work)]
    unknown = [
        event.name
        for event in work
        if not _matches(event.name, rule.fallback) and not _matches(event.name, rule.must)
    ]
    fallback = _share(fallen, work)
    if fallen:
        names = ", ".join(sorted({event.name for event in fallen}))
        reason = f"fallback: the call went through {names}"
    elif not work and not trace.complete:
        reason = "trace unavailable: the profiler saw no kernel and may lack the right to"
    elif len(hits) < len(rule.must) or not rule.must:
        reason = "the trace does not name the kernel"
    elif unknown:
        reason = "the trace holds names that are not known: " + ", ".join(sorted(set(unknown))[:8])
    else:
        reason = "the call's own trace names the kernel and no other path"
        return msgspec.structs.replace(seen, proof="proved", reason=reason, fallback=fallback)
    return msgspec.structs.replace(seen, reason=reason, fallback=fallback)


def judge_rounding(trace: TraceData | None, agree: Agreement) -> Execution:
    """Proof for a library that no profiler sees: its outputs carry its own rounding of activations.

    A float product over dequantized weights cannot reproduce that rounding; equality with the product over the
    rounded activations, where the two differ, is the evidence.
    """
    trace = trace or TraceData()
    share = f"{agree.equal} of {agree.telling} outputs that tell the two apart"
    proved = agree.telling > 0 and agree.equal >= AGREEING_SHARE * agree.telling
    return Execution(
        proof="proved" if proved else "unproven",
        reason=(
            f"{share} carry the kernel's own rounding of activations"
            if agree.telling
            else "no output tells the kernel's rounding of activations from a float product"
        ),
        method="rounding of activations in the outputs",
        library=trace.library,
        library_sha256=trace.library_sha256,
    )


class Agreement:
    """Counts outputs that follow the product over activations as the kernel rounds them."""

    def __init__(self) -> None:
        self.telling = 0
        self.equal = 0

    def add(self, outputs: Array, rounded: Array, tolerance: Array, plain: Array) -> None:
        """Count one block of outputs, all [M, rows].

        Args:
            outputs: the kernel's.
            rounded: product over the activations as the kernel rounds them.
            tolerance: of `rounded`.
            plain: product over the activations as given.
        """
        telling = np.abs(plain - rounded) > 2 * tolerance
        self.telling += int(telling.sum())
        self.equal += int((telling & (np.abs(outputs - rounded) <= tolerance)).sum())


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _share(fallen: list[TraceEvent], work: list[TraceEvent]) -> Fallback:
    def total(events: list[TraceEvent]) -> float:
        return round(sum(event.microseconds for event in events), 3)

    return Fallback(
        calls=(sum(e.count for e in fallen), sum(e.count for e in work)),
        microseconds=(total(fallen), total(work)),
        names=tuple(sorted({event.name for event in fallen})),
    )
