"""One packed axis of a plane: which words hold which codes, and the way back."""

from __future__ import annotations

import math

import msgspec
from quantscope.decode import bits
from quantscope.decode.parts import Array

ONE_WORD_ORDERS = ("sequential", "padded", "awq", "low_first", "high_first", "msb_first")
"""Orders in which no code leaves its word."""


class PackedAxis(msgspec.Struct, frozen=True, kw_only=True):
    """Codes of `bit_width` bits in words of `word_bits` bits, in one of the orders of `Packing.order`."""

    word_bits: int
    bit_width: int
    order: str

    @property
    def run(self) -> tuple[int, int]:
        """The smallest run of whole words that begins with a whole code: (codes, words)."""
        if self.order == "planar":
            return 32, self.bit_width
        if self.order == "bitstream":
            codes = self.word_bits // math.gcd(self.bit_width, self.word_bits)
            return codes, codes * self.bit_width // self.word_bits
        return max(1, self.word_bits // self.bit_width), 1

    def n_words(self, count: int) -> int:
        """Words that `count` codes take."""
        if self.order == "bitstream":
            return -(-count * self.bit_width // self.word_bits)
        codes, words = self.run
        return -(-count // codes) * words

    def cover(self, wanted: range, n_words: int) -> tuple[range, int]:
        """Words that hold the codes wanted, and how many codes of the first word come before them.

        Args:
            wanted: codes along the axis.
            n_words: words that the plane stores along the axis.
        """
        codes, words = self.run
        first = wanted.start // codes
        last = -(-wanted.stop // codes)
        return range(first * words, min(last * words, n_words)), wanted.start % codes

    def unpack(self, packed: Array, count: int, axis: int) -> Array:
        """The first `count` codes of whole runs of words, uint8.

        Raises:
            UndecodableError: the words hold fewer codes.
        """
        if self.order == "planar":
            return bits.unpack_planar(packed, self.bit_width, axis=axis, count=count)
        if self.order == "bitstream":
            return bits.unpack_bitstream(packed, self.bit_width, axis=axis, count=count)
        order: tuple[int, ...] | None = None
        if self.order == "awq":
            order = bits.AWQ_ORDER
        elif self.order in ("high_first", "msb_first"):
            order = tuple(reversed(range(self.run[0])))
        return bits.unpack_words(packed, self.bit_width, axis=axis, count=count, order=order)

    def fields(self, index: int) -> tuple[tuple[int, int, int], ...]:
        """Pieces (word, lowest bit, width) that hold code `index`, its lowest bits first."""
        layout: bits.FieldLayout = "sequential"
        if self.order in ("awq", "bitstream", "planar", "msb_first"):
            layout = self.order  # type: ignore[assignment]
        elif self.order == "high_first":
            layout = "msb_first"
        return bits.field_bits(layout, index, self.bit_width, word_bits=self.word_bits)
