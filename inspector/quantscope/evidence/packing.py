"""Low-first UINT4: packing parity, decoded values and the endpoint fraction.

Byte i holds code[2i] in its low and code[2i+1] in its high nibble. With an odd number of codes the
last high nibble is zero and counts as nothing.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quantscope.evidence.metrics import NumericError, endpoint_fraction

UInt8 = npt.NDArray[np.uint8]

QMIN = 0
QMAX = 15


class PackingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Parity says whether the bytes hold these codes; it says nothing of the values."""

    packing_parity: bool
    first_mismatch: str | None
    """What differs first, or None where parity holds."""
    endpoint_fraction: float


def packed_length(logical_length: int) -> int:
    """Bytes that hold so many codes."""
    return (logical_length + 1) // 2


def unpack_low_first(packed: UInt8) -> UInt8:
    """All nibbles in order, the low one of each byte first; [n] bytes to [2 n] codes."""
    nibbles = np.empty((packed.size, 2), dtype=np.uint8)
    nibbles[:, 0] = packed & 0x0F
    nibbles[:, 1] = packed >> 4
    return nibbles.reshape(-1)


def check_packing(codes: UInt8, packed: UInt8) -> PackingResult:
    """Compares the bytes with the codes, the unused nibble of an odd tail included.

    Args:
        codes: [n] values 0..15.
        packed: [ceil(n / 2)] bytes.
    """
    nibbles = unpack_low_first(packed)
    expected = np.zeros_like(nibbles)
    expected[: codes.size] = codes
    wrong = nibbles != expected
    mismatch = None
    if wrong.any():
        at = int(np.argmax(wrong))
        held, wanted = int(nibbles[at]), int(expected[at])
        half = "low" if at % 2 == 0 else "high"
        what = f"code[{at}] is {wanted}" if at < codes.size else "the unused tail must be 0"
        mismatch = f"{half} nibble of packed_bytes[{at // 2}] holds {held}, {what}"
    return PackingResult(
        packing_parity=mismatch is None,
        first_mismatch=mismatch,
        endpoint_fraction=endpoint_fraction(codes, qmin=QMIN, qmax=QMAX),
    )


def decode_codes(
    codes: UInt8, *, scale: float, zero_point: int, field: str = "uint4"
) -> npt.NDArray[np.float64]:
    """(code - zero_point) * scale for each code, each rounded once to binary64.

    Raises:
        NumericError: a value overflows. None becomes zero: the least one is the scale itself.
    """
    table = np.zeros(QMAX + 1, dtype=np.float64)
    present: npt.NDArray[Any] = np.unique(codes)
    for code in present.tolist():
        exact = Fraction(int(code) - zero_point) * Fraction(scale)
        try:
            value = float(exact)
        except OverflowError:
            value = math.inf
        if math.isinf(value):
            raise NumericError(
                stage="(code - zero_point) * scale",
                field=f"{field}.decoded",
                reason=f"the value of code {code} overflows binary64",
            )
        table[code] = value
    return table[codes]
