"""Findings that a person has accepted: `quantscope.toml` or a report, by finding id, until a date."""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from quantscope.errors import UsageError
from quantscope.model import Finding, Suppressed

MAX_BYTES = 16 << 20


class Suppression(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted finding."""

    id: str
    reason: str
    expires: datetime.date | None = None


def load_suppressions(path: Path, today: datetime.date | None = None) -> tuple[Suppression, ...]:
    """Read a suppression list.

    A TOML file holds `[[suppress]]` tables with `id` (or `finding`), `reason` and an optional date
    `expires`; a JSON file is a report whose findings are accepted as they stand.

    Args:
        path: the file.
        today: entries that expired before this day are left out; today by default.

    Raises:
        UsageError: the file cannot be read or an entry lacks an id or a reason.
    """
    day = today or datetime.date.today()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path.name} is larger than {MAX_BYTES} bytes", source=str(path))
        raw = path.read_bytes()
        entries = _from_json(raw) if path.suffix == ".json" else _from_toml(raw)
    except (OSError, ValueError, TypeError) as problem:
        raise UsageError(
            f"{path.name} is no suppression list: {problem}",
            hint='[[suppress]] with id = "QZ001:..." and reason = "..."',
            source=str(path),
        ) from problem
    return tuple(e for e in entries if e.expires is None or e.expires >= day)


def _from_toml(raw: bytes) -> list[Suppression]:
    tables = tomllib.loads(raw.decode("utf-8")).get("suppress", [])
    if not isinstance(tables, list):
        raise TypeError("`suppress` is no array of tables")
    found = []
    for table in tables:
        expires = table.get("expires")
        if isinstance(expires, str):
            expires = datetime.date.fromisoformat(expires)
        if isinstance(expires, datetime.datetime):
            expires = expires.date()
        name = table.get("id", table.get("finding"))
        if not isinstance(name, str) or not str(table.get("reason", "")).strip():
            raise ValueError("an entry lacks an id or a reason")
        odd = sorted(set(table) - {"id", "finding", "reason", "expires"})
        if odd:
            raise ValueError(f"an entry has the unknown key {odd[0]}")
        if expires is not None and not isinstance(expires, datetime.date):
            raise ValueError("expires is no date")
        found.append(Suppression(id=name, reason=str(table["reason"]), expires=expires))
    return found


def _from_json(raw: bytes) -> list[Suppression]:
    document = json.loads(raw)
    findings = document.get("findings") if isinstance(document, dict) else None
    if not isinstance(findings, list):
        raise ValueError("it holds no findings")
    return [
        Suppression(id=str(item["id"]), reason="in the baseline")
        for item in findings
        if isinstance(item, dict) and "id" in item
    ]


def suppression_text(finding_id: str, reason: str, expires: datetime.date | None) -> str:
    """A `[[suppress]]` table to append to a suppression list."""

    def quoted(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'

    until = f"expires = {expires.isoformat()}\n" if expires is not None else ""
    return f"[[suppress]]\nid = {quoted(finding_id)}\nreason = {quoted(reason)}\n{until}"


def split_suppressed(
    findings: Iterable[Finding], suppressions: Iterable[Suppression]
) -> tuple[list[Finding], list[Suppressed]]:
    """Findings that stay, and those left out with the reason."""
    reasons = {entry.id: entry.reason for entry in suppressions}
    kept: list[Finding] = []
    left: list[Suppressed] = []
    for finding in findings:
        if finding.id in reasons:
            left.append(Suppressed(id=finding.id, reason=reasons[finding.id]))
        else:
            kept.append(finding)
    return kept, left
