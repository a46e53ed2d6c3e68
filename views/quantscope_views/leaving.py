"""Leaving the app: asks only while a job runs, keeps place and theme, hears nothing afterwards."""

from __future__ import annotations

from typing import Any

from quantscope_views.actions import shown_key
from quantscope_views.navigation import Navigation
from quantscope_views.place import Place


class Leaving(Navigation):
    """How the app ends, and what of it the next session finds."""

    last_place: Place | None = None
    theme_chosen = False
    """Whether a person chose the theme in this session."""

    async def action_quit(self) -> None:
        """Leave; asks only when a job runs."""
        running = self.workspace.running
        if not running:
            self._leave(True)
            return
        from quantscope_views.screens.prompts import ConfirmScreen

        words = (f"{running[-1].title} still runs.", "Leaving stops it.")
        self.push_screen(ConfirmScreen(words, "leave"), self._leave)

    async def run_action(self, *args: Any, **options: Any) -> bool:
        """No action once the app is leaving: keys typed ahead are dropped."""
        return False if self._exit else await super().run_action(*args, **options)

    def action_command_palette(self) -> None:
        """Every action, tensor, rule and checkpoint by name."""
        from quantscope_views.palette import Palette

        if self.use_command_palette and not isinstance(self.screen, Palette):
            self.push_screen(Palette(id="--command-palette"))

    def action_help_quit(self) -> None:
        """Ctrl+C is for copying; whoever meant to leave is told the key that the help names."""
        keys = (
            key for key, active in self.active_bindings.items() if active.binding.id == "app.quit"
        )
        key = shown_key(next(keys, "ctrl+q"))
        self.notify(f"{key} leaves", timeout=3, markup=False)

    def _leave(self, sure: bool | None) -> None:
        if sure:
            self.bridge.stop_all()
            self.save_last_place()
            self.exit(0)

    def offer_last_place(self) -> None:
        """Offer the place of the last session in exactly these files."""
        from quantscope_views.last_place import load_place, sessions_folder

        checkpoint = self.workspace.checkpoint
        saved = load_place(sessions_folder(), checkpoint) if checkpoint is not None else None
        if saved is None or saved.place == Place() or saved.place.screen == "triage":
            return
        self.last_place = saved.place
        self.tell_screens("all")

    def action_last_place(self) -> None:
        """Where the last session of these files ended."""
        place, self.last_place = self.last_place, None
        if place is not None:
            self.go_to(place)

    def action_theme_dark(self) -> None:
        """Dark."""
        self._choose_theme("quantscope-dark")

    def action_theme_light(self) -> None:
        """Light."""
        self._choose_theme("quantscope-light")

    def action_theme_mono(self) -> None:
        """No colour."""
        self._choose_theme("quantscope-mono")

    def _choose_theme(self, name: str) -> None:
        self.theme = name
        self.theme_chosen = True

    def save_last_place(self) -> None:
        """Keep where this is for the next session."""
        from quantscope_views.last_place import save_place, save_theme, sessions_folder

        checkpoint = self.workspace.checkpoint
        if checkpoint is not None:
            save_place(sessions_folder(), checkpoint, self.present_place(), self.theme)
        if self.theme_chosen:
            save_theme(sessions_folder(), self.theme)
