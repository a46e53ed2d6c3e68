"""QV01x: GGUF metadata and labels against the tensors."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

from quantscope.containers.ggml_types import GGML_TYPES
from quantscope.containers.records import StoredTensor
from quantscope.infer.gguf_mixtures import FILE_TYPES, Explained, expected_types, read_model
from quantscope.model import Json, Severity, Source, Subject
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

LABEL_LIMIT = 0.10
FALLBACK_LIMIT = 0.95
FLOATS = frozenset({"F32", "F16", "BF16", "F64"})
_NAME_LABEL = re.compile(
    r"(?<![A-Za-z0-9])(IQ[1-4]_[A-Z]{1,3}|Q[1-8]_K(?:_[SML])?|Q[1-8]_[01]|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0|"
    r"BF16|F16|F32)(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_BITS = re.compile(r"Q(\d)")


class GgufMetadata(Rule):
    """A key of the model disagrees with the dimensions of a tensor."""

    code = "QV010"
    name = "gguf-metadata"
    kind = "GG-META"
    severity = "violation"
    page = Page(
        checks="block_count, embedding_length, feed_forward_length, head counts, expert_count and the token list against "
        "the dimensions of the named tensors; keys that an architecture cannot do without.",
        why="Loaders size their buffers from the keys and refuse the file, or read past a tensor.",
        evidence="Keys and dimensions; proved.",
        proves_not="More embedding rows than tokens are padding and a note.",
        sample="gguf-metadata",
        reports=("llama.cpp#5910", "llama.cpp#9235", "llama.cpp#12376", "aprender#1918"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Only files with the names of language models."""
        embedding = facts.stored.get("token_embd.weight")
        if not facts.is_gguf or embedding is None or len(embedding.shape) != 2:
            return
        found = facts.gguf.get("general.architecture")
        if found is None or not isinstance(found[1], str):
            yield self._missing(facts, "general.architecture")
            return
        arch = found[1]
        for key in ("block_count", "embedding_length"):
            if f"{arch}.{key}" not in facts.gguf:
                yield self._missing(facts, f"{arch}.{key}")
        yield from self._blocks(facts, arch)
        yield from self._vocabulary(facts, arch, embedding)
        yield from self._widths(facts, arch, embedding)
        yield from self._heads(facts, arch, embedding.shape[1])
        yield from self._experts(facts, arch)

    def _missing(self, facts: Facts, key: str) -> Hit:
        file = facts.opened.files[0].name
        return self.hit(
            Subject(config_key=f"{file}#{key}", file=file),
            f"key {key} is missing",
            fold=key,
            impact="loaders refuse the file",
            try_=f"write {key}",
            data={"key": key},
        )

    def _differs(
        self,
        facts: Facts,
        key: str,
        tensor: StoredTensor | None,
        said: int,
        actual: int,
        what: str,
        severity: Severity | None = None,
    ) -> Hit:
        source = facts.gguf[key][0]
        name = tensor.name if tensor is not None else None
        return self.hit(
            Subject(
                tensor=name,
                stored=name,
                file=source.file,
                config_key=str(source),
            ),
            f"{key} is {said}, {what} {actual}",
            fold=f"{key}|{said}|{actual}",
            many=f"{key} is {said}, {{count}} tensors have {actual}",
            impact="loaders refuse the file or cut the tensor"
            if severity is None
            else "none: padding",
            try_=f"set {key} to {actual}",
            severity=severity,
            data={"key": key, "declared": said, "actual": actual},
        )

    def _number(self, facts: Facts, key: str) -> int | None:
        found = facts.gguf.get(key)
        value = found[1] if found is not None else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _blocks(self, facts: Facts, arch: str) -> Iterator[Hit]:
        key = f"{arch}.block_count"
        said = self._number(facts, key)
        layers = facts.layers.get("blk")
        if said is None or not layers or facts.incomplete:
            return
        have = set(layers)
        if max(have) + 1 > said:
            tensor = next(s for n, s in facts.stored.items() if n.startswith(f"blk.{max(have)}."))
            yield self._differs(facts, key, tensor, said, max(have) + 1, "the blocks stored are")
            return
        gone = sorted(set(range(said)) - have)
        if gone:
            source = facts.gguf[key][0]
            yield self.hit(
                Subject(tensor=f"blk.{gone[0]}", file=source.file, config_key=str(source)),
                f"{key} is {said}, blocks {', '.join(map(str, gone[:8]))} are absent",
                fold=key,
                impact="loaders refuse the file",
                try_=f"set {key} to {len(have)} if the blocks were dropped on purpose",
                data={"key": key, "declared": said, "missing": gone[:200], "actual": len(have)},
            )

    def _vocabulary(self, facts: Facts, arch: str, embedding: StoredTensor) -> Iterator[Hit]:
        rows = embedding.shape[0]
        found = facts.gguf.get("tokenizer.ggml.tokens")
        if found is not None:
            tokens = _length(found[1])
            if tokens is not None and tokens != rows:
                yield self._differs(
                    facts,
                    "tokenizer.ggml.tokens",
                    embedding,
                    tokens,
                    rows,
                    "entries long, token_embd rows are",
                    "note" if rows > tokens else None,
                )
        said = self._number(facts, f"{arch}.vocab_size")
        if said is not None and said != rows:
            yield self._differs(
                facts,
                f"{arch}.vocab_size",
                embedding,
                said,
                rows,
                "token_embd has rows",
                "note" if rows > said else None,
            )
        head = facts.stored.get("output.weight")
        if head is not None and len(head.shape) == 2 and head.shape[0] != rows:
            yield self.hit(
                facts.of_stored(head, head.name),
                f"output.weight has {head.shape[0]} rows, token_embd has {rows}",
                fold="output",
                impact="loaders refuse the file",
                try_="convert the model again",
                data={"output": head.shape[0], "token_embd": rows},
            )

    def _widths(self, facts: Facts, arch: str, embedding: StoredTensor) -> Iterator[Hit]:
        key = f"{arch}.embedding_length"
        said = self._number(facts, key)
        if said is not None and said != embedding.shape[1]:
            yield self._differs(facts, key, embedding, said, embedding.shape[1], "token_embd has")
        key = f"{arch}.feed_forward_length"
        said = self._number(facts, key)
        if said is None:
            return
        for name, stored in facts.stored.items():
            if not name.startswith("blk.") or len(stored.shape) != 2:
                continue
            if name.endswith((".ffn_gate.weight", ".ffn_up.weight")):
                width = stored.shape[0]
                if width not in (said, 2 * said):
                    yield self._differs(facts, key, stored, said, width, "the tensor has")
            elif name.endswith(".ffn_down.weight") and stored.shape[1] != said:
                yield self._differs(facts, key, stored, said, stored.shape[1], "the tensor has")

    def _heads(self, facts: Facts, arch: str, width: int) -> Iterator[Hit]:
        heads = self._number(facts, f"{arch}.attention.head_count")
        shared = self._number(facts, f"{arch}.attention.head_count_kv")
        if heads is None or heads <= 0:
            return
        if any(".attn_kv_a_mqa." in name or ".ssm_" in name for name in facts.stored):
            return
        length = self._number(facts, f"{arch}.attention.key_length") or width // heads
        value_length = self._number(facts, f"{arch}.attention.value_length") or width // heads
        wanted = {
            "attn_q.weight": (f"{arch}.attention.head_count", heads, length),
            "attn_k.weight": (f"{arch}.attention.head_count_kv", shared or heads, length),
            "attn_v.weight": (f"{arch}.attention.head_count_kv", shared or heads, value_length),
        }
        for name, stored in facts.stored.items():
            part = name.partition(".")[2].partition(".")[2]
            known = wanted.get(part) if name.startswith("blk.") else None
            if known is None or len(stored.shape) != 2:
                continue
            key, count, size = known
            rows = stored.shape[0]
            if size and rows not in (count * size, 2 * count * size) and key in facts.gguf:
                per = rows // size if rows % size == 0 else rows
                yield self._differs(
                    facts, key, stored, count, per, f"{rows} rows make heads of {size}:"
                )

    def _experts(self, facts: Facts, arch: str) -> Iterator[Hit]:
        key = f"{arch}.expert_count"
        said = self._number(facts, key)
        for name, stored in facts.stored.items():
            if not name.endswith("_exps.weight") or len(stored.shape) != 3:
                continue
            if said is None:
                yield self._missing(facts, key)
                return
            if stored.shape[0] != said:
                yield self._differs(
                    facts, key, stored, said, stored.shape[0], "the tensor has experts"
                )


def _length(value: Json) -> int | None:
    if isinstance(value, dict):
        count = value.get("count")
        return count if isinstance(count, int) else None
    return len(value) if isinstance(value, list) else None


class GgufCount(Rule):
    """Tensors that older or partial readers do not expect, or do."""

    code = "QV011"
    name = "gguf-tensor-set"
    kind = "GG-COUNT"
    severity = "note"
    page = Page(
        checks="output.weight absent, rope_freqs stored, scale sidecars of blocks that readers may skip.",
        why="Readers that count tensors refuse a file with one more or less than they know.",
        evidence="Stored names; proved.",
        proves_not="A fault.",
        sample="gguf-rope-freqs",
        reports=("llama.cpp#8761", "llama.cpp#27736"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Three notes at most."""
        if not facts.is_gguf:
            return
        embedding, rope = (
            facts.stored.get("token_embd.weight"),
            facts.stored.get("rope_freqs.weight"),
        )
        if embedding is not None and "output.weight" not in facts.stored and not facts.incomplete:
            yield self.hit(
                facts.of_stored(embedding, embedding.name),
                "output.weight is absent: the head is tied to token_embd",
                fold="tied",
                impact="none",
                try_="",
                who="nobody",
                data={},
            )
        if rope is not None:
            yield self.hit(
                facts.of_stored(rope, rope.name),
                "rope_freqs.weight is stored: readers before mid-2024 reject it",
                fold="rope",
                impact="none for current readers",
                try_="",
                who="reader",
                data={"shape": list(rope.shape)},
            )
        yield from self._sidecars(facts)

    def _sidecars(self, facts: Facts) -> Iterator[Hit]:
        found = facts.gguf.get("general.architecture")
        arch = found[1] if found is not None and isinstance(found[1], str) else ""
        blocks = facts.gguf.get(f"{arch}.block_count", (None, None))[1]
        extra = facts.gguf.get(f"{arch}.nextn_predict_layers", (None, None))[1]
        if not isinstance(blocks, int) or not isinstance(extra, int) or extra <= 0:
            return
        first = blocks - extra
        names = [
            name
            for name in facts.stored
            if name.endswith((".scale", ".input_scale"))
            and (number := _block_number(name)) is not None
            and number >= first
        ]
        if names:
            yield self.hit(
                facts.of_stored(facts.stored[names[0]]),
                f"{len(names)} scale sidecars belong to blocks that readers may skip",
                fold="sidecars",
                impact="none for readers that skip them with their block",
                try_="",
                who="reader",
                data={"count": len(names)},
            )


def _block_number(name: str) -> int | None:
    found = re.match(r"blk\.(\d{1,6})\.", name)
    return int(found[1]) if found else None


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
        sample="gguf-mxfp4",
        reports=("llama.cpp#28474", "llama.cpp#6614", "Micro-Expert-Router#162"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """The label of the key, then that of the file name."""
        if not facts.is_gguf or facts.incomplete:
            return
        found = facts.gguf.get("general.file_type")
        matrices = {n: s for n, s in facts.stored.items() if len([d for d in s.shape if d > 1]) > 1}
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
            close = all(_alike(kind, base) for kind in types)
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


RULES = (GgufMetadata, GgufCount, GgufLabel, GgufReshape)
