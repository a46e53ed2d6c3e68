"""The line of keys offers what would do something now, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope_views.widgets.key_line import KeyLine
from ui_driver import (
    gptq_folder,
    idle,
    make_app,
    module_names,
    notices,
    press,
    sharded_folder,
)

SAMPLES = Path(__file__).resolve().parents[1] / "sample_checkpoints"


pytestmark = pytest.mark.usefixtures("own_folders")


def offered(app: Any) -> set[str]:
    """Ids that the line of keys has room to choose from."""
    return {action.id for _, action in app.screen.query_one(KeyLine).hints()}


async def test_without_a_finding_or_a_job_their_keys_are_not_offered(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert not offered(app) & {
            "app.stop-job", "app.next-finding", "triage.guilty-byte", "triage.rule-page",
            "move.choose", "app.back", "app.show-triage",
        }  # fmt: skip
        assert {"app.help", "app.quit", "app.go-to", "app.show-report"} <= offered(app)


async def test_with_one_finding_there_is_no_next_one_here_but_one_elsewhere(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert len(app.workspace.findings) == 1
        assert "app.next-finding" not in offered(app)
        assert {"move.choose", "triage.rule-page", "app.how"} <= offered(app)
        await press(pilot, "t")
        assert "app.next-finding" in offered(app)
        assert "app.show-tensors" not in offered(app)


async def test_stop_is_offered_while_a_job_runs(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "good", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert "app.stop-job" not in offered(app)
        app.bridge.start("held", _until, "held open")
        await pilot.pause()
        assert "app.stop-job" in offered(app)
        await pilot.press("x")
        await idle(pilot)
        assert "app.stop-job" not in offered(app)


def _until(token: Any) -> None:
    while not token():
        continue


@pytest.mark.parametrize(
    ("sample", "zero", "order"),
    [("smol-w4-liar", True, False), ("smol-gguf-q4_k_m", False, False), ("smol-ct-nvfp4", False, True)],
)  # fmt: skip
async def test_other_readings_are_offered_where_the_format_has_them(
    sample: str, zero: bool, order: bool
) -> None:
    app = make_app(SAMPLES / sample)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        app.open_tensor(app.workspace.table.rows[0].name, tab="bytes")
        await idle(pilot)
        assert ("tensor.zero-reading" in offered(app)) is zero
        assert ("tensor.order-reading" in offered(app)) is order
        assert "tensor.file-reading" not in offered(app)
        if zero:
            await press(pilot, "z")
            assert "tensor.file-reading" in offered(app)


async def test_a_key_that_is_not_offered_still_says_why(tmp_path: Path) -> None:
    app = make_app(SAMPLES / "smol-gguf-q4_k_m")
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        app.open_tensor(app.workspace.table.rows[0].name)
        await idle(pilot)
        await press(pilot, "z")
        assert any("one zero reading only" in notice.message for notice in app._notifications)


async def test_enter_is_offered_on_lines_that_lead_somewhere(tmp_path: Path) -> None:
    folder, _ = gptq_folder(tmp_path / "liar", checkpoint_format="gptq", count=2)
    app = make_app(folder)
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "tab")
        assert app.focused.id == "why"
        assert "move.choose" not in offered(app)


async def test_compare_offers_rules_and_differences_once_there_are_pairs(tmp_path: Path) -> None:
    first, _ = gptq_folder(tmp_path / "one", count=4)
    second, _ = gptq_folder(tmp_path / "two", count=4, checkpoint_format="gptq")
    app = make_app(first)
    keys = {"compare.swap-rules", "compare.only-differences", "app.next-finding"}
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        await press(pilot, "c")
        assert not keys & offered(app)
        app.screen.compare(str(second))
        await idle(pilot)
        assert "compare.swap-rules" in offered(app)
        assert "compare.only-differences" in offered(app)


async def test_a_finding_of_a_byte_offers_the_byte(tmp_path: Path) -> None:
    app = make_app(sharded_folder(tmp_path / "drop", bad_scale=(5, 1, 9)))
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        assert "triage.guilty-byte" in offered(app)
        await press(pilot, "b")
        assert module_names(12)[5] in app.screen.tensor_name


async def test_rules_are_swapped_only_where_pairs_have_stored_zeros(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path / "plain", {"model.norm.weight": np.ones((8, 8), np.float16)}, {"a": 1}
    )
    app = make_app(tmp_path / "plain")
    async with app.run_test(size=(80, 24)) as pilot:
        await idle(pilot)
        app.action_show_compare()
        await idle(pilot)
        app.screen.compare(str(tmp_path / "plain"))
        await idle(pilot)
        assert app.screen.found is not None
        assert "compare.swap-rules" not in offered(app)
        await press(pilot, "z")
        assert any("no rule to swap" in words for words in notices(app))
        assert not app.screen.choice.swapped
