"""GPTQ: qweight packed along the input axis, qzeros along the output axis, scales [groups, out].

Planes, packing and conventions: AutoGPTQ (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py), GPTQModel
(gptqmodel/nn_modules/qlinear/__init__.py, gptqmodel/utils/planar_packing.py, gptqmodel/utils/model.py),
AutoRound (auto_round/inference/backend.py). W[n, k] = scales[g, n] * (q[k, n] - zero[g, n]) with
g = g_idx[k], in float32 with one rounding per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode.affine import decode_lines
from quantscope.decode.bits import unpack_words
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.decode.window import row_major
from quantscope.errors import UndecodableError
from quantscope.families.base import SCALE_WORDS, FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Companion,
    Equation,
    Evidence,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Plane,
    Reading,
    Sample,
    ScaleLevel,
    Slice,
)

from quantscope_plugins.families import qweight_config, scale_grid
from quantscope_plugins.families.packed_axis import PackedAxis
from quantscope_plugins.families.stacks import experts, part_name, part_plane
from quantscope_plugins.families.stored_zeros import true_zeros

BIT_WIDTHS = (4, 8, 3, 2, 5, 6, 7)
PLANAR_ONLY = (5, 6, 7)
"""Widths that only the planar format writes (GPTQModel, gptqmodel/nn_modules/qlinear/__init__.py)."""

WORDS = ("I32", "U32", "I16", "I64", "I8", "U8")
"""Dtypes of packed words; GPTQModel's pack_dtype allows 8 to 64 bits, 32 is the rule."""

FLOATS = ("F16", "BF16", "F32")

SUFFIXES = ("qweight", "qzeros", "scales", "g_idx")


class Gptq(FamilyBase):
    """GPTQ v1, v2 and planar, 2 to 8 bits, with or without act-order or stored zeros."""

    name: ClassVar[str] = "gptq"
    title: ClassVar[str] = "GPTQ (qweight packed along in, zeros along out)"

    def signature(self) -> Signature:
        """`qweight` beside `scales`."""
        return Signature(last_parts=SUFFIXES)

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module whose planes have the GPTQ shapes, or whose declaration says so."""
        says_gptq = bool(
            qweight_config.methods(declared) & {"gptq", *qweight_config.AUTOROUND_METHODS}
        )
        modules = dict.fromkeys(
            module for suffix in SUFFIXES for module in index.modules_with(suffix)
        )
        for module in modules:
            qweight, scales = index.get(module, "qweight"), index.get(module, "scales")
            if qweight is None or scales is None:
                yield from self._orphans(index, module, says_gptq)
                continue
            certainty = _certainty(qweight, scales, index.get(module, "qzeros"), says_gptq)
            if certainty:
                for part in experts(qweight.shape):
                    yield self._tensor(index, declared, module, certainty, part)

    def _orphans(self, index: TensorIndex, module: str, says_gptq: bool) -> Iterator[Orphan]:
        """Planes without qweight or scales; `scales` and `g_idx` alone are nobody's unless GPTQ is declared."""
        missing = tuple(
            suffix for suffix in ("qweight", "scales") if index.get(module, suffix) is None
        )
        if index.get(module, "weight") is not None and index.get(module, "qweight") is None:
            return
        qweight = index.get(module, "qweight")
        if not says_gptq and (qweight is None or qweight.dtype not in ("I32", "U32")):
            return
        for suffix in SUFFIXES:
            stored = index.get(module, suffix)
            if stored is not None:
                yield Orphan(
                    stored_name=stored.name, module=module, family=self.name, missing=missing
                )

    def _tensor(
        self,
        index: TensorIndex,
        declared: Declarations,
        module: str,
        certainty: int,
        part: Slice | None,
    ) -> LogicalTensor:
        planes = [
            part_plane(index, "codes", module, "qweight", part),
            part_plane(index, "zero", module, "qzeros", part),
            part_plane(index, "scale", module, "scales", part),
            part_plane(index, "group_index", module, "g_idx", part),
            part_plane(index, "bias", module, "bias", part),
        ]
        kept = tuple(plane for plane in planes if plane is not None)
        words = qweight_config.formats(declared)
        facts = [
            ("sizes", ",".join(map(str, qweight_config.declared_sizes(module, declared)))),
            ("producer", declared.once("gptq producer", lambda: qweight_config.producer(declared))),
            (
                "minus_one_producer",
                declared.once("gptq marker", lambda: qweight_config.minus_one_producer(declared)),
            ),
        ]
        if words & {"gptq_v2", "auto_round", "auto_round:gptqmodel"}:
            facts.append(("zeros", "as_is"))
        rows, n_out = kept[0].shape if len(kept[0].shape) == 2 else (0, 0)
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word="gptq_planar" if "gptq_p" in words else "gptq",
            shape=(n_out, rows * (STORAGE_BITS[kept[0].dtype] // 4)),
            planes=kept,
            part=part,
            certainty=certainty,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about qweight planes: global keys, `dynamic`, `extra_config`, file metadata."""
        return qweight_config.qweight_claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Widths x group sizes x zero conventions (x continuous and planar at 3 bits)."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        if qweight is None or scales is None or len(qweight.shape) != 2:
            return
        g_idx = tensor.plane("group_index")
        counts = scale_grid.row_counts(scales, tensor.plane("zero"))
        for bit_width in BIT_WIDTHS:
            n_in = _n_in(qweight, g_idx, bit_width)
            if n_in <= 0:
                continue
            sizes = _sizes(tensor)
            levels = (lv for count in counts for lv in scale_grid.in_levels(n_in, count, sizes))
            for level in dict.fromkeys(levels):
                for order in _orders(tensor, bit_width):
                    yield from _readings(tensor, bit_width, (qweight.shape[1], n_in), level, order)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of qweight, qzeros, scales and g_idx."""
        (n_out, n_in), width = reading.shape, reading.bit_width
        size = reading.group_size
        n_groups = ceil_div(n_in, size)
        qweight = tensor.plane("codes")
        word = qweight.dtype if qweight else "I32"
        word_bits = STORAGE_BITS[word]
        axis = _axis(reading, word_bits)
        equations = [
            demand(
                qweight,
                "qweight",
                f"{word} [K*b/{word_bits}, N]",
                (axis.n_words(n_in), n_out),
                substituted=f"[{n_in}*{width}/{word_bits}, {n_out}]",
            ),
            demand(
                tensor.plane("scale"),
                "scales",
                "[ceil(K/g), N]",
                (n_groups, n_out),
                dtypes=FLOATS,
                substituted=f"[ceil({n_in}/{size}), {n_out}]",
                alternatives=((n_out,),) if n_groups == 1 else (),
            ),
        ]
        if reading.zero == "integer":
            equations.append(
                demand(
                    tensor.plane("zero"),
                    "qzeros",
                    f"{word} [ceil(K/g), N*b/{word_bits}]",
                    (n_groups, axis.n_words(n_out)),
                    dtypes=(word,),
                    substituted=f"[ceil({n_in}/{size}), {n_out}*{width}/{word_bits}]",
                )
            )
        equations.append(
            demand(
                tensor.plane("group_index"),
                "g_idx",
                "I32 [K]",
                (n_in,),
                dtypes=("I32", "I64"),
                optional=True,
            )
        )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales and zeros of the groups that its columns use."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        assert qweight is not None
        assert scales is not None
        rows, cols = window.rows, window.cols
        groups = _group_numbers(tensor, reading, cols, reader)
        first = int(groups.min()) if groups.size else 0
        used = range(first, int(groups.max()) + 1 if groups.size else first)
        axis = _axis(reading, STORAGE_BITS[qweight.dtype])
        words, skip = axis.cover(cols, qweight.shape[0])
        packed = reader.read(qweight, words, rows)
        codes = axis.unpack(packed, skip + len(cols), axis=0)[skip:].T
        zero, stored = self._zeros(tensor, reading, used, rows, reader)
        return Parts(
            codes=codes,
            combine="affine",
            scale=(reader.floats(scales, used, rows).T,),
            zero=zero,
            stored_zero=stored,
            group_of_column=groups - first,
        )

    def decode(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        window: Window,
        reader: PlaneReader,
        as_producer: bool,
    ) -> Array | None:
        """Whole groups of natural order straight from their words; None leaves the window to `parts`.

        Words are turned before they are unpacked: eight codes move at once, and rows come out one after the other.
        """
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        size, cols = reading.group_size, window.cols
        if (
            qweight is None
            or scales is None
            or reading.packing.order != "sequential"
            or size % (STORAGE_BITS[qweight.dtype] // reading.bit_width)
            or (as_producer and reading.arithmetic.output != "f32")
            or not len(window.rows)
            or not len(cols)
            or cols.start % size
            or (cols.stop % size and cols.stop != reading.shape[1])
        ):
            return None
        natural = np.arange(cols.start, cols.stop) // size
        if not np.array_equal(_group_numbers(tensor, reading, cols, reader), natural):
            return None
        used = range(cols.start // size, ceil_div(cols.stop, size))
        axis = _axis(reading, STORAGE_BITS[qweight.dtype])
        words, _ = axis.cover(cols, qweight.shape[0])
        zero, _ = self._zeros(tensor, reading, used, window.rows, reader)
        packed = row_major(reader.read(qweight, words, window.rows).T)
        return decode_lines(
            lambda lines, codes: unpack_words(
                packed[lines], reading.bit_width, count=len(cols), out=codes
            ),
            reader.floats(scales, used, window.rows).T,
            zero.astype(np.float32) if zero.size > 1 else float(zero[0, 0]),
            size,
            group_axis=1,
            out=np.empty(window.shape, np.float32),
        )

    @staticmethod
    def _zeros(
        tensor: LogicalTensor, reading: Reading, used: range, rows: range, reader: PlaneReader
    ) -> tuple[Array, Array | None]:
        """True and stored zeros, [rows, groups]."""
        qzeros = tensor.plane("zero")
        if reading.zero == "fixed" or qzeros is None:
            return np.full((1, 1), reading.midpoint, dtype=np.int16), None
        axis = _axis(reading, STORAGE_BITS[qzeros.dtype])
        words, skip = axis.cover(rows, qzeros.shape[1])
        packed = reader.read(qzeros, used, words)
        convention = reading.zero_convention
        if convention == "minus_one" and tensor.fact("producer") == "gptqmodel":
            convention = "minus_one_word_add"
        return true_zeros(packed, axis, rows, rows.start - skip, convention)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits in qweight; scale and zero of the column's group, which g_idx gives where it is stored."""
        qweight, scales, qzeros, g_idx = (
            tensor.plane(role) for role in ("codes", "scale", "zero", "group_index")
        )
        assert qweight is not None
        n_out = reading.shape[0]
        group = col // reading.group_size
        if g_idx is not None and reader is not None:
            group = int(reader.read(g_idx, None, range(col, col + 1))[0, 0])
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            per_plane["scale"] = (element_span(scales, group * n_out + row),)
        if qzeros is not None and reading.zero == "integer":
            stride = qzeros.shape[1]
            per_plane["zero"] = tuple(
                element_span(qzeros, group * stride + word, low, width)
                for word, low, width in _axis(reading, STORAGE_BITS[qzeros.dtype]).fields(row)
            )
        if g_idx is not None:
            per_plane["group_index"] = (element_span(g_idx, col),)
        spans = tuple(
            element_span(qweight, word * n_out + row, low, width)
            for word, low, width in _axis(reading, STORAGE_BITS[qweight.dtype]).fields(col)
        )
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Whether g_idx is natural, and what a producer that always writes one convention left as a mark."""
        yield _order_evidence(tensor, reader)
        marker = tensor.fact("minus_one_producer")
        if marker and tensor.plane("zero") is not None:
            yield Evidence(
                field="zero_convention",
                method="producer marker",
                supports=("minus_one",),
                strength="weak",
                numbers={"marker": marker},
                assumes=("the producer that left the marker wrote the zeros",),
            )


def _certainty(
    qweight: StoredTensor, scales: StoredTensor, qzeros: StoredTensor | None, says_gptq: bool
) -> int:
    """3 where shapes say GPTQ and nothing else, 2 where another layout could have them, 1 where only names do."""
    if qweight.dtype not in WORDS or len(qweight.shape) not in (2, 3):
        return 0
    if qzeros is not None and qzeros.dtype not in WORDS:
        unpacked = says_gptq and qweight.dtype in ("I32", "U32") and qzeros.shape == scales.shape
        return 1 if unpacked else 0
    n_out = scales.shape[-1] if scales.shape else 0
    if qweight.shape[-1] != n_out:
        return 1 if says_gptq and qweight.dtype in ("I32", "U32") else 0
    if qweight.dtype not in ("I32", "U32") and not says_gptq:
        return 0
    if qweight.shape[-2] != scales.shape[-2:][0]:
        return 3
    # One group a word is no group size of GPTQ; at 4 bits these are also the shapes of AWQ GEMV.
    four_bits = qzeros is not None and qzeros.shape[-1:] == (ceil_div(n_out, 8),)
    return 1 if four_bits and not says_gptq else 2


def _sizes(tensor: LogicalTensor) -> list[int]:
    return [int(size) for size in tensor.fact("sizes").split(",") if size]


def _n_in(qweight: Plane, g_idx: Plane | None, bit_width: int) -> int:
    if g_idx is not None and len(g_idx.shape) == 1:
        return g_idx.shape[0]
    return qweight.shape[0] * STORAGE_BITS[qweight.dtype] // bit_width


def _orders(tensor: LogicalTensor, bit_width: int) -> tuple[str, ...]:
    if bit_width in PLANAR_ONLY:
        return ("planar",)
    if bit_width == 3:
        planar = tensor.word == "gptq_planar"
        return ("planar", "bitstream") if planar else ("bitstream", "planar")
    return ("sequential",)


def _axis(reading: Reading, word_bits: int) -> PackedAxis:
    return PackedAxis(word_bits=word_bits, bit_width=reading.bit_width, order=reading.packing.order)


def _readings(
    tensor: LogicalTensor,
    bit_width: int,
    shape: tuple[int, int],
    level: GroupLevel,
    order: str,
) -> Iterator[Reading]:
    qweight, scales, qzeros = (tensor.plane(r) for r in ("codes", "scale", "zero"))
    assert qweight is not None
    assert scales is not None
    as_is = order == "planar" or tensor.word == "gptq_planar" or tensor.fact("zeros") == "as_is"
    conventions = ("as_is", "minus_one") if as_is else ("minus_one", "as_is")
    for convention in conventions if qzeros is not None else ("not_applicable",):
        yield Reading(
            element=f"u{bit_width}",
            bit_width=bit_width,
            shape=shape,
            group=(level,),
            scale=(ScaleLevel(dtype=SCALE_WORDS.get(scales.dtype, scales.dtype), name="scales"),),
            zero="fixed" if qzeros is None else "integer",
            midpoint=1 << (bit_width - 1),
            zero_convention=convention,
            packing=Packing(word=qweight.dtype, axis="in", order=order),
            symmetric=True if qzeros is None else None,
            arithmetic=Arithmetic(
                output="bf16" if tensor.fact("producer") == "auto-round" else "f32"
            ),
        )


def _group_numbers(
    tensor: LogicalTensor, reading: Reading, cols: range, reader: PlaneReader
) -> Array:
    """Group of each column: g_idx where it is stored.

    Raises:
        UndecodableError: g_idx names a group that has no scale.
    """
    g_idx, scales = tensor.plane("group_index"), tensor.plane("scale")
    if g_idx is None:
        numbers: Array = np.arange(cols.start, cols.stop) // reading.group_size
        return numbers
    numbers = reader.read(g_idx, None, cols)[0].astype(np.int64)
    limit = scales.shape[0] if scales is not None and len(scales.shape) == 2 else 1
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        raise UndecodableError(
            f"g_idx of {tensor.module} names group {int(numbers.max())} (lowest "
            f"{int(numbers.min())}), there are scales for {limit}",
            source=tensor.name,
        )
    return numbers


def _order_evidence(tensor: LogicalTensor, reader: PlaneReader) -> Evidence:
    g_idx = tensor.plane("group_index")
    if g_idx is None or len(g_idx.shape) != 1:
        return Evidence(
            field="order",
            method="g_idx",
            supports=("natural",),
            strength="weak",
            assumes=("no g_idx stored",),
        )
    values = reader.read(g_idx)[0].astype(np.int64)
    natural = bool((np.diff(values) >= 0).all())
    return Evidence(
        field="order",
        method="g_idx",
        supports=("natural" if natural else "act_order",),
        strength="proved",
        numbers={
            "groups_used": int(np.unique(values).size),
            "first": [int(v) for v in values[:8]],
        },
        sample=Sample(values.size, values.size, "channels"),
    )
