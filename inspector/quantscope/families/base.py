"""Defaults and small pieces that families share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from quantscope.decode.combine import combine_parts
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.families.protocol import API_VERSION
from quantscope.model import (
    BitSpan,
    Equation,
    Evidence,
    LogicalTensor,
    Plane,
    Reading,
)

SCALE_WORDS: dict[str, str] = {
    "F16": "f16",
    "BF16": "bf16",
    "F32": "f32",
    "F64": "f64",
    "F8_E4M3": "e4m3",
    "F8_E5M2": "e5m2",
    "F8_E8M0": "e8m0",
    "F8_E4M3FNUZ": "e4m3fnuz",
    "F8_E5M2FNUZ": "e5m2fnuz",
    "U8": "u8",
    "I8": "s8",
    "I64": "i64",
    "I32": "i32",
}
"""Stored dtype word -> the vocabulary's word for a scale format."""


class FamilyBase:
    """Defaults for a family; subclass it and override what the format needs."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    api_version: ClassVar[int] = API_VERSION

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """The engine's arithmetic."""
        return combine_parts(parts, reading.arithmetic if as_producer else None)

    def decode(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        window: Window,
        reader: PlaneReader,
        as_producer: bool,
    ) -> Array | None:
        """Weights of a window where that is faster than parts and combine, with the same bits; else None."""
        return None

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Every value counts by default."""
        return None

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Decodable by default."""
        return None

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Nothing beyond the engine's own steps."""
        return ()


def ceil_div(numerator: int, denominator: int) -> int:
    """Ceiling of an integer quotient."""
    return -(-numerator // denominator)


def demand(
    plane: Plane | None,
    label: str,
    symbolic: str,
    expected: tuple[int, ...],
    *,
    dtypes: Sequence[str] = (),
    substituted: str = "",
    alternatives: Sequence[tuple[int, ...]] = (),
    optional: bool = False,
) -> Equation:
    """An equation that demands a shape (and one of some dtypes) of a plane.

    Args:
        plane: the plane, or None where it is not stored (then broken unless optional).
        label: what to call it.
        symbolic: e.g. `I32 [K*b/32, N]`.
        expected: shape demanded.
        dtypes: acceptable stored dtypes; any where empty.
        substituted: e.g. `[576*4/32, 1536]`; the numbers of `expected` where empty.
        alternatives: other shapes that mean the same ([N] for [N, 1]).
        optional: a missing plane is fine.
    """
    text = substituted or str(list(expected))
    if plane is None:
        return Equation(
            plane=label,
            symbolic=symbolic,
            substituted=text,
            expected_shape=expected,
            actual_shape=None,
            expected_bytes=None,
            actual_bytes=None,
            holds=None if optional else False,
            note="" if optional else "not stored",
        )
    bits = STORAGE_BITS.get(plane.dtype, 0)
    count = 1
    for extent in expected:
        count *= extent
    shape_fits = plane.shape == expected or plane.shape in tuple(alternatives)
    dtype_fits = not dtypes or plane.dtype in dtypes
    expected_bytes = (count * bits + 7) // 8 if bits else None
    bytes_fit = expected_bytes is None or expected_bytes == plane.nbytes
    note = "" if dtype_fits else f"stored as {plane.dtype}, expected {' or '.join(dtypes)}"
    return Equation(
        plane=label,
        symbolic=symbolic,
        substituted=text,
        expected_shape=expected,
        actual_shape=plane.shape,
        expected_bytes=expected_bytes,
        actual_bytes=plane.nbytes,
        holds=shape_fits and dtype_fits and bytes_fit,
        note=note,
    )


def element_span(
    plane: Plane, index: int, low_bit: int = 0, bit_width: int | None = None
) -> BitSpan:
    """Bits of the `index`-th stored element (row-major) of a plane with whole-byte elements."""
    nbytes = STORAGE_BITS[plane.dtype] // 8
    return BitSpan(
        file_id=plane.file_id,
        byte_offset=plane.byte_offset + index * nbytes,
        nbytes=nbytes,
        low_bit=low_bit,
        bit_width=nbytes * 8 if bit_width is None else bit_width,
    )
