"""What the definition of each ggml type fixes: groups, scales, zero, roles and byte order of its fields.

Source: ggml-org/llama.cpp, ggml/src/ggml-common.h (structs), ggml/src/ggml-quants.c (decode).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec
from quantscope.containers.ggml_types import FORK_READINGS, GGML_TYPES, GgmlType
from quantscope.decode.ggml import BLOCK_TYPES, BlockField, BlockType
from quantscope.decode.parts import Array
from quantscope.model import GroupLevel, Role, ScaleLevel

PLAIN_TYPES = frozenset({"F32", "F16", "BF16", "F64"})
INTEGER_TYPES = frozenset({"I8", "I16", "I32", "I64"})

PERMUTED_ARCHITECTURES = frozenset(
    {
        "llama", "llama-embed", "deci", "baichuan", "minicpm", "deepseek", "bailingmoe", "arcee",
        "smollm3", "llada", "nanbeige", "granite", "granitemoe", "granitehybrid", "graniteswitch",
    }
)  # fmt: skip
"""Architectures whose converter reorders the rows of q and k within each head.

Source: llama.cpp, conversion/llama.py (`undo_permute`), deci.py, baichuan.py, minicpm.py, deepseek.py,
bailingmoe.py, llada.py, granite.py. A llama file made from Mistral's own names is not permuted, and nothing in
it says so.
"""

ROWS_PERMUTED = "q/k rows permuted (rope pairs interleaved within each head)"

_ROLES: dict[str, Role] = {
    "m": "minimum",
    "dmin": "minimum",
    "e": "scale",
    "scales": "scale",
    "scales_h": "scale",
    "scales_l": "scale",
    "signs": "sign",
    "signs_scales": "sign",
    "s": "meta",
    "bsums": "meta",
}
_FIELD_DTYPES = {
    ("Q8_K", "d"): "F32",
    ("Q8_K", "bsums"): "I16",
    ("Q6_K", "scales"): "I8",
    ("MXFP4", "e"): "F8_E8M0",
    ("NVFP4", "d"): "F8_E4M3",
    **{(name, "qs"): "I8" for name in ("Q8_0", "Q8_1", "Q8_K")},
}

_WORD_BYTES = {
    ("Q5_0", "qh"): 4,
    ("Q5_1", "qh"): 4,
    ("Q8_K", "d"): 4,
    ("Q8_K", "bsums"): 2,
    ("IQ2_XXS", "qs"): 2,
    ("IQ2_XS", "qs"): 2,
    ("IQ3_XXS", "signs_scales"): 4,
    ("IQ1_S", "qh"): 2,
    ("IQ1_M", "scales"): 2,
    ("IQ4_XS", "scales_h"): 2,
}
"""Bytes of one number of a field that is no byte array, beside the f16 fields: what a big-endian file swaps."""

_ZEROS: dict[str, Literal["none", "fixed", "additive_min"]] = {
    "affine": "fixed",
    "minus_min": "additive_min",
    "plus_min": "additive_min",
    "lut": "none",
}

SYMMETRIC = {
    "Q4_0": True, "Q5_0": True, "Q8_0": True, "Q8_1": True, "Q8_K": True, "Q3_K": True, "Q6_K": True,
    "TQ1_0": True, "TQ2_0": True, "Q4_2": True, "Q4_1": False, "Q4_3": False, "Q5_1": False,
    "Q2_K": False, "Q4_K": False, "Q5_K": False,
}  # fmt: skip
"""Whether zero lies at the middle of the codes; left out where codes are table indices or grid vectors."""

_SUB_SCALES = {
    "Q2_K": "u4", "Q3_K": "s6", "Q4_K": "u6", "Q5_K": "u6", "Q6_K": "s8", "IQ1_S": "u3", "IQ1_M": "u3",
    "IQ2_XXS": "u4", "IQ2_XS": "u4", "IQ2_S": "u4", "IQ3_XXS": "u4", "IQ3_S": "u4", "IQ4_XS": "s6",
}  # fmt: skip

UNPROVED = {
    "Q4_2": "the order of elements within its bytes is stated by no source that still exists",
    "Q4_3": "the order of elements within its bytes is stated by no source that still exists",
    "I2_S": "three builds of bitnet.cpp lay its codes out in three ways under one id",
}


class TypeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the definition of a type fixes, in contract vocabulary."""

    group: tuple[GroupLevel, ...]
    scale: tuple[ScaleLevel, ...]
    zero: Literal["none", "fixed", "additive_min"]
    bit_width: int
    rule: str


@lru_cache(maxsize=512)
def ggml_type(name: str) -> GgmlType | None:
    """A type by its ggml name, those of forks included; None where no public source has it."""
    kinds = [kind for forks in FORK_READINGS.values() for kind in forks]
    return next((kind for kind in [*GGML_TYPES.values(), *kinds] if kind.name == name), None)


def field_dtype(type_name: str, field: BlockField) -> str:
    """Stored dtype word of a field of a block struct; bytes that hold packed bits are U8."""
    known = _FIELD_DTYPES.get((type_name, field.name))
    if known is not None:
        return known
    return "F16" if field.name in ("d", "dmin", "m", "s") else "U8"


def field_role(block: BlockType, field: BlockField) -> Role:
    """Role of a field; d is the second level where sub-blocks have a scale of their own."""
    if field.name == "d":
        return "scale2" if block.name in _SUB_SCALES else "scale"
    return _ROLES.get(field.name, "codes")


@lru_cache(maxsize=128)
def type_facts(type_name: str) -> TypeFacts:
    """What the type id fixes; a placeholder where no decode rule is proved."""
    block, kind = BLOCK_TYPES.get(type_name), ggml_type(type_name)
    if block is None:
        size = kind.block_size if kind is not None else 1
        return TypeFacts(
            group=(GroupLevel(axis="in", size=size),),
            scale=(ScaleLevel(dtype="not stated"),),
            zero="none",
            bit_width=0,
            rule="not proved",
        )
    levels = [GroupLevel(axis="in", size=block.sub_block)]
    if block.sub_block < block.block_size:
        levels.append(GroupLevel(axis="in", size=block.block_size))
    dtype = {"MXFP4": "e8m0", "NVFP4": "ue4m3", "Q8_K": "f32"}.get(type_name, "f16")
    if type_name in _SUB_SCALES:
        dtype = f"{_SUB_SCALES[type_name]}*f16"
    zero = _ZEROS[block.combine]
    if zero == "fixed" and not block.zero:
        zero = "none"
    code = "table[code]" if block.combine == "lut" else "code"
    if block.code_kind == "grid":
        code = "grid value"
    if block.zero:
        code = f"(code - {block.zero})"
    rule = f"{block.scale_rule.replace('code', 'sub-scale')} * {code}"
    rule += {"none": "", "minus": " - minimum", "plus": " + minimum"}[block.minimum_sign]
    return TypeFacts(
        group=tuple(levels),
        scale=(ScaleLevel(dtype=dtype, signed=type_name not in ("MXFP4", "NVFP4")),),
        zero=zero,
        bit_width=block.code_bits_width,
        rule=rule,
    )


def midpoint(type_name: str) -> int:
    """What is subtracted from a code of the type."""
    block = BLOCK_TYPES.get(type_name)
    return block.zero if block is not None else 0


@lru_cache(maxsize=128)
def big_endian_bytes(block: BlockType) -> tuple[int, ...]:
    """For each byte of a little-endian block the byte of a big-endian one that holds it."""
    order = list(range(block.type_bytes))
    for field in block.fields:
        half = 2 if field_dtype(block.name, field) == "F16" else 1
        width = _WORD_BYTES.get((block.name, field.name), half)
        for byte in range(field.nbytes):
            within = byte % width
            order[field.byte_offset + byte] = field.byte_offset + byte - within + width - 1 - within
    return tuple(order)


def little_endian(blocks: Array, block: BlockType) -> Array:
    """Blocks of a big-endian file with every number of more than one byte turned round."""
    turned: Array = blocks[:, list(big_endian_bytes(block))]
    return turned
