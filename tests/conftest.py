"""Shared fixtures: where the real producers' set lies, and small builders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


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
