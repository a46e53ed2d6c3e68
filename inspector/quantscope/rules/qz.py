"""QZ: zero points: which convention, whether it is declared and borne out, wraps, presence against symmetry."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.infer.solver import claim_fits
from quantscope.model import Claim, Severity, Subject
from quantscope.model.claims import STRENGTH_RANK
from quantscope.report.words import zero_words
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.rules.field_rule import contradicting
from quantscope.session.inspection import TensorState

MARKERS: dict[str, str] = {
    "auto-gptq": "minus_one",
    "auto-round": "minus_one",
    "gptqmodel": "minus_one",
}
"""Producers whose files without a format key hold stored zeros of one convention (formats of their writers)."""

ZERO_STEP = "every weight one step (1 x scale) too high or too low"
GPTQ_FORMAT = {"as_is": "gptq_v2", "minus_one": "gptq"}


def open_convention(state: TensorState) -> bool:
    """Whether a tensor stores integer zero points that could be read in more than one way."""
    reading = state.solved.chosen
    if reading is None or reading.zero != "integer" or reading.zero_convention == "not_applicable":
        return False
    return len({r.zero_convention for r in state.solved.candidates}) > 1


def firm_convention(state: TensorState) -> str | None:
    """The convention that the bytes speak for, `strong` or better."""
    inferred = state.contract["zero_convention"].inferred
    if inferred is None or STRENGTH_RANK[inferred.strength] < STRENGTH_RANK["strong"]:
        return None
    return str(inferred.value)


class ConventionUndeclared(Rule):
    """Nothing says whether stored zero points mean themselves or one less."""

    code = "QZ001"
    name = "zero-convention-undeclared"
    kind = "ZP-CONV"
    severity = "warning"
    gate = None
    page = Page(
        checks="Whether checkpoint_format, format, a packing format or another key fixes the zero-point convention.",
        why="The stored words of both conventions look alike; readers guess differently and shift every weight by one step.",
        evidence="All declarations. A producer's marker lowers the finding to a note where the codes bear it out: "
        "constant zeros of a symmetric scheme, or the mean of code minus zero over groups.",
        proves_not="Strong evidence is a statement about the weights' mean, not a declaration of the producer.",
        sample="gptq-convention-undeclared",
        reports=("OmniQuant#57", "AutoAWQ#101"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with an open and undeclared convention."""
        marker = next((MARKERS[p] for p in sorted(facts.producers) if p in MARKERS), None)
        for state in facts.states:
            if not open_convention(state) or state.contract["zero_convention"].declared:
                continue
            found = firm_convention(state)
            known = marker is not None and found == marker
            key = _format_key(facts)
            text = "zero convention not recorded"
            if found is not None:
                text += f"; the bytes fit {zero_words(found)}"
            else:
                text += "; the bytes decide nothing, custom says " + zero_words(_custom(state))
            if known:
                text += ", as the producer's marker says"
            elif marker is not None and found is not None:
                text += f", the producer's marker says {zero_words(marker)}"
            yield self.hit(
                facts.of_tensor(state, state.tensor.plane("zero"), "zero_convention"),
                text,
                fold=f"{found}|{known}",
                impact=f"under the other convention {ZERO_STEP}",
                try_=f'set {key} to "{GPTQ_FORMAT.get(found or _custom(state), "gptq")}"',
                who="config",
                severity="note" if known else None,
                confidence=_strength(state),
                data=_numbers(state) | {"inferred": found, "marker": marker},
                would_settle="the producer's format key, or logits under both conventions",
            )


def _custom(state: TensorState) -> str:
    return state.solved.chosen.zero_convention if state.solved.chosen is not None else "minus_one"


def _format_key(facts: Facts) -> str:
    for section in facts.sections:
        return str(section.source("checkpoint_format"))
    return "config.json#/quantization_config/checkpoint_format"


def _strength(state: TensorState):  # type: ignore[no-untyped-def]
    inferred = state.contract["zero_convention"].inferred
    return inferred.strength if inferred is not None else "weak"


def _numbers(state: TensorState) -> dict[str, object]:
    codes = state.exam.codes
    if codes is None or not codes.zero.stored_seen:
        return {}
    counted = codes.zero
    numbers: dict[str, object] = {
        "stored_min": counted.stored_min,
        "stored_max": counted.stored_max,
        "groups": counted.groups,
    }
    if counted.groups:
        numbers |= {
            "mean_as_is": round(counted.mean("as_is"), 4),
            "mean_minus_one": round(counted.mean("minus_one"), 4),
        }
    return numbers


class ConventionContradicted(Rule):
    """The declared zero-point convention is not the one that the bytes fit."""

    code = "QZ002"
    name = "zero-convention-contradicted"
    kind = "ZP-CONV"
    severity = "disagreement"
    page = Page(
        checks="The declared convention against constant zero words and the mean of code minus zero.",
        why="A file saved in one form and labelled as the other decodes with every weight one step off.",
        evidence="Effect size over groups and modules: near 0 under the right reading, off by exactly 1 under the other; "
        "strong on one tensor, decisive on eight or more that agree.",
        proves_not="A layer whose weights have a large mean looks the same on its own.",
        sample="smol-w4-liar",
        reports=("AutoGPTQ#640", "AutoAWQ#101", "GPTQModel#2350"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors whose bytes contradict a claim."""
        for state in facts.states:
            field = state.contract["zero_convention"]
            wrong = contradicting(field)
            if not wrong or field.inferred is None:
                continue
            claim, found = wrong[0], str(field.inferred.value)
            rivals = [c for c in field.declared if claim_fits(c.value, found)]
            yield self.hit(
                Subject(
                    tensor=state.tensor.name,
                    stored=_zero_name(state),
                    file=claim.source.file,
                    field="zero_convention",
                    config_key=str(claim.source),
                ),
                f"{claim.source} means {zero_words(claim.value)}, "
                f"the codes fit {zero_words(found)}{_mean_words(state)}",
                fold=f"{claim.value}|{found}|{claim.source}",
                many=f"{claim.source} means {zero_words(claim.value)}, "
                f"the codes of {{count}} tensors fit {zero_words(found)}: "
                "mean(code - zero) is 1 off under the declared convention",
                impact=_shift(str(claim.value), found),
                try_=_remedy(claim, found, bool(rivals)),
                who="config",
                confidence=field.inferred.strength,
                data=_numbers(state) | {"declared": claim.value, "inferred": found},
                would_settle="logits under both conventions (`quantscope probe`)",
            )


def _zero_name(state: TensorState) -> str | None:
    plane = state.tensor.plane("zero")
    return plane.stored_name if plane is not None else None


def _mean_words(state: TensorState) -> str:
    codes = state.exam.codes
    if codes is None or not codes.zero.groups:
        return ""
    counted = codes.zero
    if counted.stored_min == counted.stored_max:
        return f": every stored zero is {counted.stored_min}"
    return (
        f": mean(code - zero) is {counted.mean('as_is'):+.2f} as stored, "
        f"{counted.mean('minus_one'):+.2f} with stored + 1"
    )


def _shift(declared: str, found: str) -> str:
    if (declared, found) == ("minus_one", "as_is"):
        return "read as declared every weight is one step (1 x scale) low"
    if (declared, found) == ("as_is", "minus_one"):
        return "read as declared every weight is one step (1 x scale) high"
    return ZERO_STEP


def _remedy(claim: Claim, found: str, rivals: bool) -> str:
    key = claim.source.pointer.rpartition("/")[2]
    if key in ("checkpoint_format", "format"):
        return f'set {claim.source} to "{GPTQ_FORMAT.get(found, found)}"'
    if rivals:
        return f"make {claim.source} agree with the other source"
    return "convert the zero plane to the declared convention"


class ZerosWrap(Rule):
    """Stored zero points at the end of the code range, which readers wrap differently."""

    code = "QZ003"
    name = "zeros-wrap"
    kind = "ZP-WRAP"
    severity = "warning"
    page = Page(
        checks="All-ones zero points under stored + 1, and zero codes under as-stored, over the whole zero plane.",
        why="Some readers mask stored + 1 to the code width, some do not, some add over whole words and carry into the "
        "neighbour; one that subtracts one turns 0 into all ones.",
        evidence="Every field of the zero plane, counted; proved.",
        proves_not="Under as-stored a zero point of 0 is sound: it is a note there.",
        sample="gptq-zeros-wrap",
        reports=("AutoGPTQ#640", "AutoGPTQ#484", "GPTQModel#2350"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Zero planes with fields at an end."""
        for state in facts.states:
            zeros, plane = state.exam.zeros, state.tensor.plane("zero")
            reading = state.reading or state.solved.chosen
            if zeros is None or plane is None or reading is None:
                continue
            if plane.dtype not in ("I32", "U32") or not state.solved.solutions:
                continue
            declared = state.contract["zero_convention"].declared_values
            convention = str(declared[0]) if declared else reading.zero_convention
            if convention.startswith("minus_one") and zeros.all_ones:
                yield self._all_ones(facts, state, zeros.all_ones, zeros.fields, zeros.bit_width)
            elif convention == "as_is" and zeros.zeros and not _padded(state, zeros.fields):
                yield self._zero(facts, state, zeros.zeros, zeros.fields)

    def _all_ones(
        self, facts: Facts, state: TensorState, count: int, fields: int, width: int
    ) -> Hit:
        top = (1 << width) - 1
        return self.hit(
            facts.of_tensor(state, state.tensor.plane("zero"), "zero_convention"),
            f"zero code {top} in {count} of {fields} fields under stored + 1: it decodes to {top + 1} or wraps to 0",
            fold="all-ones",
            many=f"zero code {top} in {{all_ones}} of {{fields}} fields of {{count}} tensors under stored + 1: "
            f"it decodes to {top + 1} or wraps to 0",
            impact=f"masked and unmasked readers differ by {top + 1} steps in these groups; "
            "readers that add over words also shift the neighbour by one",
            try_="save in the as-stored form (checkpoint_format gptq_v2)",
            who="producer",
            data={"all_ones": count, "fields": fields, "bit_width": width},
            would_settle="the unquantized weights of one such group",
        )

    def _zero(self, facts: Facts, state: TensorState, count: int, fields: int) -> Hit:
        return self.hit(
            facts.of_tensor(state, state.tensor.plane("zero"), "zero_convention"),
            f"zero code 0 in {count} of {fields} fields, as stored: sound; a reader that subtracts one wraps it",
            fold="zero",
            many="zero code 0 in {zeros} of {fields} fields of {count} tensors, as stored: sound; a reader that "
            "subtracts one wraps it",
            impact="none under as-stored",
            try_="",
            who="reader",
            severity="note",
            data={"zeros": count, "fields": fields},
        )


def _padded(state: TensorState, fields: int) -> bool:
    """Whether the zero plane has more fields than groups."""
    reading = state.solved.chosen
    if reading is None:
        return True
    groups = -(-reading.shape[-1] // reading.group_size) * reading.shape[-2]
    return fields > groups


class ZeroPlaneAbsent(Rule):
    """An asymmetric scheme without zero points."""

    code = "QZ004"
    name = "zero-plane-absent"
    kind = "ZP-PRESENCE"
    severity = "violation"
    page = Page(
        checks="Whether a scheme that is declared asymmetric stores a zero plane.",
        why="A reader falls back to the midpoint and shifts every group by its zero point.",
        evidence="The declaration and the stored names; proved.",
        proves_not="That zero points differed from the midpoint.",
        sample="ct-zero-plane-absent",
        reports=("compressed-tensors#225",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors declared asymmetric whose reading has a fixed zero or none."""
        for state in facts.states:
            reading = state.solved.chosen
            claims = [c for c in state.contract["symmetric"].declared if c.value is False]
            if reading is None or not claims or reading.zero not in ("fixed", "none"):
                continue
            if state.tensor.plane("zero") is not None or state.tensor.plane("minimum") is not None:
                continue
            claim = claims[0]
            yield self.hit(
                Subject(
                    tensor=state.tensor.name,
                    file=claim.source.file,
                    field="zero",
                    config_key=str(claim.source),
                ),
                f"{claim.source} says asymmetric and no zero-point plane is stored",
                fold=str(claim.source),
                many=f"{claim.source} says asymmetric and {{count}} tensors store no zero-point plane",
                impact="every group is shifted by its zero point",
                try_=f"add the zero planes, or set {claim.source} to symmetric if they were all at the midpoint",
                data={"declared": claim.written},
            )


class SymmetricNotConstant(Rule):
    """A symmetric scheme with zero points that differ."""

    code = "QZ005"
    name = "symmetric-zeros-differ"
    kind = "ZP-PRESENCE"
    severity = "disagreement"
    page = Page(
        checks="Whether every stored zero point of a scheme that is declared symmetric is the same.",
        why="Engines that see sym = true ignore the zero plane and use the midpoint.",
        evidence="Every field of the zero plane, counted; proved.",
        proves_not="Which of flag and plane is right.",
        sample="gptq-sym-zeros-differ",
        reports=("vllm-xpu-kernels#57",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors declared symmetric with more than one stored zero."""
        for state in facts.states:
            claims = [c for c in state.contract["symmetric"].declared if c.value is True]
            zeros = state.exam.zeros
            if not claims or zeros is None or not state.solved.solutions:
                continue
            counts = list(zeros.histogram)
            if _padded(state, zeros.fields):
                counts[0] = 0
            odd = sum(counts) - max(counts)
            if not odd:
                continue
            claim = claims[0]
            yield self.hit(
                Subject(
                    tensor=state.tensor.name,
                    stored=zeros.stored_name,
                    file=facts.of_tensor(state, state.tensor.plane("zero")).file,
                    byte_range=facts.of_tensor(state, state.tensor.plane("zero")).byte_range,
                    field="symmetric",
                    config_key=str(claim.source),
                ),
                f"{claim.source} says symmetric but the zero plane is not constant: "
                f"{odd} of {sum(counts)} fields differ from {counts.index(max(counts))}",
                fold=str(claim.source),
                many=f"{claim.source} says symmetric but {{odd}} of {{fields}} zero points in {{count}} tensors differ",
                impact="readers that trust the flag shift the groups concerned",
                try_=f"set {claim.source} to false, or write the constant zero plane",
                who="config",
                data={"odd": odd, "fields": sum(counts)},
            )


class ZeroPlaneUnpacked(Rule):
    """Zero points stored one an element where the family packs them."""

    code = "QZ006"
    name = "zero-plane-unpacked"
    kind = "ZP-PRESENCE"
    severity = "disagreement"
    page = Page(
        checks="Whether a zero plane has the shape of the scales where the family packs it into words.",
        why="A reader that unpacks words refuses the plane or reads eight times too few zero points.",
        evidence="Shape and dtype of the zero plane; proved.",
        proves_not="That the values are wrong.",
        sample="gptq-zeros-unpacked",
        reports=("vllm#17862",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Broken zero equations whose plane has the shape of the scales."""
        for state in facts.states:
            if not is_unpacked(state):
                continue
            plane = state.tensor.plane("zero")
            equation = next(
                eq
                for eq in state.solved.equations
                if plane is not None and eq.plane in (plane.suffix, plane.stored_name)
            )
            yield self.hit(
                facts.of_tensor(state, plane, "zero"),
                f"zero plane has one element a cell (shape of the scales): {plane.dtype if plane else ''} "
                f"{list(equation.actual_shape or ())}; packed it would be {equation.symbolic} "
                f"{list(equation.expected_shape or ())}",
                fold=f"{equation.symbolic}|{plane.dtype if plane else ''}",
                impact="readers of the packed form refuse the plane or misread it",
                try_="pack the zero points as the family does",
                data={"shape": list(equation.actual_shape or ())},
            )


def is_unpacked(state: TensorState) -> bool:
    """Whether the zero plane breaks its equation by having the shape of the scale plane."""
    zero, scale = state.tensor.plane("zero"), state.tensor.plane("scale")
    if zero is None or scale is None or state.solved.solutions or zero.shape != scale.shape:
        return False
    broken = [eq.plane for eq in state.solved.equations if eq.holds is False]
    return broken in ([zero.suffix], [zero.stored_name])


class NoConventionFits(Rule):
    """Neither convention centres the codes."""

    code = "QZ007"
    name = "no-zero-convention-fits"
    kind = "ZP-CONV"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Whether most modules have a mean of code minus zero far from both conventions.",
        why="Then zeros belong to other groups, are packed in another order, or follow a third convention.",
        evidence="Module means more than 0.35 steps from both readings, in more than half of the modules.",
        proves_not="Weights with a large mean of their own look the same.",
        sample="gptq-zeros-shuffled",
        reports=("pie#491",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Set evidence with most modules far from both."""
        for step in facts.inspection.set_evidence:
            modules = step.numbers.get("modules", 0)
            far = step.numbers.get("modules_far_from_both", 0)
            if step.field != "zero_convention" or not isinstance(far, int) or modules < 2:
                continue
            if far * 2 <= modules:
                continue
            first = next((s for s in facts.states if open_or_known(s)), None)
            yield self.hit(
                facts.of_tensor(first, first.tensor.plane("zero"), "zero_convention")
                if first is not None
                else Subject(field="zero_convention"),
                f"{far} of {modules} modules are far from both zero conventions",
                fold="far",
                impact="zero points seem to belong to other groups or channels",
                try_="check the packing order and axis of the zero plane",
                who="producer",
                severity=_far_severity(far, modules),
                confidence="weak",
                data=dict(step.numbers),
                would_settle="the unquantized weights of one module",
            )


def _far_severity(far: int, modules: int) -> Severity:
    return "warning" if far * 2 > modules else "note"


def open_or_known(state: TensorState) -> bool:
    """Whether a tensor stores integer zero points."""
    return state.solved.chosen is not None and state.solved.chosen.zero == "integer"


RULES = (
    ConventionUndeclared,
    ConventionContradicted,
    ZerosWrap,
    ZeroPlaneAbsent,
    SymmetricNotConstant,
    ZeroPlaneUnpacked,
    NoConventionFits,
)
