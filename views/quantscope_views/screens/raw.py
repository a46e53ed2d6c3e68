"""Plain hex of a whole file."""

from __future__ import annotations

from collections.abc import Iterable

from textual.widget import Widget

from quantscope_views.lines import Line, line, shown_name
from quantscope_views.place import GoTo, Place
from quantscope_views.present.words import offset_words, size_words
from quantscope_views.screens.base import BaseScreen
from quantscope_views.widgets.hex_view import HexView


class RawScreen(BaseScreen):
    """Bytes of one file, from its first to its last."""

    name_in_tabs = "raw"

    def __init__(self, file_id: int, byte_offset: int = 0) -> None:
        super().__init__()
        self._file_id = file_id
        self._byte_offset = byte_offset

    def compose_body(self) -> Iterable[Widget]:
        """One hex view."""
        yield HexView(id="raw-hex")

    def on_mount(self) -> None:
        """Show the file at the byte wanted."""
        super().on_mount()
        checkpoint = self.workspace.checkpoint
        view = self.query_one("#raw-hex", HexView)
        if checkpoint is not None:
            source = checkpoint.sources[self._file_id]
            view.show(source, 0, source.size)
            view.focus()
            self.call_after_refresh(view.go_to, self._byte_offset)

    def headline(self, width: int) -> Line:
        """Name and size of the file."""
        checkpoint = self.workspace.checkpoint
        if checkpoint is None:
            return line("")
        file = checkpoint.file(self._file_id)
        return line(
            (f" {shown_name(file.name, width - 24)}  ", "strong"),
            f"{size_words(file.size)}, plain hex",
        )

    def take_go_to(self, wanted: GoTo) -> bool:
        """An offset of this file."""
        if wanted.byte_offset is None:
            return False
        self.query_one("#raw-hex", HexView).go_to(wanted.byte_offset)
        return True

    def place(self) -> Place:
        """File and byte."""
        view = self.query_one("#raw-hex", HexView)
        return Place(screen="raw", file_id=self._file_id, byte_offset=view.byte_offset)

    def right_note(self) -> tuple[str, str]:
        """Where hex starts."""
        return f"from {offset_words(self._byte_offset)}", "dim"
