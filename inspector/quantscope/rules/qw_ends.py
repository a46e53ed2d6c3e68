"""QW01x: embedding and output head: tied, different, quantized."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantscope.containers.records import StoredTensor
from quantscope.errors import QuantscopeError
from quantscope.model import Subject
from quantscope.rules import names
from quantscope.rules.base import Hit, Page, Rule
from quantscope.rules.facts import Facts

COMPARE_BYTES = 512 << 20
CHUNK_BYTES = 4 << 20


TOP_LEVEL_QUANTIZERS = ("mlx", "gguf", "metal")
"""Families that quantize embeddings as a matter of course."""


def head_and_embedding(facts: Facts) -> tuple[StoredTensor | None, StoredTensor | None]:
    """Stored plain (or first) tensors of the output head and the input embedding."""
    head = embedding = None
    for name, stored in facts.stored.items():
        module = name.rpartition(".")[0]
        if (
            names.is_head(module)
            and head is None
            and name.endswith(("weight", "weight_packed", "qweight"))
        ):
            head = stored
        elif names.is_embedding(module) and embedding is None and len(stored.shape) >= 2:
            embedding = stored
    if head is None:  # planes of other names: torchao, quanto, HQQ
        head = next(
            (
                facts.stored[state.tensor.planes[0].stored_name]
                for state in facts.states
                if names.is_head(state.tensor.module)
            ),
            None,
        )
    return head, embedding


class TiedHead(Rule):
    """Tie flag, embedding and head do not fit together."""

    code = "QW010"
    name = "tied-head"
    kind = "TIED"
    severity = "violation"
    page = Page(
        checks="tie_word_embeddings against the presence, the dtype and the bytes of embedding and head.",
        why="With a tie declared and two tensors stored, readers differ in which one they use for the output.",
        evidence="The flag, stored names, and a comparison of the bytes.",
        proves_not="Two equal tensors under a tie are a note: nothing is lost.",
        sample="tied-head-differs",
        reports=("llm-compressor#2835", "AReaL#1403", "llama.cpp#10756", "transformers#37905"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """One hit at most."""
        if facts.is_gguf:
            return
        tied, source = facts.model_value("tie_word_embeddings")
        head, embedding = head_and_embedding(facts)
        if source is None or not isinstance(tied, bool) or embedding is None:
            return
        where = str(source)
        if tied and head is not None:
            yield from self._both(facts, head, embedding, where)
        elif not tied and head is None and not facts.incomplete and self._generates(facts):
            yield self.hit(
                Subject(tensor="lm_head.weight", file=source.file, config_key=where),
                "embeddings are not tied and no output head is stored",
                fold="absent",
                impact="the output head stays at random",
                try_=f"add lm_head.weight, or set {where} to true",
                data={"tied": tied},
            )
        elif tied and head is None:
            module = embedding.name.rpartition(".")[0]
            if module in facts.by_module and not self._usual(facts, module):
                state = facts.by_module[module][0]
                yield self.hit(
                    facts.of_tensor(state),
                    f"embedding is quantized ({state.tensor.word}) and tied: the output head is too",
                    fold="quantized",
                    impact="the output head is as coarse as the embedding",
                    try_="",
                    who="reader",
                    severity="note",
                    data={"word": state.tensor.word},
                )

    @staticmethod
    def _usual(facts: Facts, module: str) -> bool:
        return facts.by_module[module][0].tensor.family.startswith(TOP_LEVEL_QUANTIZERS)

    @staticmethod
    def _generates(facts: Facts) -> bool:
        """Whether the architecture has an output head, and the embedding is of a decoder with layers."""
        words = facts.config.get("architectures")
        text = " ".join(map(str, words)) if isinstance(words, list) else ""
        if text and not any(w in text for w in ("CausalLM", "ConditionalGeneration", "LMHead")):
            return False
        return bool(facts.layers)

    def _both(
        self, facts: Facts, head: StoredTensor, embedding: StoredTensor, where: str
    ) -> Iterator[Hit]:
        if head.dtype != embedding.dtype or head.shape != embedding.shape:
            yield self.hit(
                Subject(
                    tensor=head.name,
                    stored=head.name,
                    file=facts.file_name(head.file_id),
                    config_key=where,
                ),
                f"config says tied, file has {head.name} {head.dtype} {list(head.shape)} and "
                f"{embedding.name} {embedding.dtype} {list(embedding.shape)}",
                fold="forms",
                impact="readers differ in which of the two makes the logits",
                try_=f"set {where} to false, or remove {head.name}",
                who="config",
                severity="disagreement",
                data={"head": head.dtype, "embedding": embedding.dtype},
            )
            return
        rows = _rows_that_differ(facts, head, embedding)
        if rows is None:
            return
        if rows:
            yield self.hit(
                Subject(
                    tensor=head.name,
                    stored=head.name,
                    file=facts.file_name(head.file_id),
                    byte_range=(head.byte_offset, head.byte_offset + head.nbytes),
                    config_key=where,
                ),
                f"config says tied, file has both and they differ in {rows} of {head.shape[0]} rows",
                fold="differ",
                impact="readers that tie use the embedding, the others the head: logits differ",
                try_=f"set {where} to false, or remove {head.name}",
                who="config",
                severity="disagreement",
                data={"rows": rows, "of": head.shape[0]},
            )
        else:
            yield self.hit(
                facts.of_stored(head, head.name),
                "tied embeddings are stored twice and equal",
                fold="equal",
                impact="none",
                try_=f"remove {head.name} to save {head.nbytes} bytes",
                severity="note",
                data={"nbytes": head.nbytes},
            )


def _rows_that_differ(facts: Facts, one: StoredTensor, two: StoredTensor) -> int | None:
    """Rows in which two stored tensors of one form differ; None where bytes may not be read."""
    reader = facts.reader
    if reader is None or not one.readable or not two.readable or not one.shape or one.nbytes < 1:
        return None
    if (one.file_id, one.byte_offset) == (two.file_id, two.byte_offset):
        return 0
    row = one.nbytes // one.shape[0]
    step = max(1, CHUNK_BYTES // max(1, row))
    stride = max(1, -(-one.nbytes // COMPARE_BYTES))
    differ = 0
    try:
        for start in range(0, one.shape[0], step * stride):
            count = min(step, one.shape[0] - start)
            pieces = [
                np.frombuffer(
                    reader.read_bytes("plain", t.file_id, t.byte_offset + start * row, count * row),
                    dtype=np.uint8,
                ).reshape(count, row)
                for t in (one, two)
            ]
            differ += int((pieces[0] != pieces[1]).any(axis=1).sum())
    except QuantscopeError:
        return None
    return differ


class QuantizedEnds(Rule):
    """The output head or the embedding is quantized."""

    code = "QW011"
    name = "quantized-ends"
    kind = "TIED"
    severity = "note"
    page = Page(
        checks="Whether head or embedding are quantized in a family that usually leaves them alone.",
        why="Engines without a quantized head or embedding refuse the model.",
        evidence="Stored planes; proved.",
        proves_not="That anything is wrong: it is worth knowing.",
        sample="ct-quantized-head",
        reports=("vllm#44081", "vllm#54304"),
    )

    def check(self, facts: Facts) -> Iterator[Hit]:
        """Quantized heads and embeddings."""
        for module, states in facts.by_module.items():
            which = "head" if names.is_head(module) else None
            which = "embedding" if names.is_embedding(module) else which
            if which is None or states[0].tensor.family.startswith(TOP_LEVEL_QUANTIZERS):
                continue
            yield self.hit(
                facts.of_tensor(states[0]),
                f"{which} is quantized ({states[0].tensor.word}): few engines support it",
                fold=which,
                impact="none for engines that support it",
                try_="",
                who="reader",
                data={"which": which},
            )


RULES = (TiedHead, QuantizedEnds)
