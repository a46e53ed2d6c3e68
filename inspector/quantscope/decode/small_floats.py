"""Number types of four, six, eight and sixteen bits: value tables and round-to-nearest-even encoders.

A table is float32, indexed by the stored code, read-only, and built from the type's definition (exponent
and mantissa widths, bias, what the top codes mean). Where readers of the same byte differ, each reading
has a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quantscope.decode.roundings import to_bf16

Table = NDArray[np.float32]

Specials = Literal["none", "ieee", "nan_at_all_ones", "nan_at_negative_zero"]
"""Which codes are no finite number: none; the IEEE top exponent; all exponent and mantissa bits set; 0x80."""


class FloatFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A sign, exponent and mantissa layout; code bits from high to low."""

    signed: bool
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials

    @property
    def code_bits(self) -> int:
        """Bits of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits


E4M3FN = FloatFormat(
    signed=True, exponent_bits=4, mantissa_bits=3, bias=7, specials="nan_at_all_ones"
)
"""FP8 E4M3 of the OCP specification and of safetensors F8_E4M3: largest 448, no infinity, NaN 0x7F and 0xFF."""
E5M2 = FloatFormat(signed=True, exponent_bits=5, mantissa_bits=2, bias=15, specials="ieee")
"""FP8 E5M2, IEEE-like: largest 57344, infinities, NaN."""
E4M3FNUZ = FloatFormat(
    signed=True, exponent_bits=4, mantissa_bits=3, bias=8, specials="nan_at_negative_zero"
)
"""FP8 E4M3 FNUZ: largest 240, no infinity, no negative zero, NaN 0x80."""
E5M2FNUZ = FloatFormat(
    signed=True, exponent_bits=5, mantissa_bits=2, bias=16, specials="nan_at_negative_zero"
)
"""FP8 E5M2 FNUZ: largest 57344, no infinity, no negative zero, NaN 0x80."""
E2M1 = FloatFormat(signed=True, exponent_bits=2, mantissa_bits=1, bias=1, specials="none")
"""FP4 E2M1 (MXFP4, NVFP4): 0, 0.5, 1, 1.5, 2, 3, 4, 6 and negatives. Source: OCP MX v1.0."""
E2M3 = FloatFormat(signed=True, exponent_bits=2, mantissa_bits=3, bias=1, specials="none")
"""FP6 E2M3. Source: OCP MX v1.0."""
E3M2 = FloatFormat(signed=True, exponent_bits=3, mantissa_bits=2, bias=3, specials="none")
"""FP6 E3M2. Source: OCP MX v1.0."""
UE5M3 = FloatFormat(signed=False, exponent_bits=5, mantissa_bits=3, bias=15, specials="none")
"""Unsigned E5M3 scales (AutoRound nvfp4_v2, Quark e5m3). The bias 15 is assumed; top codes are read as numbers.

Source: AutoRound, auto_round/export/export_to_autoround/qlinear_fp.py.
"""


def value_table(fmt: FloatFormat) -> Table:
    """Return the value of every code of `fmt`, float32 [2**code_bits], read-only; all values are exact."""
    magnitude_codes = 1 << (fmt.exponent_bits + fmt.mantissa_bits)
    magnitudes = [float(_magnitude(fmt, code)) for code in range(magnitude_codes)]
    if fmt.specials == "ieee":
        first = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
        magnitudes[first:] = [float("inf")] + [float("nan")] * (magnitude_codes - first - 1)
    elif fmt.specials == "nan_at_all_ones":
        magnitudes[-1] = float("nan")
    values = magnitudes + [-value for value in magnitudes] if fmt.signed else magnitudes
    if fmt.specials == "nan_at_negative_zero":
        values[magnitude_codes] = float("nan")
    return _frozen(values)


def _magnitude(fmt: FloatFormat, code: int) -> Fraction:
    exponent, mantissa = divmod(code, 1 << fmt.mantissa_bits)
    fraction = Fraction(mantissa, 1 << fmt.mantissa_bits)
    if exponent == 0:
        return fraction * Fraction(2) ** (1 - fmt.bias)
    return (1 + fraction) * Fraction(2) ** (exponent - fmt.bias)


def _frozen(values: Any) -> Table:
    table = np.array(values, np.float32)
    table.flags.writeable = False
    return table


def _e8m0(last: float, *, halved: bool = False) -> Table:
    values = np.ldexp(np.float64(1), np.arange(256) - (128 if halved else 127))
    values[255] = last
    return _frozen(values)


def _ue4m3_ggml() -> Table:
    fmt = FloatFormat(signed=False, exponent_bits=4, mantissa_bits=3, bias=7, specials="none")
    half = value_table(fmt).copy()
    half[127] = 0
    return _frozen(np.concatenate([half, [*half[:127], np.float32(480)]]))


def _e2m1_ggml() -> Table:
    table = value_table(E2M1).copy()
    table[8] = 0.0
    return _frozen(table)


NF4 = _frozen(
    [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ]
)
"""NormalFloat 4: quantiles of the normal distribution, fixed as numbers. Source: bitsandbytes, functional.py."""

BNB_FP4 = _frozen(
    [
        np.float32(sign * twelfths / 12)
        for sign in (1, -1)
        for twelfths in (0, 0.0625, 8, 12, 4, 6, 2, 3)
    ]
)
"""The FP4 of bitsandbytes: bit 3 is the sign, the rest an index that is not in order of size.

Source: bitsandbytes, csrc/kernels.cu and functional.py.
"""

IQ4_NL = _frozen([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
"""Levels of ggml IQ4_NL and IQ4_XS. Source: llama.cpp, ggml/src/ggml-common.h (kvalues_iq4nl)."""

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "e4m3fn": value_table(E4M3FN),
        "e4m3fnuz": value_table(E4M3FNUZ),
        "e5m2": value_table(E5M2),
        "e5m2fnuz": value_table(E5M2FNUZ),
        "e8m0": _e8m0(float("nan")),
        "e8m0_bf16": _e8m0(float("inf")),
        "e8m0_ggml": _e8m0(float("inf")),
        "e8m0_ggml_half": _e8m0(2.0**127, halved=True),
        "ue4m3_ggml": _ue4m3_ggml(),
        "ue5m3": value_table(UE5M3),
        "e2m1": value_table(E2M1),
        "e2m1_ggml": _e2m1_ggml(),
        "e2m3": value_table(E2M3),
        "e3m2": value_table(E3M2),
        "nf4": NF4,
        "bnb_fp4": BNB_FP4,
        "iq4_nl": IQ4_NL,
    }
)
"""Value tables by name, float32, indexed by the stored code.

- `e8m0`: 2**(code-127), 0xFF is NaN (OCP MX v1.0, torch float8_e8m0fnu).
- `e8m0_bf16`: the same with 0xFF = +inf (compressed-tensors, compressors/mx_utils.py: 2**128 overflows bf16).
- `e8m0_ggml`: the same with 0xFF = +inf; `e8m0_ggml_half`: 2**(code-128), 0xFF = 2**127 (llama.cpp,
  ggml/src/ggml-impl.h).
- `ue4m3_ggml`: E4M3 with the sign bit ignored, 0x00 and 0x7F both 0, 0xFF = 480 (ggml-impl.h).
- `e2m1` has -0.0 at code 8 (float tables of gpt-oss, torch); `e2m1_ggml` has +0.0 there (integer table).
"""


def float_table(name: str) -> Table:
    """Return the value table of that name, read-only.

    Raises:
        ValueError: no table has that name; the message lists them.
    """
    try:
        return TABLES[name]
    except KeyError:
        raise ValueError(f"no number type {name}; there are {', '.join(sorted(TABLES))}") from None


def lookup(codes: NDArray[np.uint8], table: Table, out: Table | None = None) -> Table:
    """Return `table[codes]`, float32 of the shape of `codes`; codes must be below the table's length."""
    return np.take(table, codes, out=out, mode="raise" if out is None else "clip")


def bf16_to_f32(words: NDArray[Any], out: Table | None = None) -> Table:
    """Widen bfloat16 words (uint16 or int16, any shape) to float32; exact."""
    if out is None:
        out = np.empty(words.shape, np.float32)
    np.left_shift(words.view(np.uint16), np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
    return out


def encode(values: Table, fmt: FloatFormat, *, saturate: bool = True) -> NDArray[np.uint8]:
    """Round float32 to the nearest code of `fmt`, ties to the even code.

    Args:
        values: float32, any shape.
        fmt: a signed format of at most eight bits.
        saturate: values beyond the largest finite one become that one; otherwise infinity where the
            format has it, else NaN. Formats without a NaN always saturate. torch 2.13 saturates E4M3FN
            and not the other three; ml_dtypes 0.6 saturates none of the four.

    Returns:
        uint8 codes. NaN becomes the NaN code of the format with its sign kept; a format without one gives
        its largest value. FNUZ formats give +0 for -0.

    Source: OCP 8-bit floating point v1.0 and MX v1.0.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    sign = (bits >> np.uint32(31)).astype(np.uint8)
    magnitude = bits & np.uint32(0x7FFF_FFFF)
    codes = _round_magnitude(magnitude, fmt)
    largest = _largest_code(fmt)
    if saturate or fmt.specials == "none":
        beyond = largest
    else:
        beyond = largest + 1 if fmt.specials == "ieee" else _nan_code(fmt)
    codes[codes > largest] = beyond
    codes[magnitude > np.uint32(0x7F80_0000)] = _nan_code(fmt)
    result = codes.astype(np.uint8)
    if fmt.specials == "nan_at_negative_zero":
        sign[result % 0x80 == 0] = 0
    result |= sign << np.uint8(fmt.code_bits - 1)
    return result


def encode_bf16(values: Table) -> NDArray[np.uint16]:
    """Round float32 to bfloat16 words, ties to even; a NaN keeps its sign and is made quiet."""
    return (
        to_bf16(np.ascontiguousarray(values, np.float32)).view(np.uint32) >> np.uint32(16)
    ).astype(np.uint16)


def encode_f16(values: Table) -> NDArray[np.uint16]:
    """Round float32 to IEEE half words, ties to even; overflow becomes infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, np.float32).astype(np.float16).view(np.uint16)


def _round_magnitude(magnitude: NDArray[np.uint32], fmt: FloatFormat) -> NDArray[np.int64]:
    """Round float32 magnitudes (as bits) to codes that may run past the largest finite one."""
    shift = 23 - fmt.mantissa_bits
    wide = magnitude.astype(np.int64)
    wide += (1 << (shift - 1)) - 1 + ((wide >> shift) & 1)
    normal = (wide >> shift) - ((127 - fmt.bias) << fmt.mantissa_bits)
    smallest_normal = np.float32(2.0 ** (1 - fmt.bias)).view(np.uint32)
    tiny = magnitude < smallest_normal
    if tiny.any():
        steps = magnitude[tiny].view(np.float32) * np.float32(
            2.0 ** (fmt.bias - 1 + fmt.mantissa_bits)
        )
        normal[tiny] = np.rint(steps).astype(np.int64)
    return normal


def _largest_code(fmt: FloatFormat) -> int:
    last = (1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1
    if fmt.specials == "ieee":
        return (((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits) - 1
    return last - 1 if fmt.specials == "nan_at_all_ones" else last


def _nan_code(fmt: FloatFormat) -> int:
    last = (1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1
    return 0x80 if fmt.specials == "nan_at_negative_zero" else last
