"""Compare two checkpoints, with or without the float base of both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Literal

from quantscope.compare.folding import check_folding
from quantscope.compare.model import (
    Comparison,
    ContractDifference,
    FoldingResult,
    Pair,
    PairResult,
    ReferenceResult,
    RowMap,
    ZeroComparison,
)
from quantscope.compare.names import gguf_names, pair_names, rotary_heads
from quantscope.compare.reference import against_base
from quantscope.compare.sides import Side
from quantscope.compare.values import ChannelSums, compare_values
from quantscope.compare.zeros import compare_zeros
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.evidence.gates import Gate, GateName, all_gates
from quantscope.infer.solver import claim_fits
from quantscope.model import CONTRACT_FIELDS, Json, Plane
from quantscope.session.events import Progress, ProgressThrottle
from quantscope.session.inspection import Inspection, TensorState

SAMPLE_ELEMENTS = 1 << 26
"""Elements of a weight above which rows are sampled, unless everything is asked for."""


def compare(
    a: Inspection,
    b: Inspection,
    base: Inspection | None = None,
    *,
    everything: bool = False,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Comparison:
    """Compare two inspected checkpoints.

    Args:
        a: side A.
        b: side B; may be A again under another reading.
        base: the float checkpoint that both came from.
        everything: decode every row of every weight, however large.
        progress: receives throttled progress.
        cancelled: polled; what is finished is kept, with `partial` set.
    """
    side_a, side_b = Side(a, cancelled=cancelled), Side(b, cancelled=cancelled)
    return compare_sides(
        side_a,
        side_b,
        Side(base, cancelled=cancelled) if base is not None else None,
        everything=everything,
        progress=progress,
    )


def compare_sides(
    a: Side,
    b: Side,
    base: Side | None = None,
    *,
    everything: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Comparison:
    """Compare two sides, each with its own readings (see `Side`)."""
    step = ProgressThrottle("compare", progress)
    pairs, only_a, only_b = match_sides(a, b)
    results: list[PairResult] = []
    partial: str | None = None
    sampled = False
    try:
        for number, pair in enumerate(pairs):
            max_rows = None if everything else _max_rows(a, pair)
            sampled = sampled or max_rows is not None
            results.append(_compare_pair(a, b, pair, max_rows))
            step("compare", number + 1, len(pairs), "pairs")
    except CancelledError:
        partial = f"stopped after {len(results)} of {len(pairs)} pairs"
    reference: list[ReferenceResult] = []
    folding: list[FoldingResult] = []
    if base is not None and partial is None:
        try:
            sides: tuple[tuple[Literal["a", "b"], Side], ...] = (("a", a), ("b", b))
            for which, side in sides:
                found, folded = _reference(which, side, base, everything)
                reference += found
                folding += folded
        except CancelledError:
            partial = "stopped while comparing with the base"
    return Comparison(
        a=a.checkpoint.opened.path,
        b=b.checkpoint.opened.path,
        base=base.checkpoint.opened.path if base is not None else None,
        pairs=tuple(results),
        only_in_a=tuple(only_a),
        only_in_b=tuple(only_b),
        reference=tuple(reference),
        folding=tuple(folding),
        gates=_gates(base is not None, reference, folding),
        sampled=sampled,
        partial=partial,
    )


def match_sides(a: Side, b: Side) -> tuple[list[Pair], list[str], list[str]]:
    """Pairs of two sides; Hugging Face names become GGUF names where only one side is a GGUF."""
    if a.is_gguf == b.is_gguf:
        return pair_names(a.shapes, b.shapes)
    gguf_side, other = (a, b) if a.is_gguf else (b, a)
    architecture = str(gguf_side.metadata.get("general.architecture", ""))
    mapped = gguf_names(list(other.shapes), architecture)
    back = {new: old for old, new in mapped.items()}
    renamed = {mapped.get(name, name): shape for name, shape in other.shapes.items()}
    shapes = (gguf_side.shapes, renamed) if a.is_gguf else (renamed, gguf_side.shapes)
    pairs, only_a, only_b = pair_names(*shapes)
    turned = []
    for pair in pairs:
        gguf_name = pair.a if a.is_gguf else pair.b
        heads = rotary_heads(gguf_name, gguf_side.metadata)
        permuted = RowMap(heads=heads)
        kind = "gguf" if pair.kind == "name" else pair.kind
        old = back.get(pair.b if a.is_gguf else pair.a)
        fixed = Pair(
            name=pair.name if a.is_gguf else (old or pair.name),
            a=pair.a if a.is_gguf else (old or pair.a),
            b=(old or pair.b) if a.is_gguf else pair.b,
            kind=kind,
            rows_a=permuted if a.is_gguf and heads else pair.rows_a,
            rows_b=permuted if not a.is_gguf and heads else pair.rows_b,
        )
        turned.append(fixed)
    return turned, [back.get(n, n) for n in only_a], [back.get(n, n) for n in only_b]


def _max_rows(side: Side, pair: Pair) -> int | None:
    try:
        n_rows, n_cols = side.extents(pair.a, pair.rows_a)
    except QuantscopeError:
        return None
    return None if n_rows * n_cols <= SAMPLE_ELEMENTS else SAMPLE_ELEMENTS // max(1, n_cols)


def _compare_pair(a: Side, b: Side, pair: Pair, max_rows: int | None) -> PairResult:
    state_a, state_b = a.states.get(pair.a), b.states.get(pair.b)
    values, _ = compare_values(a, b, pair, max_rows=max_rows)
    same, different = _planes(a, b, state_a, state_b)
    return PairResult(
        pair=pair,
        family_a=state_a.tensor.word if state_a else None,
        family_b=state_b.tensor.word if state_b else None,
        shape_a=a.shapes.get(pair.a, ()),
        shape_b=b.shapes.get(pair.b, ()),
        contract=contract_differences(state_a, state_b),
        planes_identical=same,
        planes_different=different,
        zeros=_zeros(a, b, pair),
        values=values,
    )


def _zeros(a: Side, b: Side, pair: Pair) -> ZeroComparison | None:
    """Zero planes of a pair; None where they cannot be read, which the values say with the reason."""
    try:
        return compare_zeros(a, b, pair)
    except CancelledError:
        raise
    except QuantscopeError:
        return None


def contract_differences(
    a: TensorState | None, b: TensorState | None
) -> tuple[ContractDifference, ...]:
    """Contract fields whose values in force differ."""
    if a is None or b is None:
        return ()
    values = [(field, _in_force(a, field), _in_force(b, field)) for field in CONTRACT_FIELDS]
    return tuple(
        ContractDifference(field=field, a=left, b=right)
        for field, left, right in values
        if left != right
    )


def _in_force(state: TensorState, field: str) -> Json:
    """A field's value; the whole value of the reading where a declaration fixes only a part of it."""
    value = state.contract.value(field)
    if state.reading is not None and isinstance(value, dict):
        whole = state.reading.contract_values().get(field)
        return whole if claim_fits(value, whole) else value
    return value


def _planes(
    a: Side, b: Side, state_a: TensorState | None, state_b: TensorState | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Suffixes of planes that both sides store, by whether their bytes are equal."""
    if state_a is None or state_b is None:
        return (), ()
    same: list[str] = []
    different: list[str] = []
    for plane in state_a.tensor.planes:
        other = state_b.tensor.plane_named(plane.suffix)
        if other is None:
            continue
        cut = plane.suffix in state_a.missing or other.suffix in state_b.missing
        equal = (
            not cut
            and plane.nbytes == other.nbytes
            and plane.dtype == other.dtype
            and _digest(a, plane) == _digest(b, other)
        )
        (same if equal else different).append(plane.suffix)
    return tuple(same), tuple(different)


def _digest(side: Side, plane: Plane) -> str:
    digest = hashlib.sha256()
    for span in plane.spans:
        extent = (
            span.nbytes if span.count == 1 else (span.count - 1) * span.stride_bytes + span.nbytes
        )
        for start in range(0, extent, 1 << 20):
            digest.update(
                side.reader.read_bytes(
                    plane.role, span.file_id, span.byte_offset + start, min(1 << 20, extent - start)
                )
            )
    return digest.hexdigest()


def _reference(
    which: Literal["a", "b"], side: Side, base: Side, everything: bool
) -> tuple[list[ReferenceResult], list[FoldingResult]]:
    results: list[ReferenceResult] = []
    sums: dict[str, ChannelSums] = {}
    base_name: dict[str, str] = {}
    for pair in match_sides(side, base)[0]:
        if pair.a not in side.states:
            continue
        max_rows = None if everything else _max_rows(side, pair)
        result, counted = against_base(which, side, base, pair, max_rows)
        results.append(result)
        if counted is not None and pair.kind in ("name", "prefix"):
            sums[pair.a] = counted
            base_name[pair.a] = pair.b
    return results, check_folding(which, side, base, sums, base_name)


def _gates(
    has_base: bool, reference: list[ReferenceResult], folding: list[FoldingResult]
) -> dict[GateName, Gate]:
    if not has_base:
        return all_gates({}, otherwise="needs the float base (--base)")
    known: dict[GateName, Gate] = {}
    compared = [r for r in reference if r.values.metrics is not None]
    if compared:
        known["numeric_reference"] = Gate(
            status="executed",
            outcome="inconclusive",
            reason="errors of quantization are stated; no threshold was given, so none is judged",
            scope={
                "tensors": len(compared),
                "tensors_total": len(reference),
                "not_like_for_like": sum(not r.values.like_for_like for r in compared),
                "compares": "approximate by design (quantization)",
            },
        )
    moved = [f for f in folding if f.outcome != "not_rescaled"]
    if folding:
        outcomes = {f.outcome for f in moved}
        outcome: Literal["held", "did_not_hold", "inconclusive"] = "held"
        if "did_not_hold" in outcomes:
            outcome = "did_not_hold"
        elif "inconclusive" in outcomes:
            outcome = "inconclusive"
        known["graph_rewrite"] = Gate(
            status="executed",
            outcome=outcome,
            reason=f"{len(moved)} of {len(folding)} places rescale input channels",
            scope={
                "places": len(folding),
                "rescaled": len(moved),
                "held": sum(f.outcome == "held" for f in moved),
                "compares": "channel ratios against the base's norms and rows",
            },
        )
    return all_gates(known, otherwise="not run by this command")
