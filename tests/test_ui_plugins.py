"""What failed in a plugin of others is said on the first screen, and listed in full behind it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from quantscope.families.guard import guarded
from quantscope.families.registry import FamilyRegistry, PluginRecord
from quantscope_views.present.plugins import failed_lines, plugin_sentences
from ui_driver import gptq_folder, idle, make_app, press, screen_text

DATA = Path(__file__).resolve().parent / "data"


pytestmark = pytest.mark.usefixtures("own_folders")


def with_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The families of this distribution, one more that raises, and one that did not load."""
    monkeypatch.syspath_prepend(str(DATA / "example_plugin"))
    monkeypatch.syspath_prepend(str(DATA / "example_plugin_broken"))
    raising = importlib.import_module("quantscope_broken.raises").raising("signature")
    own = FamilyRegistry.from_entry_points()
    record = PluginRecord(
        group="quantscope.families", name="absent", value="absent.family:Family",
        distribution="quantscope-absent", error="ImportError: no module named absent",
    )  # fmt: skip
    registry = FamilyRegistry([*own, guarded(raising())], (*own.records, record))
    monkeypatch.setattr(FamilyRegistry, "from_entry_points", classmethod(lambda cls: registry))


async def test_triage_names_what_failed_and_enter_lists_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_broken(monkeypatch)
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        shown = " ".join(screen_text(app).split())
        assert "failed family absent of quantscope-absent did not load: ImportError" in shown
        assert "2 plugin failures, enter lists them" in shown
        app.run_registered("app.show-plugins")
        await idle(pilot)
        await pilot.pause()
        shown = app.screen.text
        assert "family tiny8 failed in signature" in shown
        assert "ZeroDivisionError" in shown
        await press(pilot, "escape", "tab", "tab")
        assert app.focused.id == "looked"
        at = next(i for i, line in enumerate(app.focused.lines) if line.action)
        app.focused.go_to(at)
        await press(pilot, "enter")
        await pilot.pause()
        assert "did not load" in screen_text(app)


async def test_without_failures_the_first_screen_has_no_such_line(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert " failed " not in screen_text(app)
        app.run_registered("app.show-plugins")
        await idle(pilot)
        await pilot.pause()
        assert "none of them failed" in app.screen.text


def test_failures_are_inert_and_counted() -> None:
    assert failed_lines((), 80) == []
    lines = failed_lines(("family a failed in parts: \x1b[31mX",), 80)
    assert lines[0].action == "app.show-plugins"
    assert "\x1b" not in "".join(line.text for line in lines)
    assert "1 plugin failure," in " ".join("".join(line.text for line in lines).split())
    assert plugin_sentences(("one",))[0] == "one"


async def test_a_scan_that_fails_after_opening_is_an_error_on_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("grouping fell over")

    monkeypatch.setattr("quantscope_views.present.headline.grouped_overview", broken)
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        shown = screen_text(app)
        assert "Error: RuntimeError: grouping fell over" in shown
        assert "try again" in shown
