"""What every registered kernel keeps, whoever wrote it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest
from quantscope.parity.grids import UNDERFLOW, UNIT_ROUNDOFF
from quantscope.parity.model import BackendState
from quantscope.parity.protocol import Backend, Kernel, load_backends
from quantscope.parity.records import CUDA_RECORDS, NOT_RUN
from quantscope.parity.run import backends
from quantscope.parity.text import backend_rows

EXPECTED = {"bitsandbytes", "ggml", "gptqmodel", "own", "reference", "torch", "vllm"}


def kernels() -> Iterator[tuple[str, Kernel]]:
    for backend, _ in load_backends():
        if isinstance(backend, Backend) and backend.name in EXPECTED:
            for kernel in backend.kernels:
                yield backend.name, kernel


ALL = list(kernels())
IDS = [f"{name}:{kernel.name}@{kernel.device}" for name, kernel in ALL]


def test_every_backend_loads() -> None:
    loaded = {backend.name for backend, _ in load_backends() if backend is not None}
    assert loaded >= EXPECTED


@pytest.mark.parametrize(("backend", "kernel"), ALL, ids=IDS)
def test_a_kernel_says_what_it_is(backend: str, kernel: Kernel) -> None:
    assert kernel.title
    assert kernel.contracts
    assert kernel.dtypes
    assert kernel.device in ("cpu", "cuda")
    assert kernel.amplitude > 0
    if kernel.executes and kernel.device == "cuda":
        assert kernel.trace_rule.must or backend == "ggml"


@pytest.mark.parametrize(("backend", "kernel"), ALL, ids=IDS)
def test_its_docstring_counts_the_rounding_points(backend: str, kernel: Kernel) -> None:
    if backend == "reference":
        return
    texts = [base.__doc__ or "" for base in type(kernel).__mro__]
    assert any("ounding points" in text for text in texts), type(kernel).__name__


def test_names_are_unique_within_a_backend() -> None:
    assert len(IDS) == len(set(IDS))


def test_rounding_types_have_a_reach_and_a_floor() -> None:
    assert UNIT_ROUNDOFF.keys() == UNDERFLOW.keys()


@cache
def probed() -> list[BackendState]:
    return backends(probe=True)


def test_a_probe_gives_every_kernel_a_state_with_a_reason() -> None:
    for state in probed():
        assert state.probed
        for kernel in state.kernels:
            assert kernel.reason is None or kernel.detail


def test_cuda_kernels_are_marked_as_not_run_until_there_is_a_record() -> None:
    rows = {f"{row[0]}:{row[1]}@{row[2]}": row[3] for row in backend_rows(probed())}
    for name, kernel in ALL:
        key = f"{name}:{kernel.name}@{kernel.device}"
        if kernel.device == "cuda" and name not in CUDA_RECORDS:
            assert NOT_RUN in rows[key]
        else:
            assert NOT_RUN not in rows[key]


def test_the_list_as_json_has_a_reason_for_each() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "quantscope", "parity", "--list", "--no-probe", "--json", "-"],
        capture_output=True,
        check=True,
    )
    document = json.loads(done.stdout)
    names = {state["name"] for state in document["backends"]}
    assert names >= EXPECTED
