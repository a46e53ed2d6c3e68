"""What a comparison found, as frozen values."""

from __future__ import annotations

from typing import Literal

import msgspec

from quantscope.evidence.gates import Gate, GateName
from quantscope.evidence.metrics import TensorMetrics
from quantscope.model import Json

PairKind = Literal["name", "prefix", "gguf", "fused"]


class RowMap(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of a stored weight are meant, and how they are ordered.

    `first` and `count` cut a fused weight. `heads` > 0 says that rows are in llama.cpp's order for rotary
    embeddings: within each of `heads` heads, row 2i+s holds the row s*(head/2)+i of the Hugging Face order.
    """

    first: int = 0
    count: int | None = None
    heads: int = 0


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One weight that both sides hold."""

    name: str
    """Name shown: A's."""
    a: str
    b: str
    kind: PairKind
    rows_a: RowMap = RowMap()
    rows_b: RowMap = RowMap()


class ChannelRatio(msgspec.Struct, frozen=True, kw_only=True):
    """Least-squares ratio B/A of every input channel, over channels where A is not zero."""

    smallest: float
    median: float
    largest: float
    p05: float
    p95: float
    median_cosine: float
    """Median over channels of the cosine within a channel, which a rescaling does not change."""
    departing: float
    """Share of channels whose norms on both sides differ by another factor than the median channel's, by more
    than what the two sides round differently can make of it."""


class ValueComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Decoded weights of a pair.

    `steps_*` are differences in units of A's own scale. `like_for_like` is False where input channels are
    rescaled, so that errors say nothing about quantization.
    """

    elements: int
    total: int
    identical: bool
    metrics: TensorMetrics | None = None
    error: str | None = None
    steps_mean: float | None = None
    steps_max: float | None = None
    ratio: ChannelRatio | None = None
    like_for_like: bool = True
    worst_group: dict[str, Json] | None = None


class ZeroSide(msgspec.Struct, frozen=True, kw_only=True):
    """The zero plane of one side of a pair, from stored bytes to the zero used, for its first word."""

    plane: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    byte_offset: int
    nbytes: int
    sha256: str
    first_bytes: str
    fields: tuple[int, ...]
    """Fields of the first word, lowest bits first."""
    goes_to: tuple[int, ...]
    """Output channel of each of those fields."""
    stored: tuple[int, ...]
    """Stored zeros of the first output channels in order."""
    used: tuple[int, ...]
    """The same after the convention is applied."""
    convention: str
    declared: tuple[Json, ...]
    mean: float | None
    standard_error: float | None
    mean_swapped: float | None
    """The statistic under the other convention."""
    strength: str | None


class ZeroComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Zero planes of a pair."""

    a: ZeroSide
    b: ZeroSide
    same_dtype_and_shape: bool
    bytes_equal: bool
    equal_stored: int
    """Stored zeros that are equal at the same (group, out), where both planes have the same extents."""
    equal_used: int
    zeros: int
    told_apart_by: str
    swapped_effect: tuple[str, str]
    """What reading A by B's rule, and B by A's, does to the weights."""


class ContractDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A contract field in which a pair differs."""

    field: str
    a: Json
    b: Json


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """All that was compared of one pair."""

    pair: Pair
    family_a: str | None
    family_b: str | None
    shape_a: tuple[int, ...]
    shape_b: tuple[int, ...]
    contract: tuple[ContractDifference, ...] = ()
    planes_identical: tuple[str, ...] = ()
    """Suffixes of planes whose bytes are the same on both sides."""
    planes_different: tuple[str, ...] = ()
    zeros: ZeroComparison | None = None
    values: ValueComparison | None = None


class Requantized(msgspec.Struct, frozen=True, kw_only=True):
    """How a float source relates to stored codes under the file's own scales and zeros."""

    rne_share: float
    """Share of codes equal to round-to-nearest-even re-quantization of the source."""
    fixed_point_share: float
    """Share of codes that re-quantizing the decoded plane gives back."""
    code_clamp_fraction: float
    endpoint_fraction: float
    range_fraction: float


class ReferenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One quantized tensor of one side against the float base."""

    side: Literal["a", "b"]
    name: str
    base: str
    values: ValueComparison
    requantized: Requantized | None = None
    requantized_reason: str | None = None


class FoldingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a rescaling of input channels is undone where the float graph can undo it."""

    side: Literal["a", "b"]
    consumers: tuple[str, ...]
    undone_in: str
    outcome: Literal["held", "did_not_hold", "inconclusive", "not_rescaled"]
    median_deviation: float | None
    p95_deviation: float | None
    """Quantiles of |log(channel ratio x compensation)|."""
    reason: str = ""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that comparing two checkpoints gave."""

    a: str
    b: str
    base: str | None
    pairs: tuple[PairResult, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    reference: tuple[ReferenceResult, ...] = ()
    folding: tuple[FoldingResult, ...] = ()
    gates: dict[GateName, Gate]
    sampled: bool = False
    partial: str | None = None
    overall: Literal["incomplete"] = "incomplete"

    @property
    def rescaled(self) -> tuple[PairResult, ...]:
        """Pairs whose values are not like for like."""
        return tuple(p for p in self.pairs if p.values is not None and not p.values.like_for_like)
