"""What others report about a model: checked for form, listed with its hash, never believed.

Every reader gives an `ExternalEvidence`. Its status is a constant; a figure worked out here from
numbers that the input claims stands under `computed_from_claimed` and is no more than they are.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from quantscope.evidence.gates import GateName

Kind = Literal["lm_eval_results", "serving_records", "kernel_log"]

MAX_PROBLEMS = 20
"""Problems of form that are listed; the rest is counted."""

STATUS: Literal["reported_unverified"] = "reported_unverified"


class ExternalEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One input of others.

    `claimed` repeats what the input says. A malformed input has no claims and no figures.
    """

    kind: Kind
    name: str
    """The file's name as given."""
    size_bytes: int
    sha256: str
    gate: GateName
    """The gate that the claims are about; they never execute it."""
    problems: tuple[str, ...] = ()
    """What is wrong with the form; empty where the form is right."""
    flags: tuple[str, ...] = ()
    """What a reader of the claims must know, such as `smoke_test`."""
    claimed: dict[str, Any] = {}
    computed_from_claimed: dict[str, Any] = {}

    @property
    def status(self) -> str:
        """Always `reported_unverified`."""
        return STATUS

    def as_json(self) -> dict[str, Any]:
        """The entry of `external_evidence` in a report."""
        return {
            "status": STATUS,
            "form": "malformed" if self.problems else "valid",
            **msgspec.to_builtins(self),
        }


def external_evidence(
    data: bytes,
    *,
    kind: Kind,
    name: str,
    gate: GateName,
    problems: list[str] | None = None,
    flags: list[str] | None = None,
    claimed: dict[str, Any] | None = None,
    computed: dict[str, Any] | None = None,
) -> ExternalEvidence:
    """Puts size and hash to what a reader found; keeps the first problems and counts the rest."""
    found = problems or []
    listed = found[:MAX_PROBLEMS]
    if len(found) > MAX_PROBLEMS:
        listed.append(f"and {len(found) - MAX_PROBLEMS} more")
    return ExternalEvidence(
        kind=kind,
        name=name,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        gate=gate,
        problems=tuple(listed),
        flags=() if found else tuple(flags or ()),
        claimed={} if found else claimed or {},
        computed_from_claimed={} if found else computed or {},
    )
