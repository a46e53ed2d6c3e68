"""ggml blocks against the gguf package, fixed vectors, and stock ggml where it is installed."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from quantscope.decode.ggml import BLOCK_TYPES, OTHER_READINGS, BlockType
from quantscope.errors import UndecodableError

GGUF_TYPES = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
]  # fmt: skip
"""Types that gguf 0.19 decodes."""

HALVES = np.array(
    [
        0x0000,
        0x8000,
        0x0001,
        0x83FF,
        0x0400,
        0x3C00,
        0xB800,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E00,
    ],
    np.uint16,
)
"""Zero, subnormal, smallest normal, ordinary, negative, largest, infinite and NaN scales."""

Blocks = NDArray[np.uint8]


def random_blocks(block: BlockType, count: int) -> Blocks:
    rng = np.random.default_rng(block.type_id)
    return rng.integers(0, 256, (count, block.type_bytes), np.uint8)


def edge_blocks(block: BlockType) -> Blocks:
    """Random blocks whose half fields take every pair of edge values."""
    blocks = random_blocks(block, HALVES.size**2)
    first = np.repeat(HALVES, HALVES.size).view(np.uint8).reshape(-1, 2)
    second = np.tile(HALVES, HALVES.size).view(np.uint8).reshape(-1, 2)
    halves = [f for f in block.fields if f.name in ("d", "m", "dmin", "s") and f.nbytes == 2]
    for field, values in zip(halves, (first, second), strict=False):
        blocks[:, field.byte_offset : field.byte_offset + 2] = values
    return blocks


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Equal bit by bit, so that zeros keep their sign; any NaN equals any NaN."""
    both_nan = np.isnan(left) & np.isnan(right)
    return bool(np.all(both_nan | (left.view(np.uint32) == right.view(np.uint32))))


def gguf_values(block: BlockType, blocks: Blocks) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        values: NDArray[np.float32] = gguf.dequantize(
            blocks, gguf.GGMLQuantizationType(block.type_id)
        )
    return values


@pytest.mark.parametrize("name", GGUF_TYPES)
def test_random_blocks_decode_as_the_gguf_package_decodes_them(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = random_blocks(block, 700)
    assert same_bits(block.dequantize(blocks), gguf_values(block, blocks))


@pytest.mark.parametrize("name", [n for n in GGUF_TYPES if n not in ("IQ1_M", "MXFP4", "NVFP4")])
def test_edge_scales_decode_as_the_gguf_package_decodes_them(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = edge_blocks(block)
    assert same_bits(block.dequantize(blocks), gguf_values(block, blocks))


def test_edge_scales_of_iq1_m_decode_as_the_gguf_package_decodes_them() -> None:
    block = BLOCK_TYPES["IQ1_M"]
    blocks = random_blocks(block, HALVES.size)
    for nibble in range(4):
        top = ((HALVES >> np.uint16(4 * nibble)) & np.uint16(15)).astype(np.uint8)
        column = 49 + 2 * nibble
        blocks[:, column] = (blocks[:, column] & 0x0F) | (top << 4)
    assert same_bits(block.super_scale(blocks)[:, 0], HALVES.view(np.float16).astype(np.float32))
    assert same_bits(block.dequantize(blocks), gguf_values(block, blocks))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_byte_decodes_as_the_gguf_package_decodes_it(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = random_blocks(block, 256)
    for scale in range(block.sub_blocks):
        blocks[:, scale] = np.roll(np.arange(256, dtype=np.uint8), scale)
    assert same_bits(block.dequantize(blocks), gguf_values(block, blocks))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_more_blocks_than_a_tile_decode_into_the_array_given(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = random_blocks(block, 600_000 // block.block_size)
    out = np.full((len(blocks), block.block_size), np.nan, np.float32)
    assert block.dequantize(blocks, out) is out
    assert same_bits(out, gguf_values(block, blocks))


def test_a_window_of_rows_decodes_without_a_copy_of_the_file() -> None:
    block = BLOCK_TYPES["Q5_K"]
    content = random_blocks(block, 40).tobytes()
    blocks = np.frombuffer(content, np.uint8).reshape(-1, block.type_bytes)
    whole = block.dequantize(blocks)
    assert same_bits(block.dequantize(blocks[7:19]), whole[7:19])
    assert same_bits(block.dequantize(blocks[::3]), whole[::3])
    assert block.dequantize(blocks[:0]).shape == (0, 256)


GOLDEN = {
    "Q4_0": ([-1.5, 1, 3.5, -2], 0, -10.5, 61.5),
    "Q4_1": ([7.75, 2.25, 4.75, 7.25], 6.25, 130.5, 130.5),
    "Q5_0": ([4.5, -1, 1.5, -4], 0.5, 7.5, 123.5),
    "Q5_1": ([9.75, 12.25, 14.75, 9.25], 2.75, 260.5, 260.5),
    "Q8_0": ([42.5, 61, -48.5, -30], -24, -88, 1086),
    "Q2_K": ([16.5, 0, 5.5, 11], 2.25, 1029.5, 1282),
    "Q3_K": ([40.5, -54, 13.5, -27], 21, 479, 4605),
    "Q4_K": ([157.75, -12.75, 64.75, 142.25], 24.25, 27220, 27514),
    "Q5_K": ([405.75, -12.75, 312.75, 142.25], 54.25, 58108, 58279.5),
    "Q6_K": ([-715.5, 848, 291.5, -265], -30, 2306, 133251),
    "TQ1_0": ([-0.5, -0.5, -0.5, 0], -0.5, -1, 87),
    "TQ2_0": ([1, -0.5, 0, 0.5], -0.5, 64.5, 129.5),
    "IQ2_XXS": ([-29.5625, 29.5625, 17.1875, -17.1875], -40.3125, 381.875, 5283.5),
    "IQ2_XS": ([-5.5, 17.1875, -5.5, -29.5625], -9.5, 745.25, 5054.875),
    "IQ2_S": ([-72.5625, 42.1875, -13.5, 13.5], 39.0625, -400.3125, 4672.0625),
    "IQ3_XXS": ([-6.5, 4.5, -3.5, 1.5], -7.5, -342, 10102),
    "IQ3_S": ([-40.5, 121.5, -175.5, -94.5], 112.5, 728, 14226),
    "IQ1_S": ([-1.3125, 0.1875, 1.6875, 1.6875], -2.1875, 10, 658.875),
    "IQ1_M": ([-0.4375, 3.0625, -0.4375, -0.4375], -0.9375, 20.5, 579),
    "IQ4_NL": ([-17.5, 12.5, 56.5, -24.5], 0.5, -128.5, 852.5),
    "IQ4_XS": ([32.5, -0.5, -34.5, 41.5], -8, -5502.5, 83331.5),
    "MXFP4": ([0, 6, -2, -12], 6, 25, 151),
    "NVFP4": ([-6, 2, -0.5, -4], 224, 2459.5, 15574),
}  # fmt: skip


def golden_block(block: BlockType) -> Blocks:
    """Byte i is (37*i + 11) mod 256; d is 0.5, m and dmin are 0.25, byte scales as the facts give them."""
    content = bytearray((37 * i + 11) % 256 for i in range(block.type_bytes))
    for field in block.fields:
        if field.name == "d" and field.nbytes == 2:
            struct.pack_into("<e", content, field.byte_offset, 0.5)
        elif field.name in ("m", "dmin"):
            struct.pack_into("<e", content, field.byte_offset, 0.25)
    if block.name == "MXFP4":
        content[0] = 128
    if block.name == "NVFP4":
        content[:4] = bytes.fromhex("3840307E")
    if block.name == "IQ1_M":
        half = int.from_bytes(struct.pack("<e", 0.5), "little")
        for word in range(4):
            content[49 + 2 * word] = (content[49 + 2 * word] & 15) | (
                (half >> (4 * word)) & 15
            ) << 4
    return np.frombuffer(bytes(content), np.uint8).reshape(1, -1)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_blocks_decode_to_the_golden_values(name: str) -> None:
    block = BLOCK_TYPES[name]
    first, last, total, magnitude = GOLDEN[name]
    values = block.dequantize(golden_block(block))[0].astype(np.float64)
    assert values[:4].tolist() == first
    assert (values[-1], values.sum(), np.abs(values).sum()) == (last, total, magnitude)


def test_eight_bit_blocks_multiply_int8_codes_by_their_scale() -> None:
    codes = [-128, -1, 0, 1, 127] + [3] * 27
    block = struct.pack("<ee32b", 0.25, 999.0, *codes)
    values = BLOCK_TYPES["Q8_1"].dequantize(np.frombuffer(block, np.uint8)[None])
    assert values[0].tolist() == [0.25 * code for code in codes]
    wide = (codes * 8)[:256]
    block = struct.pack("<f256b16h", -1.5, *wide, *range(16))
    values = BLOCK_TYPES["Q8_K"].dequantize(np.frombuffer(block, np.uint8)[None])
    assert values[0].tolist() == [-1.5 * code for code in wide]


def test_one_bit_blocks_hold_signs_lowest_bit_first() -> None:
    block = struct.pack("<e16B", 0.75, 0b0000_0101, *[0] * 14, 0x80)
    values = BLOCK_TYPES["Q1_0"].dequantize(np.frombuffer(block, np.uint8)[None])[0]
    assert np.flatnonzero(values == 0.75).tolist() == [0, 2, 127]
    assert np.flatnonzero(values == -0.75).size == 125


def test_two_bit_blocks_hold_codes_minus_one_lowest_bits_first() -> None:
    block = struct.pack("<e16B", 2.0, 0b11_10_01_00, *[0b01_01_01_01] * 15)
    values = BLOCK_TYPES["Q2_0"].dequantize(np.frombuffer(block, np.uint8)[None])[0]
    assert values.tolist() == [-2.0, 0.0, 2.0, 4.0] + [0.0] * 60


def test_removed_types_hold_sixteen_nibbles() -> None:
    block = struct.pack("<e8B", 0.5, 0x80, 0xF7, *[0x88] * 6)
    values = BLOCK_TYPES["Q4_2"].dequantize(np.frombuffer(block, np.uint8)[None])[0]
    assert values.tolist() == [-4.0, 0.0, -0.5, 3.5] + [0.0] * 12
    block = struct.pack("<ee8B", 0.5, 10.0, 0x80, 0xF7, *[0] * 6)
    values = BLOCK_TYPES["Q4_3"].dequantize(np.frombuffer(block, np.uint8)[None])[0]
    assert values.tolist() == [10.0, 14.0, 13.5, 17.5] + [10.0] * 12


def test_sizes_ids_and_fields_are_those_of_the_gguf_package() -> None:
    for block in BLOCK_TYPES.values():
        ends = [field.byte_offset + field.nbytes for field in block.fields]
        starts = [field.byte_offset for field in block.fields]
        assert (starts, ends[-1]) == ([0, *ends[:-1]], block.type_bytes)
        assert block.block_size % block.sub_block == 0
        if block.name in ("Q4_2", "Q4_3", "Q2_0"):  # not in the package
            continue
        kind = gguf.GGMLQuantizationType[block.name]
        assert kind.value == block.type_id
        if block.name != "Q8_1":  # gguf 0.19 lists 40 bytes, ggml has 36
            sizes = gguf.GGML_QUANT_SIZES[kind]
            assert sizes == (block.block_size, block.type_bytes), block.name


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_codes_scales_and_minimums_combine_to_the_values(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = golden_block(block)
    codes = block.codes(blocks)
    assert codes.shape == (1, block.block_size)
    assert codes.dtype in (np.uint8, np.int8)
    value = codes.astype(np.float32) - block.zero if block.lut is None else block.lut[codes]
    value = value * np.repeat(block.scales(blocks), block.sub_block, axis=1)
    minimums = block.minimums(blocks)
    assert (minimums is None) == (block.minimum_sign == "none")
    if minimums is not None:
        spread = np.repeat(minimums, block.sub_block, axis=1)
        value = value - spread if block.minimum_sign == "minus" else value + spread
    assert same_bits(value.astype(np.float32), block.dequantize(blocks))


def kept(blocks: Blocks, *spans: tuple[tuple[int, int, int], ...]) -> Blocks:
    """The blocks with every bit outside the spans cleared."""
    mask = np.zeros(blocks.shape[1], np.uint8)
    for byte, low_bit, width in (span for group in spans for span in group):
        mask[byte] |= ((1 << width) - 1) << low_bit
    return blocks & mask


def bits_of(spans: tuple[tuple[int, int, int], ...]) -> set[tuple[int, int]]:
    return {(byte, low + i) for byte, low, width in spans for i in range(width)}


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_the_bits_named_for_a_code_decide_it(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = random_blocks(block, 60)
    codes = block.codes(blocks)
    for element in range(block.block_size):
        spans = block.code_bits(element)
        assert np.array_equal(block.codes(kept(blocks, spans))[:, element], codes[:, element])
        if block.code_bits_width:
            assert sum(width for _, _, width in spans) == block.code_bits_width
            field = sum_of_fields(blocks, spans)
            assert np.array_equal(field, codes[:, element].view(np.uint8))


def sum_of_fields(blocks: Blocks, spans: tuple[tuple[int, int, int], ...]) -> NDArray[np.uint8]:
    value = np.zeros(len(blocks), np.uint8)
    shift = 0
    for byte, low_bit, width in spans:
        value |= ((blocks[:, byte] >> low_bit) & ((1 << width) - 1)) << shift
        shift += width
    return value


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_the_bits_named_for_scales_and_minimums_decide_them(name: str) -> None:
    block = BLOCK_TYPES[name]
    blocks = random_blocks(block, 60)
    scales, minimums = block.scales(blocks), block.minimums(blocks)
    scale_codes, minimum_codes = block.scale_codes(blocks), block.minimum_codes(blocks)
    for sub in range(block.sub_blocks):
        only = kept(blocks, block.scale_bits(sub), block.super_scale_bits())
        assert same_bits(block.scales(only)[:, sub], scales[:, sub])
        if scale_codes is not None:
            stored = sum_of_fields(blocks, block.scale_bits(sub))
            assert np.array_equal(stored, scale_codes[:, sub].view(np.uint8))
        if minimums is not None:
            only = kept(blocks, block.minimum_bits(sub), block.super_minimum_bits())
            again = block.minimums(only)
            assert again is not None
            assert same_bits(again[:, sub], minimums[:, sub])
        else:
            assert block.minimum_bits(sub) == ()
        if minimum_codes is not None:
            stored = sum_of_fields(blocks, block.minimum_bits(sub))
            assert np.array_equal(stored, minimum_codes[:, sub])


@pytest.mark.parametrize("name", [n for n in sorted(BLOCK_TYPES) if BLOCK_TYPES[n].code_bits_width])
def test_no_bit_belongs_to_two_codes(name: str) -> None:
    block = BLOCK_TYPES[name]
    seen: set[tuple[int, int]] = set()
    for element in range(block.block_size):
        bits = bits_of(block.code_bits(element))
        assert not seen & bits
        seen |= bits
    scales = {bit for sub in range(block.sub_blocks) for bit in bits_of(block.scale_bits(sub))}
    assert not seen & scales


def test_readers_of_fp4_blocks_differ_at_the_edges_only() -> None:
    for name, ocp in OTHER_READINGS.items():
        ggml = BLOCK_TYPES[name]
        blocks = random_blocks(ggml, 256)
        blocks[:, : ggml.sub_blocks] = np.arange(256, dtype=np.uint8)[:, None]
        ours, theirs = ggml.dequantize(blocks), ocp.dequantize(blocks)
        last = 255 if name == "MXFP4" else 127
        assert np.array_equal(ours[:last], theirs[:last])
        assert np.isnan(theirs[last]).all()
        assert not np.isnan(ours[last]).any()
        eight = ggml.codes(blocks) == 8
        assert np.signbit(theirs[:last][eight[:last]]).all()
        assert not np.signbit(ours[:last][eight[:last]]).any()


def test_blocks_of_another_width_are_refused() -> None:
    with pytest.raises(UndecodableError, match="Q4_0 blocks are 18 bytes each"):
        BLOCK_TYPES["Q4_0"].dequantize(np.zeros((3, 20), np.uint8))


def test_a_block_type_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        BLOCK_TYPES["Q4_0"].zero = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        BLOCK_TYPES["Q4_0"] = BLOCK_TYPES["Q4_1"]  # type: ignore[index]


class TypeTraits(ctypes.Structure):
    """`struct ggml_type_traits` of ggml.h."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("block_size_interleave", ctypes.c_int64),
        ("type_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.c_void_p),
    )


@pytest.fixture(scope="module")
def stock_ggml() -> Any:
    """The C library that pywhispercpp ships."""
    spec = importlib.util.find_spec("_pywhispercpp")
    if spec is None or spec.origin is None:
        pytest.skip("pywhispercpp, which ships a stock ggml, is not installed")
    found = sorted(Path(spec.origin).parent.glob("libggml-base.*"))
    if not found:
        pytest.skip("this pywhispercpp ships no ggml library of its own")
    library = ctypes.CDLL(str(found[0]))
    library.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
    return library


@pytest.mark.parametrize("name", [*GGUF_TYPES, "Q1_0"])
def test_stock_ggml_decodes_the_same_bits(stock_ggml: Any, name: str) -> None:
    block = BLOCK_TYPES[name]
    traits = stock_ggml.ggml_get_type_traits(block.type_id).contents
    if not traits.to_float:
        pytest.skip(f"this ggml does not know {name}")
    assert (traits.block_size, traits.type_bytes) == (block.block_size, block.type_bytes)
    blocks = np.concatenate([random_blocks(block, 2000), edge_blocks(block)])
    expected = np.empty((len(blocks), block.block_size), np.float32)
    traits.to_float(blocks.ctypes.data, expected.ctypes.data, expected.size)
    assert same_bits(block.dequantize(blocks), expected)


def test_stock_ggml_decodes_the_same_eight_bit_k_blocks(stock_ggml: Any) -> None:
    block = BLOCK_TYPES["Q8_K"]
    blocks = random_blocks(block, 500)
    expected = np.empty((500, 256), np.float32)
    stock_ggml.dequantize_row_q8_K(
        ctypes.c_void_p(blocks.ctypes.data),
        ctypes.c_void_p(expected.ctypes.data),
        ctypes.c_int64(expected.size),
    )
    assert same_bits(block.dequantize(blocks), expected)
