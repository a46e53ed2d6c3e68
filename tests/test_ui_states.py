"""Every state that a pane can be in: what it says, what it offers, and that Enter on the offer does it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.parity.text import result_lines
from quantscope_views.app import FILE_WATCH_S
from quantscope_views.lines import cells
from quantscope_views.present.run import kernel_result_lines
from quantscope_views.present.states import (
    PaneState,
    error_state,
    progress_words,
    state_lines,
)
from quantscope_views.screens.tensor import TensorScreen
from quantscope_views.screens.triage import TriageScreen
from quantscope_views.widgets.lines_view import LinesView
from textual_fspicker.parts import DirectoryNavigation
from ui_driver import (
    Gptq,
    gptq_config,
    gptq_folder,
    idle,
    make_app,
    module_names,
    notices,
    press,
    screen_text,
    sharded_folder,
    until,
)

SMALL = (80, 24)


pytestmark = pytest.mark.usefixtures("own_folders")


async def test_without_a_path_it_says_what_can_be_opened_and_lists_samples(tmp_path: Path) -> None:
    app = make_app(None)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
        assert "no checkpoint is open" in shown
        assert "open a bundled sample" in shown
        await press(pilot, "down", "enter")
        assert "samples" in screen_text(app)


async def test_a_folder_without_weights_is_an_error_with_a_hint_and_a_way_on(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
        assert "Error:" in shown
        assert "try again" in shown
        assert app.workspace.checkpoint is None
        assert shown.index("enter  open something else") < shown.index("f5  try again")
        await press(pilot, "enter")
        assert not isinstance(app.screen, TriageScreen), "Enter does what its line says"
        await press(pilot, "escape")
        gptq_folder(folder)
        await press(pilot, "f5")
        assert "NEEDS YOU" in screen_text(app)


async def test_where_nothing_is_quantized_no_bytes_are_awaited(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "model.safetensors").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4976698672\n"
    )
    app = make_app(tmp_path / "f")
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        shown = screen_text(app)
        assert "NEEDS YOU: 1 kind " in shown
        assert "bytes are being read" not in shown
        assert "not yet read" not in shown


async def test_headers_are_shown_while_bytes_are_still_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from quantscope.infer import examine

    gate = threading.Event()
    wait_for_it = examine.plane_stats

    def slow(*words: Any, **options: Any) -> Any:
        gate.wait(20)
        return wait_for_it(*words, **options)

    monkeypatch.setattr(examine, "plane_stats", slow)
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.workspace.stage == "headers")
        await pilot.pause()
        shown = screen_text(app)
        assert "from headers; bytes are being read" in shown
        assert "bytes not yet read" in shown
        assert "x stop" in shown
        await pilot.press("t")
        await pilot.pause()
        assert "model.layers.0.self_attn.q_proj.weight" in screen_text(app)
        gate.set()
        await idle(pilot)


async def test_a_stopped_scan_keeps_what_it_has_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from quantscope.infer import examine

    reached, gate = threading.Event(), threading.Event()
    real = examine.plane_stats
    calls = []

    def slow(*words: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            reached.set()
            gate.wait(20)
        return real(*words, **options)

    monkeypatch.setattr(examine, "plane_stats", slow)
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, reached.is_set)
        await pilot.press("x")
        gate.set()
        await idle(pilot)
        shown = screen_text(app)
        assert "PARTIAL" in shown
        assert "stopped after" in shown
        assert app.workspace.jobs[-1].outcome == "stopped"
        assert app.workspace.inspection is not None
        assert len(app.workspace.inspection.states) == 8


async def test_a_deep_scan_that_is_stopped_keeps_what_the_sample_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantscope.session import pipeline

    folder = sharded_folder(tmp_path / "shards", bad_scale=(9, 1, 9))
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        assert app.workspace.findings[0].severity == "violation"
        real, seen = pipeline._inspect_tensor, []

        def stopping(*words: Any, **options: Any) -> Any:
            seen.append(1)
            if len(seen) == 3:
                app.bridge.stop("scan")
            return real(*words, **options)

        monkeypatch.setattr(pipeline, "_inspect_tensor", stopping)
        app.run_registered("app.deep-scan")
        await idle(pilot)
        await press(pilot, "y")
        assert app.workspace.stage == "deep"
        assert 0 < len(seen) < 9
        assert "PARTIAL: stopped after" in screen_text(app)
        assert app.workspace.findings[0].severity == "violation"
        assert "BROKEN" in screen_text(app)


async def test_a_file_that_changes_on_disk_makes_the_screens_stale_until_reloaded(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        weights = folder / "model.safetensors"
        os.utime(weights, (1, 1))
        app._watch_files()
        await idle(pilot)
        shown = screen_text(app)
        assert "The file changed on disk" in shown
        assert "reload" in shown
        await press(pilot, "f5")
        assert "The file changed on disk" not in screen_text(app)
        assert FILE_WATCH_S < 10


async def test_an_undecodable_tensor_shows_the_reason_and_its_bytes(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.mlp.up_proj.qweight": np.zeros((3, 5), np.int32),
        "model.layers.0.mlp.up_proj.scales": np.ones((7, 5), np.float16),
    }
    folder = write_checkpoint(tmp_path / "odd", tensors, gptq_config())
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter", "3")
        shown = screen_text(app)
        assert isinstance(app.screen, TensorScreen)
        assert "0" in shown


async def test_an_unrecognised_tensor_offers_its_bytes(tmp_path: Path) -> None:
    tensors = {"strange.codes": np.arange(4096, dtype=np.uint8).reshape(64, 64)}
    folder = write_checkpoint(tmp_path / "odd", tensors, {"model_type": "x"})
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter")
        assert "no family recognises" in screen_text(app)
        await press(pilot, "enter")
        shown = screen_text(app)
        assert "00]01 02 03" in shown
        await press(pilot, "down")
        assert "[10]11" in screen_text(app)


async def test_runs_say_what_they_need_before_they_are_started(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "R")
        shown = screen_text(app)
        assert "deep scan" in shown
        assert "kB" in shown
        await press(pilot, "escape", "t", "enter", "4")
        shown = screen_text(app)
        assert "kernel check" in shown
        assert "logits check" in shown
        assert "not run" in shown


async def test_a_deep_scan_starts_only_after_its_cost_was_shown(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        before = app.workspace.inspection
        app.run_registered("app.deep-scan")
        await idle(pilot)
        assert "A deep scan reads all" in screen_text(app)
        await press(pilot, "n")
        assert app.workspace.inspection is before
        app.run_registered("app.deep-scan")
        await idle(pilot)
        await press(pilot, "y")
        assert app.workspace.stage == "deep"


async def test_one_bad_scale_in_the_second_shard_leads_to_its_byte_in_three_keys(
    tmp_path: Path,
) -> None:
    folder = sharded_folder(tmp_path / "shards", bad_scale=(5, 1, 9))
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        assert "BROKEN" in screen_text(app)
        await press(pilot, "b")
        assert isinstance(app.screen, TensorScreen)
        assert app.screen.tensor_name == f"{module_names(12)[5]}.weight"
        page = app.screen.bytes_pane.page
        assert page is not None
        assert (page.row, page.col) == (9, 128)
        assert page.file == "model-00002-of-00003.safetensors"
        assert "NaN" in screen_text(app)


async def test_a_missing_shard_still_opens_what_is_there(tmp_path: Path) -> None:
    folder = sharded_folder(tmp_path / "shards", bad_scale=(-1, 0, 0))
    (folder / "model-00003-of-00003.safetensors").unlink()
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        assert "BROKEN" in screen_text(app)
        table = app.workspace.table
        assert table is not None
        assert len(table) == 8


async def test_too_small_a_window_asks_for_more_room(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(50, 12)) as pilot:
        await idle(pilot)
        assert "needs 60 columns and 15 lines" in screen_text(app).replace("\n", " ")
        await pilot.resize_terminal(80, 24)
        await idle(pilot)
        assert "NEEDS YOU" in screen_text(app)


async def test_compare_says_not_run_then_compares_the_two_readings(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await press(pilot, "c")
        assert "nothing is compared with this checkpoint" in screen_text(app)
        await press(pilot, "enter")
        shown = screen_text(app)
        assert "same bytes, other zero rule" in shown
        assert "stored+1" in shown
        await press(pilot, "3")
        assert "differs" in screen_text(app)


async def test_a_failed_comparison_is_a_state_and_not_a_crash(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "c")
        app.screen.compare(str(tmp_path / "nowhere"))  # type: ignore[attr-defined]
        await idle(pilot)
        assert "Error:" in screen_text(app)
        assert "choose another checkpoint" in screen_text(app)
        app.run_registered("app.show-jobs")
        await idle(pilot)
        assert "failed" in screen_text(app)


def test_every_state_names_what_it_is_and_offers_its_actions() -> None:
    state = PaneState(
        kind="not_run",
        what="kernel check not run: needs torch (extra `torch`)",
        actions=(("app.reload", "try again"),),
    )
    text = "\n".join(line.text for line in state_lines(state, 40))
    assert "Not run:" in text
    assert "f5" in text
    assert [line.action for line in state_lines(state, 40) if line.action] == ["app.reload"]


def test_an_error_says_cause_source_hint_and_details() -> None:
    from quantscope.errors import UnreadableError

    state = error_state(UnreadableError("bad", hint="do this", source="/x"), details="trace")
    text = "\n".join(line.text for line in state_lines(state, 80))
    for word in ("bad", "in /x", "try: do this", "details: trace"):
        assert word in text


def test_time_left_is_shown_only_once_it_means_something() -> None:
    from quantscope.session.events import Progress

    early = Progress(job="scan", stage="examine", done=1, total=100, elapsed_s=0.2)
    later = Progress(job="scan", stage="examine", done=50, total=100, elapsed_s=5.0)
    assert "left" not in progress_words(early)
    assert "5.0s left" in progress_words(later)
    assert json.dumps(progress_words(later))


def test_gptq_fixture_packs_low_nibble_first() -> None:
    module = Gptq(3)
    words = module.tensors("m")["m.qweight"].view(np.uint32)
    assert int(words[2, 5]) >> 12 & 15 == module.codes[5, 19]


async def test_a_file_that_is_not_there_is_named_and_no_screen_opens(tmp_path: Path) -> None:
    from ui_driver import notices

    folder = sharded_folder(tmp_path / "shards", bad_scale=(-1, 0, 0))
    (folder / "model-00003-of-00003.safetensors").unlink()
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        before = len(app.screen_stack)
        app.show_raw(99, 0)
        await idle(pilot)
        assert len(app.screen_stack) == before
        assert any("holds no bytes to show" in notice for notice in notices(app))


def test_a_header_that_claims_an_endless_axis_is_not_learnt() -> None:
    from quantscope.model import BitSpan, Cell
    from quantscope_views.present.bytes_layout import MAX_AXIS, learn

    def locate(row: int, col: int) -> Cell:
        span = BitSpan(file_id=0, byte_offset=row + col, nbytes=1, low_bit=0, bit_width=8)
        return Cell(row=row, col=col, group=0, bits=(span,))

    assert learn(locate, MAX_AXIS + 1, 8) is None
    assert learn(locate, 8, 1 << 40) is None
    assert learn(locate, 8, 8) is not None


async def test_bytes_that_lie_outside_the_file_are_an_error_of_the_tab(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor("model.layers.0.self_attn.q_proj.weight", tab="bytes")
        await idle(pilot)
        weights = folder / "model.safetensors"
        checkpoint = app.workspace.checkpoint
        assert checkpoint is not None
        checkpoint.sources[0].release()
        weights.write_bytes(weights.read_bytes()[:2000])
        await press(pilot, "shift+down")
        shown = screen_text(app)
        assert "Error:" in shown
        assert "changed" in shown or "shrank" in shown


async def test_the_picker_opens_where_there_is_a_folder_and_outlives_one_that_vanishes(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    app = make_app(kept / "gone" / "deeper" / "model.safetensors")
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "enter")
        assert type(app.screen).__name__ == "Picker"
        assert "inner" in screen_text(app)
        app.screen.query_one(DirectoryNavigation).location = kept / "gone"
        await idle(pilot)
        assert "cannot be listed" in screen_text(app)
        await press(pilot, "escape")
        assert "does not exist" in screen_text(app)


async def test_triage_title_and_jobs_are_whole_in_80_columns(tmp_path: Path) -> None:
    from quantscope.session.events import Progress
    from quantscope_views.screens.jobs import job_lines
    from quantscope_views.screens.triage import _title_line
    from quantscope_views.workspace import Job

    title = "NEEDS YOU: nothing found (from headers; bytes are being read)"
    assert _title_line(title, 80).text.strip() == title
    assert _title_line("NEEDS YOU: 1 kind", 80).text.endswith("who must act")
    step = Progress(job="scan", stage="examine", done=40, total=40, unit="tensors", elapsed_s=5.0)
    title = "open and scan /data/drop/of/a/new/model-w4g128-dynamic-mixed"
    job = Job(key="scan", title=title, started=0.0, progress=step)
    assert "examine 40 of 40 tensors, 8/s" in job_lines([job], 80)[0].text


async def test_the_next_difference_is_searched_for_only_beside_another_reading(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter", "3")
        app.run_registered("bytes.next-difference")
        await idle(pilot)
        assert any("the file's own reading is shown" in words for words in notices(app))
        assert not any(job.key.startswith("search") for job in app.workspace.jobs)
        await press(pilot, "z")
        app.run_registered("bytes.next-difference")
        await idle(pilot)
        assert app.screen.bytes_pane.position == (0, 1)


async def test_a_kernel_check_is_told_whole_in_80_columns(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    app = make_app(folder)
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter", "4")
        view = app.screen.query_one("#run", LinesView)
        row = next(i for i, line in enumerate(view.lines) if line.key == "reference:affine@cpu")
        view.go_to(row)
        await press(pilot, "enter")
        assert app.workspace.kernel_runs
        results = kernel_result_lines(app.workspace.kernel_runs[0].results[0], 80, False)
        text = "\n".join(line.text for line in results)
        assert "…" not in text
        assert all(cells(line.text) <= 80 for line in results)
        folded = " ".join(text.split())
        for said in result_lines(app.workspace.kernel_runs[0].results[0]):
            assert " ".join(said.split()) in folded
        names = [line.text for line in view.lines if "@" in line.text]
        assert all(name.split("@")[1].startswith(("cpu ", "cuda ")) for name in names)
