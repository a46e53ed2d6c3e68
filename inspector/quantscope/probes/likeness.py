"""Whether the logits of checkpoints can be compared at all, told from headers alone."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quantscope.checkpoint import Checkpoint
from quantscope.model import Json


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of the model it belongs to; None for what it does not say."""

    names_of: str
    """Whose words the architecture is in: `config.json` or `gguf`. The two name models differently."""
    architecture: str | None
    vocabulary: int | None
    width: int | None


def model_facts(checkpoint: Checkpoint) -> ModelFacts:
    """Architecture, vocabulary and hidden width as GGUF metadata or config.json declare them.

    Keys: `general.architecture`, `<architecture>.embedding_length` and the rows of `token_embd.weight`
    (GGUF specification); `model_type`, `vocab_size`, `hidden_size` (transformers' config classes).
    """
    for file in checkpoint.opened.files:
        architecture = file.metadata.get("general.architecture")
        if file.kind == "gguf" and isinstance(architecture, str):
            rows = [
                t.shape[-2] for t in checkpoint.opened.tensors if _is_embedding(t.name, t.shape)
            ]
            return ModelFacts(
                names_of="gguf",
                architecture=architecture,
                vocabulary=rows[0] if rows else None,
                width=_count(file.metadata.get(f"{architecture}.embedding_length")),
            )
    declared = checkpoint.declarations.model
    nested = declared.get("text_config")
    config = nested if isinstance(nested, dict) else declared
    architecture = config.get("model_type")
    return ModelFacts(
        names_of="config.json",
        architecture=architecture if isinstance(architecture, str) else None,
        vocabulary=_count(config.get("vocab_size")),
        width=_count(config.get("hidden_size")),
    )


def why_unlike(checkpoints: Sequence[Checkpoint]) -> str | None:
    """Why no logits of these checkpoints can be compared; None where headers speak against nothing.

    A checkpoint that says nothing of its model is taken to be of the first one's that does.
    """
    known = [facts for facts in map(model_facts, checkpoints) if facts.architecture is not None]
    if not known:
        return "nothing says which model this is: no config.json with model_type, no GGUF metadata"
    first = known[0]
    for other in known[1:]:
        if first.names_of == other.names_of and first.architecture != other.architecture:
            return f"architectures differ: {first.architecture} and {other.architecture}"
        if None not in (first.vocabulary, other.vocabulary) and (
            first.vocabulary != other.vocabulary
        ):
            return f"vocabularies differ: {first.vocabulary} and {other.vocabulary}"
        if None not in (first.width, other.width) and first.width != other.width:
            return f"widths differ: hidden size {first.width} and {other.width}"
    return None


def _is_embedding(name: str, shape: tuple[int, ...]) -> bool:
    return name == "token_embd.weight" and len(shape) > 1


def _count(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
