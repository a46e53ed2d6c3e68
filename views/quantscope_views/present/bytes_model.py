"""What the Bytes tab shows around one element, as plain values."""

from __future__ import annotations

from typing import Literal

import msgspec
from quantscope.model import BitSpan, Reading

from quantscope_views.present.bytes_group import Group
from quantscope_views.present.bytes_layout import Hit, LayoutMap

Mark = Literal[0, 1, 2, 3]
PLAIN: Mark = 0
WORD: Mark = 1
LIT: Mark = 2
CURSOR: Mark = 3


class CodeCell(msgspec.Struct, frozen=True, kw_only=True):
    """One decoded code beside the bytes of its line."""

    row: int
    col: int
    text: str
    mark: int


class ByteLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of bytes.

    `marks` holds one mark a nibble, high nibble of the first byte first. `hits` are the codes that begin in
    the line, in order of address.
    """

    label: str
    byte_offset: int
    data: bytes
    marks: bytes
    codes: tuple[CodeCell, ...] = ()
    hits: tuple[Hit, ...] = ()
    meaning: str = ""
    has_cursor: bool = False


class PlaneStrip(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of another plane that the element uses."""

    role: str
    title: str
    byte_offset: int
    data: bytes
    marks: bytes
    value: str
    note: str = ""
    file_id: int
    """The file that holds the bytes."""
    file: str = ""
    """Its name."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """An element's value under one reading, with the formula in numbers."""

    formula: str
    value: float
    mean: float | None = None
    """Mean of code - zero over the group, where codes are integers with a zero."""


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to read."""

    row: int
    col: int
    height: int
    """Lines of bytes that fit."""
    line_bytes: int
    """Bytes a line."""


class BytesPage(msgspec.Struct, frozen=True, kw_only=True):
    """What the Bytes tab shows."""

    tensor: str
    request: PageRequest
    """What was asked for."""
    reading: Reading
    """The reading that codes and values are shown under."""
    row: int
    col: int
    shape: tuple[int, int]
    kind: str
    """grid, flat, struct or bare: how lines are cut."""
    plane: str
    lines: tuple[ByteLine, ...]
    strips: tuple[PlaneStrip, ...]
    file: str
    bits: tuple[BitSpan, ...]
    word: str
    """The stored word that holds the code, in words."""
    code: str
    group: Group
    shown: Shown | None
    claimed: Shown | None
    declared: bool = True
    """Whether anything in the files declares how the codes are read."""
    refused: tuple[str, ...] = ()
    """What the file claims and its own sizes rule out, in words: `claimed` is then no claim of the file."""
    histogram: tuple[int, ...] = ()
    histogram_labels: tuple[str, ...] = ()
    group_count: int = 0
    end_codes: int | None = None
    codes_title: str = ""
    error: str = ""
    layout: LayoutMap | None = None
    line_stride: int = 0
    """Bytes from one line to the next of the same column."""


def mark_bits(
    marks: bytearray, start: int, nbytes: int, address: int, width: int, mark: int
) -> bool:
    """Mark every nibble that a piece touches; whether there was one."""
    first, last = address // 4 - 2 * start, (address + width - 1) // 4 - 2 * start
    touched = False
    for nibble in range(max(0, first), min(2 * nbytes - 1, last) + 1):
        place = nibble ^ 1
        marks[place] = max(marks[place], mark)
        touched = True
    return touched
