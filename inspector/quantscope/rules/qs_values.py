"""QS00x: values of scale planes that no weight can have: NaN, zero, subnormal, negative, outliers, all equal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from statistics import median

import numpy as np

from quantscope.containers.records import StoredTensor
from quantscope.infer.plane_values import PlaneStats
from quantscope.model import Plane, Severity, Subject
from quantscope.rules import mates, names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import WEIGHT_DTYPES, Facts, data_of
from quantscope.session.inspection import TensorState

OUTLIER = 1e6
"""A scale this many times its plane's median magnitude is an outlier."""
FLOAT_OUTLIER = 1e4
"""The same for separate planes of plain floats against their upper quartile: F16 cannot reach a million times."""
SIBLING_OUTLIER = 1e4
"""A plane whose median is this far from the median of its like in other layers is one."""
MIN_EQUAL = 64
"""All-equal planes of fewer values say nothing."""

SIDE_WORDS = ("scale", "scaling_factor", "smooth_factor", "absmax", "SCB")

SIGNED_PRODUCERS = frozenset({"auto-round"})
"""Producers that turn each group's extreme to an end code and so write negative scales."""
SIGNED_FAMILIES = ("mlx", "gguf", "metal", "quanto", "hqq")

ALL = "Every value of all separate scale planes, block scales by stretches in large files; proved for what was read."


def planes_of(facts: Facts) -> Iterator[tuple[TensorState, Plane, PlaneStats]]:
    """Each examined scale-like plane once, with the first tensor that uses it."""
    seen: set[tuple[str, str, int]] = set()
    for state in facts.states:
        by_key = {(p.stored_name, p.suffix): p for p in state.tensor.planes}
        for stats in state.exam.planes:
            plane = by_key.get((stats.stored_name, stats.suffix))
            if plane is None:
                continue
            key = (plane.stored_name, plane.suffix, plane.byte_offset)
            if key not in seen:
                seen.add(key)
                yield state, plane, stats


def sidecars(facts: Facts) -> Iterator[StoredTensor]:
    """Scale-like stored tensors that are no plane of a logical tensor: activation, KV and smoothing scales."""
    for name, stored in facts.stored.items():
        if name in facts.by_stored or stored.dtype not in WEIGHT_DTYPES | {"F8_E4M3", "F8_E8M0"}:
            continue
        last = name.rpartition(".")[2]
        if any(word in last for word in SIDE_WORDS) and not last.startswith("logit"):
            yield stored


def of_weight(stored: StoredTensor) -> bool:
    """Whether a sidecar by its name scales weights, so that zeros can be padding of an unclaimed format."""
    return mates.SIDE_KINDS.get(names.last(stored.name)) in ("SCALE-MISSING", "BNB")


def place(plane: Plane, index: int) -> str:
    """A flat index as the index of the plane's array."""
    shape = plane.shape
    if not shape or math.prod(shape) <= index:
        return f"value {index}"
    return str([int(i) for i in np.unravel_index(index, shape)])


def at_value(
    facts: Facts, state: TensorState, plane: Plane, stats: PlaneStats, kind: str
) -> Subject:
    """A subject whose byte range is the first value of a kind."""
    base = facts.of_tensor(state, plane, "scale")
    start = stats.first_byte.get(kind)
    if start is None:
        return base
    return Subject(
        tensor=base.tensor,
        stored=base.stored,
        file=base.file,
        byte_range=(start, start + stats.item_bytes),
        field="scale",
    )


class NotFinite(Rule):
    """A scale, minimum or floating zero is NaN or infinite."""

    code = "QS001"
    name = "scale-not-finite"
    kind = "SCALE-VALUE"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="NaN and infinity in every scale-like plane, in the number format under which it is read "
        "(E4M3 0x7F and 0xFF, E8M0 0xFF, FP16 inside GGUF blocks).",
        why="One NaN scale makes every weight of its group NaN, and from there the whole output.",
        evidence=ALL,
        proves_not="Finite scales can still be wrong.",
        sample="gptq-scale-nan",
        reports=(
            "compressed-tensors#854",
            "llama.cpp#7311",
            "llama.cpp#8661",
            "ik_llama.cpp#649",
            "sglang#25519",
        ),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Planes and sidecars with values that are not finite."""
        for state, plane, stats in planes_of(facts):
            if not stats.nan + stats.inf:
                continue
            kind = "nan" if stats.nan else "inf"
            word = "NaN" if stats.nan else "infinite"
            count = stats.nan + stats.inf
            part = state.tensor.part
            expert = (
                f" of expert {part.index}" if part is not None and part.kind == "expert" else ""
            )
            yield self.hit(
                at_value(facts, state, plane, stats, kind),
                f"{count} of {stats.examined} values of {plane.suffix}{expert} are {word}, "
                f"the first at {place(plane, stats.first[kind])}",
                fold=f"{plane.role}|{word}",
                many=f"{{bad}} values of {{count}} {plane.suffix} planes are {word}",
                impact="every weight of the groups concerned is NaN or infinite",
                try_="quantize the tensor again with a calibration that covers it",
                data={
                    "bad": count,
                    "nan": stats.nan,
                    "inf": stats.inf,
                    "examined": stats.examined,
                    "first_index": stats.first[kind],
                },
            )
        for stored in sidecars(facts):
            small = facts.small(stored.name)
            bad = [v for v in small.values if not math.isfinite(v)] if small is not None else []
            if bad and small is not None:
                yield self.hit(
                    facts.of_stored(stored),
                    f"{len(bad)} of {len(small.values)} values of {names.last(stored.name)} are {data_of(bad[0])}",
                    fold=f"side|{names.last(stored.name)}",
                    many=f"{{bad}} values of {{count}} {names.last(stored.name)} tensors are not finite",
                    impact="every activation or cached value that the scale touches is NaN or infinite",
                    try_="calibrate again",
                    data={"bad": len(bad), "examined": len(small.values)},
                )


class ZeroScale(Rule):
    """A scale of zero over codes that are not zero, or a zero divisor."""

    code = "QS002"
    name = "scale-zero"
    kind = "SCALE-VALUE"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="Zero scales of groups whose codes are not all zero, and zero global scales that divide.",
        why="The codes are lost under a zero factor; a zero divisor becomes infinity and wins any maximum.",
        evidence="All scale planes; codes of the sampled groups.",
        proves_not="A zero scale over a group of zeros is sound, and so is padding.",
        sample="gptq-scale-zero",
        reports=("TensorRT-LLM#16447",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Groups with live codes under a zero scale; zero divisors."""
        for state, plane, stats in planes_of(facts):
            level = {"scale": 0, "scale2": 1}.get(plane.role)
            reading = state.reading or state.solved.chosen
            if reading is None or level is None or level >= len(reading.scale):
                continue
            divides = reading.scale[level].direction == "divide"
            if stats.zero and (divides or (level == 1 and stats.total == 1)):
                yield self._hit(facts, state, plane, stats, "violation", divides)
            elif (
                stats.zero
                and level == 0
                and not facts.is_gguf
                and state.exam.codes is not None
                and state.exam.codes.zero_scale_live_codes
            ):
                yield self._hit(facts, state, plane, stats, "warning", divides)
        for stored in sidecars(facts):
            small = facts.small(stored.name)
            if small is None or of_weight(stored) or not any(v == 0 for v in small.values):
                continue
            last = names.last(stored.name)
            divides = "global" in last
            yield self.hit(
                facts.of_stored(stored),
                f"{last} is 0"
                + (": stored as a divisor, its reciprocal is infinite" if divides else ""),
                fold=f"side|{last}",
                many=f"{last} is 0 in {{count}} modules",
                impact="activations become infinite or zero; a maximum over fused modules or experts becomes infinite",
                try_="calibrate the module again",
                severity="violation" if divides else "warning",
                kind="SCALE-RECIP" if divides else None,
                data={"zeros": sum(v == 0 for v in small.values)},
            )

    def _hit(
        self,
        facts: Facts,
        state: TensorState,
        plane: Plane,
        stats: PlaneStats,
        severity: Severity,
        divides: bool,
    ) -> Hit:
        text = f"{stats.zero} of {stats.examined} values of {plane.suffix} are zero"
        text += ": a divisor of 0" if divides else " over codes that are not"
        return self.hit(
            at_value(facts, state, plane, stats, "zero"),
            text,
            fold=f"{plane.role}|{divides}",
            many=f"{{zeros}} values of {{count}} {plane.suffix} planes are zero over codes that are not",
            impact="the weights concerned are infinite"
            if divides
            else "the weights concerned are all zero",
            try_="quantize the tensor again",
            severity=severity,
            data={"zeros": stats.zero, "examined": stats.examined},
        )


class SubnormalScale(Rule):
    """A scale so small that readers flush it or overflow its reciprocal."""

    code = "QS003"
    name = "scale-subnormal"
    kind = "SCALE-VALUE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Subnormal values of F32, BF16 and separate F16 scales, and E8M0 byte 0 over codes that are not zero.",
        why="Kernels flush subnormals to zero, and the reciprocal of one overflows to infinity.",
        evidence=ALL,
        proves_not="The value is lawful: a reader that keeps subnormals decodes it right.",
        sample="mxfp4-exponent-zero",
        reports=("vllm#42601", "triton#11624"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Planes and sidecars with subnormal values."""
        for state, plane, stats in planes_of(facts):
            if not stats.subnormal or plane.role not in ("scale", "scale2"):
                continue
            if stats.dtype.startswith("F8_E4M3") or stats.dtype == "F8_E5M2":
                continue
            exponent = stats.dtype == "F8_E8M0"
            if exponent and not _live(state):
                continue
            if stats.dtype == "F16" and plane.spans[0].count > 1:
                continue
            what = "E8M0 byte 0 (2^-127)" if exponent else f"subnormal in {stats.dtype}"
            yield self.hit(
                at_value(facts, state, plane, stats, "subnormal"),
                f"{stats.subnormal} of {stats.examined} values of {plane.suffix} are {what}",
                fold=f"{plane.role}|{stats.dtype}",
                many=f"{{subnormal}} values of {{count}} {plane.suffix} planes are {what}",
                impact="decoders that flush subnormals read the groups as zero; a reciprocal overflows",
                try_="clamp scales to the smallest normal value",
                severity="note" if stats.dtype == "F16" else None,
                kind="SCALE-DTYPE" if exponent else None,
                data={"subnormal": stats.subnormal, "smallest": stats.smallest},
            )
        for stored in sidecars(facts):
            small = facts.small(stored.name)
            limit = {"F32": 2.0**-126, "BF16": 2.0**-126, "F16": 2.0**-14}.get(stored.dtype)
            if small is None or limit is None:
                continue
            bad = [v for v in small.values if 0 < abs(v) < limit]
            if bad:
                yield self.hit(
                    facts.of_stored(stored),
                    f"{names.last(stored.name)} {bad[0]:.3g} is subnormal: its reciprocal overflows {stored.dtype}",
                    fold=f"side|{names.last(stored.name)}",
                    impact="the reciprocal is infinite and every value it touches becomes NaN",
                    try_="calibrate the module again, or clamp the scale",
                    data={"smallest": min(bad, key=abs)},
                )


def _live(state: TensorState) -> bool:
    codes = state.exam.codes
    return codes is None or codes.zero_scale_live_codes > 0


class NegativeScale(Rule):
    """Scales below zero."""

    code = "QS004"
    name = "scale-negative"
    kind = "SCALE-SIGN"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="The sign of every scale of integer and floating families.",
        why="Kernels that hold scales as unsigned numbers, or take their logarithm, read them wrong by orders of magnitude.",
        evidence=ALL,
        proves_not="A fault: MLX, GGUF and AutoRound's symmetric exports write negative scales on purpose.",
        sample="gptq-scale-negative",
        reports=("vllm#48905",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Scale planes with negative values, a note where the producer writes them."""
        signed = bool(facts.producers & SIGNED_PRODUCERS)
        for state, plane, stats in planes_of(facts):
            if not stats.negative or plane.role not in ("scale", "scale2"):
                continue
            if stats.dtype not in WEIGHT_DTYPES | {"F8_E4M3", "F8_E5M2"}:
                continue
            reading = state.reading or state.solved.chosen
            own = bool(reading and reading.scale and any(level.signed for level in reading.scale))
            usual = own or signed or state.tensor.family.startswith(SIGNED_FAMILIES)
            if facts.is_gguf:
                continue
            share = stats.negative / max(1, stats.examined)
            yield self.hit(
                at_value(facts, state, plane, stats, "negative"),
                f"{stats.negative} of {stats.examined} scales ({share:.0%}) are negative",
                fold=f"{plane.role}|{usual}",
                many="{negative} of {examined} scales in {count} tensors are negative"
                + (
                    ": usual for this producer"
                    if usual
                    else ": readers that assume positive scales break"
                ),
                impact="none for readers that keep the sign; others read these groups with a wrong sign or size",
                try_="use a reader that keeps the sign of scales",
                who="reader",
                severity="note" if usual else None,
                data={"negative": stats.negative, "examined": stats.examined},
            )
        for stored in sidecars(facts):
            small = facts.small(stored.name)
            if small is not None and not of_weight(stored) and any(v < 0 for v in small.values):
                yield self.hit(
                    facts.of_stored(stored),
                    f"{names.last(stored.name)} is negative: {min(small.values):.4g}",
                    fold=f"side|{names.last(stored.name)}",
                    impact="activations change their sign or the kernel refuses the scale",
                    try_="calibrate the module again",
                    data={"smallest": min(small.values)},
                )


class OutlierScale(Rule):
    """A scale far beyond all others of its plane, or a plane far beyond its like."""

    code = "QS005"
    name = "scale-outlier"
    kind = "SCALE-VALUE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="The largest scale of a plane against the plane's median, and single global scales and plane medians "
        "against those of the same module in other layers.",
        why="Bit damage in a scale leaves a valid file whose one group drowns all others.",
        evidence=ALL
        + " Limits: a million times the plane's median, ten thousand times the other layers'.",
        proves_not="That a moderate scale is right.",
        sample="fp8-scale-outlier",
        reports=("vllm#53537",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Within planes, then across layers."""
        across: dict[tuple[str, str, str], list[tuple[TensorState, Plane, PlaneStats]]] = (
            defaultdict(list)
        )
        for state, plane, stats in planes_of(facts):
            if plane.role not in ("scale", "scale2", "minimum") or not stats.median:
                continue
            key = (names.role_of(state.tensor.module), plane.suffix, stats.dtype)
            across[key].append((state, plane, stats))
            if stats.largest is not None and self._stands_out(plane, stats):
                yield self._hit(facts, state, plane, stats, stats.median, "the plane's median")
        for group in across.values():
            if len(group) < 2:
                continue
            usual = median([s.median for _, _, s in group if s.median])
            for state, plane, stats in group:
                own = stats.median or usual
                if own > SIBLING_OUTLIER * usual or own * SIBLING_OUTLIER < usual:
                    yield self._hit(
                        facts, state, plane, stats, usual, "the same plane of other layers"
                    )

    @staticmethod
    def _stands_out(plane: Plane, stats: PlaneStats) -> bool:
        largest, middle = stats.largest or 0.0, stats.median or 0.0
        if largest > OUTLIER * middle:
            return True
        plain = stats.dtype in ("F16", "BF16", "F32") and plane.spans[0].count == 1
        return (
            plain and stats.examined >= 8 and largest > FLOAT_OUTLIER * (stats.quartile or largest)
        )

    def _hit(
        self,
        facts: Facts,
        state: TensorState,
        plane: Plane,
        stats: PlaneStats,
        usual: float,
        beside: str,
    ) -> Hit:
        return self.hit(
            at_value(facts, state, plane, stats, "largest"),
            f"{plane.suffix} has an outlier {stats.largest:.3g} at {place(plane, stats.first['largest'])}, "
            f"{beside} is {usual:.3g}",
            fold=f"{plane.role}|{beside}",
            many=f"{{count}} {plane.suffix} planes have an outlier, the largest {{hi_largest}}",
            impact="the weights of its groups drown all others, or vanish",
            try_="compare the file's SHA-256 with the publisher's; quantize the tensor again",
            confidence="strong",
            data={"largest": stats.largest, "usual": usual},
            would_settle="the publisher's file hash",
        )


class ConstantScale(Rule):
    """Every scale of a plane has the same value."""

    code = "QS006"
    name = "scale-all-equal"
    kind = "SCALE-VALUE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Whether a plane of many scales holds one value only.",
        why="Scales that were allocated and never computed are all one, and quantized weights under them are noise.",
        evidence=ALL,
        proves_not="Ternary formats and constant matrices have equal scales on purpose.",
        sample="gptq-scale-all-equal",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Planes of many values that are all equal and not zero."""
        for state, plane, stats in planes_of(facts):
            if stats.constant is None or stats.examined < MIN_EQUAL or plane.role != "scale":
                continue
            word = state.tensor.word.lower() + (state.contract.value("element") or "").lower()
            if (
                "tq1_0" in word
                or "tq2_0" in word
                or "ternary" in word
                or "bitnet" in word
                or "q1_0" in word
            ):
                continue
            if stats.dtype == "F8_E8M0" and stats.constant != 1.0 and stats.examined < 1024:
                continue
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                f"all {stats.examined} values of {plane.suffix} are {stats.constant:.6g}",
                fold=f"{stats.constant}",
                many=f"all values of {{count}} {plane.suffix} planes are {stats.constant:.6g}",
                impact="if the scales were never computed every weight has a wrong size",
                try_="quantize the tensor again",
                confidence="strong",
                data={"value": stats.constant, "examined": stats.examined},
                would_settle="the unquantized weights of one group",
            )


RULES = (NotFinite, ZeroScale, SubnormalScale, NegativeScale, OutlierScale, ConstantScale)
