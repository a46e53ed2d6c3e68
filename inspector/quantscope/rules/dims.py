"""In and out features of linear modules as config.json gives them, for models whose modules follow it.

Names and keys: transformers, models/*/configuration_*.py and modeling_*.py of Llama and its kin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from quantscope.rules import names
from quantscope.rules.facts import Facts
from quantscope.session.inspection import TensorState

MIN_KNOWN = 4
MIN_SHARE = 0.75
"""Share of known modules that must follow the config before it judges the others."""


class Expected(msgspec.Struct, frozen=True):
    """Extents that a module can have: any of a few."""

    rows: frozenset[int]
    cols: frozenset[int]


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor whose solved shape is not the config's, while others of its place are."""

    state: TensorState
    shape: tuple[int, int]
    expected: Expected
    axis: str
    """in, out or transposed."""


def expected(facts: Facts, module: str) -> Expected | None:
    """The extents of a module by its name, or None where the config says nothing of it."""
    last = names.last(module)
    hidden, inner = _number(facts, "hidden_size"), _number(facts, "intermediate_size")
    heads, shared = _number(facts, "num_attention_heads"), _number(facts, "num_key_value_heads")
    if hidden is None or heads is None:
        return None
    size = _number(facts, "head_dim") or hidden // heads
    inners = {n for n in (inner, _number(facts, "moe_intermediate_size")) if n}
    wide = frozenset(inners)
    of_hidden = frozenset({hidden})
    if last == "q_proj":
        return Expected(frozenset({heads * size, 2 * heads * size}), of_hidden)
    if last in ("k_proj", "v_proj"):
        return Expected(frozenset({(shared or heads) * size}), of_hidden)
    if last == "o_proj":
        return Expected(of_hidden, frozenset({heads * size}))
    if last in ("gate_proj", "up_proj", "w1", "w3") and inners:
        return Expected(wide, of_hidden)
    if last in ("down_proj", "w2") and inners:
        return Expected(of_hidden, wide)
    return None


def _number(facts: Facts, key: str) -> int | None:
    value, _ = facts.model_value(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def misfits(facts: Facts) -> Iterator[Misfit]:
    """Tensors that break a rule which the model's other modules keep."""
    if facts.is_gguf:
        return
    known: list[tuple[TensorState, tuple[int, int], Expected, bool]] = []
    for state in facts.states:
        wanted = expected(facts, state.tensor.module)
        shape = _shape(state)
        if wanted is None or shape is None or state.tensor.part is not None:
            continue
        known.append((state, shape, wanted, shape[0] in wanted.rows and shape[1] in wanted.cols))
    keeping = sum(fits for _, _, _, fits in known)
    if len(known) < MIN_KNOWN or keeping < MIN_SHARE * len(known):
        return
    by_role: dict[str, list[bool]] = defaultdict(list)
    for state, _, _, fits in known:
        by_role[names.role_of(state.tensor.module)].append(fits)
    for state, shape, wanted, fits in known:
        mates = by_role[names.role_of(state.tensor.module)]
        if fits or (len(mates) > 1 and not any(mates)):
            continue
        turned = shape[1] in wanted.rows and shape[0] in wanted.cols
        axis = "transposed" if turned else ("in" if shape[1] not in wanted.cols else "out")
        yield Misfit(state=state, shape=shape, expected=wanted, axis=axis)


def _shape(state: TensorState) -> tuple[int, int] | None:
    """The solved shape, or that of codes which no reading fits but which store one element an item."""
    reading = state.reading or state.solved.chosen
    if reading is None or len(reading.shape) != 2:
        return None
    return reading.shape[0], reading.shape[1]
