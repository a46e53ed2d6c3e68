"""The one registry of actions: bindings, footer, palette, help and the page of keys come from it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Something a person can do.

    `id` is stable and names the action in a keymap. `owner` says which class binds it: `app`, a screen or
    a widget. `handler` is the method behind it, without `action_`. Without keys it lives in the palette.
    """

    id: str
    owner: str
    handler: str
    title: str
    """Palette and help text, with its namespace: `view: Tensors`."""
    tooltip: str
    keys: tuple[str, ...] = ()
    label: str = ""
    """Short text for the footer."""
    footer: int = 0
    """Rank in the footer, highest first; 0 keeps it out."""


def _action(
    id: str,  # noqa: A002 - the word that keymaps use
    title: str,
    tooltip: str,
    keys: str = "",
    label: str = "",
    footer: int = 0,
    handler: str = "",
) -> Action:
    owner, _, name = id.partition(".")
    return Action(
        id=id,
        owner=owner,
        handler=handler or name.replace("-", "_"),
        title=title,
        tooltip=tooltip,
        keys=tuple(keys.split()),
        label=label,
        footer=footer,
    )


ACTIONS: tuple[Action, ...] = (
    # Everywhere
    _action("app.help", "help: this pane", "Help of the pane in focus.", "question_mark", "help", 20),
    _action("app.quit", "app: quit", "Leave; asks only when a job runs.", "q", "quit", 1),
    _action("app.back", "go: back", "Back to where you came from.", "escape", "back", 2, "go_back"),
    _action("app.show-triage", "view: Triage", "Findings, worst first.", "T", "Triage", 4),
    _action("app.show-tensors", "view: Tensors", "Every logical tensor.", "t", "tensors", 5),
    _action("app.show-compare", "view: Compare", "Against another checkpoint.", "c", "compare", 8),
    _action("app.show-report", "export: report", "Write a ticket or a report.", "e", "report", 12),
    _action("app.show-jobs", "view: Jobs", "What runs, ran or was stopped."),
    _action("app.run-menu", "run: choose a run", "Runs with their cost first.", "R", "run", 7),
    _action("app.open-run", "run: kernel or logits check", "To the Run tab of a tensor."),
    _action("app.stop-job", "run: stop the job", "Stop; what is done is kept.", "x", "stop job", 11),
    _action("app.filter", "go: filter tensors", "Filter as you type.", "slash", "filter", 10),
    _action("app.go-to", "go: offset, row,col or name", "Go to a byte, element or name.", "g", "go to", 13),
    _action("app.how", "explain: how do I know", "Where the number comes from.", "i", "how", 14),
    _action("app.copy", "copy: this", "Copy the line or the place in focus.", "y", "copy", 9),
    _action("app.copy-link", "copy: link to this place", "The command that leads back here."),
    _action("app.next-finding", "go: next finding", "Next finding or difference.", "n", "next", 15),
    _action("app.previous-finding", "go: previous finding", "Previous finding or difference.", "N"),
    _action("app.reload", "app: reload", "Open the checkpoint again.", "f5"),
    _action("app.open-path", "app: open another checkpoint", "Choose a file or folder."),
    _action("app.open-recent", "app: open what was open last", "The newest checkpoint of earlier sessions."),
    _action("app.open-sample", "app: open a sample", "Bundled sample checkpoints."),
    _action("app.deep-scan", "run: deep scan", "Read every code; cost shown first."),
    _action("app.export-json", "export: JSON report now", "Write report.json at once."),
    _action("app.show-rules", "explain: all rules", "Every rule with its page."),
    _action("app.show-plugins", "explain: plugins that failed", "Families and rules of others, and what they raised."),
    _action("app.show-terms", "explain: terms and marks", "Words and marks on the screens."),
    _action("app.last-place", "go: last place", "Where the last session in these files ended."),
    _action("app.theme-dark", "view: dark theme", "Okabe-Ito on dark."),
    _action("app.theme-light", "view: light theme", "Okabe-Ito on light."),
    _action("app.theme-mono", "view: monochrome theme", "No colour at all."),
    # Moving, in every pane of lines
    _action("move.up", "move: up", "One line up.", "up k"),
    _action("move.down", "move: down", "One line down.", "down j"),
    _action("move.left", "move: left", "To the left.", "left h"),
    _action("move.right", "move: right", "To the right.", "right l"),
    _action("move.page-up", "move: page up", "One page up.", "pageup"),
    _action("move.page-down", "move: page down", "One page down.", "pagedown"),
    _action("move.first", "move: first", "To the first.", "home"),
    _action("move.last", "move: last", "To the last.", "end"),
    _action("move.choose", "go: open", "Open what the cursor is on.", "enter", "open", 30),
    # Triage
    _action("triage.rule-page", "explain: rule of this finding", "The rule's page.", "r", "rule", 6),
    _action("triage.accept", "export: accept this finding", "Into the baseline, with a reason, for 90 days."),
    _action("triage.guilty-byte", "go: byte of this finding", "Straight to the byte.", "b", "byte", 16),
    # Tensors
    _action("tensors.tree", "view: tree or flat list", "Tree by module, or flat.", "v", "tree", 18),
    _action("tensors.sort", "view: sort by next column", "Sort by the next column.", "s", "sort", 17),
    _action("tensors.reverse", "view: reverse order", "Turn the order round.", "S"),
    _action("tensors.clear", "view: clear filter", "Show every tensor again.", "backspace"),
    # One tensor
    _action("tensor.contract", "view: Contract tab", "Declared and inferred.", "1"),
    _action("tensor.zero", "view: Zero tab", "Zero readings side by side.", "2"),
    _action("tensor.bytes", "view: Bytes tab", "Bytes, codes and values.", "3"),
    _action("tensor.run", "view: Run tab", "Kernel and logits checks.", "4"),
    _action("tensor.start-run", "run: the check under the cursor", "Start what the line names; cost stands there."),
    _action("tensor.zero-reading", "what-if: zero reading", "Show the other zero reading.", "z", "zero", 25),
    _action("tensor.order-reading", "what-if: order reading", "Show another packing order.", "o", "order", 24),
    _action("tensor.file-reading", "what-if: back to the file's", "What the file says.", "Z", "file's", 27),
    # Bytes
    _action("bytes.next-group", "move: next group", "Next group.", "right_square_bracket", "group", 26),
    _action("bytes.previous-group", "move: previous group", "Previous group.", "left_square_bracket"),
    _action("bytes.next-word", "move: next word", "Next stored word.", "shift+right"),
    _action("bytes.previous-word", "move: previous word", "Previous stored word.", "shift+left"),
    _action("bytes.next-row", "move: next row (out)", "Same column, next row.", "shift+down"),
    _action("bytes.previous-row", "move: previous row (out)", "Same column, row before.", "shift+up"),
    _action("bytes.next-plane", "move: next plane", "Codes, zeros, scales.", "p", "plane", 19),
    _action("bytes.next-end-code", "go: next code at an end", "Next code at either end."),
    _action("bytes.next-bad-scale", "go: next non-finite scale", "Next NaN, Inf or zero scale."),
    _action("bytes.next-difference", "go: next difference of readings", "Next value that differs."),
    _action("bytes.raw", "view: raw hex here", "Plain hex of the file."),
    _action("bytes.copy-value", "copy: value", "The decoded value."),
    _action("bytes.copy-hex", "copy: bytes as hex", "The bytes of the line."),
    _action("bytes.copy-python", "copy: Python literal", "Codes and value as Python."),
    _action("bytes.copy-markdown", "copy: Markdown table row", "One row for a ticket."),
    # Compare
    _action("compare.zeros", "view: Zeros", "Zero planes of both sides.", "1"),
    _action("compare.contracts", "view: Contract differences", "Fields that differ.", "2"),
    _action("compare.values", "view: Values", "Decoded values of both sides.", "3"),
    _action("compare.only", "view: Only in one", "Tensors of one side only.", "4"),
    _action("compare.logits", "view: Logits", "Logits of both sides on the same tokens.", "5"),
    _action("compare.start-logits", "run: logits check of both sides", "Its cost stands on the Logits tab."),
    _action("compare.swap-rules", "what-if: swap the zero rules", "Each side by the other's rule.", "z", "swap rules", 25),
    _action("compare.choose-other", "run: choose the other checkpoint", "File or folder to compare with.", "o", "other", 24),
    _action("compare.two-readings", "run: compare two readings", "This checkpoint under the other zero rule."),
    _action("compare.only-differences", "view: only what differs", "Hide equal rows.", "d", "differs", 23),
    # Report
    _action("report.scope", "export: scope on or off", "Include or leave out.", "space", "scope", 28),
    _action("report.format", "export: next format", "Markdown, JSON, HTML, SARIF.", "f", "format", 27),
    _action("report.write", "export: write the file", "Write where the line says.", "w", "write", 29),
    _action("report.redact", "export: hide folders", "Leave folder names out.", "p"),
    _action("report.runs", "export: runs in or out", "Checks of this session in the report.", "u"),
    _action("report.copy-command", "copy: command for this report", "What makes the same report without the app."),
    _action("report.reproducer", "export: reproducer", "The smallest checkpoint with the finding.", "r", "repro", 26),
)  # fmt: skip


def owned_by(owner: str) -> tuple[Action, ...]:
    """Actions that a class binds or the palette offers for it."""
    return tuple(action for action in ACTIONS if action.owner == owner)


def by_id(action_id: str) -> Action:
    """An action by its id.

    Raises:
        KeyError: none has it.
    """
    for action in ACTIONS:
        if action.id == action_id:
            return action
    raise KeyError(action_id)


KEY_SHOWN = {
    "question_mark": "?",
    "slash": "/",
    "escape": "esc",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def shown_key(key: str, ascii_only: bool = False) -> str:
    """A key as the footer and the help show it."""
    if ascii_only and key in ("up", "down", "left", "right"):
        return key
    head, plus, tail = key.rpartition("+")
    return head + plus + KEY_SHOWN.get(tail, tail)


def keys_markdown(actions: Iterable[Action] = ACTIONS) -> str:
    """The page of keys, as docs/keys.md holds it."""
    rows = [
        "# Keys",
        "",
        "Made from the actions registry. Remap by id in `keymap.toml` of the user config folder:",
        "",
        "```toml",
        '"app.show-tensors" = "f2"',
        "```",
        "",
        "Tab and shift+tab change the pane, ctrl+p opens the palette. Actions without a key live there.",
    ]
    owner = ""
    for action in actions:
        if action.owner != owner:
            owner = action.owner
            rows += [
                "",
                f"## {OWNER_TITLES[owner]}",
                "",
                "| key | id | does |",
                "| --- | --- | --- |",
            ]
        keys = " ".join(f"`{shown_key(key, ascii_only=True)}`" for key in action.keys) or "palette"
        rows.append(f"| {keys} | `{action.id}` | {action.title}. {action.tooltip} |")
    return "\n".join(rows) + "\n"


OWNER_TITLES = {
    "app": "Everywhere",
    "move": "Moving",
    "triage": "Triage",
    "tensors": "Tensors",
    "tensor": "One tensor",
    "bytes": "Bytes",
    "compare": "Compare",
    "report": "Report",
}
