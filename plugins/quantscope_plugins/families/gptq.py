"""GPTQ: qweight packed along the input axis, qzeros along the output axis, scales [groups, out].

Planes, packing and conventions: AutoGPTQ (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py), GPTQModel
(gptqmodel/nn_modules/qlinear/__init__.py, gptqmodel/utils/planar_packing.py, gptqmodel/quantization/config.py),
AutoRound (auto_round/inference/backend.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from quantscope.decode import bits
from quantscope.decode.parts import Array, Parts, Window
from quantscope.decode.plane_reader import STORAGE_BITS, PlaneReader
from quantscope.families.base import SCALE_WORDS, FamilyBase, ceil_div, demand, element_span
from quantscope.families.declarations import Declarations, Section
from quantscope.families.index import TensorIndex
from quantscope.families.modules import dynamic_key, dynamic_override
from quantscope.families.protocol import Signature
from quantscope.model import (
    Arithmetic,
    BitSpan,
    Cell,
    Claim,
    Companion,
    Equation,
    Evidence,
    GroupLevel,
    LogicalTensor,
    Orphan,
    Packing,
    Plane,
    Reading,
    Sample,
    ScaleLevel,
    Source,
)

GROUP_SIZES = (16, 32, 64, 128, 256, 512, 1024)
"""Group sizes tried beside the exact quotient K/G."""

BIT_WIDTHS = (4, 8, 3, 2, 5, 6, 7)
PLANAR_ONLY = (5, 6, 7)
"""Widths that only the planar format writes (GPTQModel, gptqmodel/nn_modules/qlinear/__init__.py)."""

CONVENTIONS = {"gptq": "minus_one", "gptq_v2": "as_is", "gptq_p": "as_is"}
"""`checkpoint_format` -> what a stored zero means."""

AUTOROUND_CONVENTIONS = {
    "auto_round": "as_is",
    "auto_round:gptqmodel": "as_is",
    "auto_round:auto_gptq": "minus_one",
    "auto_gptq": "minus_one",
}
"""AutoRound `packing_format` -> what a stored zero means (AutoRound, auto_round/inference/backend.py)."""

METHODS = ("gptq", "auto-round", "intel/auto-round", "auto_round")


class Gptq(FamilyBase):
    """GPTQ v1, v2 and planar, 2 to 8 bits, with or without act-order."""

    name: ClassVar[str] = "gptq"
    title: ClassVar[str] = "GPTQ (qweight packed along in, zeros along out)"

    def signature(self) -> Signature:
        """`qweight` beside `scales`."""
        return Signature(last_parts=("qweight", "qzeros", "g_idx"))

    def group(
        self, index: TensorIndex, declared: Declarations
    ) -> Iterator[LogicalTensor | Companion | Orphan]:
        """One logical tensor per module whose planes have the GPTQ shapes, or whose declaration says so."""
        says_gptq = any(section.method in METHODS for section in declared.sections)
        modules = dict.fromkeys(index.modules_with("qweight") + index.modules_with("qzeros"))
        for module in modules:
            qweight, scales = index.get(module, "qweight"), index.get(module, "scales")
            if qweight is None or scales is None:
                yield from self._orphans(index, module, says_gptq)
                continue
            certainty = self._certainty(qweight.shape, scales.shape, qweight.dtype, says_gptq)
            if not certainty:
                continue
            yield self._tensor(index, declared, module, certainty)

    @staticmethod
    def _certainty(
        qweight: tuple[int, ...], scales: tuple[int, ...], dtype: str, says_gptq: bool
    ) -> int:
        """3 where shapes say GPTQ and nothing else, 1 where only names do."""
        if dtype not in ("I32", "U32", "I16", "I64", "I8") or len(qweight) != 2:
            return 0
        if len(scales) == 2 and qweight[1] == scales[1]:
            if dtype == "I16":
                return 2 if says_gptq else 0
            return 3 if qweight[0] != scales[0] else 2
        return 1 if says_gptq else 0

    def _orphans(self, index: TensorIndex, module: str, says_gptq: bool) -> Iterator[Orphan]:
        if not says_gptq:
            return
        needed = ("qweight", "scales")
        missing = tuple(suffix for suffix in needed if index.get(module, suffix) is None)
        for suffix in ("qweight", "qzeros", "scales", "g_idx"):
            stored = index.get(module, suffix)
            if stored is not None:
                yield Orphan(
                    stored_name=stored.name, module=module, family=self.name, missing=missing
                )

    def _tensor(
        self, index: TensorIndex, declared: Declarations, module: str, certainty: int
    ) -> LogicalTensor:
        planes = [
            index.plane("codes", module, "qweight"),
            index.plane("zero", module, "qzeros"),
            index.plane("scale", module, "scales"),
            index.plane("group_index", module, "g_idx"),
            index.plane("bias", module, "bias"),
        ]
        kept = tuple(plane for plane in planes if plane is not None)
        section = _section(declared)
        facts = []
        if section is not None and (
            section.get("provider") == "auto-round" or section.method.endswith("auto-round")
        ):
            facts.append(("producer", "auto-round"))
        if "auto_gptq_version" in {key for file in declared.files for key in file.metadata}:
            facts.append(("producer", "auto-gptq"))
        planar = section is not None and _format(section) == "gptq_p"
        rows, n_out = kept[0].shape
        return LogicalTensor(
            name=f"{module}.weight" if module else "weight",
            module=module,
            family=self.name,
            word="gptq_planar" if planar else "gptq",
            shape=(n_out, rows * (STORAGE_BITS[kept[0].dtype] // 4)),
            planes=kept,
            certainty=certainty,
            facts=tuple(facts),
        )

    def claims(
        self, tensor: LogicalTensor, declared: Declarations, reader: PlaneReader
    ) -> Iterator[Claim]:
        """Every section of a GPTQ-like method, global keys and the `dynamic` rule of this module."""
        for section in declared.sections:
            if section.method not in METHODS and not section.has("bits"):
                continue
            yield from self._section_claims(tensor, section)
        for file in declared.files:
            if file.metadata.get("gptq_desc_act") in ("False", "True"):
                act = file.metadata["gptq_desc_act"] == "True"
                yield Claim(
                    field="order",
                    value="act_order" if act else "natural",
                    source=Source(file.name, "__metadata__/gptq_desc_act"),
                    written=file.metadata["gptq_desc_act"],
                )

    def _section_claims(self, tensor: LogicalTensor, section: Section) -> Iterator[Claim]:
        dynamic = section.get("dynamic")
        override = dynamic_override(dynamic, tensor.module)
        extra = section.get("extra_config", tensor.module)
        path: tuple[str, ...] = ()
        values = dict(section.data)
        if isinstance(override, dict):
            path = ("dynamic", dynamic_key(dynamic, tensor.module) or "")
            values |= override
        elif isinstance(extra, dict):
            path = ("extra_config", tensor.module)
            values |= extra
            override = extra

        def at(key: str) -> tuple[str, ...]:
            return (*path, key) if isinstance(override, dict) and key in override else (key,)

        bit_width = values.get("bits")
        if isinstance(bit_width, int) and not isinstance(bit_width, bool):
            yield section.claim("element", f"u{bit_width}", *at("bits"))
        size = values.get("group_size")
        if isinstance(size, int) and not isinstance(size, bool):
            value = {"axis": "channel", "size": None} if size == -1 else {"size": size}
            yield section.claim("group", value, *at("group_size"))
        if isinstance(values.get("sym"), bool):
            yield section.claim("symmetric", values["sym"], *at("sym"))
        if isinstance(values.get("desc_act"), bool):
            order = "act_order" if values["desc_act"] else "natural"
            yield section.claim("order", order, *at("desc_act"))
        for key in ("checkpoint_format", "format"):
            written = section.get(key)
            if written in CONVENTIONS:
                yield section.claim("zero_convention", CONVENTIONS[written], key)
                planar = "planar" if written == "gptq_p" else None
                if planar:
                    yield section.claim("packing", {"order": planar}, key, basis="by_definition")
        written = section.get("packing_format")
        if written in AUTOROUND_CONVENTIONS:
            yield section.claim("zero_convention", AUTOROUND_CONVENTIONS[written], "packing_format")
        if section.method == "gptq":
            key = "quant_method" if section.has("quant_method") else "method"
            yield section.claim("packing", {"axis": "in"}, key, basis="by_definition")
            yield section.claim("zero", "integer", key, basis="by_definition")

    def candidates(self, tensor: LogicalTensor) -> Iterator[Reading]:
        """Widths x group sizes x zero conventions (x continuous and planar at 3 bits)."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        if qweight is None or scales is None or len(qweight.shape) != 2:
            return
        g_idx = tensor.plane("group_index")
        n_out = qweight.shape[1]
        n_groups = scales.shape[0] if len(scales.shape) == 2 else 1
        for bit_width in BIT_WIDTHS:
            n_in = self._n_in(tensor, qweight, g_idx, bit_width)
            if n_in <= 0:
                continue
            for group in _groups(n_in, n_groups):
                for order in self._orders(tensor, bit_width):
                    yield from self._readings(tensor, bit_width, (n_out, n_in), group, order)

    @staticmethod
    def _n_in(tensor: LogicalTensor, qweight: Plane, g_idx: Plane | None, bit_width: int) -> int:
        if g_idx is not None and len(g_idx.shape) == 1:
            return g_idx.shape[0]
        return qweight.shape[0] * STORAGE_BITS[qweight.dtype] // bit_width

    @staticmethod
    def _orders(tensor: LogicalTensor, bit_width: int) -> tuple[str, ...]:
        if bit_width in PLANAR_ONLY:
            return ("planar",)
        if bit_width == 3:
            return (
                ("planar", "bitstream") if tensor.word == "gptq_planar" else ("bitstream", "planar")
            )
        return ("sequential",)

    def _readings(
        self,
        tensor: LogicalTensor,
        bit_width: int,
        shape: tuple[int, int],
        group: GroupLevel,
        order: str,
    ) -> Iterator[Reading]:
        qweight, scales, qzeros = (tensor.plane(r) for r in ("codes", "scale", "zero"))
        assert qweight is not None
        assert scales is not None
        true_zeros_first = order == "planar" or tensor.word == "gptq_planar"
        conventions: tuple[str, ...] = (
            ("as_is", "minus_one") if true_zeros_first else ("minus_one", "as_is")
        )
        if qzeros is None:
            conventions = ("not_applicable",)
        bf16_export = tensor.fact("producer") == "auto-round"
        for convention in conventions:
            yield Reading(
                element=f"u{bit_width}",
                bit_width=bit_width,
                shape=shape,
                group=(group,),
                scale=(
                    ScaleLevel(dtype=SCALE_WORDS.get(scales.dtype, scales.dtype), name="scales"),
                ),
                zero="fixed" if qzeros is None else "integer",
                midpoint=1 << (bit_width - 1),
                zero_convention=convention,
                packing=Packing(word=qweight.dtype, axis="in", order=order),
                arithmetic=Arithmetic(output="bf16" if bf16_export else "f32"),
            )

    def equations(self, tensor: LogicalTensor, reading: Reading) -> list[Equation]:
        """Sizes of qweight, qzeros, scales and g_idx."""
        (n_out, n_in), width = reading.shape, reading.bit_width
        n_groups = ceil_div(n_in, reading.group_size)
        qweight = tensor.plane("codes")
        word_bits = STORAGE_BITS[qweight.dtype] if qweight else 32
        word = qweight.dtype if qweight else "I32"
        size = reading.group_size
        equations = [
            demand(
                qweight,
                "qweight",
                f"{word} [K*b/{word_bits}, N]",
                (ceil_div(n_in * width, word_bits), n_out),
                substituted=f"[{n_in}*{width}/{word_bits}, {n_out}]",
            ),
            demand(
                tensor.plane("scale"),
                "scales",
                "[ceil(K/g), N]",
                (n_groups, n_out),
                dtypes=("F16", "BF16", "F32"),
                substituted=f"[ceil({n_in}/{size}), {n_out}]",
            ),
        ]
        if reading.zero == "integer":
            equations.append(
                demand(
                    tensor.plane("zero"),
                    "qzeros",
                    f"{word} [ceil(K/g), N*b/{word_bits}]",
                    (n_groups, ceil_div(n_out * width, word_bits)),
                    dtypes=(word,),
                    substituted=f"[ceil({n_in}/{size}), {n_out}*{width}/{word_bits}]",
                )
            )
        equations.append(
            demand(tensor.plane("group_index"), "g_idx", "I32 [K]", (n_in,), optional=True)
        )
        return equations

    def parts(
        self, tensor: LogicalTensor, reading: Reading, window: Window, reader: PlaneReader
    ) -> Parts:
        """Codes of the window with the scales and zeros of the groups that its columns use."""
        qweight, scales = tensor.plane("codes"), tensor.plane("scale")
        assert qweight is not None
        assert scales is not None
        rows, cols = window.rows, window.cols
        groups = self._group_numbers(tensor, reading, cols, reader)
        first = int(groups.min()) if groups.size else 0
        used = range(first, int(groups.max()) + 1 if groups.size else 0)
        words, skip = _words(reading, cols, qweight)
        packed = reader.read(qweight, words, rows)
        codes = _unpack(packed, reading, skip + len(cols), axis=0)[skip:].T
        zero, stored = self._zeros(tensor, reading, used, rows, reader)
        return Parts(
            codes=codes,
            combine="affine",
            scale=(reader.floats(scales, used, rows).T,),
            zero=zero,
            stored_zero=stored,
            group_of_column=groups - first,
        )

    @staticmethod
    def _group_numbers(
        tensor: LogicalTensor, reading: Reading, cols: range, reader: PlaneReader
    ) -> Array:
        g_idx = tensor.plane("group_index")
        if g_idx is None:
            numbers: Array = np.arange(cols.start, cols.stop) // reading.group_size
            return numbers
        return reader.read(g_idx, None, cols)[0].astype(np.int64)

    @staticmethod
    def _zeros(
        tensor: LogicalTensor, reading: Reading, used: range, rows: range, reader: PlaneReader
    ) -> tuple[Array, Array | None]:
        """True and stored zeros, [rows, groups]."""
        qzeros = tensor.plane("zero")
        if reading.zero == "fixed" or qzeros is None:
            return np.full((1, 1), reading.midpoint, dtype=np.int16), None
        words, skip = _words(reading, rows, qzeros)
        packed = reader.read(qzeros, used, words)
        stored = _unpack(packed, reading, skip + len(rows), axis=-1)[:, skip:].T.astype(np.int16)
        if reading.zero_convention == "minus_one":
            return (stored + 1) & ((1 << reading.bit_width) - 1), stored
        if reading.zero_convention == "minus_one_unwrapped":
            return stored + 1, stored
        return stored, stored

    def locate(self, tensor: LogicalTensor, reading: Reading, row: int, col: int) -> Cell:
        """Code bits in qweight; scale, zero and g_idx of the natural group of the column."""
        qweight, scales, qzeros, g_idx = (
            tensor.plane(role) for role in ("codes", "scale", "zero", "group_index")
        )
        assert qweight is not None
        n_out = reading.shape[0]
        group = col // reading.group_size
        per_plane: dict[str, tuple[BitSpan, ...]] = {}
        if scales is not None:
            per_plane["scale"] = (element_span(scales, group * n_out + row),)
        if qzeros is not None and reading.zero == "integer":
            stride = qzeros.shape[1]
            per_plane["zero"] = tuple(
                element_span(qzeros, group * stride + word, low, width)
                for word, low, width in _fields(reading, row, qzeros)
            )
        if g_idx is not None:
            per_plane["group_index"] = (element_span(g_idx, col),)
        spans = tuple(
            element_span(qweight, word * n_out + row, low, width)
            for word, low, width in _fields(reading, col, qweight)
        )
        return Cell(row=row, col=col, group=group, bits=spans, per_plane=per_plane)

    def evidence(
        self, tensor: LogicalTensor, readings: Sequence[Reading], reader: PlaneReader
    ) -> Iterable[Evidence]:
        """Whether g_idx is natural, and the group size that it shows."""
        g_idx = tensor.plane("group_index")
        if g_idx is None or len(g_idx.shape) != 1 or not readings:
            yield Evidence(
                field="order",
                method="g_idx",
                supports=("natural",),
                strength="weak",
                assumes=("no g_idx stored",),
            )
            return
        values = reader.read(g_idx)[0].astype(np.int64)
        natural = bool((np.diff(values) >= 0).all())
        sample = Sample(values.size, values.size, "channels")
        yield Evidence(
            field="order",
            method="g_idx",
            supports=("natural" if natural else "act_order",),
            strength="proved",
            numbers={
                "groups_used": int(np.unique(values).size),
                "first": [int(v) for v in values[:8]],
            },
            sample=sample,
        )


def _section(declared: Declarations) -> Section | None:
    return next((s for s in declared.sections if s.method in METHODS), None)


def _format(section: Section) -> str:
    for key in ("checkpoint_format", "format"):
        written = section.get(key)
        if isinstance(written, str):
            return written
    return ""


def _groups(n_in: int, n_groups: int) -> list[GroupLevel]:
    """Group sizes g with ceil(K/g) = G, the exact quotient first."""
    if n_groups == 1:
        return [GroupLevel(axis="channel")]
    sizes: list[int] = []
    if n_groups and n_in % n_groups == 0:
        sizes.append(n_in // n_groups)
    sizes += [g for g in GROUP_SIZES if ceil_div(n_in, g) == n_groups and g not in sizes]
    if not sizes and n_groups:
        sizes = [ceil_div(n_in, n_groups)]
    return [GroupLevel(axis="in", size=size) for size in sizes]


def _words(reading: Reading, wanted: range, plane: Plane) -> tuple[range, int]:
    """Words along the packed axis that hold the codes wanted, and codes to skip in the first."""
    word_bits = STORAGE_BITS[plane.dtype]
    if reading.packing.order == "sequential":
        per_word = word_bits // reading.bit_width
        return range(
            wanted.start // per_word, ceil_div(wanted.stop, per_word)
        ), wanted.start % per_word
    run = 32 * 32 // word_bits
    first = wanted.start // 32 * run * reading.bit_width // 32
    last = ceil_div(wanted.stop, 32) * run * reading.bit_width // 32
    packed_axis = plane.shape[0] if plane.role == "codes" else plane.shape[1]
    return range(first, min(last, packed_axis)), wanted.start % 32


def _unpack(packed: Array, reading: Reading, count: int, axis: int) -> Array:
    order = reading.packing.order
    if order == "planar":
        return bits.unpack_planar(packed, reading.bit_width, axis=axis, count=count)
    if order == "bitstream":
        return bits.unpack_bitstream(packed, reading.bit_width, axis=axis, count=count)
    return bits.unpack_words(packed, reading.bit_width, axis=axis, count=count)


def _fields(reading: Reading, index: int, plane: Plane) -> tuple[tuple[int, int, int], ...]:
    word_bits = STORAGE_BITS[plane.dtype]
    order = reading.packing.order
    if order == "planar":
        return bits.field_bits("planar", index, reading.bit_width, word_bits=word_bits)
    if order == "bitstream":
        return bits.field_bits("bitstream", index, reading.bit_width, word_bits=word_bits)
    return bits.field_bits("sequential", index, reading.bit_width, word_bits=word_bits)
