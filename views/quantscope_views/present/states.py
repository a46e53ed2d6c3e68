"""Every state that a pane can be in, in the same words everywhere: what, where, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from quantscope.errors import QuantscopeError
from quantscope.session.events import Progress
from quantscope.text import inert

from quantscope_views.actions import by_id, shown_key
from quantscope_views.lines import Line, Span, line, shown_name, wrap
from quantscope_views.present.words import seconds_words, size_words

StateKind = Literal[
    "empty", "loading", "partial", "error", "unsupported", "stopped", "stale", "not_run"
]

TITLES: dict[str, tuple[str, str]] = {
    "empty": ("Nothing to show", "strong"),
    "loading": ("Loading", "strong"),
    "partial": ("Partial", "check"),
    "error": ("Error", "broken"),
    "unsupported": ("Not supported", "check"),
    "stopped": ("Stopped", "check"),
    "stale": ("The file changed on disk", "contradicts"),
    "not_run": ("Not run", "strong"),
}


class PaneState(msgspec.Struct, frozen=True, kw_only=True):
    """One state of a pane.

    `actions` are ids of the registry, each with the words that offer it here.
    """

    kind: StateKind
    what: str
    detail: tuple[str, ...] = ()
    actions: tuple[tuple[str, str], ...] = ()
    recent: tuple[str, ...] = ()
    """Checkpoints of earlier sessions, each of which Enter opens."""


def state_lines(state: PaneState, width: int, *, compact: bool = False) -> list[Line]:
    """The lines of a state pane; compact without empty ones, where it stands above other panes."""
    title, tone = TITLES[state.kind]
    lines = [] if compact else [line("")]
    lines += [
        line((f" {title}: " if i == 0 else "   ", tone), piece)
        for i, piece in enumerate(wrap(inert(state.what), width - len(title) - 5))
    ]
    for text in state.detail:
        lines += [line("   " + piece) for piece in wrap(inert(text), width - 5)]
    if state.actions and not compact:
        lines.append(line(""))
    # Enter runs the first offer, so the one that is labelled Enter stands first.
    for action_id, words in sorted(state.actions, key=lambda offer: bool(by_id(offer[0]).keys)):
        action = by_id(action_id)
        key = shown_key(action.keys[0]) if action.keys else "enter"
        lines.append(
            Line(
                spans=(Span("   "), Span(f"{key:>6}", "key"), Span(f"  {words}")),
                action=action_id,
            )
        )
    if state.recent:
        lines += [line(""), line(("   open before:", "head"))]
    for path in state.recent:
        shown = shown_name(path, width - 14)
        spans = (Span("   "), Span(" enter", "key"), Span(f"  {shown}"))
        lines.append(Line(spans=spans, about=(path,), action="app.open-recent", key=path))
    return lines


def error_state(problem: QuantscopeError | None, note: str = "", details: str = "") -> PaneState:
    """An error: cause, file, hint; the folded details last."""
    what = problem.message if problem is not None else note or "unknown failure"
    detail = []
    if problem is not None and problem.source and problem.source not in what:
        detail.append(f"in {problem.source}")
    if problem is not None and problem.hint:
        detail.append(f"try: {problem.hint}")
    if details:
        detail.append(f"details: {details}")
    return PaneState(
        kind="error",
        what=what,
        detail=tuple(detail),
        actions=(("app.reload", "try again"), ("app.open-path", "open something else")),
    )


def loading_state(what: str, progress: Progress | None, seen: str = "") -> PaneState:
    """Loading, with how far and for how long; time left only once it means something."""
    return PaneState(
        kind="loading",
        what=what,
        detail=tuple(text for text in (seen, progress_words(progress) if progress else "") if text),
        actions=(("app.stop-job", "stop; what is done is kept"),),
    )


def progress_words(progress: Progress) -> str:
    """`examine 45 of 272 tensors, 120/s, 2s left`."""
    if progress.unit == "%":
        done, whole, rate = f"{100 * progress.done // max(1, progress.total or 1)} %", "", ""
    elif progress.unit == "bytes":
        done = size_words(progress.done)
        whole = f" of {size_words(progress.total)}" if progress.total else ""
        rate = f", {size_words(int(progress.rate))}/s" if progress.elapsed_s > 0.5 else ""
    else:
        done = str(progress.done)
        whole = f" of {progress.total} {progress.unit}" if progress.total else f" {progress.unit}"
        known = progress.elapsed_s > 0.5 and progress.rate >= 0.5
        rate = f", {progress.rate:.0f}/s" if known else ""
    left = progress.remaining_s
    tail = f", {seconds_words(left)} left" if left is not None and left >= 0.05 else ""
    return f"{progress.stage} {done}{whole}{rate}{tail}"


def no_match_state(text: str, hidden: int) -> PaneState:
    """A filter that leaves nothing."""
    return PaneState(
        kind="empty",
        what=f'no tensor matches "{text}"',
        detail=(f"{hidden} tensors are hidden by the filter",),
        actions=(("tensors.clear", "clear the filter"),),
    )


def nothing_open_state(recent: Sequence[str] = ()) -> PaneState:
    """The app without a checkpoint."""
    return PaneState(
        kind="empty",
        what="no checkpoint is open",
        detail=(
            "a safetensors or GGUF file, a checkpoint folder, an index, or one part of a split set",
        ),
        recent=tuple(recent),
        actions=(
            ("app.open-path", "open a file or folder"),
            ("app.open-sample", "open a bundled sample"),
        ),
    )


def stale_state(reason: str) -> PaneState:
    """A file changed under the app."""
    return PaneState(
        kind="stale",
        what=reason,
        detail=("what is on the screens was read before the change",),
        actions=(("app.reload", "reload"),),
    )
