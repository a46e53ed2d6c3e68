from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from quantscope.evidence.schema import validate
from quantscope.evidence.strict_json import EvidenceInputError, decode

TENSOR: dict[str, Any] = {"reference": [1, 2.5], "candidate": [2, 4]}
LOGITS: dict[str, Any] = {
    "reference": [[0, 1], [1.5, 0]],
    "candidate": [[0, 1], [1, 0]],
    "targets": [0, 1],
    "mask": [True, False],
}
UINT4: dict[str, Any] = {
    "codes": [0, 1, 2],
    "packed_bytes": [16, 2],
    "logical_length": 3,
    "scale": 0.5,
    "zero_point": 1,
    "rounding": "ties_to_even",
    "layout": "low_first",
}
WHOLE: dict[str, Any] = {
    "schema_version": 1,
    "tensor": TENSOR,
    "logits": LOGITS,
    "uint4": UINT4,
    "external_evidence": {"kernel_pass": True, "n": 2**60 + 1},
}


def refusal(document: object) -> EvidenceInputError:
    with pytest.raises(EvidenceInputError) as caught:
        validate(decode(json.dumps(document).encode()))
    return caught.value


def changed(path: str, value: object) -> dict[str, Any]:
    """WHOLE with one value replaced; the path is dotted, numbers index arrays."""
    document = copy.deepcopy(WHOLE)
    *parents, last = path.split(".")
    target: Any = document
    for part in parents:
        target = target[int(part)] if part.isdigit() else target[part]
    target[int(last) if last.isdigit() else last] = value
    return document


def test_whole_file_is_read() -> None:
    file = validate(decode(json.dumps(WHOLE).encode()))
    assert file.tensor is not None
    np.testing.assert_array_equal(file.tensor.reference, [1.0, 2.5])
    assert file.logits is not None
    assert file.logits.reference.shape == (2, 2)
    assert file.logits.mask.tolist() == [True, False]
    assert file.uint4 is not None
    assert (file.uint4.scale, file.uint4.zero_point) == (0.5, 1)
    assert file.external_evidence == {"kernel_pass": True, "n": 2**60 + 1}


@pytest.mark.parametrize("group", ["tensor", "logits", "uint4", "external_evidence"])
def test_each_group_stands_alone_and_the_absent_ones_stay_absent(group: str) -> None:
    file = validate(decode(json.dumps({"schema_version": 1, group: WHOLE[group]}).encode()))
    present = {
        name
        for name in ("tensor", "logits", "uint4", "external_evidence")
        if getattr(file, name) is not None
    }
    assert present == {group}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], "$"),
        ("text", "$"),
        ({}, "$"),
        ({"schema_version": 1}, "$"),
        ({"tensor": TENSOR}, "$"),
        ({**WHOLE, "schema_version": 2}, "$.schema_version"),
        ({**WHOLE, "schema_version": 1.0}, "$.schema_version"),
        ({**WHOLE, "schema_version": True}, "$.schema_version"),
        ({**WHOLE, "schema_version": "1"}, "$.schema_version"),
        ({**WHOLE, "kernel_pass": True}, "$.kernel_pass"),
        ({**WHOLE, "tensor": None}, "$.tensor"),
        ({**WHOLE, "tensor": []}, "$.tensor"),
        ({**WHOLE, "external_evidence": "yes"}, "$.external_evidence"),
        ({**WHOLE, "external_evidence": [1]}, "$.external_evidence"),
    ],
)
def test_top_level_is_strict(document: object, path: str) -> None:
    assert refusal(document).path == path


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ("tensor.extra", 1, "$.tensor.extra"),
        ("tensor.reference", [], "$.tensor.reference"),
        ("tensor.reference", [[1, 2]], "$.tensor.reference[0]"),
        ("tensor.reference", 1, "$.tensor.reference"),
        ("tensor.reference.1", True, "$.tensor.reference[1]"),
        ("tensor.reference.1", "2", "$.tensor.reference[1]"),
        ("tensor.reference.1", None, "$.tensor.reference[1]"),
        ("tensor.reference.0", 2**53 + 1, "$.tensor.reference[0]"),
        ("tensor.reference.0", -(2**53) - 1, "$.tensor.reference[0]"),
        ("tensor.candidate", [1], "$.tensor.candidate"),
        ("logits.extra", 1, "$.logits.extra"),
        ("logits.reference", [], "$.logits.reference"),
        ("logits.reference", [[]], "$.logits.reference[0]"),
        ("logits.reference", [[1, 2], [3]], "$.logits.reference[1]"),
        ("logits.reference", [[1], [2]], "$.logits.reference[0]"),
        ("logits.reference", [1, 2], "$.logits.reference[0]"),
        ("logits.reference.1.0", 2**53 + 1, "$.logits.reference[1][0]"),
        ("logits.candidate", [[1, 2]], "$.logits.candidate"),
        ("logits.candidate", [[1, 2, 3], [1, 2, 3]], "$.logits.candidate"),
        ("logits.targets", [0], "$.logits.targets"),
        ("logits.targets.0", 2, "$.logits.targets[0]"),
        ("logits.targets.0", -1, "$.logits.targets[0]"),
        ("logits.targets.0", 1.0, "$.logits.targets[0]"),
        ("logits.targets.0", False, "$.logits.targets[0]"),
        ("logits.mask", [True], "$.logits.mask"),
        ("logits.mask", [False, False], "$.logits.mask"),
        ("logits.mask.0", 1, "$.logits.mask[0]"),
        ("logits.mask.1", None, "$.logits.mask[1]"),
        ("uint4.extra", 1, "$.uint4.extra"),
        ("uint4.codes", [], "$.uint4.codes"),
        ("uint4.codes.0", 16, "$.uint4.codes[0]"),
        ("uint4.codes.0", -1, "$.uint4.codes[0]"),
        ("uint4.codes.0", 0.0, "$.uint4.codes[0]"),
        ("uint4.codes.0", False, "$.uint4.codes[0]"),
        ("uint4.packed_bytes.1", 256, "$.uint4.packed_bytes[1]"),
        ("uint4.packed_bytes.1", -1, "$.uint4.packed_bytes[1]"),
        ("uint4.packed_bytes.1", 2.0, "$.uint4.packed_bytes[1]"),
        ("uint4.packed_bytes", [16], "$.uint4.packed_bytes"),
        ("uint4.packed_bytes", [16, 2, 0], "$.uint4.packed_bytes"),
        ("uint4.logical_length", 2, "$.uint4.logical_length"),
        ("uint4.logical_length", 4, "$.uint4.logical_length"),
        ("uint4.logical_length", 3.0, "$.uint4.logical_length"),
        ("uint4.scale", 0, "$.uint4.scale"),
        ("uint4.scale", -0.5, "$.uint4.scale"),
        ("uint4.scale", True, "$.uint4.scale"),
        ("uint4.scale", "0.5", "$.uint4.scale"),
        ("uint4.scale", 2**53 + 1, "$.uint4.scale"),
        ("uint4.zero_point", 1.0, "$.uint4.zero_point"),
        ("uint4.zero_point", True, "$.uint4.zero_point"),
        ("uint4.zero_point", 2**53 + 1, "$.uint4.zero_point"),
        ("uint4.rounding", "half_up", "$.uint4.rounding"),
        ("uint4.rounding", None, "$.uint4.rounding"),
        ("uint4.layout", "high_first", "$.uint4.layout"),
        ("uint4.layout", ["low_first"], "$.uint4.layout"),
    ],
)
def test_every_field_is_bounded_and_the_error_names_its_path(
    path: str, value: object, where: str
) -> None:
    assert refusal(changed(path, value)).path == where


@pytest.mark.parametrize(
    "field",
    [f"tensor.{key}" for key in TENSOR]
    + [f"logits.{key}" for key in LOGITS]
    + [f"uint4.{key}" for key in UINT4],
)
def test_every_field_of_a_group_is_required(field: str) -> None:
    document = copy.deepcopy(WHOLE)
    group, key = field.split(".")
    del document[group][key]
    error = refusal(document)
    assert error.path == f"$.{group}"
    assert key in error.message


def test_target_of_a_masked_row_is_bounded_as_well() -> None:
    assert WHOLE["logits"]["mask"][1] is False
    assert refusal(changed("logits.targets.1", 2)).path == "$.logits.targets[1]"


@pytest.mark.parametrize("value", [2**53, 2**53 + 2, -(2**53) - 2, 10**22, 2**1023])
def test_integers_that_binary64_holds_exactly_are_fine(value: int) -> None:
    file = validate(decode(json.dumps(changed("tensor.reference.0", value)).encode()))
    assert file.tensor is not None
    assert int(file.tensor.reference[0]) == value


def test_float_literal_is_rounded_as_any_float_is() -> None:
    data = b'{"schema_version":1,"tensor":{"reference":[9007199254740993.0],"candidate":[0.1]}}'
    file = validate(decode(data))
    assert file.tensor is not None
    assert file.tensor.reference[0] == 2.0**53
