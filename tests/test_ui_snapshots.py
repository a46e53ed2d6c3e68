"""Pictures of six screens, sizes and themes, compared with those kept beside this file.

Text and state are asserted elsewhere; these catch what only the eye would. They hold for one version of
Textual; `pytest tests/test_ui_snapshots.py --snapshot-update` renews them after a look at the report.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quantscope_views.app import QuantscopeApp
from textual.pilot import Pilot
from ui_driver import idle, press

BASELINE = "8.2.8"
SAMPLES = Path(__file__).resolve().parents[1] / "sample_checkpoints"
SCREENS: dict[str, tuple[str, ...]] = {
    "triage": (),
    "tensors": ("t",),
    "contract": ("t", "enter", "1"),
    "zero": ("t", "enter", "2"),
    "bytes": ("t", "enter", "3", "z"),
    "report": ("e",),
}
LOOKS: dict[str, tuple[tuple[int, int], str]] = {
    "small-dark": ((80, 24), "quantscope-dark"),
    "large-dark": ((120, 40), "quantscope-dark"),
    "large-light": ((120, 40), "quantscope-light"),
    "small-no-color": ((80, 24), ""),
}

pytestmark = pytest.mark.skipif(
    importlib.metadata.version("textual") != BASELINE,
    reason=f"pictures are of textual {BASELINE}",
)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_looks_as_it_did(
    screen: str,
    look: str,
    snap_compare: Callable[..., bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(SAMPLES)
    size, theme = LOOKS[look]
    if look.endswith("no-color"):
        monkeypatch.setenv("NO_COLOR", "1")
    else:
        monkeypatch.delenv("NO_COLOR", raising=False)
    app = QuantscopeApp("smol-w4-liar", restore=False, theme=theme, fixed_times=True)

    async def drive(pilot: Pilot[Any]) -> None:
        await idle(pilot)
        await press(pilot, *SCREENS[screen])

    assert snap_compare(app, terminal_size=size, run_before=drive)
