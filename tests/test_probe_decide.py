"""Which reading a text prefers, and readings in other code orders and scale directions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from quantscope.decode.parts import Parts
from quantscope.model import GroupLevel, Packing, Reading, ScaleLevel
from quantscope.probes import twists
from quantscope.probes.decide import decide, paired_t
from quantscope.probes.measure import planted_side
from quantscope.probes.model import SideRequest, SideResult

V = 1000


def side(label: str, rows: list[float], path: str = "c") -> SideResult:
    return SideResult(
        label=label,
        path=path,
        reading={},
        tensors_changed=0,
        nll_sum=sum(rows),
        nll_mean=sum(rows) / len(rows),
        ppl=None,
        weights_sha256="",
        logits_sha256="",
        nll_rows=tuple(rows),
    )


def noisy(mean: float, n: int = 64, seed: int = 0) -> list[float]:
    values = np.random.default_rng(seed).normal(0, 1, n)
    return [float(v) for v in values - values.mean() + mean]


def test_paired_t_is_the_mean_difference_over_its_standard_error() -> None:
    assert paired_t([3.0, 5.0, 4.0], [1.0, 2.0, 3.0]) == pytest.approx(2 / (1 / math.sqrt(3)))
    assert paired_t([2.0, 2.0], [1.0, 1.0]) == math.inf
    assert paired_t([1.0, 1.0], [1.0, 1.0]) == 0.0


def test_the_clearly_better_reading_is_accepted() -> None:
    found = decide([side("right", noisy(3.0)), side("wrong", noisy(9.0, seed=1))], V, True)
    assert found is not None
    assert found.accepted == "right"
    assert "code statistic" in found.cannot_decide


def test_a_small_lead_stays_undecided() -> None:
    found = decide([side("a", noisy(3.0)), side("b", noisy(3.1, seed=1))], V, True)
    assert found is not None
    assert found.accepted is None
    assert "paired t" in found.reason


@pytest.mark.parametrize(("t_wanted", "accepted"), [(5.1, True), (4.9, False)])
def test_the_bar_is_a_paired_t_of_five(t_wanted: float, accepted: bool) -> None:
    best = noisy(2.0)
    differences = np.asarray(noisy(0.0, seed=2))
    error = differences.std(ddof=1) / np.sqrt(differences.size)
    other = [a + float(d) for a, d in zip(best, differences + t_wanted * error, strict=True)]
    found = decide([side("a", best), side("b", other)], V, True)
    assert found is not None
    assert (found.accepted == "a") is accepted


@pytest.mark.parametrize(("gap", "accepted"), [(2.01, True), (1.99, False)])
def test_the_best_reading_must_lie_two_nats_below_a_uniform_guess(
    gap: float, accepted: bool
) -> None:
    best = noisy(math.log(V) - gap)
    found = decide([side("a", best), side("b", [v + 9 for v in best])], V, True)
    assert found is not None
    assert (found.accepted == "a") is accepted


def test_every_other_reading_must_lose_clearly() -> None:
    sides = [side("a", noisy(3.0)), side("far", noisy(9.0, seed=1)), side("near", noisy(3.05))]
    close = [v + 0.3 * (-1) ** i for i, v in enumerate(noisy(3.0))]
    found = decide([*sides, side("close", close)], V, True)
    assert found is not None
    assert found.accepted is None


def test_random_ids_and_another_checkpoint_decide_nothing() -> None:
    a, b = side("a", noisy(3.0)), side("b", noisy(9.0))
    random = decide([a, b], V, False)
    assert random is not None
    assert random.accepted is None
    assert decide([side("base", noisy(3.0), path="base"), b], V, True) is None
    assert decide([a], V, True) is None


def test_the_control_is_planted_into_the_likeliest_reading_of_the_examined_checkpoint() -> None:
    sides = [SideRequest(label="base", path="base")]
    sides += [SideRequest(label=label, path="c") for label in ("own", "other")]
    results = [
        side("base", noisy(1.0), "base"),
        side("own", noisy(9.0)),
        side("other", noisy(3.0)),
    ]
    assert planted_side(sides, results) == 2


def reading(order: str = "sequential", axis: str = "in", word: str = "I32") -> Reading:
    return Reading(
        element="u4",
        bit_width=4,
        shape=(16, 16),
        group=(GroupLevel(axis="in", size=16),),
        scale=(ScaleLevel(dtype="f16"),),
        zero="integer",
        zero_convention="as_is",
        packing=Packing(word=word, axis=axis, order=order),  # type: ignore[arg-type]
    )


def parts_of(codes: np.ndarray) -> Parts:
    n = codes.shape[0]
    return Parts(
        codes=codes,
        combine="affine",
        scale=(np.full((n, 1), 2.0, dtype=np.float32),),
        zero=np.arange(n, dtype=np.int32).reshape(n, 1),
    )


def fields(words: np.ndarray, order: tuple[int, ...]) -> list[int]:
    """Codes of 32-bit words, code j from field order[j]: shifts and masks, nothing else."""
    return [int(w) >> (4 * f) & 15 for w in words for f in order]


@pytest.mark.parametrize(
    ("own", "own_order"),
    [("sequential", (0, 1, 2, 3, 4, 5, 6, 7)), ("awq", (0, 4, 1, 5, 2, 6, 3, 7))],
)
@pytest.mark.parametrize(
    ("asked", "asked_order"),
    [
        ("sequential", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("awq", (0, 4, 1, 5, 2, 6, 3, 7)),
        ("reversed", (7, 6, 5, 4, 3, 2, 1, 0)),
        ("pair_swapped", (1, 0, 3, 2, 5, 4, 7, 6)),
    ],
)
def test_another_code_order_takes_the_codes_from_the_other_fields_of_each_word(
    own: str, own_order: tuple[int, ...], asked: str, asked_order: tuple[int, ...]
) -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 2, dtype=np.uint64)
    codes = np.array([fields(words, own_order)] * 16)
    base = reading(own)
    assert twists.applies(base, "packing", asked) is (own != asked)
    if own != asked:
        turned = twists.twisted(parts_of(codes), base, {"packing": asked})
        assert turned.codes[3].tolist() == fields(words, asked_order)


def test_an_order_along_out_moves_rows_of_codes_and_zeros() -> None:
    codes = np.arange(16 * 16).reshape(16, 16)
    turned = twists.twisted(parts_of(codes), reading(axis="out"), {"packing": "reversed"})
    assert turned.codes[:, 0].tolist() == [16 * i for i in (*range(7, -1, -1), *range(15, 7, -1))]
    assert turned.zero is not None
    assert turned.zero[:, 0].tolist() == [*range(7, -1, -1), *range(15, 7, -1)]


def test_the_other_scale_direction_divides() -> None:
    turned = twists.twisted(parts_of(np.ones((2, 8))), reading(), {"scale": "divide"})
    assert turned.scale_divides == (True,)
    assert twists.applies(reading(), "scale", "divide")
    assert not twists.applies(reading(), "scale", "multiply")


def test_codes_without_lanes_have_no_other_order() -> None:
    assert not twists.applies(reading("ggml", word="U8"), "packing", "reversed")
    assert not twists.applies(reading("bitstream"), "packing", "awq")


def test_the_control_adds_one_to_every_zero_or_swaps_neighbouring_codes() -> None:
    planted = twists.planted(parts_of(np.zeros((4, 8))))
    assert planted.zero is not None
    assert planted.zero[:, 0].tolist() == [1, 2, 3, 4]
    without = Parts(codes=np.arange(10).reshape(2, 5), combine="value")
    assert twists.planted(without).codes.tolist() == [[1, 0, 3, 2, 4], [6, 5, 8, 7, 9]]
