"""A report as SARIF 2.1.0, for code-scanning views.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0. Messages escape what the
format gives a meaning of its own: `{` and `}` (placeholders, 3.11.5) and `[` and `]` (links, 3.11.6).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from quantscope.report.lookup import example_words, tensor_of
from quantscope.report.schema import FindingEntry, Report
from quantscope.report.words import SEVERITY_WORDS
from quantscope.text import cut_middle, inert

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
VERSION = "2.1.0"
LEVELS = {"violation": "error", "disagreement": "error", "warning": "warning", "note": "note"}
MAX_TEXT = 2000

_MEANINGFUL = re.compile(r"([\[\]\\])")


class RuleText:
    """What SARIF says about one rule."""

    def __init__(self, name: str, checks: str, why: str) -> None:
        self.name = name
        self.checks = checks
        self.why = why


def rule_texts() -> dict[str, RuleText]:
    """Texts of every rule of the catalogue."""
    from quantscope.rules.catalogue import catalogue

    return {
        code: RuleText(rule.name, rule.page.checks, rule.page.why)
        for code, rule in catalogue().items()
    }


def sarif(report: Report, rules: Mapping[str, RuleText] | None = None) -> dict[str, Any]:
    """The SARIF log of a report.

    Args:
        report: the report.
        rules: texts of the rules by code; the finding's own name where a rule is not among them.
    """
    codes = sorted({finding.code for finding in report.findings})
    names = {finding.code: finding.name for finding in report.findings}
    texts = {code: (rules or {}).get(code) or RuleText(names[code], "", "") for code in codes}
    artifacts, positions = _artifacts(report)
    levels = {f.code: LEVELS[f.severity] for f in reversed(report.findings)}
    run: dict[str, Any] = {
        "tool": {
            "driver": {
                "name": report.tool.name,
                "version": report.tool.version,
                "rules": [_rule(code, texts[code], levels[code]) for code in codes],
            }
        },
        "invocations": [
            {
                "executionSuccessful": report.scope.partial is None,
                "commandLine": inert(report.run.command),
                "startTimeUtc": _zulu(report.run.started),
            }
        ],
        "artifacts": artifacts,
        "results": [_result(finding, codes, positions) for finding in report.findings],
        "columnKind": "unicodeCodePoints",
        "properties": {
            "overall": report.overall,
            "scanMode": report.scope.mode,
            "gates": {
                name: getattr(report.gates, name).status for name in report.gates.__struct_fields__
            },
            "notChecked": [_text(f"{item.what}: {item.why}") for item in report.not_checked],
        },
    }
    return {"$schema": SCHEMA_URI, "version": VERSION, "runs": [run]}


def _artifacts(report: Report) -> tuple[list[dict[str, Any]], dict[tuple[int, str], int]]:
    artifacts: list[dict[str, Any]] = []
    positions: dict[tuple[int, str], int] = {}
    for number, entry in enumerate(report.inputs):
        for file in entry.files:
            positions[number, file.name] = len(artifacts)
            artifact: dict[str, Any] = {
                "location": {"uri": _uri(file.name)},
                "length": file.size,
                "roles": ["analysisTarget"],
            }
            if file.sha256 is not None:
                artifact["hashes"] = {"sha-256": file.sha256}
            artifacts.append(artifact)
        for config in entry.config_files:
            positions[number, config.name] = len(artifacts)
            artifact = {"location": {"uri": _uri(config.name)}, "length": config.size}
            if config.sha256 is not None:
                artifact["hashes"] = {"sha-256": config.sha256}
            artifacts.append(artifact)
    return artifacts, positions


def _rule(code: str, text: RuleText, level: str) -> dict[str, Any]:
    rule: dict[str, Any] = {
        "id": code,
        "name": _pascal(text.name),
        "shortDescription": {"text": _text(text.name.replace("-", " "))},
        "defaultConfiguration": {"level": level},
    }
    if text.checks:
        rule["fullDescription"] = {"text": _text(text.checks)}
    if text.why:
        rule["help"] = {"text": _text(text.why)}
    return rule


def _result(
    finding: FindingEntry, codes: list[str], positions: Mapping[tuple[int, str], int]
) -> dict[str, Any]:
    parts = [f"{SEVERITY_WORDS[finding.severity]}: {finding.message}"]
    parts += [text for text in (finding.impact, example_words(finding)) if text]
    if finding.try_:
        parts.append(f"Try (not applied): {finding.try_}")
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": LEVELS[finding.severity],
        "message": {"text": " ".join(_text(part) for part in parts)},
        "partialFingerprints": {
            "findingId/v1": hashlib.sha256(
                finding.id.encode("utf-8", errors="surrogatepass")
            ).hexdigest()
        },
        "occurrenceCount": finding.count,
        "properties": {
            "findingId": inert(finding.id),
            "confidence": finding.confidence,
            "severity": finding.severity,
            "who": finding.who,
        },
    }
    locations = _locations(finding, positions)
    if locations:
        result["locations"] = locations
    return result


def _locations(
    finding: FindingEntry, positions: Mapping[tuple[int, str], int]
) -> list[dict[str, Any]]:
    subject = finding.subject
    location: dict[str, Any] = {}
    file = subject.file
    if file is None and subject.config_key:
        file = subject.config_key.partition("#")[0]
    if file is not None:
        artifact: dict[str, Any] = {"uri": _uri(file)}
        index = positions.get((finding.input, file))
        if index is not None:
            artifact["index"] = index
        place: dict[str, Any] = {"artifactLocation": artifact}
        if subject.file is not None and subject.byte_range is not None:
            first, last = subject.byte_range
            place["region"] = {"byteOffset": first, "byteLength": max(0, last - first)}
        location["physicalLocation"] = place
    name = subject.stored or tensor_of(finding) or subject.config_key
    if name is not None:
        location["logicalLocations"] = [
            {"fullyQualifiedName": cut_middle(inert(name), 400), "kind": "member"}
        ]
    return [location] if location else []


def _uri(name: str) -> str:
    """A file name as a relative URI reference; nothing in it can become a scheme."""
    return quote(inert(name).replace("\\", "/"), safe="/._-~")


def _text(text: str) -> str:
    shown = cut_middle(inert(text), MAX_TEXT).replace("{", "{{").replace("}", "}}")
    return _MEANINGFUL.sub(r"\\\1", shown)


def _pascal(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("-"))


def _zulu(started: str) -> str:
    return started.replace("+00:00", "Z")
