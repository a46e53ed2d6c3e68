from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from quantscope.evidence.metrics import NumericError
from quantscope.evidence.packing import check_packing, decode_codes, unpack_low_first


def u8(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)


def test_codes_0_to_15_lie_in_the_fixed_bytes() -> None:
    packed = np.frombuffer(bytes.fromhex("10 32 54 76 98 ba dc fe"), dtype=np.uint8)
    assert unpack_low_first(packed).tolist() == list(range(16))
    assert check_packing(u8(*range(16)), packed).packing_parity


def test_odd_tail_holds_a_zero_that_is_not_counted() -> None:
    result = check_packing(u8(0, 1, 2), u8(0x10, 0x02))
    assert result.packing_parity
    assert result.endpoint_fraction == 1 / 3


def test_nonzero_tail_fails() -> None:
    result = check_packing(u8(0, 1, 2), u8(0x10, 0x12))
    assert not result.packing_parity
    assert result.first_mismatch == (
        "high nibble of packed_bytes[1] holds 1, the unused tail must be 0"
    )


def test_changed_byte_fails_and_names_the_nibble() -> None:
    result = check_packing(u8(0, 1, 2), u8(1, 2))
    assert not result.packing_parity
    assert result.first_mismatch == "low nibble of packed_bytes[0] holds 1, code[0] is 0"


def test_swapped_nibbles_fail() -> None:
    assert not check_packing(u8(1, 2), u8(0x12)).packing_parity
    assert check_packing(u8(1, 2), u8(0x21)).packing_parity


def test_consistent_change_of_codes_and_bytes_passes_parity() -> None:
    assert check_packing(u8(3, 1, 2), u8(0x13, 0x02)).packing_parity


def test_endpoints_are_both_ends_of_the_code_range() -> None:
    assert check_packing(u8(0, 15, 7, 8), u8(0xF0, 0x87)).endpoint_fraction == 0.5


def test_known_values_decode() -> None:
    assert decode_codes(u8(0, 1, 2), scale=0.5, zero_point=1).tolist() == [-0.5, 0.0, 0.5]


def test_each_value_is_rounded_once() -> None:
    scale, zero = 0.1, 2**53 + 2
    decoded = decode_codes(u8(0, 7, 15), scale=scale, zero_point=zero)
    exact = [float(Fraction(code - zero) * Fraction(scale)) for code in (0, 7, 15)]
    assert decoded.tolist() == exact


@pytest.mark.parametrize(("scale", "zero"), [(1.7e308, 0), (1e300, -(2**60))])
def test_value_that_overflows_is_a_numeric_error(scale: float, zero: int) -> None:
    with pytest.raises(NumericError, match="overflows") as caught:
        decode_codes(u8(0, 2), scale=scale, zero_point=zero)
    assert caught.value.field == "uint4.decoded"


def test_smallest_scale_still_gives_nonzero_values() -> None:
    assert decode_codes(u8(1, 3), scale=5e-324, zero_point=0).tolist() == [5e-324, 1.5e-323]


def test_zero_point_outside_the_code_range_is_allowed() -> None:
    assert decode_codes(u8(0), scale=1.0, zero_point=-3).tolist() == [3.0]
