"""The zero-point convention is decided from codes by effect size, and left open where it cannot be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from quantscope.decode.parts import Parts
from quantscope.infer.reconcile import weigh
from quantscope.infer.zero_convention import (
    SetDecision,
    ZeroTally,
    set_evidence,
    tally,
    tensor_evidence,
)

Array = np.ndarray


def quantize(
    weights: Array, bits: int, group: int, symmetric: bool, oriented: bool = False
) -> tuple[Array, Array]:
    """Round to nearest with the textbook rule of each kind: codes [R, C] and true zeros [R, G]."""
    rows, cols = weights.shape
    groups = weights.reshape(rows, cols // group, group)
    top = (1 << bits) - 1
    if symmetric:
        amax = np.abs(groups).max(axis=2)
        scale = 2 * amax / top
        if oriented:
            extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[:, :, None], 2)[
                :, :, 0
            ]
            scale = -extreme / (1 << (bits - 1))
        zero = np.full(amax.shape, 1 << (bits - 1))
    else:
        low = np.minimum(groups.min(axis=2), 0)
        high = np.maximum(groups.max(axis=2), 0)
        scale = (high - low) / top
        zero = np.clip(np.rint(-low / scale), 0, top).astype(int)
    codes = np.clip(np.rint(groups / scale[:, :, None]) + zero[:, :, None], 0, top)
    return codes.reshape(rows, cols).astype(np.uint8), zero.astype(np.int16)


def stored_zeros(zero: Array, bits: int, convention: str) -> Array:
    """Zeros as a file of a convention holds them."""
    return (zero - 1) & ((1 << bits) - 1) if convention == "minus_one" else zero


def tally_of(codes: Array, stored: Array, bits: int, group: int) -> ZeroTally:
    parts = Parts(
        codes=codes,
        combine="affine",
        scale=(np.ones(stored.shape, dtype=np.float32),),
        stored_zero=stored,
        group_of_column=np.arange(codes.shape[1]) // group,
    )
    return tally(parts, bits)


def draw(rng: np.random.Generator, kind: str, shape: tuple[int, int], mean: float) -> Array:
    if kind == "laplace":
        weights = rng.laplace(size=shape)
        weights /= weights.std()
    else:
        weights = rng.normal(size=shape)
    if kind == "outliers":
        weights[:, rng.integers(0, shape[1], size=2)] *= 8
    return weights + mean


def checkpoint(
    seed: int, mean_limit: float, biased_share: float = 1.0
) -> tuple[str, list, list[int]]:
    """A seeded checkpoint: its convention, one tally a module and the widths."""
    rng = np.random.default_rng(seed)
    kind = ("gaussian", "laplace", "outliers", "tiny")[seed % 4]
    bits = int(rng.choice([2, 3, 4]))
    group = int(rng.choice([32, 64, 128]))
    symmetric = bool(rng.integers(0, 2))
    convention = ("as_is", "minus_one")[int(rng.integers(0, 2))]
    shape = (32, 128) if kind == "tiny" else (96, 256)
    tallies = []
    for _ in range(int(rng.integers(8, 15))):
        limit = mean_limit if rng.random() < biased_share else 0.02
        weights = draw(rng, kind, shape, float(rng.uniform(-limit, limit)))
        codes, zero = quantize(weights, bits, group, symmetric)
        tallies.append(tally_of(codes, stored_zeros(zero, bits, convention), bits, group))
    return convention, tallies, [bits] * len(tallies)


def decided(tallies: list[ZeroTally], bits: list[int]) -> list[tuple[str | None, str | None]]:
    """(value, strength) of every module, with the set's step, and no declaration."""
    together = set_evidence(tallies, bits)
    results = []
    for number, (counted, width) in enumerate(zip(tallies, bits, strict=True)):
        steps = tensor_evidence(counted, width, counted.stored_seen, None)
        if isinstance(together, SetDecision):
            steps.append(together.evidence_for(number))
        inferred, _ = weigh(steps)
        results.append((inferred.value, inferred.strength) if inferred else (None, None))
    return results


def test_no_synthetic_checkpoint_with_small_means_is_decided_wrongly() -> None:
    outcome: Counter[str] = Counter()
    for seed in range(1000):
        convention, tallies, bits = checkpoint(seed, 0.08)
        for value, strength in decided(tallies, bits):
            if strength == "decisive":
                assert value == convention, seed
                outcome["decided"] += 1
            else:
                assert value is None or value == convention, seed
                outcome["open" if value is None else str(strength)] += 1
    print("modules by outcome:", dict(outcome))
    assert outcome["decided"] > 0.5 * outcome.total()


def test_large_layer_means_never_make_a_wrong_decisive() -> None:
    outcome: Counter[str] = Counter()
    for seed in range(1000):
        convention, tallies, bits = checkpoint(seed, 0.3, biased_share=0.3)
        together = set_evidence(tallies, bits)
        side = together.side if together is not None else None
        assert side in (None, convention), seed
        outcome["open" if side is None else "decided"] += 1
    print("checkpoints by outcome:", dict(outcome))
    assert outcome["decided"] > 0


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("convention", ["as_is", "minus_one"])
def test_either_convention_is_recovered(bits: int, symmetric: bool, convention: str) -> None:
    rng = np.random.default_rng(bits)
    tallies = []
    for _ in range(8):
        codes, zero = quantize(rng.normal(size=(128, 256)), bits, 64, symmetric)
        tallies.append(tally_of(codes, stored_zeros(zero, bits, convention), bits, 64))
    assert set(decided(tallies, [bits] * 8)) == {(convention, "decisive")}


def test_one_module_in_the_other_convention_is_the_odd_one_out() -> None:
    rng = np.random.default_rng(7)
    tallies = []
    for number in range(12):
        codes, zero = quantize(rng.normal(size=(128, 256)), 4, 64, symmetric=False)
        stored = stored_zeros(zero, 4, "minus_one" if number == 5 else "as_is")
        tallies.append(tally_of(codes, stored, 4, 64))
    results = decided(tallies, [4] * 12)
    assert results[5] == ("minus_one", "strong")
    assert set(results[:5] + results[6:]) == {("as_is", "decisive")}


def test_eight_bits_stay_open_and_say_how_many_groups_are_missing() -> None:
    rng = np.random.default_rng(8)
    codes, zero = quantize(rng.normal(size=(64, 256)), 8, 128, symmetric=False)
    counted = tally_of(codes, stored_zeros(zero, 8, "minus_one"), 8, 128)
    step = tensor_evidence(counted, 8, counted.stored_seen, None)[1]
    assert step.strength is None
    assert step.numbers["groups_needed"] > counted.groups


def test_leaving_out_the_extreme_code_undoes_the_bias_of_oriented_groups() -> None:
    rng = np.random.default_rng(9)
    codes, zero = quantize(rng.normal(size=(512, 256)), 4, 128, symmetric=True, oriented=True)
    counted = tally_of(codes, zero, 4, 128)
    plain = float(codes.mean() - zero.mean())
    assert abs(counted.mean("as_is")) < abs(plain)
    assert abs(counted.mean("as_is")) < 0.03


def test_constant_planes_tell_the_two_default_words_apart() -> None:
    for stored_value, expected in ((7, "minus_one"), (8, "as_is")):
        counted = ZeroTally(
            groups=0, stored_min=stored_value, stored_max=stored_value, stored_seen=64
        )
        constant = tensor_evidence(counted, 4, 64, True)[0]
        assert constant.supports == (expected,)
        assert constant.strength == "strong"
        assert tensor_evidence(counted, 4, 64, None)[0].strength == "weak"


def test_one_zero_of_a_whole_tensor_is_equal_by_chance() -> None:
    """A zero of 127 is what minus_one means by symmetric, and what a skewed tensor gives as well."""
    parts = ZeroTally(groups=64, stored_min=127, stored_max=127, stored_seen=64)
    many, few = (tensor_evidence(parts, 8, 64, None, few=few)[0] for few in (False, True))
    assert many.supports == ("minus_one",)
    assert few.supports == ()
    claimed = tensor_evidence(parts, 8, 64, True, few=True)[0]
    assert claimed.supports == ("minus_one",)
