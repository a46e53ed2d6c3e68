"""One checkpoint of several families, per-expert and fused names, and a head that is tied: producers' own planes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_builder import Raw, read_safetensors_values, write_checkpoint
from quantscope.checkpoint import Checkpoint
from quantscope.cli import main
from quantscope.decode.parts import Window
from quantscope.decode.window import decode_window
from quantscope.session.pipeline import inspect
from variant_oracle import DATA

LAYER = "model.layers.0."


def stored(folder: str, module: str, name: str) -> dict[str, Raw]:
    """Planes of a module of a folder under another module's name, byte for byte."""
    data = (DATA / folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for key, entry in json.loads(data[8 : 8 + length]).items():
        if key.startswith(f"{module}."):
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            shape = tuple(entry["shape"])
            found[name + key[len(module) :]] = Raw(entry["dtype"], shape, data[start:stop])
    assert found
    return found


def oracle(folder: str, module: str) -> Any:
    values = read_safetensors_values(DATA / folder / "oracle.safetensors")
    return np.asarray(values[f"{module}.weight"], np.float32)


def check(folder: Path, wanted: dict[str, tuple[str, str, str]]) -> None:
    """Every tensor is its family's, alone, and decodes as its producer decoded it.

    Args:
        folder: the checkpoint.
        wanted: name -> (family, folder of the oracle, its module).
    """
    with Checkpoint.open(str(folder)) as checkpoint:
        grouping = checkpoint.grouping
        assert not grouping.orphans
        assert not grouping.unrecognised
        assert {t.name: t.family for t in grouping.tensors} == {
            name: family for name, (family, *_) in wanted.items()
        }
        for state in inspect(checkpoint).states:
            assert state.reading is not None
            rows, cols = state.reading.shape[-2:]
            found = decode_window(
                checkpoint.family(state.tensor),
                state.tensor,
                state.reading,
                Window(range(rows), range(cols)),
                checkpoint.reader(),
                as_producer=True,
            )
            np.testing.assert_array_equal(found, oracle(*wanted[state.tensor.name][1:]))


def test_several_families_in_one_checkpoint_keep_to_their_own_planes(tmp_path: Path) -> None:
    from_where = {
        "self_attn.q_proj": ("gptq", "gptqmodel-v2", "w4_square"),
        "self_attn.k_proj": ("gptq", "gptqmodel-v2", "w8"),
        "mlp.up_proj": ("awq_gemm", "autoawq-gemm", "g32"),
        "mlp.down_proj": ("awq_gemm", "autoawq-gemm", "square"),
        "mlp.gate_proj": ("bnb_4bit", "bitsandbytes-variants", "nf4_bs32"),
        "self_attn.v_proj": ("fp8", "gptqmodel-fp8-block", "a"),
    }
    tensors: dict[str, Any] = {}
    for name, (_, folder, module) in from_where.items():
        tensors |= stored(folder, module, LAYER + name)
    config = json.loads((DATA / "gptqmodel-fp8-block" / "config.json").read_text())
    config["quantization_config"] |= {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
    path = write_checkpoint(tmp_path / "c", tensors, config)
    check(path, {f"{LAYER}{name}.weight": where for name, where in from_where.items()})


@pytest.mark.parametrize("split", ["gate_proj", "w1"])
def test_experts_stored_one_by_one_are_one_tensor_each(split: str, tmp_path: Path) -> None:
    modules = ["w4_square", "w8", "w4_row"]
    names = [f"{LAYER}mlp.experts.{number}.{split}" for number in range(len(modules))]
    tensors: dict[str, Any] = {}
    for name, module in zip(names, modules, strict=True):
        tensors |= stored("gptqmodel-v2", module, name)
    config = json.loads((DATA / "gptqmodel-v2" / "config.json").read_text())
    path = write_checkpoint(tmp_path / "c", tensors, config)
    wanted = zip(names, modules, strict=True)
    check(path, {f"{name}.weight": ("gptq", "gptqmodel-v2", module) for name, module in wanted})


def test_fused_names_are_weights_like_any_other(tmp_path: Path) -> None:
    names = {
        "self_attn.qkv_proj": "square",
        "mlp.gate_up_proj": "g32",
        "attention.Wqkv": "whole_row",
    }
    tensors: dict[str, Any] = {}
    for name, module in names.items():
        tensors |= stored("autoawq-gemm", module, LAYER + name)
    config = json.loads((DATA / "autoawq-gemm" / "config.json").read_text())
    path = write_checkpoint(tmp_path / "c", tensors, config)
    check(
        path,
        {f"{LAYER}{name}.weight": ("awq_gemm", "autoawq-gemm", m) for name, m in names.items()},
    )


def test_a_stack_of_experts_is_one_tensor_an_expert(tmp_path: Path) -> None:
    """Stacks of MLX and of bitsandbytes side by side keep apart."""
    tensors: dict[str, Any] = stored("mlx-variants", "experts", LAYER + "mlp.experts.up_proj")
    tensors |= stored("bitsandbytes-variants", "experts", LAYER + "mlp.experts")
    path = write_checkpoint(tmp_path / "c", tensors, {})
    mlx = read_safetensors_values(DATA / "mlx-variants" / "oracle.safetensors")
    bnb = read_safetensors_values(DATA / "bitsandbytes-variants" / "oracle.safetensors")
    wanted = {
        f"{LAYER}mlp.experts.up_proj.{key.removeprefix('experts.')}": value
        for key, value in mlx.items()
        if key.startswith("experts.")
    } | {
        f"{LAYER}mlp.{key}": value for key, value in bnb.items() if key.startswith("experts.")
    }  # fmt: skip
    with Checkpoint.open(str(path)) as checkpoint:
        assert {t.name for t in checkpoint.grouping.tensors} == set(wanted)
        for state in inspect(checkpoint).states:
            assert state.tensor.part is not None
            assert state.tensor.part.kind == "expert"
            assert state.reading is not None
            rows, cols = state.reading.shape[-2:]
            found = decode_window(
                checkpoint.family(state.tensor),
                state.tensor,
                state.reading,
                Window(range(rows), range(cols)),
                checkpoint.reader(),
                as_producer=True,
            )
            np.testing.assert_array_equal(found, np.asarray(wanted[state.tensor.name], np.float32))


def test_a_tied_head_is_the_quantized_embedding_and_nothing_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors: dict[str, Any] = stored("mlx-variants", "a4", "model.embed_tokens")
    config: dict[str, Any] = {
        "model_type": "llama",
        "vocab_size": 9,
        "hidden_size": 128,
        "tie_word_embeddings": True,
        "quantization": {"group_size": 64, "bits": 4, "mode": "affine"},
    }
    path = write_checkpoint(tmp_path / "c", tensors, config)
    check(path, {"model.embed_tokens.weight": ("mlx_affine", "mlx-variants", "a4")})
    main.run(["scan", str(path), "--json", "-"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert not [f for f in findings if "lm_head" in json.dumps(f)], findings
    untied = write_checkpoint(
        tmp_path / "u", tensors | stored("mlx-variants", "a4", "lm_head"), config
    )
    check(
        untied,
        {
            "model.embed_tokens.weight": ("mlx_affine", "mlx-variants", "a4"),
            "lm_head.weight": ("mlx_affine", "mlx-variants", "a4"),
        },
    )
