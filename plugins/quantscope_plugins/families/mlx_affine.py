"""MLX affine: codes as a dense stream along the input axis in 32-bit words, scale and bias a group.

Planes and packing: MLX (mlx/ops.cpp, mlx/backend/cpu/quantized.cpp); transformers' `metal` calls the biases
`qbiases` (integrations/metal_quantization.py). W = code * scale + bias, both steps rounded to the scales'
dtype. Scales may be negative: the edge of larger magnitude becomes the bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from quantscope.decode.parts import Parts, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Equation,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Reading,
    ScaleLevel,
    Slice,
)

from quantscope_plugins.families import mlx_config, scale_grid
from quantscope_plugins.families.packed_axis import PackedAxis
from quantscope_plugins.families.stacks import experts, part_name, part_plane

BIT_WIDTHS = (4, 8, 3, 6, 2, 5)
GROUP_SIZES = (64, 32, 128, 16)
FLOATS = ("F16", "BF16", "F32")
BIASES = ("biases", "qbiases")
ROUNDINGS = {"F16": "f16", "BF16": "bf16"}


class MlxAffine(FamilyBase):
    """MLX affine, 2 to 8 bits, linear layers, embeddings and expert stacks."""

    name: ClassVar[str] = "mlx_affine"
    title: ClassVar[str] = "MLX affine (U32 words along in, scale and bias a group)"

    def signature(self) -> Signature:
        """`scales` beside `biases` or `qbiases`."""
        return Signature(last_parts=BIASES, dtypes=("U32",))

    def group(self, index: TensorIndex, declared: Declarations) -> Iterator[LogicalTensor | Orphan]:
        """One logical tensor per U32 weight with float scales and biases."""
        for module in index.modules_with("weight"):
            weight, scales = index.get(module, "weight"), index.get(module, "scales")
            if weight is None or weight.dtype != "U32" or scales is None:
                continue
            if scales.dtype not in FLOATS or len(weight.shape) not in (2, 3):
                continue
            biases = next((s for s in BIASES if index.get(module, s) is not None), None)
            if biases is None:
                for stored in (weight, scales):
                    yield Orphan(
                        stored_name=stored.name,
                        module=module,
                        family=self.name,
                        missing=("biases",),
                    )
                continue
            for part in experts(weight.shape):
                yield self._tensor(index, module, biases, part)
        yield from mlx_config.lonely_weights(index, self.name)

    def _tensor(
        self, index: TensorIndex, module: str, biases: str, part: Slice | None
    ) -> LogicalTensor:
        planes = (
            part_plane(index, "codes", module, "weight", part),
            part_plane(index, "scale", module, "scales", part),
            part_plane(index, "minimum", module, biases, part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        rows, words = kept[0].shape[-2:]
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word="mlx_affine" if biases == "biases" else "metal_affine",
            shape=(rows, words * 8),
            planes=kept,
            part=part,
            certainty=3,
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The module's entry and the global keys of every MLX section."""
        return mlx_config.claims(tensor.module, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Widths x group sizes whose product fills the words of a group."""
        codes, scales = tensor.plane("codes"), tensor.plane("scale")
        if codes is None or scales is None or len(codes.shape) != 2 or len(scales.shape) != 2:
            return
        rows = codes.shape[0]
        n_groups = scales.shape[1]
        rounding: Any = ROUNDINGS.get(scales.dtype, "f32")
        for width in BIT_WIDTHS:
            for size in GROUP_SIZES:
                yield Reading(
                    element=f"u{width}",
                    bit_width=width,
                    shape=(rows, n_groups * size),
                    group=(GroupLevel(axis="in", size=size),),
                    scale=(
                        ScaleLevel(
                            dtype=SCALE_WORDS.get(scales.dtype, scales.dtype),
                            signed=True,
                            name="scales",
                        ),
                    ),
                    zero="additive_min",
                    packing=Packing(word="U32", axis="in", order=_order(width)),
                    symmetric=False,
                    arithmetic=Arithmetic(
                        compute=rounding, output=rounding, rule="code * scale + bias"
                    ),
                )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of weight, scales and biases."""
        n_out, n_in = reading.shape
        width, size = reading.bit_width, reading.group_size
        equations = [
            demand(
                tensor.plane("codes"),
                "weight",
                "U32 [N, K*b/32]",
                (n_out, _axis(reading).n_words(n_in)),
                dtypes=("U32",),
                substituted=f"[{n_out}, {n_in}*{width}/32]",
            )
        ]
        for plane, label in (
            (tensor.plane("scale"), "scales"),
            (tensor.plane("minimum"), "biases"),
        ):
            equations.append(
                demand(
                    plane,
                    plane.suffix if plane else label,
                    "[N, K/g]",
                    (n_out, n_in // size),
                    dtypes=FLOATS,
                    substituted=f"[{n_out}, {n_in}/{size}]",
                )
            )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales and biases of its groups."""
        codes_plane, scales, biases = (tensor.plane(r) for r in ("codes", "scale", "minimum"))
        assert codes_plane is not None
        assert scales is not None
        assert biases is not None
        axis = _axis(reading)
        words, skip = axis.cover(window.cols, codes_plane.shape[1])
        packed = reader.read(codes_plane, window.rows, words)
        codes = axis.unpack(packed, skip + len(window.cols), axis=-1)[:, skip:]
        scale = scale_grid.read_grid(scales, reading.group[0], window, reader)
        minimum = scale_grid.read_grid(biases, reading.group[0], window, reader)
        return Parts(
            codes=codes,
            combine="plus_min",
            scale=(scale.values,),
            minimum=minimum.values,
            group_of_column=scale.group_of_column,
        )

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """Code bits, the group's scale and bias."""
        codes, scales, biases = (tensor.plane(r) for r in ("codes", "scale", "minimum"))
        assert codes is not None
        level = reading.group[0]
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            per_plane["scale"] = scale_grid.grid_span(scales, level, row, col)
        if biases is not None:
            per_plane["minimum"] = scale_grid.grid_span(biases, level, row, col)
        spans = tuple(
            element_span(codes, row * codes.shape[1] + word, low, width)
            for word, low, width in _axis(reading).fields(col)
        )
        group = scale_grid.group_number(level, col)
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)


def _order(width: int) -> str:
    return "sequential" if 32 % width == 0 else "bitstream"


def _axis(reading: Reading) -> PackedAxis:
    return PackedAxis(word_bits=32, bit_width=reading.bit_width, order=reading.packing.order)
