"""What of a report still holds for the bytes at a path: each statement holds, does not, or was not examined."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from quantscope import __version__
from quantscope.errors import CancelledError, QuantscopeError, UsageError
from quantscope.report.inputs import (
    compact_ranges,
    expand_ranges,
    file_digest,
    ranges_digest,
    ranges_list_digest,
    read_ranges,
)
from quantscope.report.lookup import names_of
from quantscope.report.redact import without_folders
from quantscope.report.schema import FindingEntry, Input, InputFile, Report, TensorEntry
from quantscope.report.words import count_words
from quantscope.session.events import Progress
from quantscope.session.inspection import Inspection

State = Literal["holds", "does_not_hold", "not_examined"]
MAX_REPORT_BYTES = 1 << 30


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of a report and what became of it."""

    about: Literal["file", "config", "tensors", "finding", "rules", "gate", "scope", "tool"]
    what: str
    state: State
    detail: str = ""


class Recheck(msgspec.Struct, frozen=True, kw_only=True):
    """Every statement of a report, rechecked."""

    schema_version: Literal[1] = 1
    report_tool_version: str
    tool_version: str
    statements: tuple[Statement, ...]

    @property
    def differs(self) -> bool:
        """Whether some statement does not hold."""
        return any(statement.state == "does_not_hold" for statement in self.statements)


def load_report(path: str) -> Report:
    """A JSON report from a file.

    Raises:
        UsageError: it cannot be read, or is no report of this schema version.
    """
    try:
        if os.path.getsize(path) > MAX_REPORT_BYTES:
            raise UsageError(f"{path} is over 1 GiB", source=path)
        with open(path, "rb") as stream:
            data = stream.read()
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}", source=path) from None
    return report_from_bytes(data, path)


def report_from_bytes(data: bytes, name: str = "the report") -> Report:
    """A report from its JSON bytes.

    Raises:
        UsageError: the bytes are no report of this schema version.
    """
    if not data.lstrip().startswith(b"{"):
        raise UsageError(
            f"{name} is no JSON: a report is rechecked from its JSON form",
            hint="`quantscope report PATH -o report.json` writes it; a ticket (Markdown, HTML, SARIF) cannot be rechecked",
            source=name,
        )
    try:
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"{name} is no quantscope report of schema_version 1: {problem}",
            hint="`quantscope report PATH -o report.json` writes one",
            source=name,
        ) from None


def recheck_path(
    old: Report,
    path: str,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Recheck:
    """Inspect a path in the report's own mode, with the rules that it ran, and compare.

    Raises:
        NotACheckpointError: nothing there is a container.
        CancelledError: the inspection was stopped.
    """
    from quantscope.checkpoint import Checkpoint
    from quantscope.report.builder import ReportOptions, build
    from quantscope.rules.catalogue import catalogue, judge
    from quantscope.session.pipeline import Scope, inspect

    ignored = [e.code for e in old.scope.rules_skipped if not e.reason.startswith("needs")]
    scope = Scope(mode=old.scope.mode)
    if old.scope.sample_groups is not None:
        scope = Scope(mode=old.scope.mode, sample_groups=old.scope.sample_groups)
    with Checkpoint.open(path) as checkpoint:
        inspection = inspect(
            checkpoint,
            scope,
            judge=lambda found: judge(found, ignore=ignored),
            progress=progress,
            cancelled=cancelled,
        )
        if inspection.partial:
            raise CancelledError("stopped before everything was compared")
        draft = build([inspection], ReportOptions(digests=False, whole_files=False))
        written = report_from_bytes(b"".join(draft.chunks()))
        return recheck(old, inspection, written, rules_now=tuple(catalogue()))


def recheck(
    old: Report, inspection: Inspection, fresh: Report, *, rules_now: Sequence[str]
) -> Recheck:
    """Compare a report with a fresh inspection in the same mode.

    Args:
        old: the report.
        inspection: the fresh inspection, its checkpoint open.
        fresh: the report of that inspection.
        rules_now: codes of every rule that this version has.
    """
    number = _matching_input(old.inputs, fresh.inputs[0])
    statements = [
        *_files(old.inputs[number], inspection),
        *_configs(old.inputs[number], fresh.inputs[0]),
        *_coverage(old),
        *_tensors(old, fresh, number),
        *_findings(old, fresh, number),
        *_rules(old, rules_now),
        *_gates(old),
    ]
    return Recheck(
        report_tool_version=old.tool.version,
        tool_version=__version__,
        statements=tuple(statements),
    )


def _matching_input(inputs: Sequence[Input], fresh: Input) -> int:
    """The input of the report that shares most file names with what was opened."""
    names = {file.name for file in fresh.files}
    shared = [len(names.intersection(file.name for file in entry.files)) for entry in inputs]
    if not shared:
        raise UsageError("the report names no input")
    return shared.index(max(shared))


def _files(old: Input, inspection: Inspection) -> Iterator[Statement]:
    opened = {file.name: file for file in inspection.checkpoint.opened.files}
    for entry in old.files:
        file = opened.pop(entry.name, None)
        if file is None:
            yield Statement(
                about="file", what=entry.name, state="does_not_hold", detail="is not there"
            )
            continue
        if file.size != entry.size:
            yield Statement(
                about="file",
                what=entry.name,
                state="does_not_hold",
                detail=f"has {file.size} bytes, the report says {entry.size}",
            )
        yield from _digests(entry, inspection, file.file_id)
    for name in opened:
        yield Statement(
            about="file", what=name, state="does_not_hold", detail="the report knows no such file"
        )


def _digests(entry: InputFile, inspection: Inspection, file_id: int) -> Iterator[Statement]:
    source = inspection.checkpoint.sources[file_id]
    if entry.sha256 is not None:
        same = file_digest(source) == entry.sha256
        yield Statement(
            about="file",
            what=f"{entry.name}: every byte",
            state="holds" if same else "does_not_hold",
            detail="sha256" if same else "the sha256 of the whole file differs",
        )
    examined = entry.examined
    if examined is None:
        if entry.sha256 is None:
            yield Statement(
                about="file",
                what=f"{entry.name}: every byte",
                state="not_examined",
                detail="the report holds no digest of it",
            )
        return
    file = inspection.checkpoint.file(file_id)
    if examined.ranges is not None:
        ranges = expand_ranges(examined.ranges)
    else:
        ranges = read_ranges(file, inspection.ledger)
        if ranges_list_digest(compact_ranges(ranges)) != examined.ranges_sha256:
            yield Statement(
                about="file",
                what=f"{entry.name}: {examined.bytes} bytes read",
                state="not_examined",
                detail="the report lists too many ranges to name, and this version reads others",
            )
            return
    yield _range_statement(entry, examined.bytes, examined.sha256, ranges, source)
    rest = entry.size - examined.bytes
    if rest > 0 and entry.sha256 is None:
        yield Statement(
            about="file",
            what=f"{entry.name}: {rest} other bytes",
            state="not_examined",
            detail="the report never read them",
        )


def _range_statement(
    entry: InputFile, nbytes: int, digest: str, ranges: Sequence[tuple[int, int]], source: Any
) -> Statement:
    try:
        same = ranges_digest(source, ranges) == digest
        detail = "sha256 over the ranges read" if same else "their sha256 differs"
    except QuantscopeError as problem:
        same, detail = False, problem.message
    return Statement(
        about="file",
        what=f"{entry.name}: {nbytes} bytes read",
        state="holds" if same else "does_not_hold",
        detail=detail,
    )


def _configs(old: Input, fresh: Input) -> Iterator[Statement]:
    known = {config.name: config for config in fresh.config_files}
    for entry in old.config_files:
        now = known.pop(entry.name, None)
        if entry.sha256 is None:
            state: State = "not_examined"
        else:
            state = "holds" if now is not None and now.sha256 == entry.sha256 else "does_not_hold"
        detail = "is not there" if now is None else "" if state == "holds" else "its sha256 differs"
        yield Statement(about="config", what=entry.name, state=state, detail=detail)
    for name in known:
        yield Statement(
            about="config", what=name, state="does_not_hold", detail="the report knows no such file"
        )


def _coverage(old: Report) -> Iterator[Statement]:
    """Planes that the report never read, or read in part."""
    for role, count in old.scope.planes.items():
        rest = count.bytes_total - count.bytes_read
        if rest > 0:
            yield Statement(
                about="scope",
                what=f"{role}: {rest} of {count.bytes_total} bytes",
                state="not_examined",
                detail=f"the report's scan ({old.scope.mode}) never read them",
            )


def _tensors(old: Report, fresh: Report, number: int) -> Iterator[Statement]:
    by_name = {name: entry for entry in fresh.tensors for name in names_of(entry)}
    for entry in old.tensors:
        if entry.input == number:
            yield _tensor(entry, by_name)


def _tensor(entry: TensorEntry, by_name: dict[str, TensorEntry]) -> Statement:
    what = f"{entry.name}" + (f" and {entry.count - 1} like it" if entry.count > 1 else "")
    names = list(names_of(entry))
    gone = [name for name in names if name not in by_name]
    if gone:
        return Statement(
            about="tensors",
            what=what,
            state="does_not_hold",
            detail=f"{count_words(len(gone), 'tensor')} not there, first {gone[0]}",
        )
    differing: dict[str, str] = {}
    for now in {id(by_name[name]): by_name[name] for name in names}.values():
        for part in _differences(entry, now):
            differing.setdefault(part, now.name)
    if not differing:
        return Statement(about="tensors", what=what, state="holds", detail="contract, sizes")
    parts: dict[str, list[str]] = {}
    for part, name in differing.items():
        parts.setdefault(name, []).append(part)
    detail = "; ".join(
        ", ".join(listed) + (f" (in {name})" if name != entry.name else "")
        for name, listed in parts.items()
    )
    return Statement(about="tensors", what=what, state="does_not_hold", detail=detail)


def _differences(old: TensorEntry, now: TensorEntry) -> Iterator[str]:
    for part in ("family", "shape", "basis", "solutions"):
        if getattr(old, part) != getattr(now, part):
            yield part
    if [(e.plane, e.expected_bytes, e.actual_bytes, e.holds) for e in old.equations] != [
        (e.plane, e.expected_bytes, e.actual_bytes, e.holds) for e in now.equations
    ]:
        yield "equations"
    for field in sorted({*old.contract, *now.contract}):
        a, b = old.contract.get(field), now.contract.get(field)
        if a is None or b is None or _said(a) != _said(b):
            yield f"contract.{field}"
    same_names = list(names_of(old)) == list(names_of(now))
    if same_names and _plain(old.statistics) != _plain(now.statistics):
        yield "statistics"


def _said(field: Any) -> Any:
    """What a field says, without numbers that a larger set shifts and without folders."""
    claims = [(claim.value, claim.basis) for claim in field.declared]
    value = field.inferred.value if field.inferred is not None else None
    return _plain((claims, value, field.match))


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _findings(old: Report, fresh: Report, number: int) -> Iterator[Statement]:
    now: dict[str, list[FindingEntry]] = {}
    for finding in fresh.findings:
        now.setdefault(finding.id, []).append(finding)
    known: set[str] = set()
    for entry in old.findings:
        if entry.input != number:
            continue
        known.add(entry.id)
        yield _finding(
            entry, _closest(entry, now.get(entry.id, ())), narrowed=bool(old.scope.selection)
        )
    if old.scope.selection:
        return
    accepted = {entry.id for entry in old.scope.suppressed}
    for finding in fresh.findings:
        if finding.id not in known | accepted and finding.code in old.scope.rules_run:
            yield Statement(
                about="finding",
                what=finding.id,
                state="does_not_hold",
                detail="found now; the report does not have it",
            )


def _closest(old: FindingEntry, found: Sequence[FindingEntry]) -> FindingEntry | None:
    """The finding that says the same, of those with one code and subject; else the first."""
    same = [
        entry for entry in found if without_folders(entry.message) == without_folders(old.message)
    ]
    return next(iter([*same, *found]), None)


def _finding(old: FindingEntry, now: FindingEntry | None, *, narrowed: bool) -> Statement:
    if now is None:
        return Statement(
            about="finding", what=old.id, state="does_not_hold", detail="not found any more"
        )
    odd = []
    if now.severity != old.severity:
        odd.append(f"severity is {now.severity}, was {old.severity}")
    if now.count != old.count and not narrowed:
        odd.append(f"count is {now.count}, was {old.count}")
    if without_folders(now.message) != without_folders(old.message) and not narrowed:
        odd.append("its message differs")
    return Statement(
        about="finding",
        what=old.id,
        state="does_not_hold" if odd else "holds",
        detail="; ".join(odd) or "found again",
    )


def _rules(old: Report, rules_now: Sequence[str]) -> Iterator[Statement]:
    if old.tool.version != __version__:
        yield Statement(
            about="tool",
            what=f"written by {old.tool.name} {old.tool.version}",
            state="not_examined",
            detail=f"this is {__version__}: a difference may come from the tool, not from the bytes",
        )
    known = {*old.scope.rules_run, *(entry.code for entry in old.scope.rules_skipped)}
    gone = sorted(set(old.scope.rules_run) - set(rules_now))
    fresh = sorted(set(rules_now) - known)
    if gone:
        yield Statement(
            about="rules",
            what=", ".join(gone),
            state="not_examined",
            detail="rules of the report that this version does not have",
        )
    if fresh:
        yield Statement(
            about="rules",
            what=", ".join(fresh),
            state="not_examined",
            detail="rules of this version that the report did not have",
        )


def _gates(old: Report) -> Iterator[Statement]:
    for name in old.gates.__struct_fields__:
        gate = getattr(old.gates, name)
        if gate.status == "executed":
            yield Statement(
                about="gate",
                what=f"{name}: {gate.outcome}",
                state="not_examined",
                detail="recheck runs no gate again",
            )
