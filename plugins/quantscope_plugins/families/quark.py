"""AMD Quark: packed integers of 2, 3, 4 and 8 bits, FP6 and FP4 outside the MX names of other families.

Source: amd-quark 0.13, quark/torch/utils/pack.py (packers), quark/torch/export/nn/modules/realquantizer.py
(transposed scales, zero points), quark/torch/kernel/hw_emulation (decode: (code - zero) * scale in float32).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode import bits
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.decode.small_floats import float_table
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
    ScaleLevel,
)

from quantscope_plugins.families import modelopt_config, scale_grid
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.packed_axis import PackedAxis

FLOATS = ("F32", "F16", "BF16")
WIDTHS = {
    "s2": 2,
    "u2": 2,
    "s3": 3,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "e2m1": 4,
    "e2m3": 6,
    "e3m2": 6,
}
TABLES = ("e2m1", "e2m3", "e3m2")
_BY_DTYPE = {"I32": "s4", "I8": "s8", "U8": "u8"}


class Quark(FamilyBase):
    """Quark's own packing; AWQ-named exports and FP8 belong to the families of those names."""

    name: ClassVar[str] = "quark"
    title: ClassVar[str] = "AMD Quark (packed integers, FP6, FP4)"

    def signature(self) -> Signature:
        """`weight_scale`."""
        return Signature(last_parts=("weight_scale", "weight_zero_point"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with integer planes, where config.json says quark."""
        if not modelopt_config.quark_sections(declared):
            return
        found = []
        for module in index.modules_with("weight_scale"):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            if weight is None and index.get(module, "weight_packed") is None and scale is not None:
                yield Orphan(
                    stored_name=scale.name, module=module, family=self.name, missing=("weight",)
                )
            if weight is None or scale is None or not _is_ours(weight, scale):
                continue
            if modelopt_config.quark_mx_element(declared, module) is not None:
                continue
            found.append(module)
            yield self._tensor(index, declared, module, weight)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, weight: StoredTensor
    ) -> LogicalTensor:
        planes = (
            index.plane("codes", module, "weight"),
            index.plane("scale", module, "weight_scale"),
            index.plane("zero", module, "weight_zero_point"),
            index.plane("bias", module, "bias"),
        )
        element = _declared_element(declared, module) or _BY_DTYPE[weight.dtype]
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word=f"quark:{element}",
            shape=weight.shape,
            planes=tuple(plane for plane in planes if plane is not None),
            certainty=3,
            facts=(("element", element),),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The layer's part of the config, and the order that pack_method names."""
        yield from modelopt_config.claims(tensor.module, declared)
        for section in modelopt_config.quark_sections(declared):
            method = section.get("export", "pack_method")
            if tensor.planes[0].dtype == "I32" and WIDTHS[tensor.fact("element")] == 4:
                order = {"reorder": "awq", "order": "sequential"}.get(str(method))
                if order is not None:
                    yield section.claim("packing", {"order": order}, "export", "pack_method")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Both orders of 4-bit words, and the group sizes that the scales allow."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        element = tensor.fact("element")
        if codes is None or scale is None or len(codes.shape) != 2:
            return
        word_bits = STORAGE_BITS[codes.dtype]
        grouped = len(scale.shape) == 2
        transposed = grouped and element[0] in "su" and element != "s3"
        for order in _orders(element, word_bits):
            axis = _axis(order, element, word_bits)
            packed = codes.shape[1]
            count = packed if order == "one_per_word" else packed * word_bits // axis.bit_width
            shape = (count, codes.shape[0]) if transposed else (codes.shape[0], count)
            for level in _levels(shape, scale, element):
                yield self._reading(tensor, element, shape, level, order, transposed)

    def _reading(
        self,
        tensor: LogicalTensor,
        element: str,
        shape: tuple[int, int],
        level: GroupLevel,
        order: str,
        transposed: bool,
    ) -> Reading:
        codes, scale, zero = (tensor.plane(role) for role in ("codes", "scale", "zero"))
        assert codes is not None
        assert scale is not None
        kind: Literal["none", "integer", "float_zero"] = "none"
        if zero is not None:
            kind = "float_zero" if zero.dtype in FLOATS else "integer"
        word = "e8m0" if scale.dtype == "U8" else SCALE_WORDS.get(scale.dtype, scale.dtype)
        return Reading(
            element=element,
            bit_width=WIDTHS[element],
            shape=shape,
            group=(level,),
            scale=(ScaleLevel(dtype=word, name="weight_scale"),),
            zero=kind,
            zero_convention="as_is" if kind == "integer" else "not_applicable",
            packing=Packing(word=codes.dtype, axis="out" if transposed else "in", order=order),
            arithmetic=Arithmetic(rule="(code - zero) * scale" if zero else "code * scale"),
            extra=(("transposed", "yes" if transposed else ""),),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Packed codes, scales [K/g, N] of integers or [N, K/g] of floats, zeros packed alike."""
        codes = tensor.plane("codes")
        assert codes is not None
        n_out, n_in = reading.shape
        axis, word = _axis_of(reading, codes), codes.dtype
        if reading.fact("transposed"):
            shape, symbolic = (n_in, axis.n_words(n_out)), f"{word} [K, N*b/{axis.word_bits}]"
        else:
            shape, symbolic = (n_out, axis.n_words(n_in)), f"{word} [N, K*b/{axis.word_bits}]"
        level, groups = reading.group[0], ceil_div(n_in, reading.group_size)
        equations = [demand(codes, "weight", symbolic, shape)]
        scale, zero = tensor.plane("scale"), tensor.plane("zero")
        if level.axis == "in" and reading.element[0] in "su":
            expected: tuple[int, ...] = (groups, n_out)
            zeros: tuple[int, ...] = (groups, axis.n_words(n_out))
            if reading.element == "s3":
                zeros = (n_out, axis.n_words(groups))
            equations.append(demand(scale, "weight_scale", "[K/g, N]", expected))
        else:
            grid, others, text = scale_grid.expected_grid(level, (n_out, n_in))
            zeros = () if level.axis == "tensor" else (axis.n_words(n_out),)
            equations.append(demand(scale, "weight_scale", text, grid, alternatives=others))
        if zero is not None:
            if zero.dtype in FLOATS:
                zeros = (groups, n_out)
            equations.append(demand(zero, "weight_zero_point", "packed like the weight", zeros))
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales and zeros of its groups."""
        codes, scale, zero = (tensor.plane(role) for role in ("codes", "scale", "zero"))
        assert codes is not None
        assert scale is not None
        rows, cols = window.rows, window.cols
        axis = _axis_of(reading, codes)
        along, across = (rows, cols) if reading.fact("transposed") else (cols, rows)
        words, skip = axis.cover(along, codes.shape[1])
        packed = reader.read(codes, across, words)
        unpacked = _unpack(axis, packed, skip + len(along), reading)[:, skip:]
        level, size = reading.group[0], reading.group_size
        first = cols.start // size if level.axis == "in" else 0
        last = max(first, ceil_div(cols.stop, size)) if level.axis == "in" else 1
        used = range(first, last)
        values = _scales(reading, scale, rows, used, window, reader)
        zeros = None if zero is None else _zeros(reading, zero, axis, rows, used, reader)
        table = float_table(reading.element) if reading.element in TABLES else None
        index = np.arange(cols.start, cols.stop) // size - first
        return Parts(
            codes=unpacked.T if reading.fact("transposed") else unpacked,
            combine="lut" if table is not None else "affine",
            lut=table,
            scale=(values,),
            zero=zeros,
            stored_zero=zeros if reading.zero == "integer" else None,
            group_of_column=index if level.axis == "in" else np.zeros(len(cols), np.int64),
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The field of the code, the scale and the zero's field."""
        codes, scale, zero = (tensor.plane(role) for role in ("codes", "scale", "zero"))
        assert codes is not None
        axis, n_out = _axis_of(reading, codes), reading.shape[0]
        along, across = (row, col) if reading.fact("transposed") else (col, row)
        group = col // reading.group_size if reading.group[0].axis == "in" else 0
        spans = _fields(axis, codes, across * codes.shape[1], along)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        grouped_int = reading.group[0].axis == "in" and reading.element[0] in "su"
        if scale is not None and grouped_int:
            per_plane["scale"] = (element_span(scale, group * n_out + row),)
        elif scale is not None:
            per_plane["scale"] = scale_grid.grid_span(scale, reading.group[0], row, col)
        if zero is not None:
            per_plane["zero"] = _zero_span(reading, zero, axis, row, group)
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)


def _is_ours(weight: StoredTensor, scale: StoredTensor) -> bool:
    """Integer planes that no other family of these names has: MXFP4 with byte scales is one."""
    if weight.dtype not in _BY_DTYPE or len(weight.shape) != 2:
        return False
    pairs = weight.dtype == "U8" and scale.dtype in ("U8", "F8_E8M0", "F8_E4M3")
    columns = scale.shape[-1] if scale.shape else 0
    return not (pairs and columns and weight.shape[1] in (16 * columns, 8 * columns))


def _declared_element(declared: Declarations, module: str) -> str:
    elements = (c.value for c in modelopt_config.claims(module, declared) if c.field == "element")
    return next((str(element) for element in elements if element in WIDTHS), "")


def _orders(element: str, word_bits: int) -> tuple[str, ...]:
    if word_bits == 32:
        return ("awq", "sequential") if WIDTHS[element] == 4 else ("one_per_word",)
    if element in ("s3", "e2m3", "e3m2"):
        return ("bitstream",)
    if element in ("u2", "s2"):
        return ("msb_first",)
    return ("low_first",) if element == "e2m1" else ("one_per_word",)


def _axis(order: str, element: str, word_bits: int) -> PackedAxis:
    if order == "one_per_word":
        return PackedAxis(word_bits=8, bit_width=8, order="sequential")
    return PackedAxis(word_bits=word_bits, bit_width=WIDTHS[element], order=order)


def _axis_of(reading: Reading, codes: Plane) -> PackedAxis:
    return _axis(reading.packing.order, reading.element, STORAGE_BITS[codes.dtype])


def _levels(shape: tuple[int, int], scale: Plane, element: str) -> list[GroupLevel]:
    if len(scale.shape) != 2:
        return scale_grid.levels_of(shape, scale.shape)
    groups, rows = scale.shape if element[0] in "su" else scale.shape[::-1]
    if rows != shape[0]:
        return []
    sizes = scale_grid.run_sizes(shape[1], groups)
    return [GroupLevel(axis="in", size=size) for size in sizes]


def _unpack(axis: PackedAxis, packed: Array, count: int, reading: Reading) -> Array:
    """Codes of words along the last axis: signed where the element is."""
    if reading.packing.order == "one_per_word":
        return packed.astype(np.int8) if reading.element == "s2" else packed
    codes = np.ascontiguousarray(axis.unpack(packed, count, axis=-1))
    return bits.sign_extend(codes, reading.bit_width) if reading.element[0] == "s" else codes


def _scales(
    reading: Reading, plane: Plane, rows: range, used: range, window: Window, reader: PlaneReader
) -> Array:
    level = reading.group[0]
    if level.axis == "in" and reading.element[0] in "su":
        return reader.floats(plane, used, rows).T
    table = "e8m0" if plane.dtype == "U8" else ""
    return scale_grid.read_grid(plane, level, window, reader, table).values


def _zeros(
    reading: Reading,
    plane: Plane,
    axis: PackedAxis,
    rows: range,
    used: range,
    reader: PlaneReader,
) -> Array:
    """Zeros [rows or 1, groups], packed along the rows of the weight, at 3 bits along the groups."""
    if plane.dtype in FLOATS:
        return reader.floats(plane, used, rows).T
    if not plane.shape:
        stored = reader.read(plane).astype(np.int64) & ((1 << reading.bit_width) - 1)
        return _signed(stored.astype(np.uint8), reading)
    if reading.element == "s3" and reading.group[0].axis == "in":
        packed = reader.read(plane, rows)
        return _signed(axis.unpack(packed, used.stop, axis=-1)[:, used.start :], reading)
    words, skip = axis.cover(rows, plane.shape[-1])
    packed = reader.read(plane, used if len(plane.shape) == 2 else range(1), words)
    if reading.packing.order == "one_per_word":
        return packed.astype(np.int16).T
    return _signed(axis.unpack(packed, skip + len(rows), axis=-1)[:, skip:].T, reading)


def _signed(codes: Array, reading: Reading) -> Array:
    if reading.element[0] != "s":
        return codes.astype(np.int16)
    return bits.sign_extend(np.ascontiguousarray(codes), reading.bit_width).astype(np.int16)


def _fields(axis: PackedAxis, plane: Plane, base: int, place: int) -> tuple[BitSpan, ...]:
    if STORAGE_BITS[plane.dtype] != axis.word_bits:
        return (element_span(plane, base + place, 0, 8),)
    return tuple(
        element_span(plane, base + word, low, width) for word, low, width in axis.fields(place)
    )


def _zero_span(
    reading: Reading, plane: Plane, axis: PackedAxis, row: int, group: int
) -> tuple[BitSpan, ...]:
    if not plane.shape:
        return (element_span(plane, 0, 0, min(reading.bit_width, STORAGE_BITS[plane.dtype])),)
    if plane.dtype in FLOATS:
        return (element_span(plane, group * reading.shape[0] + row),)
    if reading.element == "s3" and reading.group[0].axis == "in":
        return _fields(axis, plane, row * plane.shape[1], group)
    base = group * plane.shape[1] if len(plane.shape) == 2 else 0
    return _fields(axis, plane, base, row)
