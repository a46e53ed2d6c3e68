"""HQQ: W_q with float zeros and scales a group, in a torch zip (qmodel.pt) or in safetensors.

Source: dropbox/hqq, hqq/core/quantize.py (Quantizer, HQQLinear.state_dict), hqq/core/bitpack.py,
hqq/core/utils.py (encode_safetensor_type); transformers, quantizers/quantizer_hqq.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import msgspec
from quantscope.containers.records import StoredTensor
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations, Section
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
    Source,
)

from quantscope_plugins.families.reshaped import ReshapedMatrix

META = (
    "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale",
    "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config",
    "channel_wise", "optimize", "round_zero",
)  # fmt: skip
NESTED = ("zero_q", "scale_q", "zero_scale", "meta_zero", "meta_scale")
"""Scales and zeros that are quantized once more, which old versions could write."""

PACKINGS = {"8bit_u8": 8, "4bit_u8": 4, "3bit_32": 3, "2bit_u8": 2, "1bit_u8": 1}
_WIDTHS = (4, 8, 3, 2, 1)
_COMPUTE: dict[str, Literal["f16", "bf16", "f32"]] = {
    "torch.float16": "f16",
    "torch.bfloat16": "bf16",
    "torch.float32": "f32",
}
_ORDER = "row_chunks_high_first"


class Hqq(FamilyBase):
    """HQQ at 8, 6, 5, 4, 3, 2, 1.58 and 1 bits, grouped along either axis."""

    name: ClassVar[str] = "hqq"
    title: ClassVar[str] = "HQQ (W_q, float zero and scale a group)"

    def signature(self) -> Signature:
        """`W_q`."""
        return Signature(last_parts=("W_q",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with W_q, scale, zero and a stored shape."""
        for module in index.modules_with("W_q"):
            meta = _Meta(index, module)
            missing = tuple(s for s in ("scale", "zero") if index.get(module, s) is None)
            nested = any(index.get(module, suffix) for suffix in NESTED)
            if nested:
                missing = ()
            elif not meta.shape:
                missing = (*missing, "shape")
            if missing:
                for stored in _stored(index, module):
                    yield Orphan(
                        stored_name=stored.name, module=module, family=self.name, missing=missing
                    )
                continue
            yield self._tensor(index, module, meta, nested)

    def _tensor(self, index: TensorIndex, module: str, meta: _Meta, nested: bool) -> LogicalTensor:
        planes = [
            index.plane("codes", module, "W_q"),
            index.plane("scale", module, "scale"),
            index.plane("zero", module, "zero"),
            index.plane("bias", module, "bias"),
            *(index.plane("meta", module, suffix) for suffix in (*META, *NESTED)),
        ]
        kept = [plane for plane in planes if plane is not None]
        if meta.values.get("view_as_float") and kept[0].dtype in ("F16", "BF16", "F32"):
            kept[0] = _viewed(kept[0], str(meta.values.get("packing", "")))
        facts = [(key, str(value)) for key, value in meta.values.items() if key in META]
        facts.append(("file", meta.file))
        if nested:
            facts.append(("nested", "yes"))
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word="hqq",
            shape=meta.shape or kept[0].shape,
            planes=tuple(kept),
            certainty=3,
            facts=tuple(facts),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """What is stored beside W_q, and the layer's part of `quant_config` in config.json."""

        def stored(field: str, value: Any, key: str, written: Any) -> Claim:
            source = Source(tensor.fact("file"), f"{tensor.module}#/{key}")
            return Claim(field=field, value=value, source=source, written=written)

        values = {key: _parsed(tensor.fact(key)) for key in META if tensor.fact(key)}
        shape = values.get("shape")
        if isinstance(shape, list):
            yield stored("shape", shape, "shape", shape)
        for field, value, key in _contract_of(values, tensor.shape):
            yield stored(field, value, key, values[key])
        packing = values.get("packing")
        if packing in PACKINGS:
            word = "I32" if packing == "3bit_32" else "U8"
            order = {"word": word} if packing == "8bit_u8" else {"word": word, "order": _ORDER}
            yield stored("packing", order, "packing", packing)
        compute = _compute(tensor)
        if compute is not None and "compute_dtype" in values:
            yield stored(
                "arithmetic", {"output": compute}, "compute_dtype", values["compute_dtype"]
            )
        for section in declared.with_method("hqq"):
            yield from _section_claims(section, tensor)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Widths x both axes; the group size follows from the number of scales."""
        w_q, scale = tensor.plane("codes"), tensor.plane("scale")
        if w_q is None or scale is None or len(tensor.shape) != 2:
            return
        n_scales = scale.shape[0] * scale.shape[-1] if len(scale.shape) == 2 else 0
        total = tensor.shape[0] * tensor.shape[1]
        if not n_scales or total % n_scales or STORAGE_BITS.get(w_q.dtype, 0) not in (8, 32):
            return
        declared = tensor.fact("nbits")
        for groups_are in _axes(tensor, scale):
            for width in _widths(declared):
                matrix = _matrix(tensor, w_q, groups_are, width, total // n_scales)
                yield self._reading(tensor, matrix, declared)

    def _reading(self, tensor: LogicalTensor, matrix: ReshapedMatrix, declared: str) -> Reading:
        scale, w_q = tensor.plane("scale"), tensor.plane("codes")
        assert scale is not None
        assert w_q is not None
        width = matrix.bit_width
        element = f"u{declared}" if width == 8 and declared in ("5", "6", "7") else f"u{width}"
        compute = _compute(tensor) or "f16"
        return Reading(
            element=element,
            bit_width=width,
            shape=tensor.shape,
            group=(matrix.level,),
            scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name="scale"),),
            zero="float_zero",
            packing=Packing(
                word=w_q.dtype, axis="out", order="one_per_word" if width == 8 else _ORDER
            ),
            arithmetic=Arithmetic(compute=compute, output=compute),
            symmetric=False,
            extra=(("group_size", str(matrix.group_size)), ("groups_are", matrix.groups_are)),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """W_q of R/fields rows, one scale and one zero a group."""
        matrix = _matrix_of(tensor, reading)
        n_groups = matrix.rows if matrix.groups_are == "rows" else matrix.columns
        one = (n_groups, 1) if matrix.groups_are == "rows" else (1, n_groups)
        word = "I32" if reading.bit_width == 3 else "U8"
        rows = "N*K/g" if matrix.groups_are == "rows" else "g"
        columns = "g" if matrix.groups_are == "rows" else "N*K/g"
        per_group = "[N*K/g, 1]" if matrix.groups_are == "rows" else "[1, N*K/g]"
        equations = [
            demand(
                tensor.plane("codes"),
                "W_q",
                f"{word} [ceil({rows}/{matrix.fields}), {columns}]",
                (matrix.stored_rows, matrix.columns),
                dtypes=(word,),
                substituted=f"[ceil({matrix.rows}/{matrix.fields}), {matrix.columns}]",
            )
        ]
        for role, suffix in (("scale", "scale"), ("zero", "zero")):
            plane = next((p for p in tensor.planes if p.role == role), None)
            equations.append(demand(plane, suffix, per_group, one, dtypes=("F16", "BF16", "F32")))
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scale and the float zero of every group in it."""
        w_q, scale, zero = (tensor.plane(role) for role in ("codes", "scale", "zero"))
        assert w_q is not None
        assert scale is not None
        assert zero is not None
        matrix = _matrix_of(tensor, reading)
        (scales, zeros), groups = matrix.values((scale, zero), window, reader)
        return Parts(
            codes=matrix.codes(w_q, window, reader),
            combine="affine",
            scale=(scales,),
            zero=zeros,
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
        """The field of W_q, and the scale and zero of the element's group."""
        matrix = _matrix_of(tensor, reading)
        group = matrix.group_of(row, col)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        for role in ("scale", "zero"):
            plane = next((p for p in tensor.planes if p.role == role), None)
            if plane is not None:
                per_plane[role] = (element_span(plane, group),)
        w_q = tensor.plane("codes")
        assert w_q is not None
        return Cell(
            row=row,
            col=col,
            group=group,
            bits=(matrix.code_span(w_q, row, col),),
            per_plane=per_plane,
        )

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Scales and zeros that are themselves quantized."""
        if tensor.fact("nested"):
            return (
                "scales and zeros are themselves quantized, a layout that no current writer gives"
            )
        return None


class _Meta:
    """Plain values stored beside W_q: as a pickled dict, as flat pickled keys or as small tensors."""

    def __init__(self, index: TensorIndex, module: str) -> None:
        self.values: dict[str, Any] = {}
        w_q = index.get(module, "W_q")
        file = index.files.get(w_q.file_id) if w_q is not None else None
        self.file = file.name if file is not None else ""
        metadata = file.metadata if file is not None else {}
        tree = metadata.get(module)
        for key in META:
            if isinstance(tree, dict) and key in tree:
                self.values[key] = tree[key]
            elif f"{module}.{key}" in metadata:
                self.values[key] = metadata[f"{module}.{key}"]
            else:
                stored = index.get(module, key)
                if stored is not None:
                    self.values[key] = _decoded(stored, index.small(stored))

    @property
    def shape(self) -> tuple[int, int] | None:
        """[N, K], or None where it is not stored or makes no sense."""
        shape = self.values.get("shape")
        if not isinstance(shape, list | tuple) or len(shape) != 2:
            return None
        if not all(isinstance(n, int) and 0 < n < 1 << 31 for n in shape):
            return None
        return shape[0], shape[1]


def _decoded(stored: StoredTensor, data: bytes) -> Any:
    """A value that HQQ encoded as a tensor: text as bytes, numbers and flags as scalars."""
    flat = len(stored.shape) == 1
    if stored.dtype == "U8":
        if flat:
            return data.decode("ascii", "replace")
        return bool(data[0]) if data else None
    code = {"I32": "i", "F32": "f", "I64": "q"}.get(stored.dtype)
    size = STORAGE_BITS.get(stored.dtype, 8) // 8
    if code is None or len(data) % size or not data:
        return None
    numbers = list(struct.unpack(f"<{len(data) // size}{code}", data))
    if stored.dtype == "F32":
        numbers = [round(number, 4) for number in numbers]
    return numbers if flat else numbers[0]


def _parsed(text: str) -> Any:
    """A fact back from its text."""
    if text.startswith("["):
        return [int(n) for n in text.strip("[]").split(",") if n.strip().lstrip("-").isdigit()]
    if text in ("True", "False"):
        return text == "True"
    if text == "None":
        return None
    try:
        return float(text) if "." in text and text[0].isdigit() else int(text)
    except ValueError:
        return text


def _contract_of(values: dict[str, Any], shape: tuple[int, ...]) -> Iterator[tuple[str, Any, str]]:
    """(contract field, value, key) of the keys nbits, axis and group_size."""
    nbits = values.get("nbits")
    if isinstance(nbits, int) and not isinstance(nbits, bool):
        yield "element", f"u{nbits}", "nbits"
    elif nbits == 1.58:
        yield "element", "u2", "nbits"
    axis, size = values.get("axis"), values.get("group_size")
    if "group_size" in values and size is None and axis == 1:
        yield "group", {"axis": "channel", "size": None}, "group_size"
    elif isinstance(size, int):
        whole_row = axis == 1 and len(shape) == 2 and size == shape[1]
        value = {"axis": "channel", "size": None} if whole_row else {"size": size}
        yield "group", value, "group_size"
        if axis == 0:
            yield "group", {"axis": "flat"}, "axis"
        elif axis == 1 and len(shape) == 2 and not whole_row:
            yield "group", {"axis": "in" if shape[1] % size == 0 else "flat"}, "axis"


def _section_claims(section: Section, tensor: LogicalTensor) -> Iterator[Claim]:
    """Global parameters, or those of the tag that the module's name ends with."""
    config = section.get("quant_config")
    if not isinstance(config, dict):
        return
    path: tuple[str, ...] = ("quant_config", "weight_quant_params")
    if "weight_quant_params" not in config:
        tag = next((t for t in config if isinstance(t, str) and tensor.module.endswith(t)), None)
        if tag is None:
            return
        path = ("quant_config", tag, "weight_quant_params")
        if not isinstance(section.get(*path), dict):
            path = ("quant_config", tag)
    params = section.get(*path)
    if not isinstance(params, dict):
        return
    for field, value, key in _contract_of(params, tensor.shape):
        yield section.claim(field, value, *path, key)


def _stored(index: TensorIndex, module: str) -> Iterator[StoredTensor]:
    for suffix in ("W_q", "scale", "zero", *META):
        stored = index.get(module, suffix)
        if stored is not None:
            yield stored


def _viewed(plane: Plane, packing: str) -> Plane:
    """The integer words behind a plane that was stored under a float dtype (view_as_float)."""
    word = "I32" if packing == "3bit_32" else "U8"
    columns = plane.shape[-1] * STORAGE_BITS[plane.dtype] // STORAGE_BITS[word]
    return msgspec.structs.replace(plane, dtype=word, shape=(*plane.shape[:-1], columns))


def _axes(tensor: LogicalTensor, scale: Plane) -> tuple[str, ...]:
    """What a group is in the reshaped matrix: the scale's shape says it, the stored axis where it cannot."""
    declared = {"0": "columns", "1": "rows"}.get(tensor.fact("axis"), "rows")
    both = (declared, "columns" if declared == "rows" else "rows")
    if len(scale.shape) == 2 and scale.shape != (1, 1):
        return tuple(axis for axis in both if (axis == "rows") == (scale.shape[1] == 1))
    return both


def _widths(declared: str) -> tuple[int, ...]:
    known = {"1.58": 2, "5": 8, "6": 8, "7": 8}.get(declared)
    first = known or (int(declared) if declared.isdigit() else 0)
    return tuple(dict.fromkeys(w for w in (first, *_WIDTHS) if w in _WIDTHS))


def _matrix(
    tensor: LogicalTensor, w_q: Plane, groups_are: str, width: int, group_size: int
) -> ReshapedMatrix:
    return ReshapedMatrix(
        shape=(tensor.shape[0], tensor.shape[1]),
        group_size=group_size,
        groups_are=groups_are,
        bit_width=width,
        word_bits=STORAGE_BITS[w_q.dtype],
        high_first=True,
    )


def _matrix_of(tensor: LogicalTensor, reading: Reading) -> ReshapedMatrix:
    w_q = tensor.plane("codes")
    assert w_q is not None
    return _matrix(
        tensor, w_q, reading.fact("groups_are"), reading.bit_width, int(reading.fact("group_size"))
    )


def _compute(tensor: LogicalTensor) -> Literal["f16", "bf16", "f32"] | None:
    """Type of the weights: the stored compute_dtype, widened by float32 scales or zeros.

    hqq 0.2.8 casts codes to compute_dtype and lets torch promote (core/quantize.py, Quantizer.dequantize);
    transformers leaves scale and zero in float32 where it quantizes on the CPU.
    """
    compute = _COMPUTE.get(tensor.fact("compute_dtype"))
    planes = (tensor.plane("scale"), tensor.plane("zero"))
    wide = any(plane is not None and plane.dtype == "F32" for plane in planes)
    return "f32" if wide else compute
