"""Compare: two checkpoints, or two readings of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType
from textual.widget import Widget

from quantscope_views.actions import bindings_for
from quantscope_views.place import Place
from quantscope_views.present.states import PaneState
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.state_pane import StatePane


class CompareScreen(BaseScreen):
    """Two sides."""

    name_in_tabs = "compare"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("compare")]

    def compose_body(self) -> Iterable[Widget]:
        """A state until something is compared."""
        yield StatePane(id="state")

    def workspace_changed(self, what: str) -> None:
        """Nothing is compared yet."""
        self.refresh_top()
        pane = self.query_one("#state", StatePane)
        pane.show_state(
            PaneState(
                kind="not_run",
                what="nothing is compared with this checkpoint",
                actions=(("compare.choose-other", "choose the other checkpoint"),),
            )
        )
        pane.focus()

    def place(self) -> Place:
        """Compare has no inner place."""
        return Place(screen="compare")
