"""Grades: the numeric contract as a canonical string, its id, and the string recovered from an id.

Source: package grit-datatype 1.1.0 (grit/grade.py). Unknown keys are refused, never ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from quantscope.grit.identity import fnv64
from quantscope.grit.words import FORMATS

KEYS = (
    "e", "k0", "s0", "k1", "s1", "zp", "zpc", "zps", "sp", "ct", "po", "er", "es", "esr", "esn",
    "dr", "ds", "dt", "ao", "ap", "ab", "ai", "an",
)  # fmt: skip
"""All keys in canonical order."""

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "zpc": "asis", "zps": "shared", "ct": "dense", "po": "lsb", "er": "rne", "es": "satfinite",
        "esn": "preserve", "dr": "rne", "ds": "satfinite", "dt": "binary32", "ao": "unspec",
        "ap": "binary32", "ab": "binary32", "ai": "binary32", "an": "any",
    }
)  # fmt: skip
REQUIRED = ("e", "k0", "s0", "esr")
STRUCTURAL = ("k1", "s1", "zp", "sp")
DECODES = frozenset(
    {"e", "k0", "s0", "k1", "s1", "zp", "zpc", "zps", "sp", "ct", "po", "dr", "ds", "dt"}
)
"""Keys that influence decoding; two grades with equal values of these decode alike."""

_REFUSED = frozenset({"e4m3fnuz", "b16", "u4b"})
"""Spellings that are other formats and must not be mapped."""

_FORMAT_ALIASES = {
    **dict.fromkeys(
        ("fp4", "fp4e2m1", "float4_e2m1", "float4_e2m1fn", "e2m1fn", "mxfp4elem"), "e2m1"
    ),
    **dict.fromkeys(("fp8e4m3", "e4m3fn", "float8_e4m3fn", "f8e4m3fn"), "e4m3"),
    **dict.fromkeys(("ue8m0", "e8m0fnu", "float8_e8m0fnu"), "e8m0"),
    **dict.fromkeys(("f16", "fp16", "half", "float16"), "binary16"),
    **dict.fromkeys(("f32", "fp32", "float", "float32", "single"), "binary32"),
    **dict.fromkeys(("int4", "sint4", "i4"), "s4"),
    **dict.fromkeys(("int8", "sint8", "i8"), "s8"),
    "int2": "s2",
    "uint2": "u2",
    **dict.fromkeys(("uint4", "nibble"), "u4"),
    "uint6": "u6",
    **dict.fromkeys(("uint8", "byte"), "u8"),
}

_ROUNDINGS = {
    **dict.fromkeys(("rne", "rn", "nearesttiestoeven", "nearest_even", "roundtiestoeven", "even"), "rne"),
    **dict.fromkeys(("rna", "nearesttiestoaway", "away"), "rna"),
    **dict.fromkeys(("rtz", "towardzero", "trunc", "truncate"), "rtz"),
    **dict.fromkeys(("rtp", "towardpositive", "ceil", "up"), "rtp"),
    **dict.fromkeys(("rtn", "towardnegative", "floor", "down"), "rtn"),
}  # fmt: skip
_SATURATIONS = {
    **dict.fromkeys(("satfinite", "sat_finite", "satf", "finite", "clamp"), "satfinite"),
    **dict.fromkeys(("satmax", "sat_max"), "satmax"),
    **dict.fromkeys(("ovfinf", "ovf_inf", "inf", "overflowtoinf"), "ovfinf"),
}
_SCALE_RULES = {
    **dict.fromkeys(("exp2floormaxabs", "exp2floor", "floor", "rtz_shared_exp", "ocpmx"), "exp2floormaxabs"),
    **dict.fromkeys(("exp2ceilmaxabs", "exp2ceil", "rceil"), "exp2ceilmaxabs"),
    **dict.fromkeys(("exp2rnemaxabs", "exp2rne", "rne_shared_exp"), "exp2rnemaxabs"),
    **dict.fromkeys(("ratiomaxabs", "ratio", "amax_over_emax"), "ratiomaxabs"),
    **dict.fromkeys(("affineminmax", "affine", "minmax"), "affineminmax"),
}  # fmt: skip
_SUBNORMALS = {
    **dict.fromkeys(("preserve", "preserved", "subnormalpreserved", "denorm"), "preserve"),
    **dict.fromkeys(("ftz", "flushtozero", "subnormalftz"), "ftz"),
    **dict.fromkeys(("any", "subnormalany"), "any"),
}
_ORDERS = {
    **dict.fromkeys(("seq", "sequential", "inorder"), "seq"),
    **dict.fromkeys(("tree", "treeany", "any_tree"), "tree"),
    **dict.fromkeys(("unspec", "unspecified", "any"), "unspec"),
}
_ZERO_RULES = {
    **dict.fromkeys(("asis", "asstored", "stored"), "asis"),
    **dict.fromkeys(("minus1", "storedminusone", "stored_minus_one", "gptq"), "minus1"),
}
_ZERO_SCALES = {
    **dict.fromkeys(("shared", "sharedscale", "symmetric"), "shared"),
    **dict.fromkeys(("l1", "ownscale", "level1", "l1scaled"), "l1"),
}
_CONTAINERS = {
    **dict.fromkeys(("dense", "packed"), "dense"),
    **dict.fromkeys(("pad8", "padto8", "padded"), "pad8"),
}
_BIT_ORDERS = {
    **dict.fromkeys(("lsb", "lsbfirst", "littlebit"), "lsb"),
    **dict.fromkeys(("msb", "msbfirst"), "msb"),
}
_META_ORDERS = {
    **dict.fromkeys(("asclsb", "ascendinglsb", "ordered", "sorted"), "asclsb"),
    **dict.fromkeys(("unord", "unordered", "none"), "unord"),
}
_ENUMS: Mapping[str, Mapping[str, str]] = {
    "er": _ROUNDINGS, "dr": _ROUNDINGS, "es": _SATURATIONS, "ds": _SATURATIONS, "esr": _SCALE_RULES,
    "esn": _SUBNORMALS, "an": _SUBNORMALS, "ao": _ORDERS, "zpc": _ZERO_RULES, "zps": _ZERO_SCALES,
    "ct": _CONTAINERS, "po": _BIT_ORDERS,
}  # fmt: skip
_FORMAT_KEYS = frozenset({"e", "s0", "s1", "zp", "dt", "ap", "ab", "ai"})
_INTEGER_KEYS = frozenset({"k0", "k1"})


class GradeError(ValueError):
    """A grade string that cannot be read."""


def parse(text: str) -> dict[str, str]:
    """Fields of a grade in any accepted spelling, defaults filled in; absent structures are absent.

    Raises:
        GradeError: it is no grade, holds an unknown or double key, or lacks a required one.
    """
    plain = "".join(char for char in text if not char.isspace())
    if not plain.lower().startswith("grit1(") or not plain.endswith(")"):
        raise GradeError("a grade is written grit1(...)")
    fields: dict[str, str] = {}
    body = plain[len("grit1(") : -1]
    for item in body.split(",") if body else ():
        name, equals, raw = item.partition("=")
        key = name.lower()
        if not equals or key not in KEYS or key in fields:
            raise GradeError(f"bad grade field {item!r}")
        fields[key] = _value(key, raw)
    _check_structure(fields)
    return {**_defaults_of(fields), **fields}


def _check_structure(fields: Mapping[str, str]) -> None:
    for key in REQUIRED:
        if key not in fields:
            raise GradeError(f"key {key} is missing")
    if ("k1" in fields) != ("s1" in fields):
        raise GradeError("k1 and s1 go together")
    if "zp" not in fields and ("zpc" in fields or "zps" in fields):
        raise GradeError("zpc and zps need zp")
    if fields.get("zps") == "l1" and "k1" not in fields:
        raise GradeError("zps=l1 needs a second level")


def _defaults_of(fields: Mapping[str, str]) -> dict[str, str]:
    skip = set() if "zp" in fields else {"zpc", "zps"}
    return {key: value for key, value in DEFAULTS.items() if key not in skip}


def _value(key: str, raw: str) -> str:
    if key in _FORMAT_KEYS:
        return _format(raw)
    if key in _INTEGER_KEYS:
        if not raw.isdigit():
            raise GradeError(f"{key} is no number: {raw!r}")
        return str(int(raw))
    if key == "sp":
        return _sparsity(raw)
    return _enum(key, _ENUMS[key], raw)


def _format(raw: str) -> str:
    token = raw.lower()
    if token in FORMATS:
        return token
    if token in _REFUSED or token not in _FORMAT_ALIASES:
        raise GradeError(f"no format of GRIT version 1: {raw!r}")
    return _FORMAT_ALIASES[token]


def _enum(key: str, table: Mapping[str, str], raw: str) -> str:
    token = raw.lower().replace("-", "")
    if token in table:
        return table[token]
    if key == "ao" and token.startswith("pairwise"):
        number = token[len("pairwise") :].lstrip("_")
        if number.isdigit() and int(number) >= 1:
            return f"pairwise{int(number)}"
    if key == "esr" and token.startswith("custom:"):
        return token
    raise GradeError(f"{key} has no value {raw!r}")


def _sparsity(raw: str) -> str:
    parts = raw.lower().split(":")
    if len(parts) != 4:
        raise GradeError(f"sparsity is N:M:format:order, not {raw!r}")
    try:
        kept, of = int(parts[0]), int(parts[1])
    except ValueError as problem:
        raise GradeError(f"sparsity is no numbers: {raw!r}") from problem
    if not 1 <= kept < of <= 32:
        raise GradeError(f"bad sparsity {raw!r}")
    return f"{kept}:{of}:{_format(parts[2])}:{_enum('sp', _META_ORDERS, parts[3])}"


def _emit(fields: Mapping[str, str], keys: Iterator[str] | tuple[str, ...], prefix: str) -> str:
    return prefix + "(" + ",".join(f"{key}={fields[key]}" for key in keys if key in fields) + ")"


def canonical(text: str) -> str:
    """The one canonical spelling of a grade.

    Raises:
        GradeError: it cannot be read.
    """
    fields = parse(text)
    always = set(REQUIRED) | set(STRUCTURAL)
    keys = tuple(k for k in KEYS if k in always or fields.get(k) != DEFAULTS.get(k))
    return _emit(fields, keys, "grit1")


def decode_projection(text: str) -> str:
    """The part of a grade that decoding depends on, every field explicit."""
    return _emit(parse(text), tuple(key for key in KEYS if key in DECODES), "gritdec1")


def grade_id(canonical_text: str) -> int:
    """The 64-bit id of a canonical grade string."""
    return fnv64(canonical_text.encode("utf-8"))


REGISTRY: Mapping[str, str] = MappingProxyType(
    {
        "GRADE_MXFP4": "grit1(e=e2m1,k0=32,s0=e8m0,esr=exp2floormaxabs)",
        "GRADE_Q4KS": "grit1(e=u4,k0=32,s0=u6,k1=8,s1=binary16,zp=u6,zps=l1,esr=affineminmax)",
        "GRADE_NVF4": "grit1(e=e2m1,k0=16,s0=e4m3,k1=0,s1=binary32,esr=ratiomaxabs)",
        "GRADE_I8S24": "grit1(e=s8,k0=32,s0=binary16,sp=2:4:u2:asclsb,esr=ratiomaxabs)",
        "GRADE_MXFP4_RNE": "grit1(e=e2m1,k0=32,s0=e8m0,esr=exp2rnemaxabs)",
        "GRADE_NVF4_RTZ": "grit1(e=e2m1,k0=16,s0=e4m3,k1=0,s1=binary32,er=rtz,esr=ratiomaxabs)",
    }
)
"""The six registered grades of GRIT 1.1.0."""

BY_ID: Mapping[int, str] = MappingProxyType(
    {grade_id(text): name for name, text in REGISTRY.items()}
)

_FREE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("esr", ("ratiomaxabs", "affineminmax", "exp2floormaxabs", "exp2ceilmaxabs", "exp2rnemaxabs")),
    ("er", ("rne", "rna", "rtz", "rtp", "rtn")),
    ("es", ("satfinite", "satmax", "ovfinf")),
    ("esn", ("preserve", "ftz", "any")),
    ("dr", ("rne", "rna", "rtz", "rtp", "rtn")),
    ("ds", ("satfinite", "satmax", "ovfinf")),
)
"""Keys that no field of a descriptor fixes, with their values, likeliest first."""


@lru_cache(maxsize=256)
def recover(fixed: tuple[tuple[str, str], ...], wanted: int) -> str | None:
    """The grade string whose id is `wanted` and whose structural fields are `fixed`, or None.

    The descriptor fixes everything but roundings, saturations and the scale rule: 3375 strings, tried in
    order. A miss means that the frame contradicts the id, or an extension.
    """
    for values in itertools.product(*(choices for _, choices in _FREE)):
        free = dict(zip((key for key, _ in _FREE), values, strict=True))
        fields = {**dict(fixed), **free}
        keys = tuple(
            key
            for key in KEYS
            if key in fields
            and (key in REQUIRED or key in STRUCTURAL or fields[key] != DEFAULTS.get(key))
        )
        text = _emit(fields, keys, "grit1")
        if grade_id(text) == wanted:
            return text
    return None
