"""QS02x: scales of modules that engines fuse, of matrices fused on disk, and FP8 codes without a scale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantscope.infer.plane_values import PlaneStats
from quantscope.model import Plane, Severity
from quantscope.rules import mates, names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.session.inspection import TensorState

SAME = 1.0 + 1e-6
"""Scales whose ratio is below this are one scale."""

FP4_WORDS = ("e2m1", "fp4", "nvfp4")
"""Elements whose second-level scale engines share over fused modules."""


def single(state: TensorState) -> tuple[Plane, PlaneStats] | None:
    """The plane that holds one scale for the whole tensor, if there is one."""
    by_name = {stats.stored_name: stats for stats in state.exam.planes}
    for role in ("scale2", "scale"):
        plane = state.tensor.plane(role)
        if plane is None or not _whole(state, plane):
            continue
        stats = by_name.get(plane.stored_name)
        if stats is not None and stats.total == 1 and stats.largest:
            return plane, stats
    return None


def _whole(state: TensorState, plane: Plane) -> bool:
    """Whether a plane scales the tensor by definition, not as its only block of nested scales."""
    levels = state.reading.scale if state.reading is not None else ()
    return all(level.per in ("", "tensor") for level in levels if level.name == plane.suffix)


class FusedSiblings(Rule):
    """Modules that engines fuse into one matrix have different scales for a whole tensor."""

    code = "QS020"
    name = "fused-siblings-differ"
    kind = "SCALE-FUSED"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Scales for a whole tensor (second-level scales of FP4, FP8 per tensor) of q/k/v, to_q/to_k/to_v, gate/up, "
        "w1/w3, module by module and expert by expert.",
        why="An engine that fuses them keeps one scale: the others' weights change by the ratio.",
        evidence="The values; proved.",
        proves_not="A fault of the file where no engine fuses the modules; separate FP8 scales of producers that never "
        "fuse are a note.",
        sample="nvfp4-siblings-differ",
        reports=("auto-round#2380", "TensorRT-LLM#14199", "vllm#47515", "vllm#41769"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Groups of siblings with single scales that differ."""
        for parent, group in facts.siblings():
            pairs = [(state, single(state)) for state in group]
            known = [(state, found[0], found[1]) for state, found in pairs if found is not None]
            if len(known) < 2 or len({plane.suffix for _, plane, _ in known}) != 1:
                continue
            values = [stats.largest or 0.0 for _, _, stats in known]
            ratio = max(values) / min(values) if min(values) else float("inf")
            if ratio < SAME:
                continue
            state, plane, _ = known[0]
            element = state.reading.element if state.reading is not None else ""
            if not element.startswith((*FP4_WORDS, "e4m3")):
                continue
            words = "/".join(names.last(s.tensor.module) for s, _, _ in known)
            distinct = len({round(v, 12) for v in values})
            level = "second" if plane.role == "scale2" else "tensor"
            severity = self._severity(facts, state, plane)
            yield self.hit(
                facts.of_tensor(state, plane, "scale"),
                f"{words} carry {distinct} different {plane.suffix} (ratio {ratio:.3g}); engines that fuse keep one",
                fold=f"{words}|{plane.suffix}|{severity}",
                many=f"{words} carry different {plane.suffix} in {{count}} places (ratio up to {{hi_ratio}}); "
                "engines that fuse keep one",
                impact=f"after fusing, all parts but one are off by up to {ratio:.3g}",
                try_=f"requantize {parent} with one shared {plane.suffix}",
                severity=severity,
                data={
                    "ratio": round(ratio, 6),
                    "values": {
                        s.tensor.module: v for (s, _, _), v in zip(known, values, strict=True)
                    },
                    "level": level,
                },
            )

    @staticmethod
    def _severity(facts: Facts, state: TensorState, plane: Plane) -> Severity:
        if facts.is_gguf or "comfy" in state.tensor.word or state.tensor.family == "torchao":
            return "note"
        element = state.reading.element if state.reading is not None else ""
        if element.startswith(FP4_WORDS):
            return "warning"
        return "note" if facts.declares else "warning"


class FusedOnDisk(Rule):
    """A matrix that holds several projections has one scale, or unequal scales of its parts."""

    code = "QS021"
    name = "fused-matrix-scale"
    kind = "SCALE-FUSED"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Scales of qkv_proj, gate_up_proj and their kin: one value for all parts, or one a part.",
        why="Loaders that fill one slot a part leave the others uninitialised when the file has one value, and keep the "
        "largest when the file has several.",
        evidence="Shape and values of the scale; proved.",
        proves_not="A fault: one scale for a fused matrix is lawful and is a note.",
        sample="nvfp4-fused-parts",
        reports=("sglang#29151", "vllm#22463", "vllm#41769"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Modules with a fused name."""
        for state in facts.states:
            parts = names.FUSED_ON_DISK.get(names.last(state.tensor.module))
            if parts is None or facts.is_gguf:
                continue
            for role in ("scale2", "scale"):
                plane = state.tensor.plane(role)
                if plane is None:
                    continue
                small = facts.small(plane.stored_name) if plane.nbytes <= 64 else None
                if small is None:
                    continue
                if (
                    len(small.values) == parts and max(small.values) > SAME * min(small.values)
                ) or len(small.values) == 1:
                    yield self._hit(facts, state, plane, parts, small.values)

    def _hit(
        self, facts: Facts, state: TensorState, plane: Plane, parts: int, values: Sequence[float]
    ) -> Hit:
        one = len(values) == 1
        text = (
            f"fused matrix of {parts} parts has one {plane.suffix}: loaders must give it to every part"
            if one
            else f"fused matrix carries {parts} unequal {plane.suffix}: {', '.join(f'{v:.4g}' for v in values)}"
        )
        return self.hit(
            facts.of_tensor(state, plane, "scale"),
            text,
            fold=f"{one}|{plane.suffix}|{parts}",
            many=text
            if one
            else f"{{count}} fused matrices carry unequal {plane.suffix} for their parts",
            impact="none for loaders that give the scale to every part"
            if one
            else "an engine that keeps one of them changes the other parts by the ratio",
            try_="" if one else "requantize the matrix with one scale",
            who="reader" if one else "producer",
            severity="note" if one else None,
            data={"parts": parts, "values": list(values)},
        )


class Fp8WithoutScale(Rule):
    """An FP8 matrix without any scale."""

    code = "QS022"
    name = "fp8-without-scale"
    kind = "SCALE-MISSING"
    severity = "violation"
    page = Page(
        checks="Every FP8 matrix for a scale under any known spelling.",
        why="FP8 codes without their scale are numbers up to 448: weights hundreds of times too large.",
        evidence="Stored names and dtypes; proved.",
        proves_not="A plain cast to FP8 has no scale on purpose: where no matrix has one it is a warning.",
        sample="fp8-cast",
        reports=("imp#1450", "unsloth#6978", "LTX-2#172"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """F8 matrices without a sibling scale that no other rule speaks of."""
        if facts.is_gguf:
            return
        spoken = {m.module for m in facts.once(mates.odd_ones_out)}
        matrices = facts.once(mates.fp8_matrices)
        scaled = sum(has for _, _, has in matrices)
        if scaled:
            spoken |= {o.module for o in facts.grouping.orphans}
        bare = [
            (m, s)
            for m, s, has in matrices
            if not has and m not in spoken and s.name not in facts.broken_tensors
        ]
        cast = not scaled and not facts.sections
        for module, stored in bare:
            yield self.hit(
                facts.of_stored(stored, f"{module}.weight"),
                f"{stored.dtype} {list(stored.shape)} with no scale; {scaled} others have one"
                if scaled
                else f"{stored.dtype} {list(stored.shape)} with no scale anywhere",
                fold=f"{stored.dtype}|{bool(scaled)}",
                many=f"{{count}} {stored.dtype} matrices have no scale"
                + (f"; {scaled} others have one" if scaled else ""),
                impact="the codes are taken for weights: hundreds of times too large unless they were cast unscaled",
                try_=f"add {module}.weight_scale from the producer's output",
                severity="warning" if cast else ("note" if facts.incomplete else None),
                data={"scaled": scaled},
            )


RULES = (FusedSiblings, FusedOnDisk, Fp8WithoutScale)
