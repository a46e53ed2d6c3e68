"""Rows of the Tensors screen: facts a row, filter, order. Cheap at 100 000 rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from quantscope.containers.records import StoredTensor
from quantscope.model import Contract, LogicalTensor
from quantscope.report.words import kind_words, short_group_words
from quantscope.session.inspection import TensorState

from quantscope_views.marks import MATCH_MARKS, MATCH_ORDER
from quantscope_views.present.words import shape_words

RANK = {match: position for position, match in enumerate(MATCH_ORDER)}
NOT_CHECKED = RANK["not_checked"]

ID_FIELDS = (
    "element",
    "group",
    "scale",
    "zero",
    "symmetric",
    "zero_convention",
    "packing",
    "placement",
    "order",
    "arithmetic",
    "basis",
)
"""Fields that the short contract id covers: all that decides how bytes become weights, but no shape."""

SORT_KEYS = ("file", "name", "match", "bits", "size", "contract")


class RowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one row shows. `match` is the worst of the contract's fields, or `broken` where sizes are."""

    name: str
    word: str
    shape: tuple[int, ...]
    nbytes: int
    format: str = ""
    group: str = ""
    contract_id: str = ""
    match: str = "not_checked"
    bits: float = 0.0
    state: TensorState | None = None
    kind: str = "quantized"
    """quantized, plain or unrecognised."""
    disputed: tuple[str, ...] = ()
    """Fields whose match is the worst one, where that is worse than agreement."""


class FactsMaker:
    """Row facts of states; what depends on the contract alone is computed once a contract."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def facts(self, state: TensorState) -> RowFacts:
        """Facts of an examined tensor."""
        tensor, reading = state.tensor, state.reading
        match, disputed = worst_match(state)
        nbytes = sum(plane.nbytes for plane in tensor.planes if plane.role != "bias")
        shape = reading.shape if reading is not None else tensor.shape
        elements = 1
        for extent in shape:
            elements *= extent
        return RowFacts(
            name=tensor.name,
            word=tensor.word,
            shape=shape,
            nbytes=nbytes,
            format=kind_words(state.contract.value("element")) or "?",
            group=short_group_words(state.contract.value("group")),
            contract_id=self.contract_id(state),
            match=match,
            bits=8 * nbytes / elements if elements else 0.0,
            state=state,
            disputed=disputed,
        )

    def contract_id(self, state: TensorState) -> str:
        """Four characters: equal where two tensors decode by the same contract."""
        values: dict[str, Any] = (
            state.reading.contract_values() if state.reading is not None else {}
        )
        text = json.dumps([values.get(field) for field in ID_FIELDS], default=str)
        found = self._ids.get(text)
        if found is None:
            found = hashlib.sha256(f"{state.tensor.word}{text}".encode()).hexdigest()[:4]
            self._ids[text] = found
        return found


def worst_match(state: TensorState) -> tuple[str, tuple[str, ...]]:
    """The worst match over the contract's fields, and the fields that have it."""
    if any(equation.holds is False for equation in state.solved.equations):
        broken = tuple(e.plane for e in state.solved.equations if e.holds is False)
        return "broken", broken
    return _worst_field(state.contract)


def _worst_field(contract: Contract) -> tuple[str, tuple[str, ...]]:
    agreed = any(field.match == "agree" for field in contract.fields.values())
    best = "agree" if agreed else "declared_only"
    worst = best
    for field in contract.fields.values():
        if field.match in ("not_applicable", "not_checked", "inferred_only", "declared_only"):
            continue
        if RANK[field.match] < RANK[worst]:
            worst = field.match
    if worst == "declared_only" and not any(
        field.match == "declared_only" for field in contract.fields.values()
    ):
        worst = "inferred_only"
    if RANK[worst] >= RANK["inferred_only"]:
        return worst, ()
    return worst, tuple(field.field for field in contract.fields.values() if field.match == worst)


def listed_facts(tensor: LogicalTensor) -> RowFacts:
    """Facts of a tensor that was not examined yet."""
    return RowFacts(
        name=tensor.name,
        word=tensor.word,
        shape=tensor.shape,
        nbytes=sum(plane.nbytes for plane in tensor.planes if plane.role != "bias"),
    )


def stored_facts(stored: StoredTensor, kind: str) -> RowFacts:
    """Facts of a stored tensor that no family claims."""
    elements = 1
    for extent in stored.shape:
        elements *= extent
    return RowFacts(
        name=stored.name,
        word=kind,
        shape=stored.shape,
        nbytes=stored.nbytes,
        format=stored.dtype,
        group="-",
        match="not_applicable" if kind == "plain" else "not_checked",
        bits=8 * stored.nbytes / elements if elements else 0.0,
        kind=kind,
    )


class TensorTable:
    """All rows with the arrays that filter and order need. Rows keep their positions for ever."""

    def __init__(self, rows: Iterable[RowFacts]) -> None:
        self.rows: list[RowFacts] = list(rows)
        count = len(self.rows)
        self.position = {row.name: i for i, row in enumerate(self.rows)}
        self._hay = [_haystack(row) for row in self.rows]
        self.match = np.array([RANK[row.match] for row in self.rows], dtype=np.int8)
        self.bits = np.array([row.bits for row in self.rows], dtype=np.float32)
        self.nbytes = np.array([row.nbytes for row in self.rows], dtype=np.int64)
        self.name_rank = np.empty(count, dtype=np.int64)
        self.name_rank[sorted(range(count), key=lambda i: natural_key(self.rows[i].name))] = (
            np.arange(count)
        )
        self.examined = 0

    def __len__(self) -> int:
        return len(self.rows)

    def update(self, first: int, facts: Sequence[RowFacts]) -> None:
        """Replace rows from a position on with examined ones."""
        for i, row in enumerate(facts, first):
            self.rows[i] = row
            self._hay[i] = _haystack(row)
            self.match[i] = RANK[row.match]
            self.bits[i] = row.bits
            self.nbytes[i] = row.nbytes
        self.examined = max(self.examined, first + len(facts))

    def matching(self, text: str, within: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Positions whose name, format or match holds every word of the filter, in file order.

        Args:
            text: words separated by spaces; case does not matter.
            within: positions to look in; all by default.
        """
        words = text.lower().split()
        positions = range(len(self.rows)) if within is None else within.tolist()
        hay = self._hay
        found: Iterable[int] = positions
        for word in words:
            found = [i for i in found if word in hay[i]]
        return np.fromiter(found, dtype=np.int64)

    def ordered(
        self, positions: NDArray[np.int64], key: str, reverse: bool = False
    ) -> NDArray[np.int64]:
        """Positions in the order of a sort key; equal keys keep file order."""
        if key == "file":
            return positions[::-1] if reverse else positions
        values: NDArray[Any]
        if key == "name":
            values = self.name_rank[positions]
        elif key == "match":
            values = self.match[positions]
        elif key == "bits":
            values = self.bits[positions]
        elif key == "size":
            values = -self.nbytes[positions]
        else:
            ids = [self.rows[i].contract_id for i in positions.tolist()]
            values = np.unique(np.array(ids, dtype=object).astype(str), return_inverse=True)[1]
        if reverse:
            order = len(values) - 1 - np.argsort(values[::-1], kind="stable")[::-1]
        else:
            order = np.argsort(values, kind="stable")
        return positions[order]


def _haystack(row: RowFacts) -> str:
    word = MATCH_MARKS[row.match].word
    fields = " ".join(row.disputed)
    return (
        f"{row.name} {row.word} {row.format} {row.group} {row.contract_id} {word} {row.kind} "
        f"{row.match} {fields} {shape_words(row.shape)}"
    ).lower()


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which `layers.2` stands before `layers.10`."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and len(part) < 18 else (1, 0, part)
        for part in name.split(".")
    )
