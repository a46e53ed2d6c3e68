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

from quantscope_views.lines import Line, Span, cut_end, cut_middle, line, rule, wrap
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


def choices_for(
    inspection: Inspection, finding: Finding | None, tensor: str | None
) -> ReportChoice:
    """Scopes that fit where the screen was called from, the narrowest useful one chosen."""
    scopes: list[ReportScope] = []
    if finding is not None:
        members = count_words(finding.count, "tensor") if finding.count > 1 else "1 subject"
        scopes.append(
            ReportScope(
                kind="finding",
                words=f"{finding.code} ({members})",
                selection=Selection(findings=(finding.id,)),
            )
        )
    if tensor is not None:
        short = ".".join(tensor.removesuffix(".weight").split(".")[-2:])
        scopes.append(
            ReportScope(
                kind="tensor", words=f"{short} only", selection=Selection(tensors=(tensor,))
            )
        )
    scopes.append(
        ReportScope(
            kind="checkpoint",
            words=f"checkpoint ({count_words(len(inspection.states), 'tensor')})",
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
        command="quantscope (app)",
        **(_run_options(choice.runs) if choice.with_runs else {}),
    )
    return build([inspection], options, judge=judge, cancelled=cancelled)


def _run_options(runs: Runs) -> dict[str, Any]:
    """Entries and gates of the checks that ran; the last kernel run speaks for its gate."""
    from quantscope.parity.entries import kernel_gate, report_entry

    gates: dict[str, Any] = {}
    options: dict[str, Any] = {"gates": gates}
    if runs.kernel:
        options["parity"] = tuple(report_entry(r) for run in runs.kernel for r in run.results)
        gates["kernel"] = kernel_gate(runs.kernel[-1])
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
    """The two lines of choices."""
    spans = [Span(" Report    scope", "head")]
    for number, scope in enumerate(choice.scopes):
        mark = "[x]" if number == choice.scope else "[ ]"
        tone = "strong" if number == choice.scope else "plain"
        spans.append(Span(f" {mark} {inert(scope.words)} ", tone))
    forms = [Span(" ")]
    for number, (_, title, _) in enumerate(FORMS):
        chosen = number == choice.form
        forms.append(Span(f"[{title}]" if chosen else f" {title} ", "strong" if chosen else "dim"))
    hide = "[x]" if choice.redact else "[ ]"
    forms.append(Span(f"     hide folders {hide}"))
    ran = "[x]" if choice.runs and choice.with_runs else "[ ]"
    forms.append(Span(f"    with runs {ran}", "plain" if choice.runs else "dim"))
    return [
        Line(
            spans=tuple(spans),
            about=("space: the next scope; a report claims nothing beyond its scope",),
            action="report.scope",
        ),
        Line(
            spans=tuple(forms),
            about=(
                "f: the next format; folders of this machine are left out unless asked for",
                f"with runs: {_runs_words(choice.runs)}",
            ),
            action="report.format",
        ),
    ]


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
        f"{count_words(len(made.shown), 'finding')} of the tensor show in it too",
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


def foot_lines(choice: ReportChoice, preview: Preview | None, path: str, width: int) -> list[Line]:
    """What the report does not claim, and how to check it again later."""
    size = (
        f"{count_words(preview.lines, 'line')}, {size_words(preview.size)}"
        if preview is not None
        else "being made"
    )
    name = choice.file_name
    recheck = "report.json" if choice.form_name != "json" else name
    left_out = (
        f"about the {preview.left_out_tensors} other quantized tensors, nor "
        if preview is not None and preview.left_out_tensors
        else ""
    )
    shown = cut_middle(shlex.quote(inert(path)), max(40, width - 62))
    rows = (
        f" claims nothing {left_out}about model quality",
        f" goes to:  {os.path.join(os.getcwd(), name) if not choice.redact else name}   (w: write)",
        f" later:  quantscope recheck {recheck} {shown}    exit 1 if it differs",
        f" in CI:  quantscope scan {shown} --fail-on disagreement",
    )
    return [rule(size, width), *(line((cut_end(row, width), "dim")) for row in rows)]


def written_words(paths: Sequence[str]) -> str:
    """What was written."""
    return "written: " + ", ".join(paths)
