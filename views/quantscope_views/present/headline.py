"""What the first line of every screen says about a checkpoint, from headers alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from quantscope.report.words import kinds_words
from rich.cells import cell_len

from quantscope_views.present.words import count_words, size_words

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint


NAME_CELLS = 16
"""Cells that the name of a checkpoint keeps beside its format, where it is that long."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Counts and sizes of an opened checkpoint. Tensor counts are 0 until tensors are grouped."""

    path: str
    name: str
    size: int
    """Bytes of all files."""
    files: int
    files_parsed: int
    stored: int
    """Stored tensors."""
    quantized: int = 0
    plain: int = 0
    unrecognised: int = 0
    orphans: int = 0
    parameters: int = 0
    """Elements of logical and plain tensors."""
    bits_per_weight: float | None = None
    """Bytes of all planes of quantized tensors, in bits, per weight of these tensors."""
    families: tuple[tuple[str, int], ...] = ()
    """Family words with counts, most first."""
    kinds: tuple[tuple[str, int], ...] = ()
    """`int4 g128 asym` with counts, most first, once contracts are known; with the family where there are several."""
    file_errors: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    grouped: bool = False
    plane_bytes: dict[str, int] = {}
    """Bytes of distinct planes by role."""
    header_bytes: int = 0


def overview_of(checkpoint: Checkpoint) -> Overview:
    """What headers alone tell, before tensors are grouped."""
    opened = checkpoint.opened
    path = opened.path
    name = os.path.basename(os.path.normpath(path)) or path
    if opened.kind == "folder":
        name += "/"
    return Overview(
        path=path,
        name=name,
        size=sum(file.size for file in opened.files),
        files=len(opened.files),
        files_parsed=sum(file.parsed for file in opened.files),
        stored=len(opened.tensors),
        file_errors=tuple(f"{file.name}: {file.error}" for file in opened.files if file.error),
        config_files=tuple(config.name for config in opened.configs),
        variants=opened.variants,
        header_bytes=sum(file.header_bytes for file in opened.files),
    )


def grouped_overview(checkpoint: Checkpoint, before: Overview) -> Overview:
    """The overview with logical tensors counted; groups the checkpoint where that was not done yet."""
    from quantscope.infer.examine import plane_bytes

    grouping = checkpoint.grouping
    words = Counter(tensor.word for tensor in grouping.tensors)
    weights = 0
    for tensor in grouping.tensors:
        weights += _product(tensor.shape)
    by_role = plane_bytes(grouping.tensors)
    stored_bits = 8 * sum(n for role, n in by_role.items() if role != "bias")
    return msgspec.structs.replace(
        before,
        quantized=len(grouping.tensors),
        plain=len(grouping.plain),
        unrecognised=len(grouping.unrecognised),
        orphans=len(grouping.orphans),
        parameters=weights + sum(_product(tensor.shape) for tensor in grouping.plain),
        bits_per_weight=stored_bits / weights if weights else None,
        families=tuple(words.most_common()),
        plane_bytes=by_role,
        grouped=True,
    )


def headline_about(overview: Overview, seconds: str) -> tuple[str, ...]:
    """How the numbers of the headline are known."""
    lines = [
        f"{overview.path}: {overview.size} bytes in {count_words(overview.files, 'file')}, "
        f"{overview.files_parsed} of them read",
        f"{overview.quantized} quantized tensors are made of several stored ones each; with "
        f"{overview.plain} plain and {overview.unrecognised} unrecognised ones they are what "
        f"{overview.stored} stored tensors hold",
        *(f"{words}: {count_words(count, 'tensor')}" for words, count in overview.kinds),
    ]
    if overview.bits_per_weight is not None:
        stored = sum(n for role, n in overview.plane_bytes.items() if role != "bias")
        lines.append(
            f"{overview.bits_per_weight:.4f} bits a weight: 8 * {stored} bytes of codes, scales, zeros and "
            "the like over the weights of the quantized tensors"
        )
    return (*lines, f"{seconds}: from opening to the end of the last scan")


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def format_words(overview: Overview, most: int = 3) -> str:
    """`gguf Q4_K g32 asym x12, Q6_K g16 sym x3`, as a scan says it; or what is known so far.

    Args:
        overview: of the checkpoint.
        most: kinds named at most; the others are counted.
    """
    if not overview.grouped:
        return "reading headers"
    if not overview.families:
        return "nothing quantized" if not overview.unrecognised else "not recognised"
    first, more = overview.families[0][0], len(overview.families) - 1
    kinds = ", ".join(kinds_words(Counter(dict(overview.kinds)), most))
    if not kinds:
        return f"{first} + {more} more" if more else first
    return kinds if more else f"{first} {kinds}"


def share_line(overview: Overview) -> str:
    """`14/20 quantized`, with what nobody recognised."""
    if not overview.grouped:
        return f"{overview.stored} stored"
    total = overview.quantized + overview.plain + overview.unrecognised
    words = f"{overview.quantized}/{total} quantized"
    return words + (f", {overview.unrecognised} unrecognised" if overview.unrecognised else "")


def bits_words(overview: Overview | None) -> str:
    """`4.27 bits/weight`."""
    if overview is None or overview.bits_per_weight is None:
        return ""
    return f"{overview.bits_per_weight:.2f} bits/weight"


def headline_rows(
    overview: Overview, seconds: str, width: int, room: int
) -> tuple[tuple[str, ...], str]:
    """What stands beside the name, and what on the right of the second line.

    Args:
        overview: of the checkpoint.
        seconds: how long the scan took.
        width: cells beside the program's name on the first line.
        room: cells on the second line.

    Returns:
        Format, share and time as far as they fit, the format in fewer words before anything is left out;
        then what is left of share, size and bits per weight, the last kept longest.
    """
    share, size, bits = share_line(overview), size_words(overview.size), bits_words(overview)
    name = min(cell_len(overview.name), NAME_CELLS)
    above: tuple[str, ...] = ()
    for parts in (
        (format_words(overview), share, seconds),
        (format_words(overview), seconds),
        (format_words(overview, 1), seconds),
        (format_words(overview, 1),),
    ):
        above = parts
        if name + sum(cell_len(part) + 2 for part in parts) <= width:
            break
    below = [part for part in (share if share not in above else "", size, bits) if part]
    while len(below) > 1 and sum(cell_len(part) + 2 for part in below) - 2 > room:
        below.pop(0)
    return above, "  ".join(below)
