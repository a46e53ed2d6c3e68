"""QV01x: GGUF keys and the set of tensors against their dimensions."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator

from quantscope.containers.records import StoredTensor
from quantscope.model import Json, Severity, Subject
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

_EXPERT = re.compile(r"\.ffn_(gate|up|down)\.\d+\.weight$")
"""An expert stored as a tensor of its own, as converters did before experts were stacked."""

NUMBERS = {
    "block_count": "blk.",
    "embedding_length": "token_embd.",
    "feed_forward_length": ".ffn_up.",
    "attention.head_count": ".attn_q.",
    "attention.head_count_kv": ".attn_k.",
}
"""Counts, and a part of the names of tensors that cannot be where the count is zero."""

NORMS = frozenset({"attn_norm.weight", "ffn_norm.weight"})


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
        yield from self._types(facts, arch)
        yield from self._blocks(facts, arch)
        yield from self._norms(facts, arch, embedding.shape[1])
        yield from self._vocabulary(facts, arch, embedding)
        yield from self._widths(facts, arch, embedding)
        yield from self._heads(facts, arch, embedding.shape[1])
        yield from self._experts(facts, arch)

    def _types(self, facts: Facts, arch: str) -> Iterator[Hit]:
        """Counts that are text, fractions or zero; arrays of one number a layer are lawful."""
        for key, word in NUMBERS.items():
            found = facts.gguf.get(f"{arch}.{key}")
            if found is None:
                continue
            source, value = found
            fault = "is no whole number" if isinstance(value, str | float | bool) else None
            if value == 0 and any(word in name for name in facts.stored):
                fault = "is zero"
            if fault is not None:
                yield self.hit(
                    Subject(file=source.file, config_key=str(source)),
                    f"{arch}.{key} {fault}: {str(value)[:40]}",
                    fold=key,
                    impact="loaders refuse the file",
                    try_=f"write {arch}.{key} as a 32-bit count",
                    data={"key": f"{arch}.{key}", "value": str(value)[:40]},
                )

    def _norms(self, facts: Facts, arch: str, width: int) -> Iterator[Hit]:
        """Norms over the hidden state are as long as it is wide, where the same norm of another block is."""
        key = f"{arch}.embedding_length"
        if self._number(facts, key) != width:
            return
        alike: dict[str, list[StoredTensor]] = defaultdict(list)
        for name, stored in facts.stored.items():
            place = names.layer_of(name)
            if place is not None and place.stack == "blk" and place.rest in NORMS:
                alike[place.rest].append(stored)
        for found in alike.values():
            odd = [stored for stored in found if stored.shape != (width,)]
            for stored in odd if len(odd) < len(found) else ():
                length = math.prod(stored.shape)
                yield self._differs(facts, key, stored, width, length, "the norm has")

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
        gone, _ = names.absent(have, said)
        if gone:
            source = facts.gguf[key][0]
            yield self.hit(
                Subject(tensor=f"blk.{gone[0]}", file=source.file, config_key=str(source)),
                f"{key} is {said}, blocks {', '.join(map(str, gone[:8]))} are absent",
                fold=key,
                impact="loaders refuse the file",
                try_=f"set {key} to {len(have)} if the blocks were dropped on purpose",
                data={"key": key, "declared": said, "missing": gone, "actual": len(have)},
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
        routed = any(
            "_exps." in n or ".ffn_gate_inp." in n or _EXPERT.search(n) for n in facts.stored
        )
        if said is not None and said > 1 and not routed and not facts.incomplete:
            yield self._differs(facts, key, None, said, 0, "the experts stored are")
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
        proves_not="That anything is wrong: it is worth knowing.",
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


RULES = (GgufMetadata, GgufCount)
