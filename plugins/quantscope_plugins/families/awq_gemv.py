"""AWQ GEMV: qweight packed along the input axis, scales and zeros by row, both padded with zeros.

Planes and padding: AutoAWQ (awq/modules/linear/gemv.py). The padded width is that of `calculate_zeros_width`:
whole words of eight groups, rounded up to 1, 2 or 4 of them for groups of 128 and more, 64 and 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Equation,
    Evidence,
    GroupLevel,
    LogicalTensor,
    Packing,
    Plane,
    Reading,
    Sample,
    ScaleLevel,
)

from quantscope_plugins.families import qweight_config
from quantscope_plugins.families.awq_gemm import FLOATS, PER_WORD, WORDS
from quantscope_plugins.families.packed_axis import PackedAxis
from quantscope_plugins.families.stored_zeros import true_zeros

SIZES = (128, 64, 32, 256, 512, 1024)


class AwqGemv(FamilyBase):
    """AWQ GEMV, 4 bits."""

    name: ClassVar[str] = "awq_gemv"
    title: ClassVar[str] = "AWQ GEMV (qweight packed along in, scales by row)"

    def signature(self) -> Signature:
        """`qweight` beside `qzeros`."""
        return Signature(last_parts=("qweight",))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor]:
        """One logical tensor per module whose qweight, scales and qzeros have as many rows."""
        says = "gemv" in qweight_config.formats(declared)
        for module in index.modules_with("qweight"):
            qweight, scales, qzeros = (
                index.get(module, suffix) for suffix in ("qweight", "scales", "qzeros")
            )
            if qweight is None or scales is None or qzeros is None:
                continue
            if qweight.dtype not in WORDS or qzeros.dtype not in WORDS:
                continue
            if not len(qweight.shape) == len(scales.shape) == len(qzeros.shape) == 2:
                continue
            n_out = qweight.shape[0]
            if scales.shape != (n_out, qzeros.shape[1] * PER_WORD) or qzeros.shape[0] != n_out:
                continue
            planes = (
                index.plane("codes", module, "qweight"),
                index.plane("zero", module, "qzeros"),
                index.plane("scale", module, "scales"),
                index.plane("bias", module, "bias"),
            )
            sizes = qweight_config.declared_sizes(module, declared)
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="awq_gemv",
                shape=(n_out, qweight.shape[1] * PER_WORD),
                planes=tuple(plane for plane in planes if plane is not None),
                certainty=3 if says else 2,
                facts=(("sizes", ",".join(map(str, sizes))),) if sizes else (),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about qweight planes."""
        return qweight_config.qweight_claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Group sizes; the padded width leaves some of them open."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        if qweight is None or scales is None:
            return
        n_in = qweight.shape[1] * PER_WORD
        declared = [int(size) for size in tensor.fact("sizes").split(",") if size]
        levels: list[GroupLevel] = [
            GroupLevel(axis="in", size=size)
            for size in dict.fromkeys((*declared, *SIZES))
            if size < n_in or size in declared
        ]
        for level in (*levels, GroupLevel(axis="channel")):
            if padded_groups(n_in, level.size) != scales.shape[1]:
                continue
            yield Reading(
                element="u4",
                bit_width=4,
                shape=(qweight.shape[0], n_in),
                group=(level,),
                scale=(
                    ScaleLevel(dtype=SCALE_WORDS.get(scales.dtype, scales.dtype), name="scales"),
                ),
                zero="integer",
                zero_convention="as_is",
                packing=Packing(word=qweight.dtype, axis="in", order="sequential"),
                basis="input channels rescaled",
                arithmetic=Arithmetic(output="f16"),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of qweight, scales and qzeros with their padding."""
        n_out, n_in = reading.shape
        padded = padded_groups(n_in, reading.group[0].size)
        return [
            demand(
                tensor.plane("codes"),
                "qweight",
                "I32 [N, K*4/32]",
                (n_out, n_in // PER_WORD),
                dtypes=WORDS,
                substituted=f"[{n_out}, {n_in}*4/32]",
            ),
            demand(
                tensor.plane("scale"),
                "scales",
                "[N, pad(ceil(K/g))]",
                (n_out, padded),
                dtypes=FLOATS,
                substituted=f"[{n_out}, pad(ceil({n_in}/{reading.group_size}))]",
            ),
            demand(
                tensor.plane("zero"),
                "qzeros",
                "I32 [N, pad(ceil(K/g))/8]",
                (n_out, padded // PER_WORD),
                dtypes=WORDS,
                substituted=f"[{n_out}, {padded}/8]",
            ),
        ]

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Scales beyond the last group are padding."""
        if plane.role != "scale":
            return None
        groups = ceil_div(reading.shape[1], reading.group_size)
        counted: Array = numbers % plane.shape[1] < groups
        return counted

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales and zeros of its groups."""
        qweight, scales, qzeros = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        assert qweight is not None
        assert scales is not None
        assert qzeros is not None
        rows, cols = window.rows, window.cols
        size = reading.group_size
        first = cols.start // size
        used = range(first, ceil_div(cols.stop, size) if len(cols) else first)
        words, skip = _AXIS.cover(cols, qweight.shape[1])
        codes = _AXIS.unpack(reader.read(qweight, rows, words), skip + len(cols), axis=-1)
        zero_words, zero_skip = _AXIS.cover(used, qzeros.shape[1])
        packed = reader.read(qzeros, rows, zero_words)
        zero, stored = true_zeros(
            packed, _AXIS, used, used.start - zero_skip, reading.zero_convention
        )
        return Parts(
            codes=codes[:, skip:],
            combine="affine",
            scale=(reader.floats(scales, rows, used),),
            zero=zero.T,
            stored_zero=stored.T,
            group_of_column=np.arange(cols.start, cols.stop) // size - first,
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits in qweight, the row's scale and zero of the column's group."""
        qweight, scales, qzeros = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        assert qweight is not None
        group = col // reading.group_size
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            per_plane["scale"] = (element_span(scales, row * scales.shape[1] + group),)
        if qzeros is not None:
            per_plane["zero"] = tuple(
                element_span(qzeros, row * qzeros.shape[1] + word, low, width)
                for word, low, width in _AXIS.fields(group)
            )
        spans = tuple(
            element_span(qweight, row * qweight.shape[1] + word, low, width)
            for word, low, width in _AXIS.fields(col)
        )
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """How many groups have scales: the rest of each row is zero padding."""
        scales = tensor.plane("scale")
        if scales is None or not readings:
            return
        rows = range(min(scales.shape[0], 256))
        values = reader.floats(scales, rows)
        used = int(np.flatnonzero((values != 0).any(axis=0)).max(initial=-1)) + 1
        yield padding_evidence(readings, used, Sample(len(rows), scales.shape[0], "rows"))


_AXIS = PackedAxis(word_bits=32, bit_width=4, order="sequential")


def padding_evidence(readings: Sequence[Reading], used: int, sample: Sample) -> Evidence:
    """Which group sizes have as many groups as there are scales other than zero."""
    fits = [
        reading.contract_values()["group"]
        for reading in readings
        if ceil_div(reading.shape[1], reading.group_size) == used
    ]
    return Evidence(
        field="group",
        method="zero padding",
        supports=tuple(fits),
        strength="strong" if len(fits) == 1 else None,
        numbers={"groups_with_scales": used},
        sample=sample,
        assumes=("no whole group of the tensor has a scale of zero",),
    )


def padded_groups(n_in: int, size: object) -> int:
    """Groups a row after padding. Source: AutoAWQ, awq/modules/linear/gemv.py (calculate_zeros_width)."""
    group_size = size if isinstance(size, int) else n_in
    multiple = 4 if group_size == 32 else 2 if group_size == 64 else 1
    if group_size < 32:
        return 0
    words = ceil_div(ceil_div(n_in, group_size), PER_WORD)
    return ceil_div(words, multiple) * multiple * PER_WORD
