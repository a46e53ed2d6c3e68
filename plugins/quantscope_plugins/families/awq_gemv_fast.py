"""AWQ GEMV-fast, the layout of llm-awq: 16-bit words of four interleaved rows, zeros as -(zero * scale) in half.

Planes and packing: AutoAWQ (awq/modules/linear/gemv_fast.py); llm-awq calls the zero plane `scaled_zeros`
(awq/quantize/qmodule.py). The plain rule is q * scale + qzeros; the producer's own weights are
half((q - round(-qzeros/scale)) * scale).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.decode.combine import combine_parts
from quantscope.decode.interleaved import gemv_fast_bits, unpack_awq_gemv_fast
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
from quantscope_plugins.families.awq_gemv import SIZES, padded_groups, padding_evidence

FLOATS = ("F16", "BF16", "F32")
STRIDE = 64
ROWS = 4


class AwqGemvFast(FamilyBase):
    """AWQ GEMV-fast and llm-awq, 4 bits."""

    name: ClassVar[str] = "awq_gemv_fast"
    title: ClassVar[str] = "AWQ GEMV-fast / llm-awq (four rows interleaved in 16-bit words)"

    def signature(self) -> Signature:
        """`qweight` in 16-bit words."""
        return Signature(last_parts=("qweight",))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor]:
        """One logical tensor per module with 16-bit qweight and float zeros of the scales' shape."""
        for module in index.modules_with("qweight"):
            qweight, scales = index.get(module, "qweight"), index.get(module, "scales")
            name = "qzeros" if index.get(module, "qzeros") is not None else "scaled_zeros"
            zeros = index.get(module, name)
            if qweight is None or scales is None or zeros is None:
                continue
            if qweight.dtype not in ("I16", "U16") or zeros.dtype not in FLOATS:
                continue
            if len(qweight.shape) != 2 or len(scales.shape) != 2:
                continue
            planes = (
                index.plane("codes", module, "qweight"),
                index.plane("scale", module, "scales"),
                index.plane("minimum", module, name),
                index.plane("bias", module, "bias"),
            )
            sizes = qweight_config.declared_sizes(module, declared)
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="awq_gemv_fast",
                shape=(qweight.shape[0] * ROWS, qweight.shape[1]),
                planes=tuple(plane for plane in planes if plane is not None),
                certainty=3,
                facts=(("sizes", ",".join(map(str, sizes))),) if sizes else (),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about qweight planes."""
        return qweight_config.qweight_claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Group sizes; the padded height leaves some of them open."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        if qweight is None or scales is None:
            return
        n_in = qweight.shape[1]
        declared = [int(size) for size in tensor.fact("sizes").split(",") if size]
        levels = [
            GroupLevel(axis="in", size=size)
            for size in dict.fromkeys((*declared, *SIZES))
            if size < n_in or size in declared
        ]
        for level in (*levels, GroupLevel(axis="channel")):
            if padded_groups(n_in, level.size) != scales.shape[0]:
                continue
            yield Reading(
                element="u4",
                bit_width=4,
                shape=(qweight.shape[0] * ROWS, n_in),
                group=(level,),
                scale=(
                    ScaleLevel(dtype=SCALE_WORDS.get(scales.dtype, scales.dtype), name="scales"),
                ),
                zero="additive_min",
                packing=Packing(word=qweight.dtype, axis="in", order="tile"),
                placement="gemv_fast",
                basis="input channels rescaled",
                symmetric=False,
                arithmetic=Arithmetic(output="f16", rule="(code - round(-qzeros/scale)) * scale"),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of qweight, scales and qzeros with their padding."""
        n_out, n_in = reading.shape
        padded = padded_groups(n_in, reading.group[0].size)
        equations = [
            demand(
                tensor.plane("codes"),
                "qweight",
                "I16 [N/4, K], K a multiple of 64",
                (ceil_div(n_out, ROWS), ceil_div(n_in, STRIDE) * STRIDE),
                dtypes=("I16", "U16"),
                substituted=f"[{n_out}/4, {n_in}]",
            )
        ]
        for role in ("scale", "minimum"):
            plane = tensor.plane("scale" if role == "scale" else "minimum")
            equations.append(
                demand(
                    plane,
                    plane.suffix if plane else role,
                    "[pad(ceil(K/g)), N]",
                    (padded, n_out),
                    dtypes=FLOATS,
                    substituted=f"[pad(ceil({n_in}/{reading.group_size})), {n_out}]",
                )
            )
        return equations

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Rows of scales and zeros beyond the last group are padding."""
        if plane.role not in ("scale", "minimum"):
            return None
        groups = ceil_div(reading.shape[1], reading.group_size)
        counted: Array = numbers // plane.shape[1] < groups
        return counted

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with scales and scaled zeros; the stored integer zero is recovered beside them."""
        qweight, scales, zeros = (tensor.plane(r) for r in ("codes", "scale", "minimum"))
        assert qweight is not None
        assert scales is not None
        assert zeros is not None
        rows, cols = window.rows, window.cols
        size = reading.group_size
        first = cols.start // size
        used = range(first, ceil_div(cols.stop, size) if len(cols) else first)
        top, left = rows.start // ROWS, cols.start // STRIDE * STRIDE
        packed = reader.read(
            qweight,
            range(top, ceil_div(rows.stop, ROWS)),
            range(left, ceil_div(cols.stop, STRIDE) * STRIDE),
        )
        codes = unpack_awq_gemv_fast(packed)
        codes = codes[rows.start - top * ROWS :, cols.start - left :]
        scale = reader.floats(scales, used, rows).T
        minimum = reader.floats(zeros, used, rows).T
        return Parts(
            codes=codes[: len(rows), : len(cols)],
            combine="plus_min",
            scale=(scale,),
            minimum=minimum,
            stored_zero=_recovered(scale, minimum),
            group_of_column=np.arange(cols.start, cols.stop) // size - first,
        )

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """The plain rule adds the scaled zero; the producer's subtracts the integer that it came from."""
        if not as_producer:
            return combine_parts(parts, None)
        producer = Parts(
            codes=parts.codes,
            combine="affine",
            scale=parts.scale,
            zero=parts.stored_zero,
            group_of_column=parts.group_of_column,
        )
        return combine_parts(producer, reading.arithmetic)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits in qweight, the scale and the scaled zero of the column's group."""
        qweight = tensor.plane("codes")
        assert qweight is not None
        group = col // reading.group_size
        packed_row, word, low, width = gemv_fast_bits(row, col)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        for role in ("scale", "minimum"):
            plane = tensor.plane("scale" if role == "scale" else "minimum")
            if plane is not None:
                per_plane[role] = (element_span(plane, group * plane.shape[1] + row),)
        spans = (element_span(qweight, packed_row * qweight.shape[1] + word, low, width),)
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """How many rows of scales hold groups: the rest is zero padding."""
        scales = tensor.plane("scale")
        if scales is None or not readings:
            return
        values = reader.floats(scales)
        used = int(np.flatnonzero((values != 0).any(axis=1)).max(initial=-1)) + 1
        yield padding_evidence(readings, used, Sample(scales.shape[0], scales.shape[0], "rows"))


def _recovered(scale: Array, minimum: Array) -> Array:
    """round(-minimum/scale), the integer zero; 0 where there is no scale."""
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = np.rint(-minimum / scale)
    return np.nan_to_num(zeros, nan=0.0, posinf=0.0, neginf=0.0).astype(np.int16)
