"""Two checkpoints side by side, against numbers computed here without the engine's own comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.compare.model import Comparison, RowMap
from quantscope.compare.names import bare, pair_names
from quantscope.compare.run import compare, compare_sides
from quantscope.compare.sides import Side, with_convention
from quantscope.compare.text import render
from quantscope.compare.values import ChannelSums, is_rescaled
from quantscope.session.inspection import Inspection
from quantscope.session.pipeline import inspect
from report_checkpoints import write_gptq
from safetensors import safe_open
from safetensors.numpy import load_file
from test_infer_cut_planes import NAMES, cut_scales

SAMPLES = Path(__file__).parent.parent / "sample_checkpoints"


@contextmanager
def inspected(*paths: Path) -> Iterator[list[Inspection]]:
    with ExitStack() as stack:
        yield [inspect(stack.enter_context(Checkpoint.open(str(path)))) for path in paths]


def tensors(folder: Path, *names: str) -> dict[str, np.ndarray]:
    with safe_open(folder / "model.safetensors", framework="np") as opened:
        return {name: opened.get_tensor(name) for name in names}


def compared(*paths: Path) -> Comparison:
    with inspected(*paths) as found:
        return compare(*found)


def test_twins_have_byte_identical_zero_planes_that_mean_different_zeros() -> None:
    found = compared(SAMPLES / "twin-gptq", SAMPLES / "twin-awq")
    assert len(found.pairs) == 14
    for pair in found.pairs:
        assert pair.zeros is not None
        assert pair.zeros.bytes_equal
        assert pair.zeros.equal_used < pair.zeros.zeros
        assert pair.zeros.a.convention == "minus_one"
        assert pair.zeros.b.convention == "as_is"
        assert pair.zeros.b.goes_to == (0, 2, 4, 6, 1, 3, 5, 7)
        assert pair.values is not None
        assert pair.values.identical
        assert pair.values.like_for_like


def test_the_zero_planes_of_the_twins_are_equal_in_the_files_themselves() -> None:
    gptq = load_file(SAMPLES / "twin-gptq" / "model.safetensors")
    awq = load_file(SAMPLES / "twin-awq" / "model.safetensors")
    names = [name for name in gptq if name.endswith("qzeros")]
    assert len(names) == 14
    assert all(gptq[name].tobytes() == awq[name].tobytes() for name in names)


def test_reading_one_twin_by_the_other_rule_shifts_every_weight_by_one_step() -> None:
    with inspected(SAMPLES / "twin-gptq") as [found]:
        shifted = compare_sides(Side(found), Side(found, with_convention("as_is")))
    for pair in shifted.pairs:
        assert pair.values is not None
        assert pair.values.steps_mean == pytest.approx(1.0, abs=1e-5)
        assert not pair.values.identical


def test_text_of_a_comparison_names_the_rules_and_what_was_not_run() -> None:
    text = render(compared(SAMPLES / "twin-gptq", SAMPLES / "twin-awq"))
    assert "the two zero planes are byte-identical" in text
    assert "every weight one step too high" in text
    assert "not run: float graph before and after rescaling, float base, packing vectors" in text
    assert "zeros used, place by place" in text


def test_v1_and_v2_of_one_quantization_differ_in_one_field_and_no_weight(real_set: Path) -> None:
    found = compared(real_set / "gptqmodel-w4g128-asym-v1", real_set / "gptqmodel-w4g128-asym-v2")
    quantized = [pair for pair in found.pairs if pair.family_a]
    assert len(quantized) == 14
    for pair in quantized:
        assert [difference.field for difference in pair.contract] == ["zero_convention"]
        assert pair.planes_identical == ("qweight", "scales", "g_idx")
        assert pair.planes_different == ("qzeros",)
        assert pair.zeros is not None
        assert pair.zeros.equal_used == pair.zeros.zeros
        assert pair.zeros.equal_stored == 0
    assert all(pair.values is not None and pair.values.identical for pair in found.pairs)


def rounded(weights: Any, bits: int, group: int = 64) -> Any:
    """Weights rounded to the nearest of 2**bits steps a group of inputs, symmetric."""
    grouped = weights.reshape(weights.shape[0], -1, group)
    scale = np.abs(grouped).max(axis=2, keepdims=True) / (2 ** (bits - 1) - 1)
    return (np.rint(grouped / scale) * scale).reshape(weights.shape)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_coarse_rounding_of_weak_channels_is_no_rescaling_and_a_rescaling_is_one(
    bits: int,
) -> None:
    generator = np.random.default_rng(1)
    strength = np.exp(generator.normal(0, 0.7, 256))
    weights = generator.normal(0, 1, (512, 256)) * strength
    factors = np.exp(generator.normal(0, 0.4, 256))
    for b, rescaled in ((rounded(weights, bits), False), (rounded(weights * factors, bits), True)):
        sums = ChannelSums(256)
        sums.add(weights, b)
        ratio = sums.summary()
        assert ratio is not None
        assert is_rescaled(ratio) is rescaled


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("gptqmodel-w3g128-sym", 0, 0),
        ("llmcompressor-w4a16-asym-g128", 0, 0),
        ("gguf-q2_k", 0, 0),
        ("autoawq-gemm-g128", 12, 14),
        ("modelopt-int4-awq", 14, 14),
    ],
)
def test_only_producers_that_rescale_channels_are_not_like_for_like_with_their_base(
    real_set: Path, name: str, least: int, most: int
) -> None:
    path = next(iter(sorted((real_set / name).glob("*.gguf"))), real_set / name)
    found = compared(path, real_set / "base-smol2l-h256")
    assert least <= len(found.rescaled) <= most


def test_awq_against_gptq_is_not_like_for_like(real_set: Path) -> None:
    found = compared(real_set / "gptqmodel-w4g128-asym-v1", real_set / "autoawq-gemm-g128")
    by_name = {pair.pair.name: pair for pair in found.pairs}
    pair = by_name["model.layers.0.self_attn.q_proj.weight"]
    assert pair.values is not None
    assert pair.values.metrics is not None
    assert not pair.values.like_for_like
    assert pair.values.metrics.relative_squared_l2 == pytest.approx(0.68, abs=0.02)
    assert pair.values.metrics.cosine == pytest.approx(0.57, abs=0.01)
    assert pair.zeros is not None
    assert pair.zeros.a.first_bytes == "76 75 75 75"
    assert pair.zeros.b.first_bytes == "89 68 67 4a"
    assert pair.zeros.b.stored == (9, 7, 8, 6, 8, 10, 6, 4)
    assert pair.zeros.a.used == (7, 8, 6, 8, 6, 8, 6, 8)


def test_figures_against_the_base_equal_an_independent_computation(real_set: Path) -> None:
    folder, base = real_set / "gptqmodel-w4g128-asym-v1", real_set / "base-smol2l-h256"
    found = compared(folder, folder, base)
    name = "model.layers.1.self_attn.q_proj.weight"
    result = next(r for r in found.reference if r.name == name and r.side == "a")
    module = name.removesuffix(".weight")
    stored = tensors(folder, f"{module}.qweight", f"{module}.qzeros", f"{module}.scales")
    source = tensors(base, name)
    words = stored[f"{module}.qweight"].view(np.uint32)
    codes = (
        (words[:, None, :] >> (4 * np.arange(8, dtype=np.uint32))[None, :, None]) & 15
    ).reshape(-1, words.shape[1])
    packed = stored[f"{module}.qzeros"].view(np.uint32)
    zeros = ((packed[:, :, None] >> (4 * np.arange(8, dtype=np.uint32))) & 15).reshape(
        packed.shape[0], -1
    ).astype(np.int64) + 1
    scales = stored[f"{module}.scales"].astype(np.float64)
    group = np.arange(codes.shape[0]) // 128
    decoded = (codes.astype(np.int64) - zeros[group]) * scales[group]
    reference = source[name].astype(np.float64).T
    error = decoded - reference
    metrics = result.values.metrics
    assert metrics is not None
    assert metrics.mse == pytest.approx(np.mean(error**2), rel=1e-6)
    assert metrics.relative_squared_l2 == pytest.approx(
        (error**2).sum() / (reference**2).sum(), rel=1e-6
    )
    assert metrics.max_abs_error == pytest.approx(np.abs(error).max(), rel=1e-6)
    u = np.rint(reference / scales[group]) + zeros[group]
    requantized = result.requantized
    assert requantized is not None
    assert requantized.rne_share == np.mean(np.clip(u, 0, 15) == codes)
    assert requantized.code_clamp_fraction == np.mean((u < 0) | (u > 15))
    assert requantized.endpoint_fraction == np.mean((codes == 0) | (codes == 15))
    low, high = (0 - zeros[group]) * scales[group], (15 - zeros[group]) * scales[group]
    assert requantized.range_fraction == np.mean((reference < low) | (reference > high))
    assert requantized.fixed_point_share == 1.0
    per_group = (error**2).reshape(-1, 128, codes.shape[1]).mean(axis=1)
    worst_group, worst_row = np.unravel_index(per_group.argmax(), per_group.shape)
    assert result.values.worst_group is not None
    assert result.values.worst_group["row"] == worst_row
    assert result.values.worst_group["group"] == worst_group


def test_a_folding_that_the_norm_undoes_is_held_and_one_that_it_does_not_is_named(
    real_set: Path,
) -> None:
    base = real_set / "base-smol2l-h256"
    held = compared(
        real_set / "gptqmodel-awq-gemm-g128-asym", real_set / "gptqmodel-awq-gemm-g128-asym", base
    )
    outcomes = {f.consumers[0]: f.outcome for f in held.folding if f.side == "a"}
    assert outcomes["model.layers.1.self_attn.q_proj.weight"] == "held"
    assert outcomes["model.layers.0.mlp.gate_proj.weight"] == "held"
    assert outcomes["model.layers.1.mlp.down_proj.weight"] == "held"
    assert "did_not_hold" not in outcomes.values()
    # AutoAWQ on a CPU multiplies its scales into weights more often than it takes them out of the norm.
    twice = compared(real_set / "autoawq-gemm-g128", real_set / "autoawq-gemm-g128", base)
    assert twice.gates["graph_rewrite"].outcome == "did_not_hold"


def test_gguf_pairs_with_its_hugging_face_base_and_rotary_rows_are_put_back(real_set: Path) -> None:
    found = compared(real_set / "gguf-q8_0", real_set / "base-smol2l-h256")
    kinds = {pair.pair.kind for pair in found.pairs}
    assert kinds == {"gguf"}
    by_name = {pair.pair.b: pair for pair in found.pairs}
    assert "model.layers.0.self_attn.q_proj.weight" in by_name
    for name, pair in by_name.items():
        assert pair.values is not None
        assert pair.values.metrics is not None, name
        assert (pair.values.metrics.relative_squared_l2 or 0) < 1e-3, name


def test_names_pair_through_prefixes_and_fused_rows() -> None:
    a = {
        "model.language_model.layers.0.self_attn.qkv_proj.weight": (96, 64),
        "model.language_model.layers.0.mlp.down_proj.weight": (64, 128),
        "model.visual.x.weight": (4, 4),
    }
    b = {
        "model.layers.0.self_attn.q_proj.weight": (64, 64),
        "model.layers.0.self_attn.k_proj.weight": (16, 64),
        "model.layers.0.self_attn.v_proj.weight": (16, 64),
        "model.layers.0.mlp.down_proj.weight": (64, 128),
    }
    pairs, only_a, only_b = pair_names(a, b)
    assert only_a == ["model.visual.x.weight"]
    assert only_b == []
    fused = {pair.b.split(".")[-2]: pair.rows_a for pair in pairs if pair.kind == "fused"}
    assert fused == {
        "q_proj": RowMap(first=0, count=64),
        "k_proj": RowMap(first=64, count=16),
        "v_proj": RowMap(first=80, count=16),
    }
    turned, left_a, left_b = pair_names(b, a)
    assert (left_a, left_b) == ([], ["model.visual.x.weight"])
    assert {pair.b for pair in turned if pair.kind == "fused"} == {next(iter(a))}


def test_a_name_of_nothing_but_wrappers_is_kept() -> None:
    assert bare("model.") == "model."
    assert bare("language_model.model.layers.0.x") == "layers.0.x"


def test_a_cut_file_leaves_the_other_weights_compared(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    cut_scales(cut)
    write_gptq(whole, NAMES)
    found = compared(whole, cut)
    failed = [pair for pair in found.pairs if pair.values and pair.values.error]
    assert len(failed) == 1
    assert "scales" in failed[0].planes_different
    assert "scales" not in failed[0].planes_identical
    assert sum(bool(p.values and p.values.identical) for p in found.pairs) == len(found.pairs) - 1
    assert failed[0].pair.name[:20] in render(found)
