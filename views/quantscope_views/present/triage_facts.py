"""Everything that the Triage screen shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from quantscope.model import Finding

from quantscope_views.present.headline import Overview
from quantscope_views.present.scan_tally import ScanTally

if TYPE_CHECKING:
    from quantscope.session.inspection import Inspection


class TriageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the screen shows."""

    overview: Overview
    inspection: Inspection | None
    tally: ScanTally
    stage: str
    """opening, headers, part, sample or deep: what the findings rest on."""
    partial: str | None = None
    rules_error: str | None = None
    ran: tuple[str, ...] = ()
    """Kinds of checks that ran in this session on the whole checkpoint."""
    kernel_outcomes: dict[str, str] = {}
    """Outcome of the newest check by a real kernel, by tensor."""
    scanning: bool = False
    """Whether a scan still runs, so that more may be found."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far, worst first."""
        return self.inspection.findings if self.inspection is not None else ()
