"""Every screen of the app, driven by keys: what it shows and where keys lead."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_safetensors
from quantscope_views.present.scan_tally import ScanTally
from quantscope_views.screens.tensor import TensorScreen
from quantscope_views.screens.tensors import TensorsScreen
from quantscope_views.screens.triage import TriageScreen
from quantscope_views.widgets.key_line import KeyLine
from quantscope_views.workspace import Workspace
from textual import events
from ui_driver import (
    Gptq,
    gptq_config,
    gptq_folder,
    idle,
    make_app,
    notices,
    press,
    screen_text,
    sharded_folder,
    typed,
)

SMALL = (80, 24)


pytestmark = pytest.mark.usefixtures("own_folders")


async def test_triage_names_the_contradiction_who_acts_and_what_was_read(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
    assert "CONTRADICTS" in shown
    assert "zero = stored + 1; codes: stored" in shown
    assert "8 of 8" in shown
    assert "one step" in shown
    assert "headers 100%" in shown
    assert "Nothing here says the model is good" in shown


async def test_triage_without_findings_says_nothing_found_in_what_was_read(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
    assert "NEEDS YOU: nothing found " in shown
    assert "nothing found in what was read (" in shown
    for word in ("clean", "passed", "verdict"):
        assert word not in shown.lower()


async def test_enter_goes_to_the_members_then_to_the_tensor_and_escape_comes_back(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "enter")
        assert isinstance(app.screen, TensorsScreen)
        assert "8 of 8 members" in screen_text(app)
        await press(pilot, "enter")
        assert isinstance(app.screen, TensorScreen)
        assert app.screen.tab == "zero"
        await press(pilot, "escape", "escape")
        assert isinstance(app.screen, TriageScreen)
        await press(pilot, "escape")
        assert isinstance(app.screen, TriageScreen)


async def test_filter_leaves_only_what_matches_every_word(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "slash")
        await typed(pilot, "layers.1 up")
        shown = screen_text(app)
        assert "model.layers.1.mlp.up_proj.weight" in shown
        assert "model.layers.0.mlp.up_proj.weight" not in shown
        assert "1 of 9 tensors" in shown


async def test_a_filter_that_leaves_nothing_says_how_many_are_hidden(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "slash")
        await typed(pilot, "nosuch")
        shown = screen_text(app)
        assert 'no tensor matches "nosuch"' in shown
        assert "9 tensors are hidden" in shown
        await press(pilot, "escape")
        assert "model.layers.0.self_attn.q_proj.weight" in screen_text(app)


async def test_tree_counts_tensors_below_every_branch(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t", "v")
        shown = screen_text(app)
        assert "- model  (9)" in shown
        assert "+ layers  (8)" in shown
        await press(pilot, "down", "right", "down", "right")
        assert "+ mlp  (2)" in screen_text(app)


async def test_twins_have_one_contract_id(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        table = app.workspace.table
        assert table is not None
        ids = {row.contract_id for row in table.rows if row.kind == "quantized"}
        assert len(ids) == 1
        assert "" not in ids


async def test_contract_tab_puts_declared_beside_inferred_with_equations(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=(120, 40)) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.mlp.up_proj.weight")
        await idle(pilot)
        shown = screen_text(app)
    assert "zero_convention zero = stored + 1" in shown
    assert "≠ differs" in shown
    assert "size equations" in shown
    assert "holds" in shown
    assert "only fit" in shown


async def test_zero_tab_shows_both_readings_the_statistic_and_the_conflict(tmp_path: Path) -> None:
    folder, modules = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    name = "model.layers.0.self_attn.q_proj"
    app = make_app(folder)
    async with app.run_test(size=(120, 40)) as pilot:
        await idle(pilot)
        app.open_tensor(f"{name}.weight", tab="zero")
        await idle(pilot)
        shown = screen_text(app)
    stored = " ".join(f"{zero:2d}" for zero in modules[name].zeros[:8, 0])
    assert "A  zero = stored + 1" in shown
    assert "B  zero = stored" in shown
    assert stored in shown
    assert "CONFLICT  declaration says A, bytes say B" in shown
    assert "no odd one out" in shown


@pytest.mark.parametrize(("row", "col"), [(0, 0), (17, 131), (63, 255), (5, 128)])
async def test_bytes_tab_shows_the_code_the_zero_and_the_value_of_the_element(
    tmp_path: Path, row: int, col: int
) -> None:
    folder, modules = gptq_folder(tmp_path / "f", count=8)
    name = "model.layers.0.self_attn.k_proj"
    module = modules[name]
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor(f"{name}.weight", tab="bytes", at=(row, col))
        await idle(pilot)
        page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
        shown = screen_text(app)
    assert (page.row, page.col) == (row, col)
    assert page.code == f"{module.codes[row, col]:x}"
    assert page.shown.value == module.value(row, col)
    zero = module.zeros[row, col // 128]
    assert f"(code {module.codes[row, col]} - zero {zero})" in shown
    assert f"out {row}, in {col}" in shown


async def test_what_if_moves_every_value_one_step_and_says_so(tmp_path: Path) -> None:
    folder, modules = gptq_folder(tmp_path / "f")
    name = "model.layers.0.self_attn.q_proj"
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor(f"{name}.weight", tab="bytes", at=(17, 131))
        await idle(pilot)
        await press(pilot, "z")
        shown = screen_text(app)
        page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
        assert "WHAT-IF zero = stored+1 | file says stored" in shown
        assert page.shown.value == modules[name].value(17, 131, shift=1)
        assert page.claimed.value == modules[name].value(17, 131)
        await press(pilot, "Z")
        assert "WHAT-IF" not in screen_text(app)


async def test_tabs_keep_the_selection(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.self_attn.q_proj.weight", tab="bytes", at=(17, 131))
        await idle(pilot)
        await press(pilot, "1", "2", "4", "3")
        page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
        assert (page.row, page.col) == (17, 131)
        assert "out 17, in 131" in screen_text(app)


async def test_arrows_follow_the_bytes_and_brackets_the_groups(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.self_attn.q_proj.weight", tab="bytes", at=(17, 131))
        await idle(pilot)

        def at() -> tuple[int, int]:
            page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
            return page.row, page.col

        await press(pilot, "right")
        assert at() == (17, 132)
        await press(pilot, "down")
        assert at() == (17, 140)
        await press(pilot, "k", "h")
        assert at() == (17, 131)
        await press(pilot, "shift+right")
        assert at() == (18, 128)
        await press(pilot, "shift+left")
        assert at() == (17, 128)
        await press(pilot, "left_square_bracket")
        assert at() == (17, 0)
        await press(pilot, "right_square_bracket", "right_square_bracket")
        assert at() == (18, 0)
        await press(pilot, "shift+down")
        assert at() == (19, 0)


async def test_go_to_takes_an_element_an_offset_and_a_name(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.self_attn.q_proj.weight")
        await idle(pilot)
        await press(pilot, "g")
        await typed(pilot, "3,9")
        await press(pilot, "enter")
        page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
        assert (page.row, page.col) == (3, 9)
        offset = page.bits[0].byte_offset
        await press(pilot, "home", "g")
        await typed(pilot, hex(offset))
        await press(pilot, "enter")
        page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
        assert page.bits[0].byte_offset <= offset < page.bits[0].byte_offset + 4
        await press(pilot, "g")
        await typed(pilot, "model.layers.1.mlp.up_proj")
        await press(pilot, "enter")
        assert app.screen.tensor_name == "model.layers.1.mlp.up_proj.weight"  # type: ignore[attr-defined]


async def test_a_byte_of_a_scale_leads_to_the_first_element_that_uses_it(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        table = app.workspace.table
        assert table is not None
        state = app.workspace.state("model.layers.0.self_attn.q_proj.weight")
        assert state is not None
        scales = state.tensor.plane("scale")
        assert scales is not None
        byte = scales.byte_offset + (64 + 17) * 2
        app.open_tensor(state.tensor.name, tab="bytes", byte_offset=byte)
        await idle(pilot)
        page = app.screen.bytes_pane.page  # type: ignore[attr-defined]
        assert (page.row, page.col) == (17, 128)
        assert app.screen.bytes_pane.nibbles.active == "scale"  # type: ignore[attr-defined]


async def test_a_bad_scale_in_another_file_than_its_codes_is_the_byte_that_is_shown(
    tmp_path: Path,
) -> None:
    planes = Gptq(1).tensors("model.layers.0.mlp.up_proj")
    planes["model.layers.0.mlp.up_proj.scales"][1, 9] = np.nan
    codes = {name: plane for name, plane in planes.items() if name.endswith("qweight")}
    rest = {name: plane for name, plane in planes.items() if name not in codes}
    folder = tmp_path / "f"
    folder.mkdir()
    index: dict[str, str] = {}
    for number, part in enumerate((codes, rest), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        write_safetensors(folder / file, part)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps(gptq_config()))
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert app.workspace.findings[0].severity == "violation"
        await press(pilot, "b")
        shown = screen_text(app)
        assert "cursor: out 9, in 128" in shown
        scales = next(line for line in shown.splitlines() if "scales" in line)
        assert "NaN" in scales
        assert "00002" in scales
        await press(pilot, "i")
        assert "of model-00002-of-00002.safetensors" in " ".join(app.screen.text.split())


async def test_i_says_how_a_number_is_known_on_every_screen(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "i")
        assert "QZ" in app.screen.text  # type: ignore[attr-defined]
        await press(pilot, "escape", "t", "i")
        assert "bits a weight" in app.screen.text  # type: ignore[attr-defined]
        await press(pilot, "escape", "enter", "i")
        assert "config.json#" in app.screen.text  # type: ignore[attr-defined]
        await press(pilot, "escape", "3", "i")
        assert "exact float32" in app.screen.text  # type: ignore[attr-defined]


async def test_help_is_about_the_pane_in_focus_and_lists_its_keys(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(100, 40)) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter", "3", "question_mark")
        text = app.screen.text  # type: ignore[attr-defined]
        assert "The cursor is on one code" in text
        assert "bytes.next-group" in text


async def test_the_key_line_fits_80_columns_and_ends_with_help(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        for keys in ((), ("t",), ("enter",), ("3",), ("e",)):
            await press(pilot, *keys)
            text = app.screen.query_one(KeyLine).text
            assert text.rstrip().endswith("? help")
            assert len(text) == 80
            assert len(text.split("  ")) >= 5 or text.count("   ") >= 4


async def test_quit_asks_only_while_a_job_runs(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await pilot.press("q")
        await pilot.pause()
    assert app.return_value == 0


async def test_keys_typed_ahead_of_leaving_open_nothing(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    for key in "tceR":
        app = make_app(folder)
        async with app.run_test(size=SMALL) as pilot:
            await idle(pilot)
            for typed_key in ("q", key):
                app.post_message(events.Key(typed_key, typed_key))
            await pilot.pause()
            assert len(app.screen_stack) == 1, key
        assert app.return_value == 0, key


async def test_the_worst_finding_is_selected_until_a_person_selects_another() -> None:
    def seen(*names: str) -> Any:
        return SimpleNamespace(
            findings=tuple(SimpleNamespace(id=name) for name in names), partial=None
        )

    tally = ScanTally()
    workspace = Workspace("somewhere")
    workspace.take_inspection(seen("note"), tally, "headers")
    workspace.take_inspection(seen("broken", "note"), tally, "codes")
    assert workspace.finding is not None
    assert workspace.finding.id == "broken"
    workspace.choose_finding(1)
    workspace.take_inspection(seen("worse", "broken", "note"), tally, "all")
    assert workspace.finding.id == "note"


async def test_ctrl_c_tells_the_key_that_the_help_names(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "ctrl+c")
        assert "q leaves" in notices(app)


async def test_an_offset_past_the_end_is_refused_and_one_in_shards_names_its_file(
    tmp_path: Path,
) -> None:
    folder = sharded_folder(tmp_path / "f", (5, 0, 0))
    first = folder / "model-00001-of-00003.safetensors"
    size = first.stat().st_size
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "g")
        await typed(pilot, f"{size:#x}")
        await press(pilot, "enter")
        assert f"{first.name} has no byte {size:#x}: it ends at {size:#x}" in notices(app)
        assert isinstance(app.screen, TriageScreen)
        await press(pilot, "g")
        await typed(pilot, f"{size - 1:#x}")
        await press(pilot, "enter")
        assert f"{size - 1:#x} of {first.name}, the first of 3 files" in notices(app)
        assert not isinstance(app.screen, TriageScreen)


async def test_the_palette_offers_actions_and_tensors(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await pilot.press("ctrl+p")
        await idle(pilot)
        await typed(pilot, "terms")
        await pilot.press("enter")
        await idle(pilot)
        assert "logical tensor" in app.screen.text  # type: ignore[attr-defined]


async def test_a_click_puts_the_cursor_on_the_nibble_and_a_double_click_opens_a_row(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t")
        await pilot.click("#table", offset=(10, 3), times=2)
        await idle(pilot)
        assert isinstance(app.screen, TensorScreen)
        assert app.screen.tensor_name == "model.layers.0.mlp.up_proj.weight"
        await press(pilot, "3")
        from quantscope_views.present.bytes_lines import page_margin

        page = app.screen.bytes_pane.page
        assert page is not None
        left = page_margin(page).total + 1
        await pilot.click("#nibbles", offset=(left + 3 * 5, 2))
        await idle(pilot)
        page = app.screen.bytes_pane.page
        assert page is not None
        # byte 5 of the second line, high nibble: word 1 of the line (out 1), code 3 of in 8..15
        assert (page.row, page.col) == (1, 11)


async def test_who_says_so_of_one_reading_never_runs_into_the_other(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", checkpoint_format="gptq_v2")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter", "2")
        (said,) = [x for x in screen_text(app).splitlines() if x.startswith(" who says so")]
        readings = [word for word in re.split(r"  +", said.strip())[1:] if word]
        assert len(readings) == 2, said
        assert "nobody" in readings
