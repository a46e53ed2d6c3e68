"""NVFP4 under `weight`: ModelOpt and Quark (low nibble first, scales row by row), ComfyUI (high first, swizzled).

| planes | rule |
|---|---|
| weight U8 [N, K/2] | E2M1 |
| weight_scale E4M3 [N, K/16], ComfyUI padded to tiles of 128 x 4 | times |
| weight_scale_2, a scalar | times |

Sources: ModelOpt (modelopt/torch/quantization/qtensor/nvfp4_tensor.py), vLLM
(quantization/quark/schemes/quark_nvfp4.py), comfy-kitchen (comfy_kitchen/backends/eager/quantization.py,
comfy_kitchen/float_utils.py). W = code * (weight_scale * weight_scale_2) in float32. ComfyUI pads N and K to
multiples of 16; its logical shape is the padded one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan, Slice

from quantscope_plugins.families import comfy_config, modelopt_config
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.fp4_weight import SWIZZLED, Fp4Weight, placements
from quantscope_plugins.families.stacks import experts, part_name, part_plane

SECOND = "weight_scale_2"


class Nvfp4(Fp4Weight):
    """NVFP4 of ModelOpt, Quark and ComfyUI."""

    name: ClassVar[str] = "nvfp4"
    title: ClassVar[str] = "NVFP4 (E2M1 in bytes, E4M3 scales over 16, weight_scale_2)"

    def signature(self) -> Signature:
        """E4M3 planes beside bytes."""
        return Signature(last_parts=("weight_scale", SECOND))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module with byte `weight` and E4M3 `weight_scale`."""
        found = []
        for module in dict.fromkeys(
            index.modules_with("weight_scale") + index.modules_with(SECOND)
        ):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            if weight is None or scale is None:
                yield from self._orphans(index, module)
                continue
            if weight.dtype != "U8" or scale.dtype != "F8_E4M3":
                continue
            if len(weight.shape) not in (2, 3):
                continue
            if index.get(module, SECOND) is None and self._needs_second(declared, module):
                yield from self._orphans(index, module)
                continue
            found.append(module)
            for part in experts(weight.shape):
                yield self._tensor(index, declared, module, part)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    @staticmethod
    def _needs_second(declared: Declarations, module: str) -> bool:
        algorithm = modelopt_config.module_algorithm(declared, module) or ""
        return "NVFP4" in algorithm

    def _orphans(self, index: TensorIndex, module: str) -> Iterator[Orphan]:
        """Planes of a weight that has only some of them, where weight_scale_2 or E4M3 scales tell NVFP4."""
        scale, second = index.get(module, "weight_scale"), index.get(module, SECOND)
        if (scale is not None and scale.dtype != "F8_E4M3") or (
            index.get(module, "weight_packed") is not None
        ):
            return
        needed = ("weight", "weight_scale", SECOND)
        missing = tuple(suffix for suffix in needed if index.get(module, suffix) is None)
        weight = index.get(module, "weight")
        kept = weight if weight is not None and weight.dtype == "U8" else None
        for stored in (kept, scale, second):
            if stored is not None:
                yield Orphan(
                    stored_name=stored.name, module=module, family=self.name, missing=missing
                )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, part: Slice | None
    ) -> LogicalTensor:
        planes = (
            part_plane(index, "codes", module, "weight", part),
            part_plane(index, "scale", module, "weight_scale", part),
            part_plane(index, "scale2", module, SECOND, part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        shape = (kept[0].shape[-2], kept[0].shape[-1] * 2)
        comfy = comfy_config.is_comfy(index, declared, module)
        places = placements(shape, kept[1].shape, (16,)) or ["linear"]
        if comfy and SWIZZLED in places:
            places = [SWIZZLED, *(p for p in places if p != SWIZZLED)]
        high_first = comfy or places == [SWIZZLED]
        sizes = modelopt_config.declared_sizes(declared, module)
        facts = (
            ("orders", "high_first,low_first" if high_first else "low_first,high_first"),
            ("placements", ",".join(places)),
            ("directions", "multiply,divide"),
            ("sizes", ",".join(map(str, sizes))),
            ("comfy_quant", comfy_config.marker_format(index, module) or ""),
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=self._word(declared, module, comfy),
            shape=shape,
            planes=kept,
            part=part,
            certainty=3,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    @staticmethod
    def _word(declared: Declarations, module: str, comfy: bool) -> str:
        algorithm = modelopt_config.module_algorithm(declared, module)
        if algorithm is not None:
            return f"modelopt:{algorithm}"
        if comfy:
            return "nvfp4:comfyui"
        return "nvfp4:quark" if modelopt_config.quark_sections(declared) else "nvfp4"

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """ModelOpt, Quark and ComfyUI sections."""
        yield from modelopt_config.claims(tensor.module, declared)
        yield from comfy_config.claims(tensor, declared)
