"""GPTQ: what decides that planes are its own, what is declared, and every layout of words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Window
from quantscope.errors import UndecodableError
from quantscope.session.pipeline import inspect

DATA = Path(__file__).parent / "data"


def pack_rows(codes: np.ndarray, bits: int, dtype: str) -> np.ndarray:
    """Codes [K, N] into words along axis 0, one shift at a time: the rule as AutoGPTQ states it."""
    per_word = np.dtype(dtype).itemsize * 8 // bits
    words = np.zeros((codes.shape[0] // per_word, codes.shape[1]), dtype=object)
    for k, row in enumerate(codes):
        for n, code in enumerate(row):
            words[k // per_word, n] |= int(code) << (bits * (k % per_word))
    unsigned = np.array(words.tolist(), dtype=dtype.replace("i", "u"))
    return unsigned.view(dtype)


def gptq_tensors(n: int, k: int, g: int, zero_word: int = 0x77777777) -> dict[str, Any]:
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 16, (k, n))
    return {
        "m.qweight": pack_rows(codes, 4, "i4"),
        "m.qzeros": np.full((k // g, n // 8), zero_word, dtype="u4").view("i4"),
        "m.scales": np.full((k // g, n), 0.5, dtype=np.float16),
        "m.g_idx": (np.arange(k) // g).astype("i4"),
    }


def config(**keys: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32} | keys}


def whole(checkpoint: Checkpoint, name: str, reading: Any) -> np.ndarray:
    tensor = checkpoint.find(name)
    family = checkpoint.family(tensor)
    window = Window(range(reading.shape[0]), range(reading.shape[1]))
    return family.combine(
        family.parts(tensor, reading, window, checkpoint.reader()), reading, False
    )


def test_a_falsified_method_does_not_relabel_the_planes(tmp_path: Path) -> None:
    write_checkpoint(
        tmp_path, gptq_tensors(16, 64, 32), config(quant_method="awq", version="gemm", sym=True)
    )
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.tensor.family == "gptq"
    assert state.contract["packing"].match == "disagree"
    assert state.contract["zero_convention"].declared_values == ("as_is",)
    assert state.contract["zero_convention"].match == "disagree"
    assert state.reading is not None
    assert state.reading.packing.axis == "in"


@pytest.mark.real
def test_a_falsified_method_on_real_planes_shows_as_contradiction(
    real_set: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(real_set / "gptqmodel-w4g128-asym-v1", folder)
    (folder / "quantize_config.json").unlink()
    path = folder / "config.json"
    data = json.loads(path.read_text())
    data["quantization_config"] |= {"quant_method": "awq", "method": "awq"}
    path.write_text(json.dumps(data))
    inspection = inspect(Checkpoint.open(str(folder)))
    for state in inspection.states:
        assert state.tensor.word == "gptq"
        assert state.contract["packing"].match == "disagree"
        assert state.reading is not None
        assert state.reading.zero_convention == "minus_one"


def test_both_places_and_both_keys_of_the_format_are_claims(tmp_path: Path) -> None:
    section = config(checkpoint_format="gptq_v2", format="gptq")
    write_checkpoint(
        tmp_path,
        gptq_tensors(16, 64, 32),
        section,
        quantize_config={"bits": 4, "group_size": 32, "checkpoint_format": "gptq"},
    )
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    said = {str(c.source): c.value for c in state.contract["zero_convention"].declared}
    assert said == {
        "config.json#/quantization_config/checkpoint_format": "as_is",
        "config.json#/quantization_config/format": "minus_one",
        "quantize_config.json#/checkpoint_format": "minus_one",
    }
    assert state.contract["zero_convention"].match == "disagree"


def test_no_format_key_is_no_claim_on_the_convention(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, gptq_tensors(16, 64, 32), config(desc_act=False))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert not state.contract["zero_convention"].declared


def test_dynamic_rules_override_and_exclude(tmp_path: Path) -> None:
    dynamic = {"+:^m$": {"bits": 8, "group_size": 16}, "-:^other$": {}}
    write_checkpoint(tmp_path, gptq_tensors(16, 64, 32), config(dynamic=dynamic))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    sources = {str(c.source) for c in state.contract["element"].declared}
    assert sources == {"config.json#/quantization_config/dynamic/+:^m$/bits"}
    assert state.contract["element"].match == "disagree"
    write_checkpoint(tmp_path, gptq_tensors(16, 64, 32), config(dynamic={"-:^m$": {}}))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert "plain" in state.contract["element"].declared_values


def test_missing_zeros_leave_the_midpoint(tmp_path: Path) -> None:
    tensors = gptq_tensors(16, 64, 32)
    del tensors["m.qzeros"]
    write_checkpoint(tmp_path, tensors, config(sym=True))
    checkpoint = Checkpoint.open(str(tmp_path))
    state = inspect(checkpoint).state("m.weight")
    assert state.contract.value("zero") == "fixed"
    assert state.contract["zero_convention"].match == "not_applicable"
    codes = np.random.default_rng(3).integers(0, 16, (64, 16))
    assert np.array_equal(whole(checkpoint, "m.weight", state.reading), (codes.T - 8) * 0.5)


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_other_pack_dtypes(tmp_path: Path, dtype: str, bits: int) -> None:
    generator = np.random.default_rng(bits)
    codes = generator.integers(0, 1 << bits, (64, 32))
    zeros = generator.integers(0, 1 << bits, (2, 32))
    tensors = {
        "m.qweight": pack_rows(codes, bits, dtype),
        "m.qzeros": np.ascontiguousarray(pack_rows(zeros.T, bits, dtype).T),
        "m.scales": generator.random((2, 32)).astype(np.float16),
        "m.g_idx": (np.arange(64) // 32).astype("i4"),
    }
    write_checkpoint(tmp_path, tensors, config(bits=bits, checkpoint_format="gptq_v2"))
    checkpoint = Checkpoint.open(str(tmp_path))
    state = inspect(checkpoint).state("m.weight")
    assert state.tensor.family == "gptq"
    assert state.contract.value("element") == f"u{bits}"
    scale = tensors["m.scales"].astype(np.float32).repeat(32, axis=0)
    wanted = ((codes - zeros.repeat(32, axis=0)) * scale).T
    assert np.array_equal(whole(checkpoint, "m.weight", state.reading), wanted)


def test_golden_three_bit_column(tmp_path: Path) -> None:
    words = np.array([0x43C67543, 0x7543C675, 0xC67543C6], dtype="u4").view("i4")
    planar = np.array([0x93939393, 0x93939393, 0xB4B4B4B4], dtype="u4").view("i4")
    codes = (5 * np.arange(32) + 3) % 8
    for name, column, written in (("gptq", words, "gptq_v2"), ("planar", planar, "gptq_p")):
        folder = tmp_path / name
        tensors = {
            "m.qweight": np.repeat(column[:, None], 32, axis=1),
            "m.qzeros": np.zeros((1, 3), dtype="i4"),
            "m.scales": np.ones((1, 32), dtype=np.float16),
        }
        write_checkpoint(folder, tensors, config(bits=3, checkpoint_format=written))
        checkpoint = Checkpoint.open(str(folder))
        state = inspect(checkpoint).state("m.weight")
        assert np.array_equal(whole(checkpoint, "m.weight", state.reading)[7], codes)


def test_an_all_ones_zero_under_each_reading_of_plus_one(tmp_path: Path) -> None:
    import msgspec

    tensors = gptq_tensors(16, 32, 32)
    tensors["m.qzeros"] = np.array([[0x0000_00F0, 0]], dtype="u4").view("i4")
    write_checkpoint(tmp_path, tensors, config())
    checkpoint = Checkpoint.open(str(tmp_path))
    tensor = checkpoint.find("m.weight")
    family = checkpoint.family(tensor)
    reading = next(
        r for r in family.candidates(tensor) if all(e.holds for e in family.equations(tensor, r))
    )
    found = {}
    for convention in ("as_is", "minus_one", "minus_one_unwrapped", "minus_one_word_add"):
        under = msgspec.structs.replace(reading, zero_convention=convention)
        parts = family.parts(tensor, under, Window(range(4), range(4)), checkpoint.reader())
        found[convention] = np.asarray(parts.zero)[:4, 0].tolist()
    assert found == {
        "as_is": [0, 15, 0, 0],
        "minus_one": [1, 0, 1, 1],
        "minus_one_unwrapped": [1, 16, 1, 1],
        "minus_one_word_add": [1, 0, 2, 1],
    }


def test_a_group_index_beyond_the_scales_is_a_typed_error(tmp_path: Path) -> None:
    tensors = gptq_tensors(16, 64, 32)
    tensors["m.g_idx"][5] = 9
    write_checkpoint(tmp_path, tensors, config())
    checkpoint = Checkpoint.open(str(tmp_path))
    state = inspect(checkpoint).state("m.weight")
    with pytest.raises(UndecodableError, match="names group 9"):
        whole(checkpoint, "m.weight", state.reading)


def test_static_groups_keep_the_natural_order(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, gptq_tensors(16, 64, 32), config(desc_act=True, static_groups=True))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.contract["order"].match == "agree"
    write_checkpoint(tmp_path, gptq_tensors(16, 64, 32), config(desc_act=True))
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert state.contract["order"].match == "disagree"


def test_a_code_plane_without_scales_is_an_orphan(tmp_path: Path) -> None:
    tensors = gptq_tensors(16, 64, 32)
    del tensors["m.scales"]
    write_checkpoint(tmp_path, tensors, config())
    grouping = Checkpoint.open(str(tmp_path)).grouping
    assert {o.stored_name for o in grouping.orphans} == {"m.qweight", "m.qzeros", "m.g_idx"}
    assert {o.missing for o in grouping.orphans} == {("scales",)}


def test_experts_of_a_stack_are_slices(tmp_path: Path) -> None:
    one, two = gptq_tensors(16, 64, 32), gptq_tensors(16, 64, 32)
    two["m.scales"] = two["m.scales"] * 2
    stacked = {name: np.stack([one[name], two[name]]) for name in one if name != "m.g_idx"}
    write_checkpoint(tmp_path, stacked, config())
    checkpoint = Checkpoint.open(str(tmp_path))
    inspection = inspect(checkpoint)
    assert [s.tensor.name for s in inspection.states] == ["m.weight[0]", "m.weight[1]"]
    first, second = (whole(checkpoint, s.tensor.name, s.reading) for s in inspection.states)
    assert np.array_equal(second, first * 2)
    assert inspection.states[1].tensor.part is not None
    assert inspection.states[1].tensor.part.index == 1


def test_square_planes_stay_gptq_and_awq_planes_stay_awq(tmp_path: Path) -> None:
    for folder, family in (("gptqmodel-v2", "gptq"), ("autoawq-gemm", "awq_gemm")):
        checkpoint = Checkpoint.open(str(DATA / folder))
        assert {t.family for t in checkpoint.grouping.tensors} == {family}


def test_auto_round_extra_config_speaks_of_its_module(tmp_path: Path) -> None:
    section = config(
        quant_method="auto-round",
        packing_format="auto_round",
        extra_config={"m": {"bits": 4, "group_size": 16}},
    )
    write_checkpoint(tmp_path, gptq_tensors(16, 64, 16, 0x66666666), section)
    state = inspect(Checkpoint.open(str(tmp_path))).state("m.weight")
    assert [str(c.source) for c in state.contract["group"].declared] == [
        "config.json#/quantization_config/extra_config/m/group_size"
    ]
    assert state.contract["group"].match == "agree"
    assert state.contract["zero_convention"].declared_values == ("as_is",)
