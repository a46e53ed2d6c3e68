"""The planes of compressed-tensors' uncompressed formats: `weight` in FP8 or int8 beside `weight_scale`.

Source: compressed-tensors, compressors/naive_quantized/base.py and compressors/mxfp8/base.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.containers.records import StoredTensor
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan, Slice

from quantscope_plugins.families import ct_config
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.grid_weight import GridWeight
from quantscope_plugins.families.stacks import experts, part_name, part_plane


class CtPlain(GridWeight):
    """Grouping and claims that ct_float and ct_int share; a subclass names its dtypes and format word."""

    dtypes: tuple[str, ...] = ()

    def signature(self) -> Signature:
        """The code plane's dtypes."""
        return Signature(dtypes=self.dtypes)

    def derived(self, weight: StoredTensor, scale: StoredTensor | None) -> str:
        """Format word that the planes have."""
        raise NotImplementedError

    def certainty(self, index: TensorIndex, declared: Declarations, module: str) -> int:
        """How sure the planes are this family's; 0 where they are not. Only a compressed-tensors config makes them."""
        return 3 if ct_config.ct_sections(declared) else 0

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module with `weight` of the family's dtypes and `weight_scale`."""
        found = []
        for module in dict.fromkeys(index.modules_with("weight")):
            weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
            if weight is None or weight.dtype not in self.dtypes:
                continue
            certainty = self.certainty(index, declared, module)
            if not certainty or len(weight.shape) not in (2, 3):
                continue
            if index.get(module, "weight_scale_inv") is not None:
                continue
            if scale is None:
                yield from self._orphans(index, module, weight)
                continue
            found.append(module)
            for part in experts(weight.shape):
                yield self._tensor(index, declared, module, part, certainty)
        if found:
            yield from module_companions(index, found, self.name)
            yield from attention_companions(index, self.name)

    def _orphans(self, index: TensorIndex, module: str, weight: StoredTensor) -> Iterator[Orphan]:
        for name in (weight, index.get(module, "weight_zero_point")):
            if name is not None:
                yield Orphan(
                    stored_name=name.name,
                    module=module,
                    family=self.name,
                    missing=("weight_scale",),
                )

    def _tensor(
        self,
        index: TensorIndex,
        declared: Declarations,
        module: str,
        part: Slice | None,
        certainty: int,
    ) -> LogicalTensor:
        planes = [
            part_plane(index, "codes", module, "weight", part),
            part_plane(index, "scale", module, "weight_scale", part),
            part_plane(index, "zero", module, "weight_zero_point", part),
            part_plane(index, "group_index", module, "weight_g_idx", part),
            part_plane(index, "bias", module, "bias", part),
        ]
        kept = tuple(plane for plane in planes if plane is not None)
        weight, scale = index.get(module, "weight"), index.get(module, "weight_scale")
        assert weight is not None
        sizes = ct_config.declared_sizes(declared, module)
        blocks = ct_config.declared_blocks(declared, module)
        widths = ct_config.declared_bits(declared, module)
        facts = (
            ("sizes", ",".join(map(str, sizes))),
            ("blocks", ",".join(f"{rows}x{cols}" for rows, cols in blocks)),
            ("widths", ",".join(map(str, widths))),
            ("prefer", "block" if blocks else ""),
        )
        return LogicalTensor(
            name=part_name(f"{module}.weight" if module else "weight", part),
            module=module,
            family=self.name,
            word=ct_config.word(declared, self.derived(weight, scale)),
            shape=(kept[0].shape[-2], kept[0].shape[-1]),
            planes=kept,
            part=part,
            certainty=certainty,
            facts=tuple(fact for fact in facts if fact[1]),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The config group of the module."""
        return ct_config.claims(tensor.module, declared)
