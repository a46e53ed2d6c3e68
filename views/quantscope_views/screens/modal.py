"""What all questions over a screen share: they are left once, however fast the keys come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

if TYPE_CHECKING:
    from textual.app import App

Answer = TypeVar("Answer")


class LeftOnce:
    """A second key that was typed before the screen had gone must not take away the screen below."""

    if TYPE_CHECKING:
        app: App[Any]

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Leave, unless that was done already."""
        above: object = self.app.screen
        if above is not self:
            return AwaitComplete()
        left: AwaitComplete = super().dismiss(result)  # type: ignore[misc]
        return left


class Modal(LeftOnce, ModalScreen[Answer]):
    """A modal screen of this app."""
