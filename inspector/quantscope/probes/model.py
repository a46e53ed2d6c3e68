"""What a logits check is asked for and what it gives, as frozen values that cross a process boundary."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

TokenSource = Literal["ids", "text", "passage", "random"]
Outcome = Literal["held", "did_not_hold", "inconclusive"]

READING_STAGE = "reading"
"""Stage of progress before the first pass: checkpoints are opened and their readings found."""

DEFAULT_TARGETS = 64
"""Scored targets: 16 already gave t = 7 to 16 between readings that differ everywhere."""
ACCEPT_T = 5.0
"""Paired t above which one reading is preferred ..."""
ACCEPT_BELOW_UNIFORM = 2.0
"""... provided that its NLL lies this many nats below that of a uniform guess."""

CANNOT_DECIDE = (
    "one tensor read one step off moves the mean NLL less than its own noise on this many targets: "
    "the code statistic (Zero tab) decides single tensors"
)


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which token ids are fed.

    `ids` reads a JSON list or an .npy file at `path`; `text` tokenizes the file at `path`; `passage`
    tokenizes the bundled public-domain passage; `random` draws seeded ids, for KL only.
    """

    source: TokenSource = "passage"
    path: str = ""
    targets: int = DEFAULT_TARGETS
    seed: int = 20260801


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids with where they come from and what nobody verified about them."""

    ids: tuple[int, ...]
    source: str
    sha256: str
    scored: bool
    """False where NLL means nothing (random ids)."""
    bos: str
    """What stands first and that it only conditions."""
    unverified: tuple[str, ...] = ()
    tokenizer_sha256: str | None = None
    """Of tokenizer.json, or of the GGUF's token and merge lists; None where no tokenizer was used."""


class SideRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One set of weights: a checkpoint under a what-if reading (contract fields; empty is its own)."""

    label: str
    path: str
    reading: dict[str, str] = {}


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole logits check. The first side is the base of every comparison."""

    sides: tuple[SideRequest, ...]
    tokens: TokenRequest = TokenRequest()
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: int = 0
    stream: bool = True
    """One decoder layer resident at a time; bit-equal to a full load."""
    by_layer: bool = False
    memory_bytes: int = 0
    timeout_s: float = 3600.0


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a check would read, compute and take, before it runs."""

    passes: int
    bytes_read: int
    parameters: int
    tokens: int
    seconds: float
    memory_bytes: int
    how: str


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """Likelihood of the scored targets under one side."""

    label: str
    path: str
    reading: dict[str, str]
    tensors_changed: int
    """Tensors that the what-if reading changed; 0 for a checkpoint's own readings."""
    nll_sum: float | None
    nll_mean: float | None
    ppl: float | None
    weights_sha256: str
    logits_sha256: str
    nll_rows: tuple[float, ...] = ()
    error: str | None = None
    readings: dict[str, int] = {}
    """Readings in words -> quantized tensors that were decoded so."""
    tensors_unused: int = 0
    """Weights of the checkpoint that no parameter of the model took."""
    unused_names: tuple[str, ...] = ()
    """The first of them."""


class PairResult(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate against the base, over the same scored rows."""

    base: str
    candidate: str
    rows: int
    kl_mean: float
    kl_max: float
    kl_min: float
    kl_by_position: tuple[float, ...]
    top1_matches: int
    max_abs_dlogit: float
    rows_margin_safe: int
    """Rows whose base margin exceeds twice the largest logit error: their argmax cannot have moved."""
    kl_lost_rows: int = 0
    """Rows whose KL is not zero but too small for binary64; counted as zero in the mean."""
    dnll_mean: float | None
    dnll_se: float | None
    t: float | None
    """Paired t of candidate minus base NLL over targets."""
    document_means: tuple[float, float] | None = None
    token_means: tuple[float, float] | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """One control of the run: what it must show and what it showed."""

    name: Literal["self_before", "base_after", "planted", "weights_differ"]
    held: bool
    numbers: dict[str, Any] = {}


class LayerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Output of one decoder layer under two sets of weights.

    `own` compares the two running streams; `isolated` gives the candidate's layer the base's input.
    """

    layer: int
    own_relative: float
    isolated_relative: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Which reading the text prefers, or that it does not tell."""

    accepted: str | None
    reason: str
    cannot_decide: str = CANNOT_DECIDE


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a logits check gave; `outcome` speaks of its controls, never of the model's quality."""

    outcome: Outcome
    reason: str
    sides: tuple[SideResult, ...]
    pairs: tuple[PairResult, ...]
    controls: tuple[Control, ...]
    decision: Decision | None
    layers: tuple[LayerDifference, ...] = ()
    first_layer_apart: int | None = None
    ids_sha256: str
    ids_source: str
    n_ids: int
    targets_counted: int
    window: str
    vocabulary: int
    architecture: str
    dtype: str
    threads: int
    device: str
    peak_rss_bytes: int
    seconds: float
    fingerprints: dict[str, str]
    unverified: tuple[str, ...]
    verified_scope: str
    cpu_seconds: float = 0.0
    """CPU time of the child over all threads; less noisy than `seconds` on a busy machine."""
    mask: str = ""
    config_sha256: str | None = None
    tokenizer_sha256: str | None = None
    libraries: dict[str, str] = {}


class ProbeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A check that could not finish, with the reason."""

    reason: str
    message: str
    stderr_tail: str = ""
    done: tuple[SideResult, ...] = ()
    """Sides that were finished before it ended."""
