"""The pane that stands where there is nothing else to show: empty, loading, error, not run and the rest."""

from __future__ import annotations

from typing import Any

from quantscope_views.present.states import PaneState, state_lines
from quantscope_views.widgets.lines_view import LinesView


class StatePane(LinesView):
    """Shows one `PaneState`; Enter on an offered action runs it, arrows go from offer to offer."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(help_topic="states", **kwargs)
        self.state: PaneState | None = None

    def show_state(self, state: PaneState) -> None:
        """Show a state; the cursor is on an offered action where there is one."""
        self.state = state
        compact = self.has_class("-banner")
        self.show(lambda width: state_lines(state, width, compact=compact))

    def _rebuild(self) -> None:
        super()._rebuild()
        offers = self._offers()
        if offers and self.cursor not in offers:
            self.cursor = offers[0]

    def _offers(self) -> list[int]:
        return [i for i, shown in enumerate(self.lines) if shown.action]

    def action_up(self) -> None:
        """The offer before."""
        before = [i for i in self._offers() if i < self.cursor]
        if before:
            self.go_to(before[-1])

    def action_down(self) -> None:
        """The next offer."""
        later = [i for i in self._offers() if i > self.cursor]
        if later:
            self.go_to(later[0])
