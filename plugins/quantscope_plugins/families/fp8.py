"""FP8 weights with scales a tensor, a row or a block, as most tools but compressed-tensors store them.

| planes beside `weight` | who | rule |
|---|---|---|
| weight_scale_inv, grid of blocks or a scalar | DeepSeek-V3, transformers `fp8` | weight * scale |
| weight_scale_inv, `weight_scale_semantics` inverse | GPTQModel (qlinear/fp8.py) | weight / scale, scale rounded to bfloat16 first |
| weight_scale | ModelOpt, FBGEMM, AutoFP8, Quark, ComfyUI | weight * scale |
| qscale_weight, qscale_act | Mistral | weight * scale |
| scale_weight, scale_input, marker scaled_fp8 | ComfyUI, legacy | weight * scale |
| scale | DeepSeek inference code | weight * scale |
| none | casts without a scale (ComfyUI) | the value itself |

Sources: DeepSeek-V3 (README_WEIGHTS.md, inference/kernel.py), transformers (integrations/finegrained_fp8.py,
integrations/fbgemm_fp8.py), ModelOpt (modelopt/torch/export/quant_utils.py), llama.cpp (conversion/base.py),
ComfyUI (QUANTIZATION.md). Products in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec
import numpy as np
from quantscope.containers.records import StoredTensor
from quantscope.decode.plane_reader import PlaneReader, plane_2d
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Claim,
    Companion,
    Evidence,
    Json,
    LogicalTensor,
    Orphan,
    Plane,
    Reading,
    Sample,
    Slice,
)

from quantscope_plugins.families import comfy_config, fp8_config, modelopt_config, scale_grid
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.grid_weight import BYTES, FLOAT_CODES, GridWeight
from quantscope_plugins.families.stacks import experts, part_name, part_plane

SCALES = ("weight_scale_inv", "weight_scale", "qscale_weight", "scale_weight", "scale")
OWN_SCALES = ("weight_scale_inv", "qscale_weight", "scale_weight")
"""Suffixes that no other format uses."""

PLAUSIBLE = (1e-3, 1e2)
"""Range in which the largest weight of a scale's block lies in any network seen."""

LARGEST = {"e4m3fn": 448.0, "e5m2": 57344.0, "e4m3fnuz": 240.0, "e5m2fnuz": 57344.0}


class Fp8(GridWeight):
    """FP8 with float scales of any grid, or without scales."""

    name: ClassVar[str] = "fp8"
    title: ClassVar[str] = "FP8 (E4M3 or E5M2 values with float scales)"

    def signature(self) -> Signature:
        """FP8 dtypes, or a scale whose weight is missing."""
        return Signature(dtypes=FLOAT_CODES, last_parts=(*OWN_SCALES, "scaled_fp8"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per FP8 weight, with the scale that lies beside it."""
        modules = []
        says = fp8_config.says_fp8(declared)
        for stored in list(index.tensors.values()):
            if stored.dtype not in FLOAT_CODES or not stored.shape:
                continue
            module, _, last = stored.name.rpartition(".")
            scale = self._scale(index, module, last)
            if scale is None:
                yield from self._unscaled(index, declared, stored, says)
                continue
            if not self._is_own(index, module, scale, stored):
                continue
            modules.append(module)
            for part in experts(stored.shape):
                yield self._tensor(index, declared, (module, last, scale), part)
        yield from self._orphans(index)
        for name in index.names_with_last("scaled_fp8"):
            yield Companion(
                stored_name=name,
                module=name.rpartition(".")[0],
                what="marker: this file's FP8 weights are scaled",
                family=self.name,
            )
        if modules:
            yield from module_companions(index, dict.fromkeys(modules), self.name)
            yield from attention_companions(index, self.name)

    @staticmethod
    def _scale(index: TensorIndex, module: str, last: str) -> str | None:
        """Suffix of the scale beside a stored tensor: the usual names, or its own name with an ending."""
        names = SCALES if last == "weight" else (f"{last}_scale_inv", f"{last}_scale")
        return next((name for name in names if index.get(module, name) is not None), None)

    @staticmethod
    def _is_own(index: TensorIndex, module: str, scale: str, stored: StoredTensor) -> bool:
        """A matrix under float scales, or under exponents on a grid of blocks; one a row and group is MXFP8."""
        plane = index.tensors[_join(module, scale)]
        grid = plane.shape
        if plane.dtype not in BYTES:
            return len(stored.shape) >= 2
        return len(stored.shape) >= 2 and len(grid) >= 2 and grid[-2] < stored.shape[-2]

    def _unscaled(
        self, index: TensorIndex, declared: Declarations, stored: StoredTensor, says: bool
    ) -> Iterator[LogicalTensor | Orphan]:
        module, _, last = stored.name.rpartition(".")
        if last not in ("weight", "bias"):
            return
        if says and last == "weight" and len(stored.shape) >= 2:
            yield Orphan(
                stored_name=stored.name,
                module=module,
                family=self.name,
                missing=("weight_scale",),
                reason="the config says that FP8 weights have scales",
            )
            return
        n_rows = stored.shape[0] if len(stored.shape) > 1 else 1
        plane = index.plane_of("codes", stored, last)
        total = int(np.prod(stored.shape, dtype=object))
        if not total:
            return
        flat = msgspec.structs.replace(plane, shape=(n_rows, total // n_rows))
        yield LogicalTensor(
            name=stored.name,
            module=module,
            family=self.name,
            word="fp8_unscaled",
            shape=flat.shape,
            planes=(flat,),
            certainty=1,
        )

    def _orphans(self, index: TensorIndex) -> Iterator[Orphan]:
        """Scales whose weight is missing or is no FP8."""
        for suffix in (*OWN_SCALES, "weight_scale"):
            for module in index.modules_with(suffix):
                weight = index.get(module, "weight")
                if weight is None and suffix == "weight_scale":
                    continue
                if weight is None or weight.dtype in ("F16", "BF16", "F32"):
                    stored = index.get(module, suffix)
                    assert stored is not None
                    reason = f"weight is stored as {weight.dtype}" if weight is not None else ""
                    yield Orphan(
                        stored_name=stored.name,
                        module=module,
                        family=self.name,
                        missing=("weight",),
                        reason=reason,
                    )

    def _tensor(
        self,
        index: TensorIndex,
        declared: Declarations,
        names: tuple[str, str, str],
        part: Slice | None,
    ) -> LogicalTensor:
        module, last, suffix = names
        planes = [
            part_plane(index, "codes", module, last, part),
            part_plane(index, "scale", module, suffix, part),
            part_plane(index, "bias", module, "bias", part) if last == "weight" else None,
        ]
        kept = tuple(plane for plane in planes if plane is not None)
        codes, scale = kept[0], kept[1]
        divides = fp8_config.divides(declared)
        inverse = suffix.endswith("_inv")
        transposed = _transposed(codes, scale)
        shape = codes.shape[::-1] if transposed else codes.shape
        blocks = fp8_config.declared_blocks(declared, module)
        directions = "divide,multiply" if divides else "multiply,divide"
        sizes = modelopt_config.declared_sizes(declared, module)
        facts = (
            ("directions", directions if inverse else ""),
            ("scale_cast", "bf16" if inverse and divides else ""),
            ("blocks", ",".join(f"{rows}x{cols}" for rows, cols in blocks)),
            ("sizes", ",".join(map(str, sizes))),
            ("prefer", "block" if blocks and len(scale_grid.grid_shape(scale)) == 2 else ""),
            ("transposed", "yes" if transposed else ""),
            ("scale", suffix),
            ("comfy_quant", comfy_config.marker_format(index, module) or ""),
        )
        return LogicalTensor(
            name=part_name(_join(module, last), part),
            module=module,
            family=self.name,
            word=_word(declared, module, shape, scale),
            shape=shape,
            planes=kept,
            part=part,
            certainty=2,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section about FP8, ModelOpt, Quark and ComfyUI."""
        yield from fp8_config.claims(tensor.module, declared, tensor.fact("scale"))
        yield from comfy_config.claims(tensor, declared)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Multiply or divide, from the size that the largest weights would have."""
        scale = tensor.plane("scale")
        directions: dict[str, Reading] = {
            reading.scale[0].direction: reading for reading in readings if reading.scale
        }
        if scale is None or len(directions) < 2:
            return
        n_rows = min(plane_2d(scale)[0], 4096)
        values = np.abs(reader.floats(scale, range(n_rows)).ravel())
        values = values[np.isfinite(values) & (values > 0)]
        if not values.size:
            return
        middle = float(np.median(values))
        largest = LARGEST.get(readings[0].element, 448.0)
        amax = {"multiply": largest * middle, "divide": largest / middle}
        fits = [way for way, size in amax.items() if PLAUSIBLE[0] <= size <= PLAUSIBLE[1]]
        numbers: dict[str, Json] = {"median_scale": float(f"{middle:.6g}")}
        numbers |= {f"largest_weight_{way}": float(f"{size:.6g}") for way, size in amax.items()}
        yield Evidence(
            field="scale",
            method="size of the largest weights",
            supports=tuple(directions[way].contract_values()["scale"] for way in fits),
            strength="strong" if len(fits) == 1 else None,
            numbers=numbers,
            sample=Sample(values.size, values.size, "scales"),
            assumes=(
                f"the largest weight under a scale lies in {PLAUSIBLE[0]:g}..{PLAUSIBLE[1]:g} "
                f"and its code is near {largest:g}",
            ),
        )


def _join(module: str, last: str) -> str:
    return f"{module}.{last}" if module else last


def _transposed(codes: Plane, scale: Plane) -> bool:
    """FBGEMM experts are stored [in, out] with one scale an output column (transformers, fbgemm_fp8.py)."""
    if len(codes.shape) != 2 or len(scale.shape) != 2 or codes.shape[0] == 1:
        return False
    return scale.shape == (1, codes.shape[1]) and codes.shape[1] != 1


def _word(declared: Declarations, module: str, shape: tuple[int, ...], scale: Plane) -> str:
    """`modelopt:` and its algorithm where it is declared, else by the shape of the scales."""
    algorithm = modelopt_config.module_algorithm(declared, module)
    if algorithm is not None:
        return f"modelopt:{algorithm}"
    grid = scale_grid.grid_shape(scale)
    if grid in ((), (1,)) or (grid == (1, 1) and not fp8_config.declared_blocks(declared, module)):
        return "fp8_tensor"
    if len(grid) == 1 or grid in ((shape[0], 1), (1, shape[0])):
        return "fp8_channel"
    return "fp8_group" if grid[0] == shape[0] else "fp8_block"
