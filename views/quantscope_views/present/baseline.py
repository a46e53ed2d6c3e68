"""A finding accepted by a person: one entry of the baseline file, with a reason and an end date."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

from quantscope.errors import UnreadableError
from quantscope.model import Finding

FILE_NAME = "quantscope.toml"
ACCEPTED_DAYS = 90
"""An acceptance ends after this many days unless the file is edited."""


def entry_of(finding: Finding, reason: str, today: dt.date) -> str:
    """The TOML table that accepts a finding."""
    expires = today + dt.timedelta(days=ACCEPTED_DAYS)
    return (
        "\n[[suppress]]\n"
        f"finding = {json.dumps(finding.id, ensure_ascii=True)}\n"
        f"reason = {json.dumps(reason, ensure_ascii=True)}\n"
        f"expires = {expires.isoformat()}\n"
    )


def accept(finding: Finding, reason: str, folder: Path, today: dt.date) -> tuple[str, ...]:
    """Append the entry to the baseline file of a folder.

    Returns:
        What was written, in sentences.

    Raises:
        UnreadableError: the file cannot be written.
    """
    path = folder / FILE_NAME
    try:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(entry_of(finding, reason, today))
    except OSError as problem:
        raise UnreadableError(
            f"{path} cannot be written: {problem.strerror or problem}", source=str(path)
        ) from problem
    until = today + dt.timedelta(days=ACCEPTED_DAYS)
    return (
        f"{FILE_NAME}: {finding.code} accepted until {until.isoformat()}",
        f"quantscope scan PATH --baseline {FILE_NAME}",
    )
