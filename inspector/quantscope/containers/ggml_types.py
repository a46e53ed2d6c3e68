"""The ggml tensor types: ids, block sizes, and which project uses them.

Sources: ggml-org/llama.cpp ggml/include/ggml.h (ids), ggml/src/ggml-common.h (blocks), older ggml sources for
ids 4 and 5; ikawrakow/ik_llama.cpp ggml/include/ggml.h, ggml/src/ggml.c (row_meta_size) and
gguf-py/gguf/constants.py for its own range; microsoft/BitNet for the ids that it reuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

TypeStatus = Literal["current", "recent", "activation", "withdrawn", "fork"]
"""`recent`: mainline, but readers of before mid-2025 refuse it. `activation`: used in memory, not in files."""


class GgmlType(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor type.

    A row of K elements takes `K / block_size * type_bytes + row_bytes` bytes and a tensor `tensor_bytes`
    more. `block_size` 0 means that the size is not known from public sources.
    """

    id: int
    name: str
    block_size: int
    type_bytes: int
    status: TypeStatus
    row_bytes: int = 0
    tensor_bytes: int = 0
    project: str = "llama.cpp"

    def nbytes(self, dims: tuple[int, ...]) -> int | None:
        """Bytes of a tensor with these dims, the fastest axis first, or None where it has no size.

        Rows that are no whole number of blocks have no size.
        """
        row = dims[0] if dims else 1
        if self.block_size == 0 or row % self.block_size:
            return None
        rows = 1
        for extent in dims[1:]:
            rows *= extent
        if rows == 0 or row == 0:
            return 0
        return (
            rows * (row // self.block_size * self.type_bytes + self.row_bytes) + self.tensor_bytes
        )


def _mainline(
    rows: tuple[tuple[int, str, int, int], ...], status: TypeStatus
) -> dict[int, GgmlType]:
    return {
        type_id: GgmlType(id=type_id, name=name, block_size=block, type_bytes=nbytes, status=status)
        for type_id, name, block, nbytes in rows
    }


def _ik(rows: tuple[tuple[int, str, int, int, int], ...]) -> dict[int, GgmlType]:
    return {
        type_id: GgmlType(
            id=type_id,
            name=name,
            block_size=block,
            type_bytes=nbytes,
            status="fork",
            row_bytes=row_bytes,
            project="ik_llama.cpp",
        )
        for type_id, name, block, nbytes, row_bytes in rows
    }


_CURRENT = (
    (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1),
    (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
)  # fmt: skip
_ACTIVATION = ((9, "Q8_1", 32, 36), (15, "Q8_K", 256, 292))
_RECENT = (
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)
_WITHDRAWN = (
    (4, "Q4_2", 16, 10), (5, "Q4_3", 16, 12), (31, "Q4_0_4_4", 32, 18), (32, "Q4_0_4_8", 32, 18),
    (33, "Q4_0_8_8", 32, 18), (36, "IQ4_NL_4_4", 32, 18), (37, "IQ4_NL_4_8", 32, 18),
    (38, "IQ4_NL_8_8", 32, 18),
)  # fmt: skip
_IK = (
    (133, "Q6_0", 32, 26, 0), (134, "IQ1_BN", 64, 13, 2), (135, "IQ2_BN", 64, 16, 4),
    (137, "IQ2_K", 256, 76, 0), (138, "IQ3_K", 256, 110, 0), (139, "IQ4_K", 256, 144, 0),
    (140, "IQ5_K", 256, 176, 0), (141, "IQ6_K", 256, 212, 0), (144, "IQ4_KS", 256, 136, 4),
    (145, "IQ2_KS", 256, 70, 2), (146, "IQ4_KSS", 256, 128, 4), (151, "Q8_KV", 0, 0, 0),
    (152, "IQ5_KS", 256, 168, 4), (153, "IQ2_KT", 256, 68, 4), (154, "IQ3_KT", 256, 100, 4),
    (155, "IQ4_KT", 256, 128, 4), (156, "IQ3_KS", 256, 102, 2), (157, "IQ2_KL", 256, 86, 2),
    (158, "IQ1_KT", 256, 56, 4),
)  # fmt: skip

GGML_TYPES: Mapping[int, GgmlType] = MappingProxyType(
    {
        **_mainline(_CURRENT, "current"),
        **_mainline(_ACTIVATION, "activation"),
        **_mainline(_RECENT, "recent"),
        **_mainline(_WITHDRAWN, "withdrawn"),
        **_ik(_IK),
    }
)
"""Type by id: mainline 0 to 42, and the ids that only ik_llama.cpp has."""

FORK_READINGS: Mapping[int, tuple[GgmlType, ...]] = MappingProxyType(
    {
        36: (
            GgmlType(
                id=36, name="I2_S", block_size=4, type_bytes=1, status="fork", tensor_bytes=32,
                project="bitnet.cpp",
            ),
        ),
        37: (
            GgmlType(
                id=37, name="I8_S", block_size=1, type_bytes=1, status="fork", project="bitnet.cpp"
            ),
        ),
        38: (
            GgmlType(
                id=38, name="TL1", block_size=0, type_bytes=0, status="fork", project="bitnet.cpp"
            ),
        ),
        39: (
            GgmlType(
                id=39, name="TL2", block_size=0, type_bytes=0, status="fork", project="bitnet.cpp"
            ),
        ),
    }
)  # fmt: skip
"""What forks mean by an id that mainline uses, or used, for something else."""

INTERLEAVED_IDS = range(202, 400)
"""Row-interleaved types of ik_llama.cpp: base type plus 200, made at load time and rarely stored."""


def type_name(type_id: int) -> str:
    """The ggml name of a type id, or `ggml:<id>`."""
    known = GGML_TYPES.get(type_id)
    return known.name if known else f"ggml:{type_id}"
