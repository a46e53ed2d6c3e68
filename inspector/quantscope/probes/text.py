"""A logits check as plain text: what it says, what its controls say, what it cannot say."""

from __future__ import annotations

from quantscope.probes.model import Cost, ProbeResult, SideResult
from quantscope.text import inert


def render_cost(cost: Cost) -> str:
    """The cost line shown before a run."""
    return (
        f"about {cost.seconds:.0f} s and {cost.memory_bytes / 1e9:.1f} GB: {cost.passes} passes over "
        f"{cost.parameters / 1e6:.1f} M parameters, {cost.tokens} tokens"
    )


def render(result: ProbeResult) -> str:
    """The whole result as lines of text, inert."""
    lines = [
        f"logits check   ran: {result.outcome.replace('_', ' ')}   {result.reason}",
        f"  {result.architecture}, {result.dtype}, {result.device}, {result.threads} threads, "
        f"{result.seconds:.1f} s ({result.cpu_seconds:.1f} s CPU), peak {result.peak_rss_bytes / 1e9:.2f} GB",
        f"  tokens   {result.n_ids} ids, {result.targets_counted} scored: {result.ids_source}",
        f"  window   {result.window}",
        "",
        "reading                                    NLL       PPL   tensors changed",
    ]
    lines += [_side(side) for side in result.sides]
    lines += [
        f"  {side.label}: {side.tensors_unused} stored weights are in no parameter of the model, "
        f"the first {side.unused_names[0]}"
        for side in result.sides
        if side.tensors_unused
    ]
    for pair in result.pairs:
        lines += [
            "",
            f"{pair.candidate} against {pair.base}, {pair.rows} rows",
            f"  KL       mean {pair.kl_mean:.4g}, max {pair.kl_max:.4g} nats   max |dlogit| {pair.max_abs_dlogit:.4g}",
            f"  top-1    {pair.top1_matches} of {pair.rows} equal; {pair.rows_margin_safe} rows cannot have moved",
        ]
        if pair.dnll_mean is not None:
            t = f", t {pair.t:.1f}" if pair.t is not None else ""
            lines.append(f"  NLL      {pair.dnll_mean:+.4f} +- {pair.dnll_se or 0:.4f} a target{t}")
    if result.layers:
        lines += ["", "layer   own stream   layer alone (relative output error)"]
        lines += [
            f"  {d.layer:<5} {d.own_relative:<12.4g} {d.isolated_relative:.4g}"
            for d in result.layers
        ]
        apart = result.first_layer_apart
        lines.append(
            "  no layer parts" if apart is None else f"  first layer where they part: {apart}"
        )
    lines += ["", "controls"]
    for control in result.controls:
        numbers = "  ".join(f"{k} {_number(v)}" for k, v in control.numbers.items())
        lines.append(f"  {control.name:<15} {'held' if control.held else 'MISSED':<7} {numbers}")
    if result.decision is not None:
        accepted = result.decision.accepted
        lines += [
            "",
            f"decision   {accepted if accepted else 'undecided'}",
            f"  {result.decision.reason}",
            f"  cannot decide: {result.decision.cannot_decide}",
        ]
    lines += ["", f"not verified: {', '.join(result.unverified) or 'nothing named'}"]
    lines.append(f"speaks of {result.verified_scope}")
    return "\n".join(inert(line) for line in lines)


def _side(side: SideResult) -> str:
    nll = f"{side.nll_mean:.4f}" if side.nll_mean is not None else "-"
    ppl = f"{side.ppl:.4g}" if side.ppl is not None else "-"
    return f"  {side.label:<40} {nll:<9} {ppl:<9} {side.tensors_changed}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
