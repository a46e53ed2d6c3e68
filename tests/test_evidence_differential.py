"""The evidence run against a second implementation: exact rationals and 60-digit arithmetic."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from quantscope.evidence.metrics import NonFiniteError, NumericError, code_fractions
from quantscope.evidence.run import evaluate

LARGEST = Fraction(np.finfo(np.float64).max)
LEAST = Fraction(5e-324)

wide = st.floats(allow_nan=False, allow_infinity=False)
usual = st.floats(min_value=-1e6, max_value=1e6).map(lambda value: round(value, 6))
numbers = st.one_of(wide, usual, st.integers(-(2**53), 2**53))
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12)
logit = st.one_of(
    st.floats(-30, 30), st.floats(-800, 800), st.sampled_from([0.0, 1.0, -1000.0, 1e-9, 700.0])
)


def run(**groups: Any) -> tuple[int, dict[str, Any]]:
    evaluation = evaluate(json.dumps({"schema_version": 1, **groups}).encode())
    return evaluation.exit_code, evaluation.document["results"]


def close(found: float, exact: Fraction, relative: float = 1e-12) -> bool:
    """Within a relative error, or within the spacing of subnormal numbers."""
    difference = abs(Fraction(found) - exact)
    return difference <= Fraction(relative) * abs(exact) + 2 * LEAST


def square_root(value: Fraction) -> Decimal:
    """60 digits of the root of a rational of any size."""
    from decimal import Context

    context = Context(prec=60, Emax=999999, Emin=-999999)
    return context.sqrt(context.divide(Decimal(value.numerator), Decimal(value.denominator)))


@settings(max_examples=400, deadline=None)
@given(pairs)
def test_tensor_metrics_equal_exact_rationals(values: list[tuple[float, float]]) -> None:
    x = [Fraction(a) for a, _ in values]
    y = [Fraction(b) for _, b in values]
    error = [b - a for a, b in zip(x, y, strict=True)]
    mse = sum(e * e for e in error) / len(error)
    energy, other = sum(a * a for a in x), sum(b * b for b in y)
    largest = max(map(abs, error))
    code, results = run(
        tensor={"reference": [a for a, _ in values], "candidate": [b for _, b in values]}
    )
    found = results["tensor"]
    if code == 1:
        ratio = mse * len(error) / energy if energy else Fraction(0)
        excuses = [
            largest >= LARGEST,
            mse >= LARGEST * Fraction(1 - 1e-12),
            any(e != 0 and e * e < 2 * LEAST for e in error),
            0 < mse < 2 * LEAST,
            ratio >= LARGEST * Fraction(1 - 1e-12),
            0 < ratio < 2 * LEAST,
            "cosine" in found["numeric_error"]["field"],
        ]
        assert any(excuses), found
        return
    assert close(found["max_abs_error"], largest)
    assert close(found["mse"], mse)
    if energy == 0:
        assert found["relative_squared_l2"] is None
        assert found["cosine"] is None
        return
    assert close(found["relative_squared_l2"], mse * len(error) / energy)
    if other == 0:
        assert found["cosine"] is None
        return
    dot = sum(a * b for a, b in zip(x, y, strict=True))
    exact = float(Decimal(dot.numerator) / Decimal(dot.denominator) / square_root(energy * other))
    assert found["cosine"] == pytest.approx(exact, abs=1e-13)
    assert -1 <= found["cosine"] <= 1


@st.composite
def logit_groups(draw: st.DrawFn) -> dict[str, Any]:
    rows, width = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    row = st.lists(logit, min_size=width, max_size=width)
    reference = draw(st.lists(row, min_size=rows, max_size=rows))
    noise = draw(st.sampled_from([0.0, 1e-12, 1e-6, 1.0, None]))
    if noise is None:
        candidate = draw(st.lists(row, min_size=rows, max_size=rows))
    else:
        step = st.floats(-1, 1)
        candidate = [[value + noise * draw(step) for value in values] for values in reference]
    mask = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    assume(any(mask))
    targets = draw(st.lists(st.integers(0, width - 1), min_size=rows, max_size=rows))
    return {"reference": reference, "candidate": candidate, "targets": targets, "mask": mask}


def is_shifted(reference: list[float], candidate: list[float]) -> bool:
    """Whether the two rows differ by one constant, exactly: then p = q."""
    differences = {Fraction(b) - Fraction(a) for a, b in zip(reference, candidate, strict=True)}
    return len(differences) == 1


def log_softmax(row: list[float]) -> list[mpmath.mpf]:
    values = [mpmath.mpf(value) for value in row]
    total = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in values))
    return [value - total for value in values]


@settings(max_examples=150, deadline=None)
@given(logit_groups())
@example(
    {
        "reference": [[0.0, 0.0, 655.0]],
        "candidate": [[0.0, 2.2250738585072014e-308, 655.0]],
        "targets": [0],
        "mask": [True],
    }
)
def test_logits_metrics_equal_high_precision(group: dict[str, Any]) -> None:
    scored = [index for index, kept in enumerate(group["mask"]) if kept]
    with mpmath.workdps(1000):
        # exp(-1600) has 695 zeros after the point: one certain target needs that many digits.
        p = [log_softmax(row) for row in group["reference"]]
        q = [log_softmax(row) for row in group["candidate"]]
        kl = mpmath.fsum(
            mpmath.exp(a) * (a - b)
            for index in scored
            for a, b in zip(p[index], q[index], strict=True)
        ) / len(scored)
        nll = [
            -mpmath.fsum(side[index][group["targets"][index]] for index in scored)
            for side in (p, q)
        ]
        if all(is_shifted(group["reference"][i], group["candidate"][i]) for i in scored):
            kl = mpmath.mpf(0)
        elif abs(kl) < mpmath.mpf(10) ** -800:
            # Not zero, but beyond the digits carried here.
            kl = mpmath.mpf(10) ** -800
        matches = sum(
            group["reference"][index].index(max(group["reference"][index]))
            == group["candidate"][index].index(max(group["candidate"][index]))
            for index in scored
        )
        code, results = run(logits=group)
        found = results["logits"]
        if code == 1:
            field = found["numeric_error"]["field"]
            if field == "logits.kl_mean":
                assert 0 < kl < 1e-323
            else:
                side = nll[0] if "reference" in field else nll[1]
                assert side / len(scored) > 709
            return
        assert found["scored_rows"] == len(scored)
        assert found["top1_agreement"] == matches / len(scored)
        if kl == 0:
            assert found["kl_mean"] == 0
        else:
            tolerance = 1e-9 if kl > 1e-300 else 0.1
            assert abs(found["kl_mean"] / kl - 1) < tolerance or abs(found["kl_mean"] - kl) < 2e-323
        for side, exact in zip(("reference", "candidate"), nll, strict=True):
            assert found[side]["nll_sum"] == pytest.approx(float(exact), rel=1e-12, abs=1e-322)
            ppl = float(mpmath.exp(exact / len(scored)))
            assert found[side]["ppl"] == pytest.approx(ppl, rel=1e-11)


@settings(max_examples=300, deadline=None)
@given(
    codes=st.lists(st.integers(0, 15), min_size=1, max_size=9),
    spoil=st.one_of(st.none(), st.tuples(st.integers(0, 4), st.integers(1, 255))),
    scale=st.one_of(st.floats(5e-324, 1.7e308), st.floats(1e-3, 10)),
    zero=st.one_of(st.integers(-20, 20), st.sampled_from([2**53, -(2**53) - 2, 2**60])),
)
def test_uint4_equals_integer_arithmetic(
    codes: list[int], spoil: tuple[int, int] | None, scale: float, zero: int
) -> None:
    padded = [*codes, 0] if len(codes) % 2 else codes
    packed = [padded[i] + 16 * padded[i + 1] for i in range(0, len(padded), 2)]
    if spoil is not None:
        packed[spoil[0] % len(packed)] ^= spoil[1]
    code, results = run(
        uint4={
            "codes": codes,
            "packed_bytes": packed,
            "logical_length": len(codes),
            "scale": scale,
            "zero_point": zero,
            "rounding": "ties_to_even",
            "layout": "low_first",
        }
    )
    found = results["uint4"]
    assert found["packing_parity"] is (spoil is None)
    assert found["endpoint_fraction"] == sum(c in (0, 15) for c in codes) / len(codes)
    exact = [Fraction(c - zero) * Fraction(scale) for c in codes]
    if any(abs(value) > LARGEST for value in exact):
        assert code == 1
        assert found["numeric_error"]["field"] == "uint4.decoded"
    else:
        assert found["decoded"] == [float(value) for value in exact]
        assert code == (0 if spoil is None else 1)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.floats(-50, 50).map(lambda v: round(v * 4) / 4), min_size=1, max_size=20),
    scale=st.sampled_from([0.25, 0.5, 1.0, 3.0]),
    zero=st.integers(-9, 9),
    low=st.integers(-8, 0),
    width=st.integers(1, 15),
)
def test_saturation_ratios_equal_exact_rounding(
    values: list[float], scale: float, zero: int, low: int, width: int
) -> None:
    high = low + width
    try:
        found = code_fractions(np.array(values), scale=scale, zero_point=zero, qmin=low, qmax=high)
    except (NumericError, NonFiniteError) as error:
        raise AssertionError from error
    unclipped = [round(Fraction(value) / Fraction(scale)) + zero for value in values]
    codes = [min(max(u, low), high) for u in unclipped]
    lowest, highest = (low - zero) * Fraction(scale), (high - zero) * Fraction(scale)
    n = len(values)
    assert (
        found.code_clamp_fraction == sum(u != c for u, c in zip(unclipped, codes, strict=True)) / n
    )
    assert found.endpoint_fraction == sum(c in (low, high) for c in codes) / n
    assert found.range_fraction == sum(not lowest <= Fraction(v) <= highest for v in values) / n
    assert math.isfinite(found.range_fraction)
