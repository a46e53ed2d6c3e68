"""compressed-tensors nvfp4-pack-quantized: E2M1 in bytes, E4M3 scales a run of 16, a global scale that divides.

Planes: compressed-tensors (compressors/nvfp4/base.py, quantization/lifecycle/forward_helpers.py); AutoRound's
nv_fp export is the same (export_to_autoround/qlinear_fp.py). W = code * (weight_scale / weight_global_scale),
rounded to bfloat16; low nibble first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from quantscope.decode.combine import combine_parts
from quantscope.decode.parts import Array, Parts
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan, Reading, Slice

from quantscope_plugins.families import ct_config
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.fp4_weight import Fp4Weight
from quantscope_plugins.families.stacks import experts, part_name, part_plane

NEEDED = ("weight_packed", "weight_scale", "weight_global_scale")


class CtNvfp4(Fp4Weight):
    """NVFP4 of compressed-tensors and AutoRound."""

    name: ClassVar[str] = "ct_nvfp4"
    title: ClassVar[str] = (
        "compressed-tensors nvfp4-pack-quantized (E2M1, E4M3 scales, global divisor)"
    )

    def signature(self) -> Signature:
        """`weight_packed` or `weight_global_scale`."""
        return Signature(last_parts=("weight_packed", "weight_global_scale"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module with byte `weight_packed`, E4M3 scales and a global scale."""
        found = []
        modules = index.modules_with("weight_packed") + index.modules_with("weight_global_scale")
        for module in dict.fromkeys(modules):
            codes, scale, second = (index.get(module, suffix) for suffix in NEEDED)
            if codes is not None and codes.dtype != "U8":
                continue
            if scale is not None and scale.dtype != "F8_E4M3":
                continue
            if codes is None and index.get(module, "qweight") is not None:
                continue
            if codes is None or scale is None or second is None:
                yield from self._orphans(index, module)
                continue
            if len(codes.shape) not in (2, 3):
                continue
            found.append(module)
            for part in experts(codes.shape):
                yield self._tensor(index, declared, module, part)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _orphans(self, index: TensorIndex, module: str) -> Iterator[Orphan]:
        missing = tuple(suffix for suffix in NEEDED if index.get(module, suffix) is None)
        for suffix in NEEDED:
            stored = index.get(module, suffix)
            if stored is not None:
                yield Orphan(
                    stored_name=stored.name, module=module, family=self.name, missing=missing
                )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, part: Slice | None
    ) -> LogicalTensor:
        planes = (
            part_plane(index, "codes", module, "weight_packed", part),
            part_plane(index, "scale", module, "weight_scale", part),
            part_plane(index, "scale2", module, "weight_global_scale", part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        sizes = ct_config.declared_sizes(declared, module)
        word = ct_config.word(declared, "nvfp4-pack-quantized")
        facts = (
            ("sizes", ",".join(map(str, sizes))),
            ("orders", "low_first,high_first"),
            ("directions", "divide,multiply"),
            ("output", "f32" if word.startswith("autoround") else "bf16"),
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=word,
            shape=(kept[0].shape[-2], kept[0].shape[-1] * 2),
            planes=kept,
            part=part,
            certainty=3,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def combine(self, parts: Parts, reading: Reading, as_producer: bool) -> Array:
        """AutoRound multiplies codes by the reciprocal of the global scale first, all in float32.

        auto-round 0.16.1, experimental/qmodules/nvfp4.py, _dequant_nvfp4_tensor.
        """
        if not as_producer or reading.arithmetic.output != "f32" or len(parts.scale) < 2:
            return super().combine(parts, reading, as_producer)
        assert parts.lut is not None
        block, whole = parts.scale
        with np.errstate(divide="ignore"):
            reciprocal = np.where(whole == 0, np.float32(0), np.float32(1) / whole)
        scaled = Parts(
            codes=parts.codes,
            combine="lut",
            lut=parts.lut * reciprocal.ravel()[0],
            scale=(block,),
            group_of_column=parts.group_of_column,
        )
        return combine_parts(scaled, None)

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The config group of the module."""
        return ct_config.claims(tensor.module, declared)
