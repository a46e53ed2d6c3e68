"""compressed-tensors pack-quantized: integer codes in 32-bit words along the input axis, zeros along the output axis.

Planes and packing: compressed-tensors (compressors/pack_quantized/base.py, helpers.py). Codes and zero points
are stored plus 2**(b-1), so that (u - z) * scale holds with z = 2**(b-1) where none is stored. Up to 0.17.1
a word holds floor(32/b) whole codes; from 0.18.0 on the codes are a dense stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.decode.affine import decode_lines
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
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
    Source,
)

from quantscope_plugins.families import ct_config, scale_grid
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.packed_axis import PackedAxis
from quantscope_plugins.families.stacks import experts, part_name, part_plane
from quantscope_plugins.families.stored_zeros import true_zeros

BIT_WIDTHS = (4, 8, 3, 2, 5, 6, 7, 1)
FLOATS = ("F16", "BF16", "F32")
SUFFIXES = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


class CtPack(FamilyBase):
    """pack-quantized, 1 to 8 bits, symmetric and asymmetric, dense and padded, with or without g_idx."""

    name: ClassVar[str] = "ct_pack"
    title: ClassVar[str] = "compressed-tensors pack-quantized (integer codes packed along in)"

    def signature(self) -> Signature:
        """`weight_packed` and its mates."""
        return Signature(last_parts=("weight_packed", "weight_shape"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module with 32-bit `weight_packed` and a `weight_scale`."""
        found = []
        for module in dict.fromkeys(
            index.modules_with("weight_packed") + index.modules_with("weight_shape")
        ):
            codes, scale = index.get(module, "weight_packed"), index.get(module, "weight_scale")
            if codes is not None and codes.dtype not in ("I32", "U32"):
                continue
            if codes is None or scale is None:
                yield from self._orphans(index, module)
                continue
            if len(codes.shape) not in (2, 3):
                continue
            found.append(module)
            for part in experts(codes.shape):
                yield self._tensor(index, declared, module, part)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _orphans(self, index: TensorIndex, module: str) -> Iterator[Orphan]:
        missing = tuple(
            suffix
            for suffix in ("weight_packed", "weight_scale")
            if index.get(module, suffix) is None
        )
        for suffix in SUFFIXES:
            stored = index.get(module, suffix)
            if stored is not None:
                yield Orphan(
                    stored_name=stored.name, module=module, family=self.name, missing=missing
                )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, part: Slice | None
    ) -> LogicalTensor:
        planes = [
            part_plane(index, "codes", module, "weight_packed", part),
            part_plane(index, "scale", module, "weight_scale", part),
            part_plane(index, "zero", module, "weight_zero_point", part),
            part_plane(index, "group_index", module, "weight_g_idx", part),
            index.plane("meta", module, "weight_shape"),
            part_plane(index, "bias", module, "bias", part),
        ]
        kept = tuple(plane for plane in planes if plane is not None)
        rows, words = kept[0].shape[-2:]
        sizes = ct_config.declared_sizes(declared, module)
        widths = ct_config.declared_bits(declared, module)
        stored = stored_shape(index, module, "weight_shape")
        known = stored if stored is not None and stored[0] == rows else None
        facts = (
            ("sizes", ",".join(map(str, sizes))),
            ("widths", ",".join(map(str, widths))),
            ("n_in", str(known[1]) if known else ""),
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=ct_config.word(declared, "pack-quantized"),
            shape=known or (rows, words * 32 // (widths[0] if widths else 4)),
            planes=kept,
            part=part,
            certainty=3,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The config group of the module, and the stored shape."""
        yield from ct_config.claims(tensor.module, declared)
        yield from shape_claims(tensor, declared, reader)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Widths x input extents x group levels x dense and padded words."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scale is None or len(codes.shape) != 2:
            return
        n_out, n_words = codes.shape
        declared = numbers(tensor, "sizes")
        widths = dict.fromkeys((*numbers(tensor, "widths"), *BIT_WIDTHS))
        for bit_width in widths:
            for order in _orders(bit_width):
                axis = PackedAxis(word_bits=32, bit_width=bit_width, order=order)
                for n_in in _extents(tensor, axis, n_words, scale, declared):
                    grid = scale_grid.grid_shape(scale)
                    for level in scale_grid.levels_of((n_out, n_in), grid, sizes=declared):
                        yield _reading(tensor, bit_width, (n_out, n_in), level, order)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of every plane."""
        n_out, n_in = reading.shape
        width, level, axis = reading.bit_width, reading.group[0], _axis(reading)
        per_word = f"floor(32/{width})" if reading.packing.order == "padded" else ""
        packed = f"ceil({n_in}/{per_word})" if per_word else f"ceil({n_in}*{width}/32)"
        grid, alternatives, symbolic = scale_grid.expected_grid(level, (n_out, n_in))
        equations = [
            demand(
                tensor.plane("codes"),
                "weight_packed",
                "I32 [N, ceil(K/floor(32/b))]" if per_word else "I32 [N, ceil(K*b/32)]",
                (n_out, axis.n_words(n_in)),
                dtypes=("I32", "U32"),
                substituted=f"[{n_out}, {packed}]",
            ),
            demand(
                tensor.plane("scale"),
                "weight_scale",
                symbolic,
                grid,
                dtypes=FLOATS,
                substituted=scale_grid.substituted_grid(level, (n_out, n_in)),
                alternatives=alternatives,
            ),
        ]
        zero = tensor.plane("zero")
        if zero is not None and zero.dtype in ("I8", "U8"):
            equations.append(
                demand(zero, "weight_zero_point", f"I8 {symbolic}", grid, alternatives=alternatives)
            )
        elif zero is not None:
            groups = grid[1] if len(grid) == 2 else 1
            equations.append(
                demand(
                    zero,
                    "weight_zero_point",
                    "I32 [ceil(N*b/32), ceil(K/g)]",
                    (axis.n_words(n_out), groups),
                    dtypes=("I32", "U32"),
                    substituted=f"[{axis.n_words(n_out)}, {groups}]",
                )
            )
        if tensor.plane("meta") is not None:
            equations.append(
                demand(
                    tensor.plane("meta"),
                    "weight_shape",
                    "I64 [2]",
                    (2,),
                    dtypes=("I64", "I32"),
                    alternatives=((3,),),
                )
            )
        if tensor.plane("group_index") is not None:
            equations.append(
                demand(tensor.plane("group_index"), "weight_g_idx", "I32 [K]", (n_in,))
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with scales and zeros of the groups that its columns use."""
        codes_plane, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes_plane is not None
        assert scale is not None
        rows, cols, axis = window.rows, window.cols, _axis(reading)
        words, skip = axis.cover(cols, codes_plane.shape[1])
        packed = reader.read(codes_plane, rows, words)
        codes = axis.unpack(packed, skip + len(cols), axis=-1)[:, skip:]
        spread = column_groups(tensor, reading, cols, reader)
        if spread is None:
            grid = scale_grid.read_grid(scale, reading.group[0], window, reader)
            values, groups, used = grid.values, grid.group_of_column, _used(reading, cols)
        else:
            used = range(int(spread.min(initial=0)), int(spread.max(initial=-1)) + 1)
            values, groups = reader.floats(scale, rows, used), spread - used.start
        zero, stored = _zeros(tensor, reading, rows, used, reader)
        return Parts(
            codes=codes,
            combine="affine",
            scale=(values,),
            zero=zero,
            stored_zero=stored,
            group_of_column=groups,
        )

    def decode(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        window: Window,
        reader: PlaneReader,
        as_producer: bool,
    ) -> Array | None:
        """Whole rows in natural order straight from their words; None leaves the window to `parts`."""
        codes_plane, scale = tensor.plane("codes"), tensor.plane("scale")
        rows, level = window.rows, reading.group[0]
        n_in = reading.shape[1]
        if (
            codes_plane is None
            or scale is None
            or not len(rows)
            or window.cols != range(n_in)
            or level.axis not in ("in", "channel")
            or tensor.plane("group_index") is not None
        ):
            return None
        axis = _axis(reading)
        packed = reader.read(codes_plane, rows, range(axis.n_words(n_in)))
        zero, _ = _zeros(tensor, reading, rows, _used(reading, window.cols), reader)
        return decode_lines(
            lambda lines, codes: np.copyto(codes, axis.unpack(packed[lines], n_in, axis=-1)),
            scale_grid.read_grid(scale, level, window, reader).values,
            zero.astype(np.float32) if zero.size > 1 else float(zero[0, 0]),
            reading.group_size,
            group_axis=1,
            out=np.empty(window.shape, np.float32),
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits, the scale of the column's group and its packed zero."""
        codes, scale, zero, g_idx = (
            tensor.plane(r) for r in ("codes", "scale", "zero", "group_index")
        )
        assert codes is not None
        level, axis = reading.group[0], _axis(reading)
        group = scale_grid.group_number(level, col)
        place = col
        if g_idx is not None and reader is not None:
            group = int(reader.read(g_idx, None, range(col, col + 1))[0, 0])
            place = group * (level.size if isinstance(level.size, int) else 1)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = scale_grid.grid_span(scale, level, row, place)
        if zero is not None and zero.dtype in ("I8", "U8"):
            per_plane["zero"] = scale_grid.grid_span(zero, level, row, place)
        elif zero is not None:
            per_plane["zero"] = tuple(
                element_span(zero, word * zero.shape[1] + group, low, width)
                for word, low, width in axis.fields(row)
            )
        if g_idx is not None:
            per_plane["group_index"] = (element_span(g_idx, col),)
        spans = tuple(
            element_span(codes, row * codes.shape[1] + word, low, width)
            for word, low, width in axis.fields(col)
        )
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Whether weight_g_idx is natural."""
        return order_evidence(tensor, reader)


def order_evidence(tensor: LogicalTensor, reader: PlaneReader) -> Iterator[Evidence]:
    """What a stored group index says about the order of columns; nothing where none is stored."""
    g_idx = tensor.plane("group_index")
    if g_idx is None:
        return
    values = reader.read(g_idx)[0].astype(np.int64)
    natural = bool((np.diff(values) >= 0).all())
    yield Evidence(
        field="order",
        method=g_idx.suffix,
        supports=("natural" if natural else "act_order",),
        strength="proved",
        numbers={
            "groups_used": int(np.unique(values).size),
            "first": [int(v) for v in values[:8]],
        },
        sample=Sample(values.size, values.size, "channels"),
    )


def numbers(tensor: LogicalTensor, key: str) -> list[int]:
    """Integers that grouping noted under a key."""
    return [int(number) for number in tensor.fact(key).split(",") if number]


def stored_shape(index: TensorIndex, module: str, suffix: str) -> tuple[int, int] | None:
    """Last two extents of a stored shape tensor, or None."""
    stored = index.get(module, suffix)
    if stored is None or stored.dtype not in ("I64", "I32") or stored.shape not in ((2,), (3,)):
        return None
    item = 8 if stored.dtype == "I64" else 4
    data = index.small(stored)
    if len(data) != item * stored.shape[0]:
        return None
    values = np.frombuffer(data, dtype=f"<i{item}")[-2:]
    n_out, n_in = int(values[0]), int(values[1])
    return (n_out, n_in) if 0 < n_out < 1 << 40 and 0 < n_in < 1 << 40 else None


def shape_claims(
    tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
) -> Iterator[Claim]:
    """The stored shape as a claim."""
    plane = tensor.plane("meta")
    if plane is None or plane.dtype not in ("I64", "I32") or plane.nbytes > 64:
        return
    values = [int(value) for value in reader.read(plane).ravel()]
    file = next((f.name for f in declared.files if f.file_id == plane.file_id), "")
    yield Claim(
        field="shape",
        value=values[-2:],
        source=Source(file, f"{plane.stored_name}#"),
        written=values,
    )


def column_groups(
    tensor: LogicalTensor, reading: Reading, cols: range, reader: PlaneReader
) -> Array | None:
    """Group of each column under a stored g_idx; None without one."""
    g_idx = tensor.plane("group_index")
    if g_idx is None or reading.group[0].axis != "in":
        return None
    groups: Array = reader.read(g_idx, None, cols)[0].astype(np.int64)
    return groups


def _used(reading: Reading, cols: range) -> range:
    level = reading.group[0]
    if level.axis != "in" or not isinstance(level.size, int):
        return range(1)
    return range(cols.start // level.size, -(-cols.stop // level.size) if len(cols) else 0)


def _zeros(
    tensor: LogicalTensor, reading: Reading, rows: range, used: range, reader: PlaneReader
) -> tuple[Array, Array | None]:
    plane = tensor.plane("zero")
    if plane is None:
        return np.full((1, 1), reading.midpoint, dtype=np.int16), None
    if plane.dtype in ("I8", "U8"):
        cols = range(used.start * reading.group_size, used.stop * reading.group_size)
        window = Window(rows, range(cols.start, min(cols.stop, reading.shape[1])))
        grid = scale_grid.read_grid(plane, reading.group[0], window, reader)
        whole = np.unique(grid.group_of_column, return_index=True)[1]
        groups = grid.group_of_column[whole]
        signed = grid.values[:, groups] if grid.values.shape[1] > 1 else grid.values
        stored = signed.astype(np.int16) + reading.midpoint
        return stored, stored
    axis = _axis(reading)
    words, skip = axis.cover(rows, plane.shape[0])
    packed = reader.read(plane, words, used).T
    return true_zeros(packed, axis, rows, rows.start - skip, reading.zero_convention)


def _orders(bit_width: int) -> tuple[str, ...]:
    return ("sequential",) if 32 % bit_width == 0 else ("bitstream", "padded")


def _axis(reading: Reading) -> PackedAxis:
    return PackedAxis(word_bits=32, bit_width=reading.bit_width, order=reading.packing.order)


def _extents(
    tensor: LogicalTensor, axis: PackedAxis, n_words: int, scale: Plane, declared: Sequence[int]
) -> list[int]:
    """Input extents that fill the words: the stored one, whole groups, else all codes that fit."""
    if tensor.fact("n_in"):
        return numbers(tensor, "n_in")
    g_idx = tensor.plane("group_index")
    if g_idx is not None and len(g_idx.shape) == 1:
        return [g_idx.shape[0]]
    most = n_words * axis.run[0] // axis.run[1]
    grid = scale_grid.grid_shape(scale)
    n_groups = grid[1] if len(grid) == 2 else 1
    whole = [n_groups * size for size in (*declared, *scale_grid.GROUP_SIZES) if n_groups > 1]
    fits = [extent for extent in whole if extent <= most and axis.n_words(extent) == n_words]
    return list(dict.fromkeys((most, *fits))) if most in fits or not fits else fits


def _reading(
    tensor: LogicalTensor,
    bit_width: int,
    shape: tuple[int, int],
    level: GroupLevel,
    order: str,
) -> Reading:
    codes, scale, zero = (tensor.plane(r) for r in ("codes", "scale", "zero"))
    assert codes is not None
    assert scale is not None
    return Reading(
        element=f"u{bit_width}",
        bit_width=bit_width,
        shape=shape,
        group=(level,),
        scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="weight_scale"),),
        zero="fixed" if zero is None else "integer",
        midpoint=1 << (bit_width - 1),
        zero_convention="not_applicable" if zero is None else "as_is",
        packing=Packing(word=codes.dtype, axis="in", order=order),
        symmetric=True if zero is None else None,
    )
