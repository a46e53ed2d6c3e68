"""Small questions over a screen: where to, sure or not, which run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input

from quantscope_views.lines import Line, line, rule, wrap
from quantscope_views.present.run import menu_lines
from quantscope_views.screens.modal import Modal
from quantscope_views.widgets.lines_view import LinesView


class TextPrompt(Modal[str | None]):
    """Asks for one line of text; escape gives none."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    title_words = ""
    placeholder = ""

    def __init__(self, value: str = "") -> None:
        super().__init__()
        self._value = value

    def compose(self) -> ComposeResult:
        """A title and an input."""
        with Vertical(id="prompt"):
            yield LinesView(self._lines, id="prompt-title", cursor_on="never")
            yield Input(self._value, placeholder=self.placeholder, id="prompt-input", compact=True)

    def on_mount(self) -> None:
        """Type at once."""
        self.query_one("#prompt-input", Input).focus()

    def _lines(self, width: int) -> list[Line]:
        return [rule(self.title_words, width, "enter, esc")]

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        """No answer."""
        self.dismiss(None)


class GoToScreen(TextPrompt):
    """Where to: an offset, an element or a name."""

    title_words = "go to: 0x106b85, row,col or a name"
    placeholder = "0x... | 17,131 | name"


class PathPrompt(TextPrompt):
    """A path to read or to write, or other words."""

    def __init__(self, title: str, value: str = "", words: str = "path") -> None:
        super().__init__(value)
        self.title_words = title
        self.placeholder = words


class ConfirmScreen(Modal[bool]):
    """Says what an action costs and asks: y or enter, n or escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "yes", "yes", show=False),
        Binding("n,escape,q", "no", "no", show=False),
    ]

    def __init__(self, sentences: Sequence[str], what: str) -> None:
        super().__init__()
        self._sentences = tuple(sentences)
        self._what = what

    def compose(self) -> ComposeResult:
        """The sentences and the two answers."""
        with Vertical(id="prompt"):
            yield LinesView(self._build, id="prompt-title", cursor_on="never")

    def on_mount(self) -> None:
        """Keys go to the question."""
        self.query_one("#prompt-title", LinesView).can_focus = False

    def _build(self, width: int) -> list[Line]:
        lines = [rule(self._what, width)]
        for sentence in self._sentences:
            lines += [line(f" {piece}") for piece in wrap(sentence, width - 2)]
        lines.append(line((" y", "key"), f" {self._what}   ", ("n", "key"), " no"))
        return lines

    def action_yes(self) -> None:
        """Go on."""
        self.dismiss(True)

    def action_no(self) -> None:
        """Do nothing."""
        self.dismiss(False)


class RunMenu(Modal[str | None]):
    """Runs with their cost; Enter starts the one under the cursor.

    Args:
        logits_here: the logits check that the screen below offers, and the action behind it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,R", "cancel", "cancel", show=False)]

    def __init__(self, logits_here: tuple[str, str] | None = None) -> None:
        super().__init__()
        self._logits_here = logits_here

    def compose(self) -> ComposeResult:
        """One line a run."""
        with Vertical(id="prompt"):
            yield LinesView(
                lambda width: [rule("run: cost first", width, "enter, esc")],
                id="prompt-title",
                cursor_on="never",
            )
            yield LinesView(self._build, id="run-menu", cursor_on="always", help_topic="runs")

    def on_mount(self) -> None:
        """Choose at once."""
        self.query_one("#run-menu", LinesView).focus()

    def _build(self, width: int) -> list[Line]:
        workspace = getattr(self.app, "workspace", None)
        overview = workspace.overview if workspace is not None else None
        return menu_lines(overview, self._logits_here)

    def on_lines_view_action_chosen(self, message: LinesView.ActionChosen) -> None:
        """One was chosen."""
        message.stop()
        self.dismiss(message.action_id)

    def action_cancel(self) -> None:
        """None."""
        self.dismiss(None)
