"""Findings: what is wrong, where to the byte, what it does, who can act."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quantscope.model.claims import Strength

Severity = Literal["violation", "disagreement", "warning", "note"]
Who = Literal["producer", "config", "download", "storage", "reader", "nobody"]
"""Who can act: whoever made the weights, whoever edits the config beside them, whoever fetches the files again, whoever
keeps them (names, permissions, pieces), whoever writes or chooses the reading program; or nobody, where nothing helps."""

SEVERITIES: tuple[Severity, ...] = ("violation", "disagreement", "warning", "note")
"""Worst first."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding is about; every part that is known."""

    tensor: str | None = None
    stored: str | None = None
    file: str | None = None
    byte_range: tuple[int, int] | None = None
    """First byte and one past the last, absolute in the file."""
    field: str | None = None
    config_key: str | None = None
    """`file#pointer` of the declaration at fault."""

    def key(self) -> str:
        """Stable text of the subject, for finding ids."""
        parts = (self.tensor, self.stored, self.file, self.field, self.config_key)
        return "|".join(part for part in parts if part)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault or oddity, folded over its members."""

    code: str
    name: str
    kind: str | None
    severity: Severity
    confidence: Strength
    subject: Subject
    message: str
    data: dict[str, Any] = {}
    impact: str = ""
    who: Who = "producer"
    try_: str = msgspec.field(default="", name="try")
    would_settle: str = ""
    gate: str | None = None
    members: tuple[str, ...] = ()
    """Logical or stored names, sorted; the subject's own name first where it is one of several."""
    count: int = 1

    @property
    def id(self) -> str:
        """Stable id: the code and the subject."""
        return f"{self.code}:{self.subject.key()}"


class Suppressed(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that a suppression list left out, with the reason that it gives."""

    id: str
    reason: str
