"""One registry of actions: every handler exists, keys do not clash, docs and help come from it; themes, marks, keymap."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quantscope_views.actions import ACTIONS, by_id, keys_markdown, owned_by
from quantscope_views.bindings import bindings_for
from quantscope_views.keymap import read_keymap
from quantscope_views.lines import TONES
from quantscope_views.marks import MATCH_MARKS, MATCH_ORDER, SEVERITY_MARKS
from quantscope_views.screens.pages import help_text, markdown_lines
from quantscope_views.themes import CONTRAST_PAIRS, THEMES, TONE_STYLES, theme_name
from textual.color import Color
from ui_driver import gptq_folder, idle, make_app, press, screen_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
OWNERS = {
    "app": "quantscope_views.app:QuantscopeApp",
    "move": "quantscope_views.widgets.lines_view:LinesView",
    "triage": "quantscope_views.screens.triage:TriageScreen",
    "tensors": "quantscope_views.screens.tensors:TensorsScreen",
    "tensor": "quantscope_views.screens.tensor:TensorScreen",
    "bytes": "quantscope_views.widgets.nibble_view:NibbleView",
    "compare": "quantscope_views.screens.compare:CompareScreen",
    "report": "quantscope_views.screens.report:ReportScreen",
}


def owner_class(owner: str) -> Any:
    """The class that binds an owner's actions."""
    module, _, name = OWNERS[owner].partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.id)
def test_every_action_has_its_handler_a_title_with_a_namespace_and_a_tooltip(action: Any) -> None:
    assert callable(getattr(owner_class(action.owner), f"action_{action.handler}", None))
    assert re.match(r"^(app|go|view|run|export|explain|copy|move|help|what-if): ", action.title)
    assert action.tooltip.endswith(".")
    assert "[" not in action.tooltip
    assert "[" not in action.title


def test_ids_are_unique_and_known() -> None:
    ids = [action.id for action in ACTIONS]
    assert len(set(ids)) == len(ids)
    assert {action.owner for action in ACTIONS} == set(OWNERS)
    with pytest.raises(KeyError):
        by_id("app.nosuch")


@pytest.mark.parametrize("owner", [owner for owner in OWNERS if owner not in ("app", "move")])
def test_no_key_means_two_things_on_one_screen(owner: str) -> None:
    inner = ["tensor", "bytes", "move"] if owner in ("tensor", "bytes") else [owner, "move"]
    keys: dict[str, str] = {}
    for name in [*inner, "app"]:
        for action in owned_by(name):
            for key in action.keys:
                assert key not in keys, f"{key}: {keys.get(key)} and {action.id}"
                keys[key] = action.id


def test_every_binding_has_its_id_and_tooltip() -> None:
    for owner in OWNERS:
        for binding in bindings_for(owner):
            assert binding.id
            assert binding.tooltip


def test_the_specified_keys_are_bound() -> None:
    wanted = {
        "slash": "app.filter", "n": "app.next-finding", "N": "app.previous-finding",
        "enter": "move.choose", "escape": "app.back", "g": "app.go-to", "i": "app.how",
        "t": "app.show-tensors", "T": "app.show-triage", "c": "app.show-compare",
        "R": "app.run-menu", "x": "app.stop-job", "e": "app.show-report", "y": "app.copy",
        "question_mark": "app.help", "q": "app.quit", "z": "tensor.zero-reading",
        "o": "tensor.order-reading", "Z": "tensor.file-reading",
        "left_square_bracket": "bytes.previous-group", "right_square_bracket": "bytes.next-group",
        "1": "tensor.contract", "4": "tensor.run", "h": "move.left", "j": "move.down",
        "k": "move.up", "l": "move.right",
    }  # fmt: skip
    for key, action_id in wanted.items():
        assert key in by_id(action_id).keys


def test_the_page_of_keys_is_the_registry() -> None:
    assert (DOCS / "keys.md").read_text(encoding="utf-8") == keys_markdown()


def test_every_pane_has_its_help_page() -> None:
    topics = set()
    source = Path(importlib.import_module("quantscope_views").__file__ or "").parent
    for file in source.rglob("*.py"):
        topics |= set(re.findall(r'help_topic\s*=\s*"([a-z]+)"', file.read_text(encoding="utf-8")))
    assert len(topics) >= 8
    for topic in topics | {"terms"}:
        text = help_text(topic)
        assert text.startswith("# ")
        assert len(text) > 100, topic
        assert len(markdown_lines(text, 78)) > 3


def test_every_tone_but_plain_has_its_style() -> None:
    assert set(TONES) - {"plain"} <= set(TONE_STYLES)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
@pytest.mark.parametrize("pair", CONTRAST_PAIRS, ids="-on-".join)
def test_text_stands_out_from_its_ground(theme: Any, pair: tuple[str, str]) -> None:
    known = {
        "foreground": theme.foreground,
        "background": theme.background,
        **theme.variables,
    }
    text, ground = (luminance(Color.parse(known[name])) for name in pair)
    bright, dark = max(text, ground), min(text, ground)
    assert (bright + 0.05) / (dark + 0.05) >= 4.5


def luminance(colour: Color) -> float:
    """Relative luminance by WCAG 2.1."""

    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(colour.r) + 0.7152 * linear(colour.g) + 0.0722 * linear(colour.b)


def test_no_theme_tells_states_apart_by_green_and_red() -> None:
    for theme in THEMES:
        for name in ("tone-agrees", "tone-broken", "tone-contradicts", "tone-check"):
            colour = Color.parse(theme.variables[name])
            assert not (colour.g > 1.5 * colour.r and colour.g > 1.5 * colour.b), name


def test_without_colour_the_monochrome_theme_is_used_whatever_was_asked() -> None:
    assert theme_name("quantscope-light", no_color=True) == "quantscope-mono"
    assert theme_name("nosuch", no_color=False) == "quantscope-dark"
    assert not any(theme.ansi for theme in THEMES)


async def test_no_color_shows_text_on_a_ground_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert app.theme == "quantscope-mono"
        svg = app.export_screenshot()
        fills = set(re.findall(r"fill: (#[0-9a-f]{6})", svg)) | set(
            re.findall(r'fill="(#[0-9a-f]{6})"', svg)
        )
        greys = [fill for fill in fills if fill[1:3] == fill[3:5] == fill[5:7]]
        assert len(greys) >= 3
        assert any(int(fill[1:3], 16) > 0xB0 for fill in greys)
        assert "CONTRADICTS" in screen_text(app)


def test_every_mark_has_an_ascii_form_and_a_word() -> None:
    assert set(MATCH_ORDER) == set(MATCH_MARKS)
    for mark in (*MATCH_MARKS.values(), *SEVERITY_MARKS.values()):
        assert mark.ascii.isascii()
        assert mark.word
    assert [SEVERITY_MARKS[s].word for s in ("violation", "disagreement", "warning", "note")] == [
        "BROKEN", "CONTRADICTS", "CHECK", "note"
    ]  # fmt: skip


def test_a_keymap_takes_known_ids_and_reports_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "keymap.toml"
    path.write_text('"app.show-tensors" = "f2"\n"app.nosuch" = "f3"\n"app.quit" = 4\n')
    found = read_keymap(path)
    assert found.keys == {"app.show-tensors": "f2"}
    assert len(found.problems) == 2
    path.write_text("= broken")
    assert read_keymap(path).problems
    assert read_keymap(tmp_path / "none.toml").problems == ()


async def test_a_remapped_key_works_and_shows_in_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "config" / "quantscope").mkdir(parents=True)
    (tmp_path / "config" / "quantscope" / "keymap.toml").write_text('"app.show-tensors" = "f2"\n')
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "t")
        assert len(app.screen_stack) == 1
        await press(pilot, "f2")
        assert len(app.screen_stack) == 2
        await press(pilot, "question_mark")
        assert "f2" in app.screen.text  # type: ignore[attr-defined]


FIRST_SCREEN = """
import asyncio, json, sys
from quantscope_views.app import QuantscopeApp

async def main():
    app = QuantscopeApp(sys.argv[1], restore=False)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
    heavy = [name for name in ("torch", "transformers", "fsspec", "textual_serve", "textual_plot") if name in sys.modules]
    print(json.dumps(heavy))

asyncio.run(main())
"""


def test_the_first_screen_imports_nothing_heavy(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    script = tmp_path / "first.py"
    script.write_text(FIRST_SCREEN)
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_presenters_do_not_import_textual() -> None:
    code = (
        "import sys, pkgutil, importlib, quantscope_views.present as p\n"
        "for m in pkgutil.iter_modules(p.__path__): importlib.import_module(p.__name__ + '.' + m.name)\n"
        "print('textual' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_shell_of_the_app_stays_small() -> None:
    source = Path(importlib.import_module("quantscope_views").__file__ or "").parent
    assert len((source / "app.py").read_text().splitlines()) <= 200
    for file in source.rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 500, file


def test_only_the_bridge_starts_threads() -> None:
    source = Path(importlib.import_module("quantscope_views").__file__ or "").parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        if file.name != "bridge.py":
            # The file picker's own list, a library's, has its worker told to fail softly.
            assert file.name == "picker.py" or "run_worker(" not in text, file
            assert "import threading" not in text, file
            assert "call_from_thread" not in text, file


def test_no_source_of_the_app_makes_markup() -> None:
    source = Path(importlib.import_module("quantscope_views").__file__ or "").parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        assert "from_markup" not in text, file
        for call in re.findall(r"\.notify\((?:[^()]|\([^()]*\))*\)", text):
            dynamic = 'f"' in call or not re.search(r'notify\(\s*"', call)
            assert not dynamic or "markup=False" in call, f"{file.name}: {call}"
