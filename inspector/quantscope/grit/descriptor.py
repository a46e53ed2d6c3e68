"""The 64-byte descriptor: parse, frame test, agreement with its grade, plane sizes, the five statuses.

Source: package grit-datatype 1.1.0 (grit/descriptor.py, grit/check.py). The order of the tests is normative:
the first failure is the status.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec

from quantscope.grit import grade as grades
from quantscope.grit import words

_STRUCT = struct.Struct("<IBBBBHHHHhHHBBBBBBIQQQQ")
NAMES = (
    "magic", "hdr_bytes", "version", "n_levels", "flags", "elem", "scale0", "scale1", "zp_fmt",
    "group_axis", "k0", "k1", "sp_n", "sp_m", "sp_meta_fmt", "sp_order", "container", "frame_rsvd",
    "note", "placement_data", "placement_scale", "placement_meta", "grade_id",
)  # fmt: skip
AGREEMENT = (
    "n_levels", "flags", "elem", "scale0", "scale1", "zp_fmt", "k0", "k1", "sp_n", "sp_m",
    "sp_meta_fmt", "sp_order", "container",
)  # fmt: skip
"""Fields that a grade string fixes."""

PLANES = ("data", "scale0", "scale1", "aux")


class Status(IntEnum):
    """Outcome of a boundary check."""

    OK = 0
    SIZE_MISMATCH = 1
    GRADE_UNKNOWN = 2
    PLACEMENT_UNKNOWN = 3
    DIGEST_MISMATCH = 4


class SizeError(ValueError):
    """The size equations cannot be formed for a shape."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """One attribute per field of the layout."""

    magic: int
    hdr_bytes: int
    version: int
    n_levels: int
    flags: int
    elem: int
    scale0: int
    scale1: int
    zp_fmt: int
    group_axis: int
    k0: int
    k1: int
    sp_n: int
    sp_m: int
    sp_meta_fmt: int
    sp_order: int
    container: int
    frame_rsvd: int
    note: int
    placement_data: int
    placement_scale: int
    placement_meta: int
    grade_id: int

    @classmethod
    def unpack(cls, raw: bytes) -> Descriptor:
        """Parse 64 bytes without judging them.

        Raises:
            ValueError: they are not 64.
        """
        if len(raw) != words.HEADER_BYTES:
            raise ValueError(f"a descriptor has 64 bytes, not {len(raw)}")
        return cls(**dict(zip(NAMES, _STRUCT.unpack(raw), strict=True)))

    def pack(self) -> bytes:
        """The 64 bytes."""
        return _STRUCT.pack(*(getattr(self, name) for name in NAMES))

    @property
    def frame(self) -> bytes:
        """The 60 bytes that ids cover: all but the note."""
        raw = self.pack()
        return raw[:28] + raw[32:]

    @property
    def has_aux(self) -> bool:
        """Whether a fourth plane belongs to it."""
        return bool(self.flags & (words.SPARSE | words.HAS_ZP))

    @property
    def assumed(self) -> bool:
        """Whether the producer marked the placement as assumed."""
        return bool(self.note & words.ASSUMED)

    @property
    def producer_tag(self) -> int:
        """The producer's own byte."""
        return self.note >> 8 & 0xFF


def frame_fault(desc: Descriptor) -> str | None:
    """Why the frame cannot be believed, or None."""
    if desc.magic != words.MAGIC:
        return f"magic is 0x{desc.magic:08x}"
    if desc.hdr_bytes != words.HEADER_BYTES:
        return f"hdr_bytes is {desc.hdr_bytes}"
    if desc.version != words.VERSION:
        return f"version is {desc.version}"
    if desc.n_levels not in (1, 2):
        return f"n_levels is {desc.n_levels}"
    if desc.flags & words.RESERVED_FLAGS:
        return f"reserved flag bits are set (0x{desc.flags:02x})"
    if desc.frame_rsvd != 0:
        return f"frame_rsvd is {desc.frame_rsvd}"
    if desc.container not in (words.DENSE, words.PAD8):
        return f"container is {desc.container}"
    if desc.n_levels == 1 and (desc.k1 != 0 or desc.scale1 != words.ABSENT):
        return "one level, yet k1 or scale1 is set"
    if desc.flags & words.SPARSE and desc.flags & words.HAS_ZP:
        return "SPARSE and HAS_ZP together"
    if desc.flags & words.ZP_L1SCALED and not desc.flags & words.HAS_ZP:
        return "ZP_L1SCALED without HAS_ZP"
    if desc.flags & words.ZP_L1SCALED and desc.n_levels != 2:
        return "ZP_L1SCALED with one level"
    if words.has_bias_override(desc.elem):
        return "element with a bias override"
    for name in ("elem", "scale0", "scale1", "zp_fmt"):
        word = getattr(desc, name)
        if word != words.ABSENT and words.nan_encoding(word) == 3:
            return f"{name} uses the reserved NaN encoding"
    return None


def structure_of(desc: Descriptor) -> dict[str, str] | None:
    """The grade keys that a frame fixes, or None where a field has no word in the grammar."""
    formats = {"e": desc.elem, "s0": desc.scale0}
    fields: dict[str, str] = {"k0": str(desc.k0)}
    if desc.n_levels == 2:
        formats["s1"] = desc.scale1
        fields["k1"] = str(desc.k1)
    if desc.flags & words.HAS_ZP:
        formats["zp"] = desc.zp_fmt
        fields["zpc"] = "minus1" if desc.flags & words.ZP_MINUS1 else "asis"
        fields["zps"] = "l1" if desc.flags & words.ZP_L1SCALED else "shared"
    for key, word in formats.items():
        name = words.FORMAT_NAMES.get(word)
        if name is None:
            return None
        fields[key] = name
    if desc.flags & words.INTERLEAVED:
        return None
    if desc.flags & words.SPARSE:
        bits = words.META_BITS.get(desc.sp_meta_fmt)
        order = "asclsb" if desc.sp_order == words.ASCENDING else "unord"
        if not bits:
            return None
        fields["sp"] = f"{desc.sp_n}:{desc.sp_m}:u{bits}:{order}"
    fields["ct"] = "pad8" if desc.container == words.PAD8 else "dense"
    fields["po"] = "msb" if desc.flags & words.MSB_FIRST else "lsb"
    return fields


def frame_of(canonical: str) -> dict[str, int]:
    """The descriptor fields that a grade string fixes."""
    fields = grades.parse(canonical)
    zero, sparse, levels = "zp" in fields, "sp" in fields, "k1" in fields
    flags = words.MSB_FIRST if fields["po"] == "msb" else 0
    if zero:
        flags |= words.HAS_ZP
        flags |= words.ZP_MINUS1 if fields["zpc"] == "minus1" else 0
        flags |= words.ZP_L1SCALED if fields["zps"] == "l1" else 0
    wanted = dict.fromkeys(AGREEMENT, 0) | {
        "n_levels": 2 if levels else 1,
        "elem": words.FORMATS[fields["e"]],
        "scale0": words.FORMATS[fields["s0"]],
        "k0": int(fields["k0"]),
        "container": words.PAD8 if fields["ct"] == "pad8" else words.DENSE,
    }
    if levels:
        wanted |= {"scale1": words.FORMATS[fields["s1"]], "k1": int(fields["k1"])}
    if zero:
        wanted["zp_fmt"] = words.FORMATS[fields["zp"]]
    if sparse:
        flags |= words.SPARSE
        kept, of, form, order = fields["sp"].split(":")
        wanted |= {
            "sp_n": int(kept),
            "sp_m": int(of),
            "sp_meta_fmt": {"u2": 1, "u4": 2}[form],
            "sp_order": words.ASCENDING if order == "asclsb" else 0,
        }
    return wanted | {"flags": flags}


def disagreements(desc: Descriptor, canonical: str) -> list[str]:
    """Fields in which a descriptor differs from what a grade string demands."""
    wanted = frame_of(canonical)
    return [name for name in AGREEMENT if getattr(desc, name) != wanted[name]]


def placement_fault(desc: Descriptor) -> str | None:
    """Why the placement words cannot be followed, or None."""
    for label in ("data", "scale", "meta"):
        word = getattr(desc, f"placement_{label}")
        if not words.placement_known(word):
            return f"{label} placement 0x{word:016x} is of a reserved class"
    if desc.has_aux and desc.placement_meta == words.UNSPECIFIED:
        return "an aux plane without placement_meta"
    if not desc.has_aux and desc.placement_meta != words.UNSPECIFIED:
        return "placement_meta without an aux plane"
    return None


def _stored_width(word: int, container: int) -> int:
    bits = words.width(word)
    return 8 if container == words.PAD8 and bits <= 8 else bits


def plane_bytes(desc: Descriptor, shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Bytes that data, scale0, scale1 and aux must have.

    Raises:
        SizeError: the shape does not fit the groups.
    """
    count = 1
    for extent in shape:
        if extent < 0:
            raise SizeError(f"extent {extent}")
        count *= extent
    axis = desc.group_axis
    if not 0 <= axis < len(shape):
        raise SizeError(f"group axis {axis} of rank {len(shape)}")
    if desc.k0 == 0 or shape[axis] % desc.k0:
        raise SizeError(f"extent {shape[axis]} is no multiple of k0 {desc.k0}")
    kept = count
    if desc.flags & words.SPARSE:
        if desc.sp_m == 0 or shape[axis] % desc.sp_m:
            raise SizeError(f"extent {shape[axis]} is no multiple of M {desc.sp_m}")
        kept = count * desc.sp_n // desc.sp_m
    groups = count // desc.k0
    outer = 0
    if desc.n_levels == 2:
        if desc.k1 and groups % desc.k1:
            raise SizeError(f"{groups} groups are no multiple of k1 {desc.k1}")
        outer = groups // desc.k1 if desc.k1 else 1
    data = -(-kept * _stored_width(desc.elem, desc.container) // 8)
    scale0 = -(-groups * _stored_width(desc.scale0, words.PAD8) // 8)
    per = 2 if desc.flags & words.ZP_L1SCALED else 1
    scale1 = -(-outer * per * words.width(desc.scale1) // 8) if desc.n_levels == 2 else 0
    aux = 0
    if desc.flags & words.SPARSE:
        bits = words.META_BITS.get(desc.sp_meta_fmt)
        if bits is None:
            raise SizeError(f"sparsity metadata format {desc.sp_meta_fmt}")
        aux = -(-(count // desc.sp_m * desc.sp_n * bits) // 8)
    elif desc.flags & words.HAS_ZP:
        aux = -(-groups * _stored_width(desc.zp_fmt, words.PAD8) // 8)
    return data, scale0, scale1, aux


def status(desc: Descriptor, shape: Sequence[int], planes: Sequence[int]) -> Status:
    """The status of a check at level 1: frame, grade, placement, sizes, in this order."""
    if frame_fault(desc) is not None:
        return Status.GRADE_UNKNOWN
    name = grades.BY_ID.get(desc.grade_id)
    if name is None or disagreements(desc, grades.REGISTRY[name]):
        return Status.GRADE_UNKNOWN
    if placement_fault(desc) is not None:
        return Status.PLACEMENT_UNKNOWN
    try:
        wanted = plane_bytes(desc, shape)
    except SizeError:
        return Status.SIZE_MISMATCH
    return Status.OK if list(planes) == list(wanted) else Status.SIZE_MISMATCH


def recovered_grade(desc: Descriptor) -> str | None:
    """The canonical grade of a descriptor: registered, or recovered from its id; None where none fits."""
    name = grades.BY_ID.get(desc.grade_id)
    if name is not None and not disagreements(desc, grades.REGISTRY[name]):
        return grades.REGISTRY[name]
    structure = structure_of(desc)
    if structure is None:
        return None
    return grades.recover(tuple(sorted(structure.items())), desc.grade_id)
