"""The Bytes tab: a cursor on one code, everything about it around; bytes come from the bridge."""

from __future__ import annotations

from functools import partial

from quantscope.checkpoint import Checkpoint
from quantscope.containers.records import StoredTensor
from quantscope.session.events import CancelToken
from quantscope.session.inspection import TensorState
from textual.app import ComposeResult
from textual.containers import Vertical

from quantscope_views.bridge import Bridge
from quantscope_views.present.bytes_layout import LayoutMap
from quantscope_views.present.bytes_lines import (
    fit_page,
    margin_of,
    page_margin,
)
from quantscope_views.present.bytes_model import BytesPage, PageRequest
from quantscope_views.present.bytes_page import PageReader
from quantscope_views.present.bytes_search import element_of_byte, find_next
from quantscope_views.present.reading_choice import ReadingChoice
from quantscope_views.present.states import PaneState
from quantscope_views.present.words import offset_words
from quantscope_views.widgets.hex_view import HexView
from quantscope_views.widgets.nibble_view import NibbleView
from quantscope_views.widgets.state_pane import StatePane


class BytesPane(Vertical):
    """Owns the cursor of one tensor; shows codes, or plain hex where nothing decodes them."""

    def __init__(self, *, id: str | None = None, channel: str = "") -> None:  # noqa: A002
        super().__init__(id=id)
        self._channel = channel
        self._checkpoint: Checkpoint | None = None
        self._state: TensorState | None = None
        self._choice: ReadingChoice | None = None
        self._bridge: Bridge | None = None
        self._layout: LayoutMap | None = None
        self._at = (0, 0)
        self._asked_byte: tuple[int, int] | None = None
        self._asked: PageRequest | None = None
        self._ranges: list[tuple[int, int, int]] = []

    def compose(self) -> ComposeResult:
        """A state, codes, or plain hex."""
        yield StatePane(id="bytes-state")
        yield NibbleView(id="nibbles")
        yield HexView(id="plain-hex")

    def on_mount(self) -> None:
        """Only one of the three is shown."""
        self.query_one("#bytes-state").display = False
        self.query_one("#plain-hex").display = False

    @property
    def nibbles(self) -> NibbleView:
        """The view of codes."""
        return self.query_one("#nibbles", NibbleView)

    @property
    def page(self) -> BytesPage | None:
        """The page shown."""
        return self.nibbles.page if self.is_mounted else None

    @property
    def position(self) -> tuple[int, int] | None:
        """Row and column of the cursor."""
        return self._at if self._choice is not None else None

    def show_tensor(
        self,
        checkpoint: Checkpoint,
        state: TensorState,
        choice: ReadingChoice | None,
        bridge: Bridge,
    ) -> None:
        """Show a tensor; a newer state of the same tensor keeps the cursor."""
        self._checkpoint, self._bridge = checkpoint, bridge
        self.nibbles.ascii_only = bool(getattr(self.app, "ascii_only", False))
        same = self._state is not None and self._state.tensor == state.tensor
        self._state = state
        self._ranges = [
            (span.file_id, span.byte_offset, span.byte_offset + _extent(span))
            for plane in state.tensor.planes
            for span in plane.spans
        ]
        if choice is None or state.undecodable is not None:
            self._show_raw_state(state)
            return
        if self._choice is None or not same:
            self._choice = choice
        self.request()

    def _show_raw_state(self, state: TensorState) -> None:
        reason = state.undecodable or "no reading of its family fits the stored planes"
        pane = self.query_one("#bytes-state", StatePane)
        pane.display = True
        pane.add_class("-banner")
        pane.show_state(
            PaneState(
                kind="unsupported",
                what=f"codes are not decoded: {reason}",
                detail=(f"recognised as {state.tensor.word}; below: the stored bytes",),
            )
        )
        if state.tensor.planes and self._checkpoint is not None:
            span = state.tensor.planes[0].spans[0]
            self._show_hex(span.file_id, span.byte_offset, span.total_bytes)

    def show_failure(self, note: str) -> None:
        """The page could not be read; what was shown before stays below."""
        pane = self.query_one("#bytes-state", StatePane)
        pane.display = True
        pane.add_class("-banner")
        pane.show_state(PaneState(kind="error", what=note, actions=(("app.reload", "reload"),)))

    def show_stored(self, checkpoint: Checkpoint, stored: StoredTensor) -> None:
        """Plain hex of a stored tensor that nobody claims."""
        self._checkpoint = checkpoint
        self._ranges = [(stored.file_id, stored.byte_offset, stored.byte_offset + stored.nbytes)]
        self._show_hex(stored.file_id, stored.byte_offset, stored.nbytes)

    def _show_hex(self, file_id: int, start: int, nbytes: int) -> None:
        assert self._checkpoint is not None
        self.nibbles.display = False
        view = self.query_one("#plain-hex", HexView)
        view.display = True
        size = self._checkpoint.sources[file_id].size
        nbytes = max(0, min(nbytes, size - start))
        view.show(self._checkpoint.sources[file_id], start, nbytes)

    def show_choice(self, choice: ReadingChoice) -> None:
        """Show another reading at the same element."""
        if self._choice is not None and self._choice.shown.packing != choice.shown.packing:
            self._layout = None
        self._choice = choice
        self.request(force=True)

    def go(
        self,
        *,
        at: tuple[int, int] | None = None,
        byte_offset: int | None = None,
        file_id: int | None = None,
    ) -> None:
        """To an element, or to the first element that uses a byte of a file."""
        if at is not None:
            self._at = at
            self.request(force=True)
        elif byte_offset is not None:
            self._go_to_byte(byte_offset, file_id)

    def _go_to_byte(self, byte_offset: int, wanted_file: int | None) -> None:
        checkpoint, state, choice, bridge = (
            self._checkpoint,
            self._state,
            self._choice,
            self._bridge,
        )
        if checkpoint is None or state is None or choice is None or bridge is None:
            self._go_in_hex(byte_offset, wanted_file)
            return
        holding = self._holding(byte_offset, wanted_file)
        file_id = holding[0] if holding is not None else state.tensor.planes[0].file_id
        self._asked_byte = (wanted_file if wanted_file is not None else file_id, byte_offset)

        def find(token: CancelToken) -> tuple[tuple[int, int], str] | None:
            return element_of_byte(checkpoint, state, choice, file_id, byte_offset, token)

        bridge.small(f"element:{self._channel}", find)

    def _go_in_hex(self, byte_offset: int, file_id: int | None) -> None:
        """Plain hex of the plane that holds a byte."""
        holding = self._holding(byte_offset, file_id)
        if holding is not None and self._checkpoint is not None:
            self._show_hex(holding[0], holding[1], holding[2] - holding[1])
        self.query_one("#plain-hex", HexView).go_to(byte_offset)

    def _holding(self, byte_offset: int, file_id: int | None) -> tuple[int, int, int] | None:
        """File, first byte and end of the plane that holds a byte, in the file wanted where that is known."""
        for found in self._ranges:
            if found[1] <= byte_offset < found[2] and file_id in (None, found[0]):
                return found
        return None

    def owns(self, byte_offset: int) -> bool:
        """Whether a byte belongs to any plane of the tensor."""
        return self._holding(byte_offset, None) is not None

    def request(self, force: bool = False) -> None:
        """Ask for the page around the cursor, unless it is asked for already."""
        view = self.nibbles
        if (
            self._checkpoint is None
            or self._state is None
            or self._choice is None
            or self._bridge is None
            or not view.size.width
        ):
            return
        in_grid = (
            view.page.kind == "grid"
            if view.page is not None
            else (self._choice.shown.packing.axis == "in" and self._state.tensor.family == "gptq")
        )
        shape = self._choice.shown.shape
        margin = (
            page_margin(view.page)
            if view.page is not None
            else margin_of(
                "grid" if in_grid else "flat",
                (shape[-2], shape[-1]),
                max((high for _, _, high in self._ranges), default=0),
            )
        )
        fitting = fit_page(view.size.width, view.size.height, self._choice.shown, in_grid, margin)
        wanted = PageRequest(
            row=self._at[0],
            col=self._at[1],
            height=fitting.lines,
            line_bytes=fitting.line_bytes,
        )
        if wanted == self._asked and not force:
            return
        self._asked = wanted
        reader = PageReader(self._checkpoint, self._state, self._choice, self._layout)
        self._bridge.page(self._channel, self._state.tensor.name, partial(reader.read, wanted))

    def take_page(self, page: BytesPage) -> None:
        """A page arrived; one that was asked for before the cursor or the reading changed is dropped."""
        if self._choice is None or page.request != self._asked:
            return
        if page.reading != self._choice.shown:
            return
        self.query_one("#bytes-state").display = False
        first = self.page is None or self.page.kind != page.kind
        self._layout = page.layout
        self._at = (page.row, page.col)
        self.nibbles.show_page(page, self._choice)
        if first:
            self.request()

    def take_element(self, found: tuple[tuple[int, int], str] | None) -> None:
        """The element of a byte was found."""
        if found is None:
            self._show_unused_byte()
            return
        self._at, role = found
        self.nibbles.active = role
        self.request(force=True)

    def _show_unused_byte(self) -> None:
        """A byte that belongs to no element is shown as it lies in its file."""
        if self._asked_byte is None:
            return
        file_id, byte_offset = self._asked_byte
        workspace = getattr(self.app, "workspace", None)
        own = workspace is not None and workspace.checkpoint is self._checkpoint
        words = f"no element uses the byte {offset_words(byte_offset)}"
        self.notify(
            words + ("; plain hex" if own else ""), severity="warning", timeout=4, markup=False
        )
        if own:
            self.app.show_raw(file_id, byte_offset)  # type: ignore[attr-defined]

    def take_found(self, found: tuple[int, int] | None) -> None:
        """A search ended."""
        if found is None:
            self.notify("no other one after the cursor", timeout=4)
            return
        self._at = found
        self.request(force=True)

    def focus_first(self) -> None:
        """Focus whatever is shown."""
        view = self.nibbles if self.nibbles.display else self.query_one("#plain-hex", HexView)
        view.focus()

    def on_nibble_view_move_requested(self, message: NibbleView.MoveRequested) -> None:
        """The cursor moves."""
        message.stop()
        self._at = (message.row, message.col)
        self.request()

    def on_nibble_view_resized(self, message: NibbleView.Resized) -> None:
        """More or fewer lines fit."""
        message.stop()
        self.request()

    def on_nibble_view_search_requested(self, message: NibbleView.SearchRequested) -> None:
        """Search in a worker."""
        message.stop()
        checkpoint, state, choice = self._checkpoint, self._state, self._choice
        if checkpoint is None or state is None or choice is None or self._bridge is None:
            return
        row, col = self._at
        wanted = message.wanted
        if wanted == "difference" and not choice.is_what_if:
            words = "the file's own reading is shown; z or o shows another to compare with"
            self.notify(words, timeout=4, markup=False)
            return

        def search(token: CancelToken) -> tuple[int, int] | None:
            return find_next(checkpoint, state, choice, wanted, row, col, token)

        self._bridge.small(f"search:{self._channel}", search, f"search {wanted.replace('_', ' ')}")

    def on_nibble_view_raw_requested(self, message: NibbleView.RawRequested) -> None:
        """Plain hex at the cursor."""
        message.stop()
        page = self.page
        if page is not None and page.bits:
            span = page.bits[0]
            self.app.show_raw(span.file_id, span.byte_offset)  # type: ignore[attr-defined]


def _extent(span: object) -> int:
    from quantscope.model import Span

    assert isinstance(span, Span)
    return span.stride_bytes * (span.count - 1) + span.nbytes
