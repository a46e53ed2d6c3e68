"""Every ggml block type by name: fields, codes, scales, exact decode and bit places."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quantscope.decode.ggml import floats, iquants, kquants, legacy, nonlinear, ternary
from quantscope.decode.ggml.block import BitSpans, BlockField, BlockType

__all__ = ["BLOCK_TYPES", "OTHER_READINGS", "BitSpans", "BlockField", "BlockType"]

BLOCK_TYPES: Mapping[str, BlockType] = MappingProxyType(
    {
        block.name: block
        for group in (legacy, kquants, iquants, nonlinear, ternary, floats)
        for block in group.TYPES
    }
)
"""Block types by ggml name, in ggml's own reading."""

OTHER_READINGS: Mapping[str, BlockType] = MappingProxyType(
    {block.name: block for block in floats.OTHER_READINGS}
)
"""The same bytes in the reading of the OCP formats, where it differs at the edges; `reading` says whose it is."""
