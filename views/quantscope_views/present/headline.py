"""What the first line of every screen says about a checkpoint, from headers alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from quantscope_views.present.words import size_words

if TYPE_CHECKING:
    from quantscope.checkpoint import Checkpoint


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
    format_words: str = ""
    """Element, group and symmetry of most tensors, once contracts are known."""
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


def _product(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def family_words(overview: Overview) -> str:
    """`gptq`, `gguf + 2 more`, or what is known before grouping."""
    if not overview.grouped:
        return "reading headers"
    if not overview.families:
        return "nothing quantized" if not overview.unrecognised else "not recognised"
    first = overview.families[0][0]
    more = len(overview.families) - 1
    return f"{first} + {more} more" if more else first


def share_line(overview: Overview) -> str:
    """`14 quantized, 7 plain`, with what nobody recognised."""
    if not overview.grouped:
        return f"{overview.stored} stored"
    words = [f"{overview.quantized} quantized", f"{overview.plain} plain"]
    if overview.unrecognised:
        words.append(f"{overview.unrecognised} unrecognised")
    return ", ".join(words)


def headline_parts(overview: Overview, seconds: str) -> tuple[str, ...]:
    """Format, share, size and time, in the order in which they may be dropped from the end."""
    format_words = " ".join(
        part for part in (family_words(overview), overview.format_words) if part
    )
    return (format_words, share_line(overview), size_words(overview.size), seconds)
