"""QG: g_idx and act-order."""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.model import Claim, Subject
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.session.inspection import TensorState


def order_claims(state: TensorState, value: str) -> list[Claim]:
    """Claims that the order of groups is natural or act_order."""
    return [claim for claim in state.contract["order"].declared if claim.value == value]


class IndexOutOfRange(Rule):
    """g_idx names groups that do not exist, or has the wrong length."""

    code = "QG001"
    name = "g-idx-out-of-range"
    kind = "G-IDX"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="Length and range of g_idx against the input features and the rows of the scale plane.",
        why="An index beyond the last group reads foreign memory in kernels that do not check.",
        evidence="Every value of g_idx; proved.",
        proves_not="That indices inside the range are the right ones.",
        sample="gptq-g-idx-range",
        reports=("vllm#5088",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with a g_idx whose values leave the groups."""
        for state in facts.states:
            index, plane, scale = (
                state.exam.index,
                state.tensor.plane("group_index"),
                state.tensor.plane("scale"),
            )
            reading = state.solved.chosen
            if (
                index is None
                or plane is None
                or scale is None
                or reading is None
                or not scale.shape
            ):
                continue
            groups = -(-reading.shape[-1] // reading.group_size)
            if index.lowest >= 0 and index.highest < groups:
                continue
            yield self.hit(
                facts.of_tensor(state, plane, "order"),
                f"g_idx runs from {index.lowest} to {index.highest}, there are groups 0 to {groups - 1}",
                fold=f"{index.lowest}|{index.highest}|{groups}",
                impact="channels concerned have no scale: readers crash or read foreign memory",
                try_=f"write {plane.stored_name} again",
                data={"lowest": index.lowest, "highest": index.highest, "groups": groups},
            )


class IndexUneven(Rule):
    """Groups of g_idx hold different numbers of channels."""

    code = "QG002"
    name = "g-idx-uneven"
    kind = "G-IDX"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="Whether each group of g_idx but the last holds exactly one group size of channels.",
        why="Act-order only permutes channels: a group with more or fewer of them has lost its own.",
        evidence="Every value of g_idx; proved.",
        proves_not="That an even index is the producer's.",
        sample="gptq-g-idx-uneven",
        reports=("vllm#6258",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with groups of unlike size."""
        for state in facts.states:
            index, plane = state.exam.index, state.tensor.plane("group_index")
            reading = state.solved.chosen
            if index is None or plane is None or reading is None:
                continue
            groups = -(-reading.shape[-1] // reading.group_size)
            if index.lowest < 0 or index.highest >= groups:
                continue
            if index.constant and groups > 1:
                text = f"g_idx is {index.lowest} everywhere, there are {groups} groups"
                hit = self._hit(facts, state, text, "constant", index.length)
                yield hit
            elif index.uneven_groups or index.groups_used < groups:
                unused = groups - index.groups_used
                text = (
                    f"g_idx gives {index.uneven_groups} of {groups} groups another size than "
                    f"{index.group_size}" + (f", {unused} groups none" if unused else "")
                )
                yield self._hit(facts, state, text, "uneven", index.uneven_groups)

    def _hit(self, facts: Facts, state: TensorState, text: str, fold: str, count: int) -> Hit:
        plane = state.tensor.plane("group_index")
        return self.hit(
            facts.of_tensor(state, plane, "order"),
            text,
            fold=fold,
            impact="channels are paired with scales of other groups",
            try_=f"write {plane.stored_name if plane else 'g_idx'} again",
            severity="warning" if fold == "constant" else None,
            data={"count": count},
            would_settle="the producer's own g_idx",
        )


class ActOrderUndeclared(Rule):
    """g_idx permutes groups although the config says natural order."""

    code = "QG003"
    name = "act-order-undeclared"
    kind = "G-IDX"
    severity = "disagreement"
    needs = "sample"
    page = Page(
        checks="Whether g_idx is non-decreasing where desc_act or actorder says so.",
        why="A reader that trusts the flag ignores g_idx and pairs rows with wrong scales.",
        evidence="Every value of g_idx; proved.",
        proves_not="Which of flag and index is right.",
        sample="gptq-act-order-undeclared",
        reports=("vllm#6258",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with a permuted g_idx and a claim of natural order."""
        for state in facts.states:
            index, plane = state.exam.index, state.tensor.plane("group_index")
            claims = order_claims(state, "natural")
            if index is None or plane is None or index.monotone or not claims:
                continue
            yield self.hit(
                Subject(
                    tensor=state.tensor.name,
                    stored=plane.stored_name,
                    file=facts.file_name(plane.file_id),
                    byte_range=(plane.byte_offset, plane.byte_offset + plane.nbytes),
                    field="order",
                    config_key=str(claims[0].source),
                ),
                f"{claims[0].source} says natural order but g_idx permutes the groups",
                fold=str(claims[0].source),
                many=f"{claims[0].source} says natural order but g_idx permutes the groups in {{count}} tensors",
                impact="readers that trust the flag pair rows with wrong scales",
                try_=f"set {claims[0].source} to true",
                who="config",
                data={"groups_used": index.groups_used},
            )


class IndexAbsent(Rule):
    """Act-order is declared and no g_idx is stored."""

    code = "QG004"
    name = "g-idx-absent"
    kind = "G-IDX"
    severity = "violation"
    page = Page(
        checks="Whether tensors declared act-order store a g_idx that can hold it.",
        why="Without the index the permutation is lost and every row has a wrong scale.",
        evidence="The declaration and the stored names; proved.",
        proves_not="With static groups the index may be natural: that is a note.",
        sample="gptq-g-idx-absent",
        reports=("vllm#5088",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors declared act-order without g_idx."""
        for state in facts.states:
            claims = order_claims(state, "act_order")
            if not claims or state.tensor.plane("group_index") is not None:
                continue
            if not _needs_index(claims[0]):
                continue
            yield self.hit(
                Subject(
                    tensor=state.tensor.name,
                    stored=state.tensor.planes[0].stored_name,
                    file=claims[0].source.file,
                    field="order",
                    config_key=str(claims[0].source),
                ),
                f"{claims[0].source} says act-order but no g_idx plane exists",
                fold=str(claims[0].source),
                many=f"{claims[0].source} says act-order but {{count}} tensors have no g_idx plane",
                impact="the order of the groups is lost: rows are paired with wrong scales",
                try_=f"add the g_idx planes, or set {claims[0].source} to false if none was used",
                data={"declared": claims[0].written},
            )


def _needs_index(claim: Claim) -> bool:
    """Whether a claim demands a stored index: `weight` and `static` act-order sort columns back on save."""
    return claim.written not in ("weight", "static")


class ActOrderNatural(Rule):
    """Act-order is declared and g_idx is natural."""

    code = "QG005"
    name = "act-order-natural"
    kind = "G-IDX"
    severity = "note"
    needs = "sample"
    page = Page(
        checks="Whether a g_idx of a tensor declared act-order permutes anything.",
        why="With static groups or group-aware order the flag is true and the index natural; nothing is wrong.",
        evidence="Every value of g_idx; proved.",
        proves_not="That the producer used no act-order: it may have kept groups in place.",
        sample="gptq-act-order-natural",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors declared act-order with a non-decreasing g_idx of more than one group."""
        for state in facts.states:
            index, plane = state.exam.index, state.tensor.plane("group_index")
            claims = order_claims(state, "act_order")
            if index is None or plane is None or not claims or not index.monotone:
                continue
            if index.groups_used < 2:
                continue
            yield self.hit(
                facts.of_tensor(state, plane, "order"),
                f"{claims[0].source} says act-order, g_idx is in natural order",
                fold=str(claims[0].source),
                many=f"{claims[0].source} says act-order, g_idx is in natural order in {{count}} tensors",
                impact="none: the index is what counts",
                try_="",
                who="nobody",
                data={"source": str(claims[0].source)},
            )


RULES = (IndexOutOfRange, IndexUneven, ActOrderUndeclared, IndexAbsent, ActOrderNatural)
