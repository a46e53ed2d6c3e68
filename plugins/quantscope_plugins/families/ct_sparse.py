"""compressed-tensors sparse-24-bitmask and sparse-bitmask: kept values beside one bit an element.

`bitmask` U8 [N, ceil(K/8)], element 8j + i in bit i of byte j; kept values lie row by row in `compressed`, two
of every four as [N, K/2] (2:4), or flat with the first place of each row in `row_offsets`. Source:
compressed-tensors 0.10.2, compressors/sparse_compressors/sparse_24_bitmask.py, sparse_bitmask.py,
utils/helpers.py (pack_bitmasks).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.errors import UndecodableError
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

from quantscope_plugins.families import ct_config
from quantscope_plugins.families.companions import module_companions
from quantscope_plugins.families.listed import orphans_of

ELEMENTS = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F8_E4M3": "e4m3fn", "F8_E5M2": "e5m2"}
FLOATS = ("F16", "BF16", "F32")
SUFFIXES = ("compressed", "bitmask", "shape", "row_offsets")


class CtSparse(FamilyBase):
    """Both bitmask formats; a stored FP8 value may have a scale of its tensor, channel or group."""

    name: ClassVar[str] = "ct_sparse"
    title: ClassVar[str] = "compressed-tensors sparse bitmask (2:4 and unstructured)"

    def signature(self) -> Signature:
        """The mask's name."""
        return Signature(last_parts=("bitmask",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module with values, mask and shape."""
        found = []
        for module in index.modules_with("bitmask"):
            alone = orphans_of(index, module, self.name, SUFFIXES, SUFFIXES[:3])
            if alone:
                yield from alone
                continue
            tensor = self._tensor(index, module)
            if tensor is not None:
                found.append(module)
                yield tensor
        yield from module_companions(index, found, self.name)

    def _tensor(self, index: TensorIndex, module: str) -> LogicalTensor | None:
        values, mask = index.get(module, "compressed"), index.get(module, "bitmask")
        stated = index.get(module, "shape")
        if values is None or mask is None or stated is None or len(mask.shape) != 2:
            return None
        if values.dtype not in ELEMENTS or mask.dtype != "U8" or len(values.shape) not in (1, 2):
            return None
        data = index.small(stated) if stated.dtype == "I64" and stated.nbytes == 16 else b""
        n_rows, n_cols = np.frombuffer(data, "<i8").tolist() if data else (0, 0)
        if not (n_rows == mask.shape[0] and ceil_div(n_cols, 8) == mask.shape[1]):
            n_rows, n_cols = mask.shape[0], mask.shape[1] * 8
            if len(values.shape) == 2:
                n_cols = values.shape[1] * 2
        planes = (
            index.plane("codes", module, "compressed"),
            index.plane("meta", module, "bitmask"),
            index.plane("meta", module, "shape"),
            index.plane("meta", module, "row_offsets"),
            index.plane("scale", module, "weight_scale"),
            index.plane("bias", module, "bias"),
        )
        kind = "sparse-24-bitmask" if len(values.shape) == 2 else "sparse-bitmask"
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word=f"compressed_tensors:{kind}",
            shape=(n_rows, n_cols),
            planes=tuple(plane for plane in planes if plane is not None),
            certainty=3,
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The sparsity structure, and the config group of FP8 values."""
        for section in ct_config.ct_sections(declared):
            structure = section.get("sparsity_config", "sparsity_structure")
            if isinstance(structure, str):
                yield section.claim("sparsity", structure, "sparsity_config", "sparsity_structure")
        if tensor.plane("scale") is not None:
            yield from ct_config.claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """The shape that the planes state."""
        values, scale = tensor.plane("codes"), tensor.plane("scale")
        if values is None or min(tensor.shape) < 1:
            return
        levels = () if scale is None else (_scale_level(scale),)
        yield Reading(
            element=ELEMENTS[values.dtype],
            bit_width=STORAGE_BITS[values.dtype],
            shape=tensor.shape,
            group=() if scale is None else (_group(scale, tensor.shape),),
            scale=levels,
            zero="none",
            packing=Packing(word=values.dtype, axis="in", order="one_per_word"),
            symmetric=True,
            arithmetic=Arithmetic(
                rule="kept value * scale, else 0" if levels else "kept value, else 0"
            ),
        )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of values, mask, shape, row offsets and scales."""
        n_rows, n_cols = reading.shape
        values, scale = tensor.plane("codes"), tensor.plane("scale")
        dense = values is not None and len(values.shape) == 2
        kept = (n_rows, n_cols // 2) if dense or values is None else values.shape
        found = [
            demand(values, "compressed", "[N, K/2]" if dense else "[kept]", kept),
            demand(
                tensor.plane_named("bitmask"),
                "bitmask",
                "U8 [N, ceil(K/8)]",
                (n_rows, ceil_div(n_cols, 8)),
                dtypes=("U8",),
                substituted=f"[{n_rows}, ceil({n_cols}/8)]",
            ),
            demand(
                tensor.plane_named("shape"),
                "shape",
                "I64 [2, 1]" if dense else "I64 [2]",
                (2, 1) if dense else (2,),
                dtypes=("I64",),
                alternatives=((2,), (2, 1)),
            ),
        ]
        if not dense:
            offsets = tensor.plane_named("row_offsets")
            found.append(demand(offsets, "row_offsets", "I64 [N]", (n_rows,), dtypes=("I64",)))
        if scale is not None:
            found.append(_scale_equation(scale, reading))
        return found

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Values put where the mask keeps them, zeros elsewhere."""
        rows, cols = window.rows, window.cols
        values = self._rows(tensor, reading, rows, reader)[:, cols.start : cols.stop]
        scale = tensor.plane("scale")
        if scale is None:
            return Parts(codes=values, combine="value")
        level = reading.group[0]
        if level.axis == "tensor":
            return Parts(codes=values, combine="value", scale=(reader.floats(scale),))
        numbers = reader.floats(scale)
        numbers = numbers.reshape(reading.shape[0], -1)[rows.start : rows.stop]
        groups = np.arange(cols.start, cols.stop) // reading.group_size
        return Parts(codes=values, combine="value", scale=(numbers,), group_of_column=groups)

    def _rows(
        self, tensor: LogicalTensor, reading: Reading, rows: range, reader: PlaneReader
    ) -> Array:
        """Float32 [rows, K] of whole rows."""
        mask = self._mask(tensor, reading, rows, reader)
        plane, offsets = tensor.plane("codes"), tensor.plane_named("row_offsets")
        assert plane is not None
        counts = mask.sum(axis=1)
        if len(plane.shape) == 2:
            kept = reader.floats(plane, rows)
            fits = bool((counts == plane.shape[1]).all())
        else:
            assert offsets is not None
            starts = reader.read(offsets, cols=rows).reshape(-1).astype(np.int64)
            first = int(starts[0]) if starts.size else 0
            total = int(counts.sum())
            fits = bool((np.diff(starts) == counts[:-1]).all())
            fits = fits and 0 <= first <= first + total <= plane.shape[0]
            kept = reader.floats(plane, cols=range(first, first + total)) if fits else counts
        if not fits:
            raise UndecodableError(
                f"{tensor.name}: rows of the bitmask keep another number of values than are stored",
                source=tensor.name,
            )
        out = np.zeros(mask.shape, np.float32)
        out[mask] = kept.reshape(-1)
        return out

    def _mask(
        self, tensor: LogicalTensor, reading: Reading, rows: range, reader: PlaneReader
    ) -> Array:
        """Boolean [rows, K]."""
        plane = tensor.plane_named("bitmask")
        assert plane is not None
        bits = np.unpackbits(reader.read(plane, rows), axis=1, bitorder="little")
        return bits[:, : reading.shape[1]].astype(bool)

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The mask's bit, and the stored value where the bit is set; without a reader the bit alone."""
        mask, values = tensor.plane_named("bitmask"), tensor.plane("codes")
        assert mask is not None
        assert values is not None
        bit = element_span(mask, row * mask.shape[1] + col // 8, col % 8, 1)
        per_plane: dict[str, tuple[BitSpan, ...]] = {"meta": (bit,)}
        spans = (bit,)
        kept = self._mask(tensor, reading, range(row, row + 1), reader)[0] if reader else None
        if kept is not None and reader is not None and kept[col]:
            rank = int(kept[:col].sum())
            offsets = tensor.plane_named("row_offsets")
            if len(values.shape) == 2:
                start = row * values.shape[1]
            else:
                assert offsets is not None
                start = int(reader.read(offsets, cols=range(row, row + 1)).reshape(-1)[0])
            spans = (element_span(values, start + rank),)
            per_plane["codes"] = spans
        scale = tensor.plane("scale")
        group = col // reading.group_size if scale is not None else 0
        if scale is not None:
            per_row = ceil_div(reading.shape[1], reading.group_size)
            number = 0 if reading.group[0].axis == "tensor" else row * per_row + group
            per_plane["scale"] = (element_span(scale, number),)
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)


def _scale_level(scale: Plane) -> ScaleLevel:
    return ScaleLevel(dtype=SCALE_WORDS.get(scale.dtype, scale.dtype), name=scale.suffix)


def _group(scale: Plane, shape: tuple[int, ...]) -> GroupLevel:
    """Tensor for one number, channel for one a row, else runs of input channels."""
    count = int(np.prod(scale.shape, dtype=np.int64))
    if count == 1:
        return GroupLevel(axis="tensor")
    if count == shape[0] or len(scale.shape) != 2 or not scale.shape[1]:
        return GroupLevel(axis="channel")
    return GroupLevel(axis="in", size=ceil_div(shape[1], scale.shape[1]))


def _scale_equation(scale: Plane, reading: Reading) -> Equation:
    n_rows, n_cols = reading.shape
    level = reading.group[0]
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "tensor": ("[1]", (1,)),
        "channel": ("[N, 1]", (n_rows, 1)),
    }
    symbolic, expected = shapes.get(
        level.axis, ("[N, ceil(K/g)]", (n_rows, ceil_div(n_cols, reading.group_size)))
    )
    return demand(
        scale,
        "weight_scale",
        symbolic,
        expected,
        dtypes=FLOATS,
        alternatives=((), (1, 1), (n_rows,)),
    )
