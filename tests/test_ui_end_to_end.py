"""From the first screen to a value and a report that validates, by keys alone."""

from __future__ import annotations

import json
import os
import shlex
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from quantscope_views.screens.report import ReportScreen
from quantscope_views.screens.tensor import TensorScreen
from ui_driver import gptq_folder, idle, make_app, notices, press, screen_text, typed


@pytest.fixture(autouse=True)
def _written_apart(own_folders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")


async def test_open_filter_open_move_read_export_validate(tmp_path: Path) -> None:
    folder, modules = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    module = modules["model.layers.1.mlp.up_proj"]
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "slash")
        await typed(pilot, "layers.1 up")
        await press(pilot, "enter", "enter")
        assert isinstance(app.screen, TensorScreen)
        await press(pilot, "3", "right", "right", "down")
        page = app.screen.bytes_pane.page
        assert page is not None
        assert (page.row, page.col) == (0, 10)
        assert page.shown is not None
        assert page.shown.value == module.value(0, 10, shift=1)
        shown = screen_text(app)
        assert f"(code {module.codes[0, 10]} - zero {module.zeros[0, 0] + 1})" in shown
        await press(pilot, "e")
        assert isinstance(app.screen, ReportScreen)
        await press(pilot, "f", "w")
        await press(pilot, "enter")
        assert "written: report.json" in notices(app)
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    schema = json.loads((files("quantscope.report") / "report-v1.schema.json").read_text())
    jsonschema.validate(document, schema)
    assert document["schema_version"] == 1
    assert document["overall"] == "incomplete"
    assert any(entry["severity"] == "disagreement" for entry in document["findings"])
    names = {name for entry in document["tensors"] for name in entry["names"]}
    assert names == {"model.layers.1.mlp.up_proj.weight"}


async def test_the_ticket_of_a_finding_names_the_byte_and_the_way_to_check_it(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=(100, 40)) as pilot:
        await idle(pilot)
        await press(pilot, "e")
        shown = screen_text(app)
        assert "[x] QZ" in shown
        assert "[Ticket .md]" in shown
        assert "claims nothing" in shown
        assert "quantscope recheck" in shown
        await press(pilot, "w", "enter")
    ticket = (tmp_path / "out" / "ticket.md").read_text()
    assert os.stat(tmp_path / "out" / "ticket.md").st_mode & 0o777 == 0o644
    assert ticket.startswith("# CONTRADICTS")
    assert str(tmp_path) not in ticket


async def test_the_commands_under_a_report_can_be_copied_as_they_stand(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "a folder [bold]")
    app = make_app(folder)
    async with app.run_test(size=(240, 40)) as pilot:
        await idle(pilot)
        await press(pilot, "e")
        shown = screen_text(app)
        assert f"quantscope scan {shlex.quote(str(folder))} --fail-on" in shown
        assert f"quantscope recheck report.json {shlex.quote(str(folder))}" in shown


async def test_a_report_that_cannot_be_written_names_the_file_that_was_asked_for(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await press(pilot, "e", "w")
        app.screen.query_one("#prompt-input").value = "absent/ticket.md"  # type: ignore[attr-defined]
        await press(pilot, "enter")
        assert any("absent/ticket.md" in notice for notice in notices(app)), notices(app)
        assert not any(".quantscope-" in notice for notice in notices(app))


async def test_a_report_is_never_written_into_the_checkpoint(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    before = sorted(path.name for path in folder.iterdir())
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await press(pilot, "e", "w")
        app.screen.query_one("#prompt-input").value = str(folder / "report.md")  # type: ignore[attr-defined]
        await press(pilot, "enter")
        assert any("not written into the checkpoint" in notice for notice in notices(app))
    assert sorted(path.name for path in folder.iterdir()) == before


async def test_export_json_from_the_palette_covers_the_whole_checkpoint(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        app.run_registered("app.export-json")
        await idle(pilot)
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["scope"]["tensors_quantized"] == 8


async def test_a_reproducer_of_a_tensor_shows_the_same_finding(tmp_path: Path) -> None:
    from quantscope.checkpoint import Checkpoint
    from quantscope.rules.catalogue import judge
    from quantscope.session.pipeline import inspect

    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await press(pilot, "enter", "enter", "e", "r", "enter")
        assert any("1 finding of the tensor shows in it too" in notice for notice in notices(app))
    with Checkpoint.open(str(tmp_path / "out" / "repro")) as copy:
        found = inspect(copy, judge=judge)
    assert len(found.states) == 1
    assert "disagreement" in {finding.severity for finding in found.findings}


async def test_arithmetic_runs_from_its_line_goes_into_the_report_and_is_no_kernel_check(
    tmp_path: Path,
) -> None:
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(120, 40)) as pilot:
        await idle(pilot)
        await press(pilot, "t", "enter", "4")
        shown = screen_text(app)
        assert "reference:affine@cpu" in shown
        assert "about" in shown
        app.screen._start_check("reference:affine@cpu")  # type: ignore[attr-defined]
        await idle(pilot)
        shown = screen_text(app)
        assert "computed right ran: held" in shown
        assert "error as a share of its tolerance" in shown
        row = next(line for line in shown.splitlines() if "> reference:affine@cpu" in line)
        assert "ran: held; enter again  (arithmetic, no kernel)" in row
        await press(pilot, "T")
        assert "kernel check (R)" in screen_text(app)
        assert " ran  " not in screen_text(app)
        await press(pilot, "e")
        assert "with runs [x]" in screen_text(app)
        await press(pilot, "f", "w", "enter")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["parity"][0]["outcome"] == "held"


async def test_an_accepted_finding_is_left_out_by_a_scan_with_the_baseline(tmp_path: Path) -> None:
    from quantscope.rules.suppress import load_suppressions

    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        finding = app.workspace.finding
        assert finding is not None
        app.run_registered("triage.accept")
        await idle(pilot)
        await typed(pilot, "known")
        await press(pilot, "enter")
        assert any("accepted until" in notice for notice in notices(app))
    entries = load_suppressions(tmp_path / "out" / "quantscope.toml")
    assert [(entry.id, entry.reason) for entry in entries] == [(finding.id, "known")]


async def test_a_stopped_comparison_keeps_its_pairs_and_says_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading
    from typing import Any

    from quantscope.compare import run

    reached, gate = threading.Event(), threading.Event()
    real = run._compare_pair
    calls: list[int] = []

    def slow(*words: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            reached.set()
            gate.wait(20)
        return real(*words, **options)

    monkeypatch.setattr(run, "_compare_pair", slow)
    folder, _ = gptq_folder(tmp_path / "f")
    app = make_app(folder)
    async with app.run_test(size=(100, 30)) as pilot:
        await idle(pilot)
        await press(pilot, "c")
        app.screen.compare(None)  # type: ignore[attr-defined]
        from ui_driver import until

        await until(pilot, reached.is_set)
        await pilot.press("x")
        gate.set()
        await idle(pilot)
        found = app.screen.found  # type: ignore[attr-defined]
        assert found is not None
        assert found.partial
        assert "PARTIAL" in screen_text(app)
