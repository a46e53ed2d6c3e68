"""The file picker; a folder that is gone or closed to us is said in it, and never ends the app."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult
from textual.worker import Worker, WorkerState
from textual_fspicker import FileOpen
from textual_fspicker.parts import DirectoryNavigation

from quantscope_views.screens.modal import LeftOnce


class FolderList(DirectoryNavigation):  # type: ignore[misc]
    """Entries of a folder. The picker's own list lets a folder that vanishes end the app."""

    def run_worker(self, *args: Any, **options: Any) -> Worker[Any]:
        """List a folder; a failure is for the list to tell."""
        started: Worker[Any] = super().run_worker(*args, **{**options, "exit_on_error": False})
        return started

    def _move_page(self, direction: Any) -> None:
        """By pages, where there are lines to move by: a tiny window has none."""
        try:
            super()._move_page(direction)
        except (KeyError, IndexError):
            return

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Show what could be listed, and that it is not all."""
        if event.state is WorkerState.ERROR:
            self._repopulate_display()
            self.post_message(self.PermissionError(self, self.location))


class Picker(LeftOnce, FileOpen):  # type: ignore[misc]
    """Chooses a file."""

    ERROR_PERMISSION_ERROR = "this folder cannot be listed"

    def compose(self) -> ComposeResult:
        """The picker's own widgets, with a list that survives its folder."""
        for widget in super().compose():
            yield (
                FolderList(self._location, double_click_directories=self._double_click_directories)
                if isinstance(widget, DirectoryNavigation)
                else widget
            )
