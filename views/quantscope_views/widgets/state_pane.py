"""The pane that stands where there is nothing else to show: empty, loading, error, not run and the rest."""

from __future__ import annotations

from typing import Any

from quantscope_views.present.states import PaneState, state_lines
from quantscope_views.widgets.lines_view import LinesView


class StatePane(LinesView):
    """Shows one `PaneState`; Enter on an offered action runs it."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(help_topic="states", **kwargs)
        self.state: PaneState | None = None

    def show_state(self, state: PaneState) -> None:
        """Show a state; the cursor goes to its first action."""
        same = self.state == state
        self.state = state
        self.show(lambda width: state_lines(state, width))
        if not same:
            first = next((i for i, shown in enumerate(self.lines) if shown.action), 0)
            self.cursor = first
