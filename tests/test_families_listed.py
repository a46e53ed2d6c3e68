"""Formats that are recognised, sized and left undecoded, and ParoQuant, which decodes in its own basis."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_families_hostile as hostile
from checkpoint_builder import Raw, as_raw, bf16, raw, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.errors import UndecodableError
from quantscope.families.registry import FamilyRegistry
from quantscope.session.inspection import Inspection, TensorState
from quantscope.session.pipeline import inspect
from variant_oracle import Variant

N, K = 128, 256


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float16)


def exl2(groups: tuple[tuple[int, int], ...] = ((4, 64), (3, 96), (5, 96))) -> dict[str, Any]:
    rows, pairs = 0, []
    for bits, count in groups:
        pairs += [bits, rows]
        rows += bits * count // 32
    return {
        "q_weight": np.zeros((rows, N), np.int32),
        "q_scale": np.zeros((len(groups), N // 8), np.int32),
        "q_scale_max": ones(len(groups)),
        "q_groups": np.array(pairs, np.int16),
        "q_invperm": np.arange(K, dtype=np.int16),
    }


PLANES: dict[str, dict[str, Any]] = {
    "exl2": exl2(),
    "quip": {
        "Qidxs": np.zeros((N, K // 32), np.int64),
        "SU": ones(K),
        "SV": ones(N),
        "Wscale": np.float32(1),
        "codebook_id": np.int32(0),
    },
    "higgs": {
        "weight": np.zeros((N * 4 // 16, K), np.int16),
        "scales": ones(N, K // 64),
        "tables": ones(16),
        "tables2": np.ones((16, 16, 2), np.float32),
    },
    "spqr": {
        "dense_weights": np.zeros(N * K // 16, np.int64),
        "row_offsets": np.zeros(N + 1, np.int32),
        "col_vals": np.zeros(3, np.int32),
        "in_perm": np.arange(K, dtype=np.int16),
    },
    "sinq": {
        "W_q": np.zeros((N * K // 64 // 2, 64), np.uint8),
        "meta.scale": ones(N * K // 64, 1),
        "meta.zero": ones(N * K // 64, 1),
        "meta.scale2": ones(1, K),
    },
    "fp_quant": {
        "qweight": np.zeros((N, K // 2), np.uint8),
        "scales": np.full((N, K // 32), 127, np.uint8),
        "forward_hadamard_matrix": bf16(np.eye(32)),
        "backward_hadamard_matrix": bf16(np.eye(32)),
    },
    "nunchaku_svdq": {
        "qweight": np.zeros((N, K // 2), np.int8),
        "wscales": bf16(np.ones((K // 64, N))),
        "proj_down": bf16(np.ones((K, 16))),
        "proj_up": bf16(np.ones((N, 16))),
        "smooth_factor": bf16(np.ones(K)),
    },
    "nunchaku_awq": {
        "qweight": np.zeros((N // 4, K // 2), np.int32),
        "wscales": bf16(np.ones((K // 64, N))),
        "wzeros": bf16(np.ones((K // 64, N))),
    },
}

METHODS = {
    "exl2": "exl2",
    "quip": "quip",
    "higgs": "higgs",
    "spqr": "spqr",
    "sinq": "sinq",
    "fp_quant": "fp_quant",
}

EFFECTIVE = {
    "exl2": (4 * 64 + 3 * 96 + 5 * 96) / 256,
    "quip": 2.0,
    "higgs": 4.0,
    "spqr": 4.0,
}


def opened(
    folder: Path, planes: dict[str, Any], config: dict[str, Any] | None = None
) -> tuple[Checkpoint, Inspection]:
    named = {f"m.{suffix}": value for suffix, value in planes.items()}
    checkpoint = Checkpoint.open(str(write_checkpoint(folder / "c", named, config or {})))
    return checkpoint, inspect(checkpoint)


@pytest.mark.parametrize("family", sorted(PLANES))
def test_planes_are_recognised_sized_and_left_undecoded(family: str, tmp_path: Path) -> None:
    checkpoint, found = opened(tmp_path, PLANES[family])
    with checkpoint:
        assert not checkpoint.grouping.failures
        assert not checkpoint.grouping.orphans
        assert not checkpoint.grouping.unrecognised
        (state,) = found.states
        assert state.tensor.family == family
        assert set(state.tensor.stored_names()) == {f"m.{suffix}" for suffix in PLANES[family]}
        chosen = [r for r in state.solved.candidates if r.shape == (N, K)]
        assert chosen
        holds = [
            e.holds for e in checkpoint.family(state.tensor).equations(state.tensor, chosen[0])
        ]
        assert False not in holds
        assert True in holds
        assert state.undecodable
        assert chosen[0].effective_bits == EFFECTIVE.get(family, chosen[0].effective_bits)
        with pytest.raises(UndecodableError, match=state.undecodable):
            checkpoint.family(state.tensor).locate(state.tensor, chosen[0], 0, 0)


@pytest.mark.parametrize("family", sorted(METHODS))
def test_a_missing_mate_leaves_orphans_under_the_declared_method(
    family: str, tmp_path: Path
) -> None:
    gone = {"exl2": "q_scale", "quip": "SV", "higgs": "scales", "spqr": "col_vals",
            "sinq": "W_q", "fp_quant": "qweight"}[family]  # fmt: skip
    planes = {suffix: value for suffix, value in PLANES[family].items() if suffix != gone}
    config = {"quantization_config": {"quant_method": METHODS[family]}}
    checkpoint, found = opened(tmp_path, planes, config)
    with checkpoint:
        assert not found.states
        mine = [o for o in checkpoint.grouping.orphans if o.family == family]
        assert mine
        assert all(orphan.missing == (gone,) for orphan in mine)


def test_exl2_groups_have_widths_of_their_own(tmp_path: Path) -> None:
    checkpoint, found = opened(tmp_path, exl2(((4, 256),)))
    with checkpoint:
        (state,) = found.states
        assert state.solved.candidates[0].element == "u4"
    checkpoint, found = opened(tmp_path / "b", exl2())
    with checkpoint:
        (state,) = found.states
        assert state.solved.candidates[0].element == "mixed u3/u4/u5"
        assert state.tensor.fact("groups") == "4:64,3:96,5:96"


def test_sinq_widths_follow_from_codes_a_word() -> None:
    variant = Variant("sinq-shapes")
    assert not variant.checkpoint.grouping.orphans
    assert not variant.checkpoint.grouping.unrecognised
    assert len(variant.inspection.states) == 7
    for state in variant.inspection.states:
        (reading,) = state.solved.candidates
        equations = variant.checkpoint.family(state.tensor).equations(state.tensor, reading)
        assert state.tensor.family == "sinq"
        assert reading.element == "u" + state.tensor.module.rpartition("b")[2]
        assert reading.shape == (16, 128)
        assert all(equation.holds for equation in equations), equations


@pytest.mark.parametrize(
    ("family", "suffix"),
    [("exl2", "q_scale"), ("quip", "SU"), ("higgs", "tables2"), ("spqr", "in_perm"),
     ("sinq", "meta.zero"), ("fp_quant", "scales"), ("nunchaku_svdq", "proj_up"),
     ("nunchaku_awq", "wzeros")],
)  # fmt: skip
def test_a_plane_of_another_size_breaks_an_equation(
    family: str, suffix: str, tmp_path: Path
) -> None:
    planes = dict(PLANES[family])
    planes[suffix] = ones(7, 3)
    checkpoint, found = opened(tmp_path, planes)
    with checkpoint:
        mine = [state for state in found.states if state.tensor.family == family]
        for state in mine:
            for reading in state.solved.candidates:
                equations = checkpoint.family(state.tensor).equations(state.tensor, reading)
                assert any(equation.holds is False for equation in equations)


def whole(checkpoint: Checkpoint, state: TensorState) -> Any:
    reading = state.solved.chosen
    assert reading is not None
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    family = checkpoint.family(state.tensor)
    return decode_window(family, state.tensor, reading, window, checkpoint.reader())


def paroquant() -> dict[str, Any]:
    generator = np.random.default_rng(7)
    words = generator.integers(-(2**31), 2**31, (K, N // 8), dtype=np.int64).astype(np.int32)
    zeros = generator.integers(-(2**31), 2**31, (K // 128, N // 8), dtype=np.int64)
    return {
        "qweight": words,
        "qzeros": zeros.astype(np.int32),
        "scales": ones(K // 128, N),
        "theta": np.zeros((8, K // 2), np.float16),
        "pairs": np.zeros((8, K), np.int16),
        "channel_scales": ones(1, K),
    }


def test_paroquant_decodes_as_awq_in_the_rotated_basis(tmp_path: Path) -> None:
    planes = paroquant()
    bare = {suffix: planes[suffix] for suffix in ("qweight", "qzeros", "scales")}
    with opened(tmp_path, planes)[0] as checkpoint:
        (state,) = inspect(checkpoint).states
        assert (state.tensor.family, state.contract.value("basis")) == (
            "paroquant",
            "rotated: pairs of input channels (theta, pairs) and channel_scales",
        )
        assert not checkpoint.grouping.orphans
        assert not checkpoint.grouping.unrecognised
        assert state.undecodable is None
        rotated = whole(checkpoint, state)
    with opened(tmp_path / "awq", bare)[0] as checkpoint:
        (state,) = inspect(checkpoint).states
        assert state.tensor.family == "awq_gemm"
        assert np.array_equal(whole(checkpoint, state), rotated)


MINE = (
    "hqq", "quanto", "torchao", "modelopt_int4", "modelopt_int8", "mxfp4", "quark", "quark_mx", "bitnet", "gemma", "eetq",
    "ascend_modelslim", "w4afp8", "qqq", "exl3", "aqlm", "vptq", "exl2", "quip", "higgs", "spqr", "sinq",
    "fp_quant", "nunchaku_svdq", "nunchaku_awq", "paroquant",
)  # fmt: skip

MORE_SUFFIXES = (
    "W_q", "scale", "zero", "nbits", "group_size", "shape", "axis", "meta.scale", "meta.zero", "meta.scale2",
    "weight._data", "weight._data._data", "weight._scale", "weight._shift", "_weight_qdata", "_weight_scale",
    "_weight_zero_point", "weight", "weight_scale", "weight_zero_point", "weight_scales", "weight_offset",
    "quant_bias", "scales", "weight_blocks", "weight_scales", "B", "s_group", "s_channel", "trellis", "suh",
    "svh", "su", "sv", "mcg", "mul1", "codes", "codebooks", "indices", "centroids.weight", "perm",
    "res_centroids.weight", "outlier_indices", "outlier_centroids.weight", "weight_bias", "q_weight",
    "q_scale", "q_scale_max", "q_groups", "q_invperm", "Qidxs", "SU", "SV", "Wscale", "tables", "tables2",
    "dense_weights", "row_offsets", "col_vals", "in_perm", "qweight", "qzeros", "wscales", "wzeros",
    "proj_down", "proj_up", "forward_hadamard_matrix", "weight_global_scale", "theta", "pairs",
    "channel_scales", "input_scale", "bias",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_no_family_raises_on_random_planes(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "FAMILIES", MINE)
    monkeypatch.setattr(hostile, "SUFFIXES", MORE_SUFFIXES)
    methods = (
        "hqq",
        "quanto",
        "torchao",
        "quark",
        "mxfp4",
        "bitnet",
        "vptq",
        "aqlm",
        "exl3",
        *METHODS,
    )
    monkeypatch.setattr(hostile, "METHODS", methods)
    hostile.test_no_family_raises_on_random_planes(
        seed, tmp_path, FamilyRegistry.from_entry_points()
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("family", sorted(PLANES))
def test_no_family_raises_on_damaged_planes(family: str, seed: int, tmp_path: Path) -> None:
    generator = random.Random(f"{family}{seed}")
    tensors: dict[str, Raw] = {}
    for suffix, value in PLANES[family].items():
        stored = as_raw(value)
        tensors[f"m.{suffix}"] = stored
    for name in generator.sample(sorted(tensors), 2):
        hostile.damage(tensors, name, generator)
    method = {"quantization_config": {"quant_method": METHODS.get(family, "awq"), "bits": 10**18}}
    with Checkpoint.open(str(write_checkpoint(tmp_path / "c", tensors, method))) as checkpoint:
        assert not checkpoint.grouping.failures
        inspect(checkpoint)


def test_an_int_plane_under_another_dtype_is_no_group_table(tmp_path: Path) -> None:
    planes = {**exl2(), "q_groups": raw("F16", np.zeros(6, np.uint16))}
    checkpoint, found = opened(tmp_path, planes)
    with checkpoint:
        assert all(False in [e.holds for e in checkpoint.family(s.tensor).equations(s.tensor, r)]
                   for s in found.states for r in s.solved.candidates)  # fmt: skip
