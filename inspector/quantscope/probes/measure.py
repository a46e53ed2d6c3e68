"""The check itself, inside the child process: passes, controls, likelihoods, divergences, decision."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from quantscope.checkpoint import Checkpoint
from quantscope.compare.sides import Side
from quantscope.probes import figures
from quantscope.probes.config import ModelBuildError, config_of, libraries
from quantscope.probes.decide import decide
from quantscope.probes.figures import Pass
from quantscope.probes.likeness import why_unlike
from quantscope.probes.model import (
    READING_STAGE,
    Control,
    LayerDifference,
    PairResult,
    ProbeRequest,
    ProbeResult,
    SideRequest,
    SideResult,
    Tokens,
)
from quantscope.probes.network import Network
from quantscope.probes.tokens import TokensError, make_tokens
from quantscope.probes.weights import ModelWeights
from quantscope.session.pipeline import Scope, inspect

Step = Callable[[str, int, int], None]
Finished = Callable[[SideResult], None]

NOT_THE_MODEL = (
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "transformers_version",
    "use_cache",
    "initializer_range",
)
"""Config keys in which two checkpoints of one model may differ without any logit changing."""


class LogitsCheck:
    """Runs a request.

    Args:
        request: what is asked for.
        step: receives (stage, done, total).
        finished: receives every side as soon as it is measured.
    """

    def __init__(
        self, request: ProbeRequest, step: Step, finished: Finished = lambda side: None
    ) -> None:
        self.request = request
        self.step = step
        self.finished = finished
        self._stack = ExitStack()
        self._sides: dict[str, Side] = {}
        self._configs: dict[str, dict[str, Any] | ModelBuildError] = {}
        self._started = time.monotonic()
        self._cpu = time.process_time()

    def run(self) -> ProbeResult:
        """All passes.

        Raises:
            QuantscopeError: the model cannot be built, tokens cannot be had, a logit is not finite.
        """
        with self._stack:
            self._open_all()
            torch, _ = libraries()
            if self.request.threads:
                torch.set_num_threads(self.request.threads)
            described = self._described()
            self._refuse_unlike()
            network = Network(
                described,
                dtype=self.request.dtype,
                device=self.request.device,
                stream=self.request.stream,
            )
            notes = self._config_notes(network)
            tokens = self._tokens(network)
            return self._measure(network, tokens, notes)

    def _side(self, path: str) -> Side:
        side = self._sides.get(path)
        if side is None:
            checkpoint = self._stack.enter_context(Checkpoint.open(path))
            side = Side(inspect(checkpoint, Scope()))
            self._sides[path] = side
        return side

    def _open_all(self) -> None:
        paths = self._paths()
        for number, path in enumerate(paths):
            self.step(READING_STAGE, number, len(paths))
            self._side(path)
        self.step(READING_STAGE, len(paths), len(paths))

    def _refuse_unlike(self) -> None:
        reason = why_unlike([self._side(path).checkpoint for path in self._paths()])
        if reason is not None:
            raise ModelBuildError(
                reason, hint="logits of different models or vocabularies are not comparable"
            )

    def _paths(self) -> list[str]:
        return list(dict.fromkeys(side.path for side in self.request.sides))

    def _config(self, path: str) -> dict[str, Any] | ModelBuildError:
        """A checkpoint's config, or why it has none."""
        if path not in self._configs:
            try:
                self._configs[path] = config_of(self._side(path).checkpoint)
            except ModelBuildError as problem:
                self._configs[path] = problem
        return self._configs[path]

    def _described(self) -> dict[str, Any]:
        """The config of the first side that has one."""
        found = [self._config(path) for path in self._paths()]
        for config in found:
            if isinstance(config, dict):
                return config
        raise next(config for config in found if isinstance(config, ModelBuildError))

    def _config_notes(self, network: Network) -> tuple[str, ...]:
        """In what the other checkpoints' configs differ from the one in use."""
        notes: list[str] = []
        for path in self._paths():
            other = self._config(path)
            if isinstance(other, ModelBuildError):
                notes.append(f"config of {_name(path)} (has none that builds a model)")
                continue
            for key, value in network.config_dict.items():
                if key in NOT_THE_MODEL or key.startswith("_") or key not in other:
                    continue
                if not _alike(value, other[key]):
                    if key == "vocab_size":
                        raise ModelBuildError(
                            f"vocabularies differ: {value} and {other[key]} ({_name(path)})",
                            hint="logits of different vocabularies are not comparable",
                        )
                    notes.append(
                        f"{key} of {_name(path)} ({str(other[key])[:60]}; {str(value)[:60]} was used)"
                    )
        return tuple(notes[:16])

    def _tokens(self, network: Network) -> Tokens:
        """From the first checkpoint that has a tokenizer."""
        first: TokensError | None = None
        for path in self._paths():
            try:
                return make_tokens(
                    self.request.tokens, self._side(path).checkpoint, network.vocabulary
                )
            except TokensError as problem:
                first = first or problem
        assert first is not None
        raise first

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
        figures.require_finite(request.label, logits)
        return Pass(
            logits=logits,
            weights_sha256=weights.digest.hexdigest(),
            changed=weights.changed,
            readings=weights.readings,
            unused=weights.unused,
        )

    def _measure(self, network: Network, tokens: Tokens, notes: tuple[str, ...]) -> ProbeResult:
        sides = self.request.sides
        for side in sides:
            # A reading that cannot be taken is told before the first pass, not after the base has run.
            ModelWeights(self._side(side.path), side)
        passes = [self._pass(network, tokens, sides[0], sides[0].label)]
        again = self._pass(network, tokens, sides[0], "self_before")
        controls = [figures.same_control("self_before", passes[0].logits, again.logits)]
        del again
        results = [figures.side_result(sides[0], passes[0], tokens)]
        self.finished(results[0])
        pairs: list[PairResult] = []
        for side in sides[1:]:
            passed = self._pass(network, tokens, side, side.label)
            results.append(figures.side_result(side, passed, tokens))
            self.finished(results[-1])
            pairs.append(
                figures.pair_result(
                    results[0], results[-1], passes[0].logits, passed.logits, tokens
                )
            )
            passes.append(passed)
        controls += self._late_controls(network, tokens, passes, results)
        layers = self._by_layer(network, tokens) if self.request.by_layer and len(sides) > 1 else ()
        return self._assemble(network, tokens, results, pairs, controls, layers, notes)

    def _late_controls(
        self,
        network: Network,
        tokens: Tokens,
        passes: Sequence[Pass],
        results: Sequence[SideResult],
    ) -> list[Control]:
        """`weights_differ` must hold, `planted` must be seen, `base_after` must be the base to the bit."""
        sides = self.request.sides
        controls = [figures.differ_control(results)] if len(passes) > 1 else []
        chosen = planted_side(sides, results)
        wrong = self._pass(network, tokens, sides[chosen], "planted", planted=True)
        against_base = sides[0].path != sides[chosen].path
        controls.append(
            figures.planted_control(
                passes[0 if against_base else chosen].logits,
                passes[chosen].logits,
                wrong,
                results[chosen],
                tokens,
            )
        )
        del wrong
        after = self._pass(network, tokens, sides[0], "base_after")
        controls.append(figures.same_control("base_after", passes[0].logits, after.logits))
        return controls

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
        notes: tuple[str, ...],
    ) -> ProbeResult:
        failed = [control.name for control in controls if not control.held]
        targets = len(tokens.ids) - 1
        config = json.dumps(network.config_dict, sort_keys=True, default=str).encode()
        return ProbeResult(
            outcome="inconclusive" if failed else "held",
            reason=f"controls missed: {', '.join(failed)}" if failed else "every control held",
            sides=tuple(results),
            pairs=tuple(pairs),
            controls=tuple(controls),
            decision=None if failed else decide(results, network.vocabulary, tokens.scored),
            layers=layers,
            first_layer_apart=next((d.layer for d in layers if d.isolated_relative > 0), None),
            ids_sha256=tokens.sha256,
            ids_source=tokens.source,
            n_ids=len(tokens.ids),
            targets_counted=targets if tokens.scored else 0,
            mask="every id after the first is a target; none is left out"
            if tokens.scored
            else "no target is scored",
            window=f"one window of {len(tokens.ids)} ids, no context reset; first: {tokens.bos}; no EOS, no padding",
            vocabulary=network.vocabulary,
            architecture=type(network.model).__name__,
            dtype=self.request.dtype,
            threads=int(network.torch.get_num_threads()),
            device=_device_name(network),
            peak_rss_bytes=_peak_rss(),
            seconds=time.monotonic() - self._started,
            cpu_seconds=time.process_time() - self._cpu,
            fingerprints=self._fingerprints(),
            unverified=(*tokens.unverified, *notes),
            verified_scope=(
                f"logits of {targets} positions of one text under {len(results)} sets of weights; "
                "nothing about other text or tasks"
            ),
            config_sha256=hashlib.sha256(config).hexdigest(),
            tokenizer_sha256=tokens.tokenizer_sha256,
            libraries=_versions(),
        )

    def _fingerprints(self) -> dict[str, str]:
        """Of every file used, after making sure that none changed meanwhile."""
        found: dict[str, str] = {}
        for side in self._sides.values():
            for file in side.checkpoint.opened.files:
                found[file.path] = file.fingerprint
                side.checkpoint.sources[file.file_id].check_unchanged()
        return found


def planted_side(sides: Sequence[SideRequest], results: Sequence[SideResult]) -> int:
    """Which side gets the control's wrong reading: the examined checkpoint's most likely one.

    Planting into a reading that is itself wrong could make it right, which would say nothing about the run.
    """
    own = [i for i, side in enumerate(sides) if side.path == sides[-1].path]
    scored = [i for i in own if results[i].nll_mean is not None]
    return min(scored, key=lambda i: results[i].nll_mean or 0.0) if scored else own[0]


def _name(path: str) -> str:
    """A checkpoint's own name: results go into reports, where folders of a machine say nothing."""
    return os.path.basename(os.path.abspath(path))


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_alike(a[key], b[key]) for key in a.keys() & b.keys())
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)


def _versions() -> dict[str, str]:
    import importlib.metadata

    import quantscope

    found = {"quantscope": quantscope.__version__}
    for name in ("torch", "transformers", "tokenizers", "numpy", "gguf"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _device_name(network: Network) -> str:
    if network.device.type != "cuda":
        return str(network.device)
    torch = network.torch
    return (
        f"{network.device} {torch.cuda.get_device_name(network.device)} CUDA {torch.version.cuda}"
    )


def _peak_rss() -> int:
    """Largest resident size of this process so far, in bytes; 0 where the system does not say."""
    try:
        # getrusage would count what the parent held when it started this process.
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return 0
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
