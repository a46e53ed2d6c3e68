"""QP: planes that are missing, that belong to nobody, or that no family knows."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from quantscope.containers.records import StoredTensor
from quantscope.decode.small_floats import float_table
from quantscope.model import Orphan, Plane, Subject
from quantscope.rules import mates, names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts
from quantscope.session.inspection import TensorState


class PlaneMissing(Rule):
    """A quantized module lacks a plane."""

    code = "QP002"
    name = "plane-missing"
    kind = "SCALE-MISSING"
    severity = "violation"
    page = Page(
        checks="Every plane that a family needs, and every plane that the same module of other layers or experts has.",
        why="Codes without their scale are loaded as plain numbers, hundreds of times too large, or stay at random.",
        evidence="Names of the stored tensors of all shards; proved.",
        proves_not="That the plane was ever written: a missing shard looks the same and is reported on its own.",
        sample="gptq-scales-missing",
        reports=("imp#1450", "vllm#52501", "compressed-tensors#225", "unsloth#10276", "LTX-2#172"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Orphans of the families, then odd ones out by name, one hit a module."""
        scaled = mates.any_fp8_scale(facts)
        lacking: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        seen: dict[str, StoredTensor] = {}
        for orphan in facts.grouping.orphans:
            stored = facts.stored.get(orphan.stored_name)
            if stored is None or _is_scale_only(orphan) or _bare_fp8(stored, scaled):
                continue
            seen.setdefault(orphan.module, stored)
            for suffix in orphan.missing:
                lacking[orphan.module].setdefault(suffix, (0, 0))
        for missing in facts.once(mates.odd_ones_out):
            if missing.code is not None:
                seen[missing.module] = missing.code
            lacking[missing.module][missing.suffix] = (missing.have, missing.of)
        for module, suffixes in lacking.items():
            by_kind: dict[str, list[str]] = defaultdict(list)
            for suffix in suffixes:
                by_kind[_missing_kind(facts, module, suffix)].append(suffix)
            for kind, gone in by_kind.items():
                yield self._hit(facts, module, gone, kind, seen[module], suffixes)

    def _mx(self, facts: Facts, module: str, scale: StoredTensor) -> Hit:
        """E8M0 bytes stored under another dtype."""
        what = "F8_E4M3 with one scale for 32 codes and no global scale: E8M0 bytes by their shape"
        return self.hit(
            facts.of_stored(scale, f"{module}.weight"),
            f"weight_scale is {what}",
            fold="mx",
            many=f"weight_scale of {{count}} modules is {what}",
            impact="exponents read as E4M3 numbers: every weight differs by orders of magnitude",
            try_=f"store {scale.name} as U8 or F8_E8M0",
            severity="disagreement",
            confidence="strong",
            kind="SCALE-DTYPE",
            data={"dtype": scale.dtype, "shape": list(scale.shape)},
        )

    def _hit(
        self,
        facts: Facts,
        module: str,
        gone: Sequence[str],
        kind: str,
        stored: StoredTensor,
        counts: dict[str, tuple[int, int]],
    ) -> Hit:
        have, of = counts[gone[0]]
        suffix = stored.name[len(module) + 1 :] if module else stored.name
        what = ", ".join(gone)
        scale = _mx_scale(facts, module) if list(counts) == ["weight_global_scale"] else None
        if scale is not None:
            return self._mx(facts, module, scale)
        tail = f"; {have} of {of} modules of the same place have it" if of else ""
        cut = facts.incomplete
        return self.hit(
            Subject(
                tensor=f"{module}.weight" if module else "weight",
                stored=stored.name,
                file=facts.file_name(stored.file_id),
                byte_range=(stored.byte_offset, stored.byte_offset + stored.nbytes),
            ),
            f"{suffix} has no {what}{tail}",
            fold=f"{suffix}|{what}",
            many=f"{{count}} modules store {suffix} and no {what}",
            impact="the tensor cannot be decoded; readers that do not check leave it unscaled or random",
            try_=f"add {module}.{gone[0]} from the producer's output"
            if not cut
            else "complete the checkpoint first",
            who="download" if cut else "producer",
            severity="note" if cut else None,
            kind=kind,
            data={"missing": list(gone), "have": have, "of": of, "incomplete_set": cut},
        )


def _mx_scale(facts: Facts, module: str) -> StoredTensor | None:
    """An E4M3 scale plane with one scale for 32 four-bit codes, as MXFP4 has and NVFP4 has not."""
    codes, scale = (facts.index.get(module, s) for s in ("weight_packed", "weight_scale"))
    if codes is None or scale is None or not codes.shape or not scale.shape:
        return None
    grouped = scale.dtype == "F8_E4M3" and codes.shape[-1] == 16 * scale.shape[-1]
    return scale if grouped else None


def _bare_fp8(stored: StoredTensor, scaled: bool) -> bool:
    """Whether a tensor is FP8 in a checkpoint in which no FP8 matrix has a scale: another rule speaks of it."""
    return not scaled and stored.dtype.startswith("F8_E") and stored.dtype != "F8_E8M0"


def _is_scale_only(orphan: Orphan) -> bool:
    """Whether an orphan is a scale that lacks its codes: another rule speaks of it."""
    return any(suffix in mates.CODE_SUFFIXES or suffix == "codes" for suffix in orphan.missing)


def _missing_kind(facts: Facts, module: str, suffix: str) -> str:
    stored = facts.index.suffixes(module)
    if suffix in ("absmax", "quant_map", "quant_state") or suffix.startswith(
        ("weight.absmax", "weight.quant", "weight.nested", "quant_state", "nested_")
    ):
        return "BNB"
    if "weight_format" in stored and suffix == "SCB":
        return "SCALE-MISSING"
    return mates.SIDE_KINDS.get(suffix, "SCALE-MISSING")


class PlaneWithoutCodes(Rule):
    """A scale or zero plane whose codes are not there."""

    code = "QP003"
    name = "scale-without-codes"
    kind = "SCALE-MISSING"
    severity = "violation"
    page = Page(
        checks="Scales, zero points and g_idx planes whose module stores no quantized codes.",
        why="Either the codes are lost, or a plain weight kept the scales of an older state.",
        evidence="Names and dtypes of the stored tensors; proved.",
        proves_not="Which of the two it is.",
        sample="fp8-scale-without-codes",
        reports=("vllm#52501",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Families' orphans that lack codes, and side planes of modules without codes."""
        found: dict[str, tuple[str, StoredTensor]] = {}
        for orphan in facts.grouping.orphans:
            stored = facts.stored.get(orphan.stored_name)
            if stored is not None and _is_scale_only(orphan):
                found.setdefault(orphan.module, (stored.name[len(orphan.module) + 1 :], stored))
        for module, suffix, stored in mates.without_codes(facts):
            found.setdefault(module, (suffix, stored))
        for module, (suffix, stored) in found.items():
            plain = facts.plain_weights.get(module)
            beside = f"beside a plain {plain.dtype} weight" if plain is not None else "and no codes"
            yield self.hit(
                facts.of_stored(stored, f"{module}.weight" if plain is not None else None),
                f"{suffix} {beside}: the scale has nothing to scale",
                fold=f"{suffix}|{beside}",
                many=f"{{count}} modules store {suffix} {beside}",
                impact="none if the plain weight is right; else the weight is lost"
                if plain is not None
                else "the weight is lost",
                try_=f"remove {stored.name}, or add the codes",
                severity="note" if facts.incomplete else None,
                data={"suffix": suffix, "plain": plain is not None},
            )


class Unrecognised(Rule):
    """A tensor that looks quantized and that no family knows."""

    code = "QP007"
    name = "unrecognised-quantized"
    severity = "violation"
    page = Page(
        checks="Stored tensors in integer or 8-bit float dtypes that no family claims and that are no buffers.",
        why="What is not recognised is not checked.",
        evidence="Dtype, rank and size of the tensor.",
        proves_not="That the tensor is a quantized weight: it may be a table of the architecture.",
        sample="unrecognised",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Unrecognised tensors, folded by dtype and suffix."""
        spoken = {o.stored_name for o in facts.grouping.orphans}
        spoken |= {m.code.name for m in facts.once(mates.odd_ones_out) if m.code is not None}
        strange: set[str] = set()
        for stored in facts.grouping.unrecognised:
            module, _, suffix = stored.name.rpartition(".")
            if stored.name in spoken or not stored.readable or module in strange:
                continue
            alike = facts.roles.get(names.role_of(module), ())
            if alike:
                strange.add(module)
                yield self._odd(facts, stored, alike[0], len(alike))
                continue
            if facts.sections and suffix in mates.CODE_SUFFIXES and not _has_scale(facts, module):
                yield self._unscaled(facts, stored)
                continue
            yield self.hit(
                facts.of_stored(stored),
                f"{stored.dtype} {list(stored.shape)} looks quantized and fits no family",
                fold=f"{stored.dtype}|{suffix}",
                many=f"{{count}} tensors {suffix} of {stored.dtype} look quantized and fit no family",
                impact="unknown: the tensors were not decoded",
                try_="`quantscope plugins` shows the families; a plugin can add one",
                who="reader",
                severity="warning",
                confidence="weak",
                data={"dtype": stored.dtype, "shape": list(stored.shape)},
            )

    def _unscaled(self, facts: Facts, stored: StoredTensor) -> Hit:
        """Codes under a declared scheme without any scale."""
        module, _, suffix = stored.name.rpartition(".")
        return self.hit(
            facts.of_stored(stored, f"{module}.weight"),
            f"{suffix} {stored.dtype} {list(stored.shape)} has no scale of any known name",
            fold=f"bare|{stored.dtype}|{suffix}",
            many=f"{{count}} modules store {suffix} of {stored.dtype} and no scale of any known name",
            impact="the tensors cannot be decoded",
            try_="add the scales from the producer's output",
            severity="note" if facts.incomplete else "violation",
            kind="SCALE-MISSING",
            data={"dtype": stored.dtype, "shape": list(stored.shape)},
        )

    def _odd(self, facts: Facts, stored: StoredTensor, mate: TensorState, count: int) -> Hit:
        """A module that its family does not know again, though it knows the same module of other layers."""
        module = stored.name.rpartition(".")[0]
        odd, other, kind = _odd_plane(facts, stored, mate)
        suffix = odd.name[len(module) + 1 :]
        beside = (
            f"; {mate.tensor.module} has {other.dtype} {list(other.shape)}"
            if other is not None
            else ""
        )
        return self.hit(
            facts.of_stored(odd, f"{module}.weight"),
            f"{suffix} {odd.dtype} {list(odd.shape)} fits no reading{beside}",
            fold=f"{suffix}|{odd.shape}|{mate.tensor.family}",
            impact="the tensor cannot be decoded; a reader that does not check reads past a plane",
            try_=f"write {module} again with the producer's tool",
            severity="disagreement" if kind == "SCALE-DTYPE" else "violation",
            kind=kind,
            data={"shape": list(odd.shape), "mates": count, "family": mate.tensor.word},
        )


def _odd_plane(
    facts: Facts, stored: StoredTensor, mate: TensorState
) -> tuple[StoredTensor, Plane | None, str]:
    """The plane of a module that differs from its mate's, the mate's plane, and the kind of the fault."""
    module = stored.name.rpartition(".")[0]
    for plane in mate.tensor.planes:
        own = facts.index.get(module, plane.suffix)
        if own is None or (own.shape == plane.shape and own.dtype == plane.dtype):
            continue
        turned = len(own.shape) == 2 and own.shape == plane.shape[::-1] != plane.shape
        if plane.role == "codes":
            return own, plane, "ORIENT" if turned else "PACK-BITS"
        if plane.role in ("scale", "scale2"):
            if len(own.shape) < len(plane.shape):
                return own, plane, "SCALE-LAYOUT"
            return own, plane, "SCALE-DTYPE" if own.shape == plane.shape else "GROUP"
        return own, plane, {"group_index": "G-IDX"}.get(plane.role, "ZP-PRESENCE")
    return stored, None, "PACK-BITS"


def _has_scale(facts: Facts, module: str) -> bool:
    """Whether a module stores a scale under any known suffix."""
    return any(
        facts.index.get(module, suffix) is not None
        for suffix, kind in mates.SIDE_KINDS.items()
        if kind in ("SCALE-MISSING", "BNB")
    )


BNB_TABLES = {"nf4": "nf4", "fp4": "bnb_fp4"}
"""Type word of a quant_state -> value table."""


class BnbState(Rule):
    """A quant_state that cannot be read, or tables of the wrong length."""

    code = "QP009"
    name = "bnb-state-unreadable"
    kind = "BNB"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="The JSON of every bitsandbytes quant_state (type, block size, shape, nested block size) and the order of "
        "its code table.",
        why="Without its state a packed 4-bit weight has no shape, no table and no blocks.",
        evidence="The bytes of the state; proved.",
        proves_not="That a readable state is of these bytes: the size equations say that.",
        sample="bnb-state-broken",
        reports=("bitsandbytes#1946", "unsloth#10276"),
    )

    NEEDED = ("quant_type", "blocksize", "shape")

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Every stored quant_state."""
        for stored in facts.ending("bitsandbytes__nf4", "bitsandbytes__fp4"):
            fault = self._fault(facts, stored)
            if fault is None:
                continue
            module = stored.name.partition(".weight.")[0]
            yield self.hit(
                facts.of_stored(stored, f"{module}.weight"),
                f"quant_state {fault}",
                fold=fault,
                many=f"{{count}} quant_states: {fault}",
                impact="the weight cannot be decoded",
                try_="add the state from the producer's output",
                data={"fault": fault},
            )

    def _fault(self, facts: Facts, stored: StoredTensor) -> str | None:
        small = facts.small(stored.name)
        if small is None:
            return None
        raw = bytes(int(value) & 255 for value in small.values)
        try:
            state = json.loads(raw)
        except (ValueError, RecursionError):
            return "is no JSON"
        if not isinstance(state, dict):
            return "is no JSON object"
        lacking = [key for key in self.NEEDED if key not in state]
        if lacking:
            return f"lacks {', '.join(lacking)}"
        shape = state["shape"]
        good = isinstance(shape, list) and all(isinstance(n, int) and n > 0 for n in shape)
        if not good:
            return f"has the shape {str(shape)[:40]}"
        if not isinstance(state["blocksize"], int) or state["blocksize"] <= 0:
            return f"has the block size {str(state['blocksize'])[:20]}"
        if state["quant_type"] not in BNB_TABLES:
            return f"has the type {str(state['quant_type'])[:20]}"
        offset = state.get("nested_offset", 0)
        if not isinstance(offset, int | float) or not math.isfinite(offset):
            return f"has the nested offset {str(offset)[:20]}"
        return self._table(facts, stored, str(state["quant_type"]))

    def _table(self, facts: Facts, stored: StoredTensor, word: str) -> str | None:
        """A stored code table against the type's own."""
        table = facts.small(stored.name.partition(".quant_state")[0] + ".quant_map")
        usual = float_table(BNB_TABLES[word]).tolist()
        if table is None or len(table.values) != len(usual):
            return None
        close = all(abs(a - b) < 1e-3 for a, b in zip(table.values, usual, strict=True))
        return None if close else f"says {word}, and quant_map is another table"


RULES = (BnbState, PlaneMissing, PlaneWithoutCodes, Unrecognised)
