"""Elementwise metrics of two tensors, tolerance, and the three saturation ratios of integer codes.

x is the reference, y the candidate. Sums are carried as a float64 mantissa and a power of two, so
that a result which binary64 can hold is never lost to an intermediate that it cannot hold.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from quantscope.errors import QuantscopeError

FloatArray = npt.NDArray[np.floating[Any]]
Float64 = npt.NDArray[np.float64]

CHUNK_ELEMENTS = 1 << 17
"""1 MiB of float64 for each temporary."""

_SAFE_EXPONENT = 400
"""Squares and products of magnitudes within 2**±400 need no scaling."""


class NumericError(QuantscopeError):
    """A number that must be stated cannot be: it overflowed, or it is not zero and became zero.

    Args:
        stage: the operation that failed, such as `squared error`.
        field: the output key that it belongs to, such as `tensor.mse`.
        reason: what happened.
    """

    exit_code = 1

    def __init__(self, *, stage: str, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason} ({stage})", source=field)
        self.stage = stage
        self.field = field
        self.reason = reason


class NonFinite(msgspec.Struct, frozen=True, kw_only=True):
    """How many elements are NaN or infinite, and where the first one is."""

    count: int
    first_position: int
    """Flat index in C order."""


class NonFiniteError(QuantscopeError):
    """One side or both hold NaN or infinities; no metric is computed from them."""

    exit_code = 1

    def __init__(self, *, reference: NonFinite | None, candidate: NonFinite | None) -> None:
        sides = [
            f"{name} has {found.count} non-finite values, the first at position {found.first_position}"
            for name, found in (("reference", reference), ("candidate", candidate))
            if found is not None
        ]
        super().__init__("; ".join(sides))
        self.reference = reference
        self.candidate = candidate


class ShapeMismatchError(QuantscopeError):
    """Two tensors that must have one shape do not; nothing is broadcast."""

    exit_code = 1


class TensorMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Error of a candidate against a reference.

    An undefined metric is None beside the reason. Cosine says direction only, relative squared L2
    says size only, so all are shown together.
    """

    count: int
    mse: float
    relative_squared_l2: float | None
    relative_squared_l2_reason: str | None = None
    cosine: float | None
    cosine_reason: str | None = None
    max_abs_error: float
    max_abs_error_position: int


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """Result of |y - x| <= atol + rtol * |x| on every element."""

    held: bool
    count: int
    outside: int
    first_outside_position: int | None
    worst_ratio: float | None
    """Largest |y - x| / (atol + rtol * |x|); None where an error stands against a zero bound."""
    atol: float
    rtol: float


class CodeFractions(msgspec.Struct, frozen=True, kw_only=True):
    """Three different ratios, u = RNE(x / s) + z and code = clip(u, qmin, qmax)."""

    count: int
    code_clamp_fraction: float
    """Share of elements whose u lies outside the code range."""
    endpoint_fraction: float
    """Share of elements whose final code is qmin or qmax."""
    range_fraction: float
    """Share of elements whose x lies outside the interval that the endpoints reconstruct."""


class _Sum(msgspec.Struct, frozen=True):
    """mantissa * 2**exponent."""

    mantissa: float = 0.0
    exponent: int = 0

    def plus(self, other: _Sum) -> _Sum:
        if other.mantissa == 0.0:
            return self
        if self.mantissa == 0.0:
            return other
        top = max(self.exponent, other.exponent)
        return _Sum(
            math.ldexp(self.mantissa, self.exponent - top)
            + math.ldexp(other.mantissa, other.exponent - top),
            top,
        )

    def normal(self) -> _Sum:
        """The same value with a mantissa in [0.5, 1)."""
        mantissa, shift = math.frexp(self.mantissa)
        return _Sum(mantissa, self.exponent + shift)


def find_nonfinite(values: FloatArray) -> NonFinite | None:
    """Count and first position of NaN and infinities in an array of any shape, or None."""
    flat = values.reshape(-1)
    bad = ~np.isfinite(flat)
    count = int(np.count_nonzero(bad))
    return NonFinite(count=count, first_position=int(np.argmax(bad))) if count else None


class TensorAccumulator:
    """Feeds equal pieces of two tensors, in order, and gives the metrics of the whole.

    Args:
        field: prefix of the field names in errors, such as `tensor`.
    """

    def __init__(self, field: str = "tensor") -> None:
        self._field = field
        self._count = 0
        self._error = _Sum()
        self._energy = _Sum()
        self._candidate_energy = _Sum()
        self._dot = _Sum()
        self._dot_flushed = False
        self._max_error = 0.0
        self._max_position = 0
        self._nonfinite: dict[str, NonFinite | None] = {"reference": None, "candidate": None}
        self._failure: NumericError | None = None

    def add(self, reference: FloatArray, candidate: FloatArray) -> None:
        """Adds one piece; both arrays of one shape and any float dtype.

        Raises:
            ShapeMismatchError: the shapes differ.
        """
        if reference.shape != candidate.shape:
            raise ShapeMismatchError(
                f"shapes differ: reference {reference.shape}, candidate {candidate.shape}"
            )
        x_flat, y_flat = reference.reshape(-1), candidate.reshape(-1)
        for start in range(0, x_flat.size, CHUNK_ELEMENTS):
            stop = start + CHUNK_ELEMENTS
            self._add_chunk(
                x_flat[start:stop].astype(np.float64), y_flat[start:stop].astype(np.float64)
            )

    def result(self) -> TensorMetrics:
        """The metrics of everything added.

        Raises:
            NonFiniteError: any value is NaN or infinite; reported before any metric.
            NumericError: a metric overflows, or is not zero and becomes zero.
            ShapeMismatchError: nothing was added.
        """
        reference, candidate = self._nonfinite["reference"], self._nonfinite["candidate"]
        if reference is not None or candidate is not None:
            raise NonFiniteError(reference=reference, candidate=candidate)
        if self._count == 0:
            raise ShapeMismatchError("the tensors are empty: there is nothing to compare")
        if self._failure is not None:
            raise self._failure
        mse = self._value(
            _Sum(self._error.mantissa / self._count, self._error.exponent), "mean", "mse"
        )
        relative, relative_reason = self._relative()
        cosine, cosine_reason = self._cosine()
        return TensorMetrics(
            count=self._count,
            mse=mse,
            relative_squared_l2=relative,
            relative_squared_l2_reason=relative_reason,
            cosine=cosine,
            cosine_reason=cosine_reason,
            max_abs_error=self._max_error,
            max_abs_error_position=self._max_position,
        )

    def _add_chunk(self, x: Float64, y: Float64) -> None:
        offset = self._count
        self._count += x.size
        clean = True
        for name, values in (("reference", x), ("candidate", y)):
            found = find_nonfinite(values)
            if found is not None:
                clean = False
                self._note_nonfinite(name, found, offset)
        if not clean:
            return
        with np.errstate(all="ignore"):
            self._add_error(y - x, offset)
            self._energy = self._energy.plus(_scaled_dot(x, x))
            self._candidate_energy = self._candidate_energy.plus(_scaled_dot(y, y))
            dot, nonzero = _scaled_products(x, y)
            self._dot = self._dot.plus(dot)
            self._dot_flushed |= nonzero != int(np.count_nonzero((x != 0) & (y != 0)))

    def _note_nonfinite(self, side: str, found: NonFinite, offset: int) -> None:
        earlier = self._nonfinite[side]
        if earlier is None:
            total = NonFinite(count=found.count, first_position=offset + found.first_position)
        else:
            total = NonFinite(
                count=earlier.count + found.count, first_position=earlier.first_position
            )
        self._nonfinite[side] = total

    def _add_error(self, difference: Float64, offset: int) -> None:
        magnitude = np.abs(difference)
        position = int(np.argmax(magnitude))
        largest = float(magnitude[position])
        if math.isinf(largest):
            self._fail("difference", "max_abs_error", "y - x overflows", offset + position)
            return
        if np.count_nonzero(magnitude) != np.count_nonzero(magnitude * magnitude):
            lost = int(np.argmax((magnitude != 0) & (magnitude * magnitude == 0)))
            reason = "a non-zero squared error becomes zero"
            self._fail("squared error", "mse", reason, offset + lost)
        if largest > self._max_error:
            self._max_error, self._max_position = largest, offset + position
        self._error = self._error.plus(_scaled_dot(magnitude, magnitude))

    def _fail(self, stage: str, key: str, reason: str, position: int) -> None:
        if self._failure is None:
            self._failure = NumericError(
                stage=stage, field=f"{self._field}.{key}", reason=f"{reason} at position {position}"
            )

    def _value(self, total: _Sum, stage: str, key: str) -> float:
        try:
            value = math.ldexp(total.mantissa, total.exponent)
        except OverflowError:
            value = math.inf
        if math.isinf(value):
            raise NumericError(
                stage=stage, field=f"{self._field}.{key}", reason="the result overflows binary64"
            )
        if value == 0.0 and total.mantissa != 0.0:
            raise NumericError(
                stage=stage, field=f"{self._field}.{key}", reason="a non-zero result becomes zero"
            )
        return value

    def _relative(self) -> tuple[float | None, str | None]:
        if self._energy.mantissa == 0.0:
            return None, "the reference is all zero"
        error, energy = self._error.normal(), self._energy.normal()
        ratio = _Sum(error.mantissa / energy.mantissa, error.exponent - energy.exponent)
        return self._value(ratio, "ratio", "relative_squared_l2"), None

    def _cosine(self) -> tuple[float | None, str | None]:
        if self._energy.mantissa == 0.0:
            return None, "the reference is all zero"
        if self._candidate_energy.mantissa == 0.0:
            return None, "the candidate is all zero"
        x, y, dot = self._energy.normal(), self._candidate_energy.normal(), self._dot.normal()
        if dot.mantissa == 0.0 and self._dot_flushed:
            raise NumericError(
                stage="dot product",
                field=f"{self._field}.cosine",
                reason="non-zero products become zero, the result cannot be told from zero",
            )
        exponent = x.exponent + y.exponent
        odd = exponent % 2
        norm = math.sqrt(math.ldexp(x.mantissa * y.mantissa, odd))
        ratio = _Sum(dot.mantissa / norm, dot.exponent - (exponent - odd) // 2)
        # |cosine| <= 1 holds exactly; only the last rounding can step over it.
        return max(-1.0, min(1.0, self._value(ratio, "ratio", "cosine"))), None


def tensor_metrics(
    reference: FloatArray, candidate: FloatArray, *, field: str = "tensor"
) -> TensorMetrics:
    """MSE, relative squared L2, cosine and largest error of two arrays of one shape.

    Raises:
        ShapeMismatchError, NonFiniteError, NumericError: as `TensorAccumulator` says.
    """
    accumulator = TensorAccumulator(field)
    accumulator.add(reference, candidate)
    return accumulator.result()


def all_close(
    reference: FloatArray, candidate: FloatArray, *, atol: float, rtol: float
) -> Closeness:
    """Whether |y - x| <= atol + rtol * |x| everywhere; thresholds are fixed by the caller.

    Args:
        reference: any shape, any float dtype.
        candidate: the same shape.
        atol: absolute part, finite and not negative.
        rtol: relative part, finite and not negative.

    Raises:
        ShapeMismatchError: the shapes differ or are empty.
        NonFiniteError: any value is NaN or infinite.
        ValueError: a threshold is negative or not finite.
    """
    if not (0 <= atol < math.inf and 0 <= rtol < math.inf):
        raise ValueError("atol and rtol are finite and not negative")
    if reference.shape != candidate.shape or reference.size == 0:
        raise ShapeMismatchError(
            f"shapes differ or are empty: {reference.shape} and {candidate.shape}"
        )
    bad = find_nonfinite(reference), find_nonfinite(candidate)
    if bad[0] is not None or bad[1] is not None:
        raise NonFiniteError(reference=bad[0], candidate=bad[1])
    outside, first, worst = 0, None, 0.0
    x_flat, y_flat = reference.reshape(-1), candidate.reshape(-1)
    for start in range(0, x_flat.size, CHUNK_ELEMENTS):
        piece = slice(start, start + CHUNK_ELEMENTS)
        failed, ratio = _outside(x_flat[piece], y_flat[piece], atol, rtol)
        here = int(np.count_nonzero(failed))
        if here and first is None:
            first = start + int(np.argmax(failed))
        outside += here
        worst = max(worst, float(np.max(ratio)))
    return Closeness(
        held=outside == 0,
        count=int(x_flat.size),
        outside=outside,
        first_outside_position=first,
        worst_ratio=worst if math.isfinite(worst) else None,
        atol=atol,
        rtol=rtol,
    )


def code_fractions(
    values: FloatArray, *, scale: float | Float64, zero_point: int, qmin: int, qmax: int
) -> CodeFractions:
    """The three saturation ratios; they need the float source.

    Rounding is to nearest, ties to even, before the integer zero point is added.

    Args:
        values: float source, any shape.
        scale: positive, one number or one for each value (the same shape).
        zero_point: added after rounding.
        qmin: lowest code.
        qmax: highest code.

    Raises:
        ShapeMismatchError: `scale` has another shape, or there are no values.
        NonFiniteError: a value is NaN or infinite.
        ValueError: a scale is not positive and finite, or qmin > qmax.
        NumericError: x / s or an endpoint's value overflows.
    """
    scales = np.asarray(scale, dtype=np.float64)
    if scales.ndim and scales.shape != values.shape:
        raise ShapeMismatchError(f"scales {scales.shape} against values {values.shape}")
    if values.size == 0:
        raise ShapeMismatchError("there are no values")
    if qmin > qmax or not bool(np.all(np.isfinite(scales) & (scales > 0))):
        raise ValueError("scales are positive and finite, and qmin <= qmax")
    bad = find_nonfinite(values)
    if bad is not None:
        raise NonFiniteError(reference=bad, candidate=None)
    x = values.astype(np.float64)
    with np.errstate(all="ignore"):
        unclipped = np.rint(x / scales) + zero_point
        low, high = (qmin - zero_point) * scales, (qmax - zero_point) * scales
    if not (np.isfinite(unclipped).all() and np.isfinite(low).all() and np.isfinite(high).all()):
        raise NumericError(
            stage="division by the scale", field="code_fractions", reason="the result overflows"
        )
    codes = np.clip(unclipped, qmin, qmax)
    return CodeFractions(
        count=int(x.size),
        code_clamp_fraction=_share((unclipped < qmin) | (unclipped > qmax)),
        endpoint_fraction=endpoint_fraction(codes, qmin=qmin, qmax=qmax),
        range_fraction=_share((x < low) | (x > high)),
    )


def endpoint_fraction(codes: npt.NDArray[Any], *, qmin: int, qmax: int) -> float:
    """Share of codes that equal qmin or qmax; the one ratio that a checkpoint alone can give.

    Raises:
        ShapeMismatchError: there are no codes.
    """
    if codes.size == 0:
        raise ShapeMismatchError("there are no codes")
    return _share((codes == qmin) | (codes == qmax))


def _outside(
    reference: FloatArray, candidate: FloatArray, atol: float, rtol: float
) -> tuple[npt.NDArray[np.bool_], Float64]:
    """Which elements exceed the bound, and |error| / bound of each (0 where there is no error)."""
    x, y = reference.astype(np.float64), candidate.astype(np.float64)
    with np.errstate(all="ignore"):
        error, bound = np.abs(y - x), atol + rtol * np.abs(x)
        ratio = np.where(error == 0, 0.0, error / bound)
    return ~(error <= bound) | np.isinf(error), np.where(np.isnan(ratio), np.inf, ratio)


def _share(condition: npt.NDArray[np.bool_]) -> float:
    return int(np.count_nonzero(condition)) / condition.size


def _scaled_dot(a: Float64, b: Float64) -> _Sum:
    """Sum of a * b over one chunk."""
    return _scaled_products(a, b)[0]


def _scaled_products(a: Float64, b: Float64) -> tuple[_Sum, int]:
    """Sum of a * b, and how many of the products are not zero as computed."""
    a, a_exponent = _scaled(a)
    b, b_exponent = _scaled(b)
    products = a * b
    total = _Sum(float(np.sum(products)), a_exponent + b_exponent)
    return total, int(np.count_nonzero(products))


def _scaled(values: Float64) -> tuple[Float64, int]:
    _, exponent = math.frexp(float(np.max(np.abs(values))))
    if abs(exponent) <= _SAFE_EXPONENT:
        return values, 0
    return np.ldexp(values, -exponent), exponent
