"""The Textual app: its shell. What keys do is in navigation.py, what workers tell in intake.py."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from textual import events
from textual.binding import BindingType
from textual.command import Provider
from textual.screen import Screen

from quantscope_views.ascii_only import wants_ascii
from quantscope_views.bindings import bindings_for
from quantscope_views.bridge import Bridge
from quantscope_views.keymap import keymap_path, read_keymap
from quantscope_views.last_place import load_theme, recent_paths, sessions_folder
from quantscope_views.leaving import Leaving
from quantscope_views.navigation import first_tab
from quantscope_views.place import Place
from quantscope_views.screens.triage import TriageScreen
from quantscope_views.themes import DEFAULT_TONES, THEMES, theme_name
from quantscope_views.workspace import Workspace

FILE_WATCH_S = 5.0
"""How often the files are compared with what they were when opened."""


def _actions_provider() -> type[Provider]:
    from quantscope_views.palette import ActionProvider

    return ActionProvider


def _tensors_provider() -> type[Provider]:
    from quantscope_views.palette import TensorProvider

    return TensorProvider


def _rules_provider() -> type[Provider]:
    from quantscope_views.palette import RuleProvider

    return RuleProvider


def _recent_provider() -> type[Provider]:
    from quantscope_views.palette import RecentProvider

    return RecentProvider


class QuantscopeApp(Leaving):
    """One person, one checkpoint.

    Args:
        path: checkpoint to open; None shows what can be opened.
        link: where to go once names are known.
        ascii_only: every cell in ASCII.
        restore: offer the last place of this checkpoint.
        fixed_times: show 0.0s for every duration, for pictures that must not drift.
    """

    TITLE = "quantscope"
    CSS_PATH = "styles/app.tcss"
    ENABLE_COMMAND_PALETTE = True
    COMMANDS: ClassVar[set[Any]] = {
        _actions_provider,
        _tensors_provider,
        _rules_provider,
        _recent_provider,
    }
    BINDINGS: ClassVar[list[BindingType]] = [*bindings_for("app")]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-normal"), (160, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (15, "-short"), (24, "-tall"), (34, "-high")]  # noqa: RUF012

    def __init__(
        self,
        path: str | None = None,
        *,
        link: Place | None = None,
        ascii_only: bool = False,
        restore: bool = True,
        theme: str = "",
        fixed_times: bool = False,
    ) -> None:
        no_color = "NO_COLOR" in os.environ
        super().__init__(ansi_color=False)
        self.workspace = Workspace(path)
        self.bridge = Bridge(self)
        self.ascii_only = ascii_only
        self.fixed_times = fixed_times
        self._link = link
        self._restore = restore
        self._wanted_theme = theme_name(theme, no_color)
        for known in THEMES:
            self.register_theme(known)
        self.theme = self._wanted_theme

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our own variables under a theme that does not set them."""
        return DEFAULT_TONES

    def get_default_screen(self) -> Screen[Any]:
        """Triage is always at the bottom."""
        return TriageScreen()

    def on_mount(self) -> None:
        """Start reading once the first screen is painted."""
        keymap = read_keymap(keymap_path())
        if keymap.keys:
            self.set_keymap(keymap.keys)
        for problem in keymap.problems:
            self.notify(problem, severity="warning", markup=False)
        if self.workspace.path is not None:
            self.call_after_refresh(self._first_open, self.workspace.path)
        else:
            self.call_after_refresh(self._look_for_recent)
        self.set_interval(FILE_WATCH_S, self._watch_files)

    async def on_event(self, event: events.Event) -> None:
        """Jobs make way while a person types or points."""
        if isinstance(event, events.InputEvent):
            self.bridge.touch()
        await super().on_event(event)

    def _first_open(self, path: str) -> None:
        self.bridge.open(path)
        self.bridge.warm()

    def _look_for_recent(self) -> None:
        self.bridge.small("recent", lambda _: recent_paths(sessions_folder()))

    def open_path(self, path: str) -> None:
        """Open a checkpoint from scratch."""
        self.bridge.stop_all()
        before = self.workspace.checkpoint
        self.workspace = Workspace(path)
        if before is not None:
            self.call_later(before.close)
        self.action_show_triage()
        self.tell_screens("all")
        self.bridge.open(path)

    def tensors_ready(self) -> None:
        """Follow the deep link, else offer the last place."""
        wanted, self._link = self._link, None
        if wanted is not None:
            self.go_to(wanted)
        elif self._restore:
            self._restore = False
            self.offer_last_place()

    def _watch_files(self) -> None:
        checkpoint = self.workspace.checkpoint
        if checkpoint is not None and self.workspace.stale is None:
            self.bridge.watch_files(checkpoint)


def run_app(
    path: str | None,
    *,
    tensor: str | None = None,
    tab: str | None = None,
    at: tuple[int, int] | None = None,
    ascii: bool = False,  # noqa: A002 - the name of the command's option
    restore: bool = True,
) -> int:
    """Run the app until it is left.

    Args:
        path: checkpoint to open, or None.
        tensor: logical, module or stored name to go to.
        tab: contract, zero, bytes or run.
        at: (row, column) of an element.
        ascii: screens in ASCII; also where terminal or locale cannot encode UTF-8.
        restore: offer the last place of this checkpoint.

    Returns:
        The exit code of the command.
    """
    link = None
    if tensor is not None:
        chosen = first_tab(tab) or ("bytes" if at is not None else "contract")
        link = Place(screen="tensor", tensor=tensor, tab=chosen, at=at)
    app = QuantscopeApp(
        path,
        link=link,
        ascii_only=wants_ascii(
            ascii, sys.stdout.encoding, os.environ, utf8_mode=bool(sys.flags.utf8_mode)
        ),
        restore=restore and link is None,
        theme=os.environ.get("QUANTSCOPE_THEME") or load_theme(sessions_folder()),
    )
    result = app.run()
    return result if result is not None else app.return_code or 0
