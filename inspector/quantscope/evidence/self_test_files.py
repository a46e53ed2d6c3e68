"""Evidence files of the self-test: small ones with known answers, and each spoiled in one place."""

from __future__ import annotations

import json
import math
from typing import Any

TENSOR = '"tensor":{"reference":[1,2],"candidate":[2,4]}'
LOGITS = (
    '"logits":{"reference":[[0,0,-1000]],"candidate":[[0,-1000,0]],"targets":[0],"mask":[true]}'
)
UINT4 = (
    '"uint4":{"codes":[0,1,2],"packed_bytes":[16,2],"logical_length":3,"scale":0.5,'
    '"zero_point":1,"rounding":"ties_to_even","layout":"low_first"}'
)

REFUSED = 2
FAILED = 1

_LN2, _LN4 = math.log(2.0), math.log(4.0)


Fault = tuple[str, bytes, int, str]
"""Name, file, the exit code and a part of the message which show that this fault was seen."""


def evidence_file(*groups: str) -> bytes:
    """The groups' texts as one file."""
    return ('{"schema_version":1,' + ",".join(groups) + "}").encode()


def perplexity_file() -> bytes:
    """One target at ln 2 and three at ln 4, and a masked row that must not count."""
    half = [0.0, 0.0, -1000.0, -1000.0, -1000.0]
    quarter = [0.0, 0.0, 0.0, 0.0, -1000.0]
    rows = [half, quarter, quarter, quarter, [9.0, 0.0, 0.0, 0.0, 0.0]]
    group = {
        "reference": rows,
        "candidate": rows,
        "targets": [0, 1, 2, 3, 4],
        "mask": [True, True, True, True, False],
    }
    return evidence_file('"logits":' + json.dumps(group))


def known_answers() -> list[tuple[str, bytes, str, dict[str, Any]]]:
    """Name, file, group, and the values that its result must have; dots go into objects."""
    zero_reference = '"tensor":{"reference":[0,0],"candidate":[1,0]}'
    return [
        (
            "tensor [1,2] against [2,4]",
            evidence_file(TENSOR),
            "tensor",
            {"mse": 2.5, "relative_squared_l2": 1.0, "cosine": 1.0, "max_abs_error": 2.0},
        ),
        (
            "an all-zero reference leaves ratios undefined",
            evidence_file(zero_reference),
            "tensor",
            {"mse": 0.5, "relative_squared_l2": None, "cosine": None},
        ),
        (
            "KL of disjoint tails is 500",
            evidence_file(LOGITS),
            "logits",
            {"kl_mean": 500.0, "top1_agreement": 1.0, "scored_rows": 1},
        ),
        (
            "perplexity from the total and the count",
            perplexity_file(),
            "logits",
            {
                "reference.ppl": 3.3635856610148585,
                "reference.nll_sum": _LN2 + 3 * _LN4,
                "kl_mean": 0.0,
                "scored_rows": 4,
            },
        ),
        (
            "codes [0,1,2] in the bytes 10 02",
            evidence_file(UINT4),
            "uint4",
            {"packing_parity": True, "decoded": [-0.5, 0.0, 0.5], "endpoint_fraction": 1 / 3},
        ),
    ]


def spoiled_files() -> list[Fault]:
    """Every fault of an input that has to be caught."""
    good = evidence_file(TENSOR)
    deep = '"external_evidence":{"a":' + "[" * 200 + "]" * 200 + "}"
    claim = '"external_evidence":{"a":"?"}'
    twice = '"external_evidence":{"a":[{"b":1,"b":1}]}'
    return [
        ("byte order mark", b"\xef\xbb\xbf" + good, REFUSED, "byte order mark"),
        ("invalid UTF-8", evidence_file(claim).replace(b"?", b"\x80"), REFUSED, "UTF-8"),
        ("duplicate key", evidence_file(TENSOR, TENSOR), REFUSED, "more than once"),
        ("duplicate key deep inside", evidence_file(twice), REFUSED, "more than once"),
        ("deep nesting", evidence_file(deep), REFUSED, "deep"),
        (
            "version 1.0",
            good.replace(b":1,", b":1.0,", 1),
            REFUSED,
            "$.schema_version: must be a JSON integer",
        ),
        (
            "version true",
            good.replace(b":1,", b":true,", 1),
            REFUSED,
            "$.schema_version: must be a JSON integer",
        ),
        ("no group", b'{"schema_version":1}', REFUSED, "no group"),
        *_spoiled_tensors(),
        *_spoiled_logits(),
        *_spoiled_uint4(),
    ]


def _spoiled_tensors() -> list[Fault]:
    tiny = '"tensor":{"reference":[0],"candidate":[1e-200]}'
    wide = '"tensor":{"reference":[-1e308],"candidate":[1e308]}'
    return [
        ("NaN literal", _change(TENSOR, "2,4", "NaN,4"), REFUSED, "literal NaN"),
        ("Infinity literal", _change(TENSOR, "2,4", "-Infinity,4"), REFUSED, "literal -Infinity"),
        ("number that overflows", _change(TENSOR, "2,4", "1e400,4"), REFUSED, "overflows binary64"),
        ("number that underflows", _change(TENSOR, "2,4", "1e-400,4"), REFUSED, "turns into zero"),
        (
            "integer that binary64 lacks",
            _change(TENSOR, "2,4", "9007199254740993,4"),
            REFUSED,
            "no exact binary64",
        ),
        (
            "true as a number",
            _change(TENSOR, "2,4", "true,4"),
            REFUSED,
            "must be a number, not true",
        ),
        ("empty array", _change(TENSOR, "[2,4]", "[]"), REFUSED, "empty array"),
        (
            "unequal lengths",
            _change(TENSOR, "2,4", "2,4,6"),
            REFUSED,
            "$.tensor.candidate: 3 values",
        ),
        (
            "unknown field",
            _change(TENSOR, '"cand', '"kernel_pass":true,"cand'),
            REFUSED,
            "no such field",
        ),
        ("difference that overflows", evidence_file(wide), FAILED, "tensor.max_abs_error"),
        (
            "squared error that underflows",
            evidence_file(tiny),
            FAILED,
            "squared error becomes zero",
        ),
    ]


def _spoiled_logits() -> list[Fault]:
    ragged = "[[0,0,-1000],[0,0]]"
    return [
        (
            "ragged matrix",
            _change(LOGITS, "[[0,0,-1000]]", ragged),
            REFUSED,
            "2 values where row 0 has 3",
        ),
        ("target outside the vocabulary", _change(LOGITS, "[0],", "[3],"), REFUSED, "from 0 to 2"),
        ("nothing scored", _change(LOGITS, "[true]", "[false]"), REFUSED, "no row is scored"),
        ("mask of integers", _change(LOGITS, "[true]", "[1]"), REFUSED, "must be true or false"),
        (
            "perplexity that overflows",
            _change(LOGITS, "[0],", "[2],"),
            FAILED,
            "logits.reference.ppl",
        ),
    ]


def _spoiled_uint4() -> list[Fault]:
    huge = _change(UINT4, "0.5", "1e308").replace(b'point":1', b'point":-9')
    return [
        ("code 16", _change(UINT4, "[0,1,2]", "[0,1,16]"), REFUSED, "from 0 to 15, not 16"),
        ("code 1.0", _change(UINT4, "[0,1,2]", "[0,1.0,2]"), REFUSED, "from 0 to 15, not 1.0"),
        ("byte 256", _change(UINT4, "[16,2]", "[256,2]"), REFUSED, "from 0 to 255"),
        ("missing byte", _change(UINT4, "[16,2]", "[16]"), REFUSED, "1 bytes where"),
        ("scale 0", _change(UINT4, "0.5", "0"), REFUSED, "not positive"),
        (
            "zero point 1.0",
            _change(UINT4, 'point":1', 'point":1.0'),
            REFUSED,
            "$.uint4.zero_point: must be a JSON integer",
        ),
        (
            "wrong byte",
            _change(UINT4, "[16,2]", "[1,2]"),
            FAILED,
            "low nibble of packed_bytes[0] holds 1",
        ),
        (
            "swapped nibbles",
            _change(UINT4, "[16,2]", "[1,32]"),
            FAILED,
            "low nibble of packed_bytes[0] holds 1",
        ),
        (
            "non-zero unused nibble",
            _change(UINT4, "[16,2]", "[16,18]"),
            FAILED,
            "unused tail must be 0",
        ),
        ("decoded value that overflows", huge, FAILED, "uint4.decoded"),
    ]


def _change(text: str, old: str, new: str) -> bytes:
    """One change to one group; a change that does not apply would test nothing."""
    if old not in text:
        raise ValueError(f"{old} is not in the text to spoil")
    return evidence_file(text.replace(old, new, 1))
