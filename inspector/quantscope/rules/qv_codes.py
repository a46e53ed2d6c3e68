"""QV00x: health of codes: dead and constant planes, one-sided histograms, blank and random regions, plain NaN."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

import msgspec
import numpy as np

from quantscope.containers.records import StoredTensor
from quantscope.infer.code_windows import CodeWindows
from quantscope.model import Subject
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import WEIGHT_DTYPES, Facts
from quantscope.session.inspection import TensorState

MIN_ROWS = 4
"""Fewer zero rows than this in a large tensor are pruning, not damage."""
ONE_SIDED = 0.03
"""Asymmetric codes reach both ends in every group of 128, so even a dead zero plane leaves some on each side."""
MIN_ELEMENTS = 2048
RANDOM_BITS = 7.943
"""Entropy of a 4 KiB window of random bytes is 7.955 bits a byte, give or take 0.004."""
ENTROPY_GAP = 0.07
SPREADS = 8
"""A random window stands this many spreads above the others, whatever their own entropy."""
MUCH_BLANK = 0.4
"""Unused vocabulary rows are blank on purpose, but never so large a share of an embedding."""
MIN_WINDOWS = 4
SIBLING_GAP = 0.25
NEAR_EDGE = 16
"""Bytes by which a blank region may miss the edge of a row by chance."""
PLAIN_ELEMENTS = 1 << 18
DAMAGED = "compare the file's SHA-256 with the publisher's; download the file again if they differ"


def is_embedding(state: TensorState) -> bool:
    """Whether rows of a tensor are vocabulary entries, of which many are never trained."""
    return names.is_embedding(state.tensor.module) or names.is_head(state.tensor.module)


def all_dead(state: TensorState) -> bool:
    """Whether every sampled row decodes to zero, or every byte of the codes is one repeated byte."""
    codes, windows = state.exam.codes, state.exam.windows
    if codes is not None and codes.rows and codes.zero_rows == codes.rows:
        return True
    return bool(
        windows is not None
        and windows.bytes_examined >= 1024
        and windows.blank_bytes >= windows.bytes_examined * 0.99
        and (codes is None or codes.constant_rows == codes.rows)
    )


class DeadPlane(Rule):
    """A weight that decodes to zero, in whole or in a run of rows."""

    code = "QV001"
    name = "dead-plane"
    kind = "DEAD-PLANE"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="Rows whose codes all decode to zero, and code planes of one repeated byte.",
        why="A module of zeros contributes nothing; statistics of its scales look sound.",
        evidence="Sampled rows, and all bytes of code planes up to 4 MiB.",
        proves_not="A pruned or padded row is zero on purpose: single rows and vocabulary padding are left alone.",
        sample="gptq-dead-plane",
        reports=("compressed-tensors#854",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """All-zero tensors, then runs of zero rows."""
        for state in facts.states:
            codes, plane = state.exam.codes, state.tensor.plane("codes")
            if codes is None or not codes.rows:
                continue
            if all_dead(state) and codes.zero_rows == codes.rows:
                yield self.hit(
                    facts.of_tensor(state, plane),
                    f"every one of {codes.rows} sampled rows decodes to zero",
                    fold="whole",
                    many="{count} tensors decode to zero everywhere",
                    impact="the module's output is zero",
                    try_="quantize the tensor again",
                    data={"rows": codes.rows},
                )
            elif codes.zero_rows >= max(MIN_ROWS, codes.rows // 100) and not is_embedding(state):
                yield self.hit(
                    facts.of_tensor(state, plane),
                    f"{codes.zero_rows} of {codes.rows} sampled rows decode to zero, the first is row "
                    f"{codes.first_zero_row}",
                    fold="rows",
                    many="{zero_rows} of {rows} sampled rows of {count} tensors decode to zero",
                    impact="the output channels concerned are zero",
                    try_="quantize the tensor again",
                    severity="warning",
                    data={
                        "zero_rows": codes.zero_rows,
                        "rows": codes.rows,
                        "first": codes.first_zero_row,
                    },
                )


class ConstantCodes(Rule):
    """Rows in which every code is the same and not zero."""

    code = "QV002"
    name = "constant-codes"
    kind = "DEAD-PLANE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Rows whose codes are all equal without decoding to zero.",
        why="A weight row of one value is what an uninitialised or overwritten plane looks like.",
        evidence="Sampled rows.",
        proves_not="Constant zero-point planes of symmetric schemes are no codes and are left alone.",
        sample="gptq-constant-codes",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with many constant rows."""
        for state in facts.states:
            codes = state.exam.codes
            if codes is None or not codes.rows or is_embedding(state):
                continue
            reading = state.reading or state.solved.chosen
            if reading is None or reading.shape[-1] < 32:
                continue
            live = codes.constant_rows - codes.zero_rows
            if live < max(MIN_ROWS, codes.rows // 100):
                continue
            yield self.hit(
                facts.of_tensor(state, state.tensor.plane("codes")),
                f"{live} of {codes.rows} sampled rows hold one code value only",
                fold="constant",
                many="{constant} sampled rows of {count} tensors hold one code value only",
                impact="the output channels concerned are the sum of their inputs times a constant",
                try_="quantize the tensor again",
                data={"constant": live, "rows": codes.rows},
            )


class OneSided(Rule):
    """Codes on one side of zero only."""

    code = "QV003"
    name = "one-sided-codes"
    kind = "DEAD-PLANE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Whether nearly all codes lie on one side of their zero point.",
        why="A converter that clips signed codes to unsigned ones loses half of the weights.",
        evidence="Histogram of sampled codes.",
        proves_not="A matrix of non-negative weights is one-sided by nature; trained linear layers are not.",
        sample="ct-one-sided",
        reports=("1bit-MONSTER#451",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Tensors with next to nothing on one side."""
        for state in facts.states:
            codes = state.exam.codes
            if codes is None or codes.elements < MIN_ELEMENTS or all_dead(state):
                continue
            low, high = sorted((codes.below_zero, codes.above_zero))
            if not high or low > ONE_SIDED * high or high < codes.elements // 8:
                continue
            side = "below" if codes.below_zero > codes.above_zero else "above"
            rest = codes.elements - low - high
            yield self.hit(
                facts.of_tensor(state, state.tensor.plane("codes"), "element"),
                f"code histogram is one-sided: {high / codes.elements:.0%} {side} zero, "
                f"{rest / codes.elements:.0%} at zero, {low / codes.elements:.1%} on the other side",
                fold=side,
                many=f"code histograms of {{count}} tensors are one-sided ({side} zero)",
                impact="half of the weights' range is lost",
                try_="quantize the tensor again; check the converter's sign handling",
                confidence="strong",
                data={
                    "below": codes.below_zero,
                    "above": codes.above_zero,
                    "elements": codes.elements,
                },
                would_settle="the unquantized weights of one row",
            )


class BlankRegion(Rule):
    """A stretch of one repeated byte inside codes."""

    code = "QV004"
    name = "blank-region"
    kind = "DEAD-PLANE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Runs of a kibibyte and more of one byte value in code planes.",
        why="A hole in a sparse file or a failed write reads as zeros.",
        evidence="All bytes of code planes up to 4 MiB, stretches of larger ones.",
        proves_not="Unused vocabulary rows are blank too: whole rows of embeddings and heads are left alone.",
        sample="gguf-blank-region",
        reports=("llama.cpp#13258", "compressed-tensors#854"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Code planes with blank bytes that no other rule speaks of."""
        for state in facts.states:
            windows = state.exam.windows
            if windows is None or not windows.blank_bytes:
                continue
            much = windows.blank_bytes >= windows.bytes_examined * MUCH_BLANK
            if is_embedding(state) and not much and not _within_rows(state, windows):
                continue
            codes = state.exam.codes
            if codes is not None and codes.rows and codes.zero_rows == codes.rows:
                continue
            yield self.hit(
                _at(facts, state, windows, windows.blank_at, windows.blank_bytes),
                f"{windows.blank_bytes} bytes of {windows.bytes_examined} are blank "
                f"({windows.blank_value:#04x} repeated), from byte {windows.blank_at}",
                fold=f"{windows.blank_value}",
                many=f"{{blank}} bytes in {{count}} tensors are blank ({windows.blank_value:#04x} repeated)",
                impact="the weights concerned are constant",
                try_=DAMAGED,
                who="download",
                data={
                    "blank": windows.blank_bytes,
                    "byte": windows.blank_value,
                    "at": windows.blank_at,
                },
                would_settle="the publisher's file hash",
            )


def _within_rows(state: TensorState, windows: CodeWindows) -> bool:
    """Whether the first blank region begins and ends inside rows, as damage does and unused rows do not."""
    plane, reading = state.tensor.plane("codes"), state.reading or state.solved.chosen
    if plane is None or reading is None or windows.bytes_total % reading.shape[0]:
        return False
    row = windows.bytes_total // reading.shape[0]
    edges = (windows.blank_at - plane.byte_offset, windows.blank_until - plane.byte_offset)
    return all(NEAR_EDGE < edge % row < row - NEAR_EDGE for edge in edges)


def _at(facts: Facts, state: TensorState, windows: CodeWindows, start: int, length: int) -> Subject:
    return Subject(
        tensor=state.tensor.name,
        stored=windows.stored_name,
        file=facts.file_name(windows.file_id),
        byte_range=(start, start + length),
    )


class EntropyFar(Rule):
    """Bytes that are far more random than their neighbours or siblings."""

    code = "QV005"
    name = "entropy-far"
    kind = "DEAD-PLANE"
    severity = "warning"
    needs = "sample"
    page = Page(
        checks="Byte entropy of 4 KiB windows against the plane's median, and of whole planes against the same module "
        "in other layers.",
        why="Damage in transfer replaces codes by random bytes: the header stays valid and chat looks fine.",
        evidence="Entropy in bits a byte; random bytes have 8.",
        proves_not="Formats whose codes are near uniform (NF4, vector codebooks) hide random damage.",
        sample="int8-random-bytes",
        reports=("vllm#53537",),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Windows within planes, then planes among siblings."""
        alike: dict[tuple[str, str, int], list[TensorState]] = defaultdict(list)
        for state in facts.states:
            windows = state.exam.windows
            if windows is None or windows.bytes_examined < 1024:
                continue
            size = windows.bytes_examined
            alike[names.role_of(state.tensor.module), state.tensor.word, size].append(state)
            high = windows.entropy_highest
            above = high - windows.entropy_quartile
            if (
                windows.windows >= MIN_WINDOWS
                and high > RANDOM_BITS
                and above > max(ENTROPY_GAP, SPREADS * windows.spread)
            ):
                yield self.hit(
                    _at(facts, state, windows, windows.highest_at, windows.window_bytes),
                    f"a {windows.window_bytes // 1024} KiB window has byte entropy {high:.1f} bits against "
                    f"{windows.entropy_quartile:.1f}",
                    fold="window",
                    many="windows of {count} tensors have the byte entropy of random data",
                    impact="the weights concerned are noise",
                    try_=DAMAGED,
                    who="download",
                    confidence="strong",
                    data={"highest": round(high, 3), "usual": round(windows.entropy_quartile, 3)},
                    would_settle="the publisher's file hash",
                )
        yield from self._siblings(facts, alike)

    def _siblings(
        self, facts: Facts, alike: dict[tuple[str, str, int], list[TensorState]]
    ) -> Iterator[Hit]:
        for group in alike.values():
            found = [(s, s.exam.windows) for s in group]
            values = [w.entropy for _, w in found if w is not None]
            if len(values) < 2:
                continue
            usual = median(values) if len(values) > 2 else min(values)
            for state, windows in found:
                if windows is None or windows.entropy < usual + SIBLING_GAP:
                    continue
                if windows.windows and windows.entropy_lowest < RANDOM_BITS:
                    continue
                if not windows.windows and windows.entropy < 7.8:
                    continue
                yield self.hit(
                    _at(
                        facts,
                        state,
                        windows,
                        state.tensor.planes[0].byte_offset,
                        windows.bytes_total,
                    ),
                    f"code bytes have entropy {windows.entropy:.1f} bits, the same module of other layers "
                    f"{usual:.1f}",
                    fold="sibling",
                    many="code bytes of {count} tensors have the entropy of random data, unlike their siblings",
                    impact="the weights concerned are noise",
                    try_=DAMAGED,
                    who="download",
                    confidence="strong",
                    data={"entropy": round(windows.entropy, 3), "usual": round(usual, 3)},
                    would_settle="the publisher's file hash",
                )


class PlainNotFinite(Rule):
    """An unquantized tensor holds NaN or infinity."""

    code = "QV006"
    name = "plain-not-finite"
    kind = "SCALE-VALUE"
    severity = "violation"
    needs = "sample"
    page = Page(
        checks="Norms, biases and stretches of unquantized matrices for NaN and infinity.",
        why="One NaN in a norm makes every output NaN.",
        evidence="All values of small tensors, three stretches of large ones.",
        proves_not="What was not read.",
        sample="plain-nan",
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Plain float tensors."""
        biases = [
            facts.stored[plane.stored_name]
            for state in facts.states
            if (plane := state.tensor.plane("bias")) is not None
            and plane.stored_name in facts.stored
        ]
        for stored in (*facts.grouping.plain, *dict.fromkeys(biases)):
            if stored.dtype not in WEIGHT_DTYPES or not stored.readable:
                continue
            found = self._count(facts, stored)
            if found is None or not found[0]:
                continue
            bad, examined, first = found
            subject = facts.of_stored(stored, stored.name)
            yield self.hit(
                msgspec.structs.replace(subject, byte_range=first),
                f"{bad} of {examined} values read are NaN or infinite",
                fold=stored.dtype,
                many="{bad} values of {count} plain tensors are NaN or infinite",
                impact="every output that the tensor touches is NaN",
                try_="take the tensor from the unquantized model",
                data={"bad": bad, "examined": examined},
            )

    @staticmethod
    def _count(facts: Facts, stored: StoredTensor) -> tuple[int, int, tuple[int, int]] | None:
        """Bad values, values read and the bytes of the first bad one."""
        size = int(np.prod(stored.shape, dtype=np.int64)) if stored.shape else 1
        deep = facts.inspection.mode == "deep"
        if size <= PLAIN_ELEMENTS or deep:
            starts = list(range(0, max(1, size), PLAIN_ELEMENTS))
        else:
            starts = [0, (size - PLAIN_ELEMENTS) // 2, size - PLAIN_ELEMENTS]
        bad = examined = 0
        item = max(1, stored.nbytes // max(1, size))
        first = (stored.byte_offset, stored.byte_offset + stored.nbytes)
        for start in starts:
            values = facts.array(stored, PLAIN_ELEMENTS, start)
            if values is None:
                return (bad, examined, first) if examined else None
            odd = ~np.isfinite(values)
            if not bad and odd.any():
                place = stored.byte_offset + (start + int(np.argmax(odd))) * item
                first = (place, place + item)
            bad += int(odd.sum())
            examined += values.size
        return bad, examined, first


RULES = (DeadPlane, ConstantCodes, OneSided, BlankRegion, EntropyFar, PlainNotFinite)
