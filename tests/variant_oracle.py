"""Small checkpoints in tests/data that real producers wrote, with the producers' own dequantized weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from checkpoint_builder import read_safetensors_values
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window, window_parts
from quantscope.session.inspection import Inspection, TensorState
from quantscope.session.pipeline import inspect

DATA = Path(__file__).parent / "data"


class Variant:
    """One folder of tests/data, opened and inspected."""

    def __init__(self, name: str | Path) -> None:
        self.folder = DATA / name
        pickled = self.folder / "qmodel.pt"
        self.checkpoint = Checkpoint.open(str(pickled if pickled.exists() else self.folder))
        self.inspection: Inspection = inspect(self.checkpoint)
        oracle = self.folder / "oracle.safetensors"
        self.oracle: dict[str, Any] = read_safetensors_values(oracle) if oracle.exists() else {}

    def state(self, name: str) -> TensorState:
        """State of a logical tensor."""
        return self.inspection.state(name)

    def decode(self, name: str, window: Window | None = None, *, as_producer: bool = True) -> Any:
        """Decode of a window, the whole tensor by default."""
        state = self.state(name)
        reading = state.solved.chosen
        assert reading is not None, name
        rows, cols = reading.shape[-2:]
        return decode_window(
            self.checkpoint.family(state.tensor),
            state.tensor,
            reading,
            window or Window(range(rows), range(cols)),
            self.checkpoint.reader(),
            as_producer=as_producer,
        )

    def wanted(self, name: str) -> Any:
        """The producer's weights, float32."""
        return np.asarray(self.oracle[name], dtype=np.float32)


def check_accounted(variant: Variant, n_tensors: int, word: str) -> None:
    """Every stored tensor is claimed, every tensor is solved, nothing contradicts."""
    grouping = variant.checkpoint.grouping
    assert not grouping.failures, grouping.failures
    assert not grouping.orphans, grouping.orphans
    assert not grouping.unrecognised, [t.name for t in grouping.unrecognised]
    assert len(variant.inspection.states) == n_tensors
    for state in variant.inspection.states:
        assert state.tensor.word == word
        assert state.solved.solutions, (state.tensor.name, state.solved.equations)
        assert state.solved.declared_holds is not False, state.tensor.name
        assert state.exam.error is None, (state.tensor.name, state.exam.error)
        torn = [f for f, s in state.contract.fields.items() if s.match == "disagree"]
        assert not torn, (state.tensor.name, torn, state.contract[torn[0]])


def check_windows(variant: Variant, name: str) -> None:
    """Cuts are cuts of the whole, and what parts and combine make."""
    complete = variant.decode(name)
    state = variant.state(name)
    family, reading = variant.checkpoint.family(state.tensor), state.solved.chosen
    assert reading is not None
    n_rows, n_cols = complete.shape
    for rows, cols in (
        (range(1, n_rows - 1), range(1, n_cols - 1)),
        (range(n_rows // 2, n_rows // 2 + 1), range(n_cols)),
        (range(n_rows), range(n_cols // 3, n_cols // 3 + 2)),
        (range(n_rows - 1, n_rows), range(n_cols - 1, n_cols)),
        (range(2, 2), range(3)),
    ):
        window = Window(rows, cols)
        wanted = complete[rows.start : rows.stop, cols.start : cols.stop]
        found = variant.decode(name, window)
        assert found.shape == wanted.shape, (name, window)
        assert np.array_equal(found, wanted, equal_nan=True), (name, window)
        parts = window_parts(family, state.tensor, reading, window, variant.checkpoint.reader())
        with np.errstate(all="ignore"):
            made = family.combine(parts, reading, True)
        assert np.array_equal(made, wanted, equal_nan=True), (name, window)


def writable_copy(variant: Variant, folder: Path) -> Path:
    """A copy of the folder without its oracle, for flipping bits."""
    target = folder / "copy"
    target.mkdir()
    for path in variant.folder.iterdir():
        if path.name not in ("oracle.safetensors", "PROVENANCE.json"):
            shutil.copy(path, target / path.name)
    return target


def corners(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """A few elements far apart."""
    rows, cols = shape[-2:]
    yield from ((0, 0), (rows - 1, cols - 1), (rows // 2, cols // 3), (1, cols // 2))
