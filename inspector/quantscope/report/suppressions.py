"""The baseline file `quantscope.toml`: findings that somebody accepted, why, and until when."""

from __future__ import annotations

import datetime as dt
import fnmatch
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from quantscope.errors import UsageError
from quantscope.model import Finding

FILE_NAME = "quantscope.toml"
MAX_BYTES = 1 << 20


class Suppression(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted finding.

    `finding` is a finding's id (`QZ201:model.layers.0.self_attn.q_proj.weight|zero_convention`); `*` stands
    for any text after the code, a bare code for every finding of the rule. It holds up to and on `expires`.
    """

    finding: str
    reason: str
    expires: dt.date

    def covers(self, finding: Finding) -> bool:
        """Whether this entry names the finding."""
        if self.finding == finding.code:
            return True
        pattern = self.finding.replace("[", "[[]").replace("?", "[?]")
        return fnmatch.fnmatchcase(finding.id, pattern)


class Suppressed(msgspec.Struct, frozen=True, kw_only=True):
    """Findings after a baseline was applied."""

    kept: tuple[Finding, ...]
    suppressed: tuple[tuple[Finding, Suppression], ...]
    expired: tuple[Suppression, ...]
    """Entries past their date; what they name counts again."""
    unused: tuple[Suppression, ...]
    """Entries in force that name nothing found."""


def load_suppressions(path: str | Path) -> tuple[Suppression, ...]:
    """Entries of a baseline file.

    The file holds `[[suppress]]` tables, each with `finding`, `reason` (not empty) and `expires` (a date).

    Raises:
        UsageError: the file cannot be read, is no TOML, or an entry lacks or misspells a key.
    """
    try:
        with open(path, "rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except OSError as problem:
        raise UsageError(
            f"the baseline {path} cannot be read: {problem.strerror}", source=str(path)
        ) from None
    if len(text) > MAX_BYTES:
        raise UsageError(f"the baseline {path} is over 1 MiB", source=str(path))
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise UsageError(f"the baseline {path} is no TOML: {problem}", source=str(path)) from None
    entries = data.get("suppress", [])
    if not isinstance(entries, list):
        raise UsageError(f"{path}: `suppress` must be [[suppress]] tables", source=str(path))
    return tuple(_entry(entry, number, path) for number, entry in enumerate(entries, 1))


def _entry(entry: object, number: int, path: str | Path) -> Suppression:
    where = f"{path}: [[suppress]] number {number}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no table", source=str(path))
    keys = {"finding", "reason", "expires"}
    if set(entry) != keys:
        odd = sorted(keys.symmetric_difference(entry))
        raise UsageError(
            f"{where} has or lacks {', '.join(odd)}",
            hint='each entry holds finding = "...", reason = "...", expires = 2027-01-31',
            source=str(path),
        )
    expires = entry["expires"]
    if isinstance(expires, str):
        try:
            expires = dt.date.fromisoformat(expires)
        except ValueError:
            expires = None
    if not isinstance(expires, dt.date) or isinstance(expires, dt.datetime):
        raise UsageError(f"{where}: expires is no date", hint="2027-01-31", source=str(path))
    for key in ("finding", "reason"):
        if not isinstance(entry[key], str) or not entry[key].strip():
            raise UsageError(f"{where}: {key} must be text", source=str(path))
    return Suppression(finding=entry["finding"], reason=entry["reason"], expires=expires)


def apply_suppressions(
    findings: Iterable[Finding], entries: Sequence[Suppression], today: dt.date | None = None
) -> Suppressed:
    """Split findings by a baseline.

    Args:
        findings: folded findings.
        entries: the baseline.
        today: the date that expiry is measured against; today's UTC date by default.
    """
    today = today or dt.datetime.now(dt.UTC).date()
    active = [entry for entry in entries if entry.expires >= today]
    kept: list[Finding] = []
    suppressed: list[tuple[Finding, Suppression]] = []
    used: set[int] = set()
    for finding in findings:
        matching = [n for n, entry in enumerate(active) if entry.covers(finding)]
        used.update(matching)
        if matching:
            suppressed.append((finding, active[matching[0]]))
        else:
            kept.append(finding)
    return Suppressed(
        kept=tuple(kept),
        suppressed=tuple(suppressed),
        expired=tuple(entry for entry in entries if entry.expires < today),
        unused=tuple(entry for n, entry in enumerate(active) if n not in used),
    )


def entry_text(finding: Finding, reason: str, expires: dt.date) -> str:
    """A finding as a `[[suppress]]` table to append to a baseline file."""

    def quoted(text: str) -> str:
        safe = text.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in safe) + '"'

    return (
        f"[[suppress]]\nfinding = {quoted(finding.id)}\nreason = {quoted(reason)}\n"
        f"expires = {expires.isoformat()}\n"
    )
