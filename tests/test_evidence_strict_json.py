from __future__ import annotations

import json

import pytest
from quantscope.evidence.strict_json import (
    MAX_DEPTH,
    EvidenceInputError,
    child_path,
    decode,
    dump_canonical,
    visible,
)


def refused(data: bytes) -> EvidenceInputError:
    with pytest.raises(EvidenceInputError) as caught:
        decode(data)
    assert caught.value.exit_code == 2
    return caught.value


def test_plain_document_decodes_as_the_standard_library_does() -> None:
    text = '{"a":[1,-2.5,1e3,true,false,null,"\\u00e9\\ud83d\\ude00"],"b":{"c":{}}}'
    assert decode(text.encode()) == json.loads(text)


def test_one_and_one_point_zero_and_true_stay_three_things() -> None:
    values = decode(b"[1, 1.0, true, 1e0]")
    assert isinstance(values, list)
    assert [type(value) for value in values] == [int, float, bool, float]


def test_byte_order_mark_is_refused() -> None:
    assert "byte order mark" in refused(b"\xef\xbb\xbf{}").message


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":"\x80"}',
        b'{"a":"\xc0\xaf"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xf5\x80\x80\x80"}',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-32-le"),
        b'{"a":"\xc3',
    ],
)
def test_invalid_utf8_is_refused(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"a":1,"a":1}', "$.a"),
        (b'{"a":1,"\\u0061":2}', "$.a"),
        (b'{"x":[0,{"y":{"k":1,"z":2,"k":3}}]}', "$.x[1].y.k"),
        (b'{"":1,"":2}', '$[""]'),
    ],
)
def test_duplicate_key_is_refused_with_its_path(data: bytes, path: str) -> None:
    error = refused(data)
    assert error.path == path
    assert "more than once" in error.message


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_nonfinite_literal_is_refused_with_its_path(literal: str) -> None:
    error = refused(f'{{"a":[0,{literal}]}}'.encode())
    assert error.path == "$.a[1]"
    assert literal in error.message


def test_nonfinite_literals_become_text_where_asked() -> None:
    assert decode(b"[NaN,-Infinity]", nonfinite_as_text=True) == ["NaN", "-Infinity"]


@pytest.mark.parametrize(
    "literal",
    ["1e400", "-1e400", "1.8e308", "1" + "0" * 400, "-" + "9" * 5000, "1e999999999999"],
    ids=["1e400", "-1e400", "1.8e308", "401 digits", "5000 digits", "huge exponent"],
)
def test_number_beyond_binary64_is_refused(literal: str) -> None:
    error = refused(f'{{"a":{{"b":{literal}}}}}'.encode())
    assert error.path == "$.a.b"
    assert "overflows" in error.message


@pytest.mark.parametrize("literal", ["1e-400", "-1e-400", "0.000001e-320", "1E-999999999999"])
def test_nonzero_literal_that_becomes_zero_is_refused(literal: str) -> None:
    assert refused(f"[{literal}]".encode()).path == "$[0]"


@pytest.mark.parametrize("literal", ["0e-400", "0.000e5", "-0.0", "0E-999999", "5e-324", "1e308"])
def test_zero_literals_and_the_ends_of_binary64_are_fine(literal: str) -> None:
    assert decode(f"[{literal}]".encode()) == [float(literal)]


def test_integers_keep_every_digit() -> None:
    big = 10**308 + 1
    assert decode(f"[{2**53 + 1},{big}]".encode()) == [2**53 + 1, big]


def test_nesting_is_bounded_with_brackets_in_strings_left_out() -> None:
    within = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    decode(within)
    assert "deep" in refused(b"[" + within + b"]").message
    decode(b'["' + b"[{" * 1000 + b'\\"[[[' + b'"]')


def test_hundred_thousand_open_brackets_are_refused_without_recursion() -> None:
    refused(b'{"a":' + b"[" * 100_000)
    refused(b'{"a":' * 100_000)


@pytest.mark.parametrize("data", [b'{"a":"\\ud800"}', b'{"a":"\\udc00x"}', b'{"\\ud800":1}'])
def test_half_a_surrogate_pair_is_refused(data: bytes) -> None:
    assert "surrogate" in refused(data).message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"{'a':1}",
        b'{"a":1,}',
        b"[1,]",
        b"[01]",
        b"[+1]",
        b"[.5]",
        b"[1.]",
        b"[0x10]",
        b'{"a":1}{}',
        b'"unterminated',
        b'{"a":"tab\there"}',
        b"[1] // comment",
        b"\x00",
        "[１]".encode(),
        b"nan",
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    assert "JSON" in refused(data).message


def test_unterminated_string_of_many_quotes_is_refused_in_linear_time() -> None:
    refused(b'["' + b'\\"' * 2_000_000)


def test_odd_keys_are_quoted_escaped_and_cut_in_paths() -> None:
    assert child_path("$", "a_b1") == "$.a_b1"
    assert child_path("$.a", 3) == "$.a[3]"
    assert child_path("$", "a.b") == '$["a.b"]'
    hostile = refused(b'{"\\u001b[31m\\u202e\\u009b":1,"\\u001b[31m\\u202e\\u009b":1}').message
    assert hostile.isascii()
    assert hostile.isprintable()
    assert len(visible("k" * 10_000)) < 100


def test_output_is_sorted_utf8_with_a_final_newline() -> None:
    data = dump_canonical({"b": 1, "a": "é"})
    assert data == '{\n  "a": "é",\n  "b": 1\n}\n'.encode()


def test_output_escapes_what_a_terminal_acts_on() -> None:
    text = "\x1b[2J\x7f\x9b31m\u202e\u2066\ufeff\U000e0041\u2028"
    data = dump_canonical({"a": text})
    assert json.loads(data) == {"a": text}
    assert all(char.isprintable() or char == "\n" for char in data.decode())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [[-float("inf")]]])
def test_output_never_holds_nan_or_infinity(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_canonical({"a": value})
