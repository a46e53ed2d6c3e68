"""QV01x: GGUF labels and shapes against the types of the tensors."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

from quantscope.containers.ggml_types import GGML_TYPES
from quantscope.containers.records import StoredTensor
from quantscope.infer.gguf_mixtures import FILE_TYPES, Explained, expected_types, read_model
from quantscope.model import Json, Source, Subject
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

LABEL_LIMIT = 0.10
FALLBACK_LIMIT = 0.95
ENDS = frozenset({"token_embd.weight", "output.weight", "per_layer_token_embd.weight"})
"""Matrices whose type llama-quantize takes from options of their own, whatever the recipe says."""

FLOATS = frozenset({"F32", "F16", "BF16", "F64"})
_NAME_LABEL = re.compile(
    r"(?<![A-Za-z0-9])(IQ[1-4]_[A-Z]{1,3}|Q[1-8]_K(?:_[SML])?|Q[1-8]_[01]|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0|"
    r"BF16|F16|F32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_BITS = re.compile(r"Q(\d)")


class GgufLabel(Rule):
    """The label of a file and the types of its tensors differ."""

    code = "QV012"
    name = "gguf-label"
    kind = "GG-LABEL"
    severity = "warning"
    page = Page(
        checks="general.file_type and the file name against the types of the tensors, by parameters, with the recipe of "
        "llama.cpp's quantize tool applied to every tensor.",
        why="A label promises a size and a quality; a file of other types has neither.",
        evidence="Types of all tensors; mixture rules, layer positions and row-length fallbacks explain what they can.",
        proves_not="That an unexplained type is worse: it may have been chosen by hand.",
        sample="gguf-label",
        reports=("llama.cpp#28474", "llama.cpp#6614", "Micro-Expert-Router#162"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """The label of the key, then that of the file name."""
        if not facts.is_gguf or facts.incomplete:
            return
        found = facts.gguf.get("general.file_type")
        matrices = {
            n: s
            for n, s in facts.stored.items()
            if len([d for d in s.shape if d > 1]) > 1 and n not in facts.broken_tensors
        }
        quantized = {n: s for n, s in matrices.items() if s.dtype not in FLOATS}
        if not matrices:
            return
        label: str | None = None
        if found is not None and isinstance(found[1], int):
            metadata = {key: value for key, (_, value) in facts.gguf.items()}
            model = read_model(metadata)
            label = model.recipe if model is not None else FILE_TYPES.get(found[1], ("", ""))[0]
            if model is not None and model.recipe:
                expected = expected_types(model, {n: s.shape for n, s in facts.stored.items()})
                yield from self._judge(
                    facts, found[0], label or "", model.base_type, expected, matrices
                )
            elif not label:
                yield self._unknown(found[0], found[1])
        yield from self._file_name(facts, label, quantized or matrices)

    def _unknown(self, source: Source, value: Json) -> Hit:
        return self.hit(
            Subject(config_key=str(source), file=source.file),
            f"general.file_type is {value}, which no known recipe has",
            fold="unknown",
            impact="none: tensor types are what counts",
            try_="",
            who="reader",
            severity="note",
            data={"file_type": value},
        )

    def _judge(
        self,
        facts: Facts,
        source: Source,
        label: str,
        base: str,
        expected: dict[str, Explained],
        matrices: dict[str, StoredTensor],
    ) -> Iterator[Hit]:
        sizes = {name: prod(stored.shape) for name, stored in matrices.items()}
        total = sum(sizes.values()) or 1
        odd = {
            name: stored
            for name, stored in matrices.items()
            if name in expected and stored.dtype not in expected[name].types
        }
        fallen = sum(
            sizes[name]
            for name, stored in matrices.items()
            if stored.dtype != base and name in expected and "row length" in expected[name].reason
        )
        own = sum(sizes[name] for name, stored in matrices.items() if stored.dtype == base)
        share = sum(sizes[name] for name in odd) / total
        types = Counter(stored.dtype for stored in odd.values())
        words = ", ".join(f"{count} {kind}" for kind, count in types.most_common(4))
        subject = Subject(config_key=str(source), file=source.file)
        data: dict[str, Any] = {
            "label": label,
            "base_share": round(own / total, 4),
            "unexplained_share": round(share, 4),
            "types": dict(Counter(s.dtype for s in matrices.values())),
        }
        if odd:
            close = all(_alike(kind, base) for kind in types) or ENDS.issuperset(odd)
            yield self.hit(
                subject,
                f"label {label}, but {len(odd)} matrices ({share:.0%} of the parameters) are of types that its "
                f"recipe does not give: {words}",
                fold="odd",
                impact="size and quality are not those of the label",
                try_="name the file by its types",
                severity="warning" if share > LABEL_LIMIT and not close else "note",
                data=data | {"tensors": sorted(odd)[:20]},
            )
        elif fallen > FALLBACK_LIMIT * total:
            row = next(s.shape[-1] for s in matrices.values() if s.dtype != base)
            yield self.hit(
                subject,
                f"label {label}, but {fallen / total:.1%} of the parameters fell back to other types "
                f"(row {row} is no multiple of the block)",
                fold="fallen",
                impact="size and quality are not those of the label",
                try_="choose a label by the types that are there",
                data=data,
            )
        elif own < total:
            reasons = sorted(
                {
                    expected[n].reason
                    for n, s in matrices.items()
                    if s.dtype != base and n in expected
                }
            )
            yield self.hit(
                subject,
                f"label {label}: {own / total:.0%} of the matrix parameters have its base type {base}, the rest "
                f"follows its recipe ({'; '.join(reasons[:3])})",
                fold="mixture",
                impact="none",
                try_="",
                who="nobody",
                severity="note",
                data=data,
            )

    def _file_name(
        self, facts: Facts, label: str | None, matrices: dict[str, StoredTensor]
    ) -> Iterator[Hit]:
        file = facts.opened.files[0]
        found = _NAME_LABEL.findall(file.name.rsplit(".gguf", 1)[0])
        if not found:
            return
        name = found[-1].upper()
        if label is not None and (name == label.upper() or label.upper().startswith(name)):
            return
        base = next((b for _, (word, b) in FILE_TYPES.items() if word == name), name)
        total = sum(prod(s.shape) for s in matrices.values()) or 1
        own = sum(prod(s.shape) for s in matrices.values() if s.dtype == base)
        if label is None and own * 2 > total:
            return
        yield self.hit(
            Subject(file=file.name, field="name"),
            f"file is named {name}, "
            + (f"its file_type says {label}" if label else "its file_type says nothing")
            + f"; {own / total:.0%} of the matrix parameters are {base}",
            fold="name",
            impact="size and quality are not those of the name",
            try_="name the file by its types",
            severity="note" if own * 2 > total else "warning",
            data={"name": name, "label": label, "share": round(own / total, 4)},
        )


def _alike(kind: str, base: str) -> bool:
    """Whether two types have the same nominal width: Q4_0 and Q4_1."""
    one, two = _BITS.search(kind), _BITS.search(base)
    return one is not None and two is not None and one[1] == two[1]


class GgufReshape(Rule):
    """Dimensions in another form than the model's."""

    code = "QV013"
    name = "gguf-reshape"
    kind = "GG-RESHAPE"
    severity = "violation"
    page = Page(
        checks="orig_shape keys against element counts; dimensions that are a type's bytes over its elements times "
        "another dimension; lost unit dimensions.",
        why="A byte shape saved as an element shape makes every row a few blocks too long.",
        evidence="Keys and dimensions; the ratio is compared with dimensions of other tensors.",
        proves_not="A chance ratio, where no other tensor has the expected dimension.",
        sample="gguf-reshape",
        reports=("ComfyUI-GGUF#234", "ComfyUI-GGUF#392", "InvokeAI#8690"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """orig_shape keys, byte shapes, pad tokens."""
        if not facts.is_gguf:
            return
        for key, (source, value) in facts.gguf.items():
            name = key.partition("orig_shape.")[2]
            stored = facts.stored.get(name)
            if not name or stored is None or not isinstance(value, list):
                continue
            if all(isinstance(v, int) for v in value) and prod(value) != prod(stored.shape):
                yield self.hit(
                    Subject(tensor=name, stored=name, file=source.file, config_key=str(source)),
                    f"{key} has {prod(value)} elements, the tensor {prod(stored.shape)}",
                    fold=key,
                    impact="the tensor cannot take its original shape",
                    try_=f"write {key} again",
                    data={"orig_shape": value, "shape": list(stored.shape)},
                )
        yield from self._byte_shapes(facts)
        for name, stored in facts.stored.items():
            if name.endswith("pad_token") and len(stored.shape) == 1:
                yield self.hit(
                    facts.of_stored(stored, name),
                    f"{name.rpartition('.')[2]} has rank 1; several readers expect rank 2",
                    fold="pad",
                    impact="none for readers that add the dimension",
                    try_="",
                    who="reader",
                    severity="note",
                    data={"shape": list(stored.shape)},
                )

    def _byte_shapes(self, facts: Facts) -> Iterator[Hit]:
        sizes = {kind.name: (kind.block_size, kind.type_bytes) for kind in GGML_TYPES.values()}
        usual: Counter[int] = Counter()
        users: dict[int, set[str]] = defaultdict(set)
        for name, stored in facts.stored.items():
            for extent in set(stored.shape):
                usual[extent] += 1
                users[extent].add(name)
        for name, stored in facts.stored.items():
            block, nbytes = sizes.get(stored.dtype, (1, 1))
            if block <= 1 or not stored.shape or stored.dtype in FLOATS:
                continue
            row = stored.shape[-1]
            if row % nbytes:
                continue
            wanted = row // nbytes * block
            vector = len(stored.shape) == 1
            others = users[wanted] - {name}
            if wanted != row and (vector or (others and usual[row] <= 2 < usual[wanted])):
                yield self.hit(
                    facts.of_stored(stored, name),
                    f"dims {list(stored.shape)} are {nbytes}/{block} of the expected {wanted}: byte counts stored "
                    "as element counts",
                    fold=f"{nbytes}/{block}",
                    many=f"dims of {{count}} tensors are {nbytes}/{block} of the expected: byte counts stored as "
                    "element counts",
                    impact="every row is read a few blocks too long",
                    try_="convert the model again",
                    confidence="strong",
                    data={"row": row, "expected": wanted},
                )


RULES = (GgufLabel, GgufReshape)
