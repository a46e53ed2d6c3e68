"""Known bytes for the positive control: words of fixed nibbles, and weights from the format's definition.

Codes follow from the constants by hand (0x76543210 holds 0..7 from its lowest nibble up), never through an
unpacker. Scales are small multiples of powers of two, so that every weight is exact in all types that kernels use.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from quantscope.parity.protocol import Fixture, RawWeight

N, K, GROUP = 128, 256, 64
LOW_WORD = 0x76543210
HIGH_WORD = 0xFEDCBA98
ZERO_WORD = 0x87654321
"""Stored zeros 1..8 from the lowest nibble up."""

_ROW, _COL = np.arange(N)[:, None], np.arange(K)[None, :]
_PLACE_OF_CHANNEL = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Nibble that holds channel n of an AWQ word: the inverse of 0 2 4 6 1 3 5 7."""


def _scales(group_size: int = GROUP) -> NDArray[np.float64]:
    """[N, groups]: 1, 2 or 3 times 2^-5 or 2^-6."""
    groups = np.arange(K // group_size)[None, :]
    return (1 + groups % 3) * 2.0 ** -(5 + np.arange(N)[:, None] % 2)


def _spread(plane: NDArray[np.float64], group_size: int = GROUP) -> NDArray[np.float64]:
    return np.repeat(plane, group_size, axis=1)


def _words(shape: tuple[int, int], odd: NDArray[np.bool_]) -> NDArray[np.int32]:
    words = np.where(np.broadcast_to(odd, shape), HIGH_WORD, LOW_WORD).astype(np.uint32)
    return words.view(np.int32)


def gptq(zeros: str) -> Fixture:
    """GPTQ 4 bit: codes k mod 8 (+8 in odd channels), stored zeros 1..8 by channel."""
    codes = _COL % 8 + 8 * (_ROW % 2)
    stored = np.arange(N) % 8 + 1
    zero = stored + (1 if zeros == "minus_one" else 0)
    scale = _scales()
    raw = RawWeight(
        contract="gptq",
        arrays={
            "qweight": _words((K // 8, N), np.arange(N)[None, :] % 2 == 1),
            "qzeros": np.full((K // GROUP, N // 8), ZERO_WORD, np.uint32).view(np.int32),
            "scales": scale.T.astype(np.float16),
            "g_idx": (np.arange(K) // GROUP).astype(np.int32),
        },
        shape=(N, K),
        bit_width=4,
        group_size=GROUP,
        facts={"zeros": zeros, "zero": "integer", "element": "u4"},
    )
    return Fixture(
        name=f"gptq 4 bit {zeros}", raw=raw, weights=(codes - zero[:, None]) * _spread(scale)
    )


def awq_gemm() -> Fixture:
    """AWQ GEMM: nibble i of a word is i, so channel n has the place of n in the order (+8 in odd rows)."""
    place = _PLACE_OF_CHANNEL[np.arange(N) % 8]
    codes = place[:, None] + 8 * (_COL % 2)
    scale = _scales()
    raw = RawWeight(
        contract="awq_gemm",
        arrays={
            "qweight": _words((K, N // 8), np.arange(K)[:, None] % 2 == 1),
            "qzeros": np.full((K // GROUP, N // 8), ZERO_WORD, np.uint32).view(np.int32),
            "scales": scale.T.astype(np.float16),
        },
        shape=(N, K),
        bit_width=4,
        group_size=GROUP,
        facts={"zeros": "as_is", "zero": "integer", "element": "u4"},
    )
    zero = (place + 1)[:, None]
    return Fixture(name="awq gemm 4 bit", raw=raw, weights=(codes - zero) * _spread(scale))


def row_packed(contract: str) -> Fixture:
    """Codes k mod 8 (+8 in odd channels) in words along the row: compressed-tensors, AWQ GEMV, MLX."""
    codes = _COL % 8 + 8 * (_ROW % 2)
    scale = _scales()
    words = _words((N, K // 8), np.arange(N)[:, None] % 2 == 1)
    groups = K // GROUP
    arrays: dict[str, NDArray[Any]]
    if contract == "ct_pack":
        zero = (np.arange(N) % 8 + 1)[:, None] * np.ones((1, groups))
        zeros = np.full((N // 8, groups), ZERO_WORD, np.uint32).view(np.int32)
        arrays = {
            "weight_packed": words,
            "weight_scale": scale.astype(np.float16),
            "weight_zero_point": zeros,
        }
    elif contract == "awq_gemv":
        zero = np.broadcast_to(np.arange(groups) % 8 + 1, (N, groups)).astype(np.float64)
        arrays = {
            "qweight": words,
            "scales": scale.astype(np.float16),
            "qzeros": np.full((N, 1), ZERO_WORD, np.uint32).view(np.int32),
        }
    else:
        zero = np.full((N, groups), 4.0)
        arrays = {
            "weight": words.view(np.uint32),
            "scales": scale.astype(np.float16),
            "biases": (-4.0 * scale).astype(np.float16),
        }
    raw = RawWeight(
        contract=contract,
        arrays=arrays,
        shape=(N, K),
        bit_width=4,
        group_size=GROUP,
        facts={"zeros": "as_is", "zero": "integer", "element": "u4"},
    )
    weights = (codes - _spread(zero)) * _spread(scale)
    return Fixture(name=f"{contract} 4 bit", raw=raw, weights=weights)


def symmetric(contract: str, group_size: int = GROUP) -> Fixture:
    """compressed-tensors 4 bit without stored zeros: midpoint 8."""
    codes = _COL % 8 + 8 * (_ROW % 2)
    scale = _scales(group_size)
    raw = RawWeight(
        contract=contract,
        arrays={
            "weight_packed": _words((N, K // 8), np.arange(N)[:, None] % 2 == 1),
            "weight_scale": scale.astype(np.float16),
        },
        shape=(N, K),
        bit_width=4,
        group_size=group_size,
        facts={"zeros": "not_applicable", "zero": "fixed", "element": "u4", "midpoint": "8"},
    )
    return Fixture(
        name=f"{contract} 4 bit symmetric",
        raw=raw,
        weights=(codes - 8) * _spread(scale, group_size),
    )


def bytes_int8() -> Fixture:
    """Signed bytes with one scale a channel."""
    codes = ((_COL * 3 + _ROW * 5) % 255 - 127).astype(np.int8)
    scale = 2.0 ** -(6 + np.arange(N)[:, None] % 2)
    raw = RawWeight(
        contract="int8_channel",
        arrays={"weight": codes, "scale": scale.astype(np.float32)},
        shape=(N, K),
        bit_width=8,
        group_size=K,
        facts={"element": "s8"},
    )
    return Fixture(name="int8 per channel", raw=raw, weights=codes.astype(np.float64) * scale)


def bytes_e4m3() -> Fixture:
    """Every finite E4M3 code: sign, exponent less 7, mantissa in eighths; exponent 0 without the leading 1."""
    codes = ((_COL * 5 + _ROW * 3) % 256).astype(np.int64)
    codes = np.where(codes % 128 == 127, 0, codes)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    size = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    values = np.where(codes >= 128, -size, size)
    scale = 2.0 ** -(4 + np.arange(N)[:, None] % 2)
    raw = RawWeight(
        contract="fp8_channel",
        arrays={"weight": codes.astype(np.uint8), "scale": scale.astype(np.float32)},
        shape=(N, K),
        bit_width=8,
        group_size=K,
        facts={"element": "e4m3fn"},
    )
    return Fixture(name="e4m3fn per channel", raw=raw, weights=values * scale)
