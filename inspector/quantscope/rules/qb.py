"""QB: order of codes in words and blocks, and whether they are signed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quantscope.model import Json
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.rules.field_rule import word
from quantscope.session.inspection import TensorState

SPLIT_TYPES = {"MXFP4": 16, "NVFP4": 8}
"""GGUF FP4 types -> distance of the two elements that share a byte (ggml/src/ggml-quants.c)."""


class OrderOpen(Rule):
    """More than one packing order fits the planes and nothing says which is meant."""

    code = "QB001"
    name = "packing-order-open"
    kind = "PACK-ORDER"
    severity = "warning"
    page = Page(
        checks="Whether several axes, orders or densities of codes solve the sizes and no source names one.",
        why="Orders that leave all shapes alike permute weights within words when guessed wrong.",
        evidence="The size equations over every candidate; statistics on codes where they can decide.",
        proves_not="That the reading shown is wrong; it is one of those listed.",
        sample="gptq-3bit-order-open",
        reports=("pie#491", "GPTQModel#2251", "imp#567"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors whose packing is ambiguous, or decided by bytes alone."""
        for state in facts.states:
            field = state.contract["packing"]
            values = _packings(state)
            if len(values) < 2 or field.declared or facts.is_gguf:
                continue
            decided = field.match not in ("ambiguous",) and field.inferred is not None
            firm = (
                decided and field.inferred is not None and field.inferred.strength != "convention"
            )
            text = f"packing fits {len(values)} ways: " + "; ".join(word(v) for v in values[:4])
            if firm and field.inferred is not None:
                text += f"; statistics of the codes fit {word(field.inferred.value)}"
            yield self.hit(
                facts.of_tensor(state, state.tensor.plane("codes"), "packing"),
                text,
                fold=text,
                many="the packing of {count} tensors fits more than one way and nothing declares which",
                impact="under another order codes land on other channels",
                try_="declare the format key of the producer",
                who="config",
                severity="note" if firm and facts.producers else None,
                confidence=field.inferred.strength if firm and field.inferred else "weak",
                kind=_kind(values),
                data={"packings": values[:8]},
                would_settle="the format key of the producer, or the unquantized weights of one row",
            )


def _packings(state: TensorState) -> list[Json]:
    seen: list[Json] = []
    for reading in state.solved.solutions:
        value = reading.packing.as_json()
        if value not in seen:
            seen.append(value)
    return seen


def _kind(values: Sequence[Json]) -> str:
    if len({value["axis"] for value in values}) > 1:
        return "PACK-AXIS"
    orders = {value["order"] for value in values}
    return "PACK-BITS" if orders & {"padded", "planar", "bitstream"} else "PACK-ORDER"


class SplitHalves(Rule):
    """A block type whose bytes hold two elements that are not neighbours."""

    code = "QB002"
    name = "split-halves"
    kind = "PACK-ORDER"
    severity = "note"
    page = Page(
        checks="GGUF FP4 types, whose byte j holds element j and one half a block further on.",
        why="A reader that takes pairs in order permutes all elements of a block: fluent garbage.",
        evidence="The type id: the order is its public definition.",
        proves_not="That anything is wrong: it is worth knowing.",
        sample="smol-gguf-mxfp4",
        reports=("imp#567",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors of those types."""
        for state in facts.states:
            codes = state.tensor.planes[0] if state.tensor.planes else None
            stored = facts.stored.get(codes.stored_name) if codes is not None else None
            distance = SPLIT_TYPES.get(stored.dtype) if stored is not None else None
            if stored is None or distance is None:
                continue
            yield self.hit(
                facts.of_stored(stored, state.tensor.name),
                f"{stored.dtype} stores element j and j+{distance} in one byte",
                fold=stored.dtype,
                many=f"{stored.dtype} stores element j and j+{distance} in one byte ({{count}} tensors)",
                impact="none for readers of the type",
                try_="",
                who="reader",
                data={"distance": distance},
            )


class SignDoubtful(Rule):
    """Codes look signed where the family stores them unsigned, or the other way round."""

    code = "QB003"
    name = "sign-doubtful"
    kind = "SIGN"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Histogram of integer codes: weights crowd around zero, so a peak at both ends and a dip in the middle "
        "means two's complement read as offset, or the reverse; a mean far from zero means another offset.",
        why="The wrong sign convention moves every weight by half the code range.",
        evidence="Sampled codes of one tensor; widths of 3 bits and more.",
        proves_not="Matrices that are no weights of a trained layer need not crowd around zero.",
        sample="gptq-sign-doubtful",
        reports=("tilelang#2477", "1bit-MONSTER#451", "sparkinfer#761"),
    )

    MIN_ELEMENTS = 2048
    OFF_CENTRE = 0.75

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Integer tensors with a histogram that does not crowd around zero."""
        for state in facts.states:
            codes, reading = state.exam.codes, state.reading or state.solved.chosen
            if codes is None or reading is None or codes.elements < self.MIN_ELEMENTS:
                continue
            if (
                reading.zero not in ("fixed", "integer", "none")
                or not reading.element[1:].isdigit()
            ):
                continue
            counts = codes.histogram
            if len(counts) < 8 or codes.constant_rows * 2 > codes.rows or codes.out_of_range:
                continue
            centre = self._centre(state, len(counts), codes.lowest_code)
            if centre is None:
                continue
            shape = _crowding(counts, centre)
            if shape is None:
                continue
            middle, ends, mean = shape
            if ends > 2 * middle:
                text = f"codes crowd at both ends of the range ({ends:.0%}) and not around zero ({middle:.0%})"
            elif abs(mean) > self.OFF_CENTRE and reading.zero != "integer":
                text = f"mean code is {mean:+.2f} standard deviations from zero"
            else:
                continue
            yield self.hit(
                facts.of_tensor(state, state.tensor.plane("codes"), "element"),
                text + ": another sign convention fits better",
                fold="ends" if ends > 2 * middle else "mean",
                many="codes of {count} tensors do not crowd around zero: another sign convention fits better",
                impact="every weight is moved by half the code range",
                try_="check whether the producer stores two's complement or offset codes",
                confidence="strong",
                data={"middle": round(middle, 4), "ends": round(ends, 4), "mean": round(mean, 4)},
                would_settle="the unquantized weights of one row",
            )

    @staticmethod
    def _centre(state: TensorState, size: int, lowest: int) -> int | None:
        reading = state.reading or state.solved.chosen
        if reading is None:
            return None
        if lowest < 0:
            return -lowest
        if reading.zero == "integer":
            return size // 2
        return reading.midpoint or size // 2


def _crowding(counts: Sequence[int], centre: int) -> tuple[float, float, float] | None:
    """(share of codes around zero, share at the ends, mean from zero in standard deviations)."""
    size, total = len(counts), sum(counts)
    if not total:
        return None
    reach = max(1, size // 8)
    middle = sum(counts[max(0, centre - reach) : centre + reach]) / total
    ends = (sum(counts[:reach]) + sum(counts[-reach:])) / total
    mean = sum((i - centre) * n for i, n in enumerate(counts)) / total
    square = sum((i - centre - mean) ** 2 * n for i, n in enumerate(counts)) / total
    return middle, ends, mean / square**0.5 if square > 0 else 0.0


RULES = (OrderOpen, SplitHalves, SignDoubtful)
