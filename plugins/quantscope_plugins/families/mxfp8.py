"""MXFP8 outside compressed-tensors: E4M3 values under E8M0 scales over 32, row by row or in tiles.

Who: transformers `mxfp8` and ModelOpt MXFP8 (scales [N, K/32]); ComfyUI (scales in tiles of 128 x 4, weight
padded to multiples of 32). Sources: transformers (integrations/finegrained_fp8.py), ModelOpt
(modelopt/torch/quantization/qtensor), comfy-kitchen (comfy_kitchen/backends/eager/quantization.py).
W = code * 2^(e - 127) in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import msgspec
import numpy as np
from quantscope.decode.parts import Array, Window
from quantscope.decode.plane_reader import PlaneReader
from quantscope.decode.small_floats import float_table
from quantscope.families.base import ceil_div, demand, element_span
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Cell,
    Claim,
    Companion,
    Equation,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Plane,
    Reading,
    Slice,
)

from quantscope_plugins.families import comfy_config, fp8_config, modelopt_config, swizzle
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.fp4_weight import SWIZZLED, placements
from quantscope_plugins.families.grid_weight import BYTES, FLOAT_CODES, GridWeight
from quantscope_plugins.families.stacks import experts, part_name, part_plane

SIZE = 32
SCALES = ("weight_scale", "weight_scale_inv", "scale")


class Mxfp8(GridWeight):
    """MXFP8 of transformers, ModelOpt and ComfyUI."""

    name: ClassVar[str] = "mxfp8"
    title: ClassVar[str] = "MXFP8 (FP8 values, E8M0 scales over 32)"

    def signature(self) -> Signature:
        """FP8 dtypes."""
        return Signature(dtypes=FLOAT_CODES)

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per FP8 weight whose byte scales have a group of 32 each."""
        found = []
        for module in index.modules_with("weight"):
            weight = index.get(module, "weight")
            if weight is None or weight.dtype not in FLOAT_CODES or len(weight.shape) not in (2, 3):
                continue
            suffix = next((s for s in SCALES if index.get(module, s) is not None), None)
            scale = index.get(module, suffix) if suffix else None
            if suffix is None or scale is None or scale.dtype not in BYTES:
                continue
            shape = (weight.shape[-2], weight.shape[-1])
            grid = scale.shape[-2:] if len(weight.shape) == len(scale.shape) else scale.shape
            if not placements(shape, grid, (SIZE,)):
                continue
            found.append(module)
            for part in experts(weight.shape):
                yield self._tensor(index, declared, (module, suffix), part)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _tensor(
        self,
        index: TensorIndex,
        declared: Declarations,
        names: tuple[str, str],
        part: Slice | None,
    ) -> LogicalTensor:
        module, suffix = names
        planes = (
            part_plane(index, "codes", module, "weight", part),
            part_plane(index, "scale", module, suffix, part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        shape = (kept[0].shape[0], kept[0].shape[1])
        comfy = comfy_config.is_comfy(index, declared, module)
        places = placements(shape, kept[1].shape, (SIZE,)) or ["linear"]
        if comfy and SWIZZLED in places:
            places = [SWIZZLED, *(p for p in places if p != SWIZZLED)]
        algorithm = modelopt_config.module_algorithm(declared, module)
        facts = (
            ("placements", ",".join(places)),
            ("scale", suffix),
            ("comfy_quant", comfy_config.marker_format(index, module) or ""),
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=f"modelopt:{algorithm}" if algorithm else "mxfp8:comfyui" if comfy else "mxfp8",
            shape=shape,
            planes=kept,
            part=part,
            certainty=2,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about FP8, ModelOpt and ComfyUI."""
        yield from fp8_config.claims(tensor.module, declared, tensor.fact("scale"))
        yield from comfy_config.claims(tensor, declared)

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Groups of 32, in every placement that the shape allows."""
        codes = tensor.plane("codes")
        if codes is None or len(codes.shape) != 2:
            return
        shape = (codes.shape[0], codes.shape[1])
        level = GroupLevel(axis="in", size=SIZE)
        for placement in tensor.fact("placements", "linear").split(","):
            reading = self._reading(tensor, shape, level, "multiply", 8)
            yield msgspec.structs.replace(reading, placement=placement)

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of weight and scales; tiles are padded."""
        if reading.placement != SWIZZLED:
            return super().equations(tensor, reading)
        n_out, n_in = reading.shape
        padded = swizzle.padded(n_out, ceil_div(n_in, SIZE))
        codes, scale = tensor.plane("codes"), tensor.plane("scale")
        return [
            demand(codes, "weight", "F8 [N, K]", (n_out, n_in)),
            demand(
                scale,
                scale.suffix if scale else "weight_scale",
                "[roundup(N, 128), roundup(K/32, 4)]",
                padded,
                dtypes=BYTES,
                substituted=f"[roundup({n_out}, 128), roundup({n_in}/32, 4)]",
                alternatives=((padded[0] * padded[1],),),
            ),
        ]

    def read_scales(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> tuple[Array, Array]:
        """Scales of a window, out of the tiles where they lie in tiles."""
        if reading.placement != SWIZZLED:
            return super().read_scales(tensor, reading, window, reader)
        scale = tensor.plane("scale")
        assert scale is not None
        first = window.cols.start // SIZE
        used = range(first, ceil_div(window.cols.stop, SIZE) if len(window.cols) else first)
        groups = ceil_div(reading.shape[1], SIZE)
        stored = swizzle.read(scale, window.rows, used, groups, reader)
        columns = np.arange(window.cols.start, window.cols.stop) // SIZE - first
        return float_table("e8m0")[stored], columns

    def value_mask(
        self, tensor: LogicalTensor, reading: Reading, plane: Plane, numbers: Array
    ) -> Array | None:
        """Tiles are padded to whole ones."""
        if plane.role != "scale" or reading.placement != SWIZZLED:
            return None
        return swizzle.real(numbers, reading.shape[0], ceil_div(reading.shape[1], SIZE))

    def locate(
        self,
        tensor: LogicalTensor,
        reading: Reading,
        row: int,
        col: int,
        reader: PlaneReader | None = None,
    ) -> Cell:
        """The code's byte and its scale's."""
        cell = super().locate(tensor, reading, row, col, reader)
        scale = tensor.plane("scale")
        if scale is None or reading.placement != SWIZZLED:
            return cell
        place = swizzle.place(row, col // SIZE, ceil_div(reading.shape[1], SIZE))
        return msgspec.structs.replace(cell, per_plane={"scale": (element_span(scale, place),)})
