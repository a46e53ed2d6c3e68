"""A logits check as plain text: what it says, what its controls say, what it cannot say."""

from __future__ import annotations

import os
from collections.abc import Sequence

from quantscope.probes.model import Cost, PairResult, ProbeResult, SideResult
from quantscope.text import inert


def render_cost(cost: Cost) -> str:
    """The cost line shown before a run."""
    return (
        f"about {cost.seconds:.0f} s and {cost.memory_bytes / 1e9:.1f} GB: {cost.passes} passes over "
        f"{cost.parameters / 1e6:.1f} M parameters, {cost.tokens} tokens"
    )


def render(result: ProbeResult) -> str:
    """The whole result as lines of text, inert."""
    lines = [*head_lines(result), *setting_lines(result), "", *side_lines(result.sides)]
    for pair in result.pairs:
        lines += ["", *pair_lines(pair)]
    for part in (layer_lines(result), control_lines(result), decision_lines(result)):
        if part:
            lines += ["", *part]
    lines += ["", *limit_lines(result)]
    return "\n".join(inert(line) for line in lines)


def head_lines(result: ProbeResult) -> list[str]:
    """How it went."""
    return [f"logits check   ran: {result.outcome.replace('_', ' ')}   {result.reason}"]


def setting_lines(result: ProbeResult) -> list[str]:
    """What ran where, and on which tokens."""
    return [
        f"  {result.architecture}, {result.dtype}, {result.device}, {result.threads} threads, "
        f"{result.seconds:.1f} s ({result.cpu_seconds:.1f} s CPU), peak {result.peak_rss_bytes / 1e9:.2f} GB",
        f"  tokens   {result.n_ids} ids, {result.targets_counted} scored: {result.ids_source}",
        f"  window   {result.window}",
    ]


def side_lines(sides: Sequence[SideResult]) -> list[str]:
    """Likelihood of every side, and weights that none of its parameters took."""
    lines = ["reading                                    NLL       PPL   tensors changed"]
    lines += [_side(side) for side in sides]
    lines += [
        f"  {side.label}: {side.tensors_unused} stored weights are in no parameter of the model, "
        f"the first {side.unused_names[0]}"
        for side in sides
        if side.tensors_unused
    ]
    return lines


def pair_lines(pair: PairResult) -> list[str]:
    """One candidate against the base."""
    lines = [
        f"{pair.candidate} against {pair.base}, {pair.rows} rows",
        f"  KL       mean {pair.kl_mean:.4g}, max {pair.kl_max:.4g} nats   max |dlogit| {pair.max_abs_dlogit:.4g}",
        f"  top-1    {pair.top1_matches} of {pair.rows} equal; {pair.rows_margin_safe} rows cannot have moved",
    ]
    if pair.dnll_mean is not None:
        t = f", t {pair.t:.1f}" if pair.t is not None else ""
        lines.append(f"  NLL      {pair.dnll_mean:+.4f} +- {pair.dnll_se or 0:.4f} a target{t}")
    return lines


def layer_lines(result: ProbeResult) -> list[str]:
    """Error of every layer, where it was asked for."""
    if not result.layers:
        return []
    lines = ["layer   own stream   layer alone (relative output error)"]
    lines += [
        f"  {d.layer:<5} {d.own_relative:<12.4g} {d.isolated_relative:.4g}" for d in result.layers
    ]
    apart = result.first_layer_apart
    lines.append("  no layer parts" if apart is None else f"  first layer where they part: {apart}")
    return lines


def control_lines(result: ProbeResult) -> list[str]:
    """What each control had to show, and did or did not."""
    lines = ["controls"]
    for control in result.controls:
        numbers = "  ".join(f"{k} {_number(v)}" for k, v in control.numbers.items())
        lines.append(f"  {control.name:<15} {'held' if control.held else 'MISSED':<7} {numbers}")
    return lines


def decision_lines(result: ProbeResult) -> list[str]:
    """Which reading the text prefers, where there was a choice."""
    if result.decision is None:
        return []
    return [
        f"decision   {result.decision.accepted or 'undecided'}",
        f"  {result.decision.reason}",
        f"  cannot decide: {result.decision.cannot_decide}",
    ]


def limit_lines(result: ProbeResult) -> list[str]:
    """What nobody checked, and what the result is about."""
    return [
        f"not verified: {', '.join(result.unverified) or 'nothing named'}",
        f"speaks of {result.verified_scope}",
    ]


def recorded_lines(result: ProbeResult) -> list[str]:
    """Hashes, fingerprints and versions that a report holds in full."""
    lines = ["recorded"]
    for side in result.sides:
        how = "; ".join(f"{word} ({count})" for word, count in side.readings.items())
        lines.append(
            f"  {side.label}: weights {side.weights_sha256[:12]}, logits {side.logits_sha256[:12]}"
            + (f"; {how}" if how else "")
        )
    lines.append(
        f"  ids {result.ids_sha256[:12]}, tokenizer {_short(result.tokenizer_sha256)}, "
        f"config {_short(result.config_sha256)}, vocabulary {result.vocabulary}"
    )
    lines += [
        f"  {os.path.basename(path)}  {mark}" for path, mark in sorted(result.fingerprints.items())
    ]
    lines.append("  " + ", ".join(f"{k} {v}" for k, v in sorted(result.libraries.items())))
    return lines


def _side(side: SideResult) -> str:
    nll = f"{side.nll_mean:.4f}" if side.nll_mean is not None else "-"
    ppl = f"{side.ppl:.4g}" if side.ppl is not None else "-"
    return f"  {side.label:<40} {nll:<9} {ppl:<9} {side.tensors_changed}"


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "none"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
