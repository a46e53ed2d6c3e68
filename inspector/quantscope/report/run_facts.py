"""The part of a report that differs between two runs."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import platform
from collections.abc import Sequence

from quantscope.report.schema import Run
from quantscope.session.inspection import Inspection

LIBRARIES = ("click", "gguf", "msgspec", "numpy", "safetensors")


def run_facts(inspections: Sequence[Inspection], command: str, device: str | None) -> Run:
    """When, where and with what the inspections ran."""
    duration_s = sum(inspection.duration_s for inspection in inspections)
    started = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=duration_s)
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return Run(
        started=started.isoformat(timespec="milliseconds"),
        duration_s=round(duration_s, 3),
        platform=platform.platform(),
        python=platform.python_version(),
        libraries=libraries,
        device=device,
        command=command,
    )
