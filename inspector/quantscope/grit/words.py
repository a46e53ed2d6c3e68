"""Format words, flags and placement words of GRIT version 1.

Source: package grit-datatype 1.1.0 (grit/fmt.py, grit/placement.py, grit/descriptor.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MAGIC = 0x31545247
HEADER_BYTES = 64
VERSION = 1

HAS_ZP = 0x01
ZP_MINUS1 = 0x02
SPARSE = 0x04
MSB_FIRST = 0x08
INTERLEAVED = 0x10
ZP_L1SCALED = 0x20
RESERVED_FLAGS = 0xC0

DENSE, PAD8 = 0, 1
ASCENDING = 1
ASSUMED = 0x00000001
RESERVED_NOTE = 0xFFFF00FE

ABSENT = 0x0000

FORMATS: Mapping[str, int] = MappingProxyType(
    {
        "e2m1": 0x2043,
        "e4m3": 0x2887,
        "e8m0": 0x4807,
        "binary16": 0x356F,
        "binary32": 0x371F,
        "u2": 0x43E1,
        "u4": 0x43E3,
        "u6": 0x43E5,
        "u8": 0x43E7,
        "s4": 0x03E3,
        "s8": 0x03E7,
    }
)
"""Format token -> 16-bit word: bits 0-4 width - 1, 5-9 precision, 10 inf, 11-12 NaN, 13 -0, 14 unsigned, 15 bias."""

FORMAT_NAMES: Mapping[int, str] = MappingProxyType({word: name for name, word in FORMATS.items()})

META_BITS: Mapping[int, int] = MappingProxyType({0: 0, 1: 2, 2: 4})
"""Sparsity metadata format -> bits of an index."""

PLACEMENTS: Mapping[int, str] = MappingProxyType(
    {
        0x1000000000000001: "ROW_MAJOR",
        0x1000000000000002: "COL_MAJOR",
        0x1000000000000003: "SWIZZLE_128x4B",
        0x1000000000000004: "TILE_16x16",
        0x1000000000000005: "BLOCK_AOS",
        0x1000000000000011: "LINEAR_META",
        0x1000000000000012: "META_M16N8K32",
        0x1000000000000020: "PACK_K4_12B",
    }
)
UNSPECIFIED = 0
LOCAL_HASH, OPAQUE = 0x8, 0xF


def width(word: int) -> int:
    """Bits of one value of a format."""
    return (word & 0x1F) + 1


def nan_encoding(word: int) -> int:
    """0 none, 1 the all-ones code, 2 all IEEE NaNs, 3 reserved."""
    return (word >> 11) & 3


def has_bias_override(word: int) -> bool:
    """Whether the bias bit is set."""
    return bool(word >> 15 & 1)


def placement_known(word: int) -> bool:
    """Whether a placement word is unspecified, well known, a local hash or opaque."""
    if word == UNSPECIFIED or word in PLACEMENTS:
        return True
    return word >> 60 in (LOCAL_HASH, OPAQUE)


def placement_name(word: int) -> str:
    """A placement word for people."""
    if word == UNSPECIFIED:
        return "UNSPECIFIED"
    if word in PLACEMENTS:
        return PLACEMENTS[word]
    kind = {LOCAL_HASH: "LOCAL", OPAQUE: "OPAQUE"}.get(word >> 60, "RESERVED")
    return f"{kind}(0x{word:016x})"
