"""Which reading of a tensor is shown: the file's own, or a what-if."""

from __future__ import annotations

import msgspec
from quantscope.infer.solver import claim_fits
from quantscope.model import Reading
from quantscope.report.words import value_words
from quantscope.session.inspection import TensorState

from quantscope_views.present.words import short_convention


class ReadingChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The reading shown beside the one that the file claims.

    `claimed` is what the declarations say, or the family's own reading where they say nothing.
    """

    claimed: Reading
    shown: Reading
    possible: tuple[Reading, ...]
    """Every reading that the sizes allow."""
    declared: bool
    """Whether anything in the files declares the fields in which readings differ."""
    refused: tuple[str, ...] = ()
    """Declared values, in words, that `claimed` does not take because the stored sizes rule them out."""

    @property
    def is_what_if(self) -> bool:
        """Whether a reading is shown that the file does not claim."""
        return self.shown != self.claimed

    def other_zero(self) -> ReadingChoice | None:
        """The next zero reading; None where there is no other."""
        conventions: list[str] = []
        for reading in (self.claimed, *self.possible):
            same = msgspec.structs.replace(reading, zero_convention=self.shown.zero_convention)
            if same == self.shown and reading.zero_convention not in conventions:
                conventions.append(reading.zero_convention)
        if self.shown.zero_convention not in conventions:
            conventions.append(self.shown.zero_convention)
        if len(conventions) < 2:
            return None
        at = conventions.index(self.shown.zero_convention)
        following = conventions[(at + 1) % len(conventions)]
        return msgspec.structs.replace(
            self, shown=msgspec.structs.replace(self.shown, zero_convention=following)
        )

    def other_order(self) -> ReadingChoice | None:
        """The next packing order; None where the format has one only."""
        orders: list[Reading] = []
        for reading in (self.claimed, *self.possible):
            same = msgspec.structs.replace(
                reading,
                packing=self.shown.packing,
                zero_convention=self.shown.zero_convention,
            )
            wanted = msgspec.structs.replace(reading, zero_convention=self.shown.zero_convention)
            if same == self.shown and wanted not in orders:
                orders.append(wanted)
        if len(orders) < 2:
            return None
        at = orders.index(self.shown) if self.shown in orders else 0
        return msgspec.structs.replace(self, shown=orders[(at + 1) % len(orders)])

    def back(self) -> ReadingChoice:
        """What the file says."""
        return msgspec.structs.replace(self, shown=self.claimed)

    def banner(self) -> tuple[str, str] | None:
        """(`WHAT-IF zero = stored`, `file says stored+1`), or None where the file's reading is shown."""
        if not self.is_what_if:
            return None
        shown, claimed = self.shown, self.claimed
        says = "file says" if self.declared else "custom says"
        if shown.zero_convention != claimed.zero_convention:
            return (
                f"WHAT-IF zero = {short_convention(shown.zero_convention)}",
                f"{says} {short_convention(claimed.zero_convention)}",
            )
        if shown.packing != claimed.packing:
            return (
                f"WHAT-IF {shown.packing.order}",
                f"{says} {claimed.packing.order}",
            )
        return "WHAT-IF another reading", f"{says} otherwise"


def choice_of(state: TensorState) -> ReadingChoice | None:
    """The choice to start with: what the file claims. None where no reading exists."""
    claimed = state.declared_reading or state.reading
    if claimed is None:
        return None
    declared = any(
        state.contract[field].declared for field in ("zero_convention", "packing", "element")
    )
    return ReadingChoice(
        claimed=claimed,
        shown=claimed,
        possible=state.solved.solutions or state.solved.candidates,
        declared=declared,
        refused=_refused(state, claimed),
    )


def _refused(state: TensorState, claimed: Reading) -> tuple[str, ...]:
    """Declared values that contradict the reading closest to the declarations."""
    values = claimed.contract_values()
    return tuple(
        value_words(name, field.declared_values[0])
        for name, field in state.contract.fields.items()
        if field.match == "disagree"
        and name in values
        and field.declared
        and not any(claim_fits(value, values[name]) for value in field.declared_values)
    )
