"""AQLM: sums of codebook vectors, with a scale an output group.

Source: Vahe1994/AQLM, inference_lib/src/aqlm/inference.py (planes) and utils.py (_dequantize_weight,
unpack_int_data).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.decode.bits import unsigned_view
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
    Companion,
    Equation,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Plane,
    Reading,
    Role,
    ScaleLevel,
)

from quantscope_plugins.families.listed import orphans_of, planes_of

ROLES: dict[str, Role] = {
    "codes": "codes",
    "codebooks": "codebook",
    "scales": "scale",
    "bias": "bias",
}
FLOATS = ("F16", "BF16", "F32")


class Aqlm(FamilyBase):
    """codes, codebooks and scales."""

    name: ClassVar[str] = "aqlm"
    title: ClassVar[str] = "AQLM (additive codebooks)"

    def signature(self) -> Signature:
        """`codebooks`."""
        return Signature(last_parts=("codebooks", "codes"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with integer codes of three axes and codebooks of four."""
        for module in dict.fromkeys(index.modules_with("codebooks") + index.modules_with("codes")):
            alone = orphans_of(
                index, module, self.name, tuple(ROLES), ("codes", "codebooks", "scales")
            )
            codes, books = index.get(module, "codes"), index.get(module, "codebooks")
            if alone:
                if books is not None or declared.with_method("aqlm"):
                    yield from alone
                continue
            assert codes is not None
            assert books is not None
            if len(codes.shape) != 3 or len(books.shape) != 4 or codes.dtype[0] not in "IU":
                continue
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="aqlm",
                shape=(codes.shape[0] * books.shape[2], codes.shape[1] * books.shape[3]),
                planes=planes_of(index, module, ROLES),
                certainty=3,
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Codebooks and their bits, and the group sizes."""
        for section in declared.with_method("aqlm"):
            count, bits = section.get("num_codebooks"), section.get("nbits_per_codebook")
            if isinstance(count, int) and isinstance(bits, int):
                yield section.claim("element", f"codebook({count}x{bits})", "nbits_per_codebook")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The one reading that the shapes give."""
        codes, books, scale = (tensor.plane(role) for role in ("codes", "codebook", "scale"))
        if codes is None or books is None or scale is None:
            return
        count, size, out_group, in_group = books.shape
        if not all(books.shape):
            return
        bits = max(0, size - 1).bit_length()
        n_out, n_in = tensor.shape
        level = GroupLevel(axis="channel")
        if out_group > 1:
            level = GroupLevel(axis="block", size=(out_group, n_in))
        yield Reading(
            element=f"codebook({count}x{bits})",
            bit_width=0,
            shape=(n_out, n_in),
            group=(level,),
            scale=(
                ScaleLevel(
                    dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="scales", signed=True
                ),
            ),
            zero="none",
            packing=Packing(word=codes.dtype, axis="none", order="one_per_word"),
            arithmetic=Arithmetic(rule="sum of codebook vectors * scale"),
            effective_bits=count * bits / (out_group * in_group),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Codes of every block and codebook, whole codebooks, one scale an output group."""
        codes, books = tensor.plane("codes"), tensor.plane("codebook")
        assert books is not None
        count, size, out_group, in_group = books.shape
        n_out, n_in = reading.shape
        width = {"I8": 8, "U8": 8, "I16": 16, "U16": 16}.get(codes.dtype if codes else "", 32)
        return [
            demand(
                codes,
                "codes",
                "[N/og, K/ig, M]",
                (n_out // out_group, n_in // in_group, count),
                substituted=f"[{n_out}/{out_group}, {n_in}/{in_group}, {count}]",
            ),
            demand(
                books,
                "codebooks",
                "[M, 2^b, og, ig]",
                (count, size if size <= 1 << width else 1 << width, out_group, in_group),
                dtypes=FLOATS,
            ),
            demand(
                tensor.plane("scale"),
                "scales",
                "[N/og, 1, 1, 1]",
                (n_out // out_group, 1, 1, 1),
                dtypes=FLOATS,
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Sums of codebook vectors of the window, with the scale of each row's group."""
        codes, books, scale = (tensor.plane(role) for role in ("codes", "codebook", "scale"))
        assert codes is not None
        assert books is not None
        assert scale is not None
        _, _, out_group, in_group = books.shape
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return Parts(codes=np.zeros(window.shape, np.float32), combine="value")
        outs = range(rows.start // out_group, ceil_div(rows.stop, out_group))
        ins = range(cols.start // in_group, ceil_div(cols.stop, in_group))
        values = _vectors(codes, books, outs, ins, reader)
        skip_row, skip_col = rows.start - outs.start * out_group, cols.start - ins.start * in_group
        cut = values[skip_row : skip_row + len(rows), skip_col : skip_col + len(cols)]
        factors = reader.floats(scale, range(outs.start, outs.stop))
        spread = np.repeat(factors.reshape(-1), out_group)[skip_row : skip_row + len(rows)]
        return Parts(codes=cut, combine="value", scale=(spread[:, None],))

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The codes of the block that the element is part of, one a codebook."""
        codes, books, scale = (tensor.plane(role) for role in ("codes", "codebook", "scale"))
        assert codes is not None
        assert books is not None
        count, _, out_group, in_group = books.shape
        block = row // out_group * codes.shape[1] + col // in_group
        spans = tuple(element_span(codes, block * count + number) for number in range(count))
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = (element_span(scale, row // out_group),)
        return Cell(row=row, col=col, group=0, bits=spans, per_plane=per_plane)


def _vectors(codes: Plane, books: Plane, outs: range, ins: range, reader: PlaneReader) -> Array:
    """Sums of codebook vectors of whole blocks, float32 [len(outs) * og, len(ins) * ig]."""
    count, size, out_group, in_group = books.shape
    per_row = codes.shape[1]
    stored = reader.read(codes, range(outs.start * per_row, outs.stop * per_row))
    numbers = unsigned_view(np.ascontiguousarray(stored)).reshape(len(outs), per_row, count)
    numbers = numbers[:, ins.start : ins.stop].astype(np.int64) & (size - 1)
    tables = reader.floats(books).reshape(count, size, out_group * in_group)
    total = tables[0][numbers[..., 0]]
    for number in range(1, count):
        total = total + tables[number][numbers[..., number]]
    blocks = total.reshape(len(outs), len(ins), out_group, in_group)
    joined: Array = blocks.transpose(0, 2, 1, 3)
    return joined.reshape(len(outs) * out_group, len(ins) * in_group)
