"""Shapes that the real set lacks, made by the producers' own code: odd widths, ragged groups, stacks, old layouts.

Every folder of tests/data named here holds a producer's planes, its config, PROVENANCE.json and
oracle.safetensors, the weights that the producer's own code gives back, in the dtype in which it gives them.
"""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import real_oracle
from checkpoint_builder import read_safetensors_values
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.roundings import round_to
from quantscope.decode.window import decode_window
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import Scope, inspect

DATA = Path(__file__).parent / "data"

FOLDERS = (
    "autoawq-gemm",
    "autoawq-gemv",
    "autoawq-gemv-fast",
    "autoawq-marlin",
    "autogptq-marlin",
    "bitsandbytes-variants",
    "comfy-kitchen",
    "compressed-tensors-mixed",
    "compressed-tensors-pack",
    "compressed-tensors-padded",
    "gptqmodel-bnb-int8",
    "gptqmodel-bnb-nf4",
    "gptqmodel-fp8-block",
    "gptqmodel-fp8-tensor",
    "gptqmodel-gguf-q4_0",
    "gptqmodel-gguf-q4_k_m",
    "gptqmodel-gguf-q8_0",
    "gptqmodel-planar",
    "gptqmodel-v2",
    "mlx-variants",
)

PLAIN = ("gptqmodel-fp8-block", "gptqmodel-fp8-tensor")
"""Oracles in plain float32: the loader that rounds the scales first had no part in them."""


def stored_dtypes(path: Path) -> dict[str, str]:
    blob = path.read_bytes()
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    return {name: entry["dtype"] for name, entry in header.items() if name != "__metadata__"}


MODULES = [
    (folder, name)
    for folder in FOLDERS
    for name in stored_dtypes(DATA / folder / "oracle.safetensors")
]


@lru_cache(maxsize=16)
def inspected(folder: str) -> Inspection:
    checkpoint = Checkpoint.open(str(DATA / folder))
    return inspect(checkpoint, Scope(mode="deep"))


@lru_cache(maxsize=16)
def oracle(folder: str) -> dict[str, np.ndarray]:
    return read_safetensors_values(DATA / folder / "oracle.safetensors")


def decode(folder: str, name: str, window: Window | None = None, as_producer: bool = True):
    inspection = inspected(folder)
    state = inspection.state(name)
    reading = state.reading
    assert reading is not None
    window = window or Window(range(reading.shape[0]), range(reading.shape[1]))
    return decode_window(
        inspection.checkpoint.family(state.tensor),
        state.tensor,
        reading,
        window,
        inspection.checkpoint.reader(),
        as_producer=as_producer,
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_stored_tensor_is_a_plane_or_a_companion(folder: str) -> None:
    grouping = inspected(folder).checkpoint.grouping
    assert not grouping.failures
    assert not grouping.unrecognised
    assert not grouping.orphans
    assert not grouping.plain
    assert {t.name for t in grouping.tensors} == set(oracle(folder))


@pytest.mark.parametrize(("folder", "name"), MODULES)
def test_sizes_solve_and_declarations_agree(folder: str, name: str) -> None:
    state = inspected(folder).state(name)
    assert state.solved.solutions, [e for e in state.solved.equations if e.holds is False]
    assert state.solved.declared_holds is not False
    torn = {f: s for f, s in state.contract.fields.items() if s.match == "disagree"}
    assert not torn
    assert state.exam.error is None


@pytest.mark.parametrize(("folder", "name"), MODULES)
def test_decode_is_the_producers_bit_for_bit(folder: str, name: str) -> None:
    wanted = oracle(folder)[name]
    found = decode(folder, name, as_producer=folder not in PLAIN)
    kind = stored_dtypes(DATA / folder / "oracle.safetensors")[name]
    rounded = round_to(found, {"F16": "f16", "BF16": "bf16", "F32": "f32"}[kind])
    assert rounded.shape == wanted.shape
    assert np.array_equal(rounded, wanted.astype(np.float32))


@pytest.mark.parametrize(("folder", "name"), MODULES)
def test_any_window_is_that_part_of_the_whole(folder: str, name: str) -> None:
    whole = decode(folder, name)
    n_rows, n_cols = whole.shape
    generator = np.random.default_rng(1)
    for _ in range(6):
        top, bottom = sorted(int(v) for v in generator.integers(0, n_rows + 1, 2))
        left, right = sorted(int(v) for v in generator.integers(0, n_cols + 1, 2))
        part = decode(folder, name, Window(range(top, bottom), range(left, right)))
        assert np.array_equal(part, whole[top:bottom, left:right])


@pytest.mark.parametrize(("folder", "name"), MODULES)
def test_located_bits_hold_that_element_only(folder: str, name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(DATA / folder, copy, ignore=shutil.ignore_patterns("oracle*"))
    reading = inspected(folder).state(name).reading
    assert reading is not None
    n_rows, n_cols = reading.shape
    cells = [(0, 0), (n_rows - 1, n_cols - 1), (n_rows // 2, n_cols // 3)]
    real_oracle.check_locate(copy, name, reading, cells)
