"""Evidence between readings that the size equations leave open: packing order, sign, scale direction, width.

Each candidate is unpacked on one small sample and judged by statistics that only the right reading keeps:
a group's mean code follows its stored zero, its spread of codes follows its scale, codes are bell-shaped, and
decoded weights have the size of weights. Candidates are compared with each other, never with a threshold
alone. Separations were measured on real and re-quantized models (asymmetric: 0.87 to 0.98 against at most
0.34 for a wrong order; scale against spread: a gap of 0.29 or more).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.sampling import rows_lie_apart, sample_windows
from quantscope.decode.window import window_parts
from quantscope.errors import CancelledError, QuantscopeError
from quantscope.families.protocol import Family
from quantscope.infer.solver import Solved
from quantscope.model import Evidence, Json, LogicalTensor, Reading, Sample

OPEN_FIELDS = ("element", "packing", "placement", "group", "scale")
"""Fields that samples can decide between when several values solve the equations."""

ALTERNATIVES = "statistics of each candidate"
"""Method name of the evidence drawn here."""

JOINED_FIELDS = ("packing", "placement", "scale")
"""Fields that a set of modules can decide together."""

JOIN_MODULES = 8

SAMPLE_GROUPS = 512
CORRELATION_GAP = 0.25
CORRELATION_SIGMAS = 6.0
"""A lead must also exceed this many standard errors of a correlation, 1/sqrt(groups) each."""
ENTROPY_GAP_BITS = 0.25
MIN_CODES_FOR_ENTROPY = 4096
PLAUSIBLE_RMS = (1e-5, 3.0)
"""Root mean square of a trained weight tensor; a wrong scale direction misses it by orders of magnitude."""


def open_fields(solved: Solved) -> list[str]:
    """Fields of OPEN_FIELDS with more than one value among the solutions."""
    return [field for field in OPEN_FIELDS if len(_values(solved.solutions, field)) > 1]


def alternative_evidence(
    family: Family, tensor: LogicalTensor, solved: Solved, reader: PlaneReader
) -> list[Evidence]:
    """Evidence on every open field, from one sample under each candidate value."""
    if solved.chosen is None or family.undecodable(tensor) is not None:
        return []
    found: list[Evidence] = []
    known: dict[int, dict[str, float]] = {}
    for field in open_fields(solved):
        readings = _one_per_value(solved, field)
        for reading in readings:
            # The chosen reading stands for its value in every field.
            if id(reading) not in known:
                known[id(reading)] = _measure(family, tensor, reading, reader)
        measured = [known[id(reading)] for reading in readings]
        values = [reading.contract_values()[field] for reading in readings]
        one_width = len({reading.bit_width for reading in readings}) == 1
        found.append(_judge(field, values, measured, one_width))
    return found


def joined_alternatives(
    field: str, steps_by_module: Sequence[Sequence[Evidence]]
) -> Evidence | None:
    """Decisive evidence where enough modules decide for one value and none for another.

    Args:
        field: a field of JOINED_FIELDS.
        steps_by_module: evidence of the modules that were asked.
    """
    votes: list[Json] = []
    for steps in steps_by_module:
        for step in steps:
            if step.method == ALTERNATIVES and step.field == field and len(step.supports) == 1:
                votes.append(step.supports[0])
    if len(votes) < JOIN_MODULES or any(vote != votes[0] for vote in votes):
        return None
    return Evidence(
        field=field,
        method=f"{ALTERNATIVES} over modules",
        supports=(votes[0],),
        strength="decisive",
        numbers={"modules": len(votes), "against": 0},
        sample=Sample(len(votes), len(steps_by_module), "modules"),
        assumes=("all modules of the family are stored alike",),
    )


def _values(readings: Sequence[Reading], field: str) -> list[Json]:
    seen: list[Json] = []
    for reading in readings:
        value = reading.contract_values().get(field)
        if value not in seen:
            seen.append(value)
    return seen


def _one_per_value(solved: Solved, field: str) -> list[Reading]:
    """For each value of a field, the solution closest to the chosen one."""
    assert solved.chosen is not None
    base = solved.chosen.contract_values()
    best: list[tuple[Json, int, Reading]] = []
    for reading in solved.solutions:
        values = reading.contract_values()
        same = sum(values.get(key) == base.get(key) for key in base)
        for position, (value, score, _) in enumerate(best):
            if value == values.get(field):
                if same > score:
                    best[position] = (value, same, reading)
                break
        else:
            best.append((values.get(field), same, reading))
    return [reading for _, _, reading in best]


def _measure(
    family: Family, tensor: LogicalTensor, reading: Reading, reader: PlaneReader
) -> dict[str, float]:
    """Statistics of one candidate on the sample; empty where it cannot be unpacked."""
    try:
        apart = rows_lie_apart(tensor, reading)
        pieces = [
            window_parts(family, tensor, reading, window, reader)
            for window in sample_windows(reading, SAMPLE_GROUPS, apart=apart)
        ]
        with np.errstate(all="ignore"):
            weights = [family.combine(parts, reading, False) for parts in pieces]
    except CancelledError:
        raise
    except QuantscopeError:
        return {}
    numbers: dict[str, float] = {}
    square = sum(float(np.square(w.astype(np.float64)).sum()) for w in weights)
    count = sum(w.size for w in weights)
    numbers["rms"] = (
        float(np.sqrt(square / count)) if count and np.isfinite(square) else float("inf")
    )
    tables = [table for table in (_group_table(parts) for parts in pieces) if table is not None]
    if tables:
        mean, spread, zero, scale = (
            np.concatenate(columns) for columns in zip(*tables, strict=True)
        )
        numbers["groups"] = float(mean.size)
        numbers |= _correlations(mean, spread, zero, scale)
    entropy = _entropy([parts.codes for parts in pieces])
    if entropy is not None:
        numbers["entropy_bits"] = entropy
    return numbers


def _group_table(parts: Parts) -> tuple[Array, Array, Array, Array] | None:
    """Mean code, spread of codes, stored zero and scale of every group of a window."""
    index = parts.group_of_column
    if index.ndim != 1 or not parts.scale or parts.codes.dtype.kind not in "iu":
        return None
    order = np.argsort(index, kind="stable")
    used, starts, counts = np.unique(index[order], return_index=True, return_counts=True)
    if counts.min() < 8:
        return None
    codes = parts.codes[:, order].astype(np.float32)
    mean = np.add.reduceat(codes, starts, axis=1) / counts
    square = np.add.reduceat(np.square(codes), starts, axis=1) / counts
    spread = np.sqrt(np.maximum(square - np.square(mean), 0))
    rows = codes.shape[0]

    def table(plane: Array | None) -> Array:
        if plane is None:
            return np.full(mean.size, np.nan, dtype=np.float32)
        wide = plane[:, used] if plane.shape[1] > 1 else np.repeat(plane, used.size, axis=1)
        return np.broadcast_to(wide, (rows, used.size)).astype(np.float32).ravel()

    return mean.ravel(), spread.ravel(), table(parts.stored_zero), table(np.abs(parts.scale[0]))


def _correlations(mean: Array, spread: Array, zero: Array, scale: Array) -> dict[str, float]:
    numbers: dict[str, float] = {}
    if np.isfinite(zero).all() and float(zero.std()) > 1e-9 and float(mean.std()) > 1e-9:
        numbers["mean_follows_zero"] = _correlation(mean, zero)
    live = (spread > 0) & (scale > 0) & np.isfinite(scale)
    if live.sum() >= 16:
        log_scale, log_spread = np.log(scale[live]), np.log(spread[live])
        if float(log_scale.std()) > 1e-9 and float(log_spread.std()) > 1e-9:
            numbers["spread_against_scale"] = _correlation(log_scale, log_spread)
    return {name: value for name, value in numbers.items() if np.isfinite(value)}


def _correlation(one: Array, other: Array) -> float:
    """Pearson's coefficient; NaN where one side is constant to within rounding."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1])


def _entropy(codes: Sequence[Array]) -> float | None:
    if any(c.dtype.kind not in "iu" or c.dtype.itemsize > 1 for c in codes):
        return None
    counts = np.zeros(256, dtype=np.int64)
    for piece in codes:
        counts += np.bincount(piece.view(np.uint8).ravel(), minlength=256)
    if counts.sum() < MIN_CODES_FOR_ENTROPY:
        return None
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def _judge(
    field: str, values: Sequence[Json], measured: Sequence[dict[str, float]], one_width: bool
) -> Evidence:
    """Choose by the first statistic that separates the candidates clearly.

    Entropy compares candidates of one width only: two neighbouring codes read as one wide code have just
    twice the entropy of a code.
    """
    winner: int | None = None
    by = ""
    for name, better, least in (
        ("mean_follows_zero", 1, CORRELATION_GAP),
        ("spread_against_scale", -1, CORRELATION_GAP),
        ("entropy_bits", -1, ENTROPY_GAP_BITS),
    ):
        if field == "scale" or winner is not None:
            break
        if name == "entropy_bits" and not one_width:
            continue
        scores = [m.get(name) for m in measured]
        if any(score is None for score in scores):
            continue
        ranked = sorted(range(len(scores)), key=lambda i: -better * (scores[i] or 0.0))
        lead = abs((scores[ranked[0]] or 0.0) - (scores[ranked[1]] or 0.0))
        groups = min(m.get("groups", 0.0) for m in measured)
        noise = 0.0 if name == "entropy_bits" else CORRELATION_SIGMAS / max(groups, 1.0) ** 0.5
        if lead >= max(least, noise):
            winner, by = ranked[0], name
    if winner is None:
        plausible = [
            i
            for i, m in enumerate(measured)
            if PLAUSIBLE_RMS[0] <= m.get("rms", np.inf) <= PLAUSIBLE_RMS[1]
        ]
        if len(plausible) == 1:
            winner, by = plausible[0], "rms"
    numbers: dict[str, Json] = {
        str(_short(value)): {k: round(v, 6) if np.isfinite(v) else str(v) for k, v in m.items()}
        for value, m in zip(values, measured, strict=True)
    }
    numbers["decided_by"] = by or _why_open(measured)
    return Evidence(
        field=field,
        method=ALTERNATIVES,
        supports=(values[winner],) if winner is not None else (),
        strength="strong" if winner is not None else None,
        numbers=numbers,
        sample=Sample(SAMPLE_GROUPS, SAMPLE_GROUPS, "groups at most"),
        assumes=("weights of a group are bell-shaped around zero",),
    )


def _why_open(measured: Sequence[dict[str, float]]) -> str:
    """Why no statistic decides: too close to call, or the same by construction."""
    first = measured[0]
    if first and all(
        m.keys() == first.keys() and all(abs(m[k] - first[k]) <= 1e-6 for k in m) for m in measured
    ):
        return (
            "undecidable from codes: the codes that change places share their scales, so that every "
            "statistic is the same; a reference weight would decide"
        )
    return "nothing separates the candidates"


def _short(value: Json) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_short(nested)}" for key, nested in value.items())
    return str(value)
