"""QW00x: ignore lists against the bytes."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.families.declarations import Section
from quantscope.families.modules import compiled, pattern_matches
from quantscope.model import Subject
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.exclusions import Exclusion, Exclusions, beginning_with
from quantscope.rules.facts import Facts

WHOLE_MODEL_METHODS = frozenset(
    {"compressed-tensors", "modelopt", "modelopt_fp4", "fp8", "fbgemm_fp8", "bitsandbytes", "quark"}
)
"""Methods that quantize every linear layer that no list leaves out."""


class IgnoredYetQuantized(Rule):
    """A module that an ignore list names is quantized."""

    code = "QW001"
    name = "ignored-yet-quantized"
    kind = "IGNORE"
    severity = "disagreement"
    page = Page(
        checks="Every entry of every ignore list, by its own matching rule, against the quantized modules.",
        why="An engine that believes the list builds a plain layer and has no place for the planes.",
        evidence="The list and the stored names; proved.",
        proves_not="Which of list and bytes was meant.",
        sample="ct-ignored-yet-quantized",
        reports=("vllm#48508", "vllm#54304"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Quantized modules that an entry covers."""
        first = facts.once(Exclusions).first_decisive
        for state in facts.states if first else ():
            entry = first.get(state.tensor.module)
            if entry is None:
                continue
            yield self.hit(
                Subject(
                    tensor=state.tensor.name,
                    stored=state.tensor.planes[0].stored_name if state.tensor.planes else None,
                    file=facts.of_tensor(state).file,
                    config_key=str(entry.source),
                ),
                f"quantized though {entry.source} lists {entry.entry!r}",
                fold=f"{entry.source}|{entry.entry}",
                many=f"{{count}} modules are quantized though {entry.source} lists {entry.entry!r}",
                impact="engines that follow the list build a plain layer: the weight stays at its initial value",
                try_=f"remove {entry.entry!r} from {entry.source}",
                who="config",
                data={"entry": entry.entry},
            )


class PlainYetTargeted(Rule):
    """A plain module that the declaration says is quantized."""

    code = "QW002"
    name = "plain-yet-targeted"
    kind = "IGNORE"
    severity = "disagreement"
    page = Page(
        checks="Plain linear layers whose like in other layers is quantized, or that the method quantizes by default, "
        "and that no ignore list covers; GPTQ's lm_head key without a quantized head.",
        why="An engine builds a quantized layer, finds no scale, and loads nothing or NaN.",
        evidence="Dtypes, names and every ignore list; proved.",
        proves_not="That the module should have been quantized: the list may have been lost on save.",
        sample="ct-plain-yet-targeted",
        reports=("AutoAWQ#589", "vllm#40252", "vllm#52501"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """A head that is declared quantized, then plain matrices without an exclusion."""
        if facts.is_gguf or not facts.states or not facts.sections:
            return
        yield from self._head(facts)
        excluded = facts.once(Exclusions).first
        stacked = _stacked_experts(facts)
        stacks = {
            p.stack for s in facts.states if (p := names.layer_of(s.tensor.module)) is not None
        }
        for module, stored in facts.plain_weights.items():
            if module in excluded or len(stored.shape) != 2:
                continue
            if names.is_embedding(module) or module in facts.by_module:
                continue
            if stacked and names.expert_of(module) is not None:
                continue
            mates = facts.roles.get(names.role_of(module), ())
            section = _targeting(facts, module, stacks)
            if not mates and section is None:
                continue
            if names.last(module) in names.ROUTER_NAMES and not mates:
                continue
            key = section.pointer if section is not None else facts.sections[0].pointer
            file = section.file if section is not None else facts.sections[0].file
            yield self.hit(
                Subject(
                    tensor=stored.name,
                    stored=stored.name,
                    file=facts.file_name(stored.file_id),
                    byte_range=(stored.byte_offset, stored.byte_offset + stored.nbytes),
                    config_key=f"{file}#{key}",
                ),
                f"plain {stored.dtype} weight"
                + (
                    f" though {len(mates)} of the modules of its place are quantized"
                    if mates
                    else ""
                )
                + f"; {file} quantizes it and no ignore entry covers it",
                fold=f"{file}|{names.last(module)}|{bool(mates)}",
                many=f"{{count}} plain weights that {file} quantizes and no ignore entry covers",
                impact="engines build a quantized layer without scales: the layer stays at random or gives NaN",
                try_=f"add {module!r} to the ignore list of {file}",
                who="config",
                data={"dtype": stored.dtype, "quantized_mates": len(mates)},
            )

    def _head(self, facts: Facts) -> Iterator[Hit]:
        """GPTQ's `lm_head: true` without a quantized head."""
        if facts.is_extract or any(names.is_head(module) for module in facts.by_module):
            return
        said = [section for section in facts.sections if isinstance(section.get("lm_head"), bool)]
        for section in said:
            if not all(other.get("lm_head") for other in said):
                continue
            source = section.source("lm_head")
            yield self.hit(
                Subject(tensor="lm_head.weight", file=source.file, config_key=str(source)),
                f"{source} is true and no quantized head is stored",
                fold=str(source),
                impact="engines build a quantized head without scales: the head stays at random",
                try_=f"set {source} to false",
                who="config",
                data={"declared": True},
            )


def _stacked_experts(facts: Facts) -> bool:
    """Whether the method leaves all experts alone because the model class holds them as one parameter a layer.

    bitsandbytes converts linear modules only; transformers 5 stacks experts and stores them one by one again.
    """
    return all(section.method == "bitsandbytes" for section in facts.sections) and not any(
        names.expert_of(module) for module in facts.by_module
    )


def _targeting(facts: Facts, module: str, stacks: set[str]) -> Section | None:
    """The section whose method quantizes a linear module of this name by default."""
    place = names.layer_of(module)
    if place is None or place.stack not in stacks or names.last(module) not in names.LINEAR_NAMES:
        return None
    for section in facts.sections:
        if section.method not in WHOLE_MODEL_METHODS:
            continue
        groups = section.get("config_groups")
        if isinstance(groups, dict) and groups:
            fits = any(
                isinstance(target, str) and pattern_matches(target, module)
                for group in groups.values()
                if isinstance(group, dict)
                for target in (group.get("targets") or ())
            )
            if not fits:
                continue
        if section.get("quant_algo") == "MIXED_PRECISION" or section.get("quantized_layers"):
            continue
        return section
    return None


class EntryMatchesNothing(Rule):
    """An ignore entry that names no stored module."""

    code = "QW003"
    name = "ignore-matches-nothing"
    kind = "IGNORE"
    severity = "warning"
    page = Page(
        checks="Every entry of every ignore list that engines read, against all stored names.",
        why="What an entry was meant to protect is quantized or has another name: intent and result drift apart.",
        evidence="The list and the stored names; proved.",
        proves_not="Harm: an entry for a head that is tied to the embedding names a module that is not stored, and "
        "AutoRound's patterns name modules as they are in memory: both are notes.",
        sample="ct-ignore-matches-nothing",
        reports=("compressed-tensors#866", "vllm#40252"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Entries that cover nothing."""
        if facts.incomplete or not facts.states:
            return
        for entry in facts.once(Exclusions).idle:
            if entry.entry.startswith("re:") and compiled(entry.entry[3:]) is None:
                continue
            head = _names_head(entry) and not any(names.is_head(m) for m in facts.modules)
            tied = head and facts.tied is not False
            if head and not tied:
                continue
            renamed = entry.dialect == "regex" and "/extra_config/" in entry.source.pointer
            text = f"ignore entry {entry.entry!r} matches 0 of {len(facts.modules)} modules"
            yield self.hit(
                Subject(config_key=str(entry.source), file=entry.source.file),
                text + (": the head is tied to the embedding" if tied else ""),
                fold=f"{entry.source}|{tied or renamed}",
                many=f"{{count}} ignore entries of {entry.source} match none of {len(facts.modules)} modules",
                impact="none if the module is not stored on purpose; else what it protects is quantized or lost",
                try_=f"remove {entry.entry!r} from {entry.source}, or write the stored name",
                who="config",
                severity="note" if tied or renamed else None,
                data={"entry": entry.entry, "modules": len(facts.modules)},
            )


def _names_head(entry: Exclusion) -> bool:
    bare = entry.entry.removeprefix("re:").strip("^$.*")
    return names.last(bare) in ("lm_head", "embed_out") or bare == "lm_head"


class EntryIsPrefix(Rule):
    """An ignore entry is the beginning of a quantized module's name."""

    code = "QW004"
    name = "ignore-is-name-prefix"
    kind = "IGNORE"
    severity = "warning"
    page = Page(
        checks="Entries that begin the name of a quantized module without ending at a dot.",
        why="Readers that match by prefix or by substring leave the longer name unquantized too.",
        evidence="The list and the stored names; proved.",
        proves_not="That your reader matches so.",
        sample="fp8-ignore-is-prefix",
        reports=("transformers#47990",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Plain entries with a dot that are proper prefixes."""
        ordered = sorted(facts.by_module)
        for entry in facts.once(Exclusions).decisive:
            text = entry.entry
            if entry.is_regex or "." not in text or text.endswith("."):
                continue
            for module in beginning_with(ordered, text):
                if len(module) > len(text) and module[len(text)] != ".":
                    yield self.hit(
                        Subject(
                            tensor=facts.by_module[module][0].tensor.name,
                            file=entry.source.file,
                            config_key=str(entry.source),
                        ),
                        f"exclusion {text!r} is a name prefix of quantized {names.last(module)!r}",
                        fold=str(entry.source),
                        many=f"entries of {entry.source} are name prefixes of {{count}} quantized modules",
                        impact="readers that match prefixes build a plain layer for the quantized module",
                        try_=f"write {text + '.'!r} or a pattern with an end mark",
                        who="config",
                        data={"entry": text, "module": module},
                    )


class PatternEntries(Rule):
    """Ignore entries that must be matched as patterns."""

    code = "QW005"
    name = "ignore-patterns"
    kind = "IGNORE"
    severity = "note"
    page = Page(
        checks="How many modules depend on entries that are regular expressions or globs.",
        why="A reader that compares them as plain text quantizes or plans the modules concerned.",
        evidence="The list and the stored names; proved.",
        proves_not="That anything is wrong: it is worth knowing.",
        sample="ct-ignore-patterns",
        reports=("vllm#48508",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Pattern entries that cover at least one plain module."""
        for entry in facts.once(Exclusions).decisive:
            if entry.dialect != "compressed-tensors" or not entry.entry.startswith("re:"):
                continue
            count = sum(entry.covers(module) for module in facts.plain_weights)
            if count:
                yield self.hit(
                    Subject(config_key=str(entry.source), file=entry.source.file),
                    f"entry {entry.entry!r} needs regex matching: {count} modules depend on it",
                    fold=str(entry.source),
                    many=f"entries of {entry.source} need regex matching: {{modules}} modules depend on them",
                    impact="none for readers that match patterns",
                    try_="",
                    who="reader",
                    data={"modules": count, "entry": entry.entry},
                )


RULES = (
    IgnoredYetQuantized,
    PlainYetTargeted,
    EntryMatchesNothing,
    EntryIsPrefix,
    PatternEntries,
)
