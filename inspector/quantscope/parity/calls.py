"""Calls into a kernel: every output that a check judges, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from quantscope.decode.parts import Array
from quantscope.parity.grids import representable
from quantscope.parity.inputs import ONE_HOT_ROWS, Input, make_inputs, one_hot, one_hot_columns
from quantscope.parity.model import Settings
from quantscope.parity.protocol import Fixture, Kernel, Prepared, RawWeight, TraceData, Weight

CONTROL_INPUT = 2
"""Which of the dense inputs the negative controls are judged on: 16 random normal rows."""

Step = Callable[[str, int, int], None]


class FixtureOutput(NamedTuple):
    """Outputs of the built-in fixture: inputs, and one output each."""

    fixture: Fixture
    inputs: list[Array]
    outputs: list[Array]


class Outputs(NamedTuple):
    """Outputs of one weight, float64 [M, rows] each."""

    inputs: list[Input]
    dense: list[Array]
    columns: Array
    read_out: Array
    """[columns, rows] of one-hot rows."""
    calls: int
    trace: TraceData | None = None
    corrupted: tuple[str, Array] | None = None
    fixture: FixtureOutput | None = None
    repacked: Mapping[str, str] = MappingProxyType({})


def planned_inputs(kernel: Kernel, n_cols: int, dtype: str, settings: Settings) -> list[Input]:
    """Dense inputs of a check of this kernel."""
    return make_inputs(n_cols, dtype, settings.seed, kernel.fallback_batch)


def planned_columns(kernel: Kernel | None, n_cols: int, settings: Settings) -> Array:
    """Input channels that are read out one by one."""
    limit = settings.max_columns
    if kernel is not None:
        limit = min(limit, kernel.most_columns)
    return one_hot_columns(n_cols, limit, settings.seed)


def kernel_outputs(
    kernel: Kernel, weight: Weight, raw: RawWeight, dtype: str, settings: Settings, step: Step
) -> Outputs:
    """Run a kernel on every input of a check.

    Args:
        kernel: the kernel.
        weight: the weight's reading, for the fixture of its layout.
        raw: its stored bytes.
        dtype: type of activations.
        settings: seed and limits.
        step: receives (stage, done, total).
    """
    n_cols = raw.shape[1]
    inputs = planned_inputs(kernel, n_cols, dtype, settings)
    columns = planned_columns(kernel, n_cols, settings)
    prepared = kernel.prepare(raw, dtype)
    dense = []
    for number, batch in enumerate(inputs):
        dense.append(_call(kernel, prepared, batch.x, dtype))
        step("inputs", number + 1, len(inputs))
    pieces = []
    for start in range(0, columns.size, ONE_HOT_ROWS):
        chosen = columns[start : start + ONE_HOT_ROWS]
        x = representable(one_hot(n_cols, chosen, kernel.amplitude), dtype)
        pieces.append(_call(kernel, prepared, x, dtype).astype(np.float32))
        step("codes", start + chosen.size, columns.size)
    trace = kernel.trace(prepared, inputs[CONTROL_INPUT].x, dtype)
    return Outputs(
        inputs=inputs,
        dense=dense,
        columns=columns,
        read_out=np.concatenate(pieces),
        calls=len(dense) + len(pieces),
        trace=trace,
        corrupted=_corrupted(kernel, raw, inputs[CONTROL_INPUT].x, dtype),
        fixture=_fixture(kernel, weight, dtype, settings),
        repacked=_digests(prepared.repacked),
    )


def _call(kernel: Kernel, prepared: Prepared, x: Array, dtype: str) -> Array:
    y = np.asarray(kernel.run(prepared, x, dtype), dtype=np.float64)
    if y.ndim != 2 or y.shape[0] != x.shape[0]:
        raise ValueError(f"the kernel gave shape {y.shape} for {x.shape[0]} rows of input")
    return y


def _corrupted(kernel: Kernel, raw: RawWeight, x: Array, dtype: str) -> tuple[str, Array] | None:
    changed = kernel.corrupted(raw)
    if changed is None:
        return None
    what, wrong = changed
    return what, _call(kernel, kernel.prepare(wrong, dtype), x, dtype)


def _fixture(
    kernel: Kernel, weight: Weight, dtype: str, settings: Settings
) -> FixtureOutput | None:
    fixture = kernel.fixture(weight)
    if fixture is None:
        return None
    prepared = kernel.prepare(fixture.raw, dtype)
    n_cols = fixture.raw.shape[1]
    normal = np.random.default_rng(settings.seed + 100).standard_normal((3, n_cols))
    first = np.arange(min(n_cols, ONE_HOT_ROWS))
    inputs = [
        representable(normal, dtype),
        representable(one_hot(n_cols, first, kernel.amplitude), dtype),
    ]
    return FixtureOutput(fixture, inputs, [_call(kernel, prepared, x, dtype) for x in inputs])


def _digests(buffers: Mapping[str, Array | bytes]) -> dict[str, str]:
    return {
        name: hashlib.sha256(
            data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
        ).hexdigest()
        for name, data in sorted(buffers.items())
    }
