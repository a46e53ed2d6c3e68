"""An ASCII terminal gets ASCII in every cell of every screen, whatever names a checkpoint has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from quantscope_views.ascii_only import ascii_padded, ascii_text, wants_ascii
from quantscope_views.screens.pages import help_text
from ui_driver import gptq_folder, idle, make_app, press, screen_text, typed

NAMES = ["modèle.层.0.q_proj", "modèle.层.0.k_proj", "model.layers.1.mlp.up_proj"]


pytestmark = pytest.mark.usefixtures("own_folders")


async def assert_ascii(pilot: Any, where: str) -> None:
    """Every cell of the screen on top is ASCII, once it is painted."""
    app = pilot.app
    await pilot.pause()
    shown = screen_text(app)
    outside = sorted({char for char in shown if not char.isascii()})
    assert not outside, f"{where}: {outside}\n{shown}"


@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_every_screen_is_ascii(tmp_path: Path, size: tuple[int, int]) -> None:
    folder, _ = gptq_folder(tmp_path / "lügner", checkpoint_format="gptq", names=NAMES)
    app = make_app(folder, ascii_only=True)
    async with app.run_test(size=size, notifications=True) as pilot:
        await idle(pilot)
        await assert_ascii(pilot, "triage")
        for key in ("i", "escape", "question_mark", "escape", "r", "escape", "b", "i", "escape"):
            await press(pilot, key)
            await assert_ascii(pilot, f"after {key}")
        for tab in ("1", "2", "3", "z", "4", "question_mark", "escape", "T", "t", "v", "s"):
            await press(pilot, tab)
            await assert_ascii(pilot, f"after {tab}")
        await press(pilot, "slash")
        await typed(pilot, "layer")
        await assert_ascii(pilot, "filter")
        for key in ("escape", "c", "e", "f", "f", "f", "f", "w", "escape", "R", "escape", "g"):
            await press(pilot, key)
            await assert_ascii(pilot, f"after {key}")
        await press(pilot, "escape")
        for action in ("app.show-jobs", "app.show-rules", "app.show-terms"):
            app.run_registered(action)
            await idle(pilot)
            await assert_ascii(pilot, action)
            await press(pilot, "escape")
        app.show_raw(0, 0)
        await idle(pilot)
        await assert_ascii(pilot, "raw")
        app.notify("é und 层")
        await pilot.pause()
        await assert_ascii(pilot, "a notice")


async def test_pickers_and_the_palette_are_ascii(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "lügner", names=NAMES)
    app = make_app(folder, ascii_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        for action in ("app.open-path", "app.open-sample"):
            app.run_registered(action)
            await idle(pilot)
            await pilot.pause()
            await assert_ascii(pilot, action)
            await press(pilot, "escape")
        app.action_command_palette()
        await pilot.pause()
        await assert_ascii(pilot, "palette")
        await pilot.press(*"q_proj")
        await idle(pilot)
        await pilot.pause()
        await assert_ascii(pilot, "palette with hits")


async def test_a_name_that_ascii_lacks_is_escaped_and_still_found(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "drop", names=NAMES)
    app = make_app(folder, ascii_only=True)
    async with app.run_test(size=(120, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "t")
        shown = screen_text(app)
        assert r"mod\u{e8}le.\u{5c42}.0.q_proj" in shown


async def test_the_scrollbar_of_an_ascii_terminal_has_a_thumb(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(40)]
    folder, _ = gptq_folder(tmp_path / "drop", names=names)
    app = make_app(folder, ascii_only=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "t")
        ends = {row[79] for row in screen_text(app).splitlines() if len(row) == 80}
        assert "#" in ends


def test_glyphs_keep_their_width_and_padding_gives_way_to_escapes() -> None:
    assert ascii_text("─│┌▅█…≠") == "-|++@~#"
    assert ascii_text("é") == r"\u{e9}"
    assert ascii_padded("é       x") == r"\u{e9}       x"
    assert ascii_padded("é          ") == r"\u{e9}     "
    assert ascii_padded("层") == r"\u{5c42}"


def test_terms_name_the_marks_that_the_terminal_shows() -> None:
    assert "ok agrees" in help_text("terms", ascii_only=True)
    assert help_text("terms", ascii_only=True).isascii()
    assert "✓" in help_text("terms")


@pytest.mark.parametrize(
    ("asked", "encoding", "wanted"),
    [(False, "utf-8", False), (False, "UTF8", False), (False, "latin-1", True), (True, "utf-8", True),
     (False, None, True), (False, "nosuch", True)],
)  # fmt: skip
def test_ascii_is_used_where_asked_or_needed(
    asked: bool, encoding: str | None, wanted: bool
) -> None:
    assert wants_ascii(asked, encoding) is wanted


@pytest.mark.parametrize(
    ("environ", "utf8_mode", "wanted"),
    [
        ({"LANG": "C"}, False, True),
        ({"LANG": "POSIX"}, False, True),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, True, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True, True),  # CPython set LC_CTYPE
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False, False),  # a person set LC_CTYPE
        ({"LANG": "en_US.ISO-8859-1"}, False, True),
        ({"LANG": "ja_JP.eucJP"}, False, True),
        ({"LANG": "de_DE.UTF-8@euro"}, False, False),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "C.UTF-8"}, True, False),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False, False),
        ({}, False, False),
    ],
)
def test_a_locale_that_cannot_encode_gets_ascii_though_python_says_utf8(
    environ: dict[str, str], utf8_mode: bool, wanted: bool
) -> None:
    assert wants_ascii(False, "utf-8", environ, utf8_mode) is wanted
