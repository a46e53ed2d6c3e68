"""Whole planes to float32 against the same rule spelled out in float64 steps rounded once each."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from quantscope.decode import affine, bits, fast
from quantscope.errors import MissingExtraError, UndecodableError

needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="the extra `fast` (numba) is not installed"
)


def spelled_out(
    codes: NDArray[Any], scales: NDArray[np.float32], zeros: Any, size: int, axis: int
) -> NDArray[np.float32]:
    """Element by element: the difference rounded to float32, then the product rounded to float32."""
    group = np.arange(codes.shape[axis]) // size
    scale = np.take(scales, group, axis=axis).astype(np.float64)
    zero = zeros if np.ndim(zeros) == 0 else np.take(zeros, group, axis=axis).astype(np.float64)
    difference = (codes.astype(np.float64) - zero).astype(np.float32).astype(np.float64)
    return (difference * scale).astype(np.float32)


def grids(shape: tuple[int, int], seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    scales = rng.normal(size=shape).astype(np.float16).astype(np.float32)
    scales.flat[0] = np.float32(2.0**-24)
    return scales, rng.integers(0, 17, shape).astype(np.int32)


def words_of(shape: tuple[int, int], dtype: str = "int32") -> NDArray[Any]:
    rng = np.random.default_rng(shape[0])
    n_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(n_bytes), dtype).reshape(shape)


COLUMN_CASES = [
    (4, 32, 1, 128, "int32"),
    (64, 40, 4, 128, "int32"),
    (37, 24, 4, 64, "int32"),
    (33, 7000, 4, 128, "int32"),
    (700, 300, 4, 32, "int32"),
    (48, 16, 2, 64, "int32"),
    (48, 16, 8, 64, "uint32"),
    (12, 16, 4, 32, "int16"),
    (10, 16, 8, 32, "int8"),
    (6, 16, 4, 32, "int64"),
]


@pytest.mark.parametrize(("rows", "columns", "bit_width", "group_size", "dtype"), COLUMN_CASES)
@pytest.mark.parametrize("decoder", [affine, pytest.param(fast, marks=needs_numba)])
def test_planes_packed_down_the_rows_decode_to_the_spelled_out_rule(
    decoder: Any, rows: int, columns: int, bit_width: int, group_size: int, dtype: str
) -> None:
    words = words_of((rows, columns), dtype)
    codes = bits.unpack_words(words, bit_width, axis=0)
    n_groups = -(-codes.shape[0] // group_size)
    scales, zeros = grids((n_groups, columns), rows)
    for zero in (zeros, 8, zeros + np.float32(0.5)):
        out = np.full(codes.shape, np.nan, np.float32)
        assert decoder.decode_columns(words, bit_width, scales, zero, group_size, out) is out
        assert np.array_equal(out, spelled_out(codes, scales, zero, group_size, 0))


ROW_CASES = [(5, 64, 32), (40, 520, 128), (129, 24, 64), (300, 2048, 128), (2, 40000, 128)]


@pytest.mark.parametrize(("rows", "columns", "group_size"), ROW_CASES)
@pytest.mark.parametrize("group_axis", [0, 1])
@pytest.mark.parametrize("awq", [False, True])
def test_planes_packed_along_the_rows_decode_to_the_spelled_out_rule(
    rows: int, columns: int, group_size: int, group_axis: Literal[0, 1], awq: bool
) -> None:
    words = words_of((rows, columns // 8))
    order = bits.AWQ_ORDER if awq else None
    codes = bits.unpack_words(words, 4, order=order)
    shape = [rows, columns]
    shape[group_axis] = -(-shape[group_axis] // group_size)
    scales, zeros = grids((shape[0], shape[1]), columns)
    for zero in (zeros, 8, zeros + np.float32(0.5)):
        expected = spelled_out(codes, scales, zero, group_size, group_axis)
        out = affine.decode_lines(
            lambda lines, codes: bits.unpack_words(words[lines], 4, order=order, out=codes),
            scales,
            zero,
            group_size,
            group_axis=group_axis,
            out=np.full((rows, columns), np.nan, np.float32),
        )
        assert np.array_equal(out, expected)
        assert np.array_equal(
            affine.apply_affine(codes, scales, zero, group_size, group_axis=group_axis), expected
        )


@needs_numba
@pytest.mark.parametrize(("rows", "columns", "group_size"), ROW_CASES)
@pytest.mark.parametrize(("group_axis", "awq"), [(0, False), (0, True), (1, False)])
def test_compiled_rows_decode_to_the_same_bits(
    rows: int, columns: int, group_size: int, group_axis: Literal[0, 1], awq: bool
) -> None:
    words = words_of((rows, columns // 8))
    codes = bits.unpack_awq(words) if awq else bits.unpack_words(words, 4)
    shape = [rows, columns]
    shape[group_axis] = -(-shape[group_axis] // group_size)
    scales, zeros = grids((shape[0], shape[1]), columns)
    for zero in (zeros, 8):
        out = fast.decode_nibble_rows(
            words, scales, zero, group_size, group_axis=group_axis, awq=awq
        )
        assert np.array_equal(out, spelled_out(codes, scales, zero, group_size, group_axis))


def test_signed_codes_need_no_zero() -> None:
    codes = np.array([[-8, 7], [3, -1]], np.int8)
    out = affine.apply_affine(codes, np.array([[0.5], [2.0]], np.float32), 0, 2, group_axis=1)
    assert out.tolist() == [[-4.0, 3.5], [6.0, -2.0]]


@pytest.mark.parametrize("decoder", [affine, fast])
def test_groups_that_cut_words_apart_are_refused(decoder: Any) -> None:
    scales = np.ones((2, 4), np.float32)
    with pytest.raises(UndecodableError, match="do not fill whole 32-bit words"):
        decoder.decode_columns(np.zeros((2, 4), np.int32), 4, scales, 8, 12)
    with pytest.raises(UndecodableError, match="do not fill whole 32-bit words"):
        decoder.decode_columns(np.zeros((3, 4), np.int32), 3, scales, 8, 32)


def test_without_numba_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    fast._compiled.cache_clear()
    with pytest.raises(MissingExtraError) as caught:
        fast.decode_columns(np.zeros((4, 4), np.int32), 4, np.ones((1, 4), np.float32), 8, 32)
    assert "numba" in caught.value.hint
    assert "extra `fast`" in caught.value.hint
