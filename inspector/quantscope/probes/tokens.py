"""Token ids for a check: from a file, from text through the checkpoint's own tokenizer, or drawn at random."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.errors import MissingExtraError, QuantscopeError, UsageError
from quantscope.extras import install_hint
from quantscope.model import Json
from quantscope.probes.model import TokenRequest, Tokens
from quantscope.probes.passage import PASSAGE, SOURCE

MAX_TEXT_BYTES = 4 << 20
MAX_TOKENIZER_BYTES = 128 << 20
MAX_IDS_BYTES = 64 << 20
NO_TOKENIZER_HINT = "give ids with --tokens FILE (JSON list or .npy), or random ids for KL only with --tokens random"
GPT2_LIKE = ("smollm", "gpt-2", "gpt2", "smollm2")
"""GGUF pre-tokenizers whose rule is digits one by one and GPT-2's byte-level split (llama.cpp, llama-vocab)."""


class TokensError(QuantscopeError):
    """No token ids can be had the way that was asked for."""


def make_tokens(request: TokenRequest, checkpoint: Checkpoint, vocabulary: int) -> Tokens:
    """Ids of `targets` + 1 tokens at most.

    Args:
        request: source and count.
        checkpoint: whose tokenizer is used for text.
        vocabulary: rows of the embedding; an id outside is refused.

    Raises:
        TokensError: no tokenizer for text, or ids that do not fit the vocabulary.
        UsageError: the ids file is not what it should be.
    """
    wanted = request.targets + 1
    if request.source == "random":
        generator = np.random.default_rng(request.seed)
        ids = [int(i) for i in generator.integers(0, vocabulary, size=wanted)]
        return _tokens(ids, f"random, seed {request.seed}", scored=False, bos="none", unverified=())
    if request.source == "ids":
        ids = _ids_file(Path(request.path))[:wanted]
        _check(ids, vocabulary)
        source = f"ids from {Path(request.path).name}"
        return _tokens(
            ids, source, scored=True, bos="as given", unverified=("tokenizer", "positions")
        )
    text, source = (PASSAGE, SOURCE) if request.source == "passage" else _text(Path(request.path))
    made = tokenize(text, checkpoint)
    ids = made.ids[:wanted]
    _check(ids, vocabulary)
    return _tokens(
        ids,
        f"{source}; {made.tokenizer}",
        scored=True,
        bos=made.bos,
        unverified=("tokenizer", "chat template", "positions"),
        tokenizer_sha256=made.sha256,
    )


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    """Whether text can be tokenized without guessing, as far as headers tell."""
    if (Path(checkpoint.opened.root) / "tokenizer.json").is_file():
        return True
    return any(
        file.metadata.get("tokenizer.ggml.model") == "gpt2"
        and file.metadata.get("tokenizer.ggml.pre", "") in GPT2_LIKE
        for file in checkpoint.opened.files
    )


class Tokenized(NamedTuple):
    """Ids, which tokenizer gave them, what stands first, and the tokenizer's hash."""

    ids: list[int]
    tokenizer: str
    bos: str
    sha256: str


def tokenize(text: str, checkpoint: Checkpoint) -> Tokenized:
    """Ids of a text through the checkpoint's own tokenizer.

    Raises:
        TokensError: the checkpoint has no tokenizer that can be built without guessing.
        MissingExtraError: `tokenizers` is not installed.
    """
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError(
            "text needs the package tokenizers", hint=install_hint("probe")
        ) from None
    file = Path(checkpoint.opened.root) / "tokenizer.json"
    if file.is_file():
        data = _bounded(file, MAX_TOKENIZER_BYTES)
        try:
            built = tokenizers.Tokenizer.from_buffer(data)
            ids = list(built.encode(text, add_special_tokens=True).ids)
        except Exception as problem:  # boundary: the package raises plain Exception for a bad file
            raise TokensError(
                f"tokenizer.json cannot be used: {str(problem)[:200]}",
                hint=NO_TOKENIZER_HINT,
                source="tokenizer.json",
            ) from None
        return Tokenized(
            ids,
            "tokenizer.json",
            "as tokenizer.json adds; conditions only",
            hashlib.sha256(data).hexdigest(),
        )
    for opened in checkpoint.opened.files:
        if opened.kind == "gguf" and "tokenizer.ggml.model" in opened.metadata:
            return _gguf_tokenize(text, checkpoint, opened.file_id, opened.metadata)
    raise TokensError(
        "the checkpoint has no tokenizer.json and no GGUF vocabulary",
        hint=NO_TOKENIZER_HINT,
    )


def _gguf_tokenize(
    text: str, checkpoint: Checkpoint, file_id: int, metadata: dict[str, Json]
) -> Tokenized:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "")
    if kind != "gpt2" or pre not in GPT2_LIKE:
        raise TokensError(
            f"the GGUF vocabulary ({kind}, pre-tokenizer {pre or 'not stated'}) is not one of "
            f"{', '.join(GPT2_LIKE)}: building it would be a guess",
            hint=NO_TOKENIZER_HINT,
        )
    words = read_strings(checkpoint, file_id, "tokenizer.ggml.tokens")
    joined = read_strings(checkpoint, file_id, "tokenizer.ggml.merges")
    digest = hashlib.sha256("\n".join([*words, "", *joined]).encode()).hexdigest()
    try:
        model = models.BPE(
            vocab={word: i for i, word in enumerate(words)},
            merges=[tuple(m.split(" ", 1)) for m in joined],
        )
    except Exception as problem:  # boundary: merges that name no token
        raise TokensError(
            f"the GGUF vocabulary cannot be used: {str(problem)[:200]}", hint=NO_TOKENIZER_HINT
        ) from None
    built = tokenizers.Tokenizer(model)
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if pre.startswith("smollm"):
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    built.pre_tokenizer = pre_tokenizers.Sequence(steps)
    built.decoder = decoders.ByteLevel()
    ids = list(built.encode(text, add_special_tokens=False).ids)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") is True and isinstance(bos, int):
        return Tokenized(
            [bos, *ids], f"GGUF vocabulary ({pre})", f"BOS {bos}; conditions only", digest
        )
    return Tokenized(ids, f"GGUF vocabulary ({pre})", "none", digest)


def read_strings(checkpoint: Checkpoint, file_id: int, key: str) -> list[str]:
    """A long string array of a GGUF, which opening had skipped."""
    from quantscope.containers.gguf_kv import read_array

    file = checkpoint.file(file_id)
    value = file.metadata.get(key)
    if isinstance(value, list):
        return [str(item) for item in value]
    if not isinstance(value, dict):
        raise TokensError(f"the GGUF has no {key}", source=key)
    words = read_array(checkpoint.sources[file_id], value, byte_order=file.byte_order)
    return [str(item) for item in words]


def _ids_file(path: Path) -> list[int]:
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False).ravel()
            if array.dtype.kind not in "iu":
                raise UsageError(f"{path.name} holds {array.dtype}, not token ids")
            return [int(i) for i in array]
        loaded = json.loads(_bounded(path, MAX_IDS_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(f"{path.name} is no list of token ids: {problem}") from None
    if not isinstance(loaded, list) or not all(
        isinstance(i, int) and not isinstance(i, bool) for i in loaded
    ):
        raise UsageError(f"{path.name} is no JSON list of integers")
    return loaded


def _text(path: Path) -> tuple[str, str]:
    try:
        data = path.read_bytes()[:MAX_TEXT_BYTES]
        return data.decode("utf-8"), f"text of {path.name}"
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path.name} cannot be read as UTF-8 text: {problem}") from None


def _check(ids: list[int], vocabulary: int) -> None:
    if len(ids) < 2:
        raise TokensError("fewer than two tokens: nothing can be scored")
    outside = [i for i in ids if not 0 <= i < vocabulary]
    if outside:
        raise TokensError(
            f"token id {outside[0]} lies outside the vocabulary of {vocabulary}",
            hint="the tokenizer belongs to another model, or ids were made by another one",
        )


def _tokens(
    ids: list[int],
    source: str,
    *,
    scored: bool,
    bos: str,
    unverified: tuple[str, ...],
    tokenizer_sha256: str | None = None,
) -> Tokens:
    digest = hashlib.sha256(np.asarray(ids, dtype="<i8").tobytes()).hexdigest()
    return Tokens(
        ids=tuple(ids),
        source=source,
        sha256=digest,
        scored=scored,
        bos=bos,
        unverified=unverified,
        tokenizer_sha256=tokenizer_sha256,
    )


def _bounded(path: Path, limit: int) -> bytes:
    """A file's bytes.

    Raises:
        TokensError: it is larger than any file of its kind.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TokensError(f"{path.name} is larger than {limit >> 20} MiB", source=path.name)
    return data
