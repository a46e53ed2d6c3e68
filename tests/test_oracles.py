"""Every real checkpoint of these families: what EXPECTED.json states, and its producer's own weights."""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import real_oracle
from real_oracle import RealCheckpoint

pytestmark = pytest.mark.real

FOLDERS = (
    "auto-round-mxfp4",
    "auto-round-w2g32-asym-autoround",
    "auto-round-w4g128-asym-autogptq",
    "autoawq-gemm-g128",
    "autoawq-gemv-g128",
    "autoawq-gemvfast-g128",
    "autogptq-w4g128-asym",
    "bitsandbytes-int8",
    "bitsandbytes-nf4",
    "bitsandbytes-nf4-dq",
    "gptqmodel-awq-gemm-g128-asym",
    "gptqmodel-fp8-row",
    "gptqmodel-w3g128-sym",
    "gptqmodel-w4g128-asym-v1",
    "gptqmodel-w4g128-asym-v2",
    "gptqmodel-w4g128-dynamic-mixed",
    "gptqmodel-w4g128-sym",
    "gptqmodel-w4g128-sym-descact",
    "gptqmodel-w5g128-sym",
    "llmcompressor-fp8-block",
    "llmcompressor-kv-fp8-w4a16",
    "llmcompressor-mixed-w4-fp8",
    "llmcompressor-mxfp4",
    "llmcompressor-nvfp4",
    "llmcompressor-w3a16-g128-asym",
    "llmcompressor-w4a16-asym-g128",
    "llmcompressor-w4a16-sharded",
    "llmcompressor-w4a16-sym-g128",
    "llmcompressor-w8a8-int",
    "mlx-mixed_3_6",
    "mlx-nvfp4",
    "mlx-q3-g64",
    "mlx-q4-g64",
    "modelopt-fp8",
    "modelopt-nvfp4",
)


@lru_cache(maxsize=4)
def opened(folder: Path) -> RealCheckpoint:
    return RealCheckpoint(folder)


@pytest.fixture(scope="module", params=FOLDERS)
def real(request: pytest.FixtureRequest, real_set: Path) -> RealCheckpoint:
    return opened(real_set / request.param)


def test_contract_of_every_module_is_what_the_producer_made(real: RealCheckpoint) -> None:
    real_oracle.check_statements(real)


def test_plane_sizes_solve_and_nothing_contradicts(real: RealCheckpoint) -> None:
    real_oracle.check_equations(real)


def test_declarations_are_found_where_they_stand(real: RealCheckpoint) -> None:
    real_oracle.check_declarations(real)


def test_decode_equals_the_producers_own_weights(real: RealCheckpoint) -> None:
    real_oracle.check_decode(real)


def test_every_byte_of_a_claimed_plane_is_claimed_once_or_shared(real: RealCheckpoint) -> None:
    grouping = real.checkpoint.grouping
    names = {t.name for t in real.checkpoint.index.tensors.values()}
    used = {n for t in grouping.tensors for n in t.stored_names()}
    used |= {c.stored_name for c in grouping.companions} | {t.name for t in grouping.plain}
    assert used == names


def test_windows_equal_the_whole(real: RealCheckpoint) -> None:
    from quantscope.decode.parts import Window
    from quantscope.decode.window import decode_window

    name = real.expected["oracle"]["tensors"][0]
    state = real.inspection.state(name)
    whole = real.decode(name, as_producer=True)
    n_rows, n_cols = whole.shape
    generator = np.random.default_rng(7)
    windows = [(0, 1, 0, 1), (n_rows - 1, n_rows, n_cols - 1, n_cols), (3, 3, 0, n_cols)]
    for _ in range(12):
        rows = sorted(generator.integers(0, n_rows + 1, 2))
        cols = sorted(generator.integers(0, n_cols + 1, 2))
        windows.append((*rows, *cols))
    for top, bottom, left, right in windows:
        part = decode_window(
            real.checkpoint.family(state.tensor),
            state.tensor,
            state.reading,
            Window(range(top, bottom), range(left, right)),
            real.checkpoint.reader(),
            as_producer=True,
        )
        assert np.array_equal(part, whole[top:bottom, left:right]), (top, bottom, left, right)


def test_located_bits_hold_that_element_and_no_other(real: RealCheckpoint, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(real.folder, folder, ignore=shutil.ignore_patterns("oracle*", "token*"))
    name = next(n for n in real.expected["oracle"]["tensors"] if "k_proj" in n)
    reading = real.inspection.state(name).reading
    n_rows, n_cols = reading.shape[-2:]
    cells = [(0, 0), (n_rows - 1, n_cols - 1), (5, 37), (n_rows // 2 + 1, n_cols // 2 + 11)]
    real_oracle.check_locate(folder, name, reading, cells)
