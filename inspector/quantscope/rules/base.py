"""What a rule is: a code, a page and a check over the facts of an inspection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from quantscope.model import Finding, Severity, Strength, Subject, Who
from quantscope.rules.facts import Facts


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The published text of a rule, shown by `quantscope rule CODE` and in the docs."""

    checks: str
    """What it checks, one or two sentences."""
    why: str
    """Why that is bad."""
    evidence: str
    """What it looks at, and how strong that is."""
    proves_not: str
    """What a finding, or its absence, does not prove."""
    sample: str
    """Name of a sample checkpoint that shows it."""
    reports: tuple[str, ...] = ()
    """Public reports of the kind, as `repository#number`."""


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One finding before folding.

    Hits of one rule with the same `fold`, severity, kind and field become one finding. `many` is the
    message of the folded finding, with `{count}` and `{x}` for the sum of an integer x in `data`
    (`lo_x` and `hi_x` hold the extremes of any number x). Where it is empty the first message stands.
    """

    finding: Finding
    fold: str
    many: str = ""


class Rule:
    """One rule. Subclass it, fill the class attributes, implement `check`."""

    code: ClassVar[str]
    """Two letters and three digits, never reused."""
    name: ClassVar[str]
    """Kebab-case; names the pattern, not the cure."""
    kind: ClassVar[str | None] = None
    """Fault kind of the catalogue of public reports, or None."""
    severity: ClassVar[Severity]
    """The most that a finding of this rule can be."""
    gate: ClassVar[str | None] = None
    needs: ClassVar[str] = "headers"
    """headers, sample or deep: the least mode in which the rule can speak."""
    page: ClassVar[Page]

    def check(self, facts: Facts) -> Iterable[Finding | Hit]:
        """Findings of this rule; folded by the catalogue afterwards."""
        raise NotImplementedError

    def finding(
        self,
        subject: Subject,
        message: str,
        *,
        impact: str,
        try_: str,
        who: Who = "producer",
        severity: Severity | None = None,
        confidence: Strength = "proved",
        would_settle: str = "",
        data: dict[str, Any] | None = None,
        members: Sequence[str] = (),
        kind: str | None = None,
    ) -> Finding:
        """A finding of this rule.

        Args:
            subject: what it is about, to the byte where known.
            message: what is wrong in one line.
            impact: what it does to the weights.
            try_: exact key and value, or a command.
            who: who can act.
            severity: lower than the rule's own where the checkpoint explains the oddity.
            confidence: strength of the evidence.
            would_settle: what would decide an open question.
            data: the numbers.
            members: every tensor or file concerned.
            kind: fault kind, where the rule covers more than one.
        """
        return Finding(
            code=self.code,
            name=self.name,
            kind=kind or self.kind,
            severity=severity or self.severity,
            confidence=confidence,
            subject=subject,
            message=message,
            data=data or {},
            impact=impact,
            who=who,
            try_=try_,
            would_settle=would_settle,
            gate=self.gate,
            members=tuple(members),
            count=max(1, len(members)),
        )

    def hit(
        self,
        subject: Subject,
        message: str,
        *,
        fold: str,
        impact: str,
        try_: str,
        many: str = "",
        who: Who = "producer",
        severity: Severity | None = None,
        confidence: Strength = "proved",
        would_settle: str = "",
        data: dict[str, Any] | None = None,
        kind: str | None = None,
    ) -> Hit:
        """A finding to be folded with those of the same fact; arguments as in `finding` and `Hit`."""
        return Hit(
            finding=self.finding(
                subject,
                message,
                impact=impact,
                try_=try_,
                who=who,
                severity=severity,
                confidence=confidence,
                would_settle=would_settle,
                data=data,
                kind=kind,
            ),
            fold=fold,
            many=many,
        )
