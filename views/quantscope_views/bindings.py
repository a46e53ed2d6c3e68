"""Textual bindings made from the registry of actions."""

from __future__ import annotations

from textual.binding import Binding

from quantscope_views.actions import Action, owned_by


def bindings_for(*owners: str) -> list[Binding]:
    """Textual bindings of the keyed actions of some owners."""
    return [_binding(action) for owner in owners for action in owned_by(owner) if action.keys]


def _binding(action: Action) -> Binding:
    return Binding(
        ",".join(action.keys),
        action.handler,
        action.label or action.title,
        show=action.footer > 0,
        tooltip=action.tooltip,
        id=action.id,
    )
