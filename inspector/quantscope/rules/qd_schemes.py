"""QD01x: declarations as a whole: none at all, another family's, unresolvable groups, KV cache, ignore lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from quantscope.families.declarations import Section
from quantscope.families.modules import pattern_matches
from quantscope.model import Json, Subject
from quantscope.report.words import count_words
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.exclusions import Exclusions
from quantscope.rules.facts import Facts

METHOD_WORDS: dict[str, tuple[str, ...]] = {
    "gptq": ("gptq", "marlin", "bitblas", "qqq", "awq"),
    "gptq_v2": ("gptq",),
    "awq": ("awq",),
    "qqq": ("qqq",),
    "compressed-tensors": ("compressed", "ct_", "nvfp4", "mxfp", "fp8", "int8", "marlin"),
    "bitsandbytes": ("bnb", "bitsandbytes"),
    "modelopt": ("modelopt", "nvfp4", "fp8", "mxfp", "int4", "int8"),
    "modelopt_fp4": ("modelopt", "nvfp4"),
    "fp8": ("fp8", "mxfp", "deepseek"),
    "fbgemm_fp8": ("fp8", "fbgemm"),
    "mxfp4": ("mxfp4", "gpt_oss", "gpt-oss"),
    "mxfp8": ("mxfp8", "fp8"),
    "hqq": ("hqq",),
    "quanto": ("quanto",),
    "torchao": ("torchao",),
    "aqlm": ("aqlm",),
    "vptq": ("vptq",),
    "exl2": ("exl2",),
    "exl3": ("exl3",),
    "bitnet": ("bitnet",),
    "quip": ("quip",),
    "spqr": ("spqr",),
    "higgs": ("higgs",),
    "eetq": ("eetq",),
    "quark": ("quark", "awq", "fp8", "mxfp", "nvfp4", "int"),
}
"""quant_method -> beginnings or parts of the family words that it can mean."""

KNOWN_METHODS = frozenset(METHOD_WORDS) | frozenset(
    {
        "auto-round",
        "auto_round",
        "intel/auto-round",
        "gguf",
        "fp_quant",
        "nvfp4",
        "metal",
        "fouroversix",
        "sinq",
        "gemma",
        "modelopt_mxfp8",
        "modelopt_mixed",
        "paroquant",
        "gpt_oss_mxfp4",
        "deepseek_v4_fp8",
        "inc",
        "moe_wna16",
        "humming",
        "w4afp8",
        "w8a8_int8",
        "w8a8_fp8",
        "petit_nvfp4",
        "svdquant",
        "modelslim",
        "affine",
        "experts_int8",
        "ptpc_fp8",
        "autoround",
    }
)
"""Methods that a published reader accepts (formats of transformers 5.24, vLLM, SGLang, GPTQModel)."""


class NoDeclaration(Rule):
    """Quantized planes, and no word about them anywhere."""

    code = "QD010"
    name = "no-declaration"
    kind = "CONFIG-CONFLICT"
    severity = "warning"
    page = Page(
        checks="Whether any config file, header or marker declares the quantization of planes that are there.",
        why="A reader without a declaration drops scales as unexpected keys or guesses the format.",
        evidence="Absence of every known declaration; the reading shown rests on names and shapes alone.",
        proves_not="That the inferred reading is wrong.",
        sample="gptq-no-declaration",
        reports=("ComfyUI#15520", "ComfyUI#15511"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors without any claim, where no section exists."""
        if facts.declares:
            return
        for state in facts.states:
            if not any(_speaks(str(claim.source)) for claim in state.claims):
                yield self.hit(
                    facts.of_tensor(state),
                    "quantized planes and no declaration: no config key, header metadata or marker",
                    fold=state.tensor.family,
                    many="{count} quantized tensors and no declaration: no config key, header metadata or marker",
                    impact="the reading shown is a guess from names and shapes",
                    try_="put the producer's quantization_config into config.json",
                    who="config",
                    data={"family": state.tensor.word},
                    would_settle="the producer's own config",
                )


def _speaks(source: str) -> bool:
    """Whether a source declares a scheme: a stored shape or dtype, or the model's own sizes, do not."""
    if source.endswith((":dtype", ":shape", "weight_shape#", "_size", "head_dim")):
        return False
    return "weight_shape" not in source


class MethodContradicts(Rule):
    """quant_method names a family whose planes are not there."""

    code = "QD011"
    name = "method-names-other-planes"
    kind = "CONFIG-CONFLICT"
    severity = "disagreement"
    page = Page(
        checks="quant_method against the families that the planes belong to.",
        why="A reader picks its decoder by this word.",
        evidence="Names, dtypes and shapes of the planes.",
        proves_not="That the family shown is the producer's: names can be borrowed.",
        sample="gptq-method-awq",
        reports=("AutoAWQ#217",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Sections whose method fits no tensor."""
        words = {state.tensor.word for state in facts.states} | set(facts.families)
        if not words:
            return
        for section in facts.sections:
            allowed = METHOD_WORDS.get(section.method)
            if allowed is None or any(part in word.lower() for part in allowed for word in words):
                continue
            source = section.source("quant_method" if section.has("quant_method") else "method")
            found = ", ".join(sorted({state.tensor.word for state in facts.states}))
            yield self.hit(
                Subject(config_key=str(source), file=source.file, field="packing"),
                f"{source} is {section.method}, the planes are those of {found}",
                fold=str(source),
                impact="a reader that trusts the word decodes other weights or refuses the file",
                try_=f"set {source} to the method that wrote the planes",
                who="config",
                data={"method": section.method, "families": sorted(words)},
            )


class MethodUnknown(Rule):
    """quant_method is a word that no published reader takes."""

    code = "QD012"
    name = "method-unknown"
    kind = "CONFIG-CONFLICT"
    severity = "warning"
    page = Page(
        checks="quant_method against the words that published readers accept.",
        why="A misspelt method stops most readers and is skipped by others.",
        evidence="A dated list of readers' words.",
        proves_not="That no reader knows the word: a newer or private one may.",
        sample="gptq-method-unknown",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Sections with an unknown word."""
        for section in facts.sections:
            if section.method and section.method not in KNOWN_METHODS:
                source = section.source("quant_method" if section.has("quant_method") else "method")
                yield self.hit(
                    Subject(config_key=str(source), file=source.file),
                    f"{source} is {section.method[:60]!r}, which no published reader accepts",
                    fold=str(source),
                    impact="readers refuse the file or load it as if it were not quantized",
                    try_=f"set {source} to the producer's method",
                    who="config",
                    data={"method": section.method[:200]},
                )


class KvConflict(Rule):
    """The KV cache format is declared in one file and absent or different in another."""

    code = "QD013"
    name = "kv-declared-once"
    kind = "CONFIG-CONFLICT"
    severity = "disagreement"
    page = Page(
        checks="kv_cache_quant_algo, kv_cache_scheme and their kin in every file that can hold them.",
        why="Tools that read one file plan memory and accuracy for another cache than those that read the other.",
        evidence="The files as they stand.",
        proves_not="Which cache the producer meant.",
        sample="modelopt-kv-conflict",
        reports=("aiconfigurator#1513",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """hf_quant_config.json against config.json."""
        said = [
            (section, key, section.get(key))
            for section in facts.sections
            for key in ("kv_cache_quant_algo", "kv_cache_scheme")
            if section.get(key)
        ]
        files = {section.file for section in facts.sections if section.file != "recipe.yaml"}
        if not said or len(files) < 2:
            return
        formats = {section.file: _kv_format(value) for section, _, value in said}
        silent = sorted(files - set(formats))
        section, key, value = said[0]
        if silent:
            yield self.hit(
                Subject(config_key=str(section.source(key)), file=section.file, field="kv_cache"),
                f"KV cache format: {_kv_format(value)} in {section.file}, absent in {silent[0]}",
                fold="silent",
                impact="none on weights; readers of the silent file keep the cache unquantized",
                try_=f"declare the KV cache in {silent[0]} too",
                who="config",
                data={"declared": value, "silent": silent},
            )
        elif len(set(formats.values())) > 1:
            yield self.hit(
                Subject(config_key=str(section.source(key)), file=section.file, field="kv_cache"),
                "KV cache format: "
                + ", ".join(f"{name} says {fmt}" for name, fmt in sorted(formats.items())),
                fold="differs",
                impact="none on weights; readers quantize the cache differently",
                try_="make the files agree",
                who="config",
                data={"formats": formats},
            )


def _kv_format(value: Json) -> str:
    if isinstance(value, dict):
        return f"{value.get('type', '?')}{value.get('num_bits', '?')}".replace("float8", "FP8")
    return str(value)


class IgnoreConflict(Rule):
    """Two ignore lists cover different modules."""

    code = "QD014"
    name = "ignore-lists-differ"
    kind = "CONFIG-CONFLICT"
    severity = "disagreement"
    page = Page(
        checks="Ignore lists of all files by the modules that they cover, not by their words.",
        why="A module that one list covers and the other does not is loaded two ways.",
        evidence="Every entry applied to the stored module names.",
        proves_not="A recipe holds patterns and a config the expanded names: different words alone are no fault.",
        sample="modelopt-ignore-conflict",
        reports=("imp#1970",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Coverage of each file's list over plain and quantized modules."""
        lists: dict[str, list[Any]] = defaultdict(list)
        for entry in facts.once(Exclusions).entries:
            lists[entry.source.file].append(entry)
        if len(lists) < 2:
            return
        modules = sorted({s.tensor.module for s in facts.states} | set(facts.plain_weights))
        covered = {
            file: {m for m in modules if any(e.covers(m) for e in entries)}
            for file, entries in lists.items()
        }
        first = "config.json" if "config.json" in covered else min(covered)
        for file in sorted(covered):
            differs = covered[file] ^ covered[first]
            if file == first or (not differs and len(lists[file]) == len(lists[first])):
                continue
            recipe = "recipe.yaml" in (file, first)
            if not differs and not recipe:
                continue
            if (
                recipe
                and not differs
                and {e.entry for e in lists[file]} == {e.entry for e in lists[first]}
            ):
                continue
            source = lists[file][0].source
            yield self.hit(
                Subject(config_key=str(source), file=file),
                f"ignore lists: {first} has {len(lists[first])} entries, {file} has {len(lists[file])}; "
                f"they cover {count_words(len(differs), 'module')} differently",
                fold=file,
                impact="none where the config covers all plain modules"
                if recipe
                else "the modules concerned are loaded as quantized by one reader and plain by the other",
                try_=f"write the list of {first} into {file}",
                who="config",
                severity="note" if recipe else None,
                data={"differs": sorted(differs)[:20], "count": len(differs)},
            )


class GroupTargets(Rule):
    """config_groups that cannot be resolved: one target in two groups, a target that matches nothing."""

    code = "QD015"
    name = "config-groups"
    kind = "CONFIG-GROUP"
    severity = "violation"
    page = Page(
        checks="Targets of config_groups against each other and against the modules; bits, type and strategy words.",
        why="Two groups that claim one target give a module two schemes; the reader takes whichever comes first.",
        evidence="The config and the stored names; proved.",
        proves_not="Class names such as Linear cannot be matched against names: they are taken to fit.",
        sample="ct-config-groups",
        reports=("auto-round#2187",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Every section with config_groups."""
        for section in facts.sections:
            groups = section.get("config_groups")
            if isinstance(groups, dict):
                kept = {str(k): v for k, v in groups.items() if isinstance(v, dict)}
                yield from self._shared(facts, section, kept)
                for name, group in kept.items():
                    yield from self._targets(facts, section, name, group)
                    yield from self._scheme(section, name, group)

    def _shared(
        self, facts: Facts, section: Section, groups: dict[str, dict[str, Json]]
    ) -> Iterator[Hit]:
        owner: dict[str, str] = {}
        for name, group in groups.items():
            for target in _targets(group):
                if target not in owner:
                    owner[target] = name
                    continue
                source = section.source("config_groups", name, "targets")
                one, two = groups[owner[target]].get("weights"), group.get("weights")
                widths: dict[str, int] = defaultdict(int)
                for state in facts.states:
                    if state.solved.chosen is not None:
                        widths[state.solved.chosen.element] += 1
                fits = ", ".join(
                    f"{count_words(n, 'module')} fit {w}" for w, n in sorted(widths.items())
                )
                yield self.hit(
                    Subject(config_key=str(source), file=section.file),
                    f"groups {owner[target]} and {name} both claim {target!r}"
                    + (f"; {fits}" if fits else ""),
                    fold=str(source),
                    impact="readers give the modules the scheme of the first group: those of the other are misread"
                    if one != two
                    else "none while both groups are equal",
                    try_=f"give {source} the names of its own modules",
                    who="config",
                    severity=None if one != two else "warning",
                    data={"target": target, "groups": [owner[target], name]},
                )

    def _targets(
        self, facts: Facts, section: Section, name: str, group: dict[str, Json]
    ) -> Iterator[Hit]:
        source = section.source("config_groups", name, "targets")
        modules = facts.modules
        for target in _targets(group):
            is_class = target.isidentifier() and target[0].isupper()
            if is_class or any(_target_fits(target, module) for module in modules):
                continue
            yield self.hit(
                Subject(config_key=str(source), file=section.file),
                f"target {target!r} of {name} matches none of {count_words(len(modules), 'module')}",
                fold=f"{source}|{target}",
                impact="the group applies to nothing; its modules get another scheme or none",
                try_=f"write names of stored modules into {source}",
                who="config",
                severity="warning",
                data={"target": target, "modules": len(modules)},
            )

    def _scheme(self, section: Section, name: str, group: dict[str, Json]) -> Iterator[Hit]:
        weights = group.get("weights")
        if weights is None and section.method == "compressed-tensors":
            wrong = f"group {name} has no weights scheme"
            severity = "warning"
            source = section.source("config_groups", name)
        elif isinstance(weights, dict):
            fault = _scheme_fault(weights)
            if fault is None:
                return
            wrong, severity = f"group {name}: {fault[1]}", "violation"
            source = section.source("config_groups", name, "weights", fault[0])
        else:
            return
        yield self.hit(
            Subject(config_key=str(source), file=section.file),
            wrong,
            fold=str(source),
            impact="readers refuse the model or fall back to another scheme",
            try_=f"set {source} to what the planes are",
            who="config",
            severity=severity,  # type: ignore[arg-type]
            data={"weights": weights},
        )


STRATEGIES = frozenset(
    {"tensor", "channel", "group", "block", "token", "tensor_group", "attn_head"}
)


def _scheme_fault(weights: dict[str, Json]) -> tuple[str, str] | None:
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in (*range(1, 9), 16):
        return "num_bits", f"num_bits is {bits!r}"
    if kind not in ("int", "float", None):
        return "type", f"type is {kind!r}"
    if kind == "float" and bits not in (4, 6, 8, 16):
        return "num_bits", f"no floating format has {bits} bits"
    strategy = weights.get("strategy")
    if strategy is not None and strategy not in STRATEGIES:
        return "strategy", f"strategy is {strategy!r}"
    size, blocks = weights.get("group_size"), weights.get("block_structure")
    if strategy in ("group", "tensor_group") and not size:
        return "group_size", f"strategy {strategy} without a group_size"
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < -1):
        return "group_size", f"group_size is {size!r}"
    if strategy == "block" and not blocks:
        return "block_structure", "strategy block without a block_structure"
    if isinstance(blocks, list) and not _is_block(blocks):
        return "block_structure", f"block_structure is {blocks!r}"
    return None


def _is_block(blocks: list[Json]) -> bool:
    return len(blocks) == 2 and all(
        isinstance(extent, int) and not isinstance(extent, bool) and extent > 0 for extent in blocks
    )


def _targets(group: dict[str, Json]) -> list[str]:
    targets = group.get("targets")
    return [t for t in targets if isinstance(t, str) and t] if isinstance(targets, list) else []


def _target_fits(target: str, module: str) -> bool:
    return pattern_matches(target, module) or (
        not target.startswith("re:") and f".{target}." in f".{module}."
    )


RULES = (
    NoDeclaration,
    MethodContradicts,
    MethodUnknown,
    KvConflict,
    IgnoreConflict,
    GroupTargets,
)
