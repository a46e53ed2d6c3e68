"""Names and values of a checkpoint that are made to break screens: they stay text, everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope_views.lines import cells, cut_middle, fit, shown_name
from quantscope_views.place import Place, link
from ui_driver import Gptq, gptq_config, idle, make_app, press, screen_text, typed

HOSTILE = (
    "[/]",
    "[b",
    "[bold red]x[/bold red]",
    "\x1b[31mred\x1b[0m\x1b]52;c;QUJD\x07",
    "\u202eevil\u202c",
    "line\nbreak\ttab\r",
    "漢字" * 40,
    "a\u0301" * 30,
    "x" * 10_000,
    "${jndi}[@click=app.quit]q[/]",
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    "\x00\x07\x9b31m",
)


pytestmark = pytest.mark.usefixtures("own_folders")


def hostile_folder(folder: Path) -> Path:
    """GPTQ modules, plain and strange tensors, and a config, all with hostile text."""
    tensors: dict[str, Any] = {}
    for number, name in enumerate(HOSTILE):
        module = Gptq(number, n_out=16, n_in=128)
        tensors |= module.tensors(f"model.{name}.proj{number}")
    tensors["[b].plain\x1b[2J"] = np.ones(4, np.float16)
    tensors["\x1b[5m.codes[/]"] = np.zeros((64, 64), np.uint8)
    config = gptq_config("[/red]\x1b[31m")
    config["quantization_config"]["meta"] = {"quantizer": ["[b\x1b]0;title\x07"]}
    return write_checkpoint(folder, tensors, config, metadata={"format": "[/]\x1b[31m"})


def assert_inert(text: str) -> None:
    """No control, escape or bidi character; lines as wide as the screen."""
    for char in text.replace("\n", ""):
        assert char.isprintable(), repr(char)
        assert char not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


async def test_no_name_reaches_the_terminal_raw_on_any_screen(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / "hostile")
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert app.workspace.table is not None
        assert_inert(screen_text(app))
        await press(pilot, "i")
        assert_inert(screen_text(app))
        await press(pilot, "escape", "t")
        shown = screen_text(app)
        assert_inert(shown)
        assert "[/]" in shown
        assert "[b" in shown
        for row in range(min(6, len(app.workspace.table))):
            name = app.workspace.table.rows[row].name
            app.open_tensor(name)
            await idle(pilot)
            for key in ("1", "2", "3", "4"):
                await press(pilot, key)
                assert_inert(screen_text(app))
                await press(pilot, "i")
                assert_inert(screen_text(app))
                if len(app.screen_stack) > 3:
                    await press(pilot, "escape")
        await press(pilot, "T", "e", "f", "f")
        assert_inert(screen_text(app))
        app.run_registered("app.show-jobs")
        await idle(pilot)
        assert_inert(screen_text(app))
        await pilot.press("ctrl+p")
        await typed(pilot, "proj")
        assert_inert(screen_text(app))


async def test_every_hostile_name_can_be_filtered_and_opened(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / "hostile")
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "slash")
        await typed(pilot, "proj3")
        assert "1 of" in screen_text(app)
        await press(pilot, "enter", "enter")
        assert app.screen.tensor_name.endswith("proj3.weight")  # type: ignore[attr-defined]


async def test_copied_text_is_what_the_file_says_but_notices_are_inert(tmp_path: Path) -> None:
    folder = hostile_folder(tmp_path / "hostile")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await press(pilot, "t", "y")
        assert app.clipboard.startswith("model.")
        assert_inert(screen_text(app))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [0, 1, 3, 12, 40])
def test_a_name_takes_at_most_its_cells_and_is_inert(name: str, width: int) -> None:
    shown = shown_name(name, width)
    assert cells(shown) <= width
    assert cells(fit(shown, width)) == width
    assert_inert(shown)


def test_cutting_keeps_the_end_longer_than_the_beginning() -> None:
    name = "model.layers.0.self_attn.q_proj.qweight"
    shown = cut_middle(name, 20)
    assert shown.endswith("q_proj.qweight"[-12:])
    assert shown.startswith("model.")
    assert len(shown) == 20


def test_a_link_quotes_what_a_shell_would_eat() -> None:
    import shlex

    text = link("my folder", Place(tensor="a'b $(x) [/]", tab="bytes", at=(1, 2)))
    assert shlex.split(text) == [
        "quantscope",
        "open",
        "my folder",
        "--tensor",
        "a'b $(x) [/]",
        "--tab",
        "bytes",
        "--at",
        "1,2",
    ]
