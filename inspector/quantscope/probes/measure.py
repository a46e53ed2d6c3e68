"""The check itself, inside the child process: passes, controls, likelihoods, divergences, decision."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.compare.sides import Side
from quantscope.decode.parts import Array
from quantscope.errors import QuantscopeError
from quantscope.evidence.logits import row_statistics, target_nll
from quantscope.evidence.metrics import find_nonfinite
from quantscope.probes.decide import decide
from quantscope.probes.model import (
    Control,
    LayerDifference,
    PairResult,
    ProbeRequest,
    ProbeResult,
    SideRequest,
    SideResult,
    Tokens,
)
from quantscope.probes.network import ModelBuildError, Network
from quantscope.probes.tokens import make_tokens
from quantscope.probes.weights import ModelWeights
from quantscope.session.pipeline import Scope, inspect

Step = Callable[[str, int, int], None]


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """One forward pass: logits and the digest of the weights that were fed."""

    logits: Array
    weights_sha256: str
    changed: int


class LogitsCheck:
    """Runs a request.

    Args:
        request: what is asked for.
        step: receives (stage, done, total).
    """

    def __init__(self, request: ProbeRequest, step: Step) -> None:
        self.request = request
        self.step = step
        self._stack = ExitStack()
        self._sides: dict[str, Side] = {}
        self._started = time.monotonic()

    def run(self) -> ProbeResult:
        """All passes.

        Raises:
            QuantscopeError: the model cannot be built, tokens cannot be had, a logit is not finite.
        """
        with self._stack:
            torch = _threads(self.request.threads)
            base = self._side(self.request.sides[0].path)
            network = Network(
                base.checkpoint,
                dtype=self.request.dtype,
                device=self.request.device,
                stream=self.request.stream,
            )
            tokens = make_tokens(self.request.tokens, base.checkpoint, network.vocabulary)
            return self._measure(network, tokens, torch)

    def _side(self, path: str) -> Side:
        side = self._sides.get(path)
        if side is None:
            checkpoint = self._stack.enter_context(Checkpoint.open(path))
            side = Side(inspect(checkpoint, Scope(sample_groups=256)))
            self._sides[path] = side
        return side

    def _pass(
        self,
        network: Network,
        tokens: Tokens,
        request: SideRequest,
        stage: str,
        planted: bool = False,
    ) -> Pass:
        weights = ModelWeights(self._side(request.path), request, planted=planted)
        weights.refuse_unusable()
        logits = network.logits(
            network.source(weights), tokens.ids, lambda done, total: self.step(stage, done, total)
        )
        bad = find_nonfinite(logits)
        if bad is not None:
            row = bad.first_position // logits.shape[1]
            raise QuantscopeError(
                f"{request.label}: {bad.count} logits are not finite, the first at position {row}",
                hint="scan the checkpoint for NaN or infinite scales",
                source=request.label,
            )
        return Pass(
            logits=logits, weights_sha256=weights.digest.hexdigest(), changed=weights.changed
        )

    def _measure(self, network: Network, tokens: Tokens, torch: Any) -> ProbeResult:
        sides = self.request.sides
        targets = np.asarray(tokens.ids[1:])
        first = self._pass(network, tokens, sides[0], sides[0].label)
        again = self._pass(network, tokens, sides[0], "self_before")
        results = [self._result(sides[0], first, tokens, targets)]
        pairs: list[PairResult] = []
        controls = [_same("self_before", first.logits, again.logits)]
        del again
        passes = [first]
        for side in sides[1:]:
            passed = self._pass(network, tokens, side, side.label)
            if passed.logits.shape != first.logits.shape:
                raise ModelBuildError(
                    f"vocabularies differ: {first.logits.shape[1]} and {passed.logits.shape[1]}"
                )
            results.append(self._result(side, passed, tokens, targets))
            pairs.append(_pair(results[0], results[-1], first.logits, passed.logits, tokens))
            passes.append(passed)
        controls += self._late_controls(network, tokens, targets, passes, results, pairs)
        layers = self._by_layer(network, tokens) if self.request.by_layer and len(sides) > 1 else ()
        return self._assemble(network, tokens, results, pairs, controls, layers, torch)

    def _late_controls(
        self,
        network: Network,
        tokens: Tokens,
        targets: Array,
        passes: Sequence[Pass],
        results: Sequence[SideResult],
        pairs: Sequence[PairResult],
    ) -> list[Control]:
        """`planted` must be seen, `weights_differ` must hold, `base_after` must be the base to the bit."""
        sides = self.request.sides
        controls: list[Control] = []
        if len(passes) > 1:
            same = [r.label for r in results[1:] if r.weights_sha256 == results[0].weights_sha256]
            controls.append(
                Control(
                    name="weights_differ",
                    held=not same,
                    numbers={"equal_to_base": same} if same else {"sides": len(passes)},
                )
            )
        wrong = self._pass(network, tokens, sides[-1], "planted", planted=True)
        kl = float(np.mean(row_statistics(passes[0].logits, wrong.logits).kl))
        before = pairs[-1].kl_mean if pairs else 0.0
        numbers: dict[str, Any] = {"kl_mean": kl, "kl_mean_unplanted": before}
        held = kl > before and wrong.weights_sha256 != results[-1].weights_sha256
        if tokens.scored:
            nll = float(np.mean(target_nll(wrong.logits, targets)))
            numbers |= {"nll_mean": nll, "nll_mean_unplanted": results[-1].nll_mean}
            held = held and nll > (results[-1].nll_mean or 0.0)
        controls.append(Control(name="planted", held=held, numbers=numbers))
        del wrong
        after = self._pass(network, tokens, sides[0], "base_after")
        controls.append(_same("base_after", passes[0].logits, after.logits))
        return controls

    def _result(
        self, side: SideRequest, passed: Pass, tokens: Tokens, targets: Array
    ) -> SideResult:
        rows: tuple[float, ...] = ()
        total = mean = ppl = None
        error = None
        if tokens.scored:
            nll = target_nll(passed.logits, targets)
            rows = tuple(float(v) for v in nll)
            total = float(nll.sum())
            mean = total / len(rows)
            with np.errstate(over="ignore"):
                value = float(np.exp(np.float64(mean)))
            ppl = value if np.isfinite(value) else None
            error = None if ppl is not None else "perplexity overflows binary64"
        return SideResult(
            label=side.label,
            path=side.path,
            reading=side.reading,
            tensors_changed=passed.changed,
            nll_sum=total,
            nll_mean=mean,
            ppl=ppl,
            weights_sha256=passed.weights_sha256,
            logits_sha256=hashlib.sha256(np.ascontiguousarray(passed.logits).tobytes()).hexdigest(),
            nll_rows=rows,
            error=error,
        )

    def _by_layer(self, network: Network, tokens: Tokens) -> tuple[LayerDifference, ...]:
        base, other = self.request.sides[0], self.request.sides[-1]
        fetches = [
            network.source(ModelWeights(self._side(side.path), side)) for side in (base, other)
        ]
        theirs = [io[2] for io in network.layer_io(fetches[1], tokens.ids)]
        found = []
        for index, (args, kwargs, output) in enumerate(network.layer_io(fetches[0], tokens.ids)):
            isolated = network.run_layer(index, fetches[1], args, kwargs)
            norm = float(output.norm()) or 1.0
            found.append(
                LayerDifference(
                    layer=index,
                    own_relative=float((theirs[index] - output).norm()) / norm,
                    isolated_relative=float((isolated - output).norm()) / norm,
                )
            )
            self.step("by layer", index + 1, len(theirs))
        return tuple(found)

    def _assemble(
        self,
        network: Network,
        tokens: Tokens,
        results: Sequence[SideResult],
        pairs: Sequence[PairResult],
        controls: Sequence[Control],
        layers: tuple[LayerDifference, ...],
        torch: Any,
    ) -> ProbeResult:
        failed = [control.name for control in controls if not control.held]
        fingerprints: dict[str, str] = {}
        for side in self._sides.values():
            for file in side.checkpoint.opened.files:
                fingerprints[file.path] = file.fingerprint
                side.checkpoint.sources[file.file_id].check_unchanged()
        apart = next((d.layer for d in layers if d.isolated_relative > 0), None)
        return ProbeResult(
            outcome="inconclusive" if failed else "held",
            reason=f"controls missed: {', '.join(failed)}" if failed else "every control held",
            sides=tuple(results),
            pairs=tuple(pairs),
            controls=tuple(controls),
            decision=None if failed else decide(results, network.vocabulary, tokens.scored),
            layers=layers,
            first_layer_apart=apart,
            ids_sha256=tokens.sha256,
            ids_source=tokens.source,
            n_ids=len(tokens.ids),
            targets_counted=len(tokens.ids) - 1 if tokens.scored else 0,
            window=f"one window of {len(tokens.ids)} ids, no context reset; first: {tokens.bos}; no EOS, no padding",
            vocabulary=network.vocabulary,
            architecture=type(network.model).__name__,
            dtype=self.request.dtype,
            threads=int(torch.get_num_threads()),
            device=self.request.device,
            peak_rss_bytes=_peak_rss(),
            seconds=time.monotonic() - self._started,
            fingerprints=fingerprints,
            unverified=tokens.unverified,
            verified_scope=(
                f"logits of {len(tokens.ids) - 1} positions of one text under {len(results)} sets of weights; "
                "nothing about other text or tasks"
            ),
        )


def _same(name: Any, base: Array, other: Array) -> Control:
    """KL against the base itself, which must be exactly 0."""
    kl = float(np.max(row_statistics(base, other).kl))
    return Control(
        name=name,
        held=kl == 0.0 and bool((base == other).all()),
        numbers={"kl_max": kl, "max_abs_dlogit": float(np.max(np.abs(base - other)))},
    )


def _pair(
    base: SideResult, candidate: SideResult, x: Array, y: Array, tokens: Tokens
) -> PairResult:
    rows = row_statistics(x, y)
    delta = se = t = None
    if tokens.scored:
        differences = np.asarray(candidate.nll_rows) - np.asarray(base.nll_rows)
        delta = float(differences.mean())
        if differences.size > 1:
            se = float(differences.std(ddof=1) / np.sqrt(differences.size))
            t = delta / se if se > 0 else None
    return PairResult(
        base=base.label,
        candidate=candidate.label,
        rows=int(x.shape[0]),
        kl_mean=float(np.mean(rows.kl)),
        kl_max=float(np.max(rows.kl)),
        kl_min=float(np.min(rows.kl)),
        kl_by_position=tuple(float(v) for v in rows.kl),
        top1_matches=int(np.count_nonzero(rows.reference_top1 == rows.candidate_top1)),
        max_abs_dlogit=float(np.max(rows.max_abs_logit_error)),
        rows_margin_safe=int(np.count_nonzero(rows.argmax_safe)),
        dnll_mean=delta,
        dnll_se=se,
        t=t,
        document_means=_means(base, candidate),
        token_means=_means(base, candidate),
    )


def _means(base: SideResult, candidate: SideResult) -> tuple[float, float] | None:
    """One document is fed, so the document mean is the token mean."""
    if base.nll_mean is None or candidate.nll_mean is None:
        return None
    return base.nll_mean, candidate.nll_mean


def _threads(wanted: int) -> Any:
    from quantscope.probes.network import _libraries

    torch, _ = _libraries()
    if wanted:
        torch.set_num_threads(wanted)
    return torch


def _peak_rss() -> int:
    try:
        import resource
    except ImportError:
        return 0
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
