"""Triton source of the project's own W4A16 product: the same three layouts, weights in half, tensor-core products.

Imported only where triton is; `TRITON_INTERPRET=1` must be set before that for the interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def w4a16(  # type: ignore[no-untyped-def]
    x,
    words,
    zeros,
    scales,
    g_idx,
    y,
    m_rows,
    n_rows,
    n_cols,
    n_groups,
    LAYOUT: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    ZERO_ADD: tl.constexpr,
    MIDPOINT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[M, N] float32 = x[M, K] float16 times dequantized weights, one tile a program."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_m, in_n = m < m_rows, n < n_rows
    inside = n % 8
    place = inside
    if LAYOUT == 1:
        place = inside % 2 * 4 + inside // 2
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, n_cols, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        in_k = k < n_cols
        both = in_k[:, None] & in_n[None, :]
        left = tl.load(
            x + m[:, None] * n_cols + k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0
        )
        group = tl.load(g_idx + k, mask=in_k, other=0)
        if LAYOUT == 0:
            word = tl.load(words + k[:, None] // 8 * n_rows + n[None, :], mask=both, other=0)
            code = word >> (k[:, None] % 8 * 4) & 15
        elif LAYOUT == 1:
            word = tl.load(words + k[:, None] * (n_rows // 8) + n[None, :] // 8, mask=both, other=0)
            code = word >> (place[None, :] * 4) & 15
        else:
            word = tl.load(words + n[None, :] * (n_cols // 8) + k[:, None] // 8, mask=both, other=0)
            code = word >> (k[:, None] % 8 * 4) & 15
        if HAS_ZEROS:
            if LAYOUT == 2:
                stored = tl.load(
                    zeros + n[None, :] // 8 * n_groups + group[:, None], mask=both, other=0
                )
            else:
                stored = tl.load(
                    zeros + group[:, None] * (n_rows // 8) + n[None, :] // 8, mask=both, other=0
                )
            zero = (stored >> (place[None, :] * 4) & 15) + ZERO_ADD & 15
        else:
            zero = MIDPOINT
        if LAYOUT == 2:
            scale = tl.load(scales + n[None, :] * n_groups + group[:, None], mask=both, other=0.0)
        else:
            scale = tl.load(scales + group[:, None] * n_rows + n[None, :], mask=both, other=0.0)
        weight = ((code - zero).to(tl.float32) * scale.to(tl.float32)).to(tl.float16)
        total = tl.dot(left, weight, total)
    tl.store(y + m[:, None] * n_rows + n[None, :], total, mask=in_m[:, None] & in_n[None, :])


SIGNATURE = {
    "x": "*fp16",
    "words": "*i32",
    "zeros": "*i32",
    "scales": "*fp16",
    "g_idx": "*i32",
    "y": "*fp32",
    "m_rows": "i32",
    "n_rows": "i32",
    "n_cols": "i32",
    "n_groups": "i32",
}
"""Types of the arguments, for compiling without a launch."""
