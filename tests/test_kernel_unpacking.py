"""What kernels are fed from: fixed vectors, and the producers' own unpackers; nothing of the inspector's decoder."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
from quantscope_plugins.kernels import fixtures, gguf_blocks, layouts, nvfp4_planes, unpacking

KERNELS = Path(unpacking.__file__).parent


def test_codes_0_to_15_lie_low_first_in_the_fixed_bytes() -> None:
    packed = np.frombuffer(bytes.fromhex("1032547698badcfe"), np.uint8)[None, :]
    assert unpacking.nibbles(packed, high_first=False).tolist() == [list(range(16))]
    words = packed.view(np.int32)
    assert unpacking.dense_codes(words, 4, 16, axis=1).tolist() == [list(range(16))]


def test_high_first_bytes() -> None:
    packed = np.frombuffer(bytes.fromhex("0123456789abcdef"), np.uint8)[None, :]
    assert unpacking.nibbles(packed, high_first=True).tolist() == [list(range(16))]


def test_awq_words_hold_channels_0_2_4_6_1_3_5_7() -> None:
    """Nibble i of 0x76543210 is i, so channel order[i] has code i."""
    word = np.array([[0x76543210]], np.uint32).view(np.int32)
    assert unpacking.awq_codes(word).tolist() == [[0, 4, 1, 5, 2, 6, 3, 7]]


def test_three_bit_codes_straddle_words() -> None:
    """32 codes 0..7 in turn, low bits first, are three words; the bits were written out by hand."""
    bits = "".join(f"{code % 8:03b}"[::-1] for code in range(32))
    words = np.array([[int(bits[i * 32 : (i + 1) * 32][::-1], 2) for i in range(3)]], np.uint32)
    codes = unpacking.dense_codes(words.view(np.int32), 3, 32, axis=1)
    assert codes.tolist() == [[code % 8 for code in range(32)]]


@pytest.mark.parametrize("width", [2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_both_axes_and_every_width(width: int, axis: int) -> None:
    made = np.random.default_rng(width)
    codes = made.integers(0, 1 << width, (4, 32))
    fields = ((codes[..., None] >> np.arange(width)) & 1).reshape(4, -1).astype(np.uint8)
    words = np.packbits(fields, axis=1, bitorder="little").view(np.int32)
    if axis == 0:
        assert (unpacking.dense_codes(words.T, width, 32, axis=0) == codes.T).all()
    else:
        assert (unpacking.dense_codes(words, width, 32, axis=1) == codes).all()


@pytest.mark.torch
@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_dense_codes_are_those_of_compressed_tensors(width: int) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    torch = pytest.importorskip("torch")
    made = np.random.default_rng(width + 50)
    codes = made.integers(-(1 << width - 1), 1 << width - 1, (8, 64)).astype(np.int8)
    packed = helpers.pack_to_int32(torch.from_numpy(codes), width).numpy()
    ours = unpacking.dense_codes(packed, width, 64, axis=1) - (1 << width - 1)
    assert (ours == codes).all()


@pytest.mark.torch
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_levels_are_those_of_bitsandbytes(quant_type: str) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    from quantscope_plugins.kernels import bnb_planes

    theirs = functional.get_4bit_type(quant_type, device="cpu").numpy()
    if quant_type == "nf4":
        assert (bnb_planes.levels(quant_type) == theirs).all()
    else:
        assert np.allclose(bnb_planes.levels(quant_type), theirs, rtol=1e-6)


@pytest.mark.parametrize(
    "fixture",
    [
        fixtures.gptq("minus_one"),
        fixtures.gptq("as_is"),
        fixtures.awq_gemm(),
        fixtures.row_packed("ct_pack"),
        fixtures.row_packed("awq_gemv"),
        fixtures.row_packed("mlx_affine"),
        fixtures.symmetric("ct_pack"),
    ],
    ids=lambda fixture: fixture.name,
)
def test_fixtures_unpack_to_the_weights_of_their_formula(fixture: object) -> None:
    from quantscope.parity.protocol import Fixture

    assert isinstance(fixture, Fixture)
    assert (layouts.affine_of(fixture.raw).weights() == fixture.weights).all()


@pytest.mark.parametrize(
    "fixture",
    [gguf_blocks.q4_0_fixture(), gguf_blocks.q8_0_fixture(), gguf_blocks.q4_k_fixture()],
    ids=lambda fixture: fixture.name,
)
def test_gguf_fixtures_are_what_gguf_py_reads(fixture: object) -> None:
    from quantscope.parity.protocol import Fixture

    assert isinstance(fixture, Fixture)
    assert (gguf_blocks.dequantized(fixture.raw) == fixture.weights).all()


def test_e4m3_fixture_holds_the_values_of_ml_dtypes_or_torch() -> None:
    torch = pytest.importorskip("torch")
    fixture = fixtures.bytes_e4m3()
    codes = torch.from_numpy(fixture.raw.arrays["weight"].copy()).view(torch.float8_e4m3fn)
    assert (codes.double().numpy() * fixture.raw.arrays["scale"] == fixture.weights).all()


def test_scale_tiles_are_those_of_the_documented_place() -> None:
    scales = np.arange(256 * 8).reshape(256, 8).astype(np.uint8)
    tiles = nvfp4_planes.tiled(scales).ravel()
    for row, group in ((0, 0), (31, 3), (32, 0), (127, 7), (128, 1), (255, 7)):
        tile = row // 128 * 2 + group // 4
        inside = row % 32 * 16 + row % 128 // 32 * 4 + group % 4
        assert tiles[tile * 512 + inside] == scales[row, group]


def test_kernel_plugins_use_nothing_that_the_decoder_unpacks_with() -> None:
    """The reference and the repackers share no unpacker: a fault in one must show as a difference."""
    forbidden = ("quantscope.decode.bits", "quantscope.decode.affine", "quantscope.decode.window")
    allowed = {"quantscope.decode.parts", "quantscope.decode.plane_reader"}
    for file in KERNELS.glob("*.py"):
        tree = ast.parse(file.read_text())
        modules = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
        }
        decode = {module for module in modules if module.startswith("quantscope.decode")}
        assert not decode & set(forbidden), file.name
        assert decode <= allowed, (file.name, decode - allowed)
        assert not any(module.startswith("quantscope_plugins.families") for module in modules), (
            file.name
        )


def test_big_endian_machines_are_thought_of() -> None:
    assert sys.byteorder in ("little", "big")
    words = np.array([[0x76543210]], dtype=">u4")
    assert unpacking.dense_codes(words.astype("=u4"), 4, 8, axis=1).tolist() == [list(range(8))]
