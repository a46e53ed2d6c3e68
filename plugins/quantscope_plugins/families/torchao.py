"""torchao: tensor subclasses flattened into safetensors, with their type as JSON in the header's metadata.

Source: pytorch/ao, torchao/prototype/safetensors/safetensors_support.py (names), torchao/quantization/quantize_/
workflows/ (int4, int8, intx, float8), torchao/prototype/mx_formats/ (mx_tensor.py, nvfp4_tensor.py); the rule
of Int4Tensor is that of pytorch/FBGEMM, int4_row_quantize_zp and pack_int4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.decode import bits
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
    Slice,
)

from quantscope_plugins.families import scale_grid, swizzle
from quantscope_plugins.families.stacks import experts, part_name
from quantscope_plugins.families.torchao_types import (
    ATTRIBUTES,
    ROLES,
    TILES,
    UNPROVED,
    Entry,
    entries,
    guess,
    metadata_claims,
    scale_word,
    section_claims,
    traits_of,
)

FLOATS = ("F32", "F16", "BF16", "F64")


class Torchao(FamilyBase):
    """Int8, Intx, Int4, Float8, MX and NVFP4 tensors."""

    name: ClassVar[str] = "torchao"
    title: ClassVar[str] = "torchao (tensor subclasses in safetensors)"

    def signature(self) -> Signature:
        """Inner tensors of a flattened weight."""
        return Signature(last_parts=("_weight_qdata", "_weight_scale", "_weight_scale_and_zero"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor for every metadata entry with its planes; stray planes by their dtypes."""
        known = entries(declared)
        for name in _stems(index):
            entry = known.get(name) or guess(index, name)
            qdata = _plane(index, name, "qdata", None)
            if entry is None or qdata is None:
                yield from self._orphans(index, name, entry)
                continue
            rank = 4 if entry.type == "Int4TilePackedTo4dTensor" else 2
            for part in experts(qdata.shape, rank):
                yield self._tensor(index, name, entry, part)
            for attribute in ("act_quant_scale", "act_quant_zero_point", "act_per_tensor_scale"):
                stored = index.tensors.get(_stored_name(name, attribute))
                if stored is not None:
                    yield Companion(
                        stored_name=stored.name,
                        module=name,
                        what="activation scale",
                        family=self.name,
                    )

    def _orphans(self, index: TensorIndex, name: str, entry: Entry | None) -> Iterator[Orphan]:
        missing = [a for a in ("qdata", "scale") if _stored_name(name, a) not in index.tensors]
        for attribute in ATTRIBUTES:
            stored = index.tensors.get(_stored_name(name, attribute))
            if stored is not None:
                yield Orphan(
                    stored_name=stored.name,
                    module=name,
                    family=self.name,
                    missing=tuple(f"_weight_{a}" for a in missing),
                    reason="" if entry else "no metadata entry names its type",
                )

    def _tensor(
        self, index: TensorIndex, name: str, entry: Entry, part: Slice | None
    ) -> LogicalTensor:
        planes = [_plane(index, name, attribute, part) for attribute in ATTRIBUTES]
        kept = tuple(plane for plane in planes if plane is not None)
        return LogicalTensor(
            name=part_name(name, part),
            module=name.rpartition(".")[0],
            family=self.name,
            word=f"torchao:{entry.type}",
            shape=kept[0].shape,
            planes=kept,
            part=part,
            certainty=3 if entry.file else 2,
            basis="input channels rescaled" if _has(kept, "act_pre_scale") else "plain",
            facts=(("entry", entry.text), ("file", entry.file), ("type", entry.type)),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Attributes in the metadata entry, and the config class in config.json."""
        entry = _entry(tensor)
        if entry.file:
            shape = next((reading.shape for reading in self.candidates(tensor)), (0, 0))
            yield from metadata_claims(entry, tensor, (shape[0], shape[1]))
        yield from section_claims(declared, tensor)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Scale grids (row-major and in tiles) under the type's own element."""
        entry, qdata, scale = _entry(tensor), tensor.plane("codes"), tensor.plane("scale")
        traits = traits_of(entry, qdata.dtype if qdata is not None else "")
        if qdata is None or traits is None or len(qdata.shape) != 2:
            return
        shape = (qdata.shape[0], qdata.shape[1] * traits.codes_per_word)
        if scale is None:
            return
        for level, placement in _levels(entry, shape, scale, traits.transposed):
            zero = tensor.plane("zero")
            levels = [ScaleLevel(dtype=scale_word(scale.dtype), name=scale.suffix)]
            outer = tensor.plane("scale2")
            if outer is not None:
                levels.append(ScaleLevel(dtype="f32", name=outer.suffix, per="tensor"))
            additive = traits.additive and zero is not None
            yield Reading(
                element=traits.element,
                bit_width=traits.bit_width,
                shape=shape,
                group=(level,),
                scale=tuple(levels),
                zero="none" if zero is None else "additive_min" if additive else "integer",
                zero_convention="as_is" if zero is not None and not additive else "not_applicable",
                packing=Packing(
                    word=qdata.dtype,
                    axis="in" if traits.codes_per_word > 1 else "none",
                    order="low_first" if traits.codes_per_word > 1 else "one_per_word",
                ),
                placement=placement,
                basis=tensor.basis,
                symmetric=traits.symmetric if zero is None else False if additive else None,
                arithmetic=Arithmetic(
                    output=entry.output,
                    rule="code * scale + zero" if additive else "(code - zero) * scale",
                ),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Qdata of K / codes a word, scales and zeros on their grid."""
        entry, qdata = _entry(tensor), tensor.plane("codes")
        traits = traits_of(entry, qdata.dtype if qdata is not None else "")
        assert traits is not None
        n_out, n_in = reading.shape
        per_word = traits.codes_per_word
        symbolic = "[N, K]" if per_word == 1 else f"[N, K/{per_word}]"
        equations = [demand(qdata, "_weight_qdata", symbolic, (n_out, ceil_div(n_in, per_word)))]
        level, groups = reading.group[0], _groups_of(reading)
        for role in ("scale", "zero"):
            plane = next((p for p in tensor.planes if p.role == role), None)
            if plane is None:
                continue
            if reading.placement == TILES:
                rows, columns = ceil_div(n_out, 128) * 32, ceil_div(groups, 4) * 16
                full = swizzle.padded(n_out, groups)
                equations.append(
                    demand(
                        plane,
                        plane.suffix,
                        "[32*ceil(N/128), 16*ceil(K/g/4)]",
                        (rows, columns),
                        substituted=f"[32*ceil({n_out}/128), 16*ceil({groups}/4)]",
                        alternatives=(full, (rows * columns,)),
                    )
                )
            elif traits.transposed:
                equations.append(
                    demand(plane, plane.suffix, "[ceil(K/g), N]", (groups, n_out), dtypes=FLOATS)
                )
            else:
                grid, alternatives, demanded = scale_grid.expected_grid(level, (n_out, n_in))
                equations.append(
                    demand(
                        plane,
                        plane.suffix,
                        demanded,
                        grid,
                        substituted=scale_grid.substituted_grid(level, (n_out, n_in)),
                        alternatives=alternatives,
                    )
                )
        equations.append(
            demand(
                tensor.plane("scale2"),
                "_weight_per_tensor_scale",
                "F32 scalar",
                (),
                alternatives=((1,), (1, 1)),
                optional=True,
            )
        )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with its scales and zeros."""
        qdata, scale, zero = (tensor.plane(role) for role in ("codes", "scale", "zero"))
        assert qdata is not None
        assert scale is not None
        traits = traits_of(_entry(tensor), qdata.dtype)
        assert traits is not None
        codes = _codes(qdata, traits.codes_per_word, traits.bit_width, window, reader)
        values, groups = _grid(tensor, reading, scale, window, reader)
        scales = [values]
        outer = tensor.plane("scale2")
        if outer is not None:
            scales.append(reader.floats(outer).reshape(1, 1))
        zeros = stored = None
        if zero is not None:
            zeros, _ = _grid(tensor, reading, zero, window, reader)
            stored = zeros.astype(np.int16) if reading.zero == "integer" else None
        lut = float_table(traits.table) if traits.table else None
        additive = reading.zero == "additive_min"
        return Parts(
            codes=codes,
            combine="lut" if lut is not None else "plus_min" if additive else "affine",
            scale=tuple(scales),
            zero=None if additive else zeros,
            stored_zero=stored,
            minimum=zeros if additive else None,
            lut=lut,
            group_of_column=groups,
        )

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Scales in tiles are padded to whole tiles."""
        if plane.role != "scale" or reading.placement != TILES:
            return None
        return swizzle.real(numbers, reading.shape[0], _groups_of(reading))

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The word or nibble of the code, and its scale, zero and outer scale."""
        qdata = tensor.plane("codes")
        assert qdata is not None
        traits = traits_of(_entry(tensor), qdata.dtype)
        assert traits is not None
        level = reading.group[0]
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        for role in ("scale", "zero"):
            plane = next((p for p in tensor.planes if p.role == role), None)
            if plane is not None:
                per_plane["minimum" if role == "zero" and traits.additive else role] = (
                    element_span(plane, _place(reading, plane, row, col, traits.transposed)),
                )
        outer = tensor.plane("scale2")
        if outer is not None:
            per_plane["scale2"] = (element_span(outer, 0),)
        word, field = divmod(col, traits.codes_per_word)
        number = row * qdata.shape[1] + word
        if qdata.dtype == "U8" or traits.codes_per_word > 1:
            span = element_span(qdata, number, field * traits.bit_width, traits.bit_width)
        else:
            span = element_span(qdata, number)
        return Cell(
            row=row,
            col=col,
            group=scale_grid.group_number(level, col),
            bits=(span,),
            per_plane=per_plane,
        )

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Kernel orders that are not proved, and stacks with tiled scales."""
        entry = _entry(tensor)
        if entry.type in UNPROVED:
            return f"{entry.type}: {UNPROVED[entry.type]}"
        if tensor.part is not None and entry.attribute("is_swizzled_scales"):
            return "tiled scales of a stack run over the rows of all experts together"
        return None


def _stored_name(name: str, attribute: str) -> str:
    module, _, last = name.rpartition(".")
    return f"{module}._{last}_{attribute}" if module else f"_{last}_{attribute}"


def _stems(index: TensorIndex) -> list[str]:
    """Logical names with at least one inner tensor of a weight."""
    stems = (
        f"{module}.weight" if module else "weight"
        for attribute in ("qdata", "scale", "scale_and_zero", "zero_point")
        for module in index.modules_with(f"_weight_{attribute}")
    )
    return list(dict.fromkeys(stems))


def _plane(index: TensorIndex, name: str, attribute: str, part: Slice | None) -> Plane | None:
    stored = index.tensors.get(_stored_name(name, attribute))
    if stored is None or attribute not in ROLES:
        return None
    suffix = f"_weight_{attribute}"
    if part is None or not stored.shape or stored.shape[0] != part.count:
        return index.plane_of(ROLES[attribute], stored, suffix)
    size = 1
    for extent in stored.shape[1:]:
        size *= extent
    return index.plane_of(
        ROLES[attribute],
        stored,
        suffix,
        shape=stored.shape[1:],
        element_offset=part.index * size,
    )


def _has(planes: tuple[Plane, ...], attribute: str) -> bool:
    return any(plane.suffix == f"_weight_{attribute}" for plane in planes)


def _entry(tensor: LogicalTensor) -> Entry:
    return Entry(type=tensor.fact("type"), text=tensor.fact("entry"), file=tensor.fact("file"))


def _groups_of(reading: Reading) -> int:
    return ceil_div(reading.shape[1], reading.group_size)


def _levels(
    entry: Entry, shape: tuple[int, int], scale: Plane, transposed: bool
) -> Iterator[tuple[GroupLevel, str]]:
    """Levels and placements that the shape of the scales allows, what the metadata says first."""
    sizes, blocks = entry.sizes(shape), entry.blocks()
    if transposed:
        if len(scale.shape) == 2:
            for level in scale_grid.in_levels(shape[1], scale.shape[0], sizes):
                yield level, "linear"
        return
    linear = [
        (level, "linear")
        for level in scale_grid.levels_of(shape, scale.shape, sizes=sizes, blocks=blocks)
    ]
    tiled = []
    if entry.type in ("MXTensor", "NVFP4Tensor"):
        size = sizes[0] if sizes else 16 if entry.type == "NVFP4Tensor" else 32
        tiled = [(GroupLevel(axis="in", size=size), TILES)]
    yield from [*tiled, *linear] if entry.attribute("is_swizzled_scales") else [*linear, *tiled]


def _codes(
    plane: Plane, per_word: int, bit_width: int, window: Window, reader: PlaneReader
) -> Array:
    rows, cols = window.rows, window.cols
    if per_word == 1:
        stored = reader.read(plane, rows, cols)
        return stored & np.uint8(63) if plane.dtype == "U8" and bit_width == 6 else stored
    first = cols.start // per_word
    packed = reader.read(plane, rows, range(first, max(first, ceil_div(cols.stop, per_word))))
    skip = cols.start - first * per_word
    codes = bits.unpack_nibbles(packed.view(np.uint8))[:, skip : skip + len(cols)]
    if plane.dtype == "I8":
        return bits.sign_extend(np.ascontiguousarray(codes), bit_width)
    return codes


def _grid(
    tensor: LogicalTensor, reading: Reading, plane: Plane, window: Window, reader: PlaneReader
) -> tuple[Array, Array]:
    """Values of a scale or zero plane for a window, float32 [rows or 1, groups], and each column's group."""
    level, rows, cols = reading.group[0], window.rows, window.cols
    traits = traits_of(_entry(tensor), "")
    if reading.placement != TILES and not (traits is not None and traits.transposed):
        found = scale_grid.read_grid(plane, level, window, reader)
        return found.values, found.group_of_column
    size = reading.group_size
    first, last = cols.start // size, ceil_div(cols.stop, size)
    used = range(first, max(first, last))
    index = np.arange(cols.start, cols.stop) // size - first
    if not len(rows) or not len(cols):
        return np.zeros((1, 1), np.float32), np.zeros(len(cols), np.int64)
    if reading.placement == TILES:
        stored = swizzle.read(plane, rows, used, _groups_of(reading), reader)
        table = "e8m0" if plane.dtype in ("F8_E8M0", "U8") else "e4m3fn"
        return float_table(table)[stored], index
    return reader.floats(plane, used, rows).T, index


def _place(reading: Reading, plane: Plane, row: int, col: int, transposed: bool) -> int:
    """Flat number of an element's scale in its plane."""
    if reading.placement == TILES:
        return swizzle.place(row, col // reading.group_size, _groups_of(reading))
    if transposed:
        return col // reading.group_size * reading.shape[0] + row
    return scale_grid.grid_element(plane, reading.group[0], row, col)
