"""QD00x: what files declare against what the planes say, field by field."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quantscope.infer.solver import claim_fits, compatible
from quantscope.model import Claim, Json, Severity, Source, Subject
from quantscope.report.words import zero_words
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.rules.field_rule import FieldRule, contradicting, word
from quantscope.rules.whole_numbers import no_numbers
from quantscope.session.inspection import TensorState

PROVED = "All sources that speak of the field, and the plane size equations solved over every candidate reading."


class SourcesContradict(Rule):
    """Two declarations of one field say different things."""

    code = "QD001"
    name = "sources-contradict"
    kind = "CONFIG-CONFLICT"
    severity = "disagreement"
    page = Page(
        checks="Every pair of declarations that speak of one field of one tensor, with the place of each.",
        why="Readers that take different files decode different weights from the same bytes.",
        evidence="The config files and headers as they stand; where the bytes decide, the finding says for whom.",
        proves_not="Which of the two was meant where the bytes fit both.",
        sample="gptq-sources-contradict",
        reports=("aiconfigurator#1513", "sglang#18372"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """One hit per tensor and field with rival claims."""
        for state in facts.states:
            for field in state.contract.fields.values():
                pair = _rivals(field.declared)
                if pair is not None:
                    yield self._hit(facts, state, field.field, *pair)

    def _hit(
        self, facts: Facts, state: TensorState, field: str, first: Claim, second: Claim
    ) -> Hit:
        wrong = contradicting(state.contract[field])
        odd = second if second in wrong or first not in wrong else first
        other = first if odd is second else second
        inferred = state.contract[field].inferred
        decided = bool(wrong) and other not in wrong
        said = zero_words if field == "zero_convention" else word
        text = (
            f"{field}: {odd.source} says {said(odd.value)}, {other.source} says {said(other.value)}"
        )
        if decided and inferred is not None:
            text += f"; the bytes fit {said(inferred.value)}"
        return self.hit(
            Subject(
                tensor=state.tensor.name,
                file=odd.source.file,
                field=field,
                config_key=str(odd.source),
            ),
            text,
            fold=f"{field}|{odd.source}|{odd.value!r}|{other.source}|{other.value!r}",
            kind="BNB" if "quant_state" in odd.source.pointer else None,
            impact="readers that take one source decode other weights than readers of the other",
            try_=_agreeing(odd, other),
            who="config",
            data={
                "values": {str(odd.source): odd.value, str(other.source): other.value},
                "decided": decided,
            },
            would_settle="nothing in the files" if not decided else "the bytes decide",
        )


def _rivals(claims: tuple[Claim, ...]) -> tuple[Claim, Claim] | None:
    for number, first in enumerate(claims):
        for second in claims[number + 1 :]:
            if first.source != second.source and not compatible(first.value, second.value):
                return first, second
    return None


def _agreeing(odd: Claim, other: Claim) -> str:
    """What to write where two claims differ: the other's own words, if both stand under the same key."""
    if odd.source.pointer.rpartition("/")[2] == other.source.pointer.rpartition("/")[2]:
        return f"set {odd.source} to {word(other.written)}"
    return f"make {odd.source} agree with {other.source}"


class BitsContradict(FieldRule):
    """The declared width or number format is not that of the codes."""

    code = "QD002"
    name = "declared-bits"
    kind = "BITS"
    severity = "disagreement"
    field = "element"
    noun = "bits"
    impact = "codes are cut at the wrong places: every weight differs"
    page = Page(
        checks="The element that each source gives a module against the one that solves the sizes of its planes; whether "
        "bits is a whole number.",
        why="Fields of another width are cut out of the same words.",
        evidence=PROVED,
        proves_not="Where shapes fix only bits times group, the finding names every pair that fits.",
        sample="gptq-declared-bits",
        reports=("auto-round#2187", "mlx-vlm#1079", "Swiftlet#30"),
    )

    def kind_of(self, state: TensorState, declared: Json, inferred: Json) -> str:
        """The variants of one 8-bit float have a kind of their own."""
        both = str(declared).startswith(("e4m3", "e5m2")) and str(inferred).startswith(
            ("e4m3", "e5m2")
        )
        return "FP8-VARIANT" if both else "BITS"

    def severity_of(self, state: TensorState, claim: Claim, inferred: Json) -> Severity | None:
        """At most a warning between variants of one float."""
        return "warning" if self.kind_of(state, claim.value, inferred) == "FP8-VARIANT" else None

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Contradictions of sizes, codes beyond the declared width, and a plain `bits` key nobody claimed."""
        for state in facts.states:
            hit = self.of_state(facts, state) or self._range(facts, state)
            hit = hit or self._bits_key(facts, state)
            if hit is not None:
                yield hit
        yield from no_numbers(self, facts, ("bits", "w_bit", "wbits"))

    def _range(self, facts: Facts, state: TensorState) -> Hit | None:
        codes, field = state.exam.codes, state.contract["element"]
        reading = state.reading or state.solved.chosen
        if codes is None or not codes.out_of_range or reading is None or not field.declared:
            return None
        claim = field.declared[0]
        return self._of_key(
            facts,
            state,
            claim.source,
            f"bits: {claim.source} says {word(claim.value)}, {codes.out_of_range} of {codes.elements} codes "
            "are beyond that range",
            {"declared": claim.value, "out_of_range": codes.out_of_range},
        )

    def _bits_key(self, facts: Facts, state: TensorState) -> Hit | None:
        reading = state.reading or state.solved.chosen
        if reading is None or not reading.bit_width or not state.solved.solutions:
            return None
        for section in facts.sections:
            bits = section.get("bits")
            spoken = any(
                c.field == "element"
                and c.source.file == section.file
                and c.source.pointer.endswith("bits")
                for c in state.claims
            )
            own = any(section.get(key) for key in ("dynamic", "extra_config", "quantized_layers"))
            if not isinstance(bits, int) or bits == reading.bit_width or spoken or own:
                continue
            if isinstance(section.get(state.tensor.module), dict):
                continue
            source = section.source("bits")
            return self._of_key(
                facts,
                state,
                source,
                f"bits: {source} says {bits}, the planes fit {reading.element}",
                {"declared": bits, "inferred": reading.element},
            )
        return None

    def _of_key(
        self, facts: Facts, state: TensorState, source: Source, text: str, data: dict[str, Json]
    ) -> Hit:
        return self.hit(
            Subject(
                tensor=state.tensor.name,
                stored=state.tensor.planes[0].stored_name,
                file=facts.file_name(state.tensor.planes[0].file_id),
                field="element",
                config_key=str(source),
            ),
            text,
            fold=f"{source}|{data.get('declared')}",
            impact=self.impact,
            try_=f"set {source} to the width that the planes fit",
            who="config",
            data=data,
        )

    def remedy(self, key: str, value: Json, claim: Claim) -> str:
        """The number of bits that fits."""
        text = str(value)
        return f"set {claim.source} to {text[1:]}" if text[1:].isdigit() else f"declare {text}"


class GroupContradicts(FieldRule):
    """The declared group or block size is not that of the scale plane."""

    code = "QD003"
    name = "declared-group"
    kind = "GROUP"
    severity = "violation"
    field = "group"
    noun = "group size"
    impact = "scales apply to other channels"
    page = Page(
        checks="The declared group or block size against the rows and columns of the scale plane.",
        why="With another group size a reader pairs weights with the scales of their neighbours, or refuses the file.",
        evidence=PROVED,
        proves_not="That the scales themselves are right.",
        sample="gptq-declared-group",
        reports=("TensorRT-LLM#648", "torchchat#37"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Contradictions, then sizes that are no numbers."""
        yield from super().check(facts)
        yield from no_numbers(self, facts, ("group_size", "q_group_size"))

    def of_state(self, facts: Facts, state: TensorState) -> Hit | None:
        """A violation too where the planes fit no usual grouping and a mate keeps the declared one."""
        hit = super().of_state(facts, state)
        if hit is None or not _odd_grouping(hit.finding.data["inferred"]):
            return hit
        declared = hit.finding.data["declared"]
        mates = facts.roles.get(names.role_of(state.tensor.module), ())
        if not any(_keeps_group(mate, declared) for mate in mates if mate is not state):
            return hit
        finding = msgspec.structs.replace(hit.finding, severity="violation", who="producer")
        return msgspec.structs.replace(hit, finding=finding)

    def severity_of(self, state: TensorState, claim: Claim, inferred: Json) -> Severity:
        """Violation for a size that no scale plane of this width can have, else disagreement."""
        size = claim.value.get("size") if isinstance(claim.value, dict) else None
        n_in = state.solved.chosen.shape[-1] if state.solved.chosen is not None else 0
        odd = isinstance(size, int) and size > 0 and n_in % size != 0 and size & (size - 1) != 0
        return "violation" if odd else "disagreement"

    def remedy(self, key: str, value: Json, claim: Claim) -> str:
        """The size that fits."""
        size = value.get("size") if isinstance(value, dict) else None
        return f"set {claim.source} to {-1 if size is None else size}"


def _odd_grouping(value: Json) -> bool:
    """Whether a group is of no size that a quantizer uses: it only comes of a plane that lost or turned rows."""
    size = value.get("size") if isinstance(value, dict) else None
    if isinstance(size, list | tuple):
        return size[0] != size[1] and 1 not in size
    return isinstance(size, int) and size & (size - 1) != 0


def _keeps_group(state: TensorState, declared: Json) -> bool:
    """Whether a tensor's own planes have the declared grouping."""
    chosen = state.solved.chosen
    fits = chosen is not None and bool(state.solved.solutions)
    return fits and chosen is not None and claim_fits(declared, chosen.contract_values()["group"])


class PackingContradicts(FieldRule):
    """The declared packed axis or order is not that of the planes."""

    code = "QD004"
    name = "declared-packing"
    kind = "PACK-AXIS"
    severity = "disagreement"
    field = "packing"
    noun = "packing"
    impact = "codes come out in another order: weights land on other channels"
    page = Page(
        checks="The layout that a method, version or format key means against the shapes of the planes.",
        why="Several layouts share one quant_method; only a version key tells them apart.",
        evidence=PROVED,
        proves_not="An order that leaves all shapes alike cannot be told from shapes.",
        sample="awq-declared-packing",
        reports=("AutoAWQ#217",),
    )

    def kind_of(self, state: TensorState, declared: Json, inferred: Json) -> str | None:
        """Axis, width or order, by what differs; loose packing has its own rule."""
        if not isinstance(declared, dict) or not isinstance(inferred, dict):
            return "PACK-AXIS"
        if declared.get("word", inferred["word"]) != inferred["word"]:
            return "CONFIG-CONFLICT"
        if declared.get("axis", inferred["axis"]) != inferred["axis"]:
            return "PACK-AXIS"
        loose = {declared.get("order"), inferred["order"]} & {"padded", "bitstream"}
        if loose and "padded" in (declared.get("order"), inferred["order"]):
            return None
        return "PACK-BITS" if loose else "PACK-ORDER"

    def severity_of(self, state: TensorState, claim: Claim, inferred: Json) -> Severity | None:
        """An order alone, which only statistics can tell, is at most a warning."""
        return "warning" if self.kind_of(state, claim.value, inferred) == "PACK-ORDER" else None


class ShapeContradicts(FieldRule):
    """The declared logical shape is not that of the planes."""

    code = "QD005"
    name = "declared-shape"
    kind = "ORIENT"
    severity = "violation"
    field = "shape"
    noun = "shape"
    impact = "rows and columns of the weight are mixed up, or the weight is cut"
    page = Page(
        checks="A stored shape (weight_shape, quant_state, an original shape key) against the planes.",
        why="A transposed shape gives a matrix of the right size with every weight in the wrong place.",
        evidence=PROVED,
        proves_not="For a square weight shapes cannot show a transposition.",
        sample="ct-declared-shape",
        reports=("bitsandbytes#1862", "vllm#50610"),
    )


class ScaleContradicts(FieldRule):
    """The declared scale format or direction is not that of the scale plane."""

    code = "QD006"
    name = "declared-scale"
    kind = "SCALE-DTYPE"
    severity = "disagreement"
    field = "scale"
    noun = "scale"
    impact = "every weight differs by the ratio of the two readings of its scale"
    page = Page(
        checks="Declared scale formats and directions (scale_dtype, scale_fmt, semantics keys) against the plane.",
        why="Exponent bytes read as numbers, or a divisor read as a factor, are wrong by orders of magnitude.",
        evidence="The stored dtype, the values of the plane and every source that speaks of them.",
        proves_not="That a plausible scale is the right one.",
        sample="mxfp4-declared-scale",
        reports=("sglang#29954", "vllm#51946"),
    )

    def kind_of(self, state: TensorState, declared: Json, inferred: Json) -> str | None:
        """Formats only: directions have their own rule."""
        return None if _formats(declared, inferred) else "SCALE-DTYPE"


def _formats(declared: Json, inferred: Json) -> bool:
    """Whether two scale values differ in directions only."""
    if not isinstance(declared, dict) or not isinstance(inferred, dict):
        return False
    plain = {k: v for k, v in declared.items() if k not in ("direction", "second_level")}
    second = declared.get("second_level")
    if isinstance(second, dict) and isinstance(inferred.get("second_level"), dict):
        plain["second_level"] = {k: v for k, v in second.items() if k != "direction"}
    return claim_fits(plain, inferred)


class PlacementContradicts(FieldRule):
    """The declared placement of scales or codes is not that of the planes."""

    code = "QD007"
    name = "declared-placement"
    kind = "SCALE-LAYOUT"
    severity = "disagreement"
    field = "placement"
    noun = "placement"
    impact = "scales apply to other blocks"
    page = Page(
        checks="Whether planes are linear or in kernel tiles, against what is declared.",
        why="A tiled plane read in linear order pairs every block with another block's scale.",
        evidence=PROVED,
        proves_not="Where padded and plain shapes coincide, shapes decide nothing.",
        sample="gptq-declared-marlin",
        reports=("ao#4477", "Model-Optimizer#2038"),
    )


class ZeroContradicts(FieldRule):
    """Zero points are declared of another sort than stored."""

    code = "QD008"
    name = "declared-zero"
    kind = "ZP-PRESENCE"
    severity = "disagreement"
    field = "zero"
    noun = "zero point"
    impact = "weights are shifted by their zero points"
    page = Page(
        checks="Whether zero points are declared (asymmetric, symmetric, floating) as they are stored.",
        why="A reader that expects a zero plane fails or guesses; one that expects none ignores it.",
        evidence="Presence, shape and dtype of the zero plane; proved.",
        proves_not="That stored zero points are right.",
        sample="gptq-declared-marlin",
        reports=("compressed-tensors#225", "vllm#17862"),
    )

    def kind_of(self, state: TensorState, declared: Json, inferred: Json) -> str | None:
        """Cases that the rules on symmetry speak of are left to them."""
        symmetric = {c.value for c in state.contract["symmetric"].declared}
        if inferred in ("fixed", "none") and False in symmetric:
            return None
        if inferred == "integer" and True in symmetric and state.exam.zeros is not None:
            return None
        return "ZP-PRESENCE"

    def severity_of(self, state: TensorState, claim: Claim, inferred: Json) -> Severity:
        """Violation where zero points are declared and none are stored, unless they would be the midpoint."""
        wants = claim.value in ("integer", "float_zero", "additive_min")
        if True in {c.value for c in state.contract["symmetric"].declared}:
            return "disagreement"
        return "violation" if wants and inferred in ("fixed", "none") else "disagreement"


class KeysContradict(Rule):
    """The same key has different values in two quantization sections."""

    code = "QD009"
    name = "keys-contradict"
    kind = "CONFIG-CONFLICT"
    severity = "disagreement"
    page = Page(
        checks="Method, format, symmetry, act-order, bits and group keys of all quantization sections, side by side.",
        why="Tools that read different files treat the model as two different ones.",
        evidence="The files as they stand.",
        proves_not="Which file is right where no plane speaks of the key.",
        sample="gptq-keys-contradict",
        reports=("imp#1970",),
    )

    KEYS = (
        ("quant_method", "method"),
        ("checkpoint_format",),
        ("format",),
        ("sym", "symmetric"),
        ("zero_point",),
        ("desc_act",),
        ("bits", "w_bit"),
        ("group_size", "q_group_size"),
        ("version",),
        ("lm_head",),
        ("mode",),
        ("quant_algo",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """One hit per key on which two sections differ and no contract field already does."""
        taken = {
            str(claim.source)
            for state in facts.states
            for field in state.contract.fields.values()
            for claim in (_rivals(field.declared) or ())
        }
        for spellings in self.KEYS:
            found = [
                (section.source(name), section.get(name))
                for section in facts.sections
                for name in spellings
                if section.get(name) is not None
            ]
            for source, value in found[1:]:
                first_source, first = found[0]
                if _plain(value) == _plain(first) or {str(source), str(first_source)} & taken:
                    continue
                yield self.hit(
                    Subject(config_key=str(source), file=source.file),
                    f"{source} is {word(value)}, {first_source} is {word(first)}",
                    fold=f"{source}",
                    impact="readers of one file treat the weights otherwise than readers of the other",
                    try_=f"set {source!s} to {word(first)}",
                    who="config",
                    data={"values": {str(source): value, str(first_source): first}},
                )


def _plain(value: Json) -> Json:
    return value.lower() if isinstance(value, str) else value


RULES = (
    SourcesContradict,
    BitsContradict,
    GroupContradicts,
    PackingContradicts,
    ShapeContradicts,
    ScaleContradicts,
    PlacementContradicts,
    ZeroContradicts,
    KeysContradict,
)
