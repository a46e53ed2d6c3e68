"""The app in a headless Chromium: the page opens, a key moves the cursor, the picture shows the app."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ui_driver import gptq_folder

aiohttp = pytest.importorskip("aiohttp", reason="the extra `serve` is not installed")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE_S = 90.0

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no headless Chromium is installed"),
]


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Page:
    """One tab, spoken to by the DevTools protocol; keeps what the app wrote to the page's terminal."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.written = ""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._connection:
            found = json.loads(message.data)
            if found.get("method") == "Network.webSocketFrameReceived":
                frame = found["params"]["response"]
                data = frame["payloadData"]
                if frame["opcode"] == 2:
                    data = base64.b64decode(data).decode("utf-8", "replace")
                self.written += data
            elif found.get("id") in self._answers:
                self._answers.pop(found["id"]).set_result(found.get("result", {}))

    async def call(self, method: str, **params: Any) -> Any:
        """One command and its answer."""
        number = next(self._ids)
        answer = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        await self._connection.send_json({"id": number, "method": method, "params": params})
        return await asyncio.wait_for(answer, PATIENCE_S)

    async def wrote(self, words: str) -> None:
        """Wait until the app has written some words since the last call."""

        async def there() -> None:
            while words not in self.written:
                await asyncio.sleep(0.05)

        await asyncio.wait_for(there(), PATIENCE_S)
        self.written = ""

    async def press(self, key: str) -> None:
        """One key, as a person presses it."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            codes = {"ArrowDown": 40, "Enter": 13}
            code = codes.get(key, ord(key[0].upper()))
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
            )

    async def picture(self) -> bytes:
        """A PNG of the page."""
        found = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])


async def reachable(session: Any, url: str) -> None:
    """Wait until a server answers."""

    async def tries() -> None:
        while True:
            try:
                async with session.get(url) as answer:
                    await answer.read()
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)

    await asyncio.wait_for(tries(), PATIENCE_S)


async def debugger_url(session: Any, profile: Path) -> str:
    """Where the browser's tab listens."""

    async def there() -> str:
        while not (profile / "DevToolsActivePort").is_file():
            await asyncio.sleep(0.05)
        port = (profile / "DevToolsActivePort").read_text().splitlines()[0]
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                for target in await answer.json():
                    if target["type"] == "page":
                        return str(target["webSocketDebuggerUrl"])
            await asyncio.sleep(0.05)

    return await asyncio.wait_for(there(), PATIENCE_S)


async def test_the_app_opens_moves_and_shows_in_a_browser(tmp_path: Path) -> None:
    assert BROWSER is not None
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    port = free_port()
    profile = tmp_path / "profile"
    environment = {
        **{k: v for k, v in os.environ.items() if k != "NO_COLOR"},
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "HOME": str(tmp_path),
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "quantscope", "serve", str(folder), "--port", str(port)],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    browser = subprocess.Popen(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1200,800",
            "about:blank",
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with aiohttp.ClientSession() as session:
            await reachable(session, f"http://127.0.0.1:{port}/")
            url = await debugger_url(session, profile)
            async with session.ws_connect(url, max_msg_size=0) as connection:
                page = Page(connection)
                await page.call("Network.enable")
                await page.call("Page.enable")
                blank = await page.picture()
                await page.call("Page.navigate", url=f"http://127.0.0.1:{port}/")
                await page.wrote("CONTRADICTS")
                focus = "document.querySelector('.xterm-helper-textarea').focus()"
                await page.call("Runtime.evaluate", expression=focus)
                await page.press("t")
                await page.wrote("model.layers.0.self_attn.q_proj.weight")
                before = await page.picture()
                await page.press("ArrowDown")
                await page.wrote("model.layers.0.self_attn.k_proj.weight")
                after = await page.picture()
                assert len(before) > 2 * len(blank)
                assert before != after
    finally:
        for process in (browser, server):
            process.terminate()
        for process in (browser, server):
            process.wait(20)


def test_the_server_listens_on_the_loopback_unless_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quantscope", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "127.0.0.1" in done.stdout
