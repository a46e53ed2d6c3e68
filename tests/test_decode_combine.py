"""Tiled combining: the same numbers as one element after the other, whatever the shape of the groups."""

from __future__ import annotations

import numpy as np
import pytest
from quantscope.decode.combine import MAX_RUNS, TILE_ELEMENTS, column_runs, combine_parts
from quantscope.decode.parts import Parts
from quantscope.model import Arithmetic

GENERATOR = np.random.default_rng(8)


def spelled_out(parts: Parts) -> np.ndarray:
    """The rule element by element, in float32."""
    out = np.empty(parts.codes.shape, np.float32)

    def at(plane: np.ndarray, row: int, group: int) -> np.float32:
        return np.float32(plane[row % plane.shape[0], group % plane.shape[1]])

    for row in range(out.shape[0]):
        for col in range(out.shape[1]):
            index = parts.group_of_column
            group = int(index[col] if index.ndim == 1 else index[row, col])
            value = np.float32(parts.codes[row, col])
            if parts.combine == "lut":
                value = parts.lut[parts.codes[row, col]]
            if parts.zero is not None:
                value = value - at(parts.zero, row, group)
            for scale in parts.scale:
                value = value * at(scale, row, group)
            if parts.combine == "minus_min":
                value = value - at(parts.minimum, row, group)
            if parts.combine == "plus_min":
                value = value + at(parts.minimum, row, group)
            out[row, col] = value
    return out


INDICES = {
    "whole groups": np.arange(24) // 8,
    "cut at both ends": (np.arange(24) + 5) // 8,
    "one group": np.zeros(24, dtype=np.int64),
    "one column a group": np.arange(24) % 3,
    "act-order": np.array([2, 0, 1, 1, 2, 0] * 4),
    "flat": np.arange(5 * 24).reshape(5, 24) // 40,
}


@pytest.mark.parametrize("kind", list(INDICES))
@pytest.mark.parametrize("combine", ["affine", "lut", "plus_min", "minus_min", "value"])
def test_every_rule_over_every_kind_of_group(kind: str, combine: str) -> None:
    index = INDICES[kind]
    rows = 1 if kind == "flat" else 5
    groups = int(index.max()) + 1
    parts = Parts(
        codes=GENERATOR.integers(0, 16, (5, 24), dtype=np.uint8),
        combine=combine,  # type: ignore[arg-type]
        scale=(GENERATOR.random((rows, groups), dtype=np.float32),),
        zero=GENERATOR.integers(0, 16, (rows, groups)) if combine == "affine" else None,
        minimum=GENERATOR.random((rows, groups), dtype=np.float32),
        lut=GENERATOR.random(16, dtype=np.float32),
        group_of_column=index,
    )
    assert np.array_equal(combine_parts(parts, None), spelled_out(parts))


def test_tiles_join_without_a_seam() -> None:
    codes = GENERATOR.integers(0, 16, (5, TILE_ELEMENTS // 2), dtype=np.uint8)
    scale = GENERATOR.random((5, codes.shape[1] // 128), dtype=np.float32)
    index = np.arange(codes.shape[1]) // 128
    parts = Parts(codes=codes, combine="affine", scale=(scale,), group_of_column=index)
    assert np.array_equal(combine_parts(parts, None), codes * scale[:, index])


def test_half_steps_round_after_each_step() -> None:
    codes = np.array([[7]], dtype=np.uint8)
    scale, minimum = np.float32([[0.1]]), np.float32([[1000.3]])
    parts = Parts(codes=codes, combine="plus_min", scale=(scale,), minimum=minimum)
    rule = Arithmetic(compute="f16", output="f16")
    wanted = np.float16(np.float32(np.float16(np.float32(7) * scale[0, 0])) + minimum[0, 0])
    assert combine_parts(parts, rule)[0, 0] == np.float32(wanted)


def test_runs_of_columns() -> None:
    assert column_runs((np.arange(20) + 6) // 8) == [
        (slice(0, 2), slice(0, 1), 2),
        (slice(2, 18), slice(1, 3), 8),
        (slice(18, 20), slice(3, 4), 2),
    ]
    assert column_runs(np.array([0, 2, 2])) is None
    assert column_runs(np.array([1, 0])) is None
    ragged = np.repeat(np.arange(2 * MAX_RUNS), np.tile([1, 2], MAX_RUNS))
    assert column_runs(ragged) is None
