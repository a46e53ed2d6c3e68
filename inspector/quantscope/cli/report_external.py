"""Results of others for a report: listed as claimed with their hash, never believed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from quantscope.containers.source import ByteSource
from quantscope.errors import UnreadableError
from quantscope.evidence.gates import Gate, GateName, reported
from quantscope.evidence.readers import read_external as read_one

MAX_BYTES = 256 << 20


def read_external(
    files: Sequence[str],
) -> tuple[tuple[dict[str, Any], ...], dict[GateName, Gate]]:
    """Entries of `external_evidence`, and the gates that well-formed ones speak about.

    Raises:
        UnreadableError: a file cannot be read or is too large.
    """
    entries: list[dict[str, Any]] = []
    gates: dict[GateName, Gate] = {}
    for path in files:
        with ByteSource(path) as source:
            if source.size > MAX_BYTES:
                raise UnreadableError(f"{path} is over {MAX_BYTES >> 20} MiB", source=path)
            data = source.read_at(0, source.size)
        found = read_one(data, os.path.basename(path))
        entries.append(found.as_json())
        if not found.problems:
            gates[found.gate] = reported(found.name)
    return tuple(entries), gates
