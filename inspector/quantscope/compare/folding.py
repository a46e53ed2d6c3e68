"""Is a rescaling of input channels undone where the float graph can undo it: in a norm, or in rows before?

AWQ and SmoothQuant multiply input channel k of a weight by s_k and divide whatever feeds it by s_k: the
norm before q/k/v and gate/up, the rows of v before o, the rows of up before down.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from quantscope.compare.model import FoldingResult
from quantscope.compare.names import bare
from quantscope.compare.sides import Side
from quantscope.compare.values import ChannelSums, is_rescaled, row_ranges
from quantscope.decode.parts import Array
from quantscope.errors import QuantscopeError

HELD_MEDIAN = 0.03
"""Median |log| deviation under which a folding is held: rounding noise of 4-bit ratios is below it."""
HELD_P95 = 0.15
BROKEN_MEDIAN = 0.10
COMPENSATED_SPREAD = 1.5
"""A norm or rows whose 95th and 5th percentile of change differ by more were rescaled."""

NORM_FED: dict[str, tuple[str, ...]] = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
ROW_FED: dict[str, str] = {"self_attn.o_proj": "self_attn.v_proj", "mlp.down_proj": "mlp.up_proj"}

Outcome = Literal["held", "did_not_hold", "inconclusive", "not_rescaled"]


def check_folding(
    which: Literal["a", "b"],
    side: Side,
    base: Side,
    sums: Mapping[str, ChannelSums],
    base_name: Mapping[str, str],
) -> list[FoldingResult]:
    """Every place of a decoder layer where a rescaling can be undone.

    Args:
        which: name of the quantized side.
        side: the quantized side.
        base: the float base.
        sums: channel sums (base first) by the side's weight name.
        base_name: the base's weight name by the side's.
    """
    layers: dict[str, dict[str, str]] = defaultdict(dict)
    for name in sums:
        parts = name.removesuffix(".weight").split(".")
        if len(parts) >= 3:
            layers[".".join(parts[:-2])][".".join(parts[-2:])] = name
    results: list[FoldingResult] = []
    for layer in sorted(layers, key=_natural):
        members = layers[layer]
        shared: dict[str, Array] = {}
        for norm, consumers in NORM_FED.items():
            present = [members[c] for c in consumers if c in members]
            if not present:
                continue
            judged = [members[c] for c in consumers if c in members and c not in ROW_FED.values()]
            judged = judged or present
            joint = _joint(judged, sums)
            shared |= dict.fromkeys(present, joint.ratios)
            results.append(_norm(which, side, base, f"{layer}.{norm}.weight", judged, joint))
        for consumer, producer in ROW_FED.items():
            if consumer in members and producer in members:
                name = members[producer]
                channels = shared.get(name, sums[name].ratios)
                rows = _row_ratio(side, base, name, base_name[name], channels)
                results.append(_rows(which, side, members[consumer], name, sums, rows))
    return results


def _joint(names: Sequence[str], sums: Mapping[str, ChannelSums]) -> ChannelSums:
    """Channel sums over weights that one norm feeds.

    Weights whose rows are rescaled too (v, up) are left to the others where there are any: their rows
    carry a factor of their own into the channel ratio.
    """
    joint = ChannelSums(sums[names[0]].ab.size)
    for name in names:
        joint.aa += sums[name].aa
        joint.bb += sums[name].bb
        joint.ab += sums[name].ab
        joint.rows += sums[name].rows
    return joint


def _norm(
    which: Literal["a", "b"],
    side: Side,
    base: Side,
    name: str,
    consumers: Sequence[str],
    joint: ChannelSums,
) -> FoldingResult:
    ratio = joint.ratios
    rescaled = is_rescaled(joint.summary())
    weights = [_vector(side, name), _vector(base, _base_of(name, base))]
    if weights[0] is None or weights[1] is None or weights[0].size != ratio.size:
        return FoldingResult(
            side=which,
            consumers=tuple(consumers),
            undone_in=name,
            outcome="inconclusive" if rescaled else "not_rescaled",
            median_deviation=None,
            p95_deviation=None,
            reason="the norm is not stored on both sides",
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        compensation = weights[0].astype(np.float64) / weights[1]
    return _result(which, consumers, name, ratio, compensation, rescaled)


def _rows(
    which: Literal["a", "b"],
    side: Side,
    consumer: str,
    producer: str,
    sums: Mapping[str, ChannelSums],
    rows: Array,
) -> FoldingResult:
    ratio = sums[consumer].ratios
    rescaled = is_rescaled(sums[consumer].summary())
    compensation = rows
    if rows.size and ratio.size % rows.size == 0 and ratio.size != rows.size:
        # Grouped-query attention: each v head feeds several query heads of o_proj.
        compensation = _repeat_heads(rows, ratio.size, side)
    if compensation.size != ratio.size:
        return FoldingResult(
            side=which,
            consumers=(consumer,),
            undone_in=producer,
            outcome="inconclusive" if rescaled else "not_rescaled",
            median_deviation=None,
            p95_deviation=None,
            reason="rows of the producer do not line up with the consumer's input channels",
        )
    return _result(which, (consumer,), producer, ratio, compensation, rescaled)


def _repeat_heads(rows: Array, size: int, side: Side) -> Array:
    model = side.checkpoint.declarations.model
    heads, kv_heads = model.get("num_attention_heads"), model.get("num_key_value_heads")
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or not kv_heads:
        return np.zeros(0)
    if heads % kv_heads or rows.size % kv_heads:
        return np.zeros(0)
    head = rows.size // kv_heads
    repeated: Array = np.repeat(rows.reshape(kv_heads, head), heads // kv_heads, axis=0).ravel()
    return repeated if repeated.size == size else np.zeros(0)


def _row_ratio(side: Side, base: Side, name: str, base_name: str, channels: Array) -> Array:
    """Least-squares ratio side/base per row, the channel ratios undone first."""
    from quantscope.compare.model import RowMap

    n_rows, n_cols = side.extents(name, RowMap())
    usable = np.isfinite(channels) & (channels != 0)
    weight = np.where(usable, channels, 1.0)
    pieces = []
    for rows in row_ranges(n_rows, n_cols, 0, None):
        y = side.decode(name, rows).astype(np.float64) / weight
        x = base.decode(base_name, rows).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            pieces.append(np.einsum("rc,rc->r", x, y) / np.einsum("rc,rc->r", x, x))
    ratio: Array = np.concatenate(pieces)
    return ratio


def _result(
    which: Literal["a", "b"],
    consumers: Sequence[str],
    undone_in: str,
    ratio: Array,
    compensation: Array,
    rescaled: bool,
) -> FoldingResult:
    product = ratio * compensation
    live = np.isfinite(product) & (product > 0)
    if live.sum() < max(2, ratio.size // 2):
        outcome: Outcome = "inconclusive"
        median = p95 = None
    else:
        deviation = np.abs(np.log(product[live]))
        median, p95 = (float(v) for v in np.quantile(deviation, [0.5, 0.95]))
        low, high = np.quantile(np.abs(compensation[live]), [0.05, 0.95])
        if not rescaled and high / low < COMPENSATED_SPREAD:
            # Clipping shrinks whole rows and channels a little; that is no rescaling.
            outcome = "not_rescaled"
        elif median <= HELD_MEDIAN and p95 <= HELD_P95:
            outcome = "held"
        else:
            outcome = "did_not_hold" if median > BROKEN_MEDIAN else "inconclusive"
    return FoldingResult(
        side=which,
        consumers=tuple(consumers),
        undone_in=undone_in,
        outcome=outcome,
        median_deviation=median,
        p95_deviation=p95,
    )


def _vector(side: Side, name: str) -> Array | None:
    from quantscope.compare.model import RowMap

    try:
        n_rows, _ = side.extents(name, RowMap())
        return side.decode(name, range(n_rows)).ravel()
    except QuantscopeError:
        return None


def _base_of(name: str, base: Side) -> str:
    if name in base.shapes:
        return name
    return next((other for other in base.shapes if bare(other) == bare(name)), name)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
