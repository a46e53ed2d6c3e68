"""AWQ GEMM: qweight and qzeros packed along the output axis in the order 0 2 4 6 1 3 5 7, zeros as stored.

Planes and packing: AutoAWQ (awq/modules/linear/gemm.py, awq/utils/packing_utils.py); GPTQModel writes the
same with bfloat16 scales, AutoRound with constant zeros. W[n, k] = (q - z) * scale, float32 rounded to half.
Quark's AWQ export may store the eight codes of a word in sequence (quark/torch/utils/pack.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.decode.affine import decode_lines
from quantscope.decode.bits import AWQ_ORDER, unpack_words
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.roundings import round_to
from quantscope.decode.window import row_major
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
    LogicalTensor,
    Packing,
    Reading,
    ScaleLevel,
    Slice,
)

from quantscope_plugins.families import qweight_config, scale_grid
from quantscope_plugins.families.packed_axis import PackedAxis
from quantscope_plugins.families.stacks import experts, part_name, part_plane
from quantscope_plugins.families.stored_zeros import true_zeros

WORDS = ("I32", "U32")
FLOATS = ("F16", "BF16", "F32")
ORDERS = ("awq", "sequential")
PER_WORD = 8


class AwqGemm(FamilyBase):
    """AWQ GEMM, 4 bits."""

    name: ClassVar[str] = "awq_gemm"
    title: ClassVar[str] = "AWQ GEMM (qweight and qzeros packed along out, interleaved)"

    def signature(self) -> Signature:
        """`qweight` beside `scales`."""
        return Signature(last_parts=("qweight",))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor]:
        """One logical tensor per module whose qweight is an eighth as wide as its scales."""
        sequential = _sequential_order(declared)
        for module in index.modules_with("qweight"):
            qweight, scales = index.get(module, "qweight"), index.get(module, "scales")
            if qweight is None or scales is None or qweight.dtype not in WORDS:
                continue
            if len(qweight.shape) not in (2, 3) or len(scales.shape) != len(qweight.shape):
                continue
            qzeros = index.get(module, "qzeros")
            if qzeros is not None and qzeros.dtype not in WORDS:
                continue
            n_out = scales.shape[-1]
            if n_out <= 1 or ceil_div(n_out, PER_WORD) != qweight.shape[-1]:
                continue
            for part in experts(qweight.shape):
                yield self._tensor(index, declared, module, part, sequential)

    def _tensor(
        self,
        index: TensorIndex,
        declared: Declarations,
        module: str,
        part: Slice | None,
        sequential: bool,
    ) -> LogicalTensor:
        planes = [
            part_plane(index, "codes", module, "qweight", part),
            part_plane(index, "zero", module, "qzeros", part),
            part_plane(index, "scale", module, "scales", part),
            part_plane(index, "bias", module, "bias", part),
        ]
        kept = tuple(plane for plane in planes if plane is not None)
        scales = next(plane for plane in kept if plane.role == "scale")
        sizes = ",".join(map(str, qweight_config.declared_sizes(module, declared)))
        facts = (("sizes", sizes), ("sequential", "yes" if sequential else ""))
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word="awq_gemm",
            shape=(scales.shape[-1], kept[0].shape[0]),
            planes=kept,
            part=part,
            certainty=3,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about qweight planes."""
        return qweight_config.qweight_claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Group sizes x orders inside a word; 4 bits and zeros as stored."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        if qweight is None or scales is None or len(scales.shape) != 2 or len(qweight.shape) != 2:
            return
        qzeros = tensor.plane("zero")
        sizes = [int(size) for size in tensor.fact("sizes").split(",") if size]
        orders = tuple(reversed(ORDERS)) if tensor.fact("sequential") else ORDERS
        counts = scale_grid.row_counts(scales, qzeros)
        levels = (lv for n in counts for lv in scale_grid.in_levels(qweight.shape[0], n, sizes))
        for level in dict.fromkeys(levels):
            for order in orders:
                yield Reading(
                    element="u4",
                    bit_width=4,
                    shape=(scales.shape[1], qweight.shape[0]),
                    group=(level,),
                    scale=(
                        ScaleLevel(
                            dtype=SCALE_WORDS.get(scales.dtype, scales.dtype), name="scales"
                        ),
                    ),
                    zero="fixed" if qzeros is None else "integer",
                    midpoint=8,
                    zero_convention="not_applicable" if qzeros is None else "as_is",
                    packing=Packing(word=qweight.dtype, axis="out", order=order),
                    symmetric=True if qzeros is None else None,
                    basis="input channels rescaled",
                    arithmetic=Arithmetic(output="f16"),
                )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of qweight, scales and qzeros."""
        n_out, n_in = reading.shape
        size = reading.group_size
        n_groups = ceil_div(n_in, size)
        words = ceil_div(n_out, PER_WORD)
        equations = [
            demand(
                tensor.plane("codes"),
                "qweight",
                "I32 [K, N*4/32]",
                (n_in, words),
                dtypes=WORDS,
                substituted=f"[{n_in}, {n_out}*4/32]",
            ),
            demand(
                tensor.plane("scale"),
                "scales",
                "[ceil(K/g), N]",
                (n_groups, n_out),
                dtypes=FLOATS,
                substituted=f"[ceil({n_in}/{size}), {n_out}]",
            ),
        ]
        if reading.zero == "integer":
            equations.append(
                demand(
                    tensor.plane("zero"),
                    "qzeros",
                    "I32 [ceil(K/g), N*4/32]",
                    (n_groups, words),
                    dtypes=WORDS,
                    substituted=f"[ceil({n_in}/{size}), {n_out}*4/32]",
                )
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales and zeros of its groups."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        assert qweight is not None
        assert scales is not None
        rows, cols = window.rows, window.cols
        size = reading.group_size
        first = cols.start // size
        used = range(first, ceil_div(cols.stop, size) if len(cols) else first)
        axis = _axis(reading)
        words, skip = axis.cover(rows, qweight.shape[1])
        codes = axis.unpack(reader.read(qweight, cols, words), skip + len(rows), axis=-1)
        zero, stored = self._zeros(tensor, reading, used, rows, reader)
        return Parts(
            codes=codes[:, skip:].T,
            combine="affine",
            scale=(reader.floats(scales, used, rows).T,),
            zero=zero,
            stored_zero=stored,
            group_of_column=np.arange(cols.start, cols.stop) // size - first,
        )

    def decode(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        window: Window,
        reader: PlaneReader,
        as_producer: bool,
    ) -> Array | None:
        """Whole groups and words; None leaves the window to `parts`.

        Words are turned before they are unpacked: eight codes move at once, and rows come out one after the other.
        """
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        rows, cols, size = window.rows, window.cols, reading.group_size
        if (
            qweight is None
            or scales is None
            or not len(rows)
            or not len(cols)
            or cols.start % size
            or (cols.stop % size and cols.stop != reading.shape[1])
            or rows.start % PER_WORD
            or rows.stop % PER_WORD
        ):
            return None
        used = range(cols.start // size, ceil_div(cols.stop, size))
        words = range(rows.start // PER_WORD, rows.stop // PER_WORD)
        packed = row_major(reader.read(qweight, cols, words).T)
        order = AWQ_ORDER if reading.packing.order == "awq" else None
        zero, _ = self._zeros(tensor, reading, used, rows, reader)

        def unpack(lines: slice, codes: Array) -> None:
            first, last = lines.start // PER_WORD, ceil_div(lines.stop, PER_WORD)
            if lines.start % PER_WORD or lines.stop % PER_WORD:
                begin = lines.start - first * PER_WORD
                held = unpack_words(packed[first:last], 4, axis=0, order=order)
                np.copyto(codes, held[begin : begin + codes.shape[0]])
            else:
                unpack_words(packed[first:last], 4, axis=0, order=order, out=codes)

        out = decode_lines(
            unpack,
            reader.floats(scales, used, rows).T,
            zero.astype(np.float32) if zero.size > 1 else float(zero[0, 0]),
            size,
            group_axis=1,
            out=np.empty(window.shape, np.float32),
        )
        return round_to(out, reading.arithmetic.output) if as_producer else out

    @staticmethod
    def _zeros(
        tensor: LogicalTensor, reading: Reading, used: range, rows: range, reader: PlaneReader
    ) -> tuple[Array, Array | None]:
        qzeros = tensor.plane("zero")
        if reading.zero == "fixed" or qzeros is None:
            return np.full((1, 1), reading.midpoint, dtype=np.int16), None
        axis = _axis(reading)
        words, skip = axis.cover(rows, qzeros.shape[1])
        packed = reader.read(qzeros, used, words)
        return true_zeros(packed, axis, rows, rows.start - skip, reading.zero_convention)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits in qweight, the group's scale and zero bits."""
        qweight, scales, qzeros = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        assert qweight is not None
        group = col // reading.group_size
        axis = _axis(reading)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            per_plane["scale"] = (element_span(scales, group * reading.shape[0] + row),)
        if qzeros is not None and reading.zero == "integer":
            per_plane["zero"] = tuple(
                element_span(qzeros, group * qzeros.shape[1] + word, low, width)
                for word, low, width in axis.fields(row)
            )
        spans = tuple(
            element_span(qweight, col * qweight.shape[1] + word, low, width)
            for word, low, width in axis.fields(row)
        )
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)


def _axis(reading: Reading) -> PackedAxis:
    return PackedAxis(word_bits=32, bit_width=reading.bit_width, order=reading.packing.order)


def _sequential_order(declared: Declarations) -> bool:
    """Whether Quark says that it packed the codes of a word in sequence."""
    return any(
        section.method == "quark" and section.get("export", "pack_method") == "order"
        for section in declared.sections
    )
