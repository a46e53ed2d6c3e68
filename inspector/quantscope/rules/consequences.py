"""Findings that only follow from another one: displaced bytes, one wrong word read by several rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quantscope.model import Finding
from quantscope.rules.base import Hit
from quantscope.rules.facts import Facts

DISPLACING = frozenset(
    {
        "st-overlap",
        "st-alias",
        "st-offsets-reversed",
        "gg-region-short",
        "gg-offset-align",
        "gg-offset-order",
        "gg-alignment-value",
        "gg-alignment-type",
        "gg-version",
        "gg-n-dims",
        "gg-dim-value",
    }
)
"""Container issues after which the bytes of a file's tensors need not be their own."""

VALUES = ("QS00", "QS014", "QS015", "QV00", "QB003", "QZ002", "QZ003", "QZ005", "QZ007", "QG00")
"""Codes of rules that judge values."""

SIZES = ("QP001", "QP007", "QP008")


def without_consequences(facts: Facts, hits: Iterable[Finding | Hit]) -> list[Finding | Hit]:
    """Hits without those that a graver or more exact one explains."""
    kept = list(hits)
    displaced = {issue.file for issue in facts.opened.issues if issue.name in DISPLACING}
    broken = {
        issue.tensor
        for issue in facts.opened.issues
        if issue.tensor and issue.name.startswith(("st-", "gg-"))
    }
    named = {
        code: _of(kept, code)
        for code in ("QD011", "QG001", "QG002", "QW001", "QP009", "QV004", "QR006")
    }
    keys = {f.subject.config_key for f in named["QD011"]}
    described = {f.subject.config_key for f in named["QR006"]}
    bad_index = {f.subject.tensor for f in (*named["QG001"], *named["QG002"])}
    ignored = {f.subject.tensor for f in named["QW001"]}
    blank = {f.subject.tensor for f in named["QV004"]}
    stateless = {f.subject.tensor for f in named["QP009"]}

    def follows(finding: Finding) -> bool:
        code, subject = finding.code, finding.subject
        if code.startswith(VALUES) and subject.file in displaced:
            return True
        if code in SIZES and (subject.stored in broken or subject.tensor in broken):
            return True
        if code in ("QD004", "QZ002") and subject.config_key in keys:
            return True
        if code.startswith(("QD", "QZ")) and described and _sources(finding) & described:
            return True
        if code == "QP008" and subject.tensor in stateless:
            return True
        if code == "QV001" and subject.tensor in blank:
            return True
        if code == "QG003" and subject.tensor in bad_index:
            return True
        plain = "plain" in (finding.data.get("declared"), *_values(finding))
        return code in ("QD001", "QD002") and subject.tensor in ignored and plain

    return [hit for hit in kept if not follows(_finding(hit))]


def _finding(hit: Finding | Hit) -> Finding:
    return hit.finding if isinstance(hit, Hit) else hit


def _of(hits: Sequence[Finding | Hit], code: str) -> list[Finding]:
    return [f for hit in hits if (f := _finding(hit)).code == code]


def _sources(finding: Finding) -> set[str | None]:
    values = finding.data.get("values")
    found = {finding.subject.config_key, str(finding.data.get("source"))}
    return found | set(values) if isinstance(values, dict) else found


def _values(finding: Finding) -> tuple[object, ...]:
    values = finding.data.get("values")
    return (
        tuple(v for v in values.values() if isinstance(v, str)) if isinstance(values, dict) else ()
    )
