"""MXFP4 with planes of its own: gpt-oss blocks and scales, DeepSeek-V4 experts, ModelOpt and Quark OCP MX.

E2M1 codes two a byte, low nibble first, under E8M0 scales over 32; compressed-tensors and AutoRound name the
codes weight_packed and are another family.
Source: openai/gpt-oss, gpt_oss/torch/weights.py; transformers, integrations/mxfp4.py and
integrations/finegrained_fp8.py (packed int8 experts); NVIDIA/Model-Optimizer, modelopt/torch/quantization/
qtensor/mxfp4_tensor.py; amd-quark 0.13, quark/torch/export/nn/modules/realquantizer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import msgspec
from quantscope.containers.records import StoredTensor
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import (
    Claim,
    Companion,
    LogicalTensor,
    Orphan,
    Plane,
    Reading,
    Role,
    Slice,
    Source,
)

from quantscope_plugins.families import modelopt_config
from quantscope_plugins.families.companions import attention_companions, module_companions
from quantscope_plugins.families.fp4_weight import Fp4Weight
from quantscope_plugins.families.stacks import experts, part_name, part_plane

BLOCK_NAMES = ("gate_up_proj", "down_proj", "gate_proj", "up_proj", "mlp1_weight", "mlp2_weight")
SCALE_NAMES = ("scale", "weight_scale", "weight_scale_inv")
BYTES = ("U8", "F8_E8M0")
GROUP = 32
INTERLEAVED = "gate and up rows interleaved"


class _Found(NamedTuple):
    """A weight: its stored codes and scales with their suffixes, and whose names these are."""

    module: str
    name: str
    codes: StoredTensor
    scale: StoredTensor
    word: str


class Mxfp4(Fp4Weight):
    """E2M1 codes under E8M0 scales outside compressed-tensors."""

    name: ClassVar[str] = "mxfp4"
    title: ClassVar[str] = "MXFP4 (gpt-oss, DeepSeek-V4 experts, ModelOpt, Quark)"

    def signature(self) -> Signature:
        """Names of gpt-oss planes, and the suffixes of scales."""
        blocks = tuple(f"{name}_{kind}" for name in BLOCK_NAMES for kind in ("blocks", "scales"))
        return Signature(last_parts=(*blocks, "blocks", "scales", "scale", "weight_scale"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor a weight, one an expert of a stack."""
        modules = []
        for found in (*_blocks(index), *_pairs(index, declared)):
            rank = 3 if _is_blocks(found) else 2
            for part in experts(found.codes.shape, rank):
                yield self._tensor(index, declared, found, part)
            modules.append(found.module)
        yield from self._orphans(index)
        if modules:
            yield from module_companions(index, modules, self.name)
            yield from attention_companions(index, self.name)

    def _orphans(self, index: TensorIndex) -> Iterator[Orphan]:
        for name in BLOCK_NAMES:
            for here, there in (("blocks", "scales"), ("scales", "blocks")):
                for join in ("_", "."):
                    for stored in _named(index, name, join, here):
                        mate = stored.name.removesuffix(here) + there
                        if mate not in index.tensors:
                            yield Orphan(
                                stored_name=stored.name,
                                module=stored.name.rpartition(join)[0],
                                family=self.name,
                                missing=(mate.rpartition(".")[2],),
                            )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, found: _Found, part: Slice | None
    ) -> LogicalTensor:
        codes = _part(index, "codes", found.codes, part)
        scale = _part(index, "scale", found.scale, part)
        bias = part_plane(index, "bias", found.module, "bias", part)
        planes = [_flat(codes) if _is_blocks(found) else codes, scale]
        if bias is not None and len(bias.shape) == 1:
            planes.append(bias)
        interleaved = found.name.endswith(("gate_up_proj", "mlp1_weight")) and _is_gpt_oss(declared)
        n_out, packed = (*planes[0].shape, 0, 0)[:2]
        return LogicalTensor(
            name=part_name(found.name, part),
            module=found.module,
            family=self.name,
            word=found.word,
            shape=(n_out, packed * 2),
            planes=tuple(planes),
            part=part,
            basis=INTERLEAVED if interleaved else "plain",
            certainty=3,
            facts=(("output", "f32" if found.word == "modelopt:MXFP4" else "bf16"),),
        )

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """E8M0 scales over 32 in the low-first order that every writer of these names has."""
        for reading in super().candidates(tensor):
            if reading.scale[0].dtype == "e8m0":
                yield msgspec.structs.replace(reading, basis=tensor.basis)

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """What quant_method mxfp4 or expert_dtype fixes, ModelOpt's and Quark's own words, interleaved rows."""
        for section in declared.sections:
            if section.method == "mxfp4":
                for field, value in (
                    ("element", "e2m1"),
                    ("group", {"axis": "in", "size": GROUP}),
                    ("scale", {"dtype": "e8m0"}),
                ):
                    yield section.claim(field, value, "quant_method", basis="by_definition")
            elif section.get("expert_dtype") == "fp4" and "deepseek" in tensor.word:
                yield section.claim("element", "e2m1", "expert_dtype")
        if tensor.word.startswith(("modelopt", "quark")):
            yield from modelopt_config.claims(tensor.module, declared)
        if tensor.basis == INTERLEAVED:
            yield Claim(
                field="basis",
                value=INTERLEAVED,
                source=Source("config.json", "/model_type"),
                basis="by_definition",
                written=declared.model.get("model_type"),
            )


def _is_gpt_oss(declared: Declarations) -> bool:
    return declared.model.get("model_type") == "gpt_oss"


def _is_blocks(found: _Found) -> bool:
    return found.word == "mxfp4"


def _named(index: TensorIndex, name: str, join: str, kind: str) -> Iterator[StoredTensor]:
    last = f"{name}_{kind}" if join == "_" else kind
    for full in index.names_with_last(last):
        if join == "_" or full.endswith(f"{name}.{kind}"):
            yield index.tensors[full]


def _blocks(index: TensorIndex) -> Iterator[_Found]:
    """X_blocks [.., N, K/32, 16] with X_scales [.., N, K/32], under the names of transformers or gpt-oss."""
    for name in BLOCK_NAMES:
        for join in ("_", "."):
            for blocks in _named(index, name, join, "blocks"):
                stem = blocks.name.removesuffix(f"{join}blocks")
                scales = index.tensors.get(f"{stem}{join}scales")
                if scales is None or blocks.dtype != "U8" or scales.dtype not in BYTES:
                    continue
                if blocks.shape[:-1] == scales.shape and len(blocks.shape) in (3, 4):
                    yield _Found(stem, stem, blocks, scales, "mxfp4")


def _pairs(index: TensorIndex, declared: Declarations) -> Iterator[_Found]:
    """Weight [.., N, K/2] bytes with byte scales [.., N, K/32]."""
    algorithms = modelopt_config.quark_sections(declared)
    for suffix in SCALE_NAMES:
        for module in index.modules_with(suffix):
            weight, scale = index.get(module, "weight"), index.get(module, suffix)
            if weight is None or scale is None or scale.dtype not in BYTES:
                continue
            if weight.dtype not in ("U8", "I8") or not _fits(weight.shape, scale.shape):
                continue
            if modelopt_config.quark_mx_element(declared, module) is not None:
                continue  # the same names and shapes with signed exponents: another family
            word = "quark:mxfp4" if algorithms else "modelopt:MXFP4"
            if weight.dtype == "I8":
                word = "mxfp4:deepseek-v4"
            name = f"{module}.weight" if module else "weight"
            yield _Found(module, name, weight, scale, word)


def _fits(codes: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """Scales over 32 elements of two codes a byte."""
    if len(codes) not in (2, 3) or len(codes) != len(scale) or codes[:-1] != scale[:-1]:
        return False
    return -(-codes[-1] * 2 // GROUP) == scale[-1] and codes[-1] > 0


def _part(index: TensorIndex, role: Role, stored: StoredTensor, part: Slice | None) -> Plane:
    """A stored tensor, or the expert's slice of it."""
    suffix = stored.name.rpartition(".")[2]
    if part is None:
        return index.plane_of(role, stored, suffix)
    shape = stored.shape[1:]
    size = 1
    for extent in shape:
        size *= extent
    return index.plane_of(role, stored, suffix, shape=shape, element_offset=part.index * size)


def _flat(plane: Plane) -> Plane:
    """[N, K/32, 16] bytes as [N, K/2]."""
    shape = (plane.shape[0], plane.shape[1] * plane.shape[2])
    return msgspec.structs.replace(plane, shape=shape)
