"""What a kernel plugin implements, and what it is given.

A backend is registered under the entry-point group `quantscope.kernels` and lists kernels. A kernel says
what it cannot take and why, declares its rounding points, reads the stored bytes that it wants, and runs
one call. Everything else (inputs, reference, tolerance, controls, judgement) is the engine's. Methods marked
"child" run only in the child process and may import anything; all others must be cheap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from quantscope.decode.parts import Array
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.registry import PluginRecord, load_entry_points
from quantscope.model import LogicalTensor, Reading
from quantscope.parity.model import Device, ErrorModel, SkipReason, TraceEvent

API_VERSION = 1
KERNEL_GROUP = "quantscope.kernels"


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a kernel does not run."""

    reason: SkipReason
    detail: str


class RefusedError(Exception):
    """A kernel finds in the bytes themselves that it does not take a weight."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class Weight(msgspec.Struct, frozen=True, kw_only=True):
    """One logical tensor under the reading in force."""

    tensor: LogicalTensor
    reading: Reading

    @property
    def n_rows(self) -> int:
        """Output channels."""
        return self.reading.shape[-2]

    @property
    def n_cols(self) -> int:
        """Input channels."""
        return self.reading.shape[-1]

    @property
    def contract(self) -> str:
        """Family, element, group and zero in one word, e.g. `gptq u4 g128 minus_one`."""
        reading = self.reading
        group = reading.group[0] if reading.group else None
        parts = [self.tensor.family, reading.element]
        if group is not None and group.size is None:
            parts.append(f"per {group.axis}")
        elif group is not None:
            size = group.size
            parts.append("g" + ("x".join(map(str, size)) if isinstance(size, tuple) else str(size)))
        convention = reading.zero_convention
        parts.append(convention if convention != "not_applicable" else reading.zero)
        return " ".join(parts)


class RawWeight:
    """Stored bytes of the first `shape[0]` rows of a weight as a kernel reads them, nothing derived.

    Attributes:
        contract: which layout the arrays have (`gptq`, `awq_gemm`, `ct_pack`, `gguf`, ...).
        arrays: read-only arrays by stored suffix.
        shape: (rows, columns) of the logical weight that they hold.
        bit_width: bits of a code.
        group_size: input channels one scale covers.
        facts: what else the layout needs (`zeros`: `as_is`, `minus_one`; a ggml type; ...).
    """

    __slots__ = ("arrays", "bit_width", "contract", "facts", "group_size", "shape")

    def __init__(
        self,
        *,
        contract: str,
        arrays: Mapping[str, Array],
        shape: tuple[int, int],
        bit_width: int,
        group_size: int,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self.contract = contract
        self.arrays = dict(arrays)
        self.shape = shape
        self.bit_width = bit_width
        self.group_size = group_size
        self.facts = dict(facts or {})

    def with_arrays(self, **changed: Array) -> RawWeight:
        """A copy with some arrays exchanged."""
        return RawWeight(
            contract=self.contract,
            arrays=self.arrays | changed,
            shape=self.shape,
            bit_width=self.bit_width,
            group_size=self.group_size,
            facts=self.facts,
        )


class Fixture(msgspec.Struct, frozen=True, kw_only=True):
    """Known bytes with the weights that their format's definition gives them."""

    name: str
    raw: RawWeight
    weights: Array
    """float64 [rows, columns], from a formula, not from any decoder."""


class TraceData(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen during one call.

    `complete` is False where the observer may be blind (a profiler without rights). `counted` is a count
    that the kernel's own code raised, where it has one.
    """

    events: tuple[TraceEvent, ...] = ()
    method: str = ""
    complete: bool = True
    counted: int | None = None
    library: str = ""
    library_sha256: str = ""


class TraceRule(msgspec.Struct, frozen=True, kw_only=True):
    """Names that prove the kernel, names that mean another path, names without meaning; regular expressions."""

    must: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()


class Available(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the machine gave. `refusal` is None where the kernel can run."""

    refusal: Refusal | None = None
    versions: dict[str, str] = {}
    device_name: str = ""


class Prepared(Protocol):
    """A weight as the kernel wants it."""

    @property
    def repacked(self) -> Mapping[str, Array | bytes]:
        """Buffers derived from the stored bytes, for their digests; empty where none are."""
        ...


class Kernel(Protocol):
    """One kernel on one kind of device."""

    @property
    def name(self) -> str:
        """Short name, unique with the device within a backend."""
        ...

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        ...

    @property
    def device(self) -> Device:
        """Where it runs."""
        ...

    @property
    def executes(self) -> bool:
        """Whether compiled code of a low-bit kernel runs, so that the `kernel` gate is executed."""
        ...

    @property
    def contracts(self) -> tuple[str, ...]:
        """Contract words for people; `refusal` decides."""
        ...

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Types of activations, the one that most users run first."""
        ...

    @property
    def amplitude(self) -> float:
        """Height of a one-hot input."""
        ...

    @property
    def fallback_batch(self) -> int | None:
        """Smallest batch at which the library itself leaves this kernel; None where it never does."""
        ...

    @property
    def most_columns(self) -> int:
        """Input channels read out one by one at most; small for a kernel that is slow to call."""
        ...

    @property
    def slowdown(self) -> float:
        """Time of a multiply-add in nanoseconds, roughly."""
        ...

    @property
    def trace_rule(self) -> TraceRule:
        """What its trace must and must not hold."""
        ...

    @property
    def limits(self) -> tuple[str, ...]:
        """What a result of this kernel does not say."""
        ...

    def missing(self) -> Refusal | None:
        """What is not installed, without importing it."""
        ...

    def available(self) -> Available:
        """Child: whether it can run here."""
        ...

    def refusal(self, weight: Weight, dtype: str) -> Refusal | None:
        """Why it does not take this weight with these activations."""
        ...

    def error_model(self, weight: Weight, dtype: str) -> ErrorModel:
        """Its rounding points for this weight."""
        ...

    def read(self, weight: Weight, n_rows: int, reader: PlaneReader) -> RawWeight:
        """Child: stored bytes of the first `n_rows` rows."""
        ...

    def fixture(self, weight: Weight) -> Fixture | None:
        """Child: known bytes in the weight's layout."""
        ...

    def corrupted(self, raw: RawWeight) -> tuple[str, RawWeight] | None:
        """Child: the same bytes with one change that must not go unnoticed, and what it is."""
        ...

    def prepare(self, raw: RawWeight, dtype: str) -> Prepared:
        """Child: copies and repacks.

        Raises:
            RefusedError: the bytes hold what the kernel does not take.
        """
        ...

    def run(self, prepared: Prepared, x: Array, dtype: str) -> Array:
        """Child: one call, x float32 [M, K] exactly representable in `dtype`; float [M, N] back."""
        ...

    def trace(self, prepared: Prepared, x: Array, dtype: str) -> TraceData | None:
        """Child: the same call under observation, warmed up before; None where nothing can observe it."""
        ...

    def quantized_input(self, weight: Weight, x: Array) -> Array | None:
        """Child: x as the kernel itself quantizes it, float64 [M, K]; None where it does not."""
        ...


@runtime_checkable
class Backend(Protocol):
    """A package with kernels."""

    name: ClassVar[str]
    title: ClassVar[str]
    api_version: ClassVar[int]

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Kernels, the preferred one first."""
        ...

    def versions(self) -> dict[str, str]:
        """Installed versions of what it uses, without importing it."""
        ...


def load_backends() -> list[tuple[Backend | None, PluginRecord]]:
    """Every registered backend, sorted by name; None beside the record of one that did not load."""
    return list(load_entry_points(KERNEL_GROUP, check_backend))


def check_backend(instance: Any) -> str | None:
    """What is wrong with a loaded backend, or None."""
    version = getattr(instance, "api_version", None)
    if version != API_VERSION:
        return f"speaks api_version {version!r}, this is {API_VERSION}"
    if not isinstance(instance, Backend):
        return "lacks a part of the backend protocol"
    return None
