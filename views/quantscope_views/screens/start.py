"""Choosing what to open: a path by hand or from a list, or a bundled sample."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from quantscope_views.lines import Line, line, rule
from quantscope_views.place import Place
from quantscope_views.screens.modal import Modal
from quantscope_views.widgets.lines_view import LinesView

if TYPE_CHECKING:
    from quantscope_views.navigation import Navigation


def choose_path(app: Navigation, then: Callable[[str], None] | None = None) -> None:
    """Ask for a path with the file picker and hand it on; `open_path` by default."""
    from quantscope_views.screens.picker import Picker

    take = then or app.open_path

    def chosen(path: object) -> None:
        if path is not None:
            take(str(path))

    folder = os.path.dirname(os.path.abspath(app.workspace.path or "."))
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    app.push_screen(
        Picker(folder, title="a checkpoint file (for a folder: any file in it)", must_exist=True),
        chosen,
    )


def choose_sample(app: Navigation) -> None:
    """List the bundled samples and open the one chosen."""
    found = sample_paths()
    if not found:
        app.notify("this installation holds no samples", severity="warning")
        return

    def chosen(path: str | None) -> None:
        if path is not None:
            app.open_path(path)

    app.push_screen(SampleScreen(found), chosen)


def sample_paths() -> dict[str, str]:
    """Path of every bundled sample by its name; empty where there are none."""
    from quantscope.cli.samples import samples
    from quantscope.errors import QuantscopeError

    try:
        return {path.name: str(path) for path in sorted(samples())}
    except QuantscopeError:
        return {}


class SampleScreen(Modal[str | None]):
    """Names of samples; Enter opens one."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "cancel", show=False)]

    def __init__(self, found: dict[str, str]) -> None:
        super().__init__()
        self._found = found

    def compose(self) -> ComposeResult:
        """One line a sample."""
        with Vertical(id="prompt"):
            yield LinesView(
                lambda width: [rule("samples", width, "enter, esc")],
                id="prompt-title",
                cursor_on="never",
                can_focus=False,
            )
            yield LinesView(self._build, id="sample-list", cursor_on="always")

    def on_mount(self) -> None:
        """Choose at once."""
        self.query_one("#sample-list", LinesView).focus()

    def _build(self, width: int) -> list[Line]:
        return [line(f" {name}", target=Place()) for name in self._found]

    def on_lines_view_chosen(self, message: LinesView.Chosen) -> None:
        """One was chosen."""
        message.stop()
        self.dismiss(list(self._found.values())[message.index])

    def action_cancel(self) -> None:
        """None."""
        self.dismiss(None)
