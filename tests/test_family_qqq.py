"""QQQ: the real file against GPTQModel's forward, and planes that GPTQModel's own pack made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from real_oracle import (
    RealCheckpoint,
    check_declarations,
    check_decode,
    check_equations,
    check_locate,
    relative_norm,
)
from variant_oracle import Variant, check_accounted, check_windows, corners, writable_copy


@pytest.fixture(scope="module")
def packed() -> Variant:
    return Variant("qqq-packed")


@pytest.mark.real
def test_real_file_says_and_decodes_what_gptqmodel_does(real_set: Path) -> None:
    real = RealCheckpoint(real_set / "gptqmodel-qqq-g128")
    check_equations(real)
    check_decode(real)
    assert len(real.inspection.states) == real.expected["n_quantized_tensors"]
    for state in real.inspection.states:
        value = state.contract.value
        assert state.tensor.word == "qqq"
        assert value("element") == "u4"
        assert value("group") == {"axis": "in", "size": 128}
        assert (value("zero"), value("symmetric")) == ("fixed", True)
        assert value("scale")["dtype"] == "f16*f32"
        assert value("scale")["second_level"]["per"] == "channel"
    # with scales cast to bfloat16, as its loader does, what is left is a half step here and there
    for name in real.expected["oracle"]["tensors"]:
        produced = real.decode(name, as_producer=True)
        assert relative_norm(produced, real.oracle()[name]) < 2.5e-4


@pytest.mark.real
def test_declarations_of_both_configs_are_found(real_set: Path) -> None:
    real = RealCheckpoint(real_set / "gptqmodel-qqq-g128")
    check_declarations(real)


def test_packed_planes_are_solved(packed: Variant) -> None:
    check_accounted(packed, 2, "qqq")


def test_codes_and_scales_come_back_out_of_their_tiles(packed: Variant) -> None:
    grouped = packed.decode("g.weight", as_producer=False)
    assert np.array_equal(grouped, packed.wanted("g.weight"))
    channel = packed.decode("c.weight", as_producer=False)
    assert np.allclose(channel, packed.wanted("c.weight"), rtol=2e-7, atol=0)
    assert packed.state("c.weight").contract.value("element") == "s4"


@pytest.mark.parametrize("name", ["g.weight", "c.weight"])
def test_windows_and_located_bits(packed: Variant, tmp_path: Path, name: str) -> None:
    check_windows(packed, name)
    reading = packed.state(name).solved.chosen
    assert reading is not None
    # the product with a group scale is rounded: one bit of a scale may change nothing
    cells = list(corners(reading.shape))
    check_locate(writable_copy(packed, tmp_path), name, reading, cells, scale_bit=12)


@pytest.mark.parametrize("missing", ["B", "s_channel"])
def test_planes_without_mates_are_orphans(tmp_path: Path, missing: str) -> None:
    planes: dict[str, Any] = {
        "m.B": np.zeros((2, 128), np.int32),
        "m.s_channel": np.ones((1, 64), np.float32),
        "m.s_group": np.ones((1, 64), np.float16),
    }
    del planes[f"m.{missing}"]
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", planes))) as checkpoint:
        assert {o.stored_name for o in checkpoint.grouping.orphans} == set(planes)
        assert checkpoint.grouping.orphans[0].missing == (missing,)
