"""GGUF: one stored tensor of ggml blocks is one weight; its planes are the fields of the block struct.

The type id in the header fixes element, groups, scales, zero and layout. Sources: ggml-org/llama.cpp,
ggml/src/ggml-common.h (structs), ggml/src/ggml-quants.c (decode), ggml/include/ggml.h (ids), conversion/ (row order
of q and k), src/llama-model.cpp (`.scale` tensors).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from quantscope.containers.ggml_types import FORK_READINGS, GGML_TYPES, GgmlType
from quantscope.containers.records import StoredTensor
from quantscope.decode.ggml import BLOCK_TYPES, BitSpans, BlockField, BlockType
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.errors import UndecodableError
from quantscope.families.base import FamilyBase, element_span
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
    LogicalTensor,
    Orphan,
    Packing,
    Plane,
    Reading,
    ScaleLevel,
    Slice,
    Source,
    Span,
)

from quantscope_plugins.families.gguf_types import (
    INTEGER_TYPES,
    PERMUTED_ARCHITECTURES,
    PLAIN_TYPES,
    ROWS_PERMUTED,
    SYMMETRIC,
    UNPROVED,
    big_endian_bytes,
    field_dtype,
    field_role,
    ggml_type,
    little_endian,
    midpoint,
    type_facts,
)
from quantscope_plugins.families.stacks import MAX_EXPERTS


class Gguf(FamilyBase):
    """Every ggml block type; plain F32, F16 and BF16 tensors of a GGUF stay plain."""

    name: ClassVar[str] = "gguf"
    title: ClassVar[str] = "GGUF (ggml blocks)"

    def signature(self) -> Signature:
        """Names of block types, and keys that a GGUF file has."""
        names = {kind.name for kind in GGML_TYPES.values()}
        names |= {kind.name for kinds in FORK_READINGS.values() for kind in kinds}
        return Signature(
            dtypes=tuple(sorted(names - PLAIN_TYPES - INTEGER_TYPES)),
            metadata_keys=("general.architecture", "split.no"),
        )

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per stored block tensor; one per expert of an expert stack."""
        architecture = _architecture(declared)
        for stored in index.tensors.values():
            if stored.type_id is None or stored.dtype in PLAIN_TYPES:
                continue
            if stored.dtype in INTEGER_TYPES:
                yield self._companion(stored, "integer table")
            elif ggml_type(stored.dtype) is not None:
                yield from self._tensors(index, stored, architecture)
                activation = index.get(stored.name.rpartition(".")[0], "input_scale")
                if activation is not None and activation.dtype == "F32":
                    yield self._companion(activation, "activation scale")

    def _companion(self, stored: StoredTensor, what: str) -> Companion:
        return Companion(
            stored_name=stored.name,
            module=stored.name.rpartition(".")[0],
            what=what,
            family=self.name,
        )

    def _tensors(
        self, index: TensorIndex, stored: StoredTensor, architecture: str
    ) -> Iterator[LogicalTensor]:
        rows, n_in = math.prod(stored.shape[:-1]), stored.shape[-1] if stored.shape else 1
        stack = len(stored.shape) == 3 and "_exps" in stored.name and rows > 0
        stack = stack and stored.shape[0] <= MAX_EXPERTS
        experts = stored.shape[0] if stack else 1
        permuted = architecture in PERMUTED_ARCHITECTURES and stored.name.endswith(
            ("attn_q.weight", "attn_k.weight")
        )
        n_out = rows // experts if experts else 0
        for expert in range(experts):
            part = None
            name = stored.name
            if stack:
                part = Slice(kind="expert", index=expert, count=experts, n_rows=n_out)
                name = f"{stored.name}[{expert}]"
            planes = [*block_planes(index, stored, n_out, expert, experts)]
            outer = _scale_plane(index, stored, expert, experts)
            if outer is not None:
                planes.append(outer)
            yield LogicalTensor(
                name=name,
                module=stored.name.rpartition(".")[0],
                family=self.name,
                word="gguf",
                shape=(n_out, n_in),
                planes=tuple(planes),
                part=part,
                basis=ROWS_PERMUTED if permuted else "plain",
                certainty=3,
                facts=(("type", stored.dtype),),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Everything that the type id fixes, the row order that the architecture implies, imatrix use."""
        reading = next(self.candidates(tensor), None)
        file_id = tensor.planes[0].file_id
        file = next((f.name for f in declared.files if f.file_id == file_id), "")
        if reading is not None:
            values = reading.contract_values()
            source = Source(file, f"{tensor.planes[0].stored_name}:type")
            for field in ("element", "group", "scale", "zero", "symmetric", "packing"):
                if field in values:
                    yield Claim(
                        field=field,
                        value=_by_type(field, values[field]),
                        source=source,
                        basis="by_definition",
                        written=tensor.fact("type"),
                    )
        if tensor.basis != "plain":
            for source, value in declared.metadata("general.architecture"):
                yield Claim(
                    field="basis",
                    value=tensor.basis,
                    source=source,
                    basis="by_definition",
                    written=value,
                )
        for source, value in declared.metadata("quantize.imatrix.file"):
            yield Claim(
                field="rounding",
                value="importance matrix",
                source=source,
                basis="by_definition",
                written=value,
            )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The one reading that the type defines; none where its block size is not public."""
        type_name = tensor.fact("type")
        kind = ggml_type(type_name)
        if kind is None or not kind.block_size:
            return
        facts = type_facts(type_name)
        scale = facts.scale
        if tensor.plane_named("scale") is not None:
            scale = (*scale, ScaleLevel(dtype="f32", name="scale", per="tensor"))
        yield Reading(
            element=type_name,
            bit_width=facts.bit_width,
            shape=tensor.shape,
            group=facts.group,
            scale=scale,
            zero=facts.zero,
            packing=Packing(word=type_name, axis="in", order="ggml"),
            basis=tensor.basis,
            symmetric=SYMMETRIC.get(type_name),
            arithmetic=Arithmetic(rule=facts.rule),
            midpoint=midpoint(type_name),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Whole blocks to a row, and the bytes of every field of the block struct."""
        kind = ggml_type(reading.element)
        assert kind is not None
        n_out, n_in = reading.shape
        size = kind.block_size
        n_blocks = n_out * (n_in // size)
        equations = [
            Equation(
                plane="row",
                symbolic=f"K % {size} = 0",
                substituted=f"{n_in} % {size} = {n_in % size}",
                expected_shape=None,
                actual_shape=None,
                expected_bytes=None,
                actual_bytes=None,
                holds=n_in % size == 0,
                note=""
                if n_in % size == 0
                else f"rows are no whole number of {size}-element blocks",
            )
        ]
        block = BLOCK_TYPES.get(reading.element)
        fields = block.fields if block is not None else ()
        for field in fields:
            plane = tensor.plane_named(field.name)
            items = field.nbytes * 8 // STORAGE_BITS[field_dtype(reading.element, field)]
            equations.append(_field_equation(plane, field, n_blocks, size, (n_out, n_in), items))
        if not fields:
            equations.append(_whole_equation(tensor.planes[0], kind, (n_out, n_in)))
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes, effective scales (block scale times sub-block scale) and minimums of the blocks in the window."""
        block = BLOCK_TYPES[reading.element]
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return _no_parts(block, window)
        blocks, first, held = self._blocks(tensor, block, window, reader)
        n_rows = len(rows)
        codes = block.codes(blocks).reshape(n_rows, held * block.block_size)
        skip = cols.start - first * block.block_size
        minimum = block.minimums(blocks)
        groups = (n_rows, held * block.sub_blocks)
        scale = [block.scales(blocks).reshape(groups), *_outer(tensor, reader)]
        return Parts(
            codes=codes[:, skip : skip + len(cols)],
            combine=block.combine,
            scale=tuple(scale),
            zero=np.full((1, 1), block.zero, np.int16) if block.zero else None,
            minimum=None if minimum is None else minimum.reshape(groups),
            lut=block.lut,
            group_of_column=np.arange(skip, skip + len(cols)) // block.sub_block,
        )

    def decode(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        window: Window,
        reader: PlaneReader,
        as_producer: bool,
    ) -> Array | None:
        """The block type's own dequantizer over the blocks in the window; ggml has one arithmetic only."""
        block = BLOCK_TYPES[reading.element]
        if block.minimum_sign != "none" and tensor.plane_named("scale") is not None:
            return None
        if not len(window.rows) or not len(window.cols):
            return np.empty(window.shape, np.float32)
        blocks, first, held = self._blocks(tensor, block, window, reader)
        out = block.dequantize(blocks).reshape(len(window.rows), held * block.block_size)
        for outer in _outer(tensor, reader):
            out *= outer
        skip = window.cols.start - first * block.block_size
        return out[:, skip : skip + len(window.cols)]

    @staticmethod
    def _blocks(
        tensor: LogicalTensor, block: BlockType, window: Window, reader: PlaneReader
    ) -> tuple[Array, int, int]:
        """Blocks [rows * n, bytes] that hold the window, little-endian; the first's number in its row; n."""
        n_in = tensor.shape[-1]
        if n_in % block.block_size:
            raise UndecodableError(f"{tensor.name} has rows that are no whole number of blocks")
        per_row = n_in // block.block_size
        rows, cols = window.rows, window.cols
        first = cols.start // block.block_size
        last = max(first, -(-cols.stop // block.block_size))
        start, wanted = _start(tensor), last - first
        row_bytes, nbytes = per_row * block.type_bytes, wanted * block.type_bytes
        codes = tensor.planes[0]
        whole = len(rows) > 1 and wanted * 4 >= per_row
        if whole:
            base, total = start + rows.start * row_bytes, len(rows) * row_bytes
            data = reader.read_bytes("codes", codes.file_id, base, total)
        else:
            offsets = (start + row * row_bytes + first * block.type_bytes for row in rows)
            data = b"".join(reader.read_bytes("codes", codes.file_id, o, nbytes) for o in offsets)
        held = per_row if whole else wanted
        found = np.frombuffer(data, np.uint8).reshape(len(rows), held, block.type_bytes)
        if held != wanted:
            found = np.ascontiguousarray(found[:, first:last])
        blocks = found.reshape(-1, block.type_bytes)
        if codes.byte_order == "big":
            blocks = little_endian(blocks, block)
        return blocks, first, wanted

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The bits of an element's code, of its sub-block's scale and minimum and of the block's d and dmin."""
        block = BLOCK_TYPES[reading.element]
        number, element = divmod(col, block.block_size)
        sub = element // block.sub_block
        per_row = reading.shape[-1] // block.block_size
        base = _start(tensor) + (row * per_row + number) * block.type_bytes
        big = tensor.planes[0].byte_order == "big"
        file_id = tensor.planes[0].file_id

        def absolute(spans: BitSpans) -> tuple[BitSpan, ...]:
            return tuple(
                BitSpan(
                    file_id=file_id,
                    byte_offset=base + (big_endian_bytes(block)[byte] if big else byte),
                    nbytes=1,
                    low_bit=low,
                    bit_width=width,
                )
                for byte, low, width in spans
            )

        own, outer = block.scale_bits(sub), block.super_scale_bits()
        per_plane = {"scale": absolute(own)}
        if outer and outer != own:
            per_plane["scale2"] = absolute(outer)
        if block.minimum_sign != "none":
            per_plane["minimum"] = absolute(block.minimum_bits(sub))
            if block.super_minimum_bits() != block.minimum_bits(sub):
                per_plane["minimum2"] = absolute(block.super_minimum_bits())
        tensor_scale = tensor.plane_named("scale")
        if tensor_scale is not None:
            per_plane["tensor_scale"] = (element_span(tensor_scale, 0),)
        return Cell(
            row=row,
            col=col,
            group=col // block.sub_block,
            bits=absolute(block.code_bits(element)),
            per_plane=per_plane,
        )

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Fork and withdrawn types, and rows that are no whole number of blocks."""
        type_name = tensor.fact("type")
        block, kind = BLOCK_TYPES.get(type_name), ggml_type(type_name)
        if type_name in UNPROVED:
            return f"{type_name}: {UNPROVED[type_name]}"
        if block is None:
            whose = kind.project if kind is not None else "an unknown project"
            return f"{type_name} of {whose} has no decode rule here"
        if not tensor.shape or tensor.shape[-1] % block.block_size:
            return (
                f"rows of {tensor.shape[-1]} elements are no whole number of "
                f"{block.block_size}-element blocks"
            )
        return None


def _architecture(declared: Declarations) -> str:
    values = (value for _, value in declared.metadata("general.architecture"))
    return next((value for value in values if isinstance(value, str)), "")


def block_planes(
    index: TensorIndex, stored: StoredTensor, n_out: int, expert: int, experts: int
) -> Iterator[Plane]:
    """Fields of the block struct as strided planes; the whole tensor where the struct is not known."""
    file = index.files.get(stored.file_id)
    order: Literal["little", "big"] = file.byte_order if file else "little"
    start = stored.byte_offset + expert * (stored.nbytes // experts if experts else 0)
    nbytes = stored.nbytes // experts if experts else 0
    block = BLOCK_TYPES.get(stored.dtype)
    if block is None:
        yield Plane(
            role="codes",
            suffix="blocks",
            stored_name=stored.name,
            spans=(Span(file_id=stored.file_id, byte_offset=start, nbytes=nbytes),),
            dtype="U8",
            shape=(nbytes,),
            byte_order=order,
        )
        return
    n_blocks = nbytes // block.type_bytes
    per_row = n_blocks // n_out if n_out else 0
    for field in block.fields:
        dtype = field_dtype(block.name, field)
        yield Plane(
            role=field_role(block, field),
            suffix=field.name,
            stored_name=stored.name,
            spans=(
                Span(
                    file_id=stored.file_id,
                    byte_offset=start + field.byte_offset,
                    nbytes=field.nbytes,
                    count=n_blocks,
                    stride_bytes=block.type_bytes,
                ),
            ),
            dtype=dtype,
            shape=(n_out, per_row, field.nbytes * 8 // STORAGE_BITS[dtype]),
            byte_order=order,
        )


def _scale_plane(
    index: TensorIndex, stored: StoredTensor, expert: int, experts: int
) -> Plane | None:
    """The F32 tensor `<module>.scale` that the result of the matrix product is multiplied by."""
    scale = index.get(stored.name.rpartition(".")[0], "scale")
    if scale is None or scale.dtype != "F32" or not stored.name.endswith(".weight"):
        return None
    count = math.prod(scale.shape)
    if count == 1:
        return index.plane_of("scale2", scale, "scale")
    if count == experts:
        return index.plane_of("scale2", scale, "scale", shape=(1,), element_offset=expert)
    return None


def _no_parts(block: BlockType, window: Window) -> Parts:
    """Parts of a window without elements."""
    nothing = np.zeros((len(window.rows), 1), np.float32)
    return Parts(
        codes=np.zeros(window.shape, np.uint8),
        combine=block.combine,
        scale=(nothing,),
        minimum=nothing if block.minimum_sign != "none" else None,
        lut=block.lut,
    )


def _by_type(field: str, value: object) -> object:
    """What of a contract value the type id alone fixes."""
    if isinstance(value, dict) and field == "scale":
        return {key: value[key] for key in ("dtype", "direction")}
    if isinstance(value, dict) and field == "packing":
        return {"order": value["order"]}
    return value


def _field_equation(
    plane: Plane | None,
    field: BlockField,
    n_blocks: int,
    size: int,
    shape: tuple[int, int],
    items: int,
) -> Equation:
    """Bytes of one field over all blocks."""
    expected = (shape[0], shape[1] // size, items)
    return Equation(
        plane=field.name,
        symbolic=f"{field.nbytes} B [N, K/{size}]",
        substituted=f"{field.nbytes} B [{shape[0]}, {shape[1]}/{size}]",
        expected_shape=expected,
        actual_shape=plane.shape if plane is not None else None,
        expected_bytes=n_blocks * field.nbytes,
        actual_bytes=plane.nbytes if plane is not None else None,
        holds=plane is not None
        and plane.nbytes == n_blocks * field.nbytes
        and (plane.shape == expected or not n_blocks),
        note=field.meaning,
    )


def _whole_equation(plane: Plane, kind: GgmlType, shape: tuple[int, int]) -> Equation:
    expected = kind.nbytes((shape[1], shape[0]))
    return Equation(
        plane=plane.suffix,
        symbolic=f"N * (K/{kind.block_size} * {kind.type_bytes} B + {kind.row_bytes} B)"
        f" + {kind.tensor_bytes} B",
        substituted=f"{shape[0]} * ({shape[1]}/{kind.block_size} * {kind.type_bytes} B"
        f" + {kind.row_bytes} B) + {kind.tensor_bytes} B",
        expected_shape=None,
        actual_shape=None,
        expected_bytes=expected,
        actual_bytes=plane.nbytes,
        holds=None if expected is None else expected == plane.nbytes,
    )


def _outer(tensor: LogicalTensor, reader: PlaneReader) -> list[Array]:
    plane = tensor.plane_named("scale")
    return [] if plane is None else [reader.floats(plane).reshape(1, 1)]


def _start(tensor: LogicalTensor) -> int:
    return min(plane.byte_offset for plane in tensor.planes if plane.suffix != "scale")
