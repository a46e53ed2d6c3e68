"""What a kernel check says, as frozen values: two answers, never one.

`ParityResult.outcome` answers whether the kernel computed right; `ParityResult.execution_proof` answers
whether that kernel really ran. Neither is ever derived from the other.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quantscope.evidence.gates import GateOutcome
from quantscope.model import Json

Device = Literal["cpu", "cuda"]
Status = Literal["executed", "skipped", "failed"]
ExecutionProof = Literal["proved", "unproven", "not_applicable"]
SkipReason = Literal[
    "torch_missing",
    "torch_cpu_only_build",
    "no_cuda_device",
    "package_missing",
    "library_load_failed",
    "compiler_missing",
    "arch_unsupported",
    "contract_unsupported",
    "shape_unsupported",
    "dtype_unsupported",
    "needs_network",
    "not_asked",
]
FailReason = Literal[
    "raised", "out_of_memory", "crashed", "killed", "timed_out", "did_not_start", "bad_reply"
]
ControlState = Literal["held", "did_not_hold", "detected", "missed", "not_applicable"]


class KernelState(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel of a backend and whether it can run here.

    `reason` is None where it can, or where nothing that is cheap to look at speaks against it.
    `executes` is False for a second decoder without a kernel (`reference`) and for an interpreter.
    """

    name: str
    title: str
    device: Device
    executes: bool
    contracts: tuple[str, ...]
    """Contract words that it takes (`gptq`, `gguf`, `bnb:nf4`, ...)."""
    reason: SkipReason | None = None
    detail: str = ""


class BackendState(msgspec.Struct, frozen=True, kw_only=True):
    """A backend with its kernels. `probed` says whether a child process imported it to find out."""

    name: str
    title: str
    kernels: tuple[KernelState, ...]
    versions: dict[str, str] = {}
    distribution: str = ""
    probed: bool = False
    ran_on_cuda: bool = False
    """Whether the project itself keeps a record of a CUDA run of this backend."""
    error: str | None = None
    """Why the plugin could not be loaded at all."""

    @property
    def usable(self) -> bool:
        """Whether any kernel may run."""
        return any(kernel.reason is None for kernel in self.kernels)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of one tensor takes, before it runs. `refusal` says why it would not run at all."""

    backend: str
    kernel: str | None
    device: Device | None
    calls: int = 0
    multiply_adds: int = 0
    bytes_read: int = 0
    memory_bytes: int = 0
    seconds: float = 0.0
    """A rough guess, start of the child process included."""
    refusal: SkipReason | None = None
    refusal_detail: str = ""


class PlaneBytesUsed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one stored plane that went into the check."""

    name: str
    file: str
    byte_offset: int
    nbytes: int
    sha256: str


class ErrorModel(msgspec.Struct, frozen=True, kw_only=True):
    """Rounding points of a kernel, declared before any output exists.

    Types are `f16`, `bf16`, `f32`, `e4m3`, `bf16_truncated` (cut instead of rounded: twice the error) and
    `exact`. `parity.tolerance` turns the model into a bound.

    Attributes:
        input_dtype: type of x as the kernel gets it; inputs are exactly representable in it.
        weight_dtype: type that a dequantized weight is rounded to before it is multiplied.
        weight_roundings: how many such roundings a weight takes, each apart from its neighbours'.
        scale_dtype: type in which scales are held: one rounding that all weights of a group share.
        zero_dtype: type in which a zero folded around `pivot`, (pivot - z) * s, is held, shared likewise.
        pivot: what codes are counted from where the zero is folded.
        accumulate_dtype: type of the running sum.
        accumulate_steps: roundings of the running sum; 0 is one for every input channel.
        output_dtype: type of the result; the last rounding.
        magnitude: what is rounded per weight: `difference` |q-z|*s; `parts` |q|*s + |z|*s, where q*s and
            z*s are formed apart; `folded` |q-pivot|*s + |pivot-z|*s.
        activation: how the kernel itself quantizes activations.
        activation_block: values one activation scale covers; 0 is a whole row.
        statement: the counted rounding points in words, with their source.
    """

    input_dtype: str
    weight_dtype: str = "exact"
    weight_roundings: int = 0
    scale_dtype: str = "exact"
    zero_dtype: str = "exact"
    pivot: float = 0.0
    accumulate_dtype: str = "f32"
    accumulate_steps: int = 0
    output_dtype: str = "f32"
    magnitude: Literal["difference", "parts", "folded"] = "difference"
    activation: Literal["none", "q8_block", "int8_row"] = "none"
    activation_block: int = 0
    statement: str = ""


class InputResult(msgspec.Struct, frozen=True, kw_only=True):
    """One input through the kernel: the worst error in units of its tolerance, and where.

    `error_over_sum` is max |y - ref| over sum |x| |W| of that output. `fallback` marks a batch above the
    kernel's own threshold, where another path is expected and labelled.
    """

    name: str
    batch: int
    seed: int | None
    sha256: str
    outputs: int
    worst_ratio: float | None
    worst_at: tuple[int, int] | None
    max_abs_error: float | None
    max_tolerance: float | None
    error_over_sum: float | None
    over_tolerance: int
    nonfinite: int
    held: bool
    fallback: bool = False
    note: str = ""


class Readout(msgspec.Struct, frozen=True, kw_only=True):
    """Codes recovered from one-hot rows through the kernel, compared exactly with the decoded ones.

    `total` codes were looked at out of `in_tensor`; `resolvable` of them can be told from their neighbours
    at the kernel's declared precision; `recovered` of those are equal. `kind` is `codes` for integers,
    `levels` for entries of a table, `values` where a format has no code of one element (then values within
    tolerance count).
    """

    kind: Literal["codes", "levels", "values"]
    recovered: int
    resolvable: int
    total: int
    in_tensor: int
    columns: int
    calls: int
    first_wrong: dict[str, Json] | None = None

    @property
    def complete(self) -> bool:
        """Every code that was looked at was recovered."""
        return 0 < self.total == self.recovered


class ControlResult(msgspec.Struct, frozen=True, kw_only=True):
    """One control: a positive one holds, a negative one is detected."""

    name: str
    kind: Literal["positive", "negative"]
    state: ControlState
    how: Literal["wrong_reference", "wrong_bytes", "fixture"]
    detail: str = ""
    share_over_tolerance: float | None = None
    worst_ratio: float | None = None


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One name that the profiler or the library gave for the very call."""

    name: str
    device: Device
    count: int
    microseconds: float
    parent: str = ""


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what ran left the low-bit kernel; each pair is (fallback, of how many)."""

    calls: tuple[int, int] = (0, 0)
    microseconds: tuple[float, float] = (0.0, 0.0)
    names: tuple[str, ...] = ()


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that the kernel ran in that very call."""

    proof: ExecutionProof
    reason: str
    method: str = ""
    events: tuple[TraceEvent, ...] = ()
    fallback: Fallback = Fallback()
    library: str = ""
    """File name of the library that holds the kernel."""
    library_sha256: str = ""


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """A faulty reading whose outputs the kernel's outputs equal within tolerance."""

    fault: str
    title: str
    kind: str
    """Kind code of the fault."""
    matches: bool
    worst_ratio: float | None = None
    effect: str = ""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a check could not finish."""

    reason: FailReason
    message: str
    signal: str | None = None
    exit_code: int | None = None
    stderr_tail: str = ""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a check does; recorded with its result, chosen before it."""

    seed: int = 20240607
    dtype: str | None = None
    """Type of activations; the kernel's best resolved one by default."""
    device: Device | None = None
    max_columns: int = 1024
    """One-hot rows at most, spread over the input channels."""
    max_elements: int = 1 << 24
    """Weights of a tensor that are looked at: its first rows in whole runs of 128 beyond that."""
    emulate: str | None = None
    """A faulty reader in the kernel's place."""
    timeout_s: float = 600.0
    memory_bytes: int | None = None


class ParityResult(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor through one kernel.

    `status` and `outcome` say whether the computation is right; `execution` says whether the kernel ran.
    """

    tensor: str
    backend: str
    kernel: str | None
    device: Device | None
    status: Status
    outcome: GateOutcome | None
    executes_kernel: bool
    execution: Execution
    comparison: Literal["exact", "approximate"] = "approximate"
    reason: str = ""
    """Why it was skipped, why it is inconclusive, or what did not hold."""
    skip: SkipReason | None = None
    failure: Failure | None = None
    contract: str = ""
    reading: dict[str, Json] = {}
    shape: tuple[int, ...] = ()
    rows_checked: int = 0
    dtype: str = ""
    settings: Settings = Settings()
    error_model: ErrorModel | None = None
    readout: Readout | None = None
    inputs: tuple[InputResult, ...] = ()
    controls: tuple[ControlResult, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    planes: tuple[PlaneBytesUsed, ...] = ()
    fingerprint: str = ""
    """SHA-256 over the digests of `planes`, in order."""
    repacked_sha256: dict[str, str] = {}
    versions: dict[str, str] = {}
    device_name: str = ""
    limits: tuple[str, ...] = ()
    """What the result does not say."""
    emulated: str | None = None
    stderr_tail: str = ""
    seconds: float = 0.0

    @property
    def execution_proof(self) -> ExecutionProof:
        """The second answer."""
        return self.execution.proof


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Denominators of a run over a checkpoint; layers, calls and kernel time each for itself."""

    layers_in_checkpoint: int
    layers_asked: int
    layers_run: int
    layers_held: int
    layers_did_not_hold: int
    layers_inconclusive: int
    layers_skipped: int
    layers_failed: int
    layers_fallback: int
    calls: tuple[int, int] = (0, 0)
    """(fallback, all) traced calls."""
    microseconds: tuple[float, float] = (0.0, 0.0)
    """(fallback, all) kernel time of the traced calls."""


class ParityRun(msgspec.Struct, frozen=True, kw_only=True):
    """Results over several tensors, with what was left out."""

    path: str
    backend: str
    selection: str
    """`tensor`, `sample N` or `all`, as asked."""
    results: tuple[ParityResult, ...]
    coverage: Coverage
    resumed: int = 0
    partial: str | None = None
