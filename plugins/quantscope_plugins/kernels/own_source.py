"""CUDA C++ of the project's own W4A16 product: one source for NVRTC, nvcc and a host compiler.

A thread computes one output. It reads the stored words of GPTQ (layout 0), AWQ GEMM (1) and compressed-tensors (2)
directly, so that the bytes themselves are read on the device and nothing is repacked. No shared memory, no
synchronisation: the same text compiles as C++ for a host, with `HOST_SHIM` before it.
"""

from __future__ import annotations

KERNEL_NAME = "quantscope_w4a16"

CUDA_SOURCE = r"""
__device__ float quantscope_half(unsigned int bits) {
  unsigned int sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 1023u;
  union { unsigned int u; float f; } value;
  if (exponent == 0u) {
    float small = (float)mantissa * 5.9604644775390625e-08f;
    return sign ? -small : small;
  }
  value.u = exponent == 31u ? sign | 0x7f800000u | mantissa << 13
                            : sign | (exponent + 112u) << 23 | mantissa << 13;
  return value.f;
}

__device__ int quantscope_nibble(const unsigned int *words, int layout, long row, long column, long stride) {
  // layout 0 and 2: the nibble's place is the number within eight; layout 1: channel c lies at 4 * (c % 2) + c / 2.
  int inside = (int)(column % 8);
  int place = layout == 1 ? inside % 2 * 4 + inside / 2 : inside;
  return (int)(words[row * stride + column / 8] >> 4 * place & 15u);
}

extern "C" __global__ void quantscope_w4a16(
    const float *x, const unsigned int *words, const unsigned int *zeros, const void *scales, const int *g_idx,
    float *y, int m_rows, int n_rows, int n_cols, int n_groups, int layout, int scales_are_half, int has_zeros,
    int zero_add, int midpoint, unsigned long long *calls) {
  long index = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= (long)m_rows * n_rows) return;
  long n = index % n_rows, m = index / n_rows;
  if (index == 0) *calls += 1ull;
  float sum = 0.0f;
  for (long k = 0; k < n_cols; ++k) {
    long group = g_idx[k];
    int code, zero = midpoint;
    if (layout == 0) code = (int)(words[k / 8 * n_rows + n] >> 4 * (k % 8) & 15u);
    else if (layout == 1) code = quantscope_nibble(words, 1, k, n, n_rows / 8);
    else code = quantscope_nibble(words, 2, n, k, n_cols / 8);
    if (has_zeros) {
      if (layout == 2) zero = (int)(zeros[n / 8 * n_groups + group] >> 4 * (n % 8) & 15u);
      else zero = quantscope_nibble(zeros, layout, group, n, n_rows / 8);
      zero = zero + zero_add & 15;
    }
    long at = layout == 2 ? n * n_groups + group : group * n_rows + n;
    float scale = scales_are_half ? quantscope_half(((const unsigned short *)scales)[at]) : ((const float *)scales)[at];
    sum = sum + x[m * n_cols + k] * ((float)(code - zero) * scale);
  }
  y[index] = sum;
}
"""

HOST_SHIM = r"""
#define __device__ static inline
#define __global__
struct quantscope_dim { unsigned int x; };
static thread_local quantscope_dim blockIdx, blockDim, threadIdx;
"""

HOST_DRIVER = r"""
extern "C" unsigned long long quantscope_launch(
    const float *x, const unsigned int *words, const unsigned int *zeros, const void *scales, const int *g_idx,
    float *y, int m_rows, int n_rows, int n_cols, int n_groups, int layout, int scales_are_half, int has_zeros,
    int zero_add, int midpoint) {
  unsigned long long calls = 0;
  long total = (long)m_rows * n_rows;
  blockDim.x = 128;
  for (long block = 0; block * 128 < total; ++block)
    for (unsigned int thread = 0; thread < 128; ++thread) {
      blockIdx.x = (unsigned int)block;
      threadIdx.x = thread;
      quantscope_w4a16(x, words, zeros, scales, g_idx, y, m_rows, n_rows, n_cols, n_groups, layout, scales_are_half,
                       has_zeros, zero_add, midpoint, &calls);
    }
  return calls;
}
"""


def host_source() -> str:
    """The text that a host compiler takes: the shim, the same kernel, a loop over its threads."""
    return HOST_SHIM + CUDA_SOURCE + HOST_DRIVER
