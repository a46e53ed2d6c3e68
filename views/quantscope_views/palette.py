"""Palette providers: actions, tensors, rules, screens. All text is content, never markup."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from quantscope.text import inert
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from quantscope_views.actions import ACTIONS
from quantscope_views.ascii_only import ascii_text
from quantscope_views.lines import cut_middle
from quantscope_views.screens.modal import LeftOnce

MAX_TENSOR_HITS = 40
"""Tensors that a search shows at most."""


class Palette(LeftOnce, CommandPalette):
    """The toolkit's palette, in a window of any size: its list cannot move by pages that have no lines."""

    def _action_command_list(self, action: str) -> None:
        try:
            super()._action_command_list(action)
        except (KeyError, IndexError):  # the list is not laid out: there is no page to move by
            return


class ActionProvider(Provider):
    """Every action of the registry that something on screen can do."""

    async def discover(self) -> Hits:
        """All of them, before anything is typed."""
        for action in ACTIONS:
            if action.owner == "move" or not self._possible(action.handler):
                continue
            yield DiscoveryHit(Content(action.title), self._runner(action.id), help=action.tooltip)

    async def search(self, query: str) -> Hits:
        """Actions whose title fits."""
        matcher = self.matcher(query)
        for action in ACTIONS:
            if action.owner == "move" or not self._possible(action.handler):
                continue
            score = matcher.match(action.title)
            if score > 0:
                yield Hit(
                    score,
                    Content(action.title),
                    self._runner(action.id),
                    help=action.tooltip,
                )

    def _possible(self, handler: str) -> bool:
        nodes: list[Any] = [self.screen, self.app]
        if self.focused is not None:
            nodes = [*self.focused.ancestors_with_self, *nodes]
        return any(getattr(node, f"action_{handler}", None) is not None for node in nodes)

    def _runner(self, action_id: str) -> Callable[[], None]:
        run = cast(Any, self.app).run_registered
        return partial(run, action_id)


class TensorProvider(Provider):
    """Tensors by a part of their name."""

    async def search(self, query: str) -> Hits:
        """The first tensors whose name holds every word."""
        app = cast(Any, self.app)
        table = app.workspace.table
        if table is None or len(query) < 2:
            return
        for position in table.matching(query)[:MAX_TENSOR_HITS].tolist():
            name = table.rows[position].name
            shown = cut_middle(_shown(app, name), 70)
            yield Hit(
                0.5,
                Content(f"go: {shown}"),
                partial(app.open_tensor, name),
            )


class RuleProvider(Provider):
    """Rules by code or name."""

    async def search(self, query: str) -> Hits:
        """Rules whose code or name fits."""
        try:
            from quantscope.rules.catalogue import catalogue
        except ImportError:
            return
        matcher = self.matcher(query)
        app = cast(Any, self.app)
        for rule in catalogue().values():
            text = f"explain: {rule.code} {rule.name}"
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, Content(text), partial(app.show_rule, rule.code))


class RecentProvider(Provider):
    """Checkpoints of earlier sessions."""

    async def search(self, query: str) -> Hits:
        """Paths that fit."""
        from quantscope_views.last_place import recent_paths, sessions_folder

        matcher = self.matcher(query)
        app = cast(Any, self.app)
        for path in recent_paths(sessions_folder()):
            text = f"app: open {cut_middle(_shown(app, path), 70)}"
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, Content(text), partial(app.open_path, path))


def _shown(app: Any, text: str) -> str:
    """A string from outside, inert; escaped where the terminal is ASCII."""
    return ascii_text(inert(text)) if app.ascii_only else inert(text)
