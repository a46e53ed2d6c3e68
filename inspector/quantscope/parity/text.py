"""Results for a person: two answers, never one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantscope.parity.model import (
    BackendState,
    InputResult,
    ParityResult,
    ParityRun,
)
from quantscope.parity.records import CUDA_RECORDS, NOT_RUN
from quantscope.report.words import OUTCOME_WORDS, ZERO_WORDS
from quantscope.text import inert

NO_KERNEL = " (no compiled kernel)"

PROOF_WORDS = {
    "proved": "proved",
    "unproven": "not shown",
    "not_applicable": "no kernel ran",
}


def result_lines(result: ParityResult) -> Iterator[str]:
    """One result, in full."""
    shape = " x ".join(map(str, result.shape))
    yield f"{inert(result.tensor)}   {inert(_contract(result.contract))}   [{shape}]"
    yield f"  run            {_what_ran(result)}"
    yield f"  computed right {_right(result)}"
    yield f"  that kernel ran {PROOF_WORDS[result.execution_proof]}: {inert(result.execution.reason)}"
    if result.status != "executed":
        yield from _unfinished(result)
        return
    yield from _numbers(result)
    yield from _controls(result)
    yield from _symptoms(result)
    yield from _evidence(result)
    for limit in result.limits:
        yield f"  does not say   {limit}"


def _contract(words: str) -> str:
    """`gptq u4 g128, zero = stored + 1`: the convention, the last word where there is one, as a person reads it."""
    head, _, last = words.rpartition(" ")
    return f"{head}, {ZERO_WORDS[last]}" if last in ZERO_WORDS else words


def _what_ran(result: ParityResult) -> str:
    if result.emulated:
        return f"a faulty reader in place of a kernel: {result.emulated}"
    if result.kernel is None:
        return f"{result.backend}: no kernel"
    place = f" on {result.device_name}" if result.device_name else ""
    dtype = f", activations {result.dtype}" if result.dtype else ""
    return f"{result.backend} {result.kernel} ({result.device}){place}{dtype}"


def _right(result: ParityResult) -> str:
    if result.status == "failed":
        return f"did not finish: {inert(result.reason)}"
    if result.status == "skipped":
        return f"not run ({result.skip}): {inert(result.reason)}"
    words = OUTCOME_WORDS[result.outcome or "inconclusive"]
    return f"{words}: {inert(result.reason)}" if result.reason else words


def _unfinished(result: ParityResult) -> Iterator[str]:
    failure = result.failure
    if failure is None:
        return
    if failure.signal:
        yield f"  signal         {failure.signal}"
    for line in failure.stderr_tail.strip().splitlines()[-6:]:
        yield f"  | {inert(line)}"


def _numbers(result: ParityResult) -> Iterator[str]:
    readout = result.readout
    if readout is not None:
        what = {"codes": "codes", "levels": "levels", "values": "weights within tolerance"}
        share = f"{readout.recovered} of {readout.total} {what[readout.kind]}"
        exact = "" if readout.kind == "values" else ", compared exactly"
        yield f"  read out       {share}{exact} ({readout.columns} of {result.shape[-1]} input channels)"
        if readout.resolvable < readout.total:
            left = readout.total - readout.resolvable
            yield f"                 {left} cannot be told apart at this precision"
        if readout.first_wrong:
            wrong = readout.first_wrong
            yield (
                f"                 first wrong: row {wrong['row']}, column {wrong['col']}: "
                f"{wrong['recovered']} for {wrong['expected']}"
            )
    if result.rows_checked < result.shape[-2]:
        yield f"  rows           {result.rows_checked} of {result.shape[-2]} output channels"
    for batch in result.inputs:
        yield f"  {_input(batch)}"


def _input(batch: InputResult) -> str:
    name = f"{batch.name}, {batch.batch} row{'s' if batch.batch != 1 else ''}"
    if batch.worst_ratio is None:
        worst = "error beyond any tolerance"
    else:
        worst = f"worst error {batch.worst_ratio:.3g} of its tolerance"
    over = f", {batch.over_tolerance} of {batch.outputs} beyond" if batch.over_tolerance else ""
    odd = f", {batch.nonfinite} not finite" if batch.nonfinite else ""
    note = f" ({batch.note})" if batch.note else ""
    return f"{name:<34} {worst}{over}{odd}{note}"


def _controls(result: ParityResult) -> Iterator[str]:
    missed = "FAULTS MISSED" if result.outcome != "did_not_hold" else "not told from"
    for state, label in (
        ("held", "fixture held"),
        ("did_not_hold", "FIXTURE DID NOT HOLD"),
        ("detected", "faults noticed"),
        ("missed", missed),
        ("not_applicable", "not applicable"),
    ):
        names = [_contract(c.name) for c in result.controls if c.state == state]
        if names:
            yield f"  {label:<14} {', '.join(names)}"


def _symptoms(result: ParityResult) -> Iterator[str]:
    for symptom in result.symptoms:
        if symptom.matches:
            yield f"  behaves like   {symptom.title} ({symptom.kind}): {symptom.effect}"


def _evidence(result: ParityResult) -> Iterator[str]:
    if result.execution.library:
        yield f"  library        {result.execution.library} sha256 {result.execution.library_sha256[:16]}"
    fallback = result.execution.fallback
    if fallback.names:
        calls, times = fallback.calls, fallback.microseconds
        yield (
            f"  fallback       {calls[0]} of {calls[1]} traced calls, "
            f"{times[0]:.0f} of {times[1]:.0f} traced microseconds"
        )
    if result.error_model is not None:
        yield f"  tolerance from {result.error_model.statement}"
    if result.versions:
        yield "  versions       " + ", ".join(
            f"{k} {v}" for k, v in sorted(result.versions.items())
        )
    yield f"  bytes          {result.fingerprint[:16]} over {len(result.planes)} planes, seed {result.settings.seed}"


def run_lines(run: ParityRun) -> Iterator[str]:
    """A run: one result in full, several as a table with denominators."""
    if len(run.results) == 1:
        yield from result_lines(run.results[0])
    else:
        yield from _table(run)
    coverage = run.coverage
    yield ""
    yield (
        f"layers   {coverage.layers_run} run of {coverage.layers_asked} asked, "
        f"{coverage.layers_in_checkpoint} quantized in the checkpoint ({run.selection}): "
        f"{coverage.layers_held} held, {coverage.layers_did_not_hold} did not hold, "
        f"{coverage.layers_inconclusive} inconclusive, {coverage.layers_skipped} not run, "
        f"{coverage.layers_failed} did not finish"
    )
    if coverage.calls[1]:
        yield (
            f"fallback {coverage.layers_fallback} of {coverage.layers_run} layers, "
            f"{coverage.calls[0]} of {coverage.calls[1]} traced calls, "
            f"{coverage.microseconds[0]:.0f} of {coverage.microseconds[1]:.0f} traced microseconds"
        )
    if run.resumed:
        yield f"resumed  {run.resumed} results of an earlier run, their bytes unchanged"
    if run.partial:
        yield f"partial  {run.partial}"


def _table(run: ParityRun) -> Iterator[str]:
    width = max((len(inert(r.tensor)) for r in run.results), default=6)
    kernels = [f"{result.backend} {result.kernel or '-'}" for result in run.results]
    each = max(map(len, kernels), default=0) if len(set(kernels)) > 1 else 0
    if kernels and not each:
        yield f"kernel   {kernels[0]}"
    head = f"{'kernel':<{each}}  " if each else ""
    yield f"{'tensor':<{width}}  {head}{'computed right':<18} {'that kernel ran':<16} read out"
    for result, name in zip(run.results, kernels, strict=True):
        kernel = f"{name:<{each}}  " if each else ""
        right = (
            _right(result) if result.status != "executed" else OUTCOME_WORDS[str(result.outcome)]
        )
        readout = result.readout
        codes = f"{readout.recovered}/{readout.total}" if readout is not None else ""
        yield (
            f"{inert(result.tensor):<{width}}  {kernel}{right:<18} "
            f"{PROOF_WORDS[result.execution_proof]:<16} {codes}"
        ).rstrip()
    for reason in dict.fromkeys(
        r.reason for r in run.results if r.status == "executed" and r.reason
    ):
        yield f"  {inert(reason)}"
    for reason in dict.fromkeys(
        r.execution.reason for r in run.results if r.execution_proof == "unproven"
    ):
        yield f"  not shown: {inert(reason)}"


def backend_rows(states: Sequence[BackendState]) -> Iterator[tuple[str, str, str, str, str]]:
    """(backend, kernel, device, state, takes) of every kernel."""
    for state in states:
        if state.error is not None:
            yield state.name, "-", "-", f"not loaded: {state.error}", "-"
        for kernel in state.kernels:
            if kernel.reason is not None:
                words = f"{kernel.reason}: {kernel.detail}"
            elif state.probed:
                words = "runs here"
            else:
                words = "installed"
            if not kernel.executes:
                words += NO_KERNEL
            if kernel.device == "cuda" and state.name not in CUDA_RECORDS:
                words += f"; {NOT_RUN}"
            yield state.name, kernel.name, kernel.device, words, ", ".join(kernel.contracts)


def short_rows(
    rows: Sequence[tuple[str, str, str, str, str]],
) -> tuple[list[tuple[str, str, str, str]], list[str]]:
    """(backend, kernel@device, state, takes) with numbers in the place of reasons, and the reasons in order."""
    reasons: dict[str, int] = {}
    short = []
    for backend, kernel, device, words, takes in rows:
        told = []
        state = words.removesuffix(f"; {NOT_RUN}")
        plain = state.removesuffix(NO_KERNEL)
        runs = plain.startswith(("runs here", "installed"))
        told += [] if runs else [plain]
        told += [NO_KERNEL.strip(" ()")] if plain != state else []
        told += [NOT_RUN] if words != state else []
        numbers = ", ".join(str(reasons.setdefault(text, len(reasons) + 1)) for text in told)
        said = (f"{plain} ({numbers})" if numbers else plain) if runs else f"no ({numbers})"
        short.append((backend, f"{kernel}@{device}", said, takes))
    return short, list(reasons)
