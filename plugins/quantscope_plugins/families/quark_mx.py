"""AMD Quark's data type `mx`: MXFP4 and MXFP6 whose scale byte is a signed exponent without bias.

Quark packs blocks of 32 along the rows as one scale byte and the codes, 17 bytes for FP4 and 25 for FP6. A module
holds them so; the export cuts the scale bytes out into `weight_scale`, which then has the names and shapes of OCP
MXFP4 with another meaning: the byte is int8 and the scale 2**int8, where E8M0 is 2**(byte - 127).
Source: amd-quark 0.13, quark/torch/utils/pack.py (Pack_mxfp4, Pack_mxfp6), quark/torch/export/utils.py
(apply_export_state_dict_mappings).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode.bits import unpack_nibbles
from quantscope.decode.interleaved import unpack_quark_fp6
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.families.base import FamilyBase, ceil_div, demand, element_span
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
    ScaleLevel,
    Span,
)

from quantscope_plugins.families import modelopt_config
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.model_shapes import declared_row_length

BLOCK = 32
CODE_BYTES = {"e2m1": 16, "e2m3": 24, "e3m2": 24}
"""Bytes of codes in a block."""
ORDERS = {"e2m1": "low_first", "e2m3": "tops_then_nibbles", "e3m2": "tops_then_nibbles"}
INTERLEAVED = "interleaved"
EXPONENTS = np.exp2(np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32))
"""Scale by stored byte: 2**int8 in float32."""
EXPONENTS.setflags(write=False)


class QuarkMx(FamilyBase):
    """Blocks of 32 small floats with an int8 exponent, in one plane or in two."""

    name: ClassVar[str] = "quark_mx"
    title: ClassVar[str] = "AMD Quark mx (MXFP4, MXFP6 with signed exponents)"

    def signature(self) -> Signature:
        """Bytes called weight."""
        return Signature(dtypes=("U8", "I8"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """Modules that config.json gives `mx`; without a declaration rows of K/32 whole blocks, K known from config.json."""
        found = []
        for module in index.modules_with("weight"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            if weight is None or weight.dtype not in ("U8", "I8") or len(weight.shape) != 2:
                continue
            elements = _elements(declared, module, weight, scale)
            if not elements:
                continue
            found.append(module)
            yield self._tensor(index, module, weight, scale, elements)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _tensor(
        self,
        index: TensorIndex,
        module: str,
        weight: StoredTensor,
        scale: StoredTensor | None,
        elements: tuple[str, ...],
    ) -> LogicalTensor:
        held = CODE_BYTES[elements[0]]
        if scale is None:
            planes = _cut(weight, held)
            count = weight.shape[1] // (held + 1)
        else:
            planes = [
                index.plane_of("codes", weight, "weight"),
                index.plane_of("scale", scale, "weight_scale"),
            ]
            count = weight.shape[1] // held
        bias = index.plane("bias", module, "bias")
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word=f"quark:mx-{'fp4' if elements[0] == 'e2m1' else 'fp6'}",
            shape=(weight.shape[0], count * BLOCK),
            planes=(*planes, *([bias] if bias is not None else [])),
            certainty=3,
            facts=(
                ("elements", ",".join(elements)),
                ("form", INTERLEAVED if scale is None else "split"),
            ),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The layer's part of the config; the row length where the model's config says it."""
        yield from modelopt_config.claims(tensor.module, declared)
        known = declared_row_length(declared, tensor.module)
        if known is not None:
            length, source = known
            yield Claim(
                field="shape",
                value=[tensor.shape[0], length],
                source=source,
                basis="written",
                written=length,
            )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The elements that the block size allows; bytes in a plane of their own could be E8M0 by their sizes."""
        scales = ("s8_exponent",) if _is_interleaved(tensor) else ("s8_exponent", "e8m0")
        for element in tensor.fact("elements").split(","):
            for dtype in scales:
                yield Reading(
                    element=element,
                    bit_width=4 if element == "e2m1" else 6,
                    shape=tensor.shape,
                    group=(GroupLevel(axis="in", size=BLOCK),),
                    scale=(ScaleLevel(dtype=dtype, name="weight_scale"),),
                    zero="none",
                    packing=Packing(word="U8", axis="in", order=ORDERS[element]),
                    arithmetic=Arithmetic(rule="table[code] * 2**exponent"),
                )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Rows of whole blocks, the scale bytes in them or beside them."""
        n_out, n_in = reading.shape
        held, blocks = CODE_BYTES[reading.element], ceil_div(n_in, BLOCK)
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        if _is_interleaved(tensor):
            size = held + 1
            whole = _whole(tensor)
            return [
                demand(
                    whole,
                    "weight",
                    f"U8 [N, K/32*{size}]",
                    (n_out, blocks * size),
                    substituted=f"[{n_out}, {n_in}/32*{size}]",
                )
            ]
        return [
            demand(
                codes,
                "weight",
                f"U8 [N, K/32*{held}]",
                (n_out, blocks * held),
                substituted=f"[{n_out}, {n_in}/32*{held}]",
            ),
            demand(
                scale,
                "weight_scale",
                "U8 [N, K/32]",
                (n_out, blocks),
                dtypes=("U8", "I8"),
                substituted=f"[{n_out}, {n_in}/32]",
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Table indices of the window and 2**int8 of its blocks."""
        rows, cols = window.rows, window.cols
        held = CODE_BYTES[reading.element]
        first = cols.start // BLOCK
        blocks = range(first, ceil_div(cols.stop, BLOCK) if len(cols) else first)
        if _is_interleaved(tensor):
            size = held + 1
            raw = reader.read(_whole(tensor), rows, range(first * size, blocks.stop * size))
            raw = raw.reshape(len(rows), len(blocks), size)
            stored, packed = raw[:, :, 0], raw[:, :, 1:]
        else:
            codes, scale = tensor.plane("codes"), tensor.plane("scale")
            assert codes is not None
            assert scale is not None
            packed = reader.read(codes, rows, range(first * held, blocks.stop * held))
            packed = packed.reshape(len(rows), len(blocks), held)
            stored = reader.read(scale, rows, blocks).view(np.uint8)
        unpacked = _unpack(packed, reading.element)
        skip = cols.start - first * BLOCK
        return Parts(
            codes=unpacked.reshape(len(rows), len(blocks) * BLOCK)[:, skip : skip + len(cols)],
            combine="lut",
            lut=float_table(reading.element),
            scale=(_table(reading)[stored],),
            group_of_column=np.arange(skip, skip + len(cols)) // BLOCK,
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The code's bits, in two places for FP6, and the scale's byte."""
        block, place = divmod(col, BLOCK)
        held, blocks = CODE_BYTES[reading.element], ceil_div(reading.shape[1], BLOCK)
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes is not None
        assert scale is not None
        number = row * blocks + block
        if _is_interleaved(tensor):
            whole, base = _whole(tensor), number * (held + 1)
            spans = _code_spans(whole, base + 1, place, reading.element)
            scale_span = element_span(whole, base)
        else:
            spans = _code_spans(codes, number * held, place, reading.element)
            scale_span = element_span(scale, number)
        return Cell(row=row, col=col, group=block, bits=spans, per_plane={"scale": (scale_span,)})


def _table(reading: Reading) -> Array:
    return EXPONENTS if reading.scale[0].dtype == "s8_exponent" else float_table("e8m0")


def _elements(
    declared: Declarations, module: str, weight: StoredTensor, scale: StoredTensor | None
) -> tuple[str, ...]:
    """Elements that declaration and shape leave; empty where the planes are none of this format."""
    said = modelopt_config.quark_mx_element(declared, module)
    if said is not None:
        held = CODE_BYTES.get(said)
        size = held if held is None or scale is not None else held + 1
        return (said,) if size and weight.shape[1] % size == 0 else ()
    known = declared_row_length(declared, module)
    if scale is not None or known is None or known[0] % BLOCK:
        return ()
    blocks = known[0] // BLOCK
    fitting = [e for e, held in CODE_BYTES.items() if weight.shape[1] == blocks * (held + 1)]
    return tuple(fitting)


def _cut(weight: StoredTensor, held: int) -> list[Plane]:
    """The codes and the scale bytes of interleaved blocks, as strided planes of one stored tensor."""
    size = held + 1
    rows, blocks = weight.shape[0], weight.shape[1] // size

    def plane(role: str, skip: int, nbytes: int) -> Plane:
        span = Span(
            file_id=weight.file_id,
            byte_offset=weight.byte_offset + skip,
            nbytes=nbytes,
            count=rows * blocks,
            stride_bytes=size,
        )
        return Plane(
            role=role,  # type: ignore[arg-type]
            suffix=role,
            stored_name=weight.name,
            spans=(span,),
            dtype="U8",
            shape=(rows, blocks, nbytes),
        )

    return [plane("codes", 1, held), plane("scale", 0, 1)]


def _is_interleaved(tensor: LogicalTensor) -> bool:
    return tensor.fact("form") == INTERLEAVED


def _whole(tensor: LogicalTensor) -> Plane:
    """The stored tensor [N, K/32*(1+codes)] that both planes are cut from."""
    codes, scale = tensor.plane("codes"), tensor.plane("scale")
    assert codes is not None
    assert scale is not None
    rows, blocks, held = codes.shape
    size = held + 1
    start = scale.spans[0]
    span = Span(file_id=start.file_id, byte_offset=start.byte_offset, nbytes=rows * blocks * size)
    return msgspec.structs.replace(
        codes, suffix="weight", spans=(span,), shape=(rows, blocks * size)
    )


def _unpack(packed: Array, element: str) -> Array:
    """Bytes [R, G, 16 or 24] -> codes [R, G, 32]: FP4 two a byte, the low nibble first; FP6 four in three bytes."""
    packed = np.ascontiguousarray(packed).view(np.uint8)
    codes: Array = (
        unpack_nibbles(packed, axis=-1) if element == "e2m1" else unpack_quark_fp6(packed)
    )
    return codes


def _code_spans(plane: Plane, base: int, place: int, element: str) -> tuple[BitSpan, ...]:
    """Bits of a code, lowest first, in the block whose codes begin at element `base` of the plane."""
    if element == "e2m1":
        return (element_span(plane, base + place // 2, 4 * (place % 2), 4),)
    four, number = divmod(place, 4)
    start = base + 3 * four
    low = element_span(plane, start + 1 + number // 2, 4 if number % 2 == 0 else 0, 4)
    return low, element_span(plane, start, 6 - 2 * number, 2)
