"""What the app remembers and how it takes hold of a person: links, last place, themes, menus, late keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from quantscope_views.app import QuantscopeApp
from quantscope_views.place import Place
from quantscope_views.screens.tensor import TensorScreen
from quantscope_views.screens.tensors import TensorsScreen
from quantscope_views.screens.triage import TriageScreen
from textual.command import CommandPalette
from ui_driver import (
    gptq_folder,
    idle,
    make_app,
    notices,
    press,
    screen_text,
)

SMALL = (80, 24)


pytestmark = pytest.mark.usefixtures("own_folders")


async def test_a_deep_link_lands_on_the_byte(tmp_path: Path) -> None:
    from quantscope_views.place import Place

    folder, _ = gptq_folder(tmp_path / "f")
    link = Place(screen="tensor", tensor="model.layers.1.mlp.down_proj", tab="bytes", at=(11, 200))
    app = make_app(folder, link=link)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        assert isinstance(app.screen, TensorScreen)
        page = app.screen.bytes_pane.page
        assert page is not None
        assert (page.row, page.col) == (11, 200)


async def test_the_last_place_is_offered_for_the_same_files_only(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = QuantscopeApp(str(folder))
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.mlp.up_proj.weight", tab="bytes", at=(2, 3))
        await idle(pilot)
        await pilot.press("q")
        await pilot.pause()
    again = QuantscopeApp(str(folder))
    async with again.run_test(size=SMALL) as pilot:
        await idle(pilot)
        assert isinstance(again.screen, TriageScreen)
        assert again.last_place is not None
        shown = screen_text(again)
        assert "last place: model.layers.0.mlp.up_proj.weight bytes 2,3, enter" in shown
        assert again.focused.id == "offer"
        again.run_registered("app.last-place")
        await idle(pilot)
        assert isinstance(again.screen, TensorScreen)
        assert again.screen.place().at == (2, 3)
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    changed = QuantscopeApp(str(folder))
    async with changed.run_test(size=SMALL) as pilot:
        await idle(pilot)
        assert changed.last_place is None


async def test_a_page_asked_for_before_the_cursor_moved_is_dropped(tmp_path: Path) -> None:
    import msgspec

    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.self_attn.q_proj.weight", tab="bytes", at=(0, 0))
        await idle(pilot)
        pane = app.screen.bytes_pane  # type: ignore[attr-defined]
        old = pane.page
        pane.go(at=(17, 131))
        pane.take_page(old)
        assert pane.position == (17, 131)
        await idle(pilot)
        assert (pane.page.row, pane.page.col) == (17, 131)
        other = msgspec.structs.replace(pane.page.reading, zero_convention="minus_one")
        pane.take_page(msgspec.structs.replace(pane.page, reading=other))
        assert pane.page.reading.zero_convention == "as_is"


async def test_a_job_that_a_newer_one_replaced_runs_no_more(tmp_path: Path) -> None:
    import threading

    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    gate = threading.Event()
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.bridge.small("preview", lambda _: gate.wait(10), "first")
        app.bridge.small("preview", lambda _: None, "second")
        await idle(pilot)
        assert app.workspace.running == []
        assert [(job.title, job.outcome) for job in app.workspace.jobs[-2:]] == [
            ("first", "stopped"),
            ("second", "done"),
        ]
        gate.set()


async def test_enter_follows_the_last_place_and_down_leaves_it_for_the_findings(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.mlp.up_proj.weight", tab="zero")
        await idle(pilot)
        await press(pilot, "q")
    again = make_app(folder, restore=True)
    async with again.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "down")
        assert again.focused.id == "findings"
        again.screen.query_one("#offer").focus()
        await press(pilot, "enter")
        assert again.screen.tensor_name == "model.layers.0.mlp.up_proj.weight"  # type: ignore[attr-defined]
        assert again.screen.tab == "zero"  # type: ignore[attr-defined]
        await press(pilot, "T")
        assert "last place" not in screen_text(again)


async def test_a_chosen_theme_is_there_again_with_any_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantscope_views import app as app_module

    first, _ = gptq_folder(tmp_path / "one", count=2)
    app = make_app(first)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.run_registered("app.theme-light")
        await idle(pilot)
        await press(pilot, "q")
    started: list[str] = []
    monkeypatch.setattr(
        app_module.QuantscopeApp, "run", lambda self: started.append(self.theme) or 0
    )
    assert app_module.run_app(str(first)) == 0
    assert app_module.run_app(None) == 0
    assert started == ["quantscope-light", "quantscope-light"]
    monkeypatch.setenv("QUANTSCOPE_THEME", "quantscope-mono")
    app_module.run_app(str(first))
    assert started[-1] == "quantscope-mono"


async def test_without_a_path_the_app_offers_what_was_open_before(tmp_path: Path) -> None:
    paths = [gptq_folder(tmp_path / name, count=2)[0] for name in ("one", "two")]
    for path in paths:
        app = make_app(path)
        async with app.run_test(size=SMALL) as pilot:
            await idle(pilot)
            await press(pilot, "t", "q")
    app = make_app(None)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
        assert "no checkpoint is open" in shown
        assert "open before:" in shown
        offers = [line.key for line in app.focused.lines if line.key]
        assert sorted(offers) == sorted(str(path) for path in paths)
        at = next(i for i, line in enumerate(app.focused.lines) if line.key == str(paths[0]))
        app.focused.go_to(at)
        await press(pilot, "enter")
        assert app.workspace.path == str(paths[0])
        assert "int4 g128" in screen_text(app)


async def test_without_a_path_and_without_a_past_files_and_samples_are_offered() -> None:
    app = make_app(None)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
        assert "open a file or folder" in shown
        assert "open a bundled sample" in shown
        assert "open before" not in shown


async def test_a_right_click_opens_the_palette_of_the_pane_under_it(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", checkpoint_format="gptq", count=2)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        for where, key in (("#why", ""), ("#table", "t"), ("#nibbles", "b")):
            if key:
                await press(pilot, key)
            await pilot.click(where, offset=(5, 2), button=3)
            await pilot.pause()
            assert CommandPalette.is_open(app), where
            await press(pilot, "escape")
            await press(pilot, "T")


async def test_keys_that_come_before_a_question_has_gone_leave_the_screen_below(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.action_show_tensors()
        await idle(pilot)
        for opened in ("app.help", "app.go-to", "app.run-menu", "app.open-path", "app.open-sample"):
            app.run_registered(opened)
            await idle(pilot)
            asked = app.screen
            assert not isinstance(asked, TensorsScreen), opened
            asked.dismiss()
            asked.dismiss()
            await idle(pilot)
            assert isinstance(app.screen, TensorsScreen), opened
        app.action_command_palette()
        await idle(pilot)
        palette = app.screen
        palette.dismiss()
        palette.dismiss()
        await idle(pilot)
        assert isinstance(app.screen, TensorsScreen)


async def test_a_line_whose_finding_went_with_a_reload_says_so(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        for place in (Place(screen="tensor", finding="gone"), Place(screen="raw")):
            app._notifications.clear()
            app.go_to(place)
            await idle(pilot)
            assert any("not there any more" in words for words in notices(app))
            assert isinstance(app.screen, TriageScreen)


async def test_lists_of_the_toolkit_survive_windows_too_small_for_a_line(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        for size in ((40, 10), (10, 4), (1, 1)):
            await pilot.resize_terminal(*size)
            await press(pilot, "ctrl+p", "pagedown", "pageup", "down", "escape", "escape")
            app.run_registered("app.open-path")
            await idle(pilot)
            await press(pilot, "pagedown", "pagedown", "pageup", "escape")
        await pilot.resize_terminal(*SMALL)
        await idle(pilot)
        assert "NEEDS YOU" in screen_text(app)
