"""`scan --base`: the gates that a float base lets a scan execute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from quantscope.cli import running
from quantscope.cli.running import RunOptions
from quantscope.errors import MissingExtraError
from quantscope.evidence.gates import Gate, GateName

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection

_WORST = ("did_not_hold", "inconclusive", "held")


def base_gates(
    inspections: Sequence[Inspection], base: str, options: RunOptions
) -> dict[GateName, Gate]:
    """`graph_rewrite` and `numeric_reference` of scanned checkpoints against one float base.

    Raises:
        QuantscopeError: the base cannot be opened, or comparing is not installed.
    """
    try:
        from quantscope.compare.run import compare
    except ModuleNotFoundError:
        raise MissingExtraError(
            "--base needs the comparison, which this installation lacks", source=base
        ) from None
    from quantscope.session.pipeline import Scope, inspect

    gates: dict[GateName, list[Gate]] = {}
    with running.opened(base) as checkpoint, running.stopped_by_interrupt() as stopped:
        reference = inspect(checkpoint, Scope(mode="headers"), cancelled=stopped)
        for inspection in inspections:
            found = compare(
                inspection,
                reference,
                reference,
                everything=options.deep,
                cancelled=stopped,
            )
            for name in ("graph_rewrite", "numeric_reference"):
                gates.setdefault(name, []).append(found.gates[name])
    return {name: _joined(found) for name, found in gates.items()}


def _joined(gates: Sequence[Gate]) -> Gate:
    """The gate over several checkpoints: the worst outcome, with how many there were."""
    executed = [gate for gate in gates if gate.status == "executed"]
    if not executed:
        return gates[0]
    worst = min(executed, key=lambda gate: _WORST.index(gate.outcome or "held"))
    if len(gates) == 1:
        return worst
    scope = {**(worst.scope or {}), "checkpoints": len(gates), "executed_for": len(executed)}
    return msgspec.structs.replace(worst, scope=scope)
