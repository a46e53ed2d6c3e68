"""The app in a real terminal: a scripted triage in tmux, at both sizes, from the first screen to the ticket."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ui_driver import module_names, sharded_folder

pytestmark = [
    pytest.mark.tmux,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]

PATIENCE_S = 60.0


class Terminal:
    """One tmux pane with the app in it; every wait is for what the pane shows."""

    def __init__(
        self,
        folder: Path,
        size: tuple[int, int],
        command: list[str],
        locale: str = "C.UTF-8",
    ) -> None:
        self._socket = str(folder / "tmux.sock")
        self.folder = folder
        environment = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TERM": "tmux-256color",
            "LC_ALL": locale,
        }
        words = ["env", "-u", "NO_COLOR", *(f"{k}={v}" for k, v in environment.items()), *command]
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-s", "app", "-c", str(folder),
            "-x", str(size[0]), "-y", str(size[1]), *words,
        )  # fmt: skip

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", "-S", self._socket, *words], capture_output=True, text=True, check=False
        )
        return done.stdout

    def text(self) -> str:
        """What the pane shows."""
        return self._tmux("capture-pane", "-p", "-t", "app")

    def send(self, *keys: str) -> None:
        """Press keys."""
        self._tmux("send-keys", "-t", "app", *keys)

    def type(self, text: str) -> None:
        """Type a text."""
        self._tmux("send-keys", "-t", "app", "-l", text)

    def wait(self, what: str | Callable[[str], bool]) -> str:
        """The pane's text once it shows something."""
        until = time.monotonic() + PATIENCE_S
        shown = ""
        while time.monotonic() < until:
            shown = self.text()
            if what(shown) if callable(what) else what in shown:
                return shown
        raise AssertionError(f"{what!r} never showed; the pane:\n{shown}")

    def alive(self) -> bool:
        """Whether the app still runs."""
        return "app" in self._tmux("list-sessions", "-F", "#{session_name}")

    def close(self) -> None:
        """End this terminal's own server."""
        self._tmux("kill-server")


@pytest.fixture(params=[(80, 24), (160, 45)], ids=["80x24", "160x45"])
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """The app on three shards, one scale of the second being NaN."""
    sharded_folder(tmp_path / "drop", bad_scale=(5, 1, 9))
    opened = Terminal(tmp_path, request.param, [sys.executable, "-m", "quantscope", "open", "drop"])
    yield opened
    opened.close()


def test_a_bad_scale_is_found_shown_and_reported_by_keys(terminal: Terminal) -> None:
    shown = terminal.wait(lambda text: "BROKEN" in text and "scales 100%" in text)
    assert "NEEDS YOU" in shown
    terminal.send("b")
    shown = terminal.wait("cursor: out 9, in 128")
    assert f"{module_names(12)[5]}"[-12:] in shown
    assert "NaN" in shown
    assert "model-00002-of-00003.safetensors" in shown
    assert len(shown.splitlines()) <= 45
    terminal.send("i")
    terminal.wait("how do I know")
    terminal.send("Escape")
    terminal.wait(lambda text: "how do I know" not in text)
    terminal.send("e")
    terminal.wait("[Ticket .md]")
    terminal.send("f")
    terminal.wait("[json]")
    terminal.wait(lambda text: "being made" not in text)
    terminal.send("w")
    terminal.wait("write to")
    terminal.send("Enter")
    terminal.wait("written: report.json")
    document = json.loads((terminal.folder / "report.json").read_text())
    found = [entry for entry in document["findings"] if entry["severity"] == "violation"]
    assert found
    assert any(entry["subject"]["file"] == "model-00002-of-00003.safetensors" for entry in found)
    terminal.send("q")
    until = time.monotonic() + PATIENCE_S
    while terminal.alive() and time.monotonic() < until:
        continue
    assert not terminal.alive(), terminal.text()


@pytest.mark.parametrize(
    ("options", "locale"),
    [(["--ascii"], "C.UTF-8"), ([], "C"), ([], "en_US.ISO-8859-1")],
    ids=["asked", "C", "latin-1"],
)
def test_ascii_terminals_get_ascii(tmp_path: Path, options: list[str], locale: str) -> None:
    sharded_folder(tmp_path / "drop", bad_scale=(5, 1, 9))
    command = [sys.executable, "-m", "quantscope", "open", "drop", *options]
    opened = Terminal(tmp_path, (80, 24), command, locale)
    try:
        shown = opened.wait(lambda text: "BROKEN" in text and "scales 100%" in text)
        assert shown.isascii(), [char for char in shown if not char.isascii()]
    finally:
        opened.close()


def test_a_deep_link_opens_at_the_byte(tmp_path: Path) -> None:
    sharded_folder(tmp_path / "drop", bad_scale=(-1, 0, 0))
    name = module_names(12)[7]
    command = [
        sys.executable, "-m", "quantscope", "open", "drop",
        "--tensor", name, "--tab", "bytes", "--at", "9,128",
    ]  # fmt: skip
    opened = Terminal(tmp_path, (80, 24), command)
    try:
        opened.wait("cursor: out 9, in 128")
    finally:
        opened.close()


def test_without_a_path_the_app_lists_what_was_open_before(tmp_path: Path) -> None:
    sharded_folder(tmp_path / "drop", bad_scale=(-1, 0, 0))
    first = Terminal(tmp_path, (80, 24), [sys.executable, "-m", "quantscope", "open", "drop"])
    try:
        first.wait("scales 100%")
        first.send("t")
        first.wait("by file order")
        first.send("q")
        until = time.monotonic() + PATIENCE_S
        while first.alive() and time.monotonic() < until:
            continue
    finally:
        first.close()
    again = Terminal(tmp_path, (80, 24), [sys.executable, "-m", "quantscope"])
    try:
        shown = again.wait("open before:")
        assert str(tmp_path / "drop") in shown.replace("\n", "") or "drop" in shown
        again.send("Down", "Down", "Enter")
        again.wait("last place:")
    finally:
        again.close()
