"""Both sides of a pair in Bytes, one over the other or side by side."""

from __future__ import annotations

from collections.abc import Iterable

from quantscope.compare.model import PairResult
from quantscope.session.inspection import Inspection, TensorState
from textual.containers import Container
from textual.widget import Widget

from quantscope_views.lines import Line, Span, shown_name
from quantscope_views.place import GoTo, Place
from quantscope_views.present.bytes_model import BytesPage
from quantscope_views.present.reading_choice import ReadingChoice, choice_of
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.bytes_pane import BytesPane


class PairScreen(BaseScreen):
    """Tab changes the side; both keep their own cursor."""

    name_in_tabs = "compare"

    def __init__(self, pair: PairResult, other: Inspection) -> None:
        super().__init__()
        self._pair = pair
        self._other = other
        self._choices: dict[str, ReadingChoice | None] = {}

    def compose_body(self) -> Iterable[Widget]:
        """Two panes."""
        with Container(id="pair"):
            yield BytesPane(id="bytes-a", channel="a")
            yield BytesPane(id="bytes-b", channel="b")

    def on_mount(self) -> None:
        """Show both tensors at their first element."""
        super().on_mount()
        inspection = self.workspace.inspection
        for pane_id, side, name in (
            ("#bytes-a", inspection, self._pair.pair.a),
            ("#bytes-b", self._other, self._pair.pair.b),
        ):
            state = _state(side, name)
            if side is None or state is None:
                continue
            choice = choice_of(state)
            self.query_one(pane_id, BytesPane).show_tensor(
                side.checkpoint, state, choice, self.qapp.bridge
            )
        self.query_one("#bytes-a", BytesPane).focus_first()

    def headline(self, width: int) -> Line:
        """Both names."""
        half = width // 2 - 4
        return Line(
            spans=(
                Span(" A ", "head"),
                Span(shown_name(self._pair.pair.a, half), "strong"),
                Span("  B ", "head"),
                Span(shown_name(self._pair.pair.b, half), "strong"),
            )
        )

    def take_page(self, tensor: str, page: BytesPage, channel: str = "") -> None:
        """Bytes of one side arrived."""
        if channel in ("a", "b"):
            self.query_one(f"#bytes-{channel}", BytesPane).take_page(page)

    def take_result(self, key: str, result: object) -> None:
        """The element of a byte, or a search, of one side."""
        for channel in ("a", "b"):
            pane = self.query_one(f"#bytes-{channel}", BytesPane)
            if key == f"element:{channel}":
                pane.take_element(result)  # type: ignore[arg-type]
            elif key == f"search:{channel}":
                pane.take_found(result)  # type: ignore[arg-type]

    def take_go_to(self, wanted: GoTo) -> bool:
        """An element goes to both sides, an offset to the side in focus."""
        if wanted.name is not None:
            return False
        panes = list(self.query(BytesPane))
        if wanted.at is not None:
            for pane in panes:
                pane.go(at=wanted.at)
            return True
        focused = next((p for p in panes if p.has_focus_within), panes[0])
        focused.go(byte_offset=wanted.byte_offset)
        return True

    def place(self) -> Place:
        """The tensor of side A."""
        return Place(screen="tensor", tensor=self._pair.pair.a, tab="bytes")


def _state(inspection: Inspection | None, name: str) -> TensorState | None:
    if inspection is None:
        return None
    return next((s for s in inspection.states if s.tensor.name == name), None)
