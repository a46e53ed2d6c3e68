"""What a scan looked at, counted once off the event loop so that painting costs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from quantscope.model import Evidence

from quantscope_views.present.layers import LayerFacts, layers_of
from quantscope_views.present.plugins import plugin_failures
from quantscope_views.present.words import kind_of

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection, TensorState

STATISTIC = "code statistic"
MAX_MODULES = 400
"""Modules of a set listed at most; the sides count all."""


class ModuleMean(msgspec.Struct, frozen=True, kw_only=True):
    """The zero statistic of one module."""

    name: str
    step: Evidence


class ScanTally(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over all tensors of an inspection."""

    tensors: int = 0
    equations: int = 0
    """Size equations that demand something."""
    tensors_held: int = 0
    """Tensors whose equations all hold."""
    odd: dict[str, int] = {}
    """NaN, Inf and zero values in scale-like planes, where there are any."""
    values_examined: int = 0
    values_total: int = 0
    coverage: dict[str, tuple[int, int]] = {}
    """Bytes read and bytes there are, by plane role."""
    layers: tuple[LayerFacts, ...] = ()
    modules: dict[str, tuple[ModuleMean, ...]] = {}
    """Zero statistics by family, in file order, at most `MAX_MODULES` each."""
    module_counts: dict[str, int] = {}
    sides: dict[str, dict[str, int]] = {}
    """By family: how many modules' codes speak for each zero convention."""
    odd_modules: dict[str, tuple[str, ...]] = {}
    """By family: the first modules that fall on another side than most."""
    failures: tuple[str, ...] = ()
    """Plugins that did not load or failed here, a sentence each."""
    kinds: tuple[tuple[str, int], ...] = ()
    """Kinds of tensors with counts, most first."""


def tally_of(inspection: Inspection) -> ScanTally:
    """Count everything that the screens show about an inspection."""
    states = inspection.states
    equations = held = examined = total = 0
    odd = {"NaN": 0, "Inf": 0, "zero": 0}
    for state in states:
        holds = [equation.holds for equation in state.solved.equations]
        equations += sum(hold is not None for hold in holds)
        held += all(hold is not False for hold in holds)
        for plane in state.exam.planes:
            odd["NaN"] += plane.nan
            odd["Inf"] += plane.inf
            odd["zero"] += plane.zero if plane.role in ("scale", "scale2") else 0
            examined += plane.examined
            total += plane.total
    modules, counts, sides, outliers = _statistics(states)
    return ScanTally(
        tensors=len(states),
        equations=equations,
        tensors_held=held,
        odd={kind: count for kind, count in odd.items() if count},
        values_examined=examined,
        values_total=total,
        coverage=_coverage(inspection),
        layers=tuple(layers_of(inspection)),
        modules=modules,
        module_counts=counts,
        sides=sides,
        odd_modules=outliers,
        failures=tuple(plugin_failures(inspection)),
        kinds=_kinds(states),
    )


def _coverage(inspection: Inspection) -> dict[str, tuple[int, int]]:
    from quantscope.report.coverage import plane_coverage

    if inspection.mode == "headers":
        return {}
    found = plane_coverage((state.tensor for state in inspection.states), inspection.ledger)
    return {role: (entry.bytes_read, entry.bytes_total) for role, entry in found.items()}


def _statistics(
    states: Sequence[TensorState],
) -> tuple[
    dict[str, tuple[ModuleMean, ...]],
    dict[str, int],
    dict[str, dict[str, int]],
    dict[str, tuple[str, ...]],
]:
    modules: dict[str, list[ModuleMean]] = {}
    sides: dict[str, dict[str, list[str]]] = {}
    counts: dict[str, int] = {}
    for state in states:
        step = next((s for s in state.evidence if s.method == STATISTIC), None)
        if step is None:
            continue
        family = state.tensor.family
        counts[family] = counts.get(family, 0) + 1
        listed = modules.setdefault(family, [])
        if len(listed) < MAX_MODULES:
            listed.append(ModuleMean(name=state.tensor.name, step=step))
        if len(step.supports) == 1:
            by_side = sides.setdefault(family, {})
            by_side.setdefault(str(step.supports[0]), []).append(state.tensor.name)
    outliers: dict[str, tuple[str, ...]] = {}
    for family, by_side in sides.items():
        most = max(by_side, key=lambda side: len(by_side[side]))
        rest = [name for side, names in by_side.items() if side != most for name in names]
        outliers[family] = tuple(rest[:3])
    return (
        {family: tuple(listed) for family, listed in modules.items()},
        counts,
        {
            family: {side: len(names) for side, names in by_side.items()}
            for family, by_side in sides.items()
        },
        outliers,
    )


def _kinds(states: Sequence[TensorState]) -> tuple[tuple[str, int], ...]:
    """What the tensors are, with the family where there are several."""
    counts = Counter((state.tensor.word, kind_of(state)) for state in states)
    several = len({family for family, _ in counts}) > 1
    return tuple(
        (f"{family} {words}" if several else words, count)
        for (family, words), count in counts.most_common()
    )
