"""Types of torchao's tensor subclasses: what each stores, and what its metadata entry declares.

Source: pytorch/ao, torchao/prototype/safetensors/safetensors_utils.py (encoding), the classes named in
`torchao.py`; transformers, quantizers/quantizer_torchao.py (config.json).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal

import msgspec
from quantscope.families.base import SCALE_WORDS
from quantscope.families.declarations import Declarations, Section
from quantscope.families.index import TensorIndex
from quantscope.model import Claim, Json, LogicalTensor, Role, Source

from quantscope_plugins.families.fp4_weight import SWIZZLED

ATTRIBUTES = (
    "qdata", "scale", "zero_point", "scale_and_zero", "per_tensor_scale", "act_pre_scale",
    "group_scale", "group_zero", "row_scale", "sparse_metadata",
)  # fmt: skip
"""Inner tensors that hold the weight, codes first."""

ROLES: dict[str, Role] = {
    "qdata": "codes",
    "scale": "scale",
    "zero_point": "zero",
    "scale_and_zero": "scale",
    "per_tensor_scale": "scale2",
    "act_pre_scale": "meta",
    "group_scale": "scale",
    "group_zero": "zero",
    "row_scale": "scale2",
    "sparse_metadata": "meta",
}

TYPES = (
    "Int8Tensor", "IntxUnpackedToInt8Tensor", "Int4Tensor", "Int4TilePackedTo4dTensor",
    "Int4PlainInt32Tensor", "Float8Tensor", "MXTensor", "NVFP4Tensor", "Int4PreshuffledTensor",
)  # fmt: skip

UNPROVED = {
    "Int4TilePackedTo4dTensor": "the order of codes inside a tinygemm tile is not proved here",
    "Int4PlainInt32Tensor": "the order of codes inside a word differs between devices",
    "Int4PreshuffledTensor": "the order of a preshuffled kernel layout is not proved here",
}
TILES = SWIZZLED

_OUTPUTS: dict[str, Literal["f16", "bf16", "f32"]] = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
}
_ELEM_DTYPES = {
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
    "float4_e2m1fn_x2": "e2m1",
    "fp6_e2m3": "e2m3",
    "fp6_e3m2": "e3m2",
}


class Entry(msgspec.Struct, frozen=True):
    """A metadata entry: the class, the JSON text of its attributes, the file that holds it."""

    type: str
    text: str
    file: str

    @property
    def attributes(self) -> dict[str, Json]:
        """Attributes by name."""
        return _attributes(self.text)

    def attribute(self, key: str) -> Json:
        """An attribute; the inner value of encoded types (`torch.dtype`)."""
        value = self.attributes.get(key)
        return value.get("_data") if isinstance(value, dict) and "_data" in value else value

    @property
    def output(self) -> Literal["f16", "bf16", "f32"]:
        """Type that the producer's decode rounds to."""
        word = self.attribute("dtype") or self.attribute("orig_dtype")
        default: Literal["bf16", "f32"] = (
            "bf16" if self.type in ("NVFP4Tensor", "MXTensor") else "f32"
        )
        return _OUTPUTS.get(str(word), default)

    def _block(self) -> list[int]:
        block = self.attribute("block_size")
        if isinstance(block, int) and not isinstance(block, bool):
            return [1, block]
        if isinstance(block, list) and all(isinstance(n, int) and n > 0 for n in block):
            return [int(n) for n in block][-2:]
        return []

    def sizes(self, shape: tuple[int, int]) -> list[int]:
        """Declared group size along the input axis."""
        block = self._block()
        return [block[1]] if len(block) == 2 and block[0] == 1 and block[1] != shape[1] else []

    def blocks(self) -> list[tuple[int, int]]:
        """Declared block of more than one row."""
        block = self._block()
        return [(block[0], block[1])] if len(block) == 2 and block[0] > 1 else []

    def group(self, shape: tuple[int, int]) -> Json:
        """The declared group in contract vocabulary, or None."""
        block = self._block()
        if len(block) != 2:
            return None
        if block[0] == 1:
            if block[1] == shape[1]:
                return {"axis": "channel", "size": None}
            return {"axis": "in", "size": block[1]}
        if tuple(block) == shape:
            return {"axis": "tensor", "size": None}
        return {"axis": "block", "size": block}


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """How a type stores its codes."""

    element: str
    bit_width: int
    codes_per_word: int = 1
    table: str = ""
    """Number type that codes index; empty for integers."""
    transposed: bool = False
    """Scales and zeros are [groups, N]."""
    additive: bool = False
    """The zero is a float that is added after scaling."""
    symmetric: bool | None = None


def traits_of(entry: Entry, dtype: str) -> Traits | None:
    """Traits of an entry whose codes are stored under a dtype; None for types without a reading."""
    if entry.type == "Int8Tensor":
        return Traits(element="s8", bit_width=8, symmetric=True)
    if entry.type == "IntxUnpackedToInt8Tensor":
        word = str(entry.attribute("target_dtype"))
        width = int(word[3:]) if word[:3] == "int" and word[3:].isdigit() else 8
        return Traits(element=f"s{width}", bit_width=min(max(width, 1), 8), symmetric=True)
    if entry.type == "Int4Tensor":
        return Traits(element="s4", bit_width=4, codes_per_word=2, transposed=True, additive=True)
    if entry.type == "Int4PlainInt32Tensor":
        return Traits(element="u4", bit_width=4, codes_per_word=8, transposed=True)
    if entry.type == "Float8Tensor":
        table = {"F8_E5M2": "e5m2", "F8_E4M3FNUZ": "e4m3fnuz", "F8_E5M2FNUZ": "e5m2fnuz"}.get(
            dtype, "e4m3fn"
        )
        return Traits(element=table, bit_width=8, table=table)
    if entry.type == "NVFP4Tensor":
        return Traits(element="e2m1", bit_width=4, codes_per_word=2, table="e2m1")
    if entry.type == "MXTensor":
        stored = {"F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2"}.get(dtype, "e2m1")
        table = _ELEM_DTYPES.get(str(entry.attribute("elem_dtype")), stored)
        width = {"e2m1": 4, "e2m3": 6, "e3m2": 6}.get(table, 8)
        return Traits(
            element=table, bit_width=width, codes_per_word=2 if width == 4 else 1, table=table
        )
    return None


def entries(declared: Declarations) -> dict[str, Entry]:
    """Every entry of a weight in any file's metadata, by tensor name."""
    found: dict[str, Entry] = {}
    for file in declared.files:
        for name, text in file.metadata.items():
            if not isinstance(text, str) or '"_type"' not in text[:64]:
                continue
            kind = _decoded(text).get("_type")
            if kind in TYPES and name not in found:
                found[name] = Entry(type=str(kind), text=text, file=file.name)
    return found


def guess(index: TensorIndex, name: str) -> Entry | None:
    """The type that the dtypes of the inner tensors fit, where the metadata was lost."""
    module, _, last = name.rpartition(".")
    qdata = index.get(module, f"_{last}_qdata")
    scale = index.get(module, f"_{last}_scale")
    if qdata is None or scale is None:
        return None
    if qdata.dtype == "I8":
        kind = "Int4Tensor" if _is_transposed(qdata.shape, scale.shape) else "Int8Tensor"
    elif qdata.dtype == "U8":
        kind = "NVFP4Tensor" if scale.dtype == "F8_E4M3" else "MXTensor"
    elif qdata.dtype.startswith("F8_"):
        kind = "MXTensor" if scale.dtype == "F8_E8M0" else "Float8Tensor"
    else:
        return None
    return Entry(type=kind, text="", file="")


def _is_transposed(qdata: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    return len(qdata) == len(scale) == 2 and scale[1] == qdata[0] and scale[0] != qdata[0]


def metadata_claims(entry: Entry, tensor: LogicalTensor, shape: tuple[int, int]) -> Iterator[Claim]:
    """What the entry says, with the place of each attribute."""
    name = tensor.name.partition("[")[0]

    def claim(field: str, value: Json, *path: str, by_type: bool = False) -> Claim:
        raw: Any = entry.type if path == ("_type",) else entry.attributes.get(path[-1])
        return Claim(
            field=field,
            value=value,
            source=Source(entry.file, "/".join((f"__metadata__/{name}", *path))),
            basis="by_definition" if by_type else "written",
            written=raw,
        )

    traits = traits_of(entry, tensor.planes[0].dtype)
    if traits is not None:
        for key in ("target_dtype", "elem_dtype"):
            if key in entry.attributes:
                yield claim("element", traits.element, "_data", key)
        yield claim("element", traits.element, "_type", by_type=True)
        zero = tensor.plane("zero")
        if zero is not None and not traits.additive:
            yield claim("zero_convention", "as_is", "_type", by_type=True)
        elif zero is not None:
            yield claim("zero", "additive_min", "_type", by_type=True)
    group = entry.group(shape)
    if group is not None:
        yield claim("group", group, "_data", "block_size")
    if isinstance(entry.attribute("is_swizzled_scales"), bool):
        placement = TILES if entry.attribute("is_swizzled_scales") else "linear"
        yield claim("placement", placement, "_data", "is_swizzled_scales")
    for key in ("dtype", "orig_dtype"):
        if str(entry.attribute(key)) in _OUTPUTS:
            yield claim("arithmetic", {"output": entry.output}, "_data", key)


def section_claims(declared: Declarations, tensor: LogicalTensor) -> Iterator[Claim]:
    """The config class of config.json: `quant_type.default`, as transformers writes it."""
    for section in declared.with_method("torchao"):
        path = ("quant_type", "default")
        data = section.get(*path, "_data")
        if not isinstance(data, dict):
            continue
        yield from _config_claims(section, path, data)


def _config_claims(
    section: Section, path: tuple[str, ...], data: dict[str, Json]
) -> Iterator[Claim]:
    kind = section.get(*path, "_type")
    by_class = {"Int8WeightOnlyConfig": "s8", "Int8DynamicActivationInt8WeightConfig": "s8"}
    if isinstance(kind, str) and kind in by_class:
        yield section.claim("element", by_class[kind], *path, "_type", basis="by_definition")
    word = section.get(*path, "_data", "weight_dtype", "_data")
    if isinstance(word, str) and word.startswith("int") and word[3:].isdigit():
        yield section.claim("element", f"s{word[3:]}", *path, "_data", "weight_dtype", "_data")
    size = section.get(*path, "_data", "granularity", "_data", "group_size")
    if isinstance(size, int) and not isinstance(size, bool):
        at = (*path, "_data", "granularity", "_data", "group_size")
        yield section.claim("group", {"size": size}, *at)
    elif section.get(*path, "_data", "granularity", "_type") == "PerRow":
        at = (*path, "_data", "granularity", "_type")
        yield section.claim("group", {"axis": "channel"}, *at, basis="by_definition")
    mapping = section.get(*path, "_data", "mapping_type", "_data")
    if mapping in ("SYMMETRIC", "ASYMMETRIC"):
        at = (*path, "_data", "mapping_type", "_data")
        yield section.claim("symmetric", mapping == "SYMMETRIC", *at)


def scale_word(dtype: str) -> str:
    """Word for a scale's dtype."""
    return SCALE_WORDS.get(dtype, dtype)


@lru_cache(maxsize=4096)
def _decoded(text: str) -> dict[str, Json]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _attributes(text: str) -> dict[str, Json]:
    data = _decoded(text).get("_data")
    return data if isinstance(data, dict) else {}
