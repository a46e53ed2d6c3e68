"""QP: which reading solves the sizes of the planes, and whether it is the only one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantscope.model import Equation, Plane, Subject
from quantscope.rules import dims, names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import WEIGHT_DTYPES, Facts
from quantscope.rules.field_rule import word
from quantscope.rules.qz import is_unpacked
from quantscope.session.inspection import TensorState

SOLVED = "The size equations of all planes, solved over every reading that the family has; proved."


class NoReadingFits(Rule):
    """No reading of the family fits the planes."""

    code = "QP001"
    name = "no-reading-fits"
    kind = "GROUP"
    severity = "violation"
    page = Page(
        checks="Shapes, dtypes and bytes of all planes of a tensor against every bits, group, axis and packing.",
        why="Planes that no reading fits cannot belong together: something cut, padded or mixed them.",
        evidence=SOLVED,
        proves_not="Which plane is wrong: the one named breaks the fewest equations.",
        sample="gptq-qweight-rows",
        reports=(
            "GPTQModel#2984",
            "TensorRT-LLM#648",
            "vllm#17862",
            "vllm#50610",
            "Model-Optimizer#2038",
        ),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with candidates and no solution, or with no candidate at all."""
        for state in facts.states:
            if state.solved.solutions or is_unpacked(state):
                continue
            broken = [
                eq
                for eq in state.solved.equations
                if eq.holds is False and not _one_a_part(state, eq) and not _only_cut(state, eq)
            ]
            if not broken and state.solved.candidates:
                continue
            if broken:
                yield self._broken(facts, state, broken)
            elif state.undecodable is None and not state.solved.candidates:
                yield self.hit(
                    facts.of_tensor(state, state.tensor.planes[0] if state.tensor.planes else None),
                    f"{state.tensor.word} planes of shapes that no reading of the family has: "
                    + ", ".join(
                        f"{p.suffix} {p.dtype} {list(p.shape)}" for p in state.tensor.planes[:5]
                    ),
                    fold=f"none|{[(p.suffix, p.dtype, p.shape) for p in state.tensor.planes]}",
                    impact="the tensor cannot be decoded",
                    try_="write the planes again with the producer's tool",
                    kind="ORIENT" if _turned(facts, state) else _shape_kind(state),
                    data={
                        "planes": {p.suffix: [p.dtype, list(p.shape)] for p in state.tensor.planes}
                    },
                )

    def _broken(self, facts: Facts, state: TensorState, broken: Sequence[Equation]) -> Hit:
        equation = broken[0]
        plane = state.tensor.plane_named(equation.plane)
        odd = _odd_one(facts, state)
        if odd is not None and odd[0].suffix != equation.plane:
            return self._unlike(facts, state, *odd)
        kind = "ORIENT" if _turned(facts, state) else _kind_of(state, equation, plane)
        if kind == "ORIENT":
            plane = state.tensor.plane("codes") or plane
        if equation.actual_shape is None:
            text = f"{equation.plane} is not stored; {equation.symbolic} is needed"
        elif equation.note.startswith("stored as"):
            text = (
                f"{equation.plane} is {equation.note}; {equation.symbolic} = {equation.substituted}"
            )
        else:
            text = (
                f"{equation.plane} is {list(equation.actual_shape)}, "
                f"{equation.symbolic} = {equation.substituted} gives {list(equation.expected_shape or ())}"
            )
        if kind == "ORIENT":
            text += "; the other planes fit the transposed orientation"
        return self.hit(
            facts.of_tensor(state, plane),
            text,
            fold=f"{equation.plane}|{equation.symbolic}|{equation.actual_shape}|{equation.expected_shape}",
            impact="the tensor cannot be decoded as a whole; a reader that does not check reads past a plane",
            try_=f"write {state.tensor.module}.{equation.plane} again with the producer's tool",
            severity="disagreement" if kind == "SCALE-DTYPE" else None,
            kind=kind,
            data={
                "plane": equation.plane,
                "expected_shape": list(equation.expected_shape or ()),
                "actual_shape": list(equation.actual_shape or ()),
                "expected_bytes": equation.expected_bytes,
                "actual_bytes": equation.actual_bytes,
                "broken": [eq.plane for eq in broken],
            },
            would_settle="the producer's own planes of this module",
        )

    def _unlike(
        self, facts: Facts, state: TensorState, plane: Plane, mate: TensorState, usual: Plane
    ) -> Hit:
        """The one plane that is not as in a mate whose planes fit; the sizes alone would blame another."""
        turned = plane.shape == usual.shape[::-1] != usual.shape
        return self.hit(
            facts.of_tensor(state, plane),
            f"{plane.suffix} is {plane.dtype} {list(plane.shape)} and fits no other plane; "
            f"{mate.tensor.module} has {usual.dtype} {list(usual.shape)}",
            fold=f"{plane.suffix}|{plane.shape}|{usual.shape}",
            impact="the tensor cannot be decoded as a whole; a reader that does not check reads past a plane",
            try_=f"write {state.tensor.module}.{plane.suffix} again with the producer's tool",
            kind="ORIENT" if turned else _role_kind(state, plane, usual),
            data={
                "plane": plane.suffix,
                "expected_shape": list(usual.shape),
                "actual_shape": list(plane.shape),
                "mate": mate.tensor.module,
            },
            would_settle="the producer's own planes of this module",
        )


def _odd_one(facts: Facts, state: TensorState) -> tuple[Plane, TensorState, Plane] | None:
    """The only plane of a tensor that has another shape or dtype than the same plane of a solved mate."""
    for mate in facts.roles.get(names.role_of(state.tensor.module), ()):
        if mate is state or not mate.solved.solutions or mate.tensor.word != state.tensor.word:
            continue
        pairs = [(plane, mate.tensor.plane_named(plane.suffix)) for plane in state.tensor.planes]
        differs = [
            (plane, usual)
            for plane, usual in pairs
            if usual is not None and (plane.shape, plane.dtype) != (usual.shape, usual.dtype)
        ]
        if len(differs) == 1 and len(pairs) == len(mate.tensor.planes):
            return differs[0][0], mate, differs[0][1]
        return None
    return None


def _role_kind(state: TensorState, plane: Plane, usual: Plane) -> str:
    """Fault kind of a plane that is unlike its mates'."""
    if "bnb" in f"{state.tensor.family} {state.tensor.word}":
        return "BNB"
    if plane.role in ("scale", "scale2"):
        if plane.shape == usual.shape:
            return "SCALE-DTYPE"
        return "GROUP" if len(plane.shape) == len(usual.shape) else "SCALE-SHAPE"
    return {"codes": "PACK-BITS", "group_index": "G-IDX"}.get(plane.role, "ZP-PRESENCE")


def _only_cut(state: TensorState, equation: Equation) -> bool:
    """Whether nothing but the end of the file breaks the equation: the container's rule speaks of it."""
    return equation.plane in state.missing and equation.actual_shape == equation.expected_shape


def _one_a_part(state: TensorState, equation: Equation) -> bool:
    """Whether a plane of one value holds one for each part of a fused matrix: another rule speaks of it."""
    parts = names.FUSED_ON_DISK.get(names.last(state.tensor.module))
    return parts is not None and equation.actual_shape == (parts,)


def _kind_of(state: TensorState, equation: Equation, plane: Plane | None) -> str:
    word = f"{state.tensor.family} {state.tensor.word}"
    if "bnb" in word or "bitsandbytes" in word:
        return "BNB"
    role = plane.role if plane is not None else _role_word(equation.plane)
    missing = equation.actual_shape is None
    wanted, actual = equation.expected_shape or (), equation.actual_shape or ()
    if not missing and len(wanted) == 2 and actual == wanted[::-1] and wanted[0] != wanted[1]:
        return "ORIENT"
    if role in ("scale", "scale2"):
        if missing:
            return "SCALE-MISSING"
        if equation.note.startswith("stored as"):
            return "SCALE-LAYOUT" if len(actual) == 1 < len(wanted) else "SCALE-DTYPE"
        if _tiled(actual, wanted):
            return "SCALE-LAYOUT"
        grouped = (
            state.solved.chosen is not None
            and state.solved.chosen.group[:1]
            and (state.solved.chosen.group[0].axis == "in")
        )
        return "GROUP" if grouped and len(actual) == len(wanted) else "SCALE-SHAPE"
    if role in ("zero", "minimum"):
        return "ZP-PRESENCE"
    if role == "group_index":
        return "G-IDX"
    if role == "codes":
        return "PACK-BITS"
    return "GROUP"


def _turned(facts: Facts, state: TensorState) -> bool:
    """Whether the codes have the shape of their mates' turned round, or fit their scales only so."""
    codes, scale = state.tensor.plane("codes"), state.tensor.plane("scale")
    if codes is None or len(codes.shape) != 2 or codes.shape[0] == codes.shape[1]:
        return False
    for mate in facts.roles.get(names.role_of(state.tensor.module), ()):
        other = mate.tensor.plane("codes")
        if mate is not state and mate.solved.solutions and other is not None:
            return codes.shape == other.shape[::-1]
    rows, cols = codes.shape
    word = f"{state.tensor.family} {state.tensor.word}"
    by_row = "nvfp4" in word or "fp8" in word or "mxfp" in word
    if not by_row or scale is None or len(scale.shape) != 2:
        return False
    per_byte = 2 if codes.dtype == "U8" else 1
    return scale.shape[0] == cols != rows and rows * per_byte % max(1, scale.shape[1]) == 0


def _role_word(suffix: str) -> str:
    if suffix == "g_idx" or suffix.endswith("g_idx"):
        return "group_index"
    if "zero" in suffix or suffix in ("biases", "weight._shift"):
        return "zero"
    return "scale" if "scale" in suffix or suffix in ("SCB", "absmax") else "codes"


def _tiled(actual: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a plane has the elements of 128x4 scale tiles rather than those of the plain plane."""
    if len(wanted) != 2 or wanted[0] % 8:
        return False
    count = 1
    for extent in actual:
        count *= extent
    tiles = 128 * 4 * -(-wanted[0] // 128) * -(-wanted[1] // 4)
    return count == tiles and count != wanted[0] * wanted[1]


def _shape_kind(state: TensorState) -> str:
    word = f"{state.tensor.family} {state.tensor.word}"
    if "bnb" in word or "bitsandbytes" in word:
        return "BNB"
    return "GROUP" if state.tensor.plane("scale") is not None else "SCALE-MISSING"


SHAPELESS = frozenset({"quanto"})
"""Families that declare the width and store neither shape nor group size: the model code has them."""


class SeveralReadings(Rule):
    """Several readings fit the planes and nothing says which is meant."""

    code = "QP004"
    name = "several-readings-fit"
    kind = "BITS"
    severity = "warning"
    page = Page(
        checks="Whether more than one pair of bits and group size, or more than one shape, solves the sizes.",
        why="Shapes fix only bits times group in some formats: a reader that guesses decodes noise.",
        evidence=SOLVED,
        proves_not="That the reading shown is wrong; it is one of those listed.",
        sample="mlx-no-config",
        reports=("ltx-2-mlx#60",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors whose element or group is ambiguous."""
        for state in facts.states:
            fields = [f for f in ("element", "group") if state.contract[f].match == "ambiguous"]
            if not fields or len(state.solved.solutions) < 2:
                continue
            pairs = sorted(
                {
                    (r.element, word(r.contract_values()["group"]), r.shape[-1])
                    for r in state.solved.solutions
                }
            )
            text = "; ".join(f"{e}, group {g}, K={k}" for e, g, k in pairs[:6])
            declared = bool(state.contract["element"].declared) and len({e for e, *_ in pairs}) == 1
            yield self.hit(
                facts.of_tensor(state, state.tensor.planes[0], fields[0]),
                f"planes fit {len(pairs)} readings: {text}; nothing declares which",
                fold="|".join(fields) + text,
                many="the planes of {count} tensors fit several pairs of bits and group size; nothing declares which",
                impact="under a wrong pair every weight is noise",
                try_="declare bits and group_size in config.json",
                who="config",
                severity="note" if declared and state.tensor.family in SHAPELESS else None,
                data={"readings": [list(pair) for pair in pairs[:20]]},
                would_settle="the number of input features, from the config or a neighbouring module",
            )


class PartialGroup(Rule):
    """The last group of a row is not full."""

    code = "QP005"
    name = "partial-group"
    kind = "GROUP"
    severity = "note"
    page = Page(
        checks="Whether the group or block size divides the axis that it groups.",
        why="Some readers refuse a ragged last group; tensor parallel cuts must fall on group borders.",
        evidence="The solved shape and group; proved.",
        proves_not="A fault: formats that allow it store a scale for the partial group.",
        sample="fp8-block-ragged",
        reports=("vllm#17569",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Grouped tensors whose extent is no multiple."""
        for state in facts.states:
            reading = state.solved.chosen
            if reading is None or not reading.group or not state.solved.solutions:
                continue
            level = reading.group[0]
            rows, cols = reading.shape[-2:]
            block = level.size if isinstance(level.size, tuple) else (1, level.size or 1)
            if level.axis not in ("in", "block") or not (rows % block[0] or cols % block[1]):
                continue
            yield self.hit(
                facts.of_tensor(state, field="group"),
                f"last group of [{rows}, {cols}] is partial: groups of {word(list(block))}",
                fold=f"{block}",
                many=f"the last group is partial in {{count}} tensors (groups of {word(list(block))})",
                impact="none for readers that allow a partial group",
                try_="",
                who="reader",
                data={"group": list(block)},
            )


class LoosePacking(Rule):
    """Codes are packed with unused bits in every word."""

    code = "QP006"
    name = "loose-packing"
    kind = "PACK-BITS"
    severity = "warning"
    page = Page(
        checks="Whether codes of 3, 5, 6 or 7 bits are packed densely or with whole fields a word.",
        why="Two lawful densities exist under one format name; a reader of the other one fails or reads noise.",
        evidence=SOLVED,
        proves_not="A fault of the file: writers up to compressed-tensors 0.17.1 pack so.",
        sample="ct-loose-packing",
        reports=("vllm#49893",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors whose reading is padded at a width that does not divide the word."""
        old = any(_old_writer(section.get("version")) for section in facts.sections)
        for state in facts.states:
            reading = state.reading or state.solved.chosen
            if reading is None or reading.packing.order != "padded" or 32 % reading.bit_width == 0:
                continue
            fields = 32 // reading.bit_width
            yield self.hit(
                facts.of_tensor(state, state.tensor.plane("codes"), "packing"),
                f"packed width fits {fields} codes a word ({32 - fields * reading.bit_width} bits unused), "
                f"not a dense {reading.bit_width}-bit stream",
                fold=f"{reading.bit_width}",
                impact="a reader of the dense layout reads other codes or refuses the shape",
                try_="repack with compressed-tensors 0.18 or later",
                who="producer",
                severity="note" if old else None,
                data={"bit_width": reading.bit_width, "fields": fields},
            )


def _old_writer(version: object) -> bool:
    """Whether a compressed-tensors version is 0.17.1 or older."""
    if not isinstance(version, str):
        return False
    parts = version.split(".")
    try:
        return (int(parts[0]), int(parts[1])) <= (0, 17)
    except (ValueError, IndexError):
        return False


class ShapeAgainstConfig(Rule):
    """A module whose planes make another shape than the config and the other layers."""

    code = "QP008"
    name = "shape-against-config"
    kind = "PACK-BITS"
    severity = "violation"
    page = Page(
        checks="In and out features that the planes make against hidden_size, head counts and intermediate_size, where "
        "the model's other modules follow the config.",
        why="A plane that lost rows, or was transposed, can still fit its own scales.",
        evidence="The solved shape, the config, and the same module of other layers; proved where they agree.",
        proves_not="Models that give layers different sizes are left alone.",
        sample="fp8-transposed",
        reports=("vllm#50610", "TensorRT-Edge-LLM#167"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """A hidden_size that nothing stored has, then misfits of solved tensors."""
        yield from self._hidden_size(facts)
        for misfit in dims.misfits(facts):
            state = misfit.state
            if not state.solved.solutions:
                continue
            rows, cols = misfit.expected.rows, misfit.expected.cols
            wanted = f"[{min(rows)}, {min(cols)}]"
            turned = misfit.axis == "transposed"
            index = state.tensor.plane("group_index")
            short = index is not None and index.shape == (misfit.shape[1],) and misfit.axis == "in"
            yield self.hit(
                facts.of_tensor(state, index if short else state.tensor.plane("codes"), "shape"),
                f"planes make {list(misfit.shape)}, config.json and the other modules say {wanted}"
                + (": the weight is transposed" if turned else ""),
                fold=f"{misfit.shape}|{wanted}",
                impact="rows and columns are exchanged"
                if turned
                else "the weight is cut or padded",
                try_=f"write {state.tensor.module} again with the producer's tool",
                kind="ORIENT" if turned else "G-IDX" if short else None,
                data={"shape": list(misfit.shape), "rows": sorted(rows), "cols": sorted(cols)},
            )

    def _hidden_size(self, facts: Facts) -> Iterator[Hit]:
        """The plain embedding and the last norm agree on a width, and config.json says another."""
        said, source = facts.model_value("hidden_size")
        if source is None or not isinstance(said, int) or facts.is_gguf:
            return
        widths = {
            stored.shape[-1]: stored
            for name, stored in facts.stored.items()
            if stored.dtype in WEIGHT_DTYPES
            and (
                (name.endswith("model.norm.weight") and len(stored.shape) == 1)
                or (names.is_embedding(names.parent(name)) and len(stored.shape) == 2)
            )
        }
        norms = [name for name in facts.stored if name.endswith("model.norm.weight")]
        if len(widths) != 1 or said in widths or not norms:
            return
        width, stored = next(iter(widths.items()))
        yield self.hit(
            Subject(stored=stored.name, file=source.file, config_key=str(source), field="shape"),
            f"{source} is {said}, the embedding and the last norm have {width}",
            fold=str(source),
            impact="loaders refuse the file: every shape differs",
            try_=f"set {source} to {width}",
            who="config",
            severity="disagreement",
            kind="CONFIG-CONFLICT",
            data={"declared": said, "stored": width},
        )


RULES = (NoReadingFits, SeveralReadings, PartialGroup, LoosePacking, ShapeAgainstConfig)
