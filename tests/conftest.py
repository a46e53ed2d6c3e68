"""Shared fixtures: where the real producers' set lies, and small builders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that remembers, and writes, in a folder of the test's own, in colour."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def real_set() -> Path:
    """The folder of real checkpoints; skips where QUANTSCOPE_REAL does not name one."""
    folder = os.environ.get("QUANTSCOPE_REAL", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("QUANTSCOPE_REAL names no folder with the real producers' checkpoints")
    return Path(folder)


@pytest.fixture(scope="session")
def every_sample(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder for each sample, good and faulty."""
    from quantscope.samples.library import write_samples

    return list(write_samples(tmp_path_factory.mktemp("samples")))
