"""compressed-tensors mxfp4- and mxfp6-pack-quantized, and AutoRound's mx_fp4 and nvfp4_v2: byte scales, no second level.

Planes: compressed-tensors (compressors/mxfp4/base.py, compressors/mxfp6/helpers.py, compressors/mx_utils.py),
AutoRound (export_to_autoround/qlinear_fp.py). mxfp4 and mxfp6 have E8M0 scales over 32; nvfp4_v2 has UE5M3
scales over 16 under the same names and dtypes. Low nibble first; E2M3 as four codes in three bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from quantscope.containers.records import StoredTensor
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan, Slice

from quantscope_plugins.families import ct_config
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.fp4_weight import Fp4Weight
from quantscope_plugins.families.stacks import experts, part_name, part_plane


class CtMx(Fp4Weight):
    """MXFP4 and MXFP6 of compressed-tensors and AutoRound, and AutoRound's nvfp4_v2."""

    name: ClassVar[str] = "ct_mx"
    title: ClassVar[str] = "compressed-tensors mxfp4/mxfp6-pack-quantized (byte scales)"

    def signature(self) -> Signature:
        """`weight_packed`."""
        return Signature(last_parts=("weight_packed",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module with byte `weight_packed` and byte `weight_scale`."""
        found = []
        for module in index.modules_with("weight_packed"):
            codes, scale = index.get(module, "weight_packed"), index.get(module, "weight_scale")
            if codes is None or codes.dtype != "U8" or len(codes.shape) not in (2, 3):
                continue
            if scale is None:
                yield Orphan(
                    stored_name=codes.name,
                    module=module,
                    family=self.name,
                    missing=("weight_scale",),
                )
                continue
            if scale.dtype not in ("U8", "F8_E8M0") or len(scale.shape) != len(codes.shape):
                continue
            found.append(module)
            for part in experts(codes.shape):
                yield self._tensor(index, declared, module, part)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, part: Slice | None
    ) -> LogicalTensor:
        planes = (
            part_plane(index, "codes", module, "weight_packed", part),
            part_plane(index, "scale", module, "weight_scale", part),
            part_plane(index, "bias", module, "bias", part),
        )
        kept = tuple(plane for plane in planes if plane is not None)
        derived = _derived(index.tensors[kept[0].stored_name], index.tensors[kept[1].stored_name])
        width = 6 if derived.startswith("mxfp6") else 4
        sizes = ct_config.declared_sizes(declared, module)
        facts = (
            ("sizes", ",".join(map(str, sizes))),
            ("elements", "e2m1,e2m3"),
            ("orders", "low_first,high_first"),
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=ct_config.word(declared, derived),
            shape=(kept[0].shape[-2], kept[0].shape[-1] * 8 // width),
            planes=kept,
            part=part,
            certainty=3,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The config group of the module, or AutoRound's keys."""
        return ct_config.claims(tensor.module, declared)


def _derived(codes: StoredTensor, scale: StoredTensor) -> str:
    """Format word that the byte counts of a group have."""
    groups = scale.shape[-1] or 1
    per_group = codes.shape[-1] / groups
    return {16: "mxfp4-pack-quantized", 24: "mxfp6-pack-quantized", 8: "nvfp4_v2"}.get(
        int(per_group) if per_group == int(per_group) else 0, "mxfp4-pack-quantized"
    )
