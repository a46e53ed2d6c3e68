"""The Report screen: it fits, its switches have keys, and its commands do what they say."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.cli.main import run
from quantscope.report.selection import Selection
from quantscope.rules.catalogue import judge
from quantscope.session.pipeline import Scope, inspect
from quantscope_views.lines import cells
from quantscope_views.present.report import (
    FORMS,
    ReportChoice,
    ReportScope,
    choices_for,
    draft_of,
    headless_words,
    rendered,
    scope_lines,
)
from quantscope_views.present.report_foot import foot_lines
from ui_driver import gptq_folder, idle, make_app, notices, press, screen_text

TIMES = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.+Z-]+|[0-9.e-]+ ?s\b")


def without_times(text: str) -> str:
    """A report without when it was made and how long that took."""
    return TIMES.sub("", text)


pytestmark = pytest.mark.usefixtures("own_folders")


def choices(scope: str, form: int, redact: bool, mode: str) -> tuple[Any, ReportChoice]:
    """An inspection of the folder `liar` and a choice of its report."""
    inspection = inspect(Checkpoint.open("liar"), Scope(mode=mode), judge=judge)  # type: ignore[arg-type]
    tensor = inspection.states[1].tensor.name
    made = choices_for(inspection, inspection.findings[0], tensor)
    at = [found.kind for found in made.scopes].index(scope)  # type: ignore[arg-type]
    return inspection, ReportChoice(scopes=made.scopes, scope=at, form=form, redact=redact)


@pytest.mark.parametrize("mode", ["sample", "deep"])
@pytest.mark.parametrize("scope", ["finding", "tensor", "checkpoint"])
@pytest.mark.parametrize("form", range(len(FORMS)))
def test_the_command_shown_makes_the_report_shown(
    tmp_path: Path, form: int, scope: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gptq_folder(tmp_path / "liar", checkpoint_format="gptq", count=3)
    inspection, choice = choices(scope, form, form != 2, mode)
    shown = b"".join(rendered(draft_of(inspection, choice), choice.form_name)).decode()
    words = headless_words(inspection, choice)
    monkeypatch.setattr(sys, "argv", words)
    assert run(words[1:]) == 0
    made = Path(choice.file_name).read_text()
    if choice.form_name == "json":
        documents = [json.loads(text) for text in (shown, made)]
        assert documents[0].pop("run").keys() == documents[1].pop("run").keys()
        assert documents[0] == documents[1]
    else:
        assert without_times(shown) == without_times(made)


def foot(choice: ReportChoice, written: tuple[str, ...] = (), width: int = 200) -> str:
    """The foot as text."""
    headless = ["quantscope", "report", "my drop", "-o", choice.file_name]
    return "\n".join(line.text for line in foot_lines(choice, None, headless, written, width))


ONE = (ReportScope(kind="checkpoint", words="checkpoint", selection=Selection()),)


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_a_recheck_is_advised_only_of_a_json_that_was_written(form: int) -> None:
    choice = ReportChoice(scopes=ONE, form=form)
    text = foot(choice, written=("ticket.md", "report.html"))
    step = "w" if choice.form_name == "json" else "f to json, w"
    assert f"later     {step}, then quantscope recheck report.json 'my drop'" in text
    text = foot(choice, written=("mine.json", "ticket.md"))
    assert "later     quantscope recheck mine.json 'my drop'" in text
    assert "then" not in text


async def test_writing_json_turns_the_advice_into_a_command_that_holds(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq", count=2)
    app = make_app(folder)
    async with app.run_test(size=(160, 45)) as pilot:
        await idle(pilot)
        await press(pilot, "e")
        assert "f to json, w, then quantscope recheck report.json" in screen_text(app)
        await press(pilot, "f", "w", "enter")
        shown = screen_text(app)
        assert "written   report.json" in shown
        advised = re.search(r"later +(quantscope recheck .*?)   \(exit", shown)
        assert advised is not None
        words = [sys.executable, "-m", *shlex.split(advised[1])]
        assert subprocess.run(words, capture_output=True, check=False).returncode == 0
        await press(pilot, "f")
        assert "quantscope recheck report.json" in screen_text(app)
        await press(pilot, "space")
        assert "w, then quantscope recheck" in screen_text(app)


async def test_writing_from_the_palette_says_what_was_written(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        app.run_registered("app.export-json")
        await idle(pilot)
        assert "written: report.json" in notices(app)


async def test_folders_and_runs_have_keys_that_stand_beside_them(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "deep" / "liar", checkpoint_format="gptq", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "e")
        shown = screen_text(app)
        assert "p hide folders [x]" in shown
        assert "u with runs [ ]" in shown
        assert "--redact-paths" in " ".join(shown.split())
        await press(pilot, "p")
        shown = screen_text(app)
        assert "p hide folders [ ]" in shown
        assert "--redact-paths" not in " ".join(shown.split())


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("tensor", ["model.layers.0.self_attn.q_proj", "x" * 90, "漢" * 60])
def test_both_lines_of_choices_fit(width: int, tensor: str) -> None:
    choice = ReportChoice(
        scopes=(
            ReportScope(kind="finding", words="QZ002 (14 tensors)", short="QZ002"),
            ReportScope(kind="tensor", words=f"{tensor} only", short=tensor.rpartition(".")[2]),
            ReportScope(kind="checkpoint", words="checkpoint (14 tensors)", short="checkpoint"),
        )
    )
    first, second = scope_lines(choice, width)
    assert cells(first.text) <= width
    assert first.text.count("[") == 3
    assert cells(second.text) <= width
    assert "runs [ ]" in second.text


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_foot_cuts_no_command_and_leaves_room_for_the_report(width: int) -> None:
    path = "/a/rather/long/folder/with/many/parts/" + "model-" * 6
    headless = ["quantscope", "report", path, "-o", "ticket.md", "--format", "markdown"]
    lines = foot_lines(ReportChoice(scopes=ONE), None, headless, (), width)
    assert all(cells(line.text) <= width for line in lines)
    joined = "".join(line.text[11:].rstrip() for line in lines)
    assert path in joined
    assert width < 80 or len(lines) <= 11


async def test_a_report_that_cannot_be_made_is_an_error_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no report for you")

    monkeypatch.setattr("quantscope_views.screens.report.preview_of", broken)
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "e")
        shown = screen_text(app)
        assert "Error: the report could not be made: RuntimeError: no report for you" in shown
        assert "rendering the report" not in shown


async def test_a_file_of_somebody_else_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "f", count=1)
    notes = tmp_path / "ticket.md"
    notes.write_text("notes of a person")
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "e", "w", "enter")
        assert "ticket.md is there already, 17 B" in screen_text(app)
        await press(pilot, "n")
        assert notes.read_text() == "notes of a person"
        await press(pilot, "w", "enter", "y")
        await idle(pilot)
        assert notes.read_text().startswith("# ")
        notes.write_text("")
        await press(pilot, "w", "enter")
        await idle(pilot)
        assert notes.read_text().startswith("# ")
