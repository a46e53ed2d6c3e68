"""Plugins of others that failed: families and rules that did not load, or raised while this checkpoint was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quantscope.text import inert

from quantscope_views.lines import Line, labelled
from quantscope_views.present.words import count_words

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection

RAISED = "failed: "
"""How the catalogue begins the reason of a rule that failed."""


def plugin_failures(inspection: Inspection) -> Iterator[str]:
    """One sentence a failure, in the words that a report uses."""
    from quantscope.rules.catalogue import load

    checkpoint = inspection.checkpoint
    for kind, records in (("family", checkpoint.registry.records), ("rule", load().records)):
        for record in records:
            if record.error is not None:
                origin = record.distribution or record.value
                yield inert(f"{kind} {record.name} of {origin} did not load: {record.error}")
    for failure in (*checkpoint.grouping.failures, *inspection.failures):
        many = f" for {count_words(failure.count, 'tensor')}" if failure.tensor else ""
        yield inert(f"family {failure.family} failed in {failure.method}{many}: {failure.error}")
    for code, reason in inspection.rules_skipped:
        if reason.startswith(RAISED):
            yield inert(f"rule {code} {reason}")


def failed_lines(failures: tuple[str, ...], width: int) -> list[Line]:
    """One line of Triage: the first failure and how many there are; Enter lists them."""
    if not failures:
        return []
    more = f"   ({count_words(len(failures), 'plugin failure')}, enter lists them)"
    about = (*failures, "quantscope plugins says which package each comes from")
    lines = labelled("failed", failures[0] + more, width, tone="check", about=about)
    return [
        Line(spans=piece.spans, about=piece.about, action="app.show-plugins") for piece in lines
    ]


def plugin_sentences(failures: tuple[str, ...]) -> tuple[str, ...]:
    """The page of plugins."""
    if not failures:
        return (
            "every family and rule that is installed loaded, and none of them failed on this checkpoint",
            "quantscope plugins lists them with the packages they come from",
        )
    return (
        *failures,
        "the rest of the scan went on without their answers; none of this speaks about the checkpoint",
        "quantscope plugins lists every plugin with the package that it comes from",
    )
