"""The Report screen: scope by hand, formats, preview, and making the bytes (off the event loop)."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from quantscope.model import Finding
from quantscope.report.builder import Draft, ReportOptions, build
from quantscope.report.selection import Selection
from quantscope.session.inspection import Inspection
from quantscope.text import inert

from quantscope_views.actions import by_id
from quantscope_views.lines import Line, Span, cells, line, shown_name, wrap
from quantscope_views.present.words import count_words, size_words

if TYPE_CHECKING:
    from quantscope.evidence.gates import Gate
    from quantscope.parity.model import ParityRun

    from quantscope_views.present.run_facts import LogitsRun

Form = Literal["markdown", "json", "html", "sarif"]
FORMS: tuple[tuple[Form, str, str], ...] = (
    ("markdown", "Ticket .md", "ticket.md"),
    ("json", "json", "report.json"),
    ("html", "html", "report.html"),
    ("sarif", "sarif", "report.sarif"),
)
PREVIEW_BYTES = 200_000
"""Preview of a longer report ends here; the file holds all of it."""


class ReportScope(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is about: one of the choices of the screen."""

    kind: Literal["finding", "tensor", "checkpoint"]
    words: str
    short: str = ""
    """For a line without room for the words."""
    selection: Selection = Selection()


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """Checks that ran in this session."""

    kernel: tuple[ParityRun, ...] = ()
    logits: tuple[LogitsRun, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kernel or self.logits)


class ReportChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a person chose."""

    scopes: tuple[ReportScope, ...]
    scope: int = 0
    form: int = 0
    redact: bool = True
    with_runs: bool = True
    runs: Runs = Runs()

    @property
    def chosen(self) -> ReportScope:
        """The scope chosen."""
        return self.scopes[self.scope]

    @property
    def form_name(self) -> Form:
        """The format chosen."""
        return FORMS[self.form][0]

    @property
    def file_name(self) -> str:
        """Where the file goes by default, in the working folder."""
        return FORMS[self.form][2]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered report, or its beginning."""

    text: str
    size: int
    lines: int
    cut: bool
    left_out_tensors: int


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Files that a report went to."""

    scope: str
    """What the report is about, in words."""
    paths: tuple[str, ...]


def choices_for(
    inspection: Inspection, finding: Finding | None, tensor: str | None
) -> ReportChoice:
    """Scopes that fit where the screen was called from, the narrowest useful one chosen."""
    scopes: list[ReportScope] = []
    if finding is not None:
        members = count_words(finding.count, "tensor") if finding.count > 1 else "1 subject"
        alone = sum(other.code == finding.code for other in inspection.findings) == 1
        scopes.append(
            ReportScope(
                kind="finding",
                words=f"{finding.code} ({members})",
                short=finding.code,
                selection=Selection(findings=(finding.code if alone else finding.id,)),
            )
        )
    if tensor is not None:
        short = ".".join(tensor.removesuffix(".weight").split(".")[-2:])
        scopes.append(
            ReportScope(
                kind="tensor",
                words=f"{short} only",
                short=short.rpartition(".")[2],
                selection=Selection(tensors=(tensor,)),
            )
        )
    scopes.append(
        ReportScope(
            kind="checkpoint",
            words=f"checkpoint ({count_words(len(inspection.states), 'tensor')})",
            short="checkpoint",
        )
    )
    return ReportChoice(scopes=tuple(scopes))


def draft_of(
    inspection: Inspection,
    choice: ReportChoice,
    cancelled: Callable[[], bool] | None = None,
) -> Draft:
    """The report of a choice, judged again for what the selection leaves.

    Raises:
        CancelledError: stopped while hashing.
        UsageError: the finding is gone.
    """
    from quantscope.rules.catalogue import judge

    options = ReportOptions(
        selection=choice.chosen.selection,
        redact_paths=choice.redact,
        command=shlex.join(headless_words(inspection, choice)),
        **(_run_options(choice.runs) if choice.with_runs else {}),
    )
    return build([inspection], options, judge=judge, cancelled=cancelled)


def _run_options(runs: Runs) -> dict[str, Any]:
    """Entries and gates of the checks that ran; the last run of a real kernel speaks for its gate."""
    from quantscope.parity.entries import kernel_gate, report_entry

    gates: dict[str, Any] = {}
    options: dict[str, Any] = {"gates": gates}
    if runs.kernel:
        options["parity"] = tuple(report_entry(r) for run in runs.kernel for r in run.results)
        real = [run for run in runs.kernel if any(r.executes_kernel for r in run.results)]
        gates["kernel"] = kernel_gate((real or runs.kernel)[-1])
    if runs.logits:
        options["probes"], gates["model_quality"] = _logits_options(runs.logits)
    return options


def _logits_options(runs: Sequence[LogitsRun]) -> tuple[tuple[dict[str, Any], ...], Gate]:
    """Entries of logits checks, and the gate: of the last one against a base, where there was any."""
    from quantscope.evidence.gates import Gate
    from quantscope.probes.for_report import failed_entry, model_quality_gate, report_entry

    entries = []
    for run in runs:
        against = run.base is not None
        if run.result is not None:
            entries.append(report_entry(run.result, against))
        elif run.ended != "stopped":
            entries.append(failed_entry(run.request.sides[-1].path, run.note, against))
    last = next((run for run in reversed(runs) if run.base is not None), runs[-1])
    if last.result is not None:
        gate = model_quality_gate(last.result, last.base)
    elif last.ended == "stopped":
        done = f"{len(last.done)} of {len(last.request.sides)} sides"
        gate = Gate(status="skipped", reason=f"stopped by hand after {done}: nothing was compared")
    else:
        gate = Gate(status="failed", reason=last.note)
    return tuple(entries), gate


def headless_words(inspection: Inspection, choice: ReportChoice) -> list[str]:
    """The command that makes the same report without the app, but for checks that ran in this session."""
    selection = choice.chosen.selection
    words = ["quantscope", "report", inspection.checkpoint.opened.path]
    words += ["-o", choice.file_name, "--format", choice.form_name]
    for name in selection.findings:
        words += ["--finding", name]
    for name in selection.tensors:
        words += ["--tensor", name]
    if choice.redact:
        words.append("--redact-paths")
    return words + {"deep": ["--deep"], "headers": ["--headers-only"]}.get(inspection.mode, [])


def rendered(draft: Draft, form: Form) -> Iterable[bytes]:
    """Bytes of a report in pieces."""
    from quantscope.report.render import rendered as render

    return render(draft, form)


def preview_of(
    inspection: Inspection,
    choice: ReportChoice,
    cancelled: Callable[[], bool] | None = None,
) -> Preview:
    """Render a report and keep its beginning."""
    draft = draft_of(inspection, choice, cancelled)
    kept: list[bytes] = []
    size = lines = held = 0
    for piece in rendered(draft, choice.form_name):
        size += len(piece)
        lines += piece.count(b"\n")
        if held < PREVIEW_BYTES:
            kept.append(piece)
            held += len(piece)
    text = b"".join(kept)[:PREVIEW_BYTES].decode("utf-8", "replace")
    named = choice.chosen.selection
    return Preview(
        text=text,
        size=size,
        lines=lines,
        cut=size > PREVIEW_BYTES,
        left_out_tensors=_left_out(inspection, choice) if named else 0,
    )


def _left_out(inspection: Inspection, choice: ReportChoice) -> int:
    from quantscope.report.selection import narrow

    return narrow(inspection, choice.chosen.selection).tensors_left_out


def write_report(
    inspection: Inspection,
    choice: ReportChoice,
    path: str,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[str, ...]:
    """Write a report atomically, and the reproducer beside it where wanted.

    Returns:
        Paths written.

    Raises:
        OSError: the file cannot be written.
        UsageError: the path lies inside the checkpoint, which is never written to.
    """
    from quantscope.errors import UsageError

    root = os.path.realpath(inspection.checkpoint.opened.root)
    target = os.path.realpath(path)
    if os.path.isdir(root) and os.path.commonpath([root, target]) == root and root != os.getcwd():
        raise UsageError(
            "a report is not written into the checkpoint", hint="choose another folder", source=path
        )
    draft = draft_of(inspection, choice, cancelled)
    folder = os.path.dirname(target) or "."
    temporary = os.path.join(folder, f".quantscope-{secrets.token_hex(8)}")
    try:
        stream = open(temporary, "xb")  # noqa: SIM115 - a name that nobody typed stays out of errors
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, path) from None
    try:
        with stream:
            for piece in rendered(draft, choice.form_name):
                stream.write(piece)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    return (path,)


def scope_lines(choice: ReportChoice, width: int) -> list[Line]:
    """The two lines of choices, each with its key; words are cut before anything is left out."""
    return [
        Line(
            spans=_scope_spans(choice, width),
            about=("space: the next scope; a report claims nothing beyond its scope",),
            action="report.scope",
        ),
        Line(
            spans=_form_spans(choice, width),
            about=(
                "f: the next format; folders of this machine are left out unless asked for",
                f"with runs: {_runs_words(choice.runs)}",
            ),
            action="report.format",
        ),
    ]


def _scope_spans(choice: ReportChoice, width: int) -> tuple[Span, ...]:
    head = " scope"
    words = [scope.words for scope in choice.scopes]
    if len(head) + sum(cells(text) + 6 for text in words) > width:
        words = [scope.short or scope.words for scope in choice.scopes]
    room = (width - len(head)) // len(words) - 6
    if len(head) + sum(cells(text) + 6 for text in words) > width:
        words = [shown_name(text, max(6, room)) for text in words]
    spans = [Span(head, "head")]
    for number, text in enumerate(words):
        chosen = number == choice.scope
        mark = "[x]" if chosen else "[ ]"
        spans.append(Span(f" {mark} {inert(text)} ", "strong" if chosen else "plain"))
    return tuple(spans)


def _form_spans(choice: ReportChoice, width: int) -> tuple[Span, ...]:
    narrow = width < 76
    spans = [Span(" ")]
    for number, (_, title, _) in enumerate(FORMS):
        chosen = number == choice.form
        spans.append(Span(f"[{title}]" if chosen else f" {title} ", "strong" if chosen else "dim"))
    ran = bool(choice.runs) and choice.with_runs
    switches = (
        ("report.redact", "hide" if narrow else "hide folders", choice.redact, True),
        ("report.runs", "runs" if narrow else "with runs", ran, bool(choice.runs)),
    )
    for action_id, words, is_on, matters in switches:
        gap = " " if narrow else "   "
        spans += [
            Span(f"{gap}{by_id(action_id).keys[0]}", "key" if matters else "dim"),
            Span(f" {words} {'[x]' if is_on else '[ ]'}", "plain" if matters else "dim"),
        ]
    return tuple(spans)


def _runs_words(runs: Runs) -> str:
    words = [f"{len(run.results)} kernel results of {run.backend}" for run in runs.kernel]
    if runs.logits:
        words.append(count_words(len(runs.logits), "logits check"))
    return ", ".join(words) or "none ran in this session"


def write_reproducer(
    inspection: Inspection, tensor: str, folder: str, cancelled: Callable[[], bool] | None = None
) -> tuple[str, ...]:
    """Write the smallest checkpoint that shows the findings of one tensor.

    Returns:
        What was written and what it shows, in sentences.

    Raises:
        UnreadableError: the folder is not empty, or a plane's bytes are not all there.
        NoSuchTensorError: no tensor has the name.
    """
    from quantscope.checkpoint import Checkpoint
    from quantscope.cli.output import write_file
    from quantscope.report.reproducer import check_folder, reproduce
    from quantscope.rules.catalogue import judge
    from quantscope.session.pipeline import inspect

    def rescan(path: str) -> Sequence[Finding]:
        with Checkpoint.open(path) as copy:
            return inspect(copy, judge=judge, cancelled=cancelled).findings

    check_folder(folder)
    checkpoint = inspection.checkpoint
    made = reproduce(
        checkpoint,
        inspection.findings,
        checkpoint.find(tensor),
        folder,
        write=write_file,
        rescan=rescan,
    )
    words = [
        f"{folder}: {count_words(len(made.files), 'file')}, {size_words(made.nbytes)}, "
        f"{count_words(len(made.tensors), 'tensor')}",
        f"{count_words(len(made.shown), 'finding')} of the tensor "
        f"{'shows' if len(made.shown) == 1 else 'show'} in it too",
    ]
    words += [f"NOT in it: {found}: {reason}" for found, reason in made.not_shown]
    return tuple(words)


def preview_lines(preview: Preview, width: int) -> list[Line]:
    """The report as text; headings stand out, nothing is interpreted."""
    lines: list[Line] = []
    for raw in preview.text.splitlines():
        tone = "strong" if raw.startswith("#") else "plain"
        lines += [line((f" {piece}", tone)) for piece in wrap(inert(raw), width - 2)]
    if preview.cut:
        lines.append(line((" the preview ends here; the file holds all of it", "dim")))
    return lines
