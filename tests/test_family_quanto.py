"""optimum-quanto: the real qint4 model, and small modules by quanto itself at every qtype."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.session.pipeline import inspect
from real_oracle import (
    RealCheckpoint,
    check_declarations,
    check_decode,
    check_equations,
    check_locate,
    check_statements,
)
from variant_oracle import Variant, check_windows, corners, writable_copy

GROUPED = ("q4_g128", "q4_g32", "q4_row", "q4_odd", "q4_bf", "q4_f32", "q2_g64", "q2_row")
BYTES = {"i8": "s8", "i8_bf": "s8", "f8": "e4m3fn", "f8e5": "e5m2"}


@pytest.fixture(scope="module")
def variants() -> Variant:
    return Variant("quanto-variants")


@pytest.mark.real
def test_real_qint4_says_and_decodes_what_quanto_does(real_set: Path) -> None:
    real = RealCheckpoint(real_set / "quanto-qint4")
    check_statements(real)
    check_equations(real)
    check_declarations(real)
    check_decode(real)
    claims = real.inspection.state("model.layers.0.self_attn.k_proj.weight").claims
    shape = next(c for c in claims if c.field == "shape")
    assert str(shape.source) == "config.json#/hidden_size"


def test_every_module_is_solved_and_its_activation_scales_are_companions(variants: Variant) -> None:
    grouping = variants.checkpoint.grouping
    assert not grouping.orphans
    assert not grouping.unrecognised
    assert len(grouping.tensors) == 12
    assert len(grouping.companions) == 24
    for state in variants.inspection.states:
        assert state.solved.solutions, state.tensor.name
        assert state.contract["element"].match in ("agree", "declared_only"), state.tensor.name


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_weights_are_bit_equal_to_quanto(variants: Variant, name: str) -> None:
    # no file says how long a row is, so the flattened weights are compared
    found = variants.decode(f"{name}.weight")
    assert np.array_equal(found.ravel(), variants.wanted(f"{name}.weight").ravel())


@pytest.mark.parametrize("name", sorted(BYTES))
def test_byte_weights_are_bit_equal_to_quanto(variants: Variant, name: str) -> None:
    state = variants.state(f"{name}.weight")
    assert state.contract.value("element") == BYTES[name]
    assert np.array_equal(variants.decode(f"{name}.weight"), variants.wanted(f"{name}.weight"))


def test_the_true_row_length_is_among_the_readings_where_nothing_states_it(
    variants: Variant,
) -> None:
    for name in GROUPED:
        state = variants.state(f"{name}.weight")
        shapes = {reading.shape for reading in state.solved.solutions}
        assert variants.wanted(f"{name}.weight").shape in shapes
    assert variants.state("q4_g128.weight").contract["shape"].match == "ambiguous"


def test_a_bias_settles_the_row_length(variants: Variant) -> None:
    assert variants.state("q2_row.weight").contract.value("shape") == [7, 24]


@pytest.mark.parametrize("name", ["q4_g32", "q2_g64", "i8", "f8"])
def test_any_window_is_a_cut_of_the_whole(variants: Variant, name: str) -> None:
    check_windows(variants, f"{name}.weight")


@pytest.mark.parametrize("name", ["q4_g128", "q2_g64", "i8", "f8e5"])
def test_flipping_located_bits_changes_that_element_only(
    variants: Variant, tmp_path: Path, name: str
) -> None:
    reading = variants.state(f"{name}.weight").solved.chosen
    assert reading is not None
    folder = writable_copy(variants, tmp_path)
    check_locate(folder, f"{name}.weight", reading, list(corners(reading.shape)))


def test_an_integer_shift_is_a_stored_zero(tmp_path: Path) -> None:
    planes = {
        "m.weight._data._data": np.full((4, 32), 0x95, np.uint8),
        "m.weight._scale": np.full((8, 1), 0.5, np.float16),
        "m.weight._shift": np.full((8, 1), 3, np.int8),
        "m.bias": np.zeros(8, np.float16),
    }
    folder = write_checkpoint(tmp_path / "c", planes, quanto_qmap={"m": {"weights": "qint4"}})
    with Checkpoint.open(str(folder)) as checkpoint:
        state = inspect(checkpoint).states[0]
    assert state.solved.chosen is not None
    assert (state.solved.chosen.zero, state.solved.chosen.zero_convention) == ("integer", "as_is")


@pytest.mark.parametrize("missing", ["weight._scale", "weight._shift", "weight._data._data"])
def test_planes_without_a_mate_are_orphans(variants: Variant, tmp_path: Path, missing: str) -> None:
    rng = np.random.default_rng(0)
    planes = {
        "weight._data._data": rng.integers(0, 256, (4, 32), np.uint8),
        "weight._scale": np.ones((8, 1), np.float16),
        "weight._shift": np.ones((8, 1), np.float16),
    }
    del planes[missing]
    folder = write_checkpoint(tmp_path / "c", {f"m.{k}": v for k, v in planes.items()})
    with Checkpoint.open(str(folder)) as checkpoint:
        orphans = checkpoint.grouping.orphans
        assert not checkpoint.grouping.tensors
    assert {o.stored_name for o in orphans} == {f"m.{k}" for k in planes}
    assert len(orphans[0].missing) == 1


def test_without_the_map_the_dtypes_still_tell_the_qtype(variants: Variant, tmp_path: Path) -> None:
    shutil.copy(variants.folder / "model.safetensors", tmp_path / "model.safetensors")
    with Checkpoint.open(str(tmp_path)) as checkpoint:
        words = {t.name: t.word for t in checkpoint.grouping.tensors}
        inspection = inspect(checkpoint)
    assert words["f8e5.weight"] == "quanto:qfloat8_e5m2"
    assert words["i8.weight"] == "quanto:qint8"
    assert words["q2_g64.weight"] == "quanto:qint2"
    assert inspection.state("q2_g64.weight").contract.value("element") == "u2"
    assert inspection.state("q4_g128.weight").contract.value("element") == "u4"
