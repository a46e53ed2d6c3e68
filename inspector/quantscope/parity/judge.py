"""Kernel outputs against the reference: one pass over blocks of rows, every claim with its numbers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from quantscope.decode.parts import Array, Parts
from quantscope.families.protocol import Family
from quantscope.model import Reading
from quantscope.parity.calls import CONTROL_INPUT, FixtureOutput, Outputs, Step
from quantscope.parity.execution import Agreement
from quantscope.parity.inputs import Input
from quantscope.parity.misreadings import CONTROLS, MISREADINGS, Misreading
from quantscope.parity.model import ControlResult, ErrorModel, InputResult, Readout, Symptom
from quantscope.parity.protocol import Weight
from quantscope.parity.readout import ReadoutCounter
from quantscope.parity.reference import PartsBlocks, weights64
from quantscope.parity.tolerance import BlockModel, Bound


class Judged(NamedTuple):
    """What the outputs show."""

    inputs: tuple[InputResult, ...]
    readout: Readout
    controls: tuple[ControlResult, ...]
    symptoms: tuple[Symptom, ...]
    agreement: Agreement | None
    nonfinite_weights: int


class ErrorTally:
    """Worst error of one output array, collected over blocks."""

    def __init__(self) -> None:
        self.outputs = self.over = self.nonfinite = 0
        self.ratio = self.error = self.tolerance = self.over_sum = 0.0
        self.at: tuple[int, int] | None = None

    def add(self, first_row: int, outputs: Array, bound: Bound, *, exact_zero: bool) -> None:
        """Add a block.

        Args:
            first_row: number of the block's first row.
            outputs: [M, rows].
            bound: reference and tolerance.
            exact_zero: inputs are zero, so that only zero will do.
        """
        finite = np.isfinite(outputs)
        tolerance = np.zeros_like(bound.tolerance) if exact_zero else bound.tolerance
        error = np.where(finite, np.abs(outputs - bound.reference), np.inf)
        within = error <= tolerance
        self.outputs += outputs.size
        self.over += int((~within).sum())
        self.nonfinite += int((~finite).sum())
        self.tolerance = max(self.tolerance, float(tolerance.max(initial=0.0)))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(within & (error == 0), 0.0, error / tolerance)
            share = np.where(bound.magnitude > 0, error / bound.magnitude, 0.0)
        worst = int(np.argmax(ratio)) if ratio.size else 0
        if ratio.size and (self.at is None or ratio.flat[worst] > self.ratio):
            self.ratio = float(ratio.flat[worst])
            row, col = divmod(worst, ratio.shape[1])
            self.at = (row, first_row + col)
        self.error = max(self.error, float(error.max(initial=0.0)))
        self.over_sum = max(self.over_sum, float(share.max(initial=0.0)))

    @property
    def share(self) -> float:
        """Part of the outputs beyond tolerance."""
        return self.over / self.outputs if self.outputs else 0.0


def judge(
    weight: Weight,
    family: Family,
    blocks: PartsBlocks,
    model: ErrorModel,
    outputs: Outputs,
    *,
    n_rows: int,
    amplitude: float,
    quantized: Array | None,
    step: Step,
) -> Judged:
    """Compare every output with the reference.

    Args:
        weight: the weight.
        family: its family.
        blocks: parts, block by block.
        model: declared rounding points.
        outputs: what the kernel gave.
        n_rows: rows that were run.
        amplitude: height of one-hot inputs.
        quantized: the control input as the kernel itself quantizes activations.
        step: receives (stage, done, total).
    """
    reading = weight.reading
    tallies = [ErrorTally() for _ in outputs.inputs]
    counter = ReadoutCounter(outputs.columns, amplitude, weight.n_rows * weight.n_cols)
    wrong = WrongReadings(CONTROLS, reading, family, model, outputs)
    corrupted = ErrorTally()
    agreement = Agreement() if quantized is not None else None
    nonfinite = 0
    for rows, parts in blocks():
        part = slice(rows.start, rows.stop)
        block = BlockModel(parts, family, reading, model)
        nonfinite += int((~np.isfinite(block.weights)).sum())
        for number, (batch, y) in enumerate(zip(outputs.inputs, outputs.dense, strict=True)):
            bound = block.bound(batch.x, random=batch.random)
            zero = batch.name == "zeros"
            tallies[number].add(rows.start, y[:, part], bound, exact_zero=zero)
            if number != CONTROL_INPUT:
                continue
            if outputs.corrupted is not None:
                corrupted.add(rows.start, outputs.corrupted[1][:, part], bound, exact_zero=False)
            if agreement is not None and quantized is not None:
                rounded = block.bound(quantized, random=batch.random, quantized=True)
                agreement.add(y[:, part], rounded.reference, rounded.tolerance, bound.reference)
        wrong.add(rows, parts, block)
        counter.add(rows, block, outputs.read_out[:, part].astype(np.float64))
        step("compare", rows.stop, n_rows)
    results = tuple(
        _input_result(batch, tally) for batch, tally in zip(outputs.inputs, tallies, strict=True)
    )
    readout = counter.result(len(range(0, outputs.columns.size, 16)))
    held = (
        all(r.held for r in results if not r.fallback) and readout.recovered == readout.resolvable
    )
    controls = wrong.controls()
    if outputs.fixture is not None:
        controls = (_positive(outputs.fixture, family, reading, model), *controls)
    if outputs.corrupted is not None:
        controls = (*controls, _corrupted_control(outputs.corrupted[0], corrupted))
    symptoms: tuple[Symptom, ...] = ()
    if not held:
        every = WrongReadings(MISREADINGS, reading, family, model, outputs)
        for rows, parts in blocks():
            every.add(rows, parts, BlockModel(parts, family, reading, model))
            step("name the fault", rows.stop, n_rows)
        symptoms = every.symptoms()
    return Judged(results, readout, controls, symptoms, agreement, nonfinite)


class WrongReadings:
    """The control input's outputs against wrong readings that the contract allows."""

    def __init__(
        self,
        misreadings: tuple[Misreading, ...],
        reading: Reading,
        family: Family,
        model: ErrorModel,
        outputs: Outputs,
    ) -> None:
        self._misreadings = misreadings
        self._reading, self._family, self._model = reading, family, model
        self._batch = outputs.inputs[CONTROL_INPUT]
        self._outputs = outputs.dense[CONTROL_INPUT]
        self._tallies: dict[str, ErrorTally] = {m.name: ErrorTally() for m in misreadings}
        self._changed: dict[str, float] = {m.name: 0.0 for m in misreadings}
        self._applies: dict[str, bool] = {m.name: False for m in misreadings}

    def add(self, rows: range, parts: Parts, block: BlockModel) -> None:
        """Judge one block under every misreading."""
        outputs = self._outputs[:, rows.start : rows.stop]
        for misreading in self._misreadings:
            wrong = misreading.change(parts, self._reading)
            if wrong is None:
                continue
            self._applies[misreading.name] = True
            with np.errstate(all="ignore"):
                other = BlockModel(wrong, self._family, self._reading, self._model)
                moved = np.nanmax(np.abs(other.weights - block.weights), initial=0.0)
                self._changed[misreading.name] = max(self._changed[misreading.name], float(moved))
                bound = other.bound(self._batch.x, random=True)
                self._tallies[misreading.name].add(rows.start, outputs, bound, exact_zero=False)

    def controls(self) -> tuple[ControlResult, ...]:
        """Negative controls: a wrong reading is detected when some output is beyond its tolerance."""
        return tuple(self._control(misreading) for misreading in self._misreadings)

    def _control(self, misreading: Misreading) -> ControlResult:
        tally = self._tallies[misreading.name]
        if not self._applies[misreading.name] or not self._changed[misreading.name]:
            applies = self._applies[misreading.name]
            return ControlResult(
                name=misreading.name,
                kind="negative",
                state="not_applicable",
                how="wrong_reference",
                detail="changes nothing in these bytes" if applies else "the contract has no such",
            )
        return ControlResult(
            name=misreading.name,
            kind="negative",
            state="detected" if tally.over else "missed",
            how="wrong_reference",
            detail=misreading.title,
            share_over_tolerance=tally.share,
            worst_ratio=_finite(tally.ratio),
        )

    def symptoms(self) -> tuple[Symptom, ...]:
        """Misreadings whose outputs the kernel's equal within tolerance, then the others that apply."""
        found = [
            Symptom(
                fault=m.name,
                title=m.title,
                kind=m.kind,
                matches=not self._tallies[m.name].over and self._changed[m.name] > 0,
                worst_ratio=_finite(self._tallies[m.name].ratio),
                effect=m.effect,
            )
            for m in self._misreadings
            if self._applies[m.name] and self._changed[m.name] > 0
        ]
        return tuple(sorted(found, key=lambda symptom: not symptom.matches))


def emulated_outputs(
    weight: Weight, family: Family, blocks: PartsBlocks, outputs: Outputs, misreading: Misreading
) -> bool:
    """Fill outputs with those of a faulty reader, computed in float64 and rounded to float32.

    Returns:
        whether the fault changes any weight of these bytes.
    """
    changed = False
    eye = outputs.columns
    for rows, parts in blocks():
        wrong = misreading.change(parts, weight.reading)
        if wrong is None:
            return False
        with np.errstate(all="ignore"):
            weights = weights64(wrong, family, weight.reading)
            right = weights64(parts, family, weight.reading)
            changed = changed or bool((weights != right).any())
            for batch, y in zip(outputs.inputs, outputs.dense, strict=True):
                product = batch.x.astype(np.float64) @ weights.T
                y[:, rows.start : rows.stop] = product.astype(np.float32)
            outputs.read_out[:, rows.start : rows.stop] = weights[:, eye].T
    return changed


def _input_result(batch: Input, tally: ErrorTally) -> InputResult:
    return InputResult(
        name=batch.name,
        batch=int(batch.x.shape[0]),
        seed=batch.seed,
        sha256=batch.sha256,
        outputs=tally.outputs,
        worst_ratio=_finite(tally.ratio),
        worst_at=tally.at,
        max_abs_error=_finite(tally.error),
        max_tolerance=_finite(tally.tolerance),
        error_over_sum=_finite(tally.over_sum),
        over_tolerance=tally.over,
        nonfinite=tally.nonfinite,
        held=tally.over == 0,
        fallback=batch.fallback,
        note="another path is expected at this batch" if batch.fallback else "",
    )


def _positive(
    made: FixtureOutput, family: Family, reading: Reading, model: ErrorModel
) -> ControlResult:
    """The built-in fixture: weights from its formula, not from a decoder."""
    weights = made.fixture.weights
    model = msgspec.structs.replace(
        model, magnitude="difference", scale_dtype="exact", zero_dtype="exact"
    )
    parts = Parts(codes=weights.astype(np.float32), combine="value")
    block = BlockModel(parts, family, reading, model)
    tally = ErrorTally()
    for number, (x, y) in enumerate(zip(made.inputs, made.outputs, strict=True)):
        tally.add(0, y, block.bound(x, random=number == 0), exact_zero=False)
    return ControlResult(
        name=made.fixture.name,
        kind="positive",
        state="did_not_hold" if tally.over else "held",
        how="fixture",
        detail="known bytes, weights from the format's definition",
        share_over_tolerance=tally.share,
        worst_ratio=_finite(tally.ratio),
    )


def _corrupted_control(what: str, tally: ErrorTally) -> ControlResult:
    return ControlResult(
        name="wrong_bytes",
        kind="negative",
        state="detected" if tally.over else "missed",
        how="wrong_bytes",
        detail=what,
        share_over_tolerance=tally.share,
        worst_ratio=_finite(tally.ratio),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
