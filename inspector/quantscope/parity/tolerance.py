"""From declared rounding points to a bound on |kernel - reference|, per output, before any output exists.

For output (m, n) with weights W, inputs x and S = sum_k |x_k| |W_k|:

    worst  = r*u_w * sum |x| A  +  shared  +  act  +  K*u_acc * S'  +  u_out * (|ref| + all of these)
    random = 6 * sqrt( (r*u_w)^2/3 * sum x^2 A^2 + shared_2 + act_2 )  +  3.5*sqrt(K)*u_acc * S'  +  the last term

- A is what one weight's rounding acts on: |W|, or the sum of the magnitudes of the terms that are formed apart.
- shared: a scale held in a coarser type is wrong by one relative error for all weights of its group, so it acts on
  the group's partial sum: sum_g u_s |sum_{k in g} x_k V_k|, V the part that the scale multiplies; squared and divided
  by 3 (a uniform error) in `shared_2`. Exactly zero where every scale is representable in that type. A folded zero
  (pivot - z)*s held in a coarse type acts likewise on sum_{k in g} x_k.
- act: activations that the kernel quantizes with a step d are wrong by at most d/2 each: sum (d/2)|W|, or with a
  uniform error sum (d^2/12) W^2; a zero stays zero. A step held in half precision adds 2^-11 |x|.
- The running sum takes K roundings (or as many as the model counts), each of a partial sum of at most S' (S with A in the place of |W|). They bound to
  K*u*S'; as independent uniform errors to 6/sqrt(3)*sqrt(K)*u*S' = 3.5*sqrt(K)*u*S', the smaller one where K > 12.
- Near zero a rounding is wrong by an absolute amount (`grids.UNDERFLOW`), which is added.

`random` holds only where signs and sizes of x do not depend on the weights (six standard deviations of a sum of
independent terms); there the smaller of the two is used. For one-hot rows, ones and other fixed inputs errors of
equal codes add up, and only `worst` is used. Nothing here was fitted to an output.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.families.protocol import Family
from quantscope.model import Reading
from quantscope.parity.grids import UNDERFLOW, UNIT_ROUNDOFF, representable
from quantscope.parity.model import ErrorModel
from quantscope.parity.reference import (
    levels_of,
    minimum_of,
    scale_of,
    weights64,
    zero_of,
)

SIGMAS = 6.0
ACTIVATION_STEPS = 127.0


class Bound(NamedTuple):
    """Reference and tolerance of one block of outputs, float64 [M, rows], and S = sum |x||W|."""

    reference: Array
    tolerance: Array
    magnitude: Array


class BlockModel:
    """Everything about one block of rows that does not depend on x.

    Args:
        parts: the block's parts.
        family: the family that combines `vector` parts.
        reading: the reading in force.
        model: the kernel's declared rounding points.
    """

    def __init__(self, parts: Parts, family: Family, reading: Reading, model: ErrorModel) -> None:
        self.model = model
        self.parts = parts
        self.weights = weights64(parts, family, reading)
        self._rounded = self._rounded_magnitude()
        self._scale_error = not _exact_in(scale_of(parts), model.scale_dtype)
        self._sorted: tuple[Array, Array] | None = None

    @property
    def _steps(self) -> int:
        """Roundings of the running sum."""
        return self.model.accumulate_steps or self.weights.shape[1]

    def _rounded_magnitude(self) -> Array:
        """A of the module's formula, [R, C]."""
        parts, model = self.parts, self.model
        levels = levels_of(parts)
        if model.magnitude == "difference" or levels is None:
            return np.abs(self.weights)
        scale = np.abs(parts.per_element(scale_of(parts)))
        zero, minimum = zero_of(parts), minimum_of(parts)
        pivot = model.pivot if model.magnitude == "folded" else 0.0
        first = np.abs(levels - pivot) * scale
        second: Array = np.zeros((1, 1))
        if zero is not None:
            second = np.abs(pivot - zero) * scale
        elif minimum is not None:
            second = np.abs(minimum + pivot * parts.per_element(scale_of(parts)))
        magnitude: Array = first + second
        return magnitude

    def bound(self, x: Array, *, random: bool, quantized: bool = False) -> Bound:
        """Reference and tolerance for one input.

        Args:
            x: [M, K].
            random: whether x is independent of the weights.
            quantized: x is already what the kernel's own activation quantizer gives.
        """
        model = self.model
        wide = np.asarray(x, dtype=np.float64)
        size, square = np.abs(wide), np.square(wide)
        weight, rounded = self.weights, self._rounded
        reference = wide @ weight.T
        total = size @ np.abs(weight).T
        summed = size @ rounded.T
        u_w = model.weight_roundings * UNIT_ROUNDOFF[model.weight_dtype]
        shared, shared_square = self._shared(wide)
        act, act_square = (0.0, 0.0) if quantized else self._activation(wide)
        u_acc, n_terms = UNIT_ROUNDOFF[model.accumulate_dtype], self._steps
        worst = u_w * summed + shared + act + n_terms * u_acc * summed
        if random:
            spread = u_w**2 / 3 * (square @ np.square(rounded).T) + shared_square + act_square
            steps = min(float(n_terms), SIGMAS / np.sqrt(3) * np.sqrt(n_terms))
            worst = np.minimum(worst, SIGMAS * np.sqrt(spread) + steps * u_acc * summed)
        floor = UNDERFLOW[model.weight_dtype] * model.weight_roundings * size.sum(axis=1)[:, None]
        floor = floor + n_terms * UNDERFLOW[model.accumulate_dtype]
        inner = worst + floor
        u_out = UNIT_ROUNDOFF[model.output_dtype]
        tolerance = inner + u_out * (np.abs(reference) + inner) + UNDERFLOW[model.output_dtype]
        return Bound(reference, tolerance, total)

    def single(self, columns: Array, amplitude: float) -> Array:
        """Tolerance of outputs of one-hot rows: the worst case of `bound` with a single term.

        A quantizer of activations meets the largest value of a block exactly; what stays is the rounding of
        its step, which is none where the height is a representable multiple of 127.

        Args:
            columns: input channels, each in a row of its own.
            amplitude: height of the rows.

        Returns:
            float64 [rows of the block, columns].
        """
        model = self.model
        rounded = self._rounded[:, columns] * amplitude
        reference = np.abs(self.weights[:, columns]) * amplitude
        inner = model.weight_roundings * UNIT_ROUNDOFF[model.weight_dtype] * rounded
        u_zero = UNIT_ROUNDOFF[model.zero_dtype]
        if self._scale_error:
            scaled = self._scaled_part()[:, columns] * amplitude
            inner = inner + UNIT_ROUNDOFF[model.scale_dtype] * np.abs(scaled)
        if u_zero:
            inner = inner + u_zero * np.abs(self._zero_part()[:, columns] * amplitude)
        if model.activation == "int8_row":
            inner = inner + 2 * UNIT_ROUNDOFF["f32"] * rounded
        elif model.activation == "q8_block" and not _exact_in(
            np.array([amplitude / ACTIVATION_STEPS]), "f16"
        ):
            inner = inner + UNIT_ROUNDOFF["f16"] * rounded
        inner = inner + UNIT_ROUNDOFF[model.accumulate_dtype] * self._steps * rounded
        inner = inner + UNDERFLOW[model.weight_dtype] * model.weight_roundings * amplitude
        u_out = UNIT_ROUNDOFF[model.output_dtype]
        tolerance: Array = inner + u_out * (reference + inner) + UNDERFLOW[model.output_dtype]
        return tolerance

    def _shared(self, x: Array) -> tuple[Array | float, Array | float]:
        """Errors that all weights of a group share: worst case, and variance."""
        model = self.model
        u_zero = UNIT_ROUNDOFF[model.zero_dtype]
        if not self._scale_error and not u_zero:
            return 0.0, 0.0
        worst: Array | float = 0.0
        square: Array | float = 0.0
        u_scale = UNIT_ROUNDOFF[model.scale_dtype] if self._scale_error else 0.0
        for terms, u in ((self._scaled_part(), u_scale), (self._zero_part(), u_zero)):
            if not u:
                continue
            for group in self._groups():
                partial = x[:, group] @ terms[:, group].T
                worst = worst + u * np.abs(partial)
                square = square + np.square(u * partial) / 3
        return worst, square

    def _scaled_part(self) -> Array:
        """What a shared error of the scale multiplies, [R, C]."""
        levels = levels_of(self.parts)
        if levels is None:
            return self.weights
        scale = self.parts.per_element(scale_of(self.parts))
        if self.model.magnitude == "folded":
            folded: Array = (levels - self.model.pivot) * scale
            return folded
        minimum = minimum_of(self.parts)
        return self.weights if minimum is None else self.weights - minimum

    def _zero_part(self) -> Array:
        """What a shared error of the folded zero multiplies, [R, C]."""
        scale = self.parts.per_element(scale_of(self.parts))
        zero, minimum = zero_of(self.parts), minimum_of(self.parts)
        shape = self.weights.shape
        if zero is not None:
            return np.broadcast_to((self.model.pivot - zero) * scale, shape)
        if minimum is not None:
            return np.broadcast_to(minimum + self.model.pivot * scale, shape)
        return np.broadcast_to(self.model.pivot * scale, shape)

    def _groups(self) -> list[Array]:
        """Columns of each group; all columns apart where groups differ from row to row."""
        index = self.parts.group_of_column
        if index.ndim != 1:
            return [np.array([column]) for column in range(index.shape[1])]
        order = np.argsort(index, kind="stable")
        _, starts = np.unique(index[order], return_index=True)
        return np.split(order, starts[1:])

    def _activation(self, x: Array) -> tuple[Array | float, Array | float]:
        """Errors of the kernel's own activation quantizer: worst case, and variance."""
        model = self.model
        if model.activation == "none":
            return 0.0, 0.0
        step = activation_steps(x, model)
        weight = np.abs(self.weights)
        half_type = UNIT_ROUNDOFF["f16"] if model.activation == "q8_block" else UNIT_ROUNDOFF["f32"]
        reach = step / 2 + half_type * np.abs(x) + UNDERFLOW["f16"] * ACTIVATION_STEPS
        reach = np.where(x == 0, 0.0, reach)
        spread = np.where(x == 0, 0.0, np.square(step) / 12 + np.square(half_type * x))
        worst: Array = reach @ self._rounded.T
        variance: Array = spread @ np.square(np.maximum(weight, self._rounded)).T
        return worst, variance


def activation_steps(x: Array, model: ErrorModel) -> Array:
    """Step of the kernel's activation quantizer per value, [M, K].

    `q8_block`: the largest magnitude of a block over 127. `int8_row`: the range of a row, zero
    included, over 255, and one step more since its zero point is rounded too.
    """
    if model.activation == "int8_row":
        span = np.maximum(x.max(axis=1), 0.0) - np.minimum(x.min(axis=1), 0.0)
        return np.broadcast_to(2 * span[:, None] / 255.0, x.shape)
    block = model.activation_block or x.shape[1]
    pad = -x.shape[1] % block
    wide = np.pad(np.abs(x), ((0, 0), (0, pad))).reshape(x.shape[0], -1, block)
    steps = np.repeat(wide.max(axis=2) / ACTIVATION_STEPS, block, axis=1)[:, : x.shape[1]]
    return np.asarray(steps)


def _exact_in(values: Array, dtype: str) -> bool:
    """Whether a type holds every value exactly."""
    if dtype == "exact":
        return True
    narrow = values.astype(np.float32)
    if not bool((narrow.astype(np.float64) == values).all()):
        return False
    plain = "bf16" if dtype == "bf16_truncated" else dtype
    return bool((representable(narrow, plain) == narrow).all())
