"""Kernel and logits runs for `quantscope report --with`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from quantscope.errors import MissingExtraError


def run_for_report(
    path: str, wanted: Sequence[str], tensors: Sequence[str], backend: str
) -> dict[str, Any]:
    """What the runs put into a report: `parity`, `probes` and `gates`.

    Each kind of run lives in a module with a function `for_report(path, tensors, backend)` that gives
    entries and gates.

    Raises:
        MissingExtraError: a kind of run is not installed.
    """
    found: dict[str, Any] = {"parity": (), "probes": (), "gates": {}}
    for kind, module, key in (
        ("parity", "quantscope.parity.for_report", "parity"),
        ("probe", "quantscope.probes.for_report", "probes"),
    ):
        if kind not in wanted:
            continue
        try:
            run = importlib.import_module(module).for_report
        except ModuleNotFoundError as problem:
            if not module.startswith(problem.name or "-"):
                raise
            raise MissingExtraError(
                f"--with {kind} is not available in this installation",
                hint=f"quantscope {kind} {path}",
            ) from None
        entries, gates = run(path, tuple(tensors), backend)
        found[key] = tuple(entries)
        found["gates"] |= gates
    return found
