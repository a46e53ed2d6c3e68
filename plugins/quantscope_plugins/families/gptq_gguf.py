"""ggml blocks inside `qweight` bytes, as GPTQModel stores them under method or format `gguf`.

Plane: qweight U8 [N, K/block * block bytes], each row whole blocks of one ggml type; K is padded to whole
blocks. Source: GPTQModel, gptqmodel/nn_modules/qlinear/gguf.py. Decode is that of the ggml type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from quantscope.containers.records import StoredTensor
from quantscope.decode.ggml import BLOCK_TYPES
from quantscope.decode.plane_reader import PlaneReader
from quantscope.families.declarations import Declarations, Section
from quantscope.families.index import TensorIndex
from quantscope.families.protocol import Signature
from quantscope.model import Claim, Companion, LogicalTensor, Orphan

from quantscope_plugins.families.gguf import Gguf, block_planes
from quantscope_plugins.families.model_shapes import declared_row_length
from quantscope_plugins.families.qweight_config import Scope

TYPES = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_0", "Q1_0")
"""Types that GPTQModel writes; of several that fit a row without a declaration, the first."""

KEYS = ("format", "checkpoint_format", "bits")


def named_type(bits: object, written: object) -> str | None:
    """The ggml type of `bits` and a format such as `q_k_m`, or of an alias such as `q4_k_m`.

    Source: GPTQModel, gptqmodel/quantization/config.py (GGUFBits), qlinear/gguf.py.
    """
    text = str(written).lower().replace("-", "_")
    if text.startswith("q_") and isinstance(bits, int):
        text = f"q{bits}{text[1:]}"
    for kind in TYPES:
        if text == kind.lower() or text.startswith(kind.lower() + "_"):
            return kind
    return None


class GptqGguf(Gguf):
    """GPTQModel's GGUF: ggml blocks in a safetensors byte tensor."""

    name: ClassVar[str] = "gptq_gguf"
    title: ClassVar[str] = "ggml blocks in qweight (GPTQModel gguf)"

    def signature(self) -> Signature:
        """`qweight`."""
        return Signature(last_parts=("qweight",))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per byte qweight without scales whose rows are whole blocks."""
        for module in index.modules_with("qweight"):
            stored = index.get(module, "qweight")
            if stored is None or stored.dtype != "U8" or len(stored.shape) != 2:
                continue
            if index.get(module, "scales") is not None or not stored.shape[0]:
                continue
            kind = self._type(stored, module, declared)
            if kind is None:
                continue
            block = BLOCK_TYPES[kind]
            as_blocks = StoredTensor(
                name=stored.name,
                dtype=kind,
                shape=stored.shape,
                file_id=stored.file_id,
                byte_offset=stored.byte_offset,
                nbytes=stored.nbytes,
            )
            planes = [*block_planes(index, as_blocks, stored.shape[0], 0, 1)]
            bias = index.plane("bias", module, "bias")
            if bias is not None:
                planes.append(bias)
            yield LogicalTensor(
                name=f"{module}.weight" if module else "weight",
                module=module,
                family=self.name,
                word="gptq_gguf",
                shape=(stored.shape[0], stored.shape[1] // block.type_bytes * block.block_size),
                planes=tuple(planes),
                certainty=3,
                facts=(("type", kind),),
            )

    @staticmethod
    def _type(stored: StoredTensor, module: str, declared: Declarations) -> str | None:
        """The declared type where its blocks fit the rows, else the one whose row length the model has."""
        fits = [kind for kind in TYPES if stored.shape[1] % BLOCK_TYPES[kind].type_bytes == 0]
        for section in _sections(declared):
            scope = Scope(section, module)
            for key in KEYS:
                kind = named_type(scope.value("bits"), scope.value(key))
                if kind in fits:
                    return kind
        length = declared_row_length(declared, module)
        for kind in fits:
            block = BLOCK_TYPES[kind]
            extent = stored.shape[1] // block.type_bytes * block.block_size
            if length is not None and 0 <= extent - length[0] < block.block_size:
                return kind
        return fits[0] if fits else None

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """The type named by `bits` or `format`."""
        for section in _sections(declared):
            scope = Scope(section, tensor.module)
            for key in KEYS:
                kind = named_type(scope.value("bits"), scope.value(key))
                if kind is not None:
                    yield scope.claim("element", kind, key, basis="by_definition")


def _sections(declared: Declarations) -> list[Section]:
    return [
        section
        for section in declared.sections
        if section.method == "gguf" or section.get("format") == "gguf"
    ]
