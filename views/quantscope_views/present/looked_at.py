"""What was looked at, what held, what ran and what did not, as lines; and what nobody may conclude."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quantscope.report.words import OUTCOME_WORDS, PLANE_WORDS

from quantscope_views.lines import Line, cut_end, labelled, line
from quantscope_views.present.plugins import failed_lines
from quantscope_views.present.scan_tally import ScanTally
from quantscope_views.present.triage_facts import TriageFacts
from quantscope_views.present.words import count_words, share_words, size_words

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection

NOT_RUN: tuple[tuple[str, str], ...] = (
    ("base", "c"),
    ("packing vectors", "i"),
    ("kernel check", "R"),
    ("logits check", "R"),
)
"""Checks that a scan never runs, with the key that starts or explains them."""


def looked_at_lines(facts: TriageFacts, width: int) -> list[Line]:
    """Read, held, not run, elsewhere; and what nobody may conclude."""
    lines = _read_lines(facts, width)
    inspection = facts.inspection
    if inspection is not None:
        lines += _held_lines(inspection, facts.tally, width)
    lines += _ran_lines(facts, width)
    not_run = "  ".join(f"{what} ({how})" for what, how in checks_not_run(facts))
    about = (*NOT_RUN_ABOUT, *skipped_rules(inspection))
    lines += labelled("not run", not_run, width, tone="plain", about=about)
    lines += failed_lines(facts.tally.failures, width)
    lines += labelled(
        "elsewhere", "task quality, serving: nobody told this tool anything", width, tone="dim"
    )
    return [*lines, line((cut_end(f" {closing_words(facts)}", width), "dim"))]


def closing_words(facts: TriageFacts) -> str:
    """What nobody may conclude: what was found, while a scan runs so far, and how much was not run."""
    missing = count_words(len(checks_not_run(facts)), "check")
    worst = sum(finding.severity != "note" for finding in facts.findings)
    found = "nothing above note" if facts.findings else "nothing found"
    if worst:
        found = f"{count_words(worst, 'finding')} above note"
    if facts.scanning:
        return f"The scan still runs; so far {found}; {missing} not run."
    return f"Nothing here says the model is good: {found}, {missing} not run."


def checks_not_run(facts: TriageFacts) -> list[tuple[str, str]]:
    """Checks that did not run on all of the checkpoint, with their keys."""
    checked, quantized = len(facts.kernel_outcomes), facts.overview.quantized
    left = []
    for what, how in NOT_RUN:
        if what == "kernel check" and checked:
            if checked < quantized:
                left.append((f"kernel check of {quantized - checked} more", how))
        elif what not in facts.ran:
            left.append((what, how))
    return left


def _ran_lines(facts: TriageFacts, width: int) -> list[Line]:
    """Kernel checks of this session: of how many tensors, and the worst outcome."""
    outcomes = facts.kernel_outcomes
    if not outcomes:
        return []
    worst = next(o for o in ("did_not_hold", "inconclusive", "held") if o in outcomes.values())
    text = (
        f"kernel check of {len(outcomes)} of {count_words(facts.overview.quantized, 'tensor')}: "
        f"{OUTCOME_WORDS[worst].removeprefix('ran: ')}"
    )
    about = tuple(f"{name}: {OUTCOME_WORDS[outcome]}" for name, outcome in outcomes.items())
    return labelled("ran", text, width, tone=OUTCOME_TONES[worst], about=about)


def skipped_rules(inspection: Inspection | None) -> Iterable[str]:
    """A sentence for each rule that a scan left out."""
    for code, reason in inspection.rules_skipped if inspection is not None else ():
        yield f"rule {code} did not run: {reason}"


OUTCOME_TONES = {"held": "agrees", "did_not_hold": "broken", "inconclusive": "check"}
NOT_RUN_ABOUT = (
    "base: pair every tensor with a float checkpoint and compare values; c takes it",
    "packing vectors: known codes through the packing, from a strict file: quantscope evidence FILE",
    "kernel check: run a real kernel against float64 on the same bytes; R shows cost and backends",
    "logits check: run the model under each reading and compare; R shows the cost first",
)


ALWAYS_NAMED = frozenset({"codes", "scale", "zero", "minimum"})
"""Planes whose share is named even where all of it was read."""


def _read_lines(facts: TriageFacts, width: int) -> list[Line]:
    overview = facts.overview
    parts = [
        "headers 100%"
        if overview.files == overview.files_parsed
        else f"headers of {overview.files_parsed} of {overview.files} files"
    ]
    about = [f"{overview.header_bytes} bytes of headers in {count_words(overview.files, 'file')}"]
    coverage = facts.tally.coverage
    if coverage:
        for role, (part, whole) in coverage.items():
            label = PLANE_WORDS.get(role, role)
            if whole and (role in ALWAYS_NAMED or part < whole):
                parts.append(f"{label} {share_words(part, whole)}")
            about.append(f"{label}: {part} of {whole} bytes read")
    else:
        waiting = facts.stage in ("opening", "headers")
        parts.append("bytes not yet read" if waiting else "no quantized bytes to read")
    tone = "plain"
    planes = sum(whole for _, whole in coverage.values())
    text = "  ".join(parts) + f"  (of {size_words(planes or overview.size)})"
    about.append(
        f"of {planes} bytes of planes of {count_words(overview.quantized, 'tensor')}; "
        f"the files hold {overview.size}"
        if planes
        else f"of {overview.size} bytes of files"
    )
    if facts.partial:
        text += f"  PARTIAL: {facts.partial}"
        tone = "check"
    return labelled("read", text, width, tone=tone, about=about)


def _held_lines(inspection: Inspection, tally: ScanTally, width: int) -> list[Line]:
    if not tally.tensors:
        return labelled("sizes", "no quantized tensor", width)
    text = f"hold {tally.tensors_held} of {tally.tensors} ({tally.equations} size equations)"
    lines = labelled(
        "sizes",
        text,
        width,
        tone="plain" if tally.tensors_held == tally.tensors else "broken",
        about=("every plane's shape and bytes against what the reading demands",),
    )
    if inspection.mode == "headers":
        return lines
    bad = ", ".join(f"{count} {kind}" for kind, count in tally.odd.items())
    lines += labelled(
        "values",
        f"{bad or 'no NaN, Inf or 0'} among {tally.values_examined} of {tally.values_total} "
        "scale values",
        width,
        tone="check" if bad else "plain",
        about=("scale, zero and minimum planes that hold floats, value by value",),
    )
    return lines
