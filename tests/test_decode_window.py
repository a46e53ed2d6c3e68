"""Whole tensors in pieces: order in memory, and pieces that make the whole."""

from __future__ import annotations

import io

import numpy as np
import pytest
from quantscope.cli.decode import npy_chunks
from quantscope.decode import window as window_module
from quantscope.decode.parts import Window
from quantscope.decode.window import TURN, decode_window, row_major, stream_windows
from variant_oracle import Variant


@pytest.mark.parametrize(
    "shape", [(1, 1), (TURN, TURN), (TURN + 3, 2 * TURN + 5), (0, 4), (7, 300)]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_in_either_order_comes_out_row_by_row(shape: tuple[int, int], order: str) -> None:
    values = np.asarray(
        np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape), order=order
    )
    found = row_major(values, np.dtype("<f4"))
    assert found.flags.c_contiguous
    assert found.tobytes() == np.arange(shape[0] * shape[1], dtype="<f4").tobytes()


def test_cuts_of_a_transposed_array_keep_their_values() -> None:
    whole = np.arange(40 * 50, dtype=np.float32).reshape(50, 40).T
    cut = whole[3:17, 5:41]
    np.testing.assert_array_equal(row_major(cut), cut)
    assert row_major(cut).flags.c_contiguous


@pytest.mark.parametrize("folder", ["gptqmodel-v2", "autoawq-gemm", "compressed-tensors-pack"])
def test_a_file_of_pieces_is_the_tensor(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = Variant(folder)
    state = variant.inspection.states[0]
    family, reader = variant.checkpoint.family(state.tensor), variant.checkpoint.reader()
    assert state.reading is not None
    rows, cols = state.reading.shape[-2:]
    whole = decode_window(
        family, state.tensor, state.reading, Window(range(rows), range(cols)), reader
    )
    monkeypatch.setattr(window_module, "STREAM_ELEMENTS", 5 * cols)
    assert len(list(stream_windows(state.reading))) == -(-rows // 5)

    def decode(window: Window) -> np.ndarray:
        return decode_window(family, state.tensor, state.reading, window, reader)

    data = b"".join(npy_chunks(decode, Window(range(rows), range(cols))))
    np.testing.assert_array_equal(np.load(io.BytesIO(data)), whole)
