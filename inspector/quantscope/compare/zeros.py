"""Zero planes of a pair, from stored bytes to the zeros used, under both rules."""

from __future__ import annotations

import hashlib

import numpy as np

from quantscope.compare.model import Pair, ZeroComparison, ZeroSide
from quantscope.compare.sides import Side
from quantscope.decode.parts import Array, Window
from quantscope.decode.window import window_parts
from quantscope.errors import QuantscopeError
from quantscope.model import Plane, Reading
from quantscope.session.inspection import TensorState

SHOWN = 8
"""Output channels shown from the start of the plane."""
CHUNK_ROWS = 4096
OTHER = {"as_is": "minus_one", "minus_one": "as_is"}


def compare_zeros(a: Side, b: Side, pair: Pair) -> ZeroComparison | None:
    """Both zero planes of a pair; None unless both sides store integer zeros."""
    try:
        sides = [_side(side, name) for side, name in ((a, pair.a), (b, pair.b))]
        if sides[0] is None or sides[1] is None:
            return None
        left, right = sides[0], sides[1]
        counts = _equal(a, b, pair)
    except QuantscopeError:
        return None
    same_form = left.dtype == right.dtype and left.shape == right.shape
    return ZeroComparison(
        a=left,
        b=right,
        same_dtype_and_shape=same_form,
        bytes_equal=left.sha256 == right.sha256 and left.nbytes == right.nbytes,
        equal_stored=counts[0],
        equal_used=counts[1],
        zeros=counts[2],
        told_apart_by=_told_apart(a.states[pair.a], b.states[pair.b], same_form),
        swapped_effect=(
            swap_effect(left.convention, right.convention),
            swap_effect(right.convention, left.convention),
        ),
    )


def swap_effect(own: str, other: str) -> str:
    """What reading a plane by the other side's rule does to the weights."""
    if own == other:
        return "nothing: both sides use the same rule"
    if (own, other) == ("minus_one", "as_is"):
        return "every weight one step too high"
    if (own, other) == ("as_is", "minus_one"):
        return "every weight one step too low"
    return f"zeros read as {other} instead of {own}"


def _zero_plane(state: TensorState) -> Plane | None:
    reading = state.reading
    if reading is None or reading.zero != "integer" or state.undecodable is not None:
        return None
    return state.tensor.plane("zero")


def _side(side: Side, name: str) -> ZeroSide | None:
    state, reading = side.states.get(name), side.reading(name)
    if state is None or reading is None:
        return None
    plane = _zero_plane(state)
    if plane is None:
        return None
    digest = hashlib.sha256()
    span = plane.spans[0]
    head = b""
    for start in range(0, span.nbytes, 1 << 20):
        piece = side.reader.read_bytes(
            "zero", span.file_id, span.byte_offset + start, min(1 << 20, span.nbytes - start)
        )
        digest.update(piece)
        head = head or piece[:16]
    shown = min(SHOWN, reading.shape[-2])
    stored, used = _first_zeros(side, state, reading, shown)
    fields, goes_to, first_bytes = _first_word(side, state, reading, plane, head)
    tally = state.exam.codes.zero if state.exam.codes is not None else None
    known = tally is not None and tally.groups > 1 and reading.zero_convention in OTHER
    inferred = state.contract["zero_convention"].inferred
    return ZeroSide(
        plane=plane.suffix,
        dtype=plane.dtype,
        shape=plane.shape,
        file=side.checkpoint.file(plane.file_id).name,
        byte_offset=plane.byte_offset,
        nbytes=plane.nbytes,
        sha256=digest.hexdigest(),
        first_bytes=first_bytes.hex(" "),
        fields=fields,
        goes_to=goes_to,
        stored=stored,
        used=used,
        convention=reading.zero_convention,
        declared=state.contract["zero_convention"].declared_values,
        mean=tally.mean(reading.zero_convention) if known and tally else None,
        standard_error=tally.standard_error(reading.zero_convention) if known and tally else None,
        mean_swapped=tally.mean(OTHER[reading.zero_convention]) if known and tally else None,
        strength=inferred.strength if inferred is not None else None,
    )


def _first_zeros(
    side: Side, state: TensorState, reading: Reading, count: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    parts = window_parts(
        side.checkpoint.family(state.tensor),
        state.tensor,
        reading,
        Window(range(count), range(1)),
        side.reader,
    )
    if parts.stored_zero is None or parts.zero is None:
        return (), ()

    def column(plane: Array) -> tuple[int, ...]:
        wide = np.broadcast_to(plane[:, :1], (count, 1))
        return tuple(int(value) for value in wide[:, 0])

    return column(parts.stored_zero), column(np.asarray(parts.zero))


def _first_word(
    side: Side, state: TensorState, reading: Reading, plane: Plane, head: bytes
) -> tuple[tuple[int, ...], tuple[int, ...], bytes]:
    """Fields of the first stored word from the lowest bits up, and the output channel of each."""
    family = side.checkpoint.family(state.tensor)
    found: list[tuple[int, int, int, int]] = []
    nbytes = 1
    for row in range(min(2 * SHOWN, reading.shape[-2])):
        spans = family.locate(state.tensor, reading, row, 0).per_plane.get("zero", ())
        if len(spans) == 1 and spans[0].byte_offset == plane.byte_offset:
            nbytes = spans[0].nbytes
            found.append((spans[0].low_bit, spans[0].bit_width, row, nbytes))
    word = int.from_bytes(head[:nbytes], plane.byte_order)
    found.sort()
    fields = tuple((word >> low) & ((1 << width) - 1) for low, width, _, _ in found)
    return fields, tuple(row for _, _, row, _ in found), head[:nbytes]


def _equal(a: Side, b: Side, pair: Pair) -> tuple[int, int, int]:
    """Equal stored zeros, equal zeros used, and zeros compared, group by group over all rows."""
    readings = [a.reading(pair.a), b.reading(pair.b)]
    if readings[0] is None or readings[1] is None:
        return 0, 0, 0
    if readings[0].shape != readings[1].shape or readings[0].group != readings[1].group:
        return 0, 0, 0
    columns = range(0, readings[0].shape[-1], readings[0].group_size)
    equal_stored = equal_used = total = 0
    for start in range(0, readings[0].shape[-2], CHUNK_ROWS):
        rows = range(start, min(start + CHUNK_ROWS, readings[0].shape[-2]))
        for column in columns:
            pieces = []
            for side, name, reading in ((a, pair.a, readings[0]), (b, pair.b, readings[1])):
                state = side.states[name]
                parts = window_parts(
                    side.checkpoint.family(state.tensor),
                    state.tensor,
                    reading,
                    Window(rows, range(column, column + 1)),
                    side.reader,
                )
                if parts.stored_zero is None or parts.zero is None:
                    return 0, 0, 0
                pieces.append((parts.stored_zero, np.asarray(parts.zero)))
            equal_stored += int((pieces[0][0] == pieces[1][0]).sum())
            equal_used += int((pieces[0][1] == pieces[1][1]).sum())
            total += len(rows)
    return equal_stored, equal_used, total


def _told_apart(a: TensorState, b: TensorState, same_form: bool) -> str:
    texts = []
    for state in (a, b):
        codes, reading = state.tensor.plane("codes"), state.reading
        if codes is None or reading is None:
            return ""
        texts.append(f"{codes.suffix} {list(codes.shape)} packed along {reading.packing.axis}")
    if texts[0] == texts[1]:
        return "" if same_form else "the zero plane's own dtype or shape"
    return " | ".join(texts)
