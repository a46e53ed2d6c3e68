"""Rules that turn what a container reader stated into findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec

from quantscope.containers.issues import severity_of
from quantscope.containers.records import ContainerIssue
from quantscope.model import Severity, Subject, Who
from quantscope.rules.base import Hit, Rule
from quantscope.rules.facts import Facts


class Advice(msgspec.Struct, frozen=True):
    """What an issue does to the weights, who can act and what to try."""

    impact: str
    try_: str
    who: Who = "producer"
    many: str = ""


GONE = "the tensors concerned cannot be read"
AGAIN = "download the file again and compare its SHA-256 with the publisher's"


class ContainerRule(Rule):
    """A rule over the issues of some slugs; severity as the table of slugs says."""

    slugs: ClassVar[Mapping[str, Advice]]

    def check(self, facts: Facts) -> Iterator[Hit]:
        """One hit per issue, folded per slug and file."""
        for issue in facts.opened.issues:
            advice = self.slugs.get(issue.name)
            if advice is not None:
                yield self._hit(facts, issue, advice)

    def severity_of(self, issue: ContainerIssue) -> Severity:
        """Severity of an issue, as the table of slugs says."""
        return severity_of(issue)

    def _hit(self, facts: Facts, issue: ContainerIssue, advice: Advice) -> Hit:
        state = facts.by_stored.get(issue.tensor or "")
        key = issue.data.get("key") if issue.name.startswith("gg-") else None
        subject = Subject(
            tensor=state.tensor.name if state is not None else None,
            stored=issue.tensor,
            file=issue.file,
            byte_range=issue.byte_range,
            config_key=f"{issue.file}#{key}" if isinstance(key, str) else None,
            field=None if issue.tensor or issue.name.startswith(("st-", "gg-")) else issue.name,
        )
        return self.hit(
            subject,
            issue.message,
            fold=f"{issue.name}|{issue.file}",
            many=advice.many,
            impact=advice.impact,
            try_=advice.try_,
            who=advice.who,
            severity=self.severity_of(issue),
            kind=issue.kind,
            data={"issue": issue.name, **issue.data},
        )
