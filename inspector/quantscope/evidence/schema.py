"""Schema version 1 of the strict evidence file: every field, every bound, nothing else."""

from __future__ import annotations

import math
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from quantscope.evidence.packing import QMAX, QMIN, packed_length
from quantscope.evidence.strict_json import EvidenceInputError, Json, child_path, visible

SCHEMA_VERSION = 1
GROUPS = ("tensor", "logits", "uint4")
"""The three groups that are computed; they are independent statements."""

ROUNDING = "ties_to_even"
LAYOUT = "low_first"

Float64 = npt.NDArray[np.float64]
Object: TypeAlias = dict[str, Json]

_LAST_SAFE_INTEGER = 2**53
_TENSOR_FIELDS = ("reference", "candidate")
_LOGITS_FIELDS = ("reference", "candidate", "targets", "mask")
_UINT4_FIELDS = (
    "codes",
    "packed_bytes",
    "logical_length",
    "scale",
    "zero_point",
    "rounding",
    "layout",
)


class TensorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Two vectors of one length, [n]."""

    reference: Float64
    candidate: Float64


class LogitsGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Aligned rows: [N, V] twice, [N] targets, [N] mask with at least one true."""

    reference: Float64
    candidate: Float64
    targets: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]


class Uint4Group(msgspec.Struct, frozen=True, kw_only=True):
    """[n] codes 0..15 and the [ceil(n / 2)] bytes that should hold them."""

    codes: npt.NDArray[np.uint8]
    packed_bytes: npt.NDArray[np.uint8]
    logical_length: int
    scale: float
    zero_point: int


class EvidenceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A valid file; a group that it does not hold is None."""

    tensor: TensorGroup | None = None
    logits: LogitsGroup | None = None
    uint4: Uint4Group | None = None
    external_evidence: Object | None = None


def validate(document: Json) -> EvidenceFile:
    """Turns a decoded document into its groups.

    Raises:
        EvidenceInputError: anything that the schema does not allow, with its JSON path.
    """
    top = _object(document, "$")
    _fields(top, "$", required=("schema_version",), optional=(*GROUPS, "external_evidence"))
    version = _integer(top["schema_version"], "$.schema_version")
    if version != SCHEMA_VERSION:
        raise EvidenceInputError(
            f"schema version {SCHEMA_VERSION} is the only one", path="$.schema_version"
        )
    if len(top) == 1:
        raise EvidenceInputError("no group is given, there is nothing to compute")
    return EvidenceFile(
        tensor=_tensor(top["tensor"]) if "tensor" in top else None,
        logits=_logits(top["logits"]) if "logits" in top else None,
        uint4=_uint4(top["uint4"]) if "uint4" in top else None,
        external_evidence=_object(top["external_evidence"], "$.external_evidence")
        if "external_evidence" in top
        else None,
    )


def _tensor(value: Json) -> TensorGroup:
    path = "$.tensor"
    group = _object(value, path)
    _fields(group, path, required=_TENSOR_FIELDS)
    reference = _numbers(group["reference"], f"{path}.reference")
    candidate = _numbers(group["candidate"], f"{path}.candidate")
    if reference.size != candidate.size:
        raise EvidenceInputError(
            f"{candidate.size} values against {reference.size} of the reference",
            path=f"{path}.candidate",
        )
    return TensorGroup(reference=reference, candidate=candidate)


def _logits(value: Json) -> LogitsGroup:
    path = "$.logits"
    group = _object(value, path)
    _fields(group, path, required=_LOGITS_FIELDS)
    reference = _matrix(group["reference"], f"{path}.reference")
    candidate = _matrix(group["candidate"], f"{path}.candidate")
    if reference.shape != candidate.shape:
        raise EvidenceInputError(
            f"shape {list(candidate.shape)} against {list(reference.shape)} of the reference",
            path=f"{path}.candidate",
        )
    rows, vocabulary_size = reference.shape
    targets = _integers(group["targets"], f"{path}.targets", low=0, high=vocabulary_size - 1)
    if len(targets) != rows:
        raise EvidenceInputError(f"{len(targets)} targets for {rows} rows", path=f"{path}.targets")
    return LogitsGroup(
        reference=reference,
        candidate=candidate,
        targets=np.array(targets, dtype=np.int64),
        mask=_mask(group["mask"], f"{path}.mask", rows),
    )


def _uint4(value: Json) -> Uint4Group:
    path = "$.uint4"
    group = _object(value, path)
    _fields(group, path, required=_UINT4_FIELDS)
    codes = _integers(group["codes"], f"{path}.codes", low=QMIN, high=QMAX)
    packed = _integers(group["packed_bytes"], f"{path}.packed_bytes", low=0, high=255)
    length = _integer(group["logical_length"], f"{path}.logical_length")
    if length != len(codes):
        raise EvidenceInputError(
            f"{length} does not count the {len(codes)} codes", path=f"{path}.logical_length"
        )
    if len(packed) != packed_length(length):
        raise EvidenceInputError(
            f"{len(packed)} bytes where {length} codes need {packed_length(length)}",
            path=f"{path}.packed_bytes",
        )
    scale = _number(group["scale"], f"{path}.scale")
    if not 0 < scale < math.inf:
        raise EvidenceInputError("the scale is not positive", path=f"{path}.scale")
    zero_point = _integer(group["zero_point"], f"{path}.zero_point")
    _check_lossless(zero_point, f"{path}.zero_point")
    for key, word in (("rounding", ROUNDING), ("layout", LAYOUT)):
        if group[key] != word:
            raise EvidenceInputError(
                f'only "{word}" is defined, not {_shown(group[key])}', path=f"{path}.{key}"
            )
    return Uint4Group(
        codes=np.array(codes, dtype=np.uint8),
        packed_bytes=np.array(packed, dtype=np.uint8),
        logical_length=length,
        scale=scale,
        zero_point=zero_point,
    )


def _fields(
    group: Object, path: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    for key in group:
        if key not in required and key not in optional:
            raise EvidenceInputError("the schema has no such field", path=child_path(path, key))
    for key in required:
        if key not in group:
            raise EvidenceInputError(f'the field "{key}" is missing', path=path)


def _object(value: Json, path: str) -> Object:
    if not isinstance(value, dict):
        raise EvidenceInputError(f"must be an object, not {_shown(value)}", path=path)
    return value


def _array(value: Json, path: str) -> list[Json]:
    if not isinstance(value, list):
        raise EvidenceInputError(f"must be an array, not {_shown(value)}", path=path)
    if not value:
        raise EvidenceInputError("is an empty array", path=path)
    return value


def _integer(value: Json, path: str) -> int:
    if type(value) is not int:
        raise EvidenceInputError(f"must be a JSON integer, not {_shown(value)}", path=path)
    return value


def _number(value: Json, path: str) -> float:
    if type(value) is int:
        _check_lossless(value, path)
        return float(value)
    if type(value) is not float:
        raise EvidenceInputError(f"must be a number, not {_shown(value)}", path=path)
    return value


def _check_lossless(value: int, path: str) -> None:
    if abs(value) > _LAST_SAFE_INTEGER and int(float(value)) != value:
        raise EvidenceInputError("this integer has no exact binary64 value", path=path)


def _numbers(value: Json, path: str) -> Float64:
    """[n] finite numbers; integers among them convert without loss."""
    items = _array(value, path)
    kinds = set(map(type, items))
    if not kinds <= {float, int}:
        at = next(i for i, item in enumerate(items) if type(item) not in (float, int))
        raise EvidenceInputError(
            f"must be a number, not {_shown(items[at])}", path=child_path(path, at)
        )
    if int in kinds:
        for at, item in enumerate(items):
            if type(item) is int:
                _check_lossless(item, child_path(path, at))
    return np.array(items, dtype=np.float64)


def _matrix(value: Json, path: str) -> Float64:
    """[N, V] finite numbers, V >= 2."""
    rows = [_numbers(row, child_path(path, at)) for at, row in enumerate(_array(value, path))]
    width = rows[0].size
    for at, row in enumerate(rows):
        if row.size != width:
            raise EvidenceInputError(
                f"{row.size} values where row 0 has {width}", path=child_path(path, at)
            )
    if width < 2:
        raise EvidenceInputError("a vocabulary has at least 2 entries", path=child_path(path, 0))
    return np.stack(rows)


def _integers(value: Json, path: str, *, low: int, high: int) -> list[int]:
    result = []
    for at, item in enumerate(_array(value, path)):
        if type(item) is not int or not low <= item <= high:
            raise EvidenceInputError(
                f"must be a JSON integer from {low} to {high}, not {_shown(item)}",
                path=child_path(path, at),
            )
        result.append(item)
    return result


def _mask(value: Json, path: str, rows: int) -> npt.NDArray[np.bool_]:
    items = _array(value, path)
    for at, item in enumerate(items):
        if type(item) is not bool:
            raise EvidenceInputError(
                f"must be true or false, not {_shown(item)}", path=child_path(path, at)
            )
    if len(items) != rows:
        raise EvidenceInputError(f"{len(items)} values for {rows} rows", path=path)
    if True not in items:
        raise EvidenceInputError("no row is scored", path=path)
    return np.array(items, dtype=np.bool_)


def _shown(value: Json) -> str:
    """A short, terminal-safe word for a value of any kind."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"the string {visible(value, 32)}"
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value) if isinstance(value, float) or abs(value) < 10**20 else "a large integer"
    return text
