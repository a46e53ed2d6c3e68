"""Windows of stored planes: the bytes that come back, and how many are read for them."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantscope.checkpoint import Checkpoint
from quantscope.decode.ledger import ReadLedger
from quantscope.decode.plane_reader import PlaneReader
from quantscope.errors import CancelledError
from quantscope.model import Plane
from safetensors.numpy import save_file

ROWS, COLS = 96, 4096


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("planes")
    words = np.random.default_rng(3).integers(-(2**31), 2**31, (ROWS, COLS)).astype(np.int32)
    scales = np.ones((ROWS * 8 // 128, COLS), np.float16)
    save_file({"a.qweight": words, "a.scales": scales}, str(folder / "model.safetensors"))
    return folder, words


def codes_plane(checkpoint: Checkpoint) -> Plane:
    plane = checkpoint.grouping.tensors[0].plane("codes")
    assert plane is not None
    return plane


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.integers(1, 700), min_size=1, max_size=12),
    rows=st.sampled_from([range(ROWS), range(5, 90), range(7, 8)]),
    back=st.integers(0, 3),
)
def test_a_walk_along_the_columns_gives_the_stored_words(
    stored: tuple[Path, np.ndarray], widths: list[int], rows: range, back: int
) -> None:
    folder, words = stored
    with Checkpoint.open(str(folder)) as checkpoint:
        plane, reader = codes_plane(checkpoint), checkpoint.reader()
        start = 0
        for number, width in enumerate(widths):
            stop = min(COLS, start + width)
            window = reader.read(plane, rows, range(start, stop))
            assert np.array_equal(window, words[rows.start : rows.stop, start:stop])
            start = max(0, stop - back) if number % 3 == 2 else stop


def test_a_walk_along_the_columns_reads_the_plane_about_once(
    stored: tuple[Path, np.ndarray],
) -> None:
    folder, _ = stored
    with Checkpoint.open(str(folder)) as checkpoint:
        plane, reader = codes_plane(checkpoint), checkpoint.reader()
        for start in range(0, COLS, 64):
            reader.read(plane, range(ROWS), range(start, start + 64))
        assert plane.nbytes <= reader.ledger.bytes_by_role["codes"] <= 2.1 * plane.nbytes


def test_other_rows_and_other_planes_are_never_served_from_what_was_read_ahead(
    stored: tuple[Path, np.ndarray],
) -> None:
    folder, words = stored
    with Checkpoint.open(str(folder)) as checkpoint:
        plane, reader = codes_plane(checkpoint), checkpoint.reader()
        for start in (0, 64):
            reader.read(plane, range(ROWS), range(start, start + 64))
        other = reader.read(plane, range(1, ROWS), range(128, 192))
        assert np.array_equal(other, words[1:, 128:192])


def test_a_stopped_job_gets_nothing_more_even_from_what_was_read_ahead(
    stored: tuple[Path, np.ndarray],
) -> None:
    folder, _ = stored
    with Checkpoint.open(str(folder)) as checkpoint:
        stopped = [False]
        reader = PlaneReader(checkpoint.reader().sources, cancelled=lambda: stopped[0])
        plane = codes_plane(checkpoint)
        for start in (0, 64):
            reader.read(plane, range(ROWS), range(start, start + 64))
        stopped[0] = True
        with pytest.raises(CancelledError):
            reader.read(plane, range(ROWS), range(128, 192))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 30), st.integers(1, 6), st.integers(30, 60)),
        min_size=0,
        max_size=40,
    )
)
def test_the_ledger_holds_exactly_the_bytes_that_were_read(
    reads: list[tuple[int, int, int, int]],
) -> None:
    ledger, seen = ReadLedger(), set()
    for start, nbytes, count, stride in reads:
        ledger.add("codes", 7, start, nbytes, count, stride)
        seen |= {start + i * stride + b for i in range(count) for b in range(nbytes)}
    ranges = ledger.ranges(7).tolist()
    assert {place for start, stop in ranges for place in range(start, stop)} == seen
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))
    assert ledger.bytes_by_role["codes"] == sum(n * count for _, n, count, _ in reads)


def test_a_long_walk_of_strided_reads_takes_little_memory() -> None:
    ledger = ReadLedger()
    for _ in range(3):
        for number in range(2_000):
            ledger.add("codes", 0, number * 10_000_000, 16, 900, 10_000)
    assert len(ledger.ranges(0)) == 2_000 * 900
    tracemalloc.start()
    for number in range(2_000):
        ledger.add("codes", 1, number * 10_000_000, 16, 900, 10_000)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 300_000
