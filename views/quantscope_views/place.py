"""Places in the app: where a deep link, a finding or the last session leads, and what `go to` understands."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

Tab = Literal["contract", "zero", "bytes", "run"]
TABS: tuple[Tab, ...] = ("contract", "zero", "bytes", "run")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A screen, and within it a tensor, a tab, an element or a byte."""

    screen: Literal["triage", "tensors", "tensor", "compare", "report", "jobs", "raw"] = "triage"
    tensor: str | None = None
    tab: Tab | None = None
    at: tuple[int, int] | None = None
    """Row and column of a logical element."""
    file_id: int | None = None
    byte_offset: int | None = None
    """Absolute offset in the file."""
    members: tuple[str, ...] = ()
    """Names that the Tensors screen is limited to."""
    finding: str | None = None
    """Id of the finding that led here."""


def link(path: str, place: Place) -> str:
    """The command that leads back to a place, as `y` copies it."""
    words = ["quantscope", "open", path]
    if place.tensor is not None:
        words += ["--tensor", place.tensor]
        if place.tab is not None:
            words += ["--tab", place.tab]
        if place.at is not None:
            words += ["--at", f"{place.at[0]},{place.at[1]}"]
    return " ".join(shlex.quote(word) for word in words)


class GoTo(msgspec.Struct, frozen=True, kw_only=True):
    """What a person typed into `go to`: exactly one of the three is given."""

    byte_offset: int | None = None
    at: tuple[int, int] | None = None
    name: str | None = None


def parse_go_to(text: str) -> GoTo | None:
    """An offset (`0x106b85`, `106b85h` or `@1076101`), a pair `row,col`, or a name; None for empty text.

    A bare number is an offset in bytes.
    """
    text = text.strip()
    if not text:
        return None
    number = _number(text.removeprefix("@"))
    if number is not None:
        return GoTo(byte_offset=number)
    pair = text.strip("()[]").replace(" ", "").split(",")
    if len(pair) == 2 and all(part.isdigit() for part in pair):
        return GoTo(at=(int(pair[0]), int(pair[1])))
    return GoTo(name=text)


def _number(text: str) -> int | None:
    lowered = text.lower().replace("_", "")
    try:
        if lowered.startswith("0x"):
            return int(lowered, 16)
        if lowered.endswith("h") and len(lowered) > 1:
            return int(lowered[:-1], 16)
    except ValueError:
        return None
    return int(lowered) if lowered.isascii() and lowered.isdigit() else None
