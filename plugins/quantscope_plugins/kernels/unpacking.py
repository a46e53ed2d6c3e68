"""Codes out of stored words by way of single bits: what kernels are fed from.

This is on purpose another road than the inspector's decoder: words become bits, bits become codes, and nothing of
`quantscope.decode` is used. A mistake in one of the two then shows as a difference instead of cancelling out.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Ints = NDArray[np.int32]

AWQ_CHANNEL_OF_NIBBLE = (0, 2, 4, 6, 1, 3, 5, 7)
"""Output channel that nibble i of an AWQ word holds. Source: AutoAWQ, awq/modules/linear/gemm.py."""

ROWS_AT_ONCE = 1 << 22


def dense_codes(words: Array, bit_width: int, count: int, axis: int) -> Ints:
    """Codes that lie densely, lowest bits first, along an axis of words.

    Args:
        words: integer words, two axes.
        bit_width: bits of a code.
        count: codes wanted along the axis.
        axis: the packed axis.

    Returns:
        int32 codes with `count` along `axis`.
    """
    lines = np.ascontiguousarray(np.moveaxis(np.asarray(words), axis, -1))
    if sys.byteorder == "big":
        lines = lines.byteswap()
    octets = lines.view(np.uint8).reshape(lines.shape[0], -1)
    weights = (1 << np.arange(bit_width)).astype(np.uint8)
    codes = np.empty((lines.shape[0], count), dtype=np.int32)
    step = max(1, ROWS_AT_ONCE // max(1, octets.shape[1] * 8))
    for start in range(0, octets.shape[0], step):
        bits = np.unpackbits(octets[start : start + step], axis=1, bitorder="little")
        fields = bits[:, : count * bit_width].reshape(bits.shape[0], count, bit_width)
        codes[start : start + step] = fields @ weights
    return np.moveaxis(codes, -1, axis)


def awq_codes(words: Array) -> Ints:
    """Codes of AWQ words whose last axis is packed, int32 [rows, 8 * words]."""
    rows, n_words = words.shape
    nibbles = dense_codes(words, 4, n_words * 8, axis=1).reshape(rows, n_words, 8)
    codes = np.empty_like(nibbles)
    codes[:, :, AWQ_CHANNEL_OF_NIBBLE] = nibbles
    return codes.reshape(rows, n_words * 8)


def nibbles(octets: Array, *, high_first: bool) -> Ints:
    """Two codes a byte along the last axis, int32."""
    bits = np.unpackbits(np.asarray(octets, dtype=np.uint8)[..., None], axis=-1)
    halves = bits.reshape(*octets.shape, 2, 4) @ np.array([8, 4, 2, 1], dtype=np.uint8)
    if not high_first:
        halves = halves[..., ::-1]
    return halves.reshape(*octets.shape[:-1], -1).astype(np.int32)


def bf16_values(patterns: Array) -> NDArray[np.float32]:
    """Bit patterns of bfloat16 as float32."""
    return (np.asarray(patterns).astype(np.uint32) << 16).view(np.float32)


def as_float(stored: Array) -> NDArray[np.float64]:
    """A stored scale plane as float64; 16-bit integers are bfloat16 patterns."""
    if stored.dtype == np.uint16:
        return bf16_values(stored).astype(np.float64)
    return stored.astype(np.float64)


class Affine:
    """A weight as w = code * scale + offset, groups in order along the input axis.

    Attributes:
        codes: int32 [N, K], in the order of the groups.
        scale: float64 [N, G].
        offset: float64 [N, G]; -zero * scale where zeros are stored.
        zero: float64 [N, G], or None where an offset is stored instead.
        group_size: columns of a group.
        order: int64 [K], input channel of each column, or None where they are in order.
    """

    __slots__ = ("codes", "group_size", "offset", "order", "scale", "zero")

    def __init__(
        self,
        codes: Ints,
        scale: NDArray[np.float64],
        group_size: int,
        *,
        zero: NDArray[np.float64] | None = None,
        offset: NDArray[np.float64] | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        self.codes = codes
        self.scale = scale
        self.group_size = group_size
        self.zero = zero
        if offset is None:
            offset = np.zeros_like(scale) if zero is None else -zero * scale
        self.offset = offset
        self.order = order

    def weights(self) -> NDArray[np.float64]:
        """float64 [N, K] with input channels in their own order."""
        repeat = np.arange(self.codes.shape[1]) // self.group_size
        values = self.codes * self.scale[:, repeat] + self.offset[:, repeat]
        if self.order is None:
            return values
        placed = np.empty_like(values)
        placed[:, self.order] = values
        return placed
