"""QW01x: missing layers, modules, experts and MTP blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from quantscope.model import Source, Subject
from quantscope.report.words import count_words
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
MTP_WORDS = ("mtp", "nextn", "eh_proj", "enorm", "hnorm")


class LayersMissing(Rule):
    """Layer numbers have holes, or fewer layers are stored than declared."""

    code = "QW012"
    name = "layers-missing"
    kind = "SUBMODULE"
    severity = "violation"
    page = Page(
        checks="Layer numbers of every stack for holes, and their count against the config.",
        why="An export that skips a shard can write an index that looks whole.",
        evidence="Stored names and num_hidden_layers; proved.",
        proves_not="That the layers that are there are complete: see the rule on modules.",
        sample="layers-missing",
        reports=("AReaL#1403",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Stacks with holes, the main stack against the config."""
        if facts.incomplete or facts.is_extract or facts.is_gguf:
            return
        main = max(facts.layers, key=lambda s: len(facts.layers[s]), default=None)
        for stack, layers in facts.layers.items():
            have = set(layers)
            gone, count = names.absent(have, max(have) + 1)
            if gone and count <= len(have):
                yield self._hit(
                    stack,
                    gone,
                    count,
                    f"{count_words(len(have), 'layer')} up to {max(have)} are stored",
                )
            elif stack == main:
                yield from self._against_config(facts, stack, have)

    def _against_config(self, facts: Facts, stack: str, have: set[int]) -> Iterator[Hit]:
        for key in LAYER_KEYS:
            value, source = facts.model_value(key)
            if isinstance(value, int) and source is not None and 0 < value < 10_000:
                gone, count = names.absent(have, value)
                if gone:
                    beside = f"{source} is {value}"
                    yield self._hit(stack, gone, count, beside, str(source), source.file)
                return

    def _hit(
        self,
        stack: str,
        gone: list[int],
        count: int,
        beside: str,
        key: str | None = None,
        file: str | None = None,
    ) -> Hit:
        shown = ", ".join(map(str, gone[:8])) + (", ..." if count > 8 else "")
        many = count > 1
        return self.hit(
            Subject(tensor=f"{stack}.{gone[0]}", file=file, config_key=key),
            f"{'layers' if many else 'layer'} {shown} of {stack} {'are' if many else 'is'} absent; {beside}",
            fold=stack,
            impact="the layers stay at random",
            try_="export the model again",
            data={"stack": stack, "missing": gone, "count": count},
        )


class ModulesMissing(Rule):
    """One layer lacks tensors that the others have."""

    code = "QW013"
    name = "modules-missing"
    kind = "SUBMODULE"
    severity = "violation"
    page = Page(
        checks="The set of modules of each layer against the most frequent set of its stack.",
        why="A module that is absent in one layer stays at random there.",
        evidence="Stored names; proved for the absence, not for the need: layers of another make are left alone.",
        proves_not="A hybrid model has layers of several makes.",
        sample="module-missing",
        reports=("AReaL#1403",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Single layers whose modules are a proper part of the usual ones."""
        if facts.incomplete:
            return
        for stack, layers in facts.layers.items():
            sets = {number: frozenset(_module_words(rest)) for number, rest in layers.items()}
            counts = Counter(sets.values())
            if len(sets) < 2 or len(counts) < 2:
                continue
            usual = max(counts, key=lambda s: (counts[s], len(s)))
            for number, own in sets.items():
                if own < usual and counts[own] == 1 and (counts[usual] > 1 or len(sets) == 2):
                    gone = sorted(word for word in usual - own if _essential(word))
                    if not gone:
                        continue
                    yield self.hit(
                        Subject(tensor=f"{stack}.{number}.{gone[0]}"),
                        f"layer {number} of {stack} lacks {', '.join(gone[:6])}; "
                        f"{count_words(counts[usual], 'other layer has', 'other layers have')} {'them' if len(gone) > 1 else 'it'}",
                        fold=f"{stack}|{gone}",
                        impact="the modules stay at random",
                        try_="export the model again",
                        data={"layer": number, "missing": gone[:50]},
                    )


def _module_words(rests: set[str]) -> set[str]:
    """Modules of a layer, experts folded to one word."""
    words: set[str] = set()
    for rest in rests:
        expert = names.expert_of(rest)
        words.add(f"{expert.stack}.#" if expert is not None else _module(rest))
    return words


def _module(rest: str) -> str:
    """The module of a name inside a layer, without the suffix of the plane."""
    parts = rest.split(".")
    if "weight" in parts[1:]:
        return ".".join(parts[: parts.index("weight", 1)])
    return ".".join(parts[:-1]) or rest


LAYER_NORMS = frozenset({"input_layernorm", "post_attention_layernorm", "attn_norm", "ffn_norm"})


def _essential(module: str) -> bool:
    """Whether a module is one that every layer of its make has: a linear layer, an expert stack, a main norm."""
    last = names.last(module)
    return last in names.LINEAR_NAMES or last in LAYER_NORMS or last == "#"


class ExpertsMissing(Rule):
    """Expert numbers have holes or do not reach the declared count."""

    code = "QW014"
    name = "experts-missing"
    kind = "SUBMODULE"
    severity = "violation"
    page = Page(
        checks="Numbers of the experts of every layer for holes, against the config and against the other layers.",
        why="Tokens that are routed to a missing expert get random output.",
        evidence="Stored names and the config's expert count; proved.",
        proves_not="That every expert was calibrated.",
        sample="experts-missing",
        reports=("TensorRT-LLM#16447",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Every stack of numbered experts."""
        if facts.incomplete:
            return
        stacks: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for name in facts.stored:
            place = names.expert_of(name)
            if place is not None:
                stacks[place.stack][place.index].add(place.rest)
        declared = next(
            (
                (value, source)
                for key in EXPERT_KEYS
                for value, source in (facts.model_value(key),)
                if isinstance(value, int) and 0 < value < 100_000
            ),
            (None, None),
        )
        yield from self._stacked(facts, declared)
        for stack, experts in stacks.items():
            wanted = declared[0] if isinstance(declared[0], int) else max(experts) + 1
            gone, _ = names.absent(experts, wanted)
            if gone:
                beside = f"; {declared[1]} is {wanted}" if declared[1] is not None else ""
                yield self.hit(
                    Subject(
                        tensor=f"{stack}.{gone[0]}",
                        config_key=str(declared[1]) if declared[1] is not None else None,
                    ),
                    f"experts {', '.join(map(str, gone[:8]))} of {stack} are absent{beside}",
                    fold=f"{stack}",
                    impact="tokens routed to them get random output",
                    try_="export the model again",
                    data={"missing": gone, "have": len(experts)},
                )
                continue
            usual = Counter(frozenset(rest) for rest in experts.values()).most_common(1)[0][0]
            for number, rest in experts.items():
                lacking = sorted({_module(r) for r in usual} - {_module(r) for r in rest})
                if lacking:
                    yield self.hit(
                        Subject(tensor=f"{stack}.{number}.{lacking[0]}"),
                        f"expert {number} of {stack} lacks {', '.join(lacking[:4])}",
                        fold=f"{stack}|{lacking}",
                        impact="tokens routed to it get random output",
                        try_="export the model again",
                        data={"expert": number, "missing": lacking},
                    )

    def _stacked(self, facts: Facts, declared: tuple[Any, Source | None]) -> Iterator[Hit]:
        """Experts stored as one array: its first extent against the declared count."""
        count, source = declared
        if not isinstance(count, int) or source is None:
            return
        for name, stored in facts.stored.items():
            if ".experts." not in name or names.expert_of(name) or len(stored.shape) < 3:
                continue
            if stored.shape[0] != count:
                yield self.hit(
                    Subject(
                        tensor=name,
                        stored=name,
                        file=facts.file_name(stored.file_id),
                        config_key=str(source),
                    ),
                    f"stack of {stored.shape[0]} experts, {source} is {count}",
                    fold=f"{stored.shape[0]}",
                    many=f"{{count}} stacks hold {stored.shape[0]} experts, {source} is {count}",
                    impact="tokens routed to the missing experts get random output",
                    try_="export the model again",
                    data={"have": stored.shape[0], "declared": count},
                )


class MtpMissing(Rule):
    """Prediction layers are declared and not stored."""

    code = "QW015"
    name = "mtp-missing"
    kind = "SUBMODULE"
    severity = "disagreement"
    page = Page(
        checks="num_nextn_predict_layers and its kin against stored MTP blocks.",
        why="An engine that is told of MTP layers waits for them or speculates with random weights.",
        evidence="The config and the stored names; proved.",
        proves_not="That the export was meant to keep them: many drop them on purpose and leave the key.",
        sample="mtp-missing",
        reports=("TensorRT-Edge-LLM#167",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """The declared count against layers beyond the main stack and MTP names."""
        if facts.incomplete or facts.is_extract or facts.is_gguf:
            return
        for key in MTP_KEYS:
            value, source = facts.model_value(key)
            if (
                not isinstance(value, int)
                or isinstance(value, bool)
                or value <= 0
                or source is None
            ):
                continue
            layers, _ = facts.model_value("num_hidden_layers")
            main = max((len(v) for v in facts.layers.values()), default=0)
            beyond = isinstance(layers, int) and main >= layers + value
            named = any(word in name for name in facts.stored for word in MTP_WORDS)
            if beyond or named or not facts.layers:
                continue
            yield self.hit(
                Subject(config_key=str(source), file=source.file),
                f"{source} is {value} and no MTP block is stored",
                fold=str(source),
                impact="none on the main model; speculative decoding has no weights",
                try_=f"set {source} to 0",
                who="config",
                data={"declared": value},
            )


class OutsideBlocks(Rule):
    """Quantized modules outside the blocks that are declared quantized."""

    code = "QW016"
    name = "outside-declared-blocks"
    kind = "SUBMODULE"
    severity = "disagreement"
    page = Page(
        checks="block_name_to_quantize and quanto_qmap.json against the quantized modules.",
        why="A reader that converts the listed blocks only builds plain layers for the rest.",
        evidence="The declaration and the stored names; proved.",
        proves_not="Which of the two was meant.",
        sample="autoround-outside-blocks",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Modules that no listed block, or no quanto map, holds."""
        yield from self._mapped(facts)
        for section in facts.sections:
            for key in (
                "block_name_to_quantize",
                "to_quant_block_names",
                "modules_in_block_to_quantize",
            ):
                value = section.get(key)
                blocks = value.split(",") if isinstance(value, str) else value
                if key == "modules_in_block_to_quantize" or not isinstance(blocks, list):
                    continue
                kept = [b.strip() for b in blocks if isinstance(b, str) and b.strip()]
                extra = section.get("extra_config")
                named = set(extra) if isinstance(extra, dict) else set()
                source = section.source(key)
                for module, states in facts.by_module.items():
                    if not kept or module in named or any(module.startswith(b) for b in kept):
                        continue
                    yield self.hit(
                        Subject(
                            tensor=states[0].tensor.name,
                            file=source.file,
                            config_key=str(source),
                        ),
                        f"quantized, but {source} lists only {', '.join(kept[:4])}",
                        fold=str(source),
                        many=f"{{count}} modules are quantized, but {source} lists only {', '.join(kept[:4])}",
                        impact="readers that convert the listed blocks build plain layers for the others",
                        try_=f"add the modules' block to {source}",
                        who="config",
                        data={"blocks": kept[:20]},
                    )

    def _mapped(self, facts: Facts) -> Iterator[Hit]:
        """quanto_qmap.json names every quantized module, and no other."""
        quanto = {m for m, states in facts.by_module.items() if states[0].tensor.family == "quanto"}
        for section in facts.sections:
            if section.file != "quanto_qmap.json" or not quanto or facts.is_extract:
                continue
            listed = {module for module, entry in section.data.items() if isinstance(entry, dict)}
            for module in sorted(quanto ^ listed):
                stored = module in quanto
                yield self.hit(
                    Subject(
                        tensor=f"{module}.weight",
                        file=section.file,
                        config_key=str(section.source(module)) if not stored else section.file,
                    ),
                    f"{module} is quantized and not in {section.file}"
                    if stored
                    else f"{section.file} names {module}, of which nothing quantized is stored",
                    fold=f"quanto|{stored}",
                    many="{count} modules are quantized and not in quanto_qmap.json"
                    if stored
                    else "quanto_qmap.json names {count} modules of which nothing quantized is stored",
                    impact="quanto builds another module than the file holds and fails to load it",
                    try_=f"write {section.file} again with quanto's save_pretrained",
                    who="config",
                    data={"module": module},
                )


RULES = (LayersMissing, ModulesMissing, ExpertsMissing, MtpMissing, OutsideBlocks)
