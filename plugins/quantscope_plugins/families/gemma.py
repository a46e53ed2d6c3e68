"""Gemma's own quantized checkpoints: linears and embeddings of 8, 4 and 2 bits with a scale a row.

Source: transformers, integrations/gemma_quant.py (storage and decode), utils/quantization_config.py
(GemmaQuantizationConfig: num_bits, module_quant_configs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations, Section
from quantscope.families.index import TensorIndex
from quantscope.families.modules import compiled
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
    Reading,
    ScaleLevel,
)

from quantscope_plugins.families import scale_grid
from quantscope_plugins.families.model_shapes import declared_row_length
from quantscope_plugins.families.packed_axis import PackedAxis

PAIRS = (("weight", "weight_scale"), ("embedding_quantized", "embedding_scale"))
ACTIVATIONS = ("input_activation_scale", "output_activation_scale")
SCALES = ("F32", "F16", "BF16")


class Gemma(FamilyBase):
    """Offset-binary 4- and 2-bit codes along a row, plain int8, quantized embeddings."""

    name: ClassVar[str] = "gemma"
    title: ClassVar[str] = "Gemma quantization-aware checkpoints"

    def signature(self) -> Signature:
        """`weight_scale`, `embedding_scale`."""
        return Signature(last_parts=("weight_scale", "embedding_scale", *ACTIVATIONS))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a module, where config.json says gemma; embeddings always."""
        says = bool(declared.with_method("gemma"))
        for codes, scales in PAIRS:
            if not says and codes == "weight":
                continue
            for module in dict.fromkeys(index.modules_with(codes) + index.modules_with(scales)):
                stored, scale = index.get(module, codes), index.get(module, scales)
                if scale is None or stored is None:
                    alone = scale if stored is None else stored
                    if alone is not None and (codes != "weight" or stored is None):
                        missing = (codes,) if stored is None else (scales,)
                        yield Orphan(
                            stored_name=alone.name,
                            module=module,
                            family=self.name,
                            missing=missing,
                        )
                elif stored.dtype in ("U8", "I8") and len(stored.shape) == 2:
                    yield self._tensor(index, declared, module, (codes, scales))
        if says:
            yield from self._activations(index)

    def _activations(self, index: TensorIndex) -> Iterator[Companion]:
        for suffix in ACTIVATIONS:
            for module in index.modules_with(suffix):
                stored = index.get(module, suffix)
                if stored is not None:
                    yield Companion(
                        stored_name=stored.name,
                        module=module,
                        what="activation scale, 0 where it is off",
                        family=self.name,
                    )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, pair: tuple[str, str]
    ) -> LogicalTensor:
        planes = (
            index.plane("codes", module, pair[0]),
            index.plane("scale", module, pair[1]),
            index.plane("bias", module, "bias"),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        widths = [width for width, _, _ in _declared_widths(declared, module)]
        length = declared_row_length(declared, module)
        facts = [("width", str(widths[0]))] if widths else []
        if length is not None:
            facts.append(("row_length", str(length[0])))
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word="gemma",
            shape=kept[0].shape,
            planes=kept,
            certainty=3,
            facts=tuple(facts),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """num_bits of the first pattern that finds the module, else the global one."""
        for width, section, keys in _declared_widths(declared, tensor.module):
            yield section.claim("element", "s8" if width == 8 else f"u{width}", *keys)
        length = declared_row_length(declared, tensor.module)
        reading = next(self.candidates(tensor), None)
        if length is not None and reading is not None and reading.shape[1] == length[0]:
            yield Claim(
                field="shape",
                value=list(reading.shape),
                source=length[1],
                basis="by_definition",
                written=length[0],
            )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """int8 as it is; bytes as 4 and 2 bits, at every row length that the bytes allow."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scale is None or len(codes.shape) != 2:
            return
        n_out, packed = codes.shape
        widths = (8,) if codes.dtype == "I8" else (4, 2)
        if tensor.fact("width") == "2" and codes.dtype == "U8":
            widths = (2, 4)
        declared = int(tensor.fact("row_length") or 0)
        fitting = [w for w in widths if ceil_div(declared, 8 // w) == packed]
        for width in fitting or widths:
            for n_in in _row_lengths(tensor, packed, 8 // width):
                for level in scale_grid.levels_of((n_out, n_in), scale.shape):
                    yield _reading(width, (n_out, n_in), level, scale.dtype, codes.dtype)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Rows of ceil(K*b/8) bytes, one scale a row or run."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        shape = (reading.shape[0], reading.shape[1])
        grid, alternatives, symbolic = scale_grid.expected_grid(reading.group[0], shape)
        per_byte = 8 // reading.bit_width
        return [
            demand(
                codes,
                codes.suffix if codes else "weight",
                f"[N, ceil(K/{per_byte})]",
                (shape[0], ceil_div(shape[1], per_byte)),
                substituted=f"[{shape[0]}, ceil({shape[1]}/{per_byte})]",
            ),
            demand(
                scale,
                scale.suffix if scale else "weight_scale",
                symbolic,
                grid,
                dtypes=SCALES,
                alternatives=alternatives,
            ),
        ]

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scale of each row or run."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes is not None
        assert scale is not None
        grid = scale_grid.read_grid(scale, reading.group[0], window, reader)
        if reading.bit_width == 8:
            stored = reader.read(codes, window.rows, window.cols)
        else:
            axis = _axis(reading)
            words, skip = axis.cover(window.cols, codes.shape[1])
            packed = reader.read(codes, window.rows, words)
            stored = axis.unpack(packed, skip + len(window.cols), axis=-1)[:, skip:]
        middle = np.full((1, 1), reading.midpoint, np.int16)
        return Parts(
            codes=stored,
            combine="affine",
            scale=(grid.values,),
            zero=middle if reading.zero == "fixed" else None,
            group_of_column=grid.group_of_column,
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The byte or field of the code, and the scale."""
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        assert codes is not None
        level = reading.group[0]
        word, low = divmod(col * reading.bit_width, 8)
        span = element_span(codes, row * codes.shape[1] + word, low, reading.bit_width)
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scale is not None:
            per_plane["scale"] = scale_grid.grid_span(scale, level, row, col)
        return Cell(
            row=row,
            col=col,
            group=scale_grid.group_number(level, col),
            bits=(span,),
            per_plane=per_plane,
        )


def _declared_widths(
    declared: Declarations, module: str
) -> Iterator[tuple[int, Section, tuple[str, ...]]]:
    """Width of a module in each section that says gemma, with its key."""
    for section in declared.with_method("gemma"):
        keys: tuple[str, ...] = ("num_bits",)
        patterns = section.get("module_quant_configs")
        for pattern in patterns if isinstance(patterns, dict) else ():
            regex = compiled(str(pattern))
            if regex is not None and regex.search(module):
                if section.has("module_quant_configs", pattern, "num_bits"):
                    keys = ("module_quant_configs", pattern, "num_bits")
                break
        width = section.get(*keys)
        if width in (2, 4, 8):
            yield width, section, keys


def _row_lengths(tensor: LogicalTensor, packed: int, per_byte: int) -> list[int]:
    """Row lengths that take `packed` bytes: the declared one, else from the fullest down."""
    declared = tensor.fact("row_length")
    if declared and ceil_div(int(declared), per_byte) == packed:
        return [int(declared)]
    return [n for n in range(packed * per_byte, (packed - 1) * per_byte, -1) if n > 0]


def _axis(reading: Reading) -> PackedAxis:
    return PackedAxis(word_bits=8, bit_width=reading.bit_width, order="sequential")


def _reading(
    width: int, shape: tuple[int, int], level: GroupLevel, scale: str, word: str
) -> Reading:
    return Reading(
        element="s8" if width == 8 else f"u{width}",
        bit_width=width,
        shape=shape,
        group=(level,),
        scale=(ScaleLevel(dtype=SCALE_WORDS.get(scale, scale), name="weight_scale"),),
        zero="none" if width == 8 else "fixed",
        midpoint=0 if width == 8 else 1 << (width - 1),
        packing=Packing(
            word=word,
            axis="none" if width == 8 else "in",
            order="one_per_word" if width == 8 else "sequential",
        ),
        symmetric=True,
        arithmetic=Arithmetic(rule="code * scale" if width == 8 else "(code - middle) * scale"),
    )
