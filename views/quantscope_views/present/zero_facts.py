"""What the Zero tab reads of a tensor: the first stored zeros, their bytes, one element under each reading."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Parts, Window
from quantscope.decode.window import window_parts
from quantscope.errors import QuantscopeError
from quantscope.model import Reading
from quantscope.session.inspection import TensorState

from quantscope_views.present.bytes_group import group_of
from quantscope_views.present.bytes_model import Shown
from quantscope_views.present.bytes_values import shown_value
from quantscope_views.present.words import offset_words

SHOWN_ZEROS = 8


class ZeroFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the zero plane for the tab."""

    plane: str
    where: str
    word: str
    stored: tuple[int, ...]
    at: tuple[int, int]
    examples: dict[str, Shown]
    """Value of the element `at` under each convention."""
    all_ones: int = 0


def conventions_of(state: TensorState) -> tuple[str, ...]:
    """The two zero readings to show: the file's (or the family's own) first."""
    claimed = state.declared_reading or state.reading
    if claimed is None or claimed.zero != "integer":
        return ()
    first = claimed.zero_convention
    if first == "not_applicable":
        return ()
    others = [
        reading.zero_convention
        for reading in (state.solved.solutions or state.solved.candidates)
        if reading.zero_convention in ("as_is", "minus_one")
    ]
    pair = [first, *others, "as_is", "minus_one"]
    return tuple(dict.fromkeys(pair))[:2]


def with_convention(reading: Reading, convention: str) -> Reading:
    """A reading under another zero convention."""
    return msgspec.structs.replace(reading, zero_convention=convention)


def read_zero_facts(
    checkpoint: Checkpoint,
    state: TensorState,
    at: tuple[int, int],
    cancelled: Callable[[], bool] | None = None,
) -> ZeroFacts | None:
    """Read the first word of the zero plane and one example element; None without stored integer zeros.

    Raises:
        CancelledError: stopped.
        QuantscopeError: the planes cannot be read.
    """
    pair = conventions_of(state)
    claimed = state.declared_reading or state.reading
    if not pair or claimed is None:
        return None
    tensor = state.tensor
    family = checkpoint.family(tensor)
    reader = checkpoint.reader(cancelled=cancelled)
    n_rows, n_cols = claimed.shape[-2], claimed.shape[-1]
    as_is = with_convention(claimed, "as_is")
    corner = Window(range(min(SHOWN_ZEROS, n_rows)), range(min(1, n_cols)))
    parts = window_parts(family, tensor, as_is, corner, reader)
    stored = _corner_zeros(parts)
    cell = family.locate(tensor, as_is, 0, 0, reader)
    spans = cell.per_plane.get("zero", ())
    plane = tensor.plane("zero")
    word = where = ""
    if spans:
        span = spans[0]
        data = reader.read_bytes("view", span.file_id, span.byte_offset, span.nbytes)
        order = "big" if plane is not None and plane.byte_order == "big" else "little"
        word = f"0x{int.from_bytes(data, order):0{2 * span.nbytes}x}"  # type: ignore[arg-type]
        where = f"@{offset_words(span.byte_offset)}"
    row, col = min(at[0], n_rows - 1), min(at[1], n_cols - 1)
    examples: dict[str, Shown] = {}
    for convention in pair:
        reading = with_convention(claimed, convention)
        group = group_of(family, tensor, reading, row, col, reader)
        window = group.window(reading.shape)
        try:
            own = window_parts(family, tensor, reading, window, reader)
            examples[convention] = shown_value(
                family, tensor, reading, own, window, group, row, col, reader
            )
        except QuantscopeError:
            continue
    title = plane.suffix if plane is not None else "zeros"
    first = plane is None or not spans or spans[0].byte_offset == plane.byte_offset
    return ZeroFacts(
        plane=f"{title}[0,0]" if first else f"{title}, group {cell.group}",
        where=where,
        word=word,
        stored=stored,
        at=(row, col),
        examples=examples,
    )


def _corner_zeros(parts: Parts) -> tuple[int, ...]:
    """Stored zeros of the first rows, for the group that the first column belongs to."""
    if parts.stored_zero is None:
        return ()
    group = int(parts.group_of_column.flat[0]) if parts.group_of_column.size else 0
    return tuple(parts.stored_zero[:, min(group, parts.stored_zero.shape[1] - 1)].tolist())
