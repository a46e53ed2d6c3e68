"""Logical tensors and the planes that they are made of."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal[
    "codes",
    "scale",
    "scale2",
    "zero",
    "minimum",
    "codebook",
    "group_index",
    "permutation",
    "sign",
    "meta",
    "companion",
    "bias",
]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A run of bytes in one file, or `count` equal runs `stride_bytes` apart (a field of a block struct)."""

    file_id: int
    byte_offset: int
    nbytes: int
    count: int = 1
    stride_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes over all runs."""
        return self.nbytes * self.count


class Plane(msgspec.Struct, frozen=True, kw_only=True):
    """One stored tensor, or a part of one, in its role for a logical tensor.

    `suffix` is what a person calls it: the stored name without the module (`qzeros`, `weight_scale`) or
    the field of a block struct (`d`, `qs`). `shape` is that of this part (a slice of an expert stack has
    the slice's shape), row-major. `dtype` is the stored word.
    """

    role: Role
    suffix: str
    stored_name: str
    spans: tuple[Span, ...]
    dtype: str
    shape: tuple[int, ...]
    byte_order: Literal["little", "big"] = "little"

    @property
    def nbytes(self) -> int:
        """Bytes over all spans."""
        return sum(span.total_bytes for span in self.spans)

    @property
    def byte_offset(self) -> int:
        """First byte, absolute in its file."""
        return self.spans[0].byte_offset

    @property
    def file_id(self) -> int:
        """File of the first span."""
        return self.spans[0].file_id


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a shared plane set a logical tensor is: an expert, or a run of rows of a fused weight."""

    kind: Literal["expert", "rows"]
    index: int
    count: int
    first_row: int = 0
    n_rows: int = 0


class LogicalTensor(msgspec.Struct, frozen=True, kw_only=True):
    """The weight that a runtime reconstructs from one or more planes.

    `family` is the registered family's name, `word` the report's family word (`gptq_planar`,
    `compressed_tensors:pack-quantized`, `modelopt:NVFP4`, ...). `shape` is the family's first estimate;
    the solved reading's shape stands over it. `certainty` says how the family knows the tensor is its own:
    3 = a marker or shapes that no other family has, 2 = names and shapes fit, 1 = names only.
    """

    name: str
    module: str
    family: str
    word: str
    shape: tuple[int, ...]
    planes: tuple[Plane, ...]
    part: Slice | None = None
    basis: str = "plain"
    certainty: int = 2
    facts: tuple[tuple[str, str], ...] = ()
    """What the family learnt while grouping and needs again (a declared kind, a quant_state), as pairs."""

    def fact(self, key: str, default: str = "") -> str:
        """A family fact by key."""
        return dict(self.facts).get(key, default)

    def plane(self, role: Role) -> Plane | None:
        """The first plane in a role."""
        for plane in self.planes:
            if plane.role == role:
                return plane
        return None

    def plane_named(self, suffix: str) -> Plane | None:
        """The plane whose suffix or stored name is `suffix`."""
        for plane in self.planes:
            if suffix in (plane.suffix, plane.stored_name):
                return plane
        return None

    def stored_names(self) -> tuple[str, ...]:
        """Names of the stored tensors it uses, each once."""
        return tuple(dict.fromkeys(plane.stored_name for plane in self.planes))


class Companion(msgspec.Struct, frozen=True, kw_only=True):
    """A stored tensor that belongs to a module but holds no weight: an activation or KV scale, a marker."""

    stored_name: str
    module: str
    what: str
    family: str


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A plane of a quantized weight whose mates are missing."""

    stored_name: str
    module: str
    family: str
    missing: tuple[str, ...]
    """Suffixes that the family needs and did not find."""
    reason: str = ""


class BitSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Bits of one stored byte run: `bit_width` bits from `low_bit` of the little-endian word at the offset."""

    file_id: int
    byte_offset: int
    nbytes: int
    low_bit: int
    bit_width: int


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Where one logical element lies: its code's bits and the bits of every other plane that it uses."""

    row: int
    col: int
    group: int
    bits: tuple[BitSpan, ...]
    per_plane: dict[str, tuple[BitSpan, ...]] = {}
