"""Small floats against torch's and ml_dtypes' own casts, kept in a fixture, and against numpy's half."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from quantscope.decode import small_floats
from safetensors import safe_open

FIXTURE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "small_floats.json").read_text()
)


def floats(text: str) -> NDArray[np.float32]:
    return np.frombuffer(bytes.fromhex(text), "<f4")


def same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    """Equal bit by bit, any NaN equal to any NaN."""
    both_nan = np.isnan(left) & np.isnan(right)
    return bool(np.all(both_nan | (left.view(np.uint32) == right.view(np.uint32))))


@pytest.mark.parametrize("name", sorted(FIXTURE["torch"]["decode"]))
def test_every_eight_bit_code_decodes_as_torch_decodes_it(name: str) -> None:
    assert same_bits(small_floats.float_table(name), floats(FIXTURE["torch"]["decode"][name]))


@pytest.mark.parametrize("name", sorted(FIXTURE["ml_dtypes"]["decode"]))
def test_every_four_and_six_bit_code_decodes_as_ml_dtypes_decodes_it(name: str) -> None:
    assert same_bits(small_floats.float_table(name), floats(FIXTURE["ml_dtypes"]["decode"][name]))


FORMATS = {
    "e4m3fn": small_floats.E4M3FN,
    "e4m3fnuz": small_floats.E4M3FNUZ,
    "e5m2": small_floats.E5M2,
    "e5m2fnuz": small_floats.E5M2FNUZ,
    "e2m1": small_floats.E2M1,
    "e2m3": small_floats.E2M3,
    "e3m2": small_floats.E3M2,
}


@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"])
def test_floats_round_to_the_codes_that_torch_gives(name: str) -> None:
    values = floats(FIXTURE["torch"]["inputs"])
    expected = np.frombuffer(bytes.fromhex(FIXTURE["torch"]["encode"][name]), np.uint8)
    # torch saturates E4M3FN and lets the others run into infinity or NaN.
    codes = small_floats.encode(values, FORMATS[name], saturate=name == "e4m3fn")
    finite = ~np.isnan(values)
    assert np.array_equal(codes[finite], expected[finite])
    table = small_floats.float_table(name)
    assert np.isnan(table[codes[~finite]]).all()


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1", "e2m3", "e3m2"])
def test_floats_round_to_the_codes_that_ml_dtypes_gives(name: str) -> None:
    case = FIXTURE["ml_dtypes"]["encode"][name]
    expected = np.frombuffer(bytes.fromhex(case["codes"]), np.uint8)
    codes = small_floats.encode(floats(case["inputs"]), FORMATS[name], saturate=False)
    assert np.array_equal(codes, expected)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_saturation_ends_at_the_largest_finite_value(name: str) -> None:
    table = small_floats.float_table(name)
    largest = np.nanmax(table[np.isfinite(table)])
    beyond = np.array([1e30, -1e30, np.inf, -np.inf], np.float32)
    assert table[small_floats.encode(beyond, FORMATS[name])].tolist() == [
        largest,
        -largest,
        largest,
        -largest,
    ]


def test_bf16_words_are_those_of_torch() -> None:
    values = floats(FIXTURE["torch"]["inputs"])
    expected = np.frombuffer(bytes.fromhex(FIXTURE["torch"]["encode"]["bf16"]), "<u2")
    words = small_floats.encode_bf16(values)
    finite = ~np.isnan(values)
    assert np.array_equal(words[finite], expected[finite])
    assert np.isnan(small_floats.bf16_to_f32(words)[~finite]).all()


def test_half_words_are_those_of_torch() -> None:
    values = floats(FIXTURE["torch"]["inputs"])
    expected = np.frombuffer(bytes.fromhex(FIXTURE["torch"]["encode"]["f16"]), "<u2")
    finite = ~np.isnan(values)
    assert np.array_equal(small_floats.encode_f16(values)[finite], expected[finite])


def test_bf16_words_widen_by_sixteen_zero_bits() -> None:
    words = np.array([0x3F80, 0xC000, 0x0001, 0x7F80, 0xFFC1], np.uint16)
    expected = [struct.unpack("<I", struct.pack("<HH", 0, w))[0] for w in words.tolist()]
    for source in (words, words.view(np.int16)):
        assert small_floats.bf16_to_f32(source).view(np.uint32).tolist() == expected
    out = np.empty(5, np.float32)
    assert small_floats.bf16_to_f32(words, out) is out
    assert out.view(np.uint32).tolist() == expected


def test_readers_of_a_scale_byte_differ_only_where_the_facts_say() -> None:
    ocp, ct, ggml, half = (
        small_floats.float_table(n) for n in ("e8m0", "e8m0_bf16", "e8m0_ggml", "e8m0_ggml_half")
    )
    assert np.isnan(ocp[255])
    assert (ct[255], ggml[255], half[255]) == (np.inf, np.inf, np.float32(2.0**127))
    assert np.array_equal(ocp[:255], ct[:255])
    assert np.array_equal(ocp[:255], ggml[:255])
    assert (ocp[0], half[0]) == (np.float32(2.0**-127), np.float32(2.0**-128))
    assert np.array_equal(half[1:255], ocp[1:255] / 2)
    unsigned, signed = small_floats.float_table("ue4m3_ggml"), small_floats.float_table("e4m3fn")
    assert (unsigned[0x7F], unsigned[0x00], unsigned[0xFF]) == (0, 0, 480)
    assert np.array_equal(unsigned[:0x7F], signed[:0x7F])
    assert np.array_equal(unsigned[0x80:0xFF], signed[:0x7F])


def test_code_eight_of_e2m1_is_negative_zero_except_in_ggml() -> None:
    assert np.signbit(small_floats.float_table("e2m1")[8])
    assert not np.signbit(small_floats.float_table("e2m1_ggml")[8])


def test_unsigned_e5m3_has_its_one_at_bias_fifteen() -> None:
    table = small_floats.float_table("ue5m3")
    assert (table[15 << 3], table[0], table[1]) == (1, 0, np.float32(2.0**-17))


def test_bnb_fp4_is_indexed_not_ordered() -> None:
    table = small_floats.float_table("bnb_fp4")
    expected = [0, 0.0052083333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25]
    assert table[:8].tolist() == [np.float32(value) for value in expected]
    assert np.array_equal(table[8:], -table[:8])


@pytest.mark.real
def test_nf4_levels_are_those_that_bitsandbytes_writes(real_set: Path) -> None:
    with safe_open(str(real_set / "bitsandbytes-nf4" / "model.safetensors"), "np") as planes:
        stored = planes.get_tensor("model.layers.0.mlp.down_proj.weight.quant_map")
    assert np.array_equal(small_floats.float_table("nf4"), stored)


def test_nf4_levels_are_quantiles_of_the_normal_distribution() -> None:
    from statistics import NormalDist

    quantile = NormalDist().inv_cdf
    ends = [quantile(0.9677083 + (0.5 - 0.9677083) * i / 8) for i in range(8)]
    starts = [-quantile(0.9677083 + (0.5 - 0.9677083) * i / 7) for i in range(7)]
    levels = np.sort(np.array([*ends, 0.0, *starts])) / max(ends)
    assert np.allclose(small_floats.float_table("nf4"), levels, atol=1e-6)


def test_levels_of_iq4_nl_are_those_of_the_gguf_package() -> None:
    from gguf import quants

    assert small_floats.float_table("iq4_nl").tolist() == list(quants.IQ4_NL.kvalues)


def test_tables_cannot_be_written() -> None:
    for table in small_floats.TABLES.values():
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 1


def test_an_unknown_type_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"no number type e9m9.*e4m3fn"):
        small_floats.float_table("e9m9")
