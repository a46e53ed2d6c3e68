"""Copying: OSC 52 through the terminal, pyperclip where installed; neither can confirm that it arrived."""

from __future__ import annotations

import importlib
from typing import Any

from textual.app import App

FILE_INSTEAD = 100_000
"""Longer texts are written to a file: many terminals drop them."""


def copied_words(app: App[Any], text: str) -> str:
    """Send a text to the clipboard and say what was done."""
    if len(text) > FILE_INSTEAD:
        return f"{len(text)} characters are too many for a terminal; use e and write a file"
    app.copy_to_clipboard(text)
    try:
        pyperclip = importlib.import_module("pyperclip")
        pyperclip.copy(text)
    except (ImportError, RuntimeError):  # pyperclip's own error is a RuntimeError
        return f"sent to the terminal ({len(text)} characters)"
    return f"copied, and sent to the terminal ({len(text)} characters)"
