"""Pages over a screen: how a number is known, help of a pane, a rule, terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical

from quantscope_views.actions import ACTIONS, by_id, shown_key
from quantscope_views.lines import Line, Span, line, rule, wrap
from quantscope_views.marks import MATCH_MARKS, SEVERITY_MARKS
from quantscope_views.screens.modal import Modal
from quantscope_views.widgets.lines_view import LinesView


class WhyScreen(Modal[None]):
    """A few sentences over the screen; any of escape, enter, i and q closes them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,i,q", "close", "close", show=False),
    ]

    def __init__(self, title: str, sentences: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._sentences = tuple(sentences)

    def compose(self) -> ComposeResult:
        """One scrolling pane."""
        with Vertical(id="page"):
            yield LinesView(self._build, id="page-lines", cursor_on="never")

    def on_mount(self) -> None:
        """The text has focus, so that it scrolls."""
        self.query_one("#page-lines", LinesView).focus()

    def _build(self, width: int) -> list[Line]:
        lines = [rule(self._title, width, "esc closes")]
        for sentence in self._sentences:
            indent = len(sentence) - len(sentence.lstrip())
            for i, piece in enumerate(wrap(sentence.strip(), width - indent - 3)):
                lines.append(line(" " * (indent + (1 if i == 0 else 3)) + piece))
        return lines

    @property
    def text(self) -> str:
        """The page as plain text."""
        return "\n".join(self._sentences)

    def action_close(self) -> None:
        """Back to the screen below."""
        self.dismiss(None)


class HelpScreen(WhyScreen):
    """Help of one pane: what it is, and every key that works there now."""

    def __init__(self, topic: str, bindings: Mapping[str, Any]) -> None:
        super().__init__(f"help: {topic}", ())
        self._topic = topic
        self._active = dict(bindings)

    def _build(self, width: int) -> list[Line]:
        lines = [rule(self._title, width, "esc closes")]
        ascii_only = bool(getattr(self.app, "ascii_only", False))
        lines += markdown_lines(help_text(self._topic, ascii_only), width)
        keys: dict[str, list[str]] = {}
        known = {action.id for action in ACTIONS}
        for key, active in self._active.items():
            if active.binding.id in known:
                keys.setdefault(active.binding.id, []).append(shown_key(key, ascii_only))
        if keys:
            lines.append(line(""))
            lines.append(rule("keys that work here", width))
        for action in ACTIONS:
            if action.id in keys:
                shown = " ".join(keys[action.id])
                lines.append(
                    Line(
                        spans=(
                            Span(f" {shown:>14}  ", "key"),
                            Span(f"{by_id(action.id).tooltip}"),
                            Span(f"   {action.id}", "dim"),
                        )
                    )
                )
        if keys:
            lines.append(line(("         ctrl+p  ", "key"), "Everything else: the palette."))
        return lines

    @property
    def text(self) -> str:
        """The page as plain text."""
        return self.query_one("#page-lines", LinesView).text


def help_text(topic: str, ascii_only: bool = False) -> str:
    """The Markdown of a help page; an empty one where the topic has none."""
    page = files("quantscope_views") / "help" / f"{topic}.md"
    if not page.is_file():
        return f"# {topic}\n\nNo page.\n"
    text = page.read_text(encoding="utf-8")
    for mark in (*MATCH_MARKS.values(), *SEVERITY_MARKS.values()) if ascii_only else ():
        if not mark.glyph.isascii():
            text = text.replace(f"{mark.glyph} {mark.ascii}", mark.ascii)
    return text


def markdown_lines(text: str, width: int) -> list[Line]:
    """Headings, paragraphs, lists and tables of a help page as lines; nothing is interpreted as markup."""
    lines: list[Line] = []
    paragraph: list[str] = []
    item: list[str] = []

    def flush() -> None:
        if item:
            pieces = wrap(" ".join(item), width - 5)
            lines.extend(line(f"  {' ' if i else '-'} {piece}") for i, piece in enumerate(pieces))
            item.clear()
        if paragraph:
            lines.extend(line(f" {piece}") for piece in wrap(" ".join(paragraph), width - 2))
            paragraph.clear()

    for raw in text.splitlines():
        stripped = raw.strip()
        if stripped.startswith("#"):
            flush()
            lines.append(line((f" {stripped.lstrip('# ')}", "strong")))
        elif stripped.startswith(("- ", "* ")):
            flush()
            item.append(stripped[2:].replace("`", ""))
        elif item and stripped and raw.startswith("  "):
            item.append(stripped.replace("`", ""))
        elif not stripped:
            flush()
            lines.append(line(""))
        else:
            if item:
                flush()
            paragraph.append(stripped.replace("`", ""))
    flush()
    return lines


def rule_lines(code: str) -> tuple[str, tuple[str, ...]]:
    """Title and sentences of a rule's page, or of the list of all rules for an empty code."""
    try:
        from quantscope.rules.catalogue import catalogue
    except ImportError:
        return f"rule {code}", (f"quantscope rule {code} shows the page of this rule",)
    rules = dict(catalogue())
    if code not in rules:
        sentences = [f"{known.code}  {known.name}" for known in rules.values()]
        return f"{len(rules)} rules", tuple(sentences)
    found = rules[code]
    page = found.page
    return f"{code} {found.name}", (
        f"checks: {page.checks}",
        f"why it matters: {page.why}",
        f"evidence: {page.evidence}",
        f"does not prove: {page.proves_not}",
        f"sample: {page.sample}",
        *([f"reported in {', '.join(page.reports)}"] if page.reports else []),
    )
