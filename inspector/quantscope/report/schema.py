"""The report document, schema_version 1: every key, in the words that scripts and tickets rely on.

The JSON Schema that ships beside this module is generated from these models.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quantscope.evidence.gates import GateOutcome, GateStatus
from quantscope.model import Basis, Match, Severity, Strength
from quantscope.report.names import Form

SCHEMA_VERSION: Literal[1] = 1

WhoWord = Literal["producer", "config", "reader", "nobody"]
NOT_STATED: Literal["not stated"] = "not stated"

Json = Any


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What wrote the report."""

    name: str
    version: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that differs between two runs on the same input; nothing else in a report does."""

    started: str
    """ISO 8601, UTC."""
    duration_s: float
    platform: str
    python: str
    libraries: dict[str, str]
    device: str | None
    command: str


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """One declared value and where it stands (`file#pointer`)."""

    at: str
    value: Json


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a file that the inspection read, and one digest over them in file order.

    Each range is `[start, stop]`, or `[start, stop, stride, count]` for equal ranges `stride` bytes apart.
    `ranges` is None where there are too many to list; `ranges_sha256` is over the list in any case.
    """

    ranges: list[list[int]] | None
    ranges_count: int
    ranges_sha256: str
    bytes: int
    sha256: str


class InputFile(msgspec.Struct, frozen=True, kw_only=True):
    """One container file."""

    name: str
    kind: str
    size: int
    fingerprint: str
    sha256: str | None
    examined: Examined | None
    bytes_read: int
    parsed: bool
    error: str | None
    declarations: list[Leaf]


class InputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One config file beside the tensors."""

    name: str
    size: int
    sha256: str | None
    error: str | None
    declarations: list[Leaf]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One path that was given."""

    path: str
    kind: str
    files: list[InputFile]
    config_files: list[InputConfig]


class Stated(msgspec.Struct, frozen=True, kw_only=True):
    """An identity value with the place that states it."""

    value: Json
    source: str


class PlaneBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one kind of plane, and how many of them were read."""

    bytes_total: int
    bytes_read: int


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that could not speak."""

    code: str
    reason: str


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that a baseline accepts."""

    id: str
    reason: str


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at. A selection by hand narrows everything below it."""

    mode: Literal["headers", "sample", "deep"]
    sample_groups: int | None
    selection: list[str]
    partial: str | None
    stored_total: int
    tensors_total: int
    tensors_quantized: int
    tensors_examined: int
    unrecognised: int
    planes: dict[str, PlaneBytes]
    groups_total: int
    groups_examined: int
    rules_run: list[str]
    rules_skipped: list[Skipped]
    suppressed: list[Accepted]


class GateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How one gate went."""

    status: GateStatus
    outcome: GateOutcome | None
    reason: str | None
    scope: dict[str, Json] | None


class Gates(msgspec.Struct, frozen=True, kw_only=True):
    """All six, always."""

    graph_rewrite: GateEntry
    numeric_reference: GateEntry
    packing_layout: GateEntry
    kernel: GateEntry
    model_quality: GateEntry
    serving: GateEntry


class BitsPerWeight(msgspec.Struct, frozen=True, kw_only=True):
    """Bits of codes alone, and bits over all planes, per quantized weight; None without any."""

    nominal: float | None
    effective: float | None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Findings by severity."""

    violation: int
    disagreement: int
    warning: int
    note: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Totals over the scope."""

    families: dict[str, int]
    parameters: int
    bits_per_weight: BitsPerWeight
    findings: Counts


class SpanEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A run of bytes in the plane's file, or `count` equal runs `stride_bytes` apart."""

    byte_offset: int
    nbytes: int
    count: int
    stride_bytes: int


class PlaneEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One plane of the first tensor of an entry."""

    role: str
    suffix: str
    stored_name: str
    file: str
    spans: list[SpanEntry]
    dtype: str
    shape: list[int]
    missing_bytes: int = 0
    """Bytes of it that lie past the end of the file."""


class EquationEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What the reading in force demands of one plane."""

    plane: str
    symbolic: str
    substituted: str
    expected_bytes: int | None
    actual_bytes: int | None
    holds: bool | None
    note: str


class ClaimEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One declared value. `<tensor>` in a source stands for each stored name of a folded entry."""

    value: Json
    source: str
    basis: Basis
    written: Json


class InferredEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The value that the bytes speak for."""

    value: Json
    strength: Strength


class SampleEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How many of how many."""

    examined: int
    total: int
    unit: str


class EvidenceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One evidence step over `tensors` tensors; numbers that differ between them as {min, max}."""

    method: str
    supports: list[Json]
    strength: Strength | None
    numbers: dict[str, Json]
    sample: SampleEntry | None
    assumes: list[str]
    tensors: int


class CandidateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A remaining reading of an undecided field."""

    value: Json
    effect: str
    readers: list[str]


class FieldEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One contract field."""

    declared: list[ClaimEntry]
    inferred: InferredEntry | None
    evidence: list[EvidenceEntry]
    match: Match
    candidates: list[CandidateEntry]
    reason: str


class PlaneStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one scale-like plane, over every tensor of the entry."""

    plane: str
    dtype: str
    total: int
    examined: int
    nan: int
    inf: int
    zero: int
    negative: int
    subnormal: int
    smallest: float | None
    largest: float | None


class CodeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Sampled codes over every tensor of the entry; the histogram starts at `lowest_code`."""

    groups_examined: int
    groups_total: int
    elements: int
    lowest_code: int
    histogram: list[int]
    rows: int
    constant_rows: int


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes look like."""

    planes: list[PlaneStatistics]
    codes: CodeStatistics | None


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Logical tensors with one and the same contract; planes are those of `name`.

    `names` are literal, or patterns with `{a..b}` ranges where `names_form` is `ranges`.
    """

    input: int
    name: str
    names: list[str]
    names_form: Form
    count: int
    family: str
    shape: list[int]
    basis: str
    planes: list[PlaneEntry]
    equations: list[EquationEntry]
    solutions: list[dict[str, Json]]
    contract: dict[str, FieldEntry]
    statistics: Statistics | None
    undecodable: str | None


class SubjectEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding is about."""

    tensor: str | None
    stored: str | None
    file: str | None
    byte_range: list[int] | None
    field: str | None
    config_key: str | None


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One weight that shows a finding: from the stored bits to its value as claimed and as concluded."""

    tensor: str
    row: int
    col: int
    file: str
    byte_offset: int
    code: Json
    stored_zero: Json
    scale: float | str | None
    as_declared: float | str | None
    as_inferred: float | str | None


class FindingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One finding, folded over `members`."""

    id: str
    input: int
    code: str
    name: str
    kind: str | None
    severity: Severity
    confidence: Strength
    subject: SubjectEntry
    message: str
    data: dict[str, Json]
    impact: str
    who: WhoWord
    who_detail: Literal["download", "storage"] | None
    """What the reader's side has to do where it is no matter of the program: fetch the files again, or mend where they lie."""
    try_: str = msgspec.field(name="try")
    would_settle: str
    gate: str | None
    members: list[str]
    members_form: Form
    count: int
    readers: list[str]
    example: Example | None


class NotChecked(msgspec.Struct, frozen=True, kw_only=True):
    """Something that nothing in this report speaks about."""

    what: str
    why: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole document."""

    schema_version: Literal[1]
    tool: Tool
    run: Run
    inputs: list[Input]
    identity: dict[str, Stated | Literal["not stated"]]
    scope: Scope
    gates: Gates
    overall: Literal["incomplete"]
    summary: Summary
    tensors: list[TensorEntry]
    findings: list[FindingEntry]
    parity: list[dict[str, Json]]
    probes: list[dict[str, Json]]
    external_evidence: list[dict[str, Json]]
    not_checked: list[NotChecked]


SCHEMA_FILE = f"report-v{SCHEMA_VERSION}.schema.json"


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a report, generated from the models."""
    schema = msgspec.json.schema(Report)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:quantscope:report:{SCHEMA_VERSION}",
        "title": f"quantscope report, schema_version {SCHEMA_VERSION}",
        **schema,
    }


def shipped_schema() -> bytes:
    """The bytes of the schema file that ships with the package."""
    import importlib.resources

    return importlib.resources.files("quantscope.report").joinpath(SCHEMA_FILE).read_bytes()


def schema_bytes() -> bytes:
    """The schema file as it must stand in the package."""
    import json

    return (json.dumps(json_schema(), indent=1, sort_keys=True) + "\n").encode()
