"""Leaving the app: asks only while a job runs, keeps the place, hears nothing afterwards."""

from __future__ import annotations

from typing import Any

from quantscope_views.actions import shown_key
from quantscope_views.navigation import Navigation


class Leaving(Navigation):
    """How the app ends."""

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
