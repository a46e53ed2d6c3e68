"""QS01x: form of scales: number format, direction, shape, name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantscope.infer.plane_values import PlaneStats
from quantscope.model import Plane, Reading, Subject
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.rules.qs_values import planes_of
from quantscope.session.inspection import TensorState

FP8_LARGEST = 448.0
WAYS = {"multiply": "multiplies", "divide": "divides"}
PLAUSIBLE_AMAX = (1e-6, 100.0)
"""Largest magnitudes of trained weight tensors lie between; a wrong direction misses by orders of magnitude."""


def is_fp8(state: TensorState) -> bool:
    """Whether the codes are 8-bit floats."""
    codes = state.tensor.plane("codes")
    return codes is not None and codes.dtype.startswith("F8_")


WEIGHT_DTYPE_SCALES = frozenset({"quanto", "torchao"})
"""Families whose scales keep the dtype that the weight had."""


class ScaleFormat(Rule):
    """The number format of a scale plane is ambiguous or not the family's."""

    code = "QS010"
    name = "scale-format"
    kind = "SCALE-DTYPE"
    severity = "disagreement"
    needs = "sample"
    page = Page(
        checks="U8 planes that look like E8M0 exponents, mantissas under a declared power-of-two format, BF16 or F16 "
        "scales where a family has F32, scales that are quantized themselves.",
        why="An exponent byte read as a number is wrong by up to 2^127; a BF16 scale loses 0.2 percent.",
        evidence="Stored dtype, values of the plane, and what is declared.",
        proves_not="A BF16 scale is what some producers always write: it is a note there.",
        sample="fp8-scale-bf16",
        reports=(
            "omlx#2159",
            "sglang#29954",
            "ComfyUI#11665",
            "vllm-xpu-kernels#110",
            "hqq#109",
            "vllm#47818",
        ),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Each scale plane once."""
        for state in facts.states:
            plane = state.tensor.plane("scale")
            if plane is None:
                continue
            stats = next((s for s in state.exam.planes if s.stored_name == plane.stored_name), None)
            yield from self._exponents(facts, state, plane)
            yield from self._mantissas(facts, state, plane, stats)
            yield from self._narrow(facts, state, plane)

    def _exponents(self, facts: Facts, state: TensorState, plane: Plane) -> Iterator[Hit]:
        if plane.dtype != "U8" or not is_fp8(state) or facts.reader is None:
            return
        known = ("compressed-tensors", "mxfp8", "mxfp4", "quark", "modelopt", "auto-round")
        if facts.marked or any(s.method in known for s in facts.sections):
            return
        stored = facts.stored.get(plane.stored_name)
        values = facts.array(stored, 1 << 16) if stored is not None else None
        if values is None or not values.size:
            return
        middle = float(np.median(values))
        if 90 <= middle <= 150:
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                f"U8 scale beside an FP8 weight: bytes look like E8M0 exponents (median {middle:.0f})",
                fold="exponents",
                impact="a reader that multiplies the bytes as numbers is wrong by orders of magnitude",
                try_="store the plane as F8_E8M0, or declare the format",
                severity="warning",
                data={"median": middle},
            )

    def _mantissas(
        self, facts: Facts, state: TensorState, plane: Plane, stats: PlaneStats | None
    ) -> Iterator[Hit]:
        if stats is None or plane.dtype not in ("F32", "BF16", "F16") or not stats.mantissas:
            return
        for section in facts.sections:
            if str(section.get("scale_fmt")).lower() in ("ue8m0", "e8m0"):
                source = section.source("scale_fmt")
                yield self.hit(
                    Subject(
                        tensor=state.tensor.name,
                        stored=plane.stored_name,
                        file=facts.file_name(plane.file_id),
                        field="scale",
                        config_key=str(source),
                    ),
                    f"{source} says {section.get('scale_fmt')} but {stats.mantissas} of {stats.examined} "
                    "scales are no power of two",
                    fold=str(source),
                    many=f"{source} says {section.get('scale_fmt')} but {{mantissas}} scales of {{count}} tensors "
                    "are no power of two",
                    impact="readers that round the scales to powers of two change the weights by up to 41 percent",
                    try_=f"remove {source}, or requantize with power-of-two scales",
                    who="config",
                    data={"mantissas": stats.mantissas, "examined": stats.examined},
                )
                return

    def _narrow(self, facts: Facts, state: TensorState, plane: Plane) -> Iterator[Hit]:
        if not is_fp8(state):
            return
        usual = state.tensor.family in WEIGHT_DTYPE_SCALES or bool(
            facts.producers & {"compressed-tensors", "auto-round", "quark"}
        )
        if plane.dtype in ("BF16", "F16"):
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                f"{plane.suffix} is {plane.dtype}"
                + ("" if usual else "; readers of this family require F32"),
                fold=f"{plane.dtype}|{usual}",
                impact="up to 0.2 percent rounding against an F32 scale"
                if usual
                else "some readers fail at first use",
                try_="store the scale as F32",
                who="producer",
                severity="note" if usual else "warning",
                data={"dtype": plane.dtype},
            )
        elif plane.dtype == "F8_E8M0":
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                f"{plane.suffix} is F8_E8M0: widening to F32 is exact, some kernels want F32",
                fold="e8m0",
                impact="none for readers that widen; a copy of the byte as a number is wrong by orders of magnitude",
                try_="",
                who="reader",
                severity="note",
                data={"dtype": plane.dtype},
            )


class ScaleDirection(Rule):
    """A scale multiplies where its size says that it divides, or the other way round."""

    code = "QS011"
    name = "scale-direction"
    kind = "SCALE-RECIP"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Names that fix a direction (weight_global_scale divides, weight_scale_2 and block weight_scale_inv "
        "multiply, declared inverse semantics) against the size of the values.",
        why="The reciprocal of a scale is off by its square: weights come out thousands of times too large or small.",
        evidence="The largest weight that the plane implies under either direction, against what trained weights have.",
        proves_not="Values near 1 fit both directions.",
        sample="nvfp4-scale-reciprocal",
        reports=("vllm#47515", "TensorRT-LLM#16447"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """FP8 scales, and second levels of FP4."""
        for state, plane, stats in planes_of(facts):
            reading = state.declared_reading or state.solved.chosen
            if reading is None or not stats.median or not state.solved.solutions:
                continue
            implied = _implied(reading, state, plane, stats)
            if implied is None:
                continue
            own, other = implied
            low, high = PLAUSIBLE_AMAX
            if low <= own <= high or not low <= other <= high or stats.constant == 1.0:
                continue
            level = 1 if plane.role == "scale2" else 0
            way = reading.scale[level].direction
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                f"{plane.suffix} {WAYS[way]} by name, but its median {stats.median:.3g} implies weights up to {own:.3g}; "
                f"the other direction implies {other:.3g}",
                fold=f"{plane.suffix}|{way}",
                many=f"{plane.suffix} {WAYS[way]} by name in {{count}} tensors, but its values imply weights of absurd size; "
                "the other direction fits",
                impact=f"weights are off by a factor of about {max(own, other) / min(own, other):.0e}",
                try_="store the reciprocal, or use the name that fits the direction",
                confidence="strong",
                data={"median": stats.median, "implied": own, "implied_other": other},
                would_settle="the unquantized weights of one row",
            )


def _implied(
    reading: Reading, state: TensorState, plane: Plane, stats: PlaneStats
) -> tuple[float, float] | None:
    """Largest weight under the reading's direction and under the other one."""
    if stats.median is None:
        return None
    if plane.role == "scale" and is_fp8(state) and reading.scale and stats.dtype != "F8_E8M0":
        multiply, divide = FP8_LARGEST * stats.median, FP8_LARGEST / stats.median
        way = reading.scale[0].direction
    elif plane.role == "scale2" and len(reading.scale) > 1 and stats.total <= 1:
        multiply, divide = 6 * FP8_LARGEST * stats.median, 6 * FP8_LARGEST / stats.median
        way = reading.scale[1].direction
        if "e2m1" not in reading.element and "fp4" not in reading.element:
            return None
    else:
        return None
    return (multiply, divide) if way == "multiply" else (divide, multiply)


class ScaleShape(Rule):
    """The shape of a scale leaves its granularity to the reader."""

    code = "QS012"
    name = "scale-granularity"
    kind = "SCALE-SHAPE"
    severity = "note"
    page = Page(
        checks="Scales of rank 2 with one value, one value for a matrix that several modules are fused into, and "
        "block scales under names that other readers take for one value.",
        why="Readers that look at the rank take [1, 1] for one block, and readers that look at the count for one tensor.",
        evidence="Shapes of the planes.",
        proves_not="A fault: the element count says which granularity holds.",
        sample="fp8-scale-one-by-one",
        reports=("unsloth#8953", "ComfyUI#10491"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """FP8 tensors with a [1, 1] scale or a scale of rank 3."""
        for state in facts.states:
            plane, codes = state.tensor.plane("scale"), state.tensor.plane("codes")
            if plane is None or codes is None or not is_fp8(state) or len(codes.shape) != 2:
                continue
            shape = plane.shape
            if shape == (1, 1) and max(codes.shape) > 128:
                text = f"scale [1, 1] on a {list(codes.shape)} weight: one value for the tensor"
            elif len(shape) == 3 and shape[-1] == 1:
                text = f"scale {list(shape)} is block-wise ({codes.shape[-1] // shape[1]}-wide), not one value"
            else:
                continue
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                text,
                fold=f"{len(shape)}",
                impact="none for readers that count elements",
                try_="",
                who="reader",
                data={"shape": list(shape)},
            )


NAME_HOMES: dict[str, str] = {
    "scale_weight": "scaled FP8 of image models",
    "activation_scale": "a spelling that few readers know",
    "qscale_weight": "Mistral's native FP8",
}


class ScaleName(Rule):
    """A scale under a key that the declared method does not use."""

    code = "QS013"
    name = "scale-name"
    kind = "SCALE-NAME"
    severity = "warning"
    page = Page(
        checks="The suffix of each scale against the method that is declared and the shape that it has.",
        why="Readers drop keys that they do not know, and load FP8 numbers as weights.",
        evidence="Stored names and shapes; proved.",
        proves_not="That the reader you use drops the key.",
        sample="fp8-scale-name",
        reports=("vllm#32859", "stable-diffusion.cpp#1898", "vllm#54770"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """FP8 tensors and their scales' names."""
        blocks = any(s.get("weight_block_size") for s in facts.sections)
        for state in facts.states:
            plane, codes = state.tensor.plane("scale"), state.tensor.plane("codes")
            if plane is None or codes is None or not is_fp8(state):
                continue
            suffix = plane.stored_name.rpartition(".")[2]
            elements = int(np.prod(plane.shape)) if plane.shape else 1
            block = (len(plane.shape) == 2 and min(plane.shape) > 1) or (blocks and elements > 1)
            text: str | None = None
            note = False
            if suffix in NAME_HOMES and suffix != "qscale_weight":
                text = f"scale key is spelled {suffix!r} ({NAME_HOMES[suffix]}): readers of weight_scale drop it"
            elif (
                suffix == "weight_scale_inv"
                and elements == 1
                and not facts.producers & {"gptqmodel"}
                and not any(s.get("weight_scale_semantics") for s in facts.sections)
            ):
                text = "weight_scale_inv holds one value here (the block form is 2-D): name and shape point apart"
            elif (
                suffix == "weight_scale"
                and block
                and len(plane.shape) == 2
                and plane.shape[1] < codes.shape[-1] // 64 + 1
                and not facts.methods & {"compressed-tensors", "modelopt"}
            ):
                text, note = "2-D block scale stored under 'weight_scale'", True
            if text is None:
                continue
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                text,
                fold=suffix,
                impact="a reader that drops the key takes the codes for weights, hundreds of times too large",
                try_=f"rename {plane.stored_name} to what the declared method's readers load",
                severity="note" if note or facts.marked else None,
                data={"suffix": suffix, "shape": list(plane.shape)},
            )
        for stored in facts.ending("activation_scale"):
            yield self.hit(
                facts.of_stored(stored),
                f"scale key is spelled 'activation_scale' ({NAME_HOMES['activation_scale']})",
                fold="activation_scale",
                impact="readers of input_scale run with another activation scale",
                try_=f"rename {stored.name} to input_scale",
                data={"suffix": "activation_scale"},
            )


RULES = (ScaleFormat, ScaleDirection, ScaleShape, ScaleName)
