"""Good files, odd at first sight: nothing above note. The rules of `false alarms` are among them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders as b
import list_a_fixtures as a
import list_a_gguf as gguf
import list_a_more as more
import numpy as np
import pytest
from quantscope.samples.gguf_edit import Key, Tensor, value_of
from quantscope.samples.st_edit import Entry, StFile, entry
from rules_support import lines, loud, scan

GOOD: dict[str, Callable[[Path], Path]] = {}


def good(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    GOOD[make.__name__] = make
    return make


@good
def gptq_asym(folder: Path) -> Path:
    return a.gptq_model(folder)


@good
def gptq_sym_v2(folder: Path) -> Path:
    config = b.GPTQ_CONFIG | {"sym": True, "checkpoint_format": "gptq_v2"}
    return a.gptq_model(folder, config=config, symmetric=True, stored="as_is")


@good
def gptq_without_g_idx(folder: Path) -> Path:
    return a.gptq_model(folder, g_idx=False)


@good
def gptq_eight_bits(folder: Path) -> Path:
    return a.gptq_model(
        folder, config=b.GPTQ_CONFIG | {"bits": 8, "sym": True}, bits=8, symmetric=True
    )


@good
def gptq_undeclared_by_a_known_producer(folder: Path) -> Path:
    config = {k: v for k, v in b.GPTQ_CONFIG.items() if k != "checkpoint_format"}
    return a.gptq_model(
        folder, config=config | {"provider": "auto-round", "autoround_version": "0.4"}
    )


@good
def gptq_act_order(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for planes in modules.values():
            order = np.random.default_rng(0).permutation(256)
            planes["g_idx"].put(planes["g_idx"].array()[order])

    return a.gptq_model(folder, change, b.GPTQ_CONFIG | {"desc_act": True})


@good
def gptq_channel_wise(folder: Path) -> Path:
    config = b.GPTQ_CONFIG | {"group_size": -1}
    return a.gptq_model(folder, config=config, group=256)


@good
def gptq_mixture_of_experts(folder: Path) -> Path:
    names = tuple(f"mlp.experts.{e}.{n}" for e in range(4) for n in ("gate_proj", "up_proj"))
    modules = b.layered(lambda seed: b.gptq(seed=seed), names=names)
    for layer in range(2):
        modules[f"model.layers.{layer}.mlp.gate"] = b.plain(4)
    return b.write(folder, b.model(modules), b.config(b.GPTQ_CONFIG, num_experts=4))


@good
def awq_gemm(folder: Path) -> Path:
    return a.awq_model(folder)


@good
def awq_with_a_plain_router(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for layer in range(2):
            modules[f"model.layers.{layer}.mlp.gate"] = b.plain(8)

    return a.awq_model(folder, change, modules_to_not_convert=["gate"])


@good
def ct_symmetric(folder: Path) -> Path:
    return a.ct_model(folder, b.ct_config())


@good
def ct_asymmetric(folder: Path) -> Path:
    return a.ct_model(folder, b.ct_config(symmetric=False), symmetric=False)


@good
def ct_three_bits_dense(folder: Path) -> Path:
    return a.ct_model(folder, b.ct_config(num_bits=3), bits=3)


@good
def ct_three_bits_of_an_old_writer(folder: Path) -> Path:
    a.a021(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["version"] = "0.12.2"
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@good
def ct_two_groups_by_pattern(folder: Path) -> Path:
    config = b.ct_config()
    groups = config["config_groups"]
    groups["group_0"]["targets"] = ["re:.*q_proj", "re:.*k_proj"]
    eight = json.loads(json.dumps(groups["group_0"]))
    eight["targets"], eight["weights"]["num_bits"] = ["re:.*v_proj", "re:.*o_proj"], 8
    groups["group_1"] = eight

    def change(modules: Any) -> None:
        for number, name in enumerate(modules):
            if name.endswith(("v_proj", "o_proj")):
                modules[name] = b.ct_pack(bits=8, seed=number)

    return a.ct_model(folder, config, change)


@good
def ct_vision_tower_ignored_by_pattern(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for layer in range(3):
            modules[f"visual.blocks.{layer}.attn.q_proj"] = b.plain()

    return a.ct_model(folder, b.ct_config(ignore=("lm_head", "re:visual.*")), change)


@good
def ct_untied_with_a_plain_head(folder: Path) -> Path:
    tensors = b.model(b.layered(lambda seed: b.ct_pack(seed=seed)), head=True)
    return b.write(folder, tensors, b.config(b.ct_config(), tie_word_embeddings=False))


@good
def recipe_with_patterns_and_config_with_names(folder: Path) -> Path:
    names = [f"model.layers.{i}.mlp.router" for i in range(2)]

    def change(modules: Any) -> None:
        for name in names:
            modules[name] = b.plain(8)

    a.ct_model(folder, b.ct_config(ignore=("lm_head", *names)), change)
    recipe = "default_stage:\n  default_modifiers:\n    QuantizationModifier:\n      ignore: ['re:.*router', 're:.*lm_head']\n"
    (folder / "recipe.yaml").write_text(recipe)
    return folder


@good
def nvfp4_of_a_fusing_producer(folder: Path) -> Path:
    return a.nvfp4_model(folder)


@good
def nvfp4_modelopt(folder: Path) -> Path:
    return a.nvfp4_model(folder, flavour="modelopt")


@good
def nvfp4_fused_on_disk(folder: Path) -> Path:
    return a.nvfp4_model(folder, None, "modelopt", ("self_attn.qkv_proj",))


@good
def nvfp4_quantized_head(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.nvfp4(seed=seed, flavour="modelopt"))
    modules["lm_head"] = b.nvfp4(seed=77, flavour="modelopt")
    a.share(modules)
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.embed_tokens"]}
    return b.write(folder, b.model(modules), b.config(config, tie_word_embeddings=False))


@good
def mxfp4(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.mxfp4(seed=seed))
    config = b.ct_config(
        "mxfp4-pack-quantized", num_bits=4, type="float", group_size=32, scale_dtype="torch.uint8"
    )
    return b.write(folder, b.model(modules), b.config(config))


@good
def fp8_block(folder: Path) -> Path:
    return a.fp8_model(folder)


@good
def fp8_block_with_power_of_two_scales(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for planes in modules.values():
            scale = planes["weight_scale_inv"].array()
            planes["weight_scale_inv"].put(2.0 ** np.ceil(np.log2(scale)))

    return a.fp8_model(folder, change, b.FP8_BLOCK | {"scale_fmt": "ue8m0"})


@good
def fp8_channel(folder: Path) -> Path:
    config = b.ct_config(
        "float-quantized", num_bits=8, type="float", strategy="channel", group_size=None
    )
    config["config_groups"]["group_0"]["input_activations"] = {
        "num_bits": 8,
        "type": "float",
        "dynamic": True,
        "strategy": "token",
    }
    return a.fp8_model(folder, config=config, scale="channel", suffix="weight_scale", dtype="BF16")


@good
def fp8_tensor_static(folder: Path) -> Path:
    def change(modules: Any) -> None:
        for number, planes in enumerate(modules.values()):
            data = np.array(0.01 * (1 + number % 3), "<f4").tobytes()
            planes["input_scale"] = Entry(dtype="F32", shape=[], data=data)

    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    return a.fp8_model(folder, change, config, scale="tensor", suffix="weight_scale")


@good
def scaled_fp8_of_an_image_model(folder: Path) -> Path:
    modules = {
        f"transformer_blocks.{layer}.attn.{n}": b.fp8(
            seed=layer, scale="tensor", suffix="scale_weight"
        )
        for layer in range(2)
        for n in ("to_q", "to_k", "to_v")
    }
    tensors = {f"{m}.{s}": t for m, planes in modules.items() for s, t in planes.items()}
    tensors["scaled_fp8"] = Entry(dtype="F8_E4M3", shape=[0], data=b"")
    folder.mkdir()
    StFile(tensors=tensors).write(folder / "image.safetensors")
    return folder / "image.safetensors"


@good
def bitsandbytes(folder: Path) -> Path:
    return more.bnb_model(folder)


@good
def mlx_four_bits(folder: Path) -> Path:
    return more.mlx_model(folder, {"group_size": 64, "bits": 4, "mode": "affine"})


@good
def mlx_with_an_override(folder: Path) -> Path:
    name = "model.layers.0.self_attn.k_proj"
    section = {"group_size": 64, "bits": 4, name: {"group_size": 64, "bits": 6}}
    return more.mlx_model(folder, section, lambda m: m.__setitem__(name, more.mlx(bits=6)))


@good
def mlx_with_a_dense_module(folder: Path) -> Path:
    name = "model.layers.0.self_attn.k_proj"
    section = {"group_size": 64, "bits": 4, name: False}
    return more.mlx_model(folder, section, lambda m: m.__setitem__(name, b.plain()))


@good
def kv_scales_of_some_layers(folder: Path) -> Path:
    return more.with_kv(folder, more.kv_names(range(3, 4)), more.KV, layers=4)


@good
def int8_per_channel(folder: Path) -> Path:
    modules = b.layered(lambda seed: more.int8(64, 256, seed))
    config = b.ct_config("int-quantized", num_bits=8, strategy="channel", group_size=None)
    return b.write(folder, b.model(modules), b.config(config))


@good
def plain_model(folder: Path) -> Path:
    return b.write(folder, b.model(b.layered(lambda seed: b.plain(seed=seed))), b.config())


@good
def an_empty_tensor(folder: Path) -> Path:
    a.ct_model(folder, b.ct_config())
    file = StFile.read(folder / "model.safetensors")
    file.tensors["marker"] = Entry(dtype="F32", shape=[0], data=b"")
    file.write(folder / "model.safetensors")
    return folder


@good
def uneven_shards_one_with_metadata_only(folder: Path) -> Path:
    tensors = StFile.read(a.ct_model(folder, b.ct_config()) / "model.safetensors").tensors
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = ([], names[:1], names[1:])
    weight_map = {}
    for number, part in enumerate(parts):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        weight_map |= dict.fromkeys(part, file)
        StFile(tensors={n: tensors[n] for n in part}, metadata={"format": "pt"}).write(
            folder / file
        )
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@good
def layers_of_two_makes(folder: Path) -> Path:
    modules = {}
    for layer in range(6):
        names = (
            ("self_attn.q_proj", "self_attn.o_proj")
            if layer % 3 == 2
            else ("linear_attn.in_proj", "linear_attn.out_proj")
        )
        for number, name in enumerate(names):
            modules[f"model.layers.{layer}.{name}"] = b.gptq(seed=layer * 10 + number)
    return b.write(folder, b.model(modules, layers=6), b.config(b.GPTQ_CONFIG, num_hidden_layers=6))


@good
def first_layer_dense_the_others_experts(folder: Path) -> Path:
    modules = {"model.layers.0.mlp.up_proj": b.gptq(seed=1)}
    for layer in (1, 2, 3):
        for expert in range(2):
            modules[f"model.layers.{layer}.mlp.experts.{expert}.up_proj"] = b.gptq(
                seed=layer + expert
            )
        modules[f"model.layers.{layer}.mlp.gate"] = b.plain(2)
    config = b.config(b.GPTQ_CONFIG, num_hidden_layers=4, n_routed_experts=2)
    return b.write(folder, b.model(modules, layers=4), config)


@good
def a_prediction_layer_beyond_the_stack(folder: Path) -> Path:
    modules = b.layered(lambda seed: b.fp8(seed=seed), layers=3)
    tensors = b.model(modules, layers=3)
    config = b.config(b.FP8_BLOCK, num_hidden_layers=2, num_nextn_predict_layers=1)
    return b.write(folder, tensors, config)


@good
def gguf_file(folder: Path) -> Path:
    return gguf.written(folder, b.small_gguf())


@good
def gguf_experts_instead_of_dense(folder: Path) -> Path:
    file = b.small_gguf(
        general__architecture="qwen3moe",
        qwen3moe__block_count=1,
        qwen3moe__embedding_length=256,
        qwen3moe__expert_count=4,
        llama__feed_forward_length=None,
    )
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        file.drop(f"blk.0.{name}.weight")
        rows, cols = (256, 128) if name == "ffn_down" else (128, 256)
        file.tensors.append(
            Tensor(
                name=f"blk.0.{name}_exps.weight",
                dims=[cols, rows, 4],
                type_id=8,
                data=b.q8_0(4 * rows, cols),
            )
        )
    file.tensors.append(
        Tensor(name="blk.0.ffn_gate_inp.weight", dims=[256, 4], type_id=0, data=b.f32_bytes(1024))
    )
    return gguf.written(folder, file)


@good
def gguf_padded_vocabulary(folder: Path) -> Path:
    file = b.small_gguf()
    file.keys.append(gguf.tokens(60))
    return gguf.written(folder, file)


@good
def gguf_padded_tail(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(Tensor(name="blk.0.ffn_norm.weight", dims=[5], type_id=0, data=bytes(20)))
    return gguf.written(folder, file)


@good
def gguf_rope_freqs(folder: Path) -> Path:
    file = b.small_gguf()
    file.tensors.append(
        Tensor(name="rope_freqs.weight", dims=[32], type_id=0, data=b.f32_bytes(32))
    )
    return gguf.written(folder, file)


@good
def gguf_first_part_with_keys_only(folder: Path) -> Path:
    file = b.small_gguf()
    folder.mkdir()
    for number, tensors in enumerate(([], file.tensors)):
        part = b.gguf({})
        part.keys = list(file.keys) if number == 0 else []
        part.tensors = list(tensors)
        for name, kind, value in (
            ("split.no", 2, number),
            ("split.count", 2, 2),
            ("split.tensors.count", 5, len(file.tensors)),
        ):
            part.keys.append(Key(name=name, type_id=kind, raw=value_of(kind, value)))
        part.write(folder / f"model-Q8_0-{number + 1:05d}-of-00002.gguf")
    return folder


@good
def gguf_with_a_type_of_its_own_for_the_head(folder: Path) -> Path:
    """llama-quantize with --output-tensor-type or --token-embedding-type: half of this file is F32."""
    file = b.small_gguf()
    ends = [
        Tensor(name=name, dims=[256, 2048], type_id=0, data=b.f32_bytes(256 * 2048))
        for name in ("token_embd.weight", "output.weight")
    ]
    file.tensors[:1] = ends
    return gguf.written(folder, file)


@good
def gguf_without_a_file_type(folder: Path) -> Path:
    return gguf.written(folder, b.small_gguf(general__file_type=None), "model.gguf")


@good
def gpt_oss_experts(folder: Path) -> Path:
    planes = {}
    for layer in range(2):
        base = f"model.layers.{layer}.mlp.experts"
        for name, rows in (("gate_up_proj", 128), ("down_proj", 64)):
            made = [b.mxfp4(rows, 256, seed=e) for e in range(4)]
            blocks = np.stack([m["weight_packed"].array().reshape(rows, 8, 16) for m in made])
            scales = np.stack([m["weight_scale"].array() for m in made])
            planes[f"{base}.{name}_blocks"] = entry("U8", blocks)
            planes[f"{base}.{name}_scales"] = entry("U8", scales)
        planes[f"model.layers.{layer}.mlp.router.weight"] = b.f16(b.weights(4, 256))
    tensors = b.model({}) | planes
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.mlp.router"]}
    return b.write(folder, tensors, b.config(section, num_local_experts=4))


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_good_file_is_quiet(name: str, tmp_path: Path) -> None:
    inspection = scan(GOOD[name](tmp_path / "checkpoint"))
    assert not [entry for entry in inspection.rules_skipped if "failed" in entry[1]]
    assert not lines(loud(inspection))
    assert len(inspection.findings) <= 10


def test_a_good_file_stays_quiet_when_everything_is_read(tmp_path: Path) -> None:
    for number, name in enumerate(("gptq_asym", "nvfp4_modelopt", "gguf_file", "fp8_block")):
        inspection = scan(GOOD[name](tmp_path / str(number)), "deep")
        assert not lines(loud(inspection)), name
