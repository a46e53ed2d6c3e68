"""Logits checks of a report for a person: how far each side lies from the base, over which tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantscope.report.schema import Report
from quantscope.report.words import OUTCOME_WORDS

MAX_CHECKS = 4


def logits_check_rows(report: Report) -> Iterator[tuple[str, str]]:
    """(what was compared, what was found) of every pair of the first checks."""
    for entry in report.probes[:MAX_CHECKS]:
        outcome = entry.get("outcome")
        if not outcome:
            yield str(entry.get("path", "-")), f"{entry.get('status')}: {entry.get('reason')}"
            continue
        paths = {side["label"]: side["path"] for side in _dicts(entry, "sides")}
        how = f"{OUTCOME_WORDS[str(outcome)]}: {entry.get('reason')}"
        tokens = f"{entry.get('targets_counted')} scored of {entry.get('ids_source')}"
        pairs = _dicts(entry, "pairs")
        for pair in pairs:
            names = (
                f"{label} ({paths.get(label, '-')})" for label in (pair["candidate"], pair["base"])
            )
            yield " against ".join(names), f"{how}; {_figures(pair)}; {tokens}"
        if not pairs:
            yield (
                ", ".join(f"{label} ({path})" for label, path in paths.items()),
                f"{how}; {tokens}",
            )
        decision = entry.get("decision")
        if isinstance(decision, dict):
            chosen = decision.get("accepted") or "undecided"
            yield "which reading the text prefers", f"{chosen}: {decision.get('reason')}"


def _figures(pair: dict[str, Any]) -> str:
    words = [
        f"KL mean {pair['kl_mean']:.4g}, max {pair['kl_max']:.4g} nats over {pair['rows']} positions",
        f"top-1 equal in {pair['top1_matches']}",
    ]
    if pair.get("dnll_mean") is not None:
        error = f" +- {pair['dnll_se']:.4f}" if pair.get("dnll_se") is not None else ""
        t = f", t {pair['t']:.1f}" if pair.get("t") is not None else ""
        words.append(f"NLL {pair['dnll_mean']:+.4f}{error} a target{t}")
    return ", ".join(words)


def _dicts(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = entry.get(key)
    several = found if isinstance(found, list | tuple) else ()
    return [item for item in several if isinstance(item, dict)]
