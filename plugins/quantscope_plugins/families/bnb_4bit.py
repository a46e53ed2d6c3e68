"""bitsandbytes NF4 and FP4: nibbles over the flattened weight, one absmax a block, perhaps quantized itself.

Planes, nibble order (high first) and JSON: bitsandbytes (functional.py, QuantState; backends/default/ops.py;
csrc/kernels.cu). The packed bytes may be stored under any dtype (`quant_storage`). Rule: table[code] * absmax
in float32, rounded to the dtype in quant_state; a nested absmax is map[u8] * nested_absmax + offset.
GPTQModel names the planes with underscores (gptqmodel/nn_modules/qlinear/bitsandbytes.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode.bits import unpack_nibbles
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.families.base import FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import MAX_SMALL_BYTES, TensorIndex
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
    Orphan,
    Packing,
    Plane,
    Reading,
    Sample,
    ScaleLevel,
    Slice,
    Source,
)

from quantscope_plugins.families import bnb_config
from quantscope_plugins.families.ct_config import is_int
from quantscope_plugins.families.stacks import MAX_EXPERTS

STATE = "quant_state.bitsandbytes__"
KINDS = ("nf4", "fp4")
TABLES = {"nf4": "nf4", "fp4": "bnb_fp4"}
BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096, 32)
NESTED_BLOCK = 256
PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


class Bnb4bit(FamilyBase):
    """bitsandbytes 4-bit: NF4 and FP4, plain and nested scales."""

    name: ClassVar[str] = "bnb_4bit"
    title: ClassVar[str] = "bitsandbytes NF4 and FP4 (flat blocks)"

    def signature(self) -> Signature:
        """The quant_state of either kind, under either spelling."""
        return Signature(
            last_parts=("bitsandbytes__nf4", "bitsandbytes__fp4", "weight_quant_state", "absmax")
        )

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor | Orphan]:
        """One logical tensor per weight with a quant_state; one per expert where its shape has three axes."""
        for kind in KINDS:
            for name in index.names_with_last(f"bitsandbytes__{kind}"):
                base = name.removesuffix(f".{STATE}{kind}")
                if base != name:
                    yield from self._tensors(index, base, kind, name, f"{base}.")
        for name in index.names_with_last("weight_quant_state"):
            base = name.removesuffix("_quant_state")
            state = _parse(index.small(index.tensors[name]))
            kind = str(state.get("quant_type"))
            if kind in KINDS:
                yield from self._tensors(index, base, kind, name, f"{base}_")
        yield from self._orphans(index)

    def _tensors(
        self, index: TensorIndex, base: str, kind: str, state_name: str, prefix: str
    ) -> Iterator[LogicalTensor | Orphan]:
        stored = {part: index.tensors.get(prefix + part) for part in PARTS}
        codes, absmax = index.tensors.get(base), stored["absmax"]
        if codes is None or absmax is None:
            missing = (
                *(("weight",) if codes is None else ()),
                *(("absmax",) if absmax is None else ()),
            )
            for tensor in (index.tensors.get(state_name), *stored.values(), codes):
                if tensor is not None:
                    yield Orphan(
                        stored_name=tensor.name,
                        module=base.rpartition(".")[0],
                        family=self.name,
                        missing=missing,
                    )
            return
        state = _parse(index.small(index.tensors[state_name]))
        roles: tuple[tuple[Literal["scale2", "codebook"], str], ...] = (
            ("scale2", "nested_absmax"),
            ("codebook", "nested_quant_map"),
            ("codebook", "quant_map"),
        )
        planes = [
            index.plane_of("codes", codes, base.rpartition(".")[2]),
            index.plane_of("scale", absmax, "absmax"),
        ]
        for role, part in roles:
            tensor = stored[part]
            if tensor is not None:
                planes.append(index.plane_of(role, tensor, part))
        state_plane = index.tensors[state_name]
        planes.append(index.plane_of("meta", state_plane, f"{STATE}{kind}"))
        module = base.rpartition(".")[0]
        bias = index.plane("bias", module, "bias") if base.endswith("weight") else None
        if bias is not None:
            planes.append(bias)
        yield from self._slices(base, kind, state, tuple(planes), codes)

    def _slices(
        self,
        base: str,
        kind: str,
        state: dict[str, Any],
        planes: tuple[Plane, ...],
        codes: StoredTensor,
    ) -> Iterator[LogicalTensor]:
        extents = _extents(state)
        if not extents:
            extents = (1, codes.nbytes * 2)
        if len(extents) == 1:
            extents = (1, *extents)
        n_experts = 1
        for extent in extents[:-2]:
            n_experts *= extent
        shape = (extents[-2], extents[-1])
        total = n_experts * shape[0] * shape[1]
        facts = (
            ("kind", kind),
            ("blocksize", str(state.get("blocksize", ""))),
            ("dtype", str(state.get("dtype", ""))),
            ("nested_blocksize", str(state.get("nested_blocksize", ""))),
            ("total", str(total)),
        )
        for number in range(min(n_experts, MAX_EXPERTS)):
            part = None
            if n_experts > 1:
                part = Slice(kind="expert", index=number, count=n_experts)
            yield LogicalTensor(
                name=base if part is None else f"{base}[{number}]",
                module=base.rpartition(".")[0],
                family=self.name,
                word=f"bnb_{kind}",
                shape=shape,
                planes=planes,
                part=part,
                certainty=3,
                facts=facts,
            )

    def _orphans(self, index: TensorIndex) -> Iterator[Orphan]:
        """Absmax beside a weight without a quant_state: nothing says its shape or its blocks."""
        for name in index.names_with_last("absmax"):
            base = name.removesuffix(".absmax")
            if any(f"{base}.{STATE}{kind}" in index.tensors for kind in KINDS):
                continue
            for part in ("", *(f".{part}" for part in PARTS)):
                if base + part in index.tensors:
                    yield Orphan(
                        stored_name=base + part,
                        module=base.rpartition(".")[0],
                        family=self.name,
                        missing=(f"{STATE}nf4",),
                    )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The keys of quant_state, the kind in its name, and the config."""
        meta = tensor.plane("meta")
        if meta is not None:
            file = next((f.name for f in declared.files if f.file_id == meta.file_id), "")
            state = _parse(reader.raw(meta)) if meta.nbytes <= MAX_SMALL_BYTES else {}
            yield from _state_claims(state, Source(file, meta.stored_name))
            if STATE in meta.stored_name:
                yield Claim(
                    field="element",
                    value=tensor.fact("kind"),
                    source=Source(file, meta.stored_name),
                    basis="by_definition",
                )
        yield from bnb_config.claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Block sizes; the shape is that of quant_state."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scale is None:
            return
        kind = tensor.fact("kind")
        nested = tensor.plane("scale2") is not None
        declared = _number(tensor.fact("blocksize"))
        levels: tuple[ScaleLevel, ...] = (ScaleLevel(dtype="f32", name="absmax"),)
        if nested:
            block = _number(tensor.fact("nested_blocksize")) or NESTED_BLOCK
            levels = (
                ScaleLevel(dtype="u8", name="absmax"),
                ScaleLevel(dtype="f32", name="nested_absmax", per=f"{block} scales"),
            )
        output: Any = bnb_config.ROUNDINGS.get(tensor.fact("dtype"), "f32")
        for size in dict.fromkeys((*((declared,) if declared else ()), *BLOCKS)):
            yield Reading(
                element=kind,
                bit_width=4,
                shape=tensor.shape,
                group=(GroupLevel(axis="flat", size=size),),
                scale=levels,
                zero="none",
                packing=Packing(word=codes.dtype, axis="flat", order="high_first"),
                arithmetic=Arithmetic(output=output, rule="table[code] * absmax"),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Bytes of the codes under their storage dtype, counts of the scales."""
        total = _number(tensor.fact("total")) or reading.shape[0] * reading.shape[1]
        codes, scale, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        item = STORAGE_BITS.get(codes.dtype, 8) // 8 if codes else 1
        words = ceil_div(ceil_div(total, 2), max(item, 1))
        blocks = ceil_div(total, reading.group_size)
        equations = [
            demand(
                codes,
                codes.suffix if codes else "weight",
                f"[ceil(N*K/2)/{item}, 1]",
                (words, 1),
                substituted=f"[ceil({total}/2)/{item}, 1]",
                alternatives=((1, words), (words,)),
            ),
            demand(
                scale,
                "absmax",
                "[ceil(N*K/block)]",
                (blocks,),
                dtypes=("F32", "F16", "BF16") if second is None else ("U8",),
                substituted=f"[ceil({total}/{reading.group_size})]",
            ),
        ]
        if second is not None:
            nested = _number(tensor.fact("nested_blocksize")) or NESTED_BLOCK
            equations.append(
                demand(
                    second,
                    "nested_absmax",
                    "F32 [ceil(blocks/nested_block)]",
                    (ceil_div(blocks, nested),),
                    dtypes=("F32",),
                    substituted=f"[ceil({blocks}/{nested})]",
                )
            )
            equations.append(
                demand(
                    tensor.plane_named("nested_quant_map"),
                    "nested_quant_map",
                    "F32 [256]",
                    (256,),
                    dtypes=("F32",),
                )
            )
        equations.append(
            demand(
                tensor.plane_named("quant_map"),
                "quant_map",
                "F32 [16]",
                (16,),
                dtypes=("F32",),
                optional=True,
            )
        )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the absmax of the blocks that it touches."""
        n_cols, size = reading.shape[1], reading.group_size
        rows, cols = window.rows, window.cols
        base = _offset(tensor, reading)
        codes = self._codes(tensor, base, n_cols, window, reader)
        lut = float_table(TABLES[reading.element])
        if not codes.size:
            return Parts(codes=codes, combine="lut", lut=lut, scale=(np.ones((1, 1), np.float32),))
        first = base + rows.start * n_cols
        if base % size == 0 and n_cols % size == 0:
            per_row = n_cols // size
            left, right = cols.start // size, ceil_div(cols.stop, size)
            start = first // size
            scales = _absmax(tensor, start, start + len(rows) * per_row, reader)
            grid = scales.reshape(len(rows), per_row)[:, left:right]
            groups = np.arange(cols.start, cols.stop) // size - left
            return Parts(codes=codes, combine="lut", lut=lut, scale=(grid,), group_of_column=groups)
        starts = first + np.arange(len(rows), dtype=np.int64) * n_cols
        blocks = (starts[:, None] + np.arange(cols.start, cols.stop)) // size
        low, high = int(blocks[0, 0]), int(blocks[-1, -1])
        scales = _absmax(tensor, low, high + 1, reader)
        return Parts(
            codes=codes,
            combine="lut",
            lut=lut,
            scale=(scales[None, :],),
            group_of_column=blocks - low,
        )

    @staticmethod
    def _codes(
        tensor: LogicalTensor, base: int, n_cols: int, window: Window, reader: PlaneReader
    ) -> Array:
        """Nibbles of the window, [rows, columns]; wide windows are read as one run of bytes."""
        plane = tensor.plane("codes")
        assert plane is not None
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return np.zeros(window.shape, dtype=np.uint8)
        if len(cols) * 4 >= n_cols or len(rows) == 1:
            left = 0 if len(rows) > 1 else cols.start
            width = n_cols if len(rows) > 1 else len(cols)
            start = base + rows.start * n_cols + left
            flat = _nibbles(plane, start, len(rows) * width, reader)
            return flat.reshape(len(rows), width)[:, cols.start - left : cols.stop - left]
        lines = [
            _nibbles(plane, base + row * n_cols + cols.start, len(cols), reader) for row in rows
        ]
        return np.stack(lines)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The nibble, its block's absmax and the nested one behind that."""
        codes, scale, second = (tensor.plane(r) for r in ("codes", "scale", "scale2"))
        assert codes is not None
        number = _offset(tensor, reading) + row * reading.shape[1] + col
        block = number // reading.group_size
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = (element_span(scale, block),)
        if second is not None:
            nested = _number(tensor.fact("nested_blocksize")) or NESTED_BLOCK
            per_plane["scale2"] = (element_span(second, block // nested),)
        nibble = BitSpan(
            file_id=codes.file_id,
            byte_offset=codes.byte_offset + number // 2,
            nbytes=1,
            low_bit=4 if number % 2 == 0 else 0,
            bit_width=4,
        )
        return Cell(row=row, col=col, group=block, bits=(nibble,), per_plane=per_plane)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Which table the stored quant_map is."""
        plane = tensor.plane_named("quant_map")
        if plane is None or plane.dtype != "F32" or plane.nbytes != 64:
            return
        stored = reader.floats(plane).ravel()
        same = [k for k in KINDS if np.array_equal(stored, float_table(TABLES[k]))]
        yield Evidence(
            field="element",
            method="quant_map",
            supports=tuple(same),
            strength="proved" if same else None,
            numbers={"map_min": float(stored.min()), "map_max": float(stored.max())},
            sample=Sample(16, 16, "levels"),
        )


def _parse(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _state_claims(state: dict[str, Any], name: Source) -> Iterator[Claim]:
    """Claims of the JSON in quant_state; each key is `<tensor>#/<key>`."""

    def claim(field: str, value: Any, key: str) -> Claim:
        return Claim(
            field=field,
            value=value,
            source=Source(name.file, f"{name.pointer}#/{key}"),
            written=state[key],
        )

    if state.get("quant_type") in KINDS:
        yield claim("element", state["quant_type"], "quant_type")
    if is_int(state.get("blocksize")):
        yield claim("group", {"axis": "flat", "size": state["blocksize"]}, "blocksize")
    output = bnb_config.ROUNDINGS.get(str(state.get("dtype")))
    if output is not None:
        yield claim("arithmetic", {"output": output}, "dtype")
    extents = _extents(state)
    if len(extents) >= 2:
        yield claim("shape", list(extents[-2:]), "shape")
    if is_int(state.get("nested_blocksize")):
        per = f"{state['nested_blocksize']} scales"
        yield claim("scale", {"second_level": {"per": per}}, "nested_blocksize")
    nested = bnb_config.ROUNDINGS.get(str(state.get("nested_dtype")))
    if nested is not None:
        yield claim("scale", {"second_level": {"dtype": nested}}, "nested_dtype")


def _extents(state: dict[str, Any]) -> tuple[int, ...]:
    shape = state.get("shape")
    if not isinstance(shape, list) or not 0 < len(shape) <= 8:
        return ()
    if not all(is_int(extent) and 0 < extent < 1 << 40 for extent in shape):
        return ()
    return tuple(shape)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _offset(tensor: LogicalTensor, reading: Reading) -> int:
    """Flat number of the tensor's first element: experts follow each other."""
    if tensor.part is None:
        return 0
    return tensor.part.index * reading.shape[0] * reading.shape[1]


def _nibbles(plane: Plane, start: int, count: int, reader: PlaneReader) -> Array:
    """`count` flat codes from code `start` on; the plane's bytes count, whatever its dtype."""
    span = plane.spans[0]
    first, last = start // 2, ceil_div(start + count, 2)
    raw = msgspec.structs.replace(plane, dtype="U8", shape=(span.nbytes,))
    packed = reader.read(raw, None, range(first, last))[0]
    skip = start - first * 2
    codes: Array = unpack_nibbles(packed, high_first=True, count=skip + count)[skip:]
    return codes


def _absmax(tensor: LogicalTensor, first: int, last: int, reader: PlaneReader) -> Array:
    """float32 scales of blocks first..last-1, nested ones decoded."""
    plane, second = tensor.plane("scale"), tensor.plane("scale2")
    levels = tensor.plane_named("nested_quant_map")
    assert plane is not None
    if second is None or levels is None:
        plain: Array = reader.floats(plane, None, range(first, last))[0]
        return plain
    nested = _number(tensor.fact("nested_blocksize")) or NESTED_BLOCK
    codes = reader.read(plane, None, range(first, last))[0]
    used = range(first // nested, ceil_div(last, nested))
    outer = reader.floats(second, None, used)[0]
    table = reader.floats(levels)[0]
    outer_of = np.arange(first, last) // nested - used.start
    meta = tensor.plane("meta")
    state = _parse(reader.raw(meta)) if meta is not None and meta.nbytes <= MAX_SMALL_BYTES else {}
    offset = np.float32(_float(state.get("nested_offset")))
    scales: Array = table[codes] * outer[outer_of] + offset
    return scales
