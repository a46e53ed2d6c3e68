"""Token ids: from files, from text through the checkpoint's own tokenizer, at random."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoint_builder import write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.errors import QuantscopeError, UsageError
from quantscope.probes.model import TokenRequest, Tokens
from quantscope.probes.passage import PASSAGE
from quantscope.probes.tokens import TokensError, has_tokenizer, make_tokens, tokenize

CODE = 'def f(x: int) -> int:\n    return x * 1234567 + 0x1F  # "quoted"\n\n\tprint(f"{x!r}")\n'


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint without a tokenizer."""
    return write_checkpoint(tmp_path / "c", {"a.weight": np.zeros((4, 4), np.float32)}, {})


def made(folder: Path, vocabulary: int = 100, **request: Any) -> Tokens:
    with Checkpoint.open(str(folder)) as checkpoint:
        return make_tokens(TokenRequest(**request), checkpoint, vocabulary)


@pytest.mark.parametrize("kind", ["json", "npy"])
def test_an_ids_file_gives_its_ids_and_their_hash(plain: Path, tmp_path: Path, kind: str) -> None:
    ids = [5, 0, 99, 7, 7]
    path = tmp_path / f"ids.{kind}"
    if kind == "json":
        path.write_text(json.dumps(ids))
    else:
        np.save(path, np.array([ids], dtype=np.int32))
    tokens = made(plain, source="ids", path=str(path), targets=3)
    assert tokens.ids == (5, 0, 99, 7)
    assert tokens.sha256 == hashlib.sha256(np.array(ids[:4], "<i8").tobytes()).hexdigest()
    assert tokens.scored
    assert tokens.source == f"ids from ids.{kind}"
    assert "tokenizer" in tokens.unverified


@pytest.mark.parametrize(
    "text",
    ["{}", "[1, 2.0]", "[1, true]", '["a"]', "[1, 2", "[[1]]", pytest.param("[" * 5000, id="deep")],
)
def test_an_ids_file_that_is_no_list_of_integers_is_refused(
    plain: Path, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "ids.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"no JSON list of integers|no list of token ids"):
        made(plain, source="ids", path=str(path))


def test_an_array_of_floats_or_of_objects_is_no_list_of_ids(plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "ids.npy"
    np.save(path, np.zeros(4))
    with pytest.raises(UsageError, match="float64, not token ids"):
        made(plain, source="ids", path=str(path))
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="no list of token ids"):
        made(plain, source="ids", path=str(path))


def test_random_ids_are_the_same_for_a_seed_and_are_not_scored(plain: Path) -> None:
    first = made(plain, source="random", targets=40, seed=1)
    assert first.ids == made(plain, source="random", targets=40, seed=1).ids
    assert first.ids != made(plain, source="random", targets=40, seed=2).ids
    assert not first.scored
    assert max(first.ids) < 100


def test_without_a_tokenizer_text_is_refused(plain: Path) -> None:
    with pytest.raises(QuantscopeError, match=r"no tokenizer.json|needs the package tokenizers"):
        made(plain, source="passage")


def byte_words() -> list[str]:
    """GPT-2's printable stand-ins of the 256 bytes, in the order of its vocabulary."""
    pytest.importorskip("tokenizers")
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def gguf_with_vocabulary(path: Path, pre: str, model: str = "gpt2", bos: bool = False) -> Path:
    words = [*byte_words(), "th", "the", "12", "<s>"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_merges(["t h", "th e", "1 2"])
    writer.add_bos_token_id(len(words) - 1)
    writer.add_add_bos_token(bos)
    writer.add_tensor("token_embd.weight", np.zeros((len(words), 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.torch
@pytest.mark.parametrize(("pre", "number"), [("smollm", ["1", "2"]), ("gpt-2", ["12"])])
def test_a_gguf_vocabulary_merges_as_its_lists_and_its_pre_tokenizer_say(
    tmp_path: Path, pre: str, number: list[str]
) -> None:
    path = gguf_with_vocabulary(tmp_path / "v.gguf", pre, bos=True)
    words = [*byte_words(), "th", "the", "12", "<s>"]
    with Checkpoint.open(str(path)) as checkpoint:
        assert has_tokenizer(checkpoint)
        found = tokenize("the 12th", checkpoint)
    space = ["Ġ", *number]
    assert [words[i] for i in found.ids] == ["<s>", "the", *space, "th"]
    assert found.bos == f"BOS {len(words) - 1}; conditions only"


@pytest.mark.parametrize(
    ("pre", "model"), [("llama-bpe", "gpt2"), ("smollm", "llama"), ("", "gpt2")]
)
@pytest.mark.torch
def test_a_pre_tokenizer_that_is_not_listed_is_no_guess(
    tmp_path: Path, pre: str, model: str
) -> None:
    path = gguf_with_vocabulary(tmp_path / "v.gguf", pre, model)
    with Checkpoint.open(str(path)) as checkpoint:
        assert not has_tokenizer(checkpoint)
        with pytest.raises(TokensError, match="would be a guess"):
            tokenize("the", checkpoint)


@pytest.mark.torch
def test_a_tokenizer_json_gives_the_ids_of_the_package(plain: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    built = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, "?"))
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    built.save(str(plain / "tokenizer.json"))
    (plain / "t.txt").write_text("a b zebra a")
    tokens = made(plain, source="text", path=str(plain / "t.txt"))
    assert tokens.ids == (0, 1, 2, 0)
    digest = hashlib.sha256((plain / "tokenizer.json").read_bytes()).hexdigest()
    assert tokens.tokenizer_sha256 == digest
    (plain / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(TokensError, match=r"tokenizer.json cannot be used"):
        made(plain, source="passage")
    with pytest.raises(UsageError, match="cannot be read"):
        made(plain, source="text", path=str(plain / "none.txt"))


@pytest.mark.slow
@pytest.mark.torch
def test_the_smollm_vocabulary_gives_the_ids_of_transformers_own_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    folder = os.environ.get("QUANTSCOPE_GGUF_DIR", "")
    name = "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"QUANTSCOPE_GGUF_DIR names no folder with {name}")
    theirs = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
    with Checkpoint.open(str(Path(folder) / name)) as checkpoint:
        for text in (PASSAGE, CODE, "Zahl 2024: 3,14159 — naïve\u00a0café 漢字 🙂\r\n  x"):
            expected = theirs(text, add_special_tokens=False)["input_ids"]
            assert tokenize(text, checkpoint).ids == expected
