"""VPTQ: vectors along the output axis out of centroids, with residual centroids and outlier columns.

Source: microsoft/VPTQ, vptq/layers/vqlinear.py (planes), vptq/utils/pack.py (packed indices),
vptq/ops/quant_gemm.py (dequant). Sizes stand in config.json a layer: `config_for_layers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import FamilyBase, ceil_div, demand, element_span
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
    "indices": "codes",
    "centroids.weight": "codebook",
    "res_indices": "codes",
    "res_centroids.weight": "codebook",
    "outlier_indices": "codes",
    "outlier_centroids.weight": "codebook",
    "perm": "permutation",
    "weight_scale": "scale",
    "weight_bias": "minimum",
    "bias": "bias",
}
_KEYS = (
    "in_features", "out_features", "group_num", "group_size", "outlier_size", "is_indice_packed",
)  # fmt: skip
_PAIRS = ("vector_lens", "num_centroids", "num_res_centroids")


class Vptq(FamilyBase):
    """indices and centroids, packed or not, with residuals, outliers, permutation and norms."""

    name: ClassVar[str] = "vptq"
    title: ClassVar[str] = "VPTQ (vector codebooks)"

    def signature(self) -> Signature:
        """`indices`."""
        return Signature(last_parts=("indices",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module with indices and centroids."""
        for module in index.modules_with("indices"):
            alone = orphans_of(
                index, module, self.name, tuple(ROLES), ("indices", "centroids.weight")
            )
            if alone:
                if declared.with_method("vptq"):
                    yield from alone
                continue
            facts = _layer(declared, module)
            shape = tuple(
                _number(str(facts.get(key, ""))) for key in ("out_features", "in_features")
            )
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="vptq",
                shape=shape,
                planes=planes_of(index, module, ROLES),
                certainty=3,
                facts=tuple((key, str(value)) for key, value in facts.items()),
            )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Shape and codebook of the layer's entry."""
        for section in declared.with_method("vptq"):
            key = _layer_key(section, tensor.module)
            if key is None:
                continue
            path = ("config_for_layers", key)
            extents = [section.get(*path, "out_features"), section.get(*path, "in_features")]
            if all(isinstance(extent, int) for extent in extents):
                yield section.claim("shape", extents, *path, "out_features")
            centroids = section.get(*path, "num_centroids")
            if isinstance(centroids, list) and len(centroids) == 2:
                element = f"codebook({centroids[1]})"
                yield section.claim("element", element, *path, "num_centroids")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The reading of the layer's entry; none where config.json has none."""
        layer = _Layer.of(tensor)
        if layer is None:
            return
        scale = tensor.plane_named("weight_scale")
        bits = layer.bits + layer.res_bits
        yield Reading(
            element=f"codebook({layer.centroids})",
            bit_width=0,
            shape=(layer.n_out, layer.n_in),
            group=(GroupLevel(axis="out", size=layer.vector),),
            scale=(
                (ScaleLevel(dtype="f16", name="weight_scale", signed=True, per="input channel"),)
                if scale is not None
                else ()
            ),
            zero="additive_min" if tensor.plane_named("weight_bias") is not None else "none",
            packing=Packing(
                word=tensor.planes[0].dtype,
                axis="in",
                order="bitstream" if layer.packed else "one_per_word",
            ),
            order="act_order" if tensor.plane("permutation") is not None else "natural",
            arithmetic=Arithmetic(rule="(centroid + residual)[perm] * scale + bias"),
            effective_bits=bits / layer.vector,
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Indices of every vector, whole sets of centroids, one scale and bias an input channel."""
        layer = _Layer.of(tensor)
        assert layer is not None
        width = layer.bits + layer.res_bits
        columns = ceil_div(layer.group * width, 32) if layer.packed else layer.group
        equations = [
            demand(
                tensor.plane_named("indices"),
                "indices",
                "[C, ceil(N/v), ceil(g*b/32)]" if layer.packed else "[C, ceil(N/v), g]",
                (layer.books, ceil_div(layer.n_out, layer.vector), columns),
                substituted=f"[{layer.books}, ceil({layer.n_out}/{layer.vector}), {columns}]",
            ),
            demand(
                tensor.plane_named("centroids.weight"),
                "centroids.weight",
                "[C, n*v]",
                (layer.books, layer.centroids * layer.vector),
            ),
        ]
        if layer.res_centroids > 0:
            equations.append(
                demand(
                    tensor.plane_named("res_centroids.weight"),
                    "res_centroids.weight",
                    "[C, n*v]",
                    (layer.books, layer.res_centroids * layer.vector),
                )
            )
        for suffix in ("weight_scale", "weight_bias", "perm"):
            equations.append(
                demand(tensor.plane_named(suffix), suffix, "[K]", (layer.n_in,), optional=True)
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Vectors of the window's rows, columns put back in order, with scale and bias a column."""
        layer = _Layer.of(tensor)
        assert layer is not None
        rows, cols = window.rows, window.cols
        if not len(rows) or not len(cols):
            return Parts(codes=np.zeros(window.shape, np.float32), combine="value")
        stored = layer.rows(tensor, rows, reader)
        perm = tensor.plane("permutation")
        if perm is not None:
            stored = stored[:, _inverse(perm, reader)]
        values = stored[:, cols.start : cols.stop]
        scale, bias = tensor.plane_named("weight_scale"), tensor.plane_named("weight_bias")
        everything = np.arange(len(cols))
        if scale is None or bias is None:
            return Parts(codes=values, combine="value", group_of_column=everything)
        return Parts(
            codes=values,
            combine="vector",
            scale=(reader.floats(scale, None, cols),),
            minimum=reader.floats(bias, None, cols),
            group_of_column=everything,
        )

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """Vector * scale + bias in float32."""
        if parts.combine != "vector":
            return super().combine(parts, reading, as_producer)
        assert parts.minimum is not None
        weights: Array = parts.codes * parts.scale[0] + parts.minimum
        return weights

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The index of the vector that the element is part of; needs `reader` where columns are permuted."""
        layer = _Layer.of(tensor)
        assert layer is not None
        indices = tensor.plane_named("indices")
        assert indices is not None
        place, perm = col, tensor.plane("permutation")
        if perm is not None and reader is not None:
            place = int(_inverse(perm, reader)[col])
        place -= layer.outliers
        spans: tuple[BitSpan, ...] = ()
        if place >= 0:
            book, column = divmod(place, layer.group)
            line = book * indices.shape[1] + row // layer.vector
            spans = layer.spans(indices, line, column)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        scale = tensor.plane_named("weight_scale")
        if scale is not None:
            per_plane["scale"] = (element_span(scale, col),)
        return Cell(row=row, col=col, group=row // layer.vector, bits=spans, per_plane=per_plane)

    def undecodable(self, tensor: LogicalTensor) -> str | None:
        """Without the layer's sizes nothing can be cut; vectors along the input axis are not stated."""
        if tensor.fact("vector_quant_dim", "out") != "out":
            return "vectors along the input axis, for which the reader has no rule"
        if _Layer.of(tensor) is None:
            return "config.json has no entry with the sizes of this layer"
        return None


class _Layer:
    """Sizes of one layer."""

    def __init__(self, facts: dict[str, str]) -> None:
        numbers = {key: _number(facts.get(key, "")) for key in _KEYS}
        pairs = {key: _pair(facts.get(key, "")) for key in _PAIRS}
        self.n_in, self.n_out = numbers["in_features"], numbers["out_features"]
        self.books, self.group = numbers["group_num"], numbers["group_size"]
        self.outliers = numbers["outlier_size"] if pairs["vector_lens"][0] > 1 else 0
        self.packed = facts.get("is_indice_packed") == "True"
        self.outlier_vector, self.vector = pairs["vector_lens"]
        self.outlier_centroids, self.centroids = pairs["num_centroids"]
        self.res_centroids = max(0, pairs["num_res_centroids"][1])
        self.bits = max(1, (self.centroids - 1).bit_length())
        self.res_bits = (self.res_centroids - 1).bit_length() if self.res_centroids > 1 else 0

    @classmethod
    def of(cls, tensor: LogicalTensor) -> _Layer | None:
        """Sizes of a tensor's layer, or None where they are missing or make no sense."""
        layer = cls(dict(tensor.facts))
        sane = min(layer.n_in, layer.n_out, layer.books, layer.group, layer.vector)
        return (
            layer
            if sane > 0 and layer.centroids > 0 and layer.bits + layer.res_bits <= 32
            else None
        )

    def rows(self, tensor: LogicalTensor, rows: range, reader: PlaneReader) -> Array:
        """Rows in the stored order of columns, float32 [rows, K]."""
        indices = tensor.plane_named("indices")
        books = tensor.plane_named("centroids.weight")
        assert indices is not None
        assert books is not None
        lines = range(rows.start // self.vector, ceil_div(rows.stop, self.vector))
        main, residual = self._numbers(tensor, indices, lines, reader)
        value = self._look_up(main, books, self.centroids, self.vector, reader)
        extra = tensor.plane_named("res_centroids.weight")
        if residual is not None and extra is not None:
            value = value + self._look_up(residual, extra, self.res_centroids, self.vector, reader)
        skip = rows.start - lines.start * self.vector
        cut = value[skip : skip + len(rows)]
        outlier = self._outliers(tensor, rows, reader)
        return cut if outlier is None else np.concatenate([outlier, cut], axis=1)

    def _numbers(
        self, tensor: LogicalTensor, plane: Plane, lines: range, reader: PlaneReader
    ) -> tuple[Array, Array | None]:
        """Main and residual indices, int64 [C, lines, g]."""
        stored = np.stack(
            [
                reader.read(
                    plane, range(b * plane.shape[1] + lines.start, b * plane.shape[1] + lines.stop)
                )
                for b in range(self.books)
            ]
        )
        if not self.packed:
            residual = tensor.plane_named("res_indices")
            both = _plain(stored)
            if residual is None:
                return both, None
            extra = np.stack(
                [
                    reader.read(
                        residual,
                        range(b * plane.shape[1] + lines.start, b * plane.shape[1] + lines.stop),
                    )
                    for b in range(self.books)
                ]
            )
            return both, _plain(extra)
        width = self.bits + self.res_bits
        starts = np.arange(self.group, dtype=np.uint64) * np.uint64(width)
        words = np.ascontiguousarray(stored).view(np.uint32).astype(np.uint64)
        word = (starts // 32).astype(np.int64)
        following = np.minimum(word + 1, words.shape[-1] - 1)
        pairs = words[..., word] | (words[..., following] << np.uint64(32))
        both = (pairs >> (starts % 32)) & np.uint64((1 << width) - 1)
        main = (both & np.uint64((1 << self.bits) - 1)).astype(np.int64)
        if not self.res_bits:
            return main, None
        return main, (both >> np.uint64(self.bits)).astype(np.int64)

    def _look_up(
        self, numbers: Array, books: Plane, count: int, vector: int, reader: PlaneReader
    ) -> Array:
        """Vectors laid along the rows, float32 [lines * v, C * g]."""
        tables = reader.floats(books).reshape(numbers.shape[0], count, vector)
        picked = np.stack(
            [table[np.minimum(n, count - 1)] for table, n in zip(tables, numbers, strict=True)]
        )
        # [C, lines, g, v] -> [lines, v, C, g]
        spread = picked.transpose(1, 3, 0, 2)
        return spread.reshape(numbers.shape[1] * vector, -1)

    def _outliers(self, tensor: LogicalTensor, rows: range, reader: PlaneReader) -> Array | None:
        """The first columns, which have centroids of their own."""
        plane = tensor.plane_named("outlier_indices")
        books = tensor.plane_named("outlier_centroids.weight")
        if not self.outliers or plane is None or books is None:
            return None
        vector = self.outlier_vector
        lines = range(rows.start // vector, ceil_div(rows.stop, vector))
        numbers = _plain(reader.read(plane, lines))[None]
        value = self._look_up(numbers, books, self.outlier_centroids, vector, reader)
        skip = rows.start - lines.start * vector
        return value[skip : skip + len(rows)]

    def spans(self, plane: Plane, line: int, column: int) -> tuple[BitSpan, ...]:
        """Bits of one index, its lowest first."""
        if not self.packed:
            return (element_span(plane, line * plane.shape[-1] + column),)
        width = self.bits + self.res_bits
        word, low = divmod(column * width, 32)
        head = min(width, 32 - low)
        base = line * plane.shape[-1] + word
        spans = [element_span(plane, base, low, head)]
        if head < width:
            spans.append(element_span(plane, base + 1, 0, width - head))
        return tuple(spans)


def _inverse(perm: Plane, reader: PlaneReader) -> Array:
    """Stored column of each input channel."""
    return np.argsort(_plain(reader.read(perm)[0]), kind="stable")


def _plain(stored: Array) -> Array:
    """16-bit indices, which may be stored as halves, as int64."""
    return np.ascontiguousarray(stored).view(np.uint16).astype(np.int64)


def _layer_key(section: Section, module: str) -> str | None:
    layers = section.get("config_for_layers")
    return module if isinstance(layers, dict) and module in layers else None


def _layer(declared: Declarations, module: str) -> dict[str, Any]:
    for section in declared.with_method("vptq"):
        key = _layer_key(section, module)
        entry = section.get("config_for_layers", key) if key else None
        if isinstance(entry, dict):
            return {
                key: entry[key] for key in (*_KEYS, *_PAIRS, "vector_quant_dim") if key in entry
            }
    return {}


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 10 else 0


def _pair(text: str) -> tuple[int, int]:
    parts = [part.strip() for part in text.strip("[]()").split(",")]
    if len(parts) != 2 or not all(part.lstrip("-").isdigit() and len(part) < 10 for part in parts):
        return 0, 0
    return int(parts[0]), int(parts[1])
