"""A rule of a third party: a tiny8 tensor with a scale of zero."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.model import Subject
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts


class SilentRow(Rule):
    """Speaks where a scale of tiny8 is zero."""

    code = "XT001"
    name = "silent-row"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Scales of tiny8 that are zero.",
        why="The row decodes to zeros whatever its codes are.",
        evidence="The scale plane, read whole.",
        proves_not="A row may be meant to be zero.",
        sample="none",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """One finding for all tensors with such a scale."""
        for state in facts.inspection.states:
            zeros = sum(stats.zero for stats in state.exam.planes)
            if state.tensor.family == "tiny8" and zeros:
                yield self.hit(
                    Subject(tensor=state.tensor.name),
                    f"{zeros} rows have a scale of zero",
                    many="{count} tensors have rows with a scale of zero",
                    fold="silent",
                    impact="those rows are zero",
                    try_="look at the rows with `quantscope decode`",
                )
