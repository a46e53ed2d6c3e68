"""Files that the producers' own code wrote, kept for the families' tests: nothing above note but what is true."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from quantscope.infer.code_windows import blank_runs
from rules_support import lines, loud, scan

DATA = Path(__file__).parent / "data"

FOLDERS = sorted(
    folder.name
    for folder in DATA.iterdir()
    if list(folder.glob("*.safetensors")) + list(folder.glob("*.gguf"))
)

TRUE_OF: dict[str, set[str]] = {
    # written without a config
    "aqlm-random": {"QD010"},
    "bitsandbytes-variants": {"QD010"},
    "exl3-random": {"QD010"},
    "qqq-packed": {"QD010"},
    # matrices padded by whole tiles, small ones
    "comfy-kitchen": {"QV001", "QV004"},
    # activation scales that nobody calibrated
    "gemma-variants": {"QS002"},
    # one module of a model: the ignore list names the others
    "modelopt-int4-awq": {"QW003"},
    # random scale bytes
    "mxfp4-variants": {"QS003", "QS005"},
    # one bit with a sign: 0 and -1, and no weight is below half of the scale
    "torchao-variants": {"QV001"},
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_producers_file_is_quiet(name: str) -> None:
    inspection = scan(DATA / name)
    assert not [skip for skip in inspection.rules_skipped if "failed" in skip[1]]
    assert not lines([f for f in loud(inspection) if f.code not in TRUE_OF.get(name, set())])


@pytest.mark.parametrize("start", [0, 1, 511, 512, 513, 5000])
@pytest.mark.parametrize("length", [1023, 1024, 1025, 1536, 4096])
def test_blank_runs_are_found_to_the_byte(start: int, length: int) -> None:
    data = np.arange(12000, dtype=np.int64).astype(np.uint8)
    data[start : start + length] = 7
    (first, stop), *rest = [*blank_runs(data), (0, 0)]
    if length < 1024:
        assert (first, stop) == (0, 0)
        return
    assert first <= start <= first + 1
    assert stop - 1 <= start + length <= stop
    assert rest == [(0, 0)]


def test_two_blank_runs_side_by_side_are_two() -> None:
    data = np.arange(9000, dtype=np.int64).astype(np.uint8)
    data[1000:3000], data[3000:5000] = 1, 2
    assert blank_runs(data) == [(1000, 3000), (3000, 5000)]
