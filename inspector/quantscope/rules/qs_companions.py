"""QS03x: scales that belong to activations or to the KV cache, against the declared scheme."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from quantscope.containers.records import StoredTensor
from quantscope.errors import QuantscopeError
from quantscope.families.declarations import Section
from quantscope.families.modules import pattern_matches
from quantscope.model import Json, Source, Subject
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

INPUT_NAMES = ("input_scale", "input_global_scale", "scale_input", "qscale_act", "activation_scale")
KV_NAMES = (
    "k_scale",
    "v_scale",
    "kv_scale",
    "kv_cache_scaling_factor",
    "k_cache_scale",
    "v_cache_scale",
)
STATIC_ALGOS = ("FP8", "NVFP4", "NVFP4_AWQ", "W4A8_AWQ", "W4A8_NVFP4_FP8", "W8A8_SQ_PER_CHANNEL")
SIDE_FILE = "kv_cache_scales.json"
MAX_SIDE_FILE = 4 << 20


def activations(section: Section) -> list[tuple[Json, Source, list[str]]]:
    """(dynamic value, its source, targets) of every input activation scheme of a section.

    The value is False for static, True or "local" for scales made at run time, None for weight-only.
    """
    found: list[tuple[Json, Source, list[str]]] = []
    groups = section.get("config_groups")
    if isinstance(groups, dict):
        for name, group in groups.items():
            if not isinstance(group, dict):
                continue
            scheme = group.get("input_activations")
            targets = group.get("targets")
            kept = [t for t in targets if isinstance(t, str)] if isinstance(targets, list) else []
            source = section.source("config_groups", str(name), "input_activations")
            dynamic = scheme.get("dynamic", False) if isinstance(scheme, dict) else None
            found.append((dynamic, source, kept))
    if section.get("activation_scheme") in ("static", "dynamic"):
        dynamic = section.get("activation_scheme") == "dynamic"
        found.append((dynamic, section.source("activation_scheme"), []))
    if not found and section.get("quant_algo") in STATIC_ALGOS:
        found.append((False, section.source("quant_algo"), []))
    return found


def _input_scale(facts: Facts, module: str) -> StoredTensor | None:
    for suffix in INPUT_NAMES:
        stored = facts.index.get(module, suffix)
        if stored is not None:
            return stored
    return None


class InputScales(Rule):
    """Activation scales are there or not against the declared scheme."""

    code = "QS030"
    name = "input-scales-against-scheme"
    kind = "INPUT-SCALE"
    severity = "violation"
    page = Page(
        checks="input_scale and its kin of every module against a static, dynamic or absent activation scheme.",
        why="A static scheme without its scale runs at 1.0; a scale under a dynamic scheme is dead weight or a sign of "
        "another scheme.",
        evidence="The declaration and the stored names; proved.",
        proves_not="That the scales were calibrated well. Sidecars of a weight-only scheme are a note.",
        sample="fp8-input-scale-missing",
        reports=("sglang#29530",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Sections of schemes, one after the other; the first that speaks of a module counts."""
        spoken: set[str] = set()
        for section in facts.sections:
            if section.file == "recipe.yaml":
                continue
            for dynamic, source, targets in activations(section):
                modules = [
                    m
                    for m in facts.by_module
                    if m not in spoken
                    and (not targets or any(pattern_matches(t, m) for t in targets))
                ]
                spoken.update(modules)
                yield from self._judge(facts, dynamic, source, modules)

    def _judge(
        self, facts: Facts, dynamic: Json, source: Source, modules: list[str]
    ) -> Iterator[Hit]:
        have = {m: s for m in modules if (s := _input_scale(facts, m)) is not None}
        lacking = [m for m in modules if m not in have]
        if dynamic is False and lacking and not facts.is_gguf:
            severity = "violation" if have else "disagreement"
            for module in lacking:
                yield self.hit(
                    Subject(
                        tensor=facts.by_module[module][0].tensor.name,
                        file=source.file,
                        config_key=str(source),
                    ),
                    f"{source} is static and no input scale is stored"
                    + (f"; {len(have)} of {len(modules)} modules have one" if have else ""),
                    fold=str(source),
                    many=f"{source} is static and {{count}} of {len(modules)} modules have no input scale",
                    impact="engines use 1.0 or refuse the model: activations saturate or vanish",
                    try_="add the scales, or declare the activations dynamic",
                    severity=severity,  # type: ignore[arg-type]
                    data={"have": len(have), "of": len(modules)},
                )
        elif dynamic is True or dynamic is None:
            for module, stored in have.items():
                weight_only = dynamic is None
                yield self.hit(
                    facts.of_stored(stored, facts.by_module[module][0].tensor.name),
                    f"{names.last(stored.name)} is stored though {source} "
                    + ("declares no activation scheme" if weight_only else "is dynamic"),
                    fold=f"{source}|{names.last(stored.name)}",
                    many=f"{names.last(stored.name)} is stored in {{count}} modules though {source} "
                    + ("declares no activation scheme" if weight_only else "is dynamic"),
                    impact="none on weights; the scales are ignored, or the scheme is another than declared",
                    try_=f"remove the scales, or set {source} to static",
                    severity="note" if weight_only else "disagreement",
                    data={"weight_only": weight_only},
                )


class InputScalesDiffer(Rule):
    """Static activation scales of modules that share their input differ."""

    code = "QS031"
    name = "input-scales-differ"
    kind = "SCALE-FUSED"
    severity = "note"
    needs = "sample"
    page = Page(
        checks="Activation scales of q/k/v and gate/up, which see the same input.",
        why="An engine that fuses them has one slot and takes the largest, or fails.",
        evidence="The values; proved.",
        proves_not="A fault: the largest is a safe choice for a multiplier.",
        sample="fp8-input-scales-differ",
        reports=("sglang#29530",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Groups of siblings with single input scales that differ."""
        for _, group in facts.siblings():
            found = []
            for state in group:
                stored = _input_scale(facts, state.tensor.module)
                small = facts.small(stored.name) if stored is not None else None
                if stored is not None and small is not None and small.single is not None:
                    found.append((state, stored, small.single))
            values = [value for _, _, value in found]
            if len(found) < 2 or len(set(values)) == 1:
                continue
            state, stored, _ = found[0]
            words = "/".join(names.last(s.tensor.module) for s, _, _ in found)
            yield self.hit(
                facts.of_stored(stored, state.tensor.name),
                f"static input scales of {words} differ: " + ", ".join(f"{v:.4g}" for v in values),
                fold=words,
                many=f"static input scales of {words} differ in {{count}} places",
                impact="none on weights; engines that fuse take one of them",
                try_="",
                who="reader",
                data={"values": values},
            )


class KvScales(Rule):
    """KV-cache scales against the declared cache format, their values and their spelling."""

    code = "QS032"
    name = "kv-scales"
    kind = "KV-SCALE"
    severity = "disagreement"
    page = Page(
        checks="k_scale, v_scale, kv_scale and their kin: declared or not, all exactly 1.0, spelling, layers covered, "
        "bits, and the side file.",
        why="Loaders skip names that they do not know and run the cache at 1.0.",
        evidence="Stored names and values, every declaration of a KV scheme.",
        proves_not="A calibrated scale can be 1.0; a hybrid model has a cache in some layers only.",
        sample="kv-scales-one",
        reports=(
            "Model-Optimizer#20",
            "sglang#1559",
            "vllm#25047",
            "sglang#18372",
            "vllm#54623",
            "sglang#39942",
        ),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Everything that can be said of the KV scales of a checkpoint."""
        scheme, source = _kv_scheme(facts)
        stored = list(_kv_tensors(facts, scheme is not None))
        if scheme is not None and source is not None:
            yield from self._declared(facts, scheme, source, stored)
        if not stored:
            return
        if scheme is None:
            yield self.hit(
                facts.of_stored(stored[0]),
                f"{len(stored)} KV-cache scales are stored and no KV scheme is declared",
                fold="undeclared",
                impact="none on weights; engines keep the cache unquantized or guess its format",
                try_="declare kv_cache_scheme in config.json",
                who="config",
                severity="warning",
                data={"count": len(stored)},
            )
        yield from self._values(facts, stored, scheme is not None)
        yield from self._spelling(facts, stored)
        yield from self._side_file(facts, stored)

    def _declared(
        self, facts: Facts, scheme: Json, source: Source, stored: list[StoredTensor]
    ) -> Iterator[Hit]:
        dynamic = isinstance(scheme, dict) and scheme.get("dynamic") is True
        bits = scheme.get("num_bits") if isinstance(scheme, dict) else None
        subject = Subject(config_key=str(source), file=source.file, field="kv_cache")
        if not stored and not dynamic:
            yield self.hit(
                subject,
                f"{source} declares a quantized KV cache and no scale is stored",
                fold="absent",
                impact="none on weights; the cache runs at scale 1.0",
                try_="calibrate and store k_scale and v_scale",
                severity="warning",
                data={"scheme": scheme},
            )
        if isinstance(bits, int) and bits not in (4, 8):
            yield self.hit(
                subject,
                f"{source} declares {bits} bits, which no engine has for the KV cache",
                fold="bits",
                impact="none on weights; engines refuse the model or ignore the scheme",
                try_=f"set {source}/num_bits to 8",
                who="config",
                severity="warning",
                data={"num_bits": bits},
            )

    def _values(self, facts: Facts, stored: list[StoredTensor], declared: bool) -> Iterator[Hit]:
        small = [facts.small(s.name) for s in stored]
        values = [v for item in small if item is not None for v in item.values]
        if len(values) > 1 and all(value == 1.0 for value in values):
            yield self.hit(
                facts.of_stored(stored[0]),
                f"all {len(values)} KV-cache scales are exactly 1.0: probably never calibrated",
                fold="ones",
                impact="none on weights; the cache saturates or loses precision",
                try_="calibrate the KV cache",
                severity="warning",
                confidence="strong",
                data={"count": len(values)},
                would_settle="the producer's calibration log",
            )

    def _spelling(self, facts: Facts, stored: list[StoredTensor]) -> Iterator[Hit]:
        spellings: dict[str, list[StoredTensor]] = defaultdict(list)
        for tensor in stored:
            spellings[_spelling(tensor.name)].append(tensor)
        kinds = {
            ("kv_scale" if "kv" in s.rpartition(".")[2] else s.rpartition(".")[0])
            for s in spellings
        }
        if len(kinds) > 1:
            yield self.hit(
                facts.of_stored(stored[0]),
                f"{len(kinds)} spellings of KV scales in one checkpoint: {', '.join(sorted(spellings))}",
                fold="mixed",
                impact="none on weights; loaders that know one spelling run the other layers at 1.0",
                try_="use self_attn.k_scale and self_attn.v_scale everywhere",
                severity="warning",
                data={"spellings": sorted(spellings)},
            )
            return
        spelling = next(iter(spellings))
        if "qkv" in spelling or "c_attn" in spelling:
            yield self.hit(
                facts.of_stored(stored[0]),
                f"KV scales use the fused spelling {spelling}: engines that do not remap it run at 1.0",
                fold="fused",
                impact="none on weights; the cache is off by the scale",
                try_="rename them to self_attn.k_scale and self_attn.v_scale",
                severity="warning",
                data={"count": len(stored)},
            )
        elif spelling.endswith(("kv_scale", "kv_cache_scaling_factor")):
            yield self.hit(
                facts.of_stored(stored[0]),
                f"single deprecated {names.last(stored[0].name)}: K and V share it",
                fold="single",
                impact="none on weights",
                try_="store k_scale and v_scale",
                severity="note",
                data={"count": len(stored)},
            )
        yield from self._coverage(facts, stored)

    def _coverage(self, facts: Facts, stored: list[StoredTensor]) -> Iterator[Hit]:
        places = [place for s in stored if (place := names.layer_of(s.name)) is not None]
        if not places:
            return
        stack = places[0].stack
        have = {place.index for place in places if place.stack == stack}
        total = len(facts.layers.get(stack, {}))
        for index, names_there in sorted(_halves(stored, stack).items()):
            half = next(iter(names_there))
            other = "v_scale" if half == "k_scale" else "k_scale"
            yield self.hit(
                facts.of_stored(names_there[half]),
                f"layer {index} has a {half} and no {other}",
                fold=f"half|{other}",
                many=f"{{count}} layers have a {half} and no {other}",
                impact="none on weights; the other half of the cache runs at 1.0",
                try_=f"calibrate and store {other}",
                severity="warning",
                data={"missing": other},
            )
        if 0 < len(have) < total:
            yield self.hit(
                facts.of_stored(stored[0]),
                f"KV scales exist for {len(have)} of {total} layers (hybrid attention?)",
                fold="coverage",
                impact="none on weights; the other layers run at 1.0 if they have a cache",
                try_="",
                who="reader",
                severity="note",
                data={"have": len(have), "of": total},
            )

    def _side_file(self, facts: Facts, stored: list[StoredTensor]) -> Iterator[Hit]:
        scales = _read_side_file(facts)
        if scales is None:
            return
        differ = []
        for tensor in stored:
            place, small = names.layer_of(tensor.name), facts.small(tensor.name)
            if place is None or small is None or small.single is None:
                continue
            value = scales.get(place.index)
            if value is not None and abs(value - small.single) > 1e-6 * max(abs(value), 1e-30):
                differ.append(place.index)
        if differ:
            yield self.hit(
                Subject(
                    stored=stored[0].name,
                    file=SIDE_FILE,
                    config_key=f"{SIDE_FILE}#/kv_cache/scaling_factor",
                    field="kv_cache",
                ),
                f"KV scales in {SIDE_FILE} and in the tensors differ for {len(set(differ))} layers",
                fold="side",
                impact="none on weights; which scale is used depends on the engine",
                try_=f"remove {SIDE_FILE} or make it agree",
                who="config",
                severity="disagreement",
                data={"layers": sorted(set(differ))},
            )


def _kv_scheme(facts: Facts) -> tuple[Json, Source | None]:
    for section in facts.sections:
        for key in ("kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_dtype"):
            value = section.get(key)
            if value and value != "auto":
                return value, section.source(key)
    return None, None


def _kv_tensors(facts: Facts, declared: bool) -> Iterator[StoredTensor]:
    for stored in facts.ending(*KV_NAMES):
        if stored.name not in facts.by_stored:
            yield stored
    if declared:
        for stored in facts.ending("output_scale"):
            if names.last(names.parent(stored.name)) in ("k_proj", "v_proj"):
                yield stored


def _halves(stored: list[StoredTensor], stack: str) -> dict[int, dict[str, StoredTensor]]:
    """Layers with only one of k_scale and v_scale where others have both, with the one that they have."""
    have: dict[int, dict[str, StoredTensor]] = defaultdict(dict)
    for tensor in stored:
        place, last = names.layer_of(tensor.name), names.last(tensor.name)
        if place is not None and place.stack == stack and last in ("k_scale", "v_scale"):
            have[place.index][last] = tensor
    if all(len(found) == 1 for found in have.values()):
        return {}
    return {index: found for index, found in have.items() if len(found) == 1}


def _spelling(name: str) -> str:
    parent, last = names.parent(name), names.last(name)
    holder = names.last(parent)
    generic = {"k_scale": "K", "v_scale": "V"}.get(last, last)
    holder = {"k_proj": "x_proj", "v_proj": "x_proj"}.get(holder, holder)
    return f"{holder}.{last if generic == last else 'k_scale'}"


def _read_side_file(facts: Facts) -> dict[int, float] | None:
    """Scales by layer of the side file next to the weights, or None."""
    config = facts.declared.configs.get(SIDE_FILE)
    data: Any = config.data if config is not None else None
    if data is None:
        path = os.path.join(facts.opened.root, SIDE_FILE)
        try:
            if not os.path.isfile(path) or os.path.getsize(path) > MAX_SIDE_FILE:
                return None
            with open(path, "rb") as handle:
                data = json.loads(handle.read(MAX_SIDE_FILE))
        except (OSError, ValueError, RecursionError, QuantscopeError):
            return None
    while isinstance(data, dict) and not any(str(key).isdigit() for key in data):
        data = next((data[k] for k in ("kv_cache", "scaling_factor") if k in data), None)
    if not isinstance(data, dict):
        return None
    first = next(iter(data.values()))
    if isinstance(first, dict):
        data = first
    return {
        int(key): float(value)
        for key, value in data.items()
        if str(key).isdigit() and isinstance(value, (int, float))
    }


RULES = (InputScales, InputScalesDiffer, KvScales)
