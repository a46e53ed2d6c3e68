"""The logits check on the Compare screen: offered with its cost, run, stopped, killed, refused, and reported."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quantscope.extras import install_hint
from quantscope.probes.for_report import model_quality_gate
from quantscope.probes.model import (
    Control,
    Decision,
    PairResult,
    ProbeRequest,
    ProbeResult,
    SideRequest,
    SideResult,
)
from quantscope.probes.run import ProbeStoppedError
from quantscope.session.events import Progress
from quantscope_views.present import run_facts
from quantscope_views.present.logits import CHART_ROWS, logits_result_lines
from quantscope_views.screens.compare import CompareScreen
from ui_driver import gptq_config, gptq_folder, idle, make_app, press, screen_text, until

SMALL, LARGE = (80, 24), (160, 45)


@pytest.fixture(autouse=True)
def _written_apart(own_folders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkpoints of one model: the second stores other bytes under the same names."""
    a, _ = gptq_folder(tmp_path / "a", count=4)
    b, _ = gptq_folder(tmp_path / "b", count=4, checkpoint_format="gptq")
    return a, b


def side_result(side: SideRequest, nll: float) -> SideResult:
    """A measured side."""
    return SideResult(
        label=side.label,
        path=side.path,
        reading=side.reading,
        tensors_changed=4 if side.reading else 0,
        nll_sum=nll * 64,
        nll_mean=nll,
        ppl=2.0,
        weights_sha256=f"{side.label}-w".ljust(64, "0"),
        logits_sha256="1" * 64,
        readings={"u4 zero integer as_is sequential": 4},
    )


def result_of(request: ProbeRequest) -> ProbeResult:
    """A whole result whose numbers no run would give."""
    sides = tuple(side_result(side, 3.25 + i) for i, side in enumerate(request.sides))
    pairs = tuple(
        PairResult(
            base=sides[0].label,
            candidate=side.label,
            rows=64,
            kl_mean=0.1357,
            kl_max=2.468,
            kl_min=0.0,
            kl_by_position=tuple(0.01 * (i + 1) for i in range(64)),
            top1_matches=51,
            max_abs_dlogit=7.5,
            rows_margin_safe=9,
            dnll_mean=0.4321,
            dnll_se=0.0567,
            t=7.6,
        )
        for side in sides[1:]
    )
    names: tuple[Any, ...] = ("self_before", "weights_differ", "planted", "base_after")
    return ProbeResult(
        outcome="held",
        reason="every control held",
        sides=sides,
        pairs=pairs,
        controls=tuple(Control(name=name, held=True) for name in names),
        decision=Decision(accepted="checkpoint", reason="NLL says so"),
        ids_sha256="2" * 64,
        ids_source="random, seed 20260801",
        n_ids=65,
        targets_counted=64,
        window="one window of 65 ids",
        vocabulary=96,
        architecture="LlamaForCausalLM",
        dtype="float32",
        threads=2,
        device="cpu",
        peak_rss_bytes=10**9,
        seconds=1.0,
        fingerprints={side.path + "/model.safetensors": "f-1" for side in request.sides},
        unverified=("positions",),
        verified_scope="logits of 64 positions",
        tokenizer_sha256="3" * 64,
        libraries={"torch": "2.0"},
    )


class Stub:
    """Stands for `run_probe`: notes requests; gives a result, or waits to be stopped after one side."""

    def __init__(self, *, waits: bool = False) -> None:
        self.requests: list[ProbeRequest] = []
        self.waits = waits
        self.reached = threading.Event()

    def __call__(
        self,
        request: ProbeRequest,
        *,
        progress: Callable[[Progress], None],
        cancelled: Callable[[], bool],
    ) -> ProbeResult:
        self.requests.append(request)
        progress(Progress(job="probe", stage="base", done=7, total=30, unit="units"))
        if not self.waits:
            return result_of(request)
        self.reached.set()
        until = time.monotonic() + 20
        while not cancelled() and time.monotonic() < until:
            threading.Event().wait(0.001)
        raise ProbeStoppedError((side_result(request.sides[0], 3.25),))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Stub:
    """The extra is there, and a check gives a result at once."""
    made = Stub()
    monkeypatch.setattr(run_facts, "missing", lambda: None)
    monkeypatch.setattr(run_facts, "run_probe", made)
    return made


async def compared(pilot: Any, other: Path | None) -> None:
    """To Compare, and compare."""
    await idle(pilot)
    await press(pilot, "c")
    pilot.app.screen.compare(str(other) if other is not None else None)
    await idle(pilot)


async def test_nothing_runs_before_its_cost_was_shown(pair: tuple[Path, Path], stub: Stub) -> None:
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "R")
        menu = next(line for line in screen_text(app).splitlines() if "logits check" in line)
        assert "GB" in menu or "MB" in menu
        await press(pilot, "escape")
        app.run_registered("compare.start-logits")
        await idle(pilot)
        shown = screen_text(app)
        assert "[5 Logits]" in shown
        assert "checkpoint A a, base B b; KL(B || A)" in shown
        assert "GB  not run: enter starts it" in shown
        assert "6 passes over" in shown
        assert "KL only and no NLL: no tokenizer" in shown, "there is no tokenizer, and it says so"
        assert stub.requests == [], "from the palette it goes to the cost first"


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "160x45"])
async def test_from_the_run_menu_it_runs_both_sides_and_shows_what_it_found(
    pair: tuple[Path, Path], stub: Stub, size: tuple[int, int]
) -> None:
    app = make_app(pair[0])
    async with app.run_test(size=size) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "R", "down", "down", "enter")
        (request,) = stub.requests
        assert [(s.label, s.path) for s in request.sides[:2]] == [
            ("base", str(pair[1])),
            ("checkpoint", str(pair[0])),
        ]
        shown = screen_text(app)
        for words in (
            "ran: held   every control held",
            "3.2500",
            "checkpoint against base, 64 rows",
            "mean 0.1357, max 2.468 nats",
            "51 of 64 equal",
            "+0.4321 +- 0.0567 a target, t 7.6",
            "KL by position, log scale 0.01 to 0.64 nats",
            "▁",
            "at position 63 (0.64)",
            "enter starts it again",
        ):
            assert words in shown, words
        if size == SMALL:
            await press(pilot, "end")
            shown = screen_text(app)
        for words in ("ids 222222222222", "tokenizer 333333333333", "torch 2.0", "positions"):
            assert words in shown, words
        if size == LARGE:
            assert "self_before     held" in shown
            assert "decision   checkpoint" in shown
            sides = [line for line in shown.splitlines() if "against base" in line]
            assert all(line[85:].strip() for line in sides), "the record stands beside it"
        app.run_registered("app.show-jobs")
        await idle(pilot)
        assert "done" in screen_text(app)
        assert "logits check against b" in screen_text(app)


async def test_the_report_carries_the_check_as_the_command_would(
    pair: tuple[Path, Path], stub: Stub, tmp_path: Path
) -> None:
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5", "enter", "e")
        assert "with runs [x]" in screen_text(app)
        await press(pilot, "w", "enter", "f", "w", "enter")
    ticket = (tmp_path / "out" / "ticket.md").read_text()
    assert "**Logits check** `checkpoint (a) against base (b)`: ran: held" in ticket
    assert "KL mean 0.1357, max 2.468 nats over 64 positions" in ticket
    assert "NLL +0.4321 +- 0.0567 a target, t 7.6" in ticket
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    gate = document["gates"]["model_quality"]
    assert gate["status"] == "executed"
    wanted = model_quality_gate(result_of(stub.requests[0]), str(pair[1]))
    assert gate == json.loads(json.dumps(wanted.as_json()))
    (entry,) = document["probes"]
    assert entry["comparison"] == "approximate"
    assert [side["path"] for side in entry["sides"]] == ["b", "a", "a"][: len(entry["sides"])]
    assert str(tmp_path) not in json.dumps(document["probes"])
    assert document["overall"] == "incomplete"


async def test_while_it_runs_it_says_how_far_and_stopped_it_keeps_the_finished_side(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub = Stub(waits=True)
    monkeypatch.setattr(run_facts, "missing", lambda: None)
    monkeypatch.setattr(run_facts, "run_probe", stub)
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5")
        await pilot.press("enter")
        await until(pilot, lambda: "base 7 of 30 units" in screen_text(app))
        shown = screen_text(app)
        assert "logits check against b runs: base 7 of 30 units; x stops it" in shown
        assert "enter starts it" not in shown
        await pilot.press("x")
        await idle(pilot)
        shown = screen_text(app)
        assert "PARTIAL" in shown
        assert "stopped by hand (1 of 3 sides measured, controls" in shown
        assert "3.2500" in shown
        assert "enter starts it again" in shown
        assert app.workspace.job("check").outcome == "stopped"  # type: ignore[union-attr]
        assert app.workspace.ran == ()
        await press(pilot, "e", "f", "w", "enter")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["probes"] == []
    assert document["gates"]["model_quality"]["status"] == "skipped"
    assert "stopped by hand after 1 of 3 sides" in document["gates"]["model_quality"]["reason"]


async def test_a_killed_child_is_told_on_the_tab_and_fails_the_gate(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from test_probe_child import child_that

    child_that(monkeypatch, "os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(run_facts, "missing", lambda: None)
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5", "enter")
        shown = screen_text(app)
        assert "Error" in shown
        assert "killed from outside" in shown
        assert "0 of 3 sides measured" in shown
        assert not app._notifications, "the tab says it"
        await press(pilot, "1")
        assert "[1 Zeros]" in screen_text(app)
        app.run_registered("app.show-jobs")
        await idle(pilot)
        assert "failed" in screen_text(app)
        await press(pilot, "e", "f", "w", "enter")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["gates"]["model_quality"]["status"] == "failed"
    assert document["probes"][0]["status"] == "failed"


async def test_a_result_outlives_a_later_run_that_was_stopped(
    pair: tuple[Path, Path], stub: Stub, tmp_path: Path
) -> None:
    app = make_app(pair[0])
    async with app.run_test(size=LARGE) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5", "enter")
        stub.waits = True
        await pilot.press("enter")
        await until(pilot, stub.reached.is_set)
        await pilot.press("x")
        await idle(pilot)
        shown = screen_text(app)
        assert "PARTIAL" in shown
        assert "every control held" in shown
        await press(pilot, "e", "f", "w", "enter")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["gates"]["model_quality"]["status"] == "executed"


async def test_without_the_extra_it_says_how_to_install_and_all_else_works(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub()
    monkeypatch.setattr(run_facts, "missing", lambda: "torch")
    monkeypatch.setattr(run_facts, "run_probe", stub)
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5", "enter")
        shown = screen_text(app)
        assert "not run" in shown
        hint = " ".join(install_hint("probe").split())
        assert f"needs torch: {hint}" in " ".join(shown.split())
        await press(pilot, "R")
        assert "not run: needs torch" in screen_text(app)
        await press(pilot, "down", "down", "enter")
        assert isinstance(app.screen, CompareScreen)
        assert stub.requests == []
        await press(pilot, "3")
        assert "[3 Values]" in screen_text(app)
        assert "rel. sq. L2" in screen_text(app)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "qwen2"}, "architectures differ: llama and qwen2"),
        ({"vocab_size": 97}, "vocabularies differ: 96 and 97"),
        ({"hidden_size": 512}, "widths differ: hidden size 256 and 512"),
    ],
)
async def test_checkpoints_of_other_models_are_not_run_and_it_says_why(
    pair: tuple[Path, Path], stub: Stub, change: dict[str, Any], reason: str
) -> None:
    config = {**gptq_config(), "vocab_size": 96, "hidden_size": 256}
    for folder, changed in zip(pair, ({}, change), strict=True):
        (folder / "config.json").write_text(json.dumps({**config, **changed}))
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5", "enter")
        assert reason in screen_text(app)
        assert stub.requests == []


async def test_two_readings_are_the_check_of_the_run_tab(
    pair: tuple[Path, Path], stub: Stub, tmp_path: Path
) -> None:
    app = make_app(pair[0])
    async with app.run_test(size=LARGE) as pilot:
        await compared(pilot, None)
        await press(pilot, "5", "enter")
        (request,) = stub.requests
        assert {side.path for side in request.sides} == {str(pair[0])}
        assert [side.reading for side in request.sides] == [{}, {"zero_convention": "minus_one"}]
        assert "mean 0.1357" in screen_text(app)
        app.open_tensor("model.layers.0.self_attn.q_proj.weight", tab="run")
        await idle(pilot)
        assert "mean 0.1357" in screen_text(app)
        await press(pilot, "e", "f", "w", "enter")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["gates"]["model_quality"]["status"] == "skipped"
    assert document["probes"][0]["comparison"] == "exact"


async def test_a_result_belongs_to_the_two_it_compared(
    pair: tuple[Path, Path], stub: Stub, tmp_path: Path
) -> None:
    third, _ = gptq_folder(tmp_path / "third", count=4)
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await compared(pilot, pair[1])
        await press(pilot, "5", "enter")
        assert "mean 0.1357" in screen_text(app)
        app.screen.compare(str(third))  # type: ignore[attr-defined]
        await idle(pilot)
        shown = screen_text(app)
        assert "base B third" in shown
        assert "mean 0.1357" not in shown
        app.screen.compare(str(pair[1]))  # type: ignore[attr-defined]
        await idle(pilot)
        assert "mean 0.1357" in screen_text(app)


@pytest.mark.parametrize("width", [60, 80, 149, 150, 160, 240])
def test_no_line_of_a_result_is_wider_than_its_pane(width: int) -> None:
    sides = (SideRequest(label="base", path="/b"), SideRequest(label="checkpoint", path="/a"))
    lines = logits_result_lines(result_of(ProbeRequest(sides=sides)), width, ascii_only=False)
    assert max(len(line.text.rstrip()) for line in lines) <= width
    bars = sum(line.spans[0].tone == "bar" for line in lines)
    assert bars == {60: 2, 80: 1, 149: 1}.get(width, CHART_ROWS)


def test_names_from_a_result_are_inert() -> None:
    sides = (
        SideRequest(label="base", path="/b"),
        SideRequest(label="\x1b[31mred\nline", path="/a\x1b[2J"),
    )
    lines = logits_result_lines(result_of(ProbeRequest(sides=sides)), 100, ascii_only=False)
    assert not any("\x1b" in line.text or "\n" in line.text for line in lines)
    assert any("red" in line.text for line in lines)


@pytest.mark.torch
async def test_a_real_check_of_a_tiny_model_gives_the_report_of_the_command(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from probe_models import QWEN, gptq, random_model, saved
    from quantscope.cli import main

    base, path = tmp_path / "base", tmp_path / "quantized"
    saved(random_model(QWEN), base)
    gptq(random_model(QWEN), path)
    app = make_app(path)
    async with app.run_test(size=LARGE) as pilot:
        await compared(pilot, base)
        await press(pilot, "R", "down", "down", "enter")
        shown = screen_text(app)
        assert "Qwen2ForCausalLM" in shown
        assert "checkpoint against base" in shown
        assert "KL by position, log scale" in shown
        for control in ("self_before", "weights_differ", "planted", "base_after"):
            assert f"{control:<15} held" in shown
        await press(pilot, "e", "f", "w", "enter")
    made = json.loads((tmp_path / "out" / "report.json").read_text())
    words = ["report", str(path), "-o", "cli.json", "--with", "probe", "--base", str(base)]
    assert main.run(words) == 0
    wanted = json.loads((tmp_path / "out" / "cli.json").read_text())
    assert made["gates"]["model_quality"] == wanted["gates"]["model_quality"]
    assert made["gates"]["model_quality"]["status"] == "executed"
    assert made["probes"] == wanted["probes"]


async def test_the_zero_tab_says_whether_a_logits_check_of_both_readings_ran(
    pair: tuple[Path, Path], stub: Stub
) -> None:
    app = make_app(pair[0])
    async with app.run_test(size=SMALL) as pilot:
        await idle(pilot)
        app.open_tensor(app.workspace.table.rows[0].name, tab="zero")
        await idle(pilot)
        await until(pilot, lambda: "code statistic" in screen_text(app))
        row = next(line for line in screen_text(app).splitlines() if "logits check" in line)
        assert "not run" in row
        await press(pilot, "4")
        run = app.screen.query_one("#run")
        run.go_to(next(i for i, line in enumerate(run.lines) if line.key == "logits"))
        await press(pilot, "enter", "2")
        row = next(line for line in screen_text(app).splitlines() if "logits check" in line)
        assert "ran" in row
        assert "its controls: held; 4 shows it" in row
