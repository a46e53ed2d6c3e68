"""tiny8 with one method that raises, and families that the registry must refuse."""

from __future__ import annotations

from typing import Any, ClassVar

from quantscope_tiny.tiny8 import Tiny8


class RaisesInInit(Tiny8):
    """Cannot be made."""

    def __init__(self) -> None:
        raise RuntimeError("no instance for you")


class LacksMethods:
    """Has a name and no more."""

    name: ClassVar[str] = "lacks"
    api_version: ClassVar[int] = 1
    title: ClassVar[str] = "lacks"


class OtherApi(Tiny8):
    """Speaks another version of the protocol."""

    name: ClassVar[str] = "other"
    api_version: ClassVar[int] = 99


class TakesAName(Tiny8):
    """Calls itself as another family does."""

    name: ClassVar[str] = "gptq"


def raising(method: str, *, lazily: bool = False) -> type[Tiny8]:
    """tiny8 whose `method` raises, at once or when what it gives is drawn."""

    def at_once(self: Tiny8, *args: Any, **named: Any) -> Any:
        raise ZeroDivisionError(f"{method} is broken")

    def when_drawn(self: Tiny8, *args: Any, **named: Any) -> Any:
        yield from getattr(super(made, self), method)(*args, **named)
        raise ZeroDivisionError(f"{method} is broken")

    made = type("Raising", (Tiny8,), {method: when_drawn if lazily else at_once})
    return made
