"""optimum-quanto: 8-bit weights a row, 4- and 2-bit weights in groups of the reshaped weight.

Source: huggingface/optimum-quanto, optimum/quanto/tensor/weights/qbits.py and qbytes.py, tensor/packed.py,
tensor/grouped.py, nn/qmodule.py (group sizes), models/transformers_models.py (quanto_qmap.json).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
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
    Role,
    ScaleLevel,
    Source,
)

from quantscope_plugins.families.companions import module_companions
from quantscope_plugins.families.model_shapes import declared_row_length
from quantscope_plugins.families.reshaped import ReshapedMatrix

PACKED, BYTES = "weight._data._data", "weight._data"
SUFFIXES = (PACKED, BYTES, "weight._scale", "weight._shift")
FLOATS = ("F16", "BF16", "F32")
_WORDS = {
    "I8": "qint8",
    "F8_E4M3": "qfloat8",
    "F8_E5M2": "qfloat8_e5m2",
    "F8_E4M3FNUZ": "qfloat8_e4m3fnuz",
}
_ELEMENTS = {
    "qint2": "u2", "qint4": "u4", "qint8": "s8", "qfloat8": "e4m3fn", "qfloat8_e4m3fn": "e4m3fn",
    "qfloat8_e5m2": "e5m2", "qfloat8_e4m3fnuz": "e4m3fnuz",
}  # fmt: skip
"""qtype word -> element word."""

_FLOAT8 = {"F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2", "F8_E4M3FNUZ": "e4m3fnuz"}
_MAX_ROW_LENGTHS = 64
_ORDER = "row_chunks_low_first"


class Quanto(FamilyBase):
    """qint2, qint4, qint8, qfloat8 and qfloat8_e5m2."""

    name: ClassVar[str] = "quanto"
    title: ClassVar[str] = "optimum-quanto"

    def signature(self) -> Signature:
        """Inner tensors of a quanto weight: `weight._data`, `weight._scale`."""
        return Signature(last_parts=("_data", "_scale", "_shift"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with data and scale; 4 and 2 bits also need the shift."""
        modules = dict.fromkeys(m for suffix in SUFFIXES for m in index.modules_with(suffix))
        for module in modules:
            packed = index.get(module, PACKED)
            data = packed or index.get(module, BYTES)
            needed = ("weight._scale", "weight._shift") if packed else ("weight._scale",)
            missing = tuple(suffix for suffix in needed if index.get(module, suffix) is None)
            if data is None:
                missing = (BYTES, *missing)
            if missing or data is None:
                for suffix in SUFFIXES:
                    stored = index.get(module, suffix)
                    if stored is not None:
                        yield Orphan(
                            stored_name=stored.name,
                            module=module,
                            family=self.name,
                            missing=missing,
                        )
                continue
            yield self._tensor(index, declared, module, data, packed is not None)
        yield from module_companions(index, modules, self.name)

    def _tensor(
        self,
        index: TensorIndex,
        declared: Declarations,
        module: str,
        data: StoredTensor,
        packed: bool,
    ) -> LogicalTensor:
        planes = (
            index.plane_of("codes", data, PACKED if packed else BYTES),
            index.plane("scale", module, "weight._scale"),
            index.plane("minimum", module, "weight._shift"),
            index.plane("bias", module, "bias"),
        )
        qtype = _declared_qtype(declared, module)
        facts = []
        row_length = declared_row_length(declared, module)
        if packed and row_length is not None:
            facts.append(("row_length", str(row_length[0])))
        word = qtype or _qtype_by_shape(data, index.get(module, "weight._scale"))
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word=f"quanto:{word}",
            shape=data.shape,
            planes=tuple(plane for plane in planes if plane is not None),
            certainty=3,
            facts=tuple(facts),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The module's qtype in quanto_qmap.json, and the row length that config.json fixes."""
        for section in declared.sections:
            if section.file == "quanto_qmap.json":
                element = _ELEMENTS.get(str(section.get(tensor.module, "weights")))
                if element is not None:
                    yield section.claim("element", element, tensor.module, "weights")
            elif section.method == "quanto":
                key = "weights" if section.has("weights") else "weights_dtype"
                element = {"int8": "s8", "int4": "u4", "int2": "u2", "float8": "e4m3fn"}.get(
                    str(section.get(key))
                )
                if element is not None:
                    yield section.claim("element", element, key)
        row_length = declared_row_length(declared, tensor.module)
        reading = next(self.candidates(tensor), None)
        if row_length is not None and reading is not None and reading.shape[1] == row_length[0]:
            yield Claim(
                field="shape",
                value=list(reading.shape),
                source=Source(row_length[1].file, row_length[1].pointer),
                basis="by_definition",
                written=row_length[0],
            )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """8 bits: one a row. 4 and 2 bits: both widths and every row length that the groups allow."""
        data, scale = tensor.plane("codes"), tensor.plane("scale")
        if data is None or scale is None or len(data.shape) != 2:
            return
        if data.suffix == BYTES:
            yield self._bytes_reading(data, scale)
            return
        widths = (2, 4) if tensor.word.endswith("qint2") else (4, 2)
        n_groups = scale.shape[0] if len(scale.shape) == 2 else 0
        for width in widths:
            full = data.shape[0] * 8 // width
            fits = ceil_div(n_groups * width, 8) == data.shape[0]
            count = n_groups if fits and _rows(tensor, "minimum") != full else full
            for shape in _shapes(tensor, count, data.shape[1]):
                matrix = _matrix(shape, data.shape[1], width)
                yield self._bits_reading(tensor, matrix, scale)

    def _bytes_reading(self, data: Plane, scale: Plane) -> Reading:
        rounding = _rounding(scale)
        return Reading(
            element=_FLOAT8.get(data.dtype, "s8"),
            bit_width=8,
            shape=(data.shape[0], data.shape[1]),
            group=(GroupLevel(axis="channel"),),
            scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="_scale"),),
            zero="none",
            packing=Packing(word=data.dtype, axis="none", order="one_per_word"),
            arithmetic=Arithmetic(compute=rounding, output=rounding, rule="code * scale"),
            symmetric=True,
        )

    def _bits_reading(self, tensor: LogicalTensor, matrix: ReshapedMatrix, scale: Plane) -> Reading:
        rounding = _rounding(scale)
        shift = tensor.plane("minimum")
        stored_zero = shift is not None and shift.dtype not in FLOATS
        rule = "(code - shift) * scale" if stored_zero else "code * scale - shift"
        return Reading(
            element=f"u{matrix.bit_width}",
            bit_width=matrix.bit_width,
            shape=matrix.shape,
            group=(matrix.level,),
            scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="_scale"),),
            zero="integer" if stored_zero else "additive_min",
            zero_convention="as_is" if stored_zero else "not_applicable",
            packing=Packing(word="U8", axis="out", order=_ORDER),
            arithmetic=Arithmetic(compute=rounding, output=rounding, rule=rule),
            symmetric=None if stored_zero else False,
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Data of N rows, or of N*K/g groups packed b bits a field; a scale and a shift a group."""
        data = tensor.plane("codes")
        assert data is not None
        n_out, n_in = reading.shape
        if data.suffix == BYTES:
            return [
                demand(data, BYTES, f"{data.dtype} [N, K]", (n_out, n_in)),
                demand(tensor.plane("scale"), "weight._scale", "[N, 1]", (n_out, 1), dtypes=FLOATS),
            ]
        matrix = _matrix(reading.shape, data.shape[1], reading.bit_width)
        size, width = matrix.group_size, reading.bit_width
        equations = [
            demand(
                data,
                PACKED,
                "U8 [ceil(N*K/g*b/8), g]",
                (matrix.stored_rows, size),
                dtypes=("U8",),
                substituted=f"[ceil({n_out}*{n_in}/{size}*{width}/8), {size}]",
            )
        ]
        for role, suffix in (("scale", "weight._scale"), ("minimum", "weight._shift")):
            plane = next((p for p in tensor.planes if p.role == role), None)
            equations.append(
                demand(
                    plane,
                    suffix,
                    "[N*K/g, 1]",
                    (matrix.rows, 1),
                    dtypes=(*FLOATS, "I8") if role == "minimum" else FLOATS,
                    substituted=f"[{n_out}*{n_in}/{size}, 1]",
                )
            )
        bias = tensor.plane("bias")
        equations.append(demand(bias, "bias", "[N]", (n_out,), optional=True))
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scale and the shift of every group in it."""
        data, scale, shift = (tensor.plane(role) for role in ("codes", "scale", "minimum"))
        assert data is not None
        assert scale is not None
        if data.suffix == BYTES:
            scales = reader.floats(scale, window.rows)
            codes = reader.read(data, window.rows, window.cols)
            table = _FLOAT8.get(data.dtype)
            return Parts(
                codes=codes,
                combine="lut" if table else "affine",
                scale=(scales,),
                lut=float_table(table) if table else None,
            )
        assert shift is not None
        matrix = _matrix(reading.shape, data.shape[1], reading.bit_width)
        (scales, shifts), groups = matrix.values((scale, shift), window, reader)
        codes = matrix.codes(data, window, reader)
        if reading.zero == "integer":
            with np.errstate(invalid="ignore"):
                stored_zero = shifts.astype("i2")
            return Parts(
                codes=codes,
                combine="affine",
                scale=(scales,),
                zero=shifts,
                stored_zero=stored_zero,
                group_of_column=groups,
            )
        return Parts(
            codes=codes,
            combine="minus_min",
            scale=(scales,),
            minimum=shifts,
            group_of_column=groups,
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The byte or field of the code, and the scale and shift of its row or group."""
        data, scale, shift = (tensor.plane(role) for role in ("codes", "scale", "minimum"))
        assert data is not None
        if data.suffix == BYTES:
            group, bits = row, element_span(data, row * reading.shape[1] + col)
        else:
            matrix = _matrix(reading.shape, data.shape[1], reading.bit_width)
            group, bits = matrix.group_of(row, col), matrix.code_span(data, row, col)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = (element_span(scale, group),)
        if shift is not None:
            per_plane["minimum"] = (element_span(shift, group),)
        return Cell(row=row, col=col, group=group, bits=(bits,), per_plane=per_plane)


def _declared_qtype(declared: Declarations, module: str) -> str:
    for section in declared.sections:
        if section.file == "quanto_qmap.json":
            qtype = section.get(module, "weights")
            if isinstance(qtype, str) and qtype in _ELEMENTS:
                return qtype
    return ""


def _qtype_by_shape(data: StoredTensor, scale: StoredTensor | None) -> str:
    """Qtype by the dtype, for packed bytes by the groups to a row of bytes."""
    if data.dtype != "U8":
        return _WORDS.get(data.dtype, data.dtype)
    n_groups = scale.shape[0] if scale is not None and scale.shape else 0
    rows = data.shape[0] if data.shape else 0
    return "qint2" if ceil_div(n_groups, 4) == rows else "qint4"


def _rounding(scale: Plane) -> Literal["f16", "bf16", "f32"]:
    return {"F16": "f16", "BF16": "bf16"}.get(scale.dtype, "f32")  # type: ignore[return-value]


def _rows(tensor: LogicalTensor, role: Role) -> int:
    plane = tensor.plane(role)
    return plane.shape[0] if plane is not None and plane.shape else 0


def _shapes(tensor: LogicalTensor, n_groups: int, size: int) -> list[tuple[int, int]]:
    """[N, K] with N*K = groups * g: the declared row length, else every K that is a multiple of g."""
    declared = tensor.fact("row_length")
    if declared and n_groups * size % int(declared) == 0 and int(declared) % size == 0:
        return [(n_groups * size // int(declared), int(declared))]
    factors = [m for m in range(1, min(n_groups, 4096) + 1) if n_groups % m == 0]
    return [(n_groups // m, m * size) for m in factors[:_MAX_ROW_LENGTHS]]


def _matrix(shape: tuple[int, ...], size: int, width: int) -> ReshapedMatrix:
    return ReshapedMatrix(
        shape=(shape[0], shape[1]),
        group_size=size,
        groups_are="rows",
        bit_width=width,
        word_bits=8,
        high_first=False,
    )
