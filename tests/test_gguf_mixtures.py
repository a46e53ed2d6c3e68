"""Recipes of general.file_type against the choices that llama-quantize itself prints (tests/data)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quantscope.checkpoint import Checkpoint
from quantscope.infer.gguf_mixtures import (
    FILE_TYPES,
    MixtureModel,
    expected_types,
    read_model,
)

PRINTED: dict[str, Any] = json.loads(
    (Path(__file__).parent / "data" / "gguf_mixtures.json").read_text()
)
CONVERTED = {"F32", "F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4_MOE"}
"""Recipes that the converter writes too, so that more than one type is right."""


def _letter(code: str) -> str:
    position = ord(code) - 97 if code.islower() else ord(code) - 65 + 26
    return str(PRINTED["legend"][position])


def _shapes(model: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(shape) for name, shape in model["rest"].items()}
    for layer in range(model["n_layer"]):
        for name, shape in model["layer"].items():
            shapes[f"blk.{layer}.{name}"] = tuple(shape)
    return shapes


@pytest.mark.parametrize("name", sorted(PRINTED["models"]))
def test_recipe_gives_the_types_that_llama_quantize_chooses(name: str) -> None:
    model = PRINTED["models"][name]
    shapes = _shapes(model)
    checked = 0
    for file_type, cases in model["types"].items():
        for imatrix in (False, True):
            letters = cases["imatrix" if imatrix and "imatrix" in cases else "plain"]
            facts = MixtureModel(
                file_type=int(file_type),
                n_layer=model["n_layer"],
                architecture=model["architecture"],
                n_head=model["n_head"],
                n_head_kv=model["n_head_kv"],
                n_expert=model["n_expert"],
                imatrix=imatrix,
            )
            explained = expected_types(facts, shapes)
            for (tensor, _), letter in zip(shapes.items(), letters, strict=True):
                found, printed = explained[tensor], _letter(letter)
                assert printed in found.types, (facts.recipe, imatrix, tensor, printed, found)
                exact = facts.recipe not in CONVERTED and "attn_qkv" not in tensor
                if exact and "gate_inp" not in tensor:
                    assert found.types == {printed}, (facts.recipe, tensor, found)
                checked += 1
    assert checked > 2000


def test_a_reason_names_row_length_and_fallback() -> None:
    facts = MixtureModel(file_type=15, n_layer=2, n_head=4, n_head_kv=1)
    found = expected_types(facts, {"blk.0.attn_q.weight": (1024, 640), "output.weight": (9, 640)})
    assert found["blk.0.attn_q.weight"].types == {"Q5_0"}
    assert (
        found["blk.0.attn_q.weight"].reason
        == "row length 640 is not a multiple of 256: Q4_K falls back to Q5_0"
    )
    assert found["output.weight"].types == {"Q8_0"}


def test_without_a_word_on_an_importance_matrix_both_cases_are_explained() -> None:
    shapes = {f"blk.{i}.ffn_down.weight": (256, 512) for i in range(16)}
    unknown = MixtureModel(file_type=2, n_layer=16)
    assert expected_types(unknown, shapes)["blk.0.ffn_down.weight"].types == {"Q4_0", "Q4_1"}
    assert expected_types(unknown, shapes)["blk.9.ffn_down.weight"].types == {"Q4_0"}


def test_a_guessed_file_type_is_read_without_its_flag_and_an_unknown_one_explains_nothing() -> None:
    assert MixtureModel(file_type=1024 + 15, n_layer=2).recipe == "Q4_K_M"
    assert not expected_types(MixtureModel(file_type=99, n_layer=2), {"a.weight": (4, 256)})
    assert len(FILE_TYPES) == 36


def test_keys_of_any_kind_do_not_raise() -> None:
    assert read_model({}) is None
    odd = {
        "general.file_type": 15,
        "general.architecture": "llama",
        "llama.block_count": "two",
        "llama.attention.head_count_kv": [0, 4, 4],
        "llama.attention.head_count": 8,
    }
    found = read_model(odd)
    assert found is not None
    assert (found.n_layer, found.n_head_kv, found.shared_heads) == (0, 4, 2)
    assert expected_types(found, {"": (), "blk.99999.attn_v.weight": (0, 0), "output.weight": (4,)})


@pytest.mark.real
@pytest.mark.parametrize(
    ("folder", "unexplained"),
    [("gguf-q4_k_m", 0), ("gguf-iq1_s-imat", 0), ("gguf-q2_k", 0), ("gguf-split-q4_k_m", 0),
     ("gguf-tq1_0", 0), ("gguf-f16-bigendian", 0), ("gguf-mxfp4", 14), ("gguf-nvfp4", 14)],
)  # fmt: skip
def test_only_hand_made_mixtures_stay_unexplained(
    real_set: Path, folder: str, unexplained: int
) -> None:
    with Checkpoint.open(str(real_set / folder)) as checkpoint:
        model = read_model(checkpoint.opened.files[0].metadata)
        assert model is not None
        tensors = checkpoint.opened.tensors
        explained = expected_types(model, {t.name: t.shape for t in tensors})
        odd = [t.name for t in tensors if t.dtype not in explained[t.name].types]
    assert len(odd) == unexplained
