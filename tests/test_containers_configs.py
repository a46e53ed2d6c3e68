"""Config files beside the weights: read in bounds, odd ones told, bytes hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from quantscope.containers.configs import sha256_of
from quantscope.containers.detect import open_path
from quantscope.containers.records import ContainerIssue, Opened
from safetensors.numpy import save_file


def _issue(opened: Opened, slug: str) -> ContainerIssue:
    (issue,) = [one for one in opened.issues if one.name == slug]
    return issue


def _configs(tmp_path: Path, **files: str | bytes) -> Opened:
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "model.safetensors")
    for name, text in files.items():
        data = text.encode() if isinstance(text, str) else text
        (tmp_path / name.replace("__", ".")).write_bytes(data)
    opened, sources = open_path(str(tmp_path))
    sources.close()
    return opened


def test_config_files_are_read_and_hashed(tmp_path: Path) -> None:
    opened = _configs(
        tmp_path,
        config__json='{"quantization_config": {"bits": 4}}',
        tokenizer__json='{"big": 1}',
        chat_template__jinja="{{ x }}",
        recipe__yaml="default_stage:\n  a: {bits: 4, when: 2020-01-01}\n",
        README__md="not read",
    )
    by_name = {config.name: config for config in opened.configs}
    assert set(by_name) == {"config.json", "tokenizer.json", "chat_template.jinja", "recipe.yaml"}
    assert by_name["config.json"].data == {"quantization_config": {"bits": 4}}
    assert by_name["tokenizer.json"].data is None
    assert by_name["tokenizer.json"].sha256 == hashlib.sha256(b'{"big": 1}').hexdigest()
    assert by_name["recipe.yaml"].data == {
        "default_stage": {"a": {"bits": 4, "when": "2020-01-01"}}
    }
    for config in opened.configs:
        assert config.sha256 == hashlib.sha256((tmp_path / config.name).read_bytes()).hexdigest()
    assert not opened.issues


@pytest.mark.parametrize(
    ("data", "slug", "parsed"),
    [
        (b"{", "config-unreadable", False),
        (b"\xff\xfe{\0}\0", "config-unreadable", False),
        (b'{"a": "\xff"}', "config-unreadable", False),
        (b"[" * 200_000, "config-unreadable", False),
        (b'{"a": ' + b"9" * 100_000 + b"}", "config-unreadable", False),
        (b"\xef\xbb\xbf{}", "config-bom", True),
        (b'{"bits": 4, "bits": 8}', "config-duplicate-key", True),
        (b"[1]", "config-not-object", True),
        (b" " * (17 << 20), "config-too-large", False),
    ],
    ids=["cut", "utf-16", "utf-8", "deep", "digits", "bom", "twice", "list", "large"],
)
def test_odd_config_files_are_told_and_the_weights_open(
    data: bytes, slug: str, parsed: bool, tmp_path: Path
) -> None:
    opened = _configs(tmp_path, config__json=data)
    (config,) = opened.configs
    assert _issue(opened, slug).file == "config.json"
    assert (config.error is None) == parsed
    assert (config.data is not None) == parsed
    assert len(opened.tensors) == 1


LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old},*{old}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: &a [*a]",
        "- " * 5_000,
        "!!python/object/apply:os.system [echo]",
        "a: !!python/object/apply:compressed_tensors.x.Y [a, b]",
        "a: !!python/object/apply:compressed_tensors.x.Y {a: b}",
        "a: !!python/name:compressed_tensors.x.Y ''",
        "a: [",
        "\0",
        "a: b: c",
    ],
    ids=["laughs", "loop", "deep", "object", "two", "map", "name", "cut", "zero", "colons"],
)
def test_hostile_yaml_is_refused(text: str, tmp_path: Path) -> None:
    opened = _configs(tmp_path, recipe__yaml=text)
    (config,) = opened.configs
    assert config.data is None
    assert config.error
    assert _issue(opened, "config-unreadable")


def test_an_enumeration_of_a_recipe_is_its_text(tmp_path: Path) -> None:
    """As llm-compressor 0.14.0.1 writes the recipe of a GPTQModifier whose groups state an order."""
    tag = "!!python/object/apply:compressed_tensors.quantization.quant_args.ActivationOrdering"
    opened = _configs(tmp_path, recipe__yaml=f"weights:\n  actorder: {tag} [\n    static]\n")
    assert opened.configs[0].data == {"weights": {"actorder": "static"}}
    assert opened.configs[0].error is None


def test_yaml_aliases_that_stay_small_are_followed(tmp_path: Path) -> None:
    opened = _configs(tmp_path, recipe__yaml="a: &a {bits: 4}\nb: *a\n")
    assert opened.configs[0].data == {"a": {"bits": 4}, "b": {"bits": 4}}


def test_a_large_tokenizer_is_hashed_when_asked(tmp_path: Path) -> None:
    data = b"[" + b" " * (9 << 20) + b"]"
    opened = _configs(tmp_path, tokenizer__json=data)
    (config,) = opened.configs
    assert config.sha256 is None
    assert sha256_of(config) == hashlib.sha256(data).hexdigest()
    assert sha256_of(config, limit=100) is None
