"""Every ggml block type by name: fields, codes, scales, exact decode and bit places."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quantscope.decode.ggml import kquants, legacy
from quantscope.decode.ggml.block import BitSpans, BlockField, BlockType

__all__ = ["BLOCK_TYPES", "BitSpans", "BlockField", "BlockType"]

BLOCK_TYPES: Mapping[str, BlockType] = MappingProxyType(
    {block.name: block for block in (*legacy.TYPES, *kquants.TYPES)}
)
"""Block types by ggml name."""
