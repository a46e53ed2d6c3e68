"""Ids of GRIT: FNV-1a in 64 and 128 bits, the contract's gid, the content digest, Crockford base32.

FNV-1a has no collision resistance: an id says that two tools mean the same contract, never where bytes come
from. Source: package grit-datatype 1.1.0 (grit/_fnv.py, grit/descriptor.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

_BASIS_64, _PRIME_64 = 0xCBF29CE484222325, 0x100000001B3
_BASIS_128, _PRIME_128 = 0x6C62272E07BB014262B821756295C58D, 0x0000000001000000000000000000013B
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READ_AS = {**{symbol: place for place, symbol in enumerate(_ALPHABET)}, "I": 1, "L": 1, "O": 0}


def fnv64(data: bytes) -> int:
    """FNV-1a with 64 bits."""
    value = _BASIS_64
    for byte in data:
        value = (value ^ byte) * _PRIME_64 & 0xFFFFFFFFFFFFFFFF
    return value


class Fnv128:
    """FNV-1a with 128 bits, fed in pieces."""

    def __init__(self) -> None:
        self._value = _BASIS_128

    def update(self, data: bytes) -> None:
        """Take in bytes; about a megabyte a second, a loop being the definition."""
        value, prime, mask = self._value, _PRIME_128, (1 << 128) - 1
        for byte in data:
            value = (value ^ byte) * prime & mask
        self._value = value

    def digest(self) -> bytes:
        """16 bytes, most significant first."""
        return self._value.to_bytes(16, "big")


def fnv128(data: bytes) -> bytes:
    """FNV-1a with 128 bits, most significant byte first."""
    hasher = Fnv128()
    hasher.update(data)
    return hasher.digest()


def gid(frame: bytes, canonical: str, shape: Sequence[int]) -> bytes:
    """The contract's fingerprint.

    Args:
        frame: the 60 hashed bytes of the descriptor: all but the note.
        canonical: the grade's canonical string.
        shape: logical extents.
    """
    extents = struct.pack("<I", len(shape)) + b"".join(struct.pack("<q", s) for s in shape)
    return fnv128(canonical.encode("utf-8") + b"\x00" + frame + extents)


def digest(planes: Iterable[bytes]) -> bytes:
    """The content's fingerprint: each plane with its length before it."""
    hasher = Fnv128()
    for plane in planes:
        hasher.update(struct.pack("<Q", len(plane)))
        hasher.update(plane)
    return hasher.digest()


def crockford32(value: bytes) -> str:
    """16 bytes as exactly 26 symbols, most significant first."""
    number = int.from_bytes(value, "big")
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def crockford32_decode(text: str) -> bytes:
    """16 bytes of a printed id; I and L read as 1, O as 0, hyphens ignored.

    Raises:
        ValueError: a symbol is none of the alphabet, or the text is no 128 bits.
    """
    symbols = text.upper().replace("-", "")
    if len(symbols) != 26 or any(symbol not in _READ_AS for symbol in symbols):
        raise ValueError("a GRIT id has 26 symbols of Crockford's alphabet")
    number = 0
    for symbol in symbols:
        number = number << 5 | _READ_AS[symbol]
    if number >> 128:
        raise ValueError("a GRIT id has 128 bits")
    return number.to_bytes(16, "big")
