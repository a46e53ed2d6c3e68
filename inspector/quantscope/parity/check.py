"""One tensor through one kernel, in the process that calls it: from stored bytes to two answers."""

from __future__ import annotations

import hashlib
import time

import msgspec
import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.evidence.gates import GateOutcome
from quantscope.model import Reading
from quantscope.parity.calls import (
    CONTROL_INPUT,
    Outputs,
    Step,
    kernel_outputs,
    planned_columns,
    planned_inputs,
)
from quantscope.parity.execution import judge_rounding, judge_trace
from quantscope.parity.judge import Judged, emulated_outputs, judge
from quantscope.parity.misreadings import BY_NAME
from quantscope.parity.model import (
    ErrorModel,
    Execution,
    ParityResult,
    PlaneBytesUsed,
    Settings,
    SkipReason,
)
from quantscope.parity.protocol import Kernel, Refusal, RefusedError, Weight
from quantscope.parity.reference import ROW_RUN, parts_blocks

HASH_CHUNK = 1 << 24


def check_tensor(
    checkpoint: Checkpoint,
    weight: Weight,
    backend: str,
    kernel: Kernel | None,
    settings: Settings,
    step: Step,
) -> ParityResult:
    """Check one weight.

    Args:
        checkpoint: open checkpoint that holds it.
        weight: the weight with the reading in force.
        backend: name of the backend, for the result.
        kernel: the kernel; None with `settings.emulate`.
        settings: seed, type, caps, emulated fault.
        step: receives (stage, done, total).

    Raises:
        Whatever the kernel raises; the child process turns it into a result.
    """
    started = time.monotonic()
    dtype = settings.dtype or (kernel.dtypes[0] if kernel is not None else "f32")
    n_rows = rows_to_check(weight, settings)
    base = _base(checkpoint, weight, backend, kernel, settings, dtype, n_rows)
    refusal, versions, device_name = _refusal(kernel, weight, dtype)
    base = msgspec.structs.replace(base, versions=versions, device_name=device_name)
    if refusal is not None:
        return skipped(base, refusal.reason, refusal.detail)
    model = (
        kernel.error_model(weight, dtype)
        if kernel is not None
        else ErrorModel(input_dtype=dtype, statement="a faulty reader in float64, rounded once")
    )
    base = msgspec.structs.replace(
        base, error_model=model, planes=_planes(checkpoint, weight), dtype=dtype
    )
    base = msgspec.structs.replace(base, fingerprint=fingerprint(base.planes))
    reader = checkpoint.reader()
    family = checkpoint.family(weight.tensor)

    def blocks():  # type: ignore[no-untyped-def]
        return parts_blocks(family, weight, n_rows, reader)

    if kernel is None:
        outputs = _empty_outputs(weight, n_rows, dtype, settings)
        misreading = BY_NAME[settings.emulate or ""]
        if not emulated_outputs(weight, family, blocks, outputs, misreading):
            return skipped(
                base,
                "contract_unsupported",
                f"{misreading.name} changes nothing in these bytes: {misreading.title}",
            )
    else:
        raw = kernel.read(weight, n_rows, reader)
        try:
            outputs = kernel_outputs(kernel, weight, raw, dtype, settings, step)
        except RefusedError as no:
            return skipped(base, no.refusal.reason, no.refusal.detail)
    control = outputs.inputs[CONTROL_INPUT].x
    judged = judge(
        weight,
        family,
        blocks,
        model,
        outputs,
        n_rows=n_rows,
        amplitude=kernel.amplitude if kernel is not None else 1.0,
        quantized=kernel.quantized_input(weight, control) if kernel is not None else None,
        step=step,
    )
    outcome, reason = verdict(judged, emulated=kernel is None)
    return msgspec.structs.replace(
        base,
        status="executed",
        outcome=outcome,
        reason=reason,
        execution=_execution(kernel, outputs, judged),
        readout=judged.readout,
        inputs=judged.inputs,
        controls=judged.controls,
        symptoms=judged.symptoms,
        repacked_sha256=dict(outputs.repacked),
        seconds=round(time.monotonic() - started, 3),
    )


def rows_to_check(weight: Weight, settings: Settings) -> int:
    """Rows from the top that are run: all, or whole runs of 128 within the limit of elements."""
    allowed = settings.max_elements // max(1, weight.n_cols) // ROW_RUN * ROW_RUN
    return min(weight.n_rows, max(ROW_RUN, allowed))


def verdict(judged: Judged, *, emulated: bool = False) -> tuple[GateOutcome, str]:
    """First answer: right, not right, or not decided, with the reason in words.

    What does not hold does not hold, whatever the controls say; a check that holds says so only when every
    control did its work.
    """
    if judged.nonfinite_weights:
        return "inconclusive", f"{judged.nonfinite_weights} decoded weights are not finite"
    broken = [result for result in judged.inputs if not result.held and not result.fallback]
    readout = judged.readout
    if broken or readout.recovered != readout.resolvable:
        return "did_not_hold", _what_broke(judged)
    if emulated:
        return "inconclusive", "the emulated fault was not noticed"
    negative = [c for c in judged.controls if c.kind == "negative" and c.state != "not_applicable"]
    missed = [control.name for control in negative if control.state == "missed"]
    positive = [control for control in judged.controls if control.kind == "positive"]
    if missed:
        return "inconclusive", "negative controls not detected: " + ", ".join(missed)
    if not negative:
        return "inconclusive", "no negative control applies to this contract"
    if not positive:
        return "inconclusive", "there is no fixture of this contract"
    failed = [control.name for control in positive if control.state != "held"]
    if failed:
        return "inconclusive", "the built-in fixture did not hold: " + ", ".join(failed)
    if not readout.resolvable:
        return "inconclusive", "no code can be told from its neighbours at this precision"
    return "held", ""


def _what_broke(judged: Judged) -> str:
    broken = [result for result in judged.inputs if not result.held and not result.fallback]
    parts = []
    if broken:
        over = sum(result.over_tolerance for result in broken)
        outputs = sum(result.outputs for result in broken)
        parts.append(f"{over} of {outputs} outputs beyond tolerance ({broken[0].name})")
    readout = judged.readout
    if readout.recovered != readout.resolvable:
        parts.append(f"{readout.recovered} of {readout.resolvable} codes recovered")
    match = next((s for s in judged.symptoms if s.matches), None)
    if match is not None:
        parts.append(f"behaves like: {match.title}")
    return "; ".join(parts)


def _execution(kernel: Kernel | None, outputs: Outputs, judged: Judged) -> Execution:
    """Second answer."""
    if kernel is None or (not kernel.executes and outputs.trace is None):
        return Execution(proof="not_applicable", reason="no kernel was run")
    if not kernel.executes:
        method = outputs.trace.method if outputs.trace is not None else ""
        return Execution(proof="not_applicable", reason="no compiled kernel ran", method=method)
    if judged.agreement is not None:
        return judge_rounding(outputs.trace, judged.agreement)
    return judge_trace(outputs.trace, kernel.trace_rule)


def _refusal(
    kernel: Kernel | None, weight: Weight, dtype: str
) -> tuple[Refusal | None, dict[str, str], str]:
    if kernel is None:
        return None, {}, ""
    refusal = kernel.missing() or kernel.refusal(weight, dtype)
    if refusal is None and dtype not in kernel.dtypes:
        refusal = Refusal(
            reason="dtype_unsupported",
            detail=f"takes {', '.join(kernel.dtypes)}, not {dtype}",
        )
    if refusal is not None:
        return refusal, {}, ""
    found = kernel.available()
    return found.refusal, found.versions, found.device_name


def _base(
    checkpoint: Checkpoint,
    weight: Weight,
    backend: str,
    kernel: Kernel | None,
    settings: Settings,
    dtype: str,
    n_rows: int,
) -> ParityResult:
    return ParityResult(
        tensor=weight.tensor.name,
        backend=backend,
        kernel=kernel.name if kernel is not None else None,
        device=kernel.device if kernel is not None else None,
        status="skipped",
        outcome=None,
        executes_kernel=kernel is not None and kernel.executes,
        execution=Execution(proof="not_applicable", reason="nothing was run"),
        contract=weight.contract,
        reading=weight.reading.contract_values(),
        shape=weight.reading.shape,
        rows_checked=n_rows,
        dtype=dtype,
        settings=settings,
        limits=kernel.limits if kernel is not None else ("an emulated reader: no kernel ran",),
        emulated=settings.emulate,
    )


def skipped(base: ParityResult, reason: SkipReason, detail: str) -> ParityResult:
    """The result of a check that did not run."""
    return msgspec.structs.replace(base, status="skipped", skip=reason, reason=detail)


def _empty_outputs(weight: Weight, n_rows: int, dtype: str, settings: Settings) -> Outputs:
    from quantscope.parity.inputs import make_inputs

    inputs = make_inputs(weight.n_cols, dtype, settings.seed, None)
    columns = planned_columns(None, weight.n_cols, settings)
    return Outputs(
        inputs=inputs,
        dense=[np.zeros((batch.x.shape[0], n_rows)) for batch in inputs],
        columns=columns,
        read_out=np.zeros((columns.size, n_rows)),
        calls=0,
    )


def _planes(checkpoint: Checkpoint, weight: Weight) -> tuple[PlaneBytesUsed, ...]:
    """Digest of every byte of the stored tensors that the weight uses, each stored tensor once."""
    tensor = weight.tensor
    runs: dict[str, tuple[int, int, int]] = {}
    for plane in tensor.planes:
        for span in plane.spans:
            stop = span.byte_offset + (span.count - 1) * span.stride_bytes + span.nbytes
            known = runs.get(plane.stored_name, (span.file_id, span.byte_offset, stop))
            runs[plane.stored_name] = (
                span.file_id,
                min(known[1], span.byte_offset),
                max(known[2], stop),
            )
    found = []
    for name, (file_id, start, stop) in sorted(runs.items()):
        digest = hashlib.sha256()
        source = checkpoint.sources[file_id]
        for offset in range(start, stop, HASH_CHUNK):
            digest.update(source.read_at(offset, min(HASH_CHUNK, stop - offset)))
        found.append(
            PlaneBytesUsed(
                name=name,
                file=checkpoint.file(file_id).name,
                byte_offset=start,
                nbytes=stop - start,
                sha256=digest.hexdigest(),
            )
        )
    return tuple(found)


def fingerprint(planes: tuple[PlaneBytesUsed, ...]) -> str:
    """One digest over the digests of the planes, in order of their names."""
    return hashlib.sha256("".join(plane.sha256 for plane in planes).encode("ascii")).hexdigest()


def planes_fingerprint(checkpoint: Checkpoint, weight: Weight) -> str:
    """The fingerprint that a result of these bytes has."""
    return fingerprint(_planes(checkpoint, weight))


def planned_calls(
    kernel: Kernel, weight: Weight, dtype: str, settings: Settings
) -> tuple[int, int]:
    """(calls, rows of input over all calls) of a check."""
    inputs = planned_inputs(kernel, weight.n_cols, dtype, settings)
    columns = planned_columns(kernel, weight.n_cols, settings)
    rows = sum(int(batch.x.shape[0]) for batch in inputs) + int(columns.size)
    return len(inputs) + len(range(0, columns.size, 16)) + 3, rows + 32


def reading_from_json(data: dict[str, object]) -> Reading:
    """A reading as the child process receives it."""
    return msgspec.convert(data, Reading)
