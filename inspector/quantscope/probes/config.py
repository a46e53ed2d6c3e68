"""The model that a checkpoint's config describes, built without weights, without its code and within bounds."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.containers.records import OpenedFile
from quantscope.errors import MissingExtraError, QuantscopeError
from quantscope.extras import install_hint

QUANT_KEYS = ("quantization_config", "quantization", "compression_config", "quant_config")
CODE_KEYS = ("auto_map", "trust_remote_code", "custom_pipelines")
"""Keys that make transformers import code from a checkpoint or a hub; never passed on."""
RUN_KEYS = (
    "_attn_implementation",
    "_attn_implementation_internal",
    "attn_implementation",
    "_experts_implementation",
    "experts_implementation",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_return_dict",
    "torchscript",
    "dtype",
    "torch_dtype",
)
"""Keys that say how a model is run, not what it is."""

MAX_DEPTH = 32
MAX_LAYERS = 4096
MAX_EXPERTS = 8192
MAX_SIZE = 1 << 24
"""Beyond the longest context and the largest vocabulary of any model; a buffer of this length still fits."""
_SIZES = re.compile(r"(size|dim|heads?|positions?|embeddings?|length|width|rank|embd|inner|ctx)$")
LAYER_KEYS = (
    "num_hidden_layers",
    "num_layers",
    "n_layers",
    "n_layer",
    "num_decoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "encoder_layers",
)
_EXPERTS = re.compile(r"(^|_)experts?(_|$)")


class ModelBuildError(QuantscopeError):
    """transformers builds no causal model from this config, or a parameter has no weight."""


def libraries() -> tuple[Any, Any]:
    """Torch and transformers.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    try:
        import torch
        import transformers
    except ImportError as problem:
        raise MissingExtraError(
            f"the logits check needs {problem.name}",
            hint=install_hint("probe"),
        ) from None
    return torch, transformers


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The model's config as a plain dict; declarations of quantization, code and running taken out.

    Raises:
        ModelBuildError: there is neither a config.json nor GGUF metadata that transformers reads, or its
            numbers are not those of a model.
    """
    for file in checkpoint.opened.files:
        if file.kind == "gguf" and "general.architecture" in file.metadata:
            return _checked(_gguf_config(file, checkpoint), checkpoint)
    declared = checkpoint.declarations.model
    nested = declared.get("text_config")
    config = _cleaned(dict(nested) if isinstance(nested, dict) else dict(declared), 0)
    if not isinstance(config.get("model_type"), str):
        raise ModelBuildError(
            "config.json names no model_type: no model can be built",
            hint="the folder needs the model's config.json",
            source="config.json",
        )
    return _checked(config, checkpoint)


def _cleaned(values: dict[str, Any], depth: int) -> dict[str, Any]:
    """Without the keys that must not reach transformers, at any depth."""
    if depth > MAX_DEPTH:
        raise ModelBuildError(f"the config is nested more than {MAX_DEPTH} levels deep")
    left_out = {*QUANT_KEYS, *CODE_KEYS, *RUN_KEYS}
    return {
        key: _cleaned(value, depth + 1)
        if isinstance(value, dict)
        else [_cleaned(v, depth + 1) if isinstance(v, dict) else v for v in value]
        if isinstance(value, list)
        else value
        for key, value in values.items()
        if key not in left_out
    }


def _numbers(values: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    if depth > MAX_DEPTH:
        raise ModelBuildError(f"the config is nested more than {MAX_DEPTH} levels deep")
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, depth + 1)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield key, value


def _checked(config: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Refuse counts that no checkpoint of this size can have, before anything is built of them."""
    stored = _layers_stored(checkpoint)
    for key, value in _numbers(config):
        if key in LAYER_KEYS and value > (stored or MAX_LAYERS):
            raise ModelBuildError(
                f"{key} is {value}; the names of the checkpoint show {stored} layers",
                source=f"config.json#/{key}",
            )
        if _EXPERTS.search(key) and value > MAX_EXPERTS:
            raise ModelBuildError(f"{key} is {value}: no model has so many", source=key)
        if _SIZES.search(key) and not 0 <= value <= MAX_SIZE:
            raise ModelBuildError(f"{key} is {value}: no model has such a size", source=key)
    return config


def _layers_stored(checkpoint: Checkpoint) -> int:
    """One more than the largest number that is a component of a stored name; 0 where none is."""
    largest = -1
    for stored in checkpoint.opened.tensors:
        for part in stored.name.split("."):
            if part.isdigit() and len(part) < 7:
                largest = max(largest, int(part))
    return largest + 1


def _gguf_config(file: OpenedFile, checkpoint: Checkpoint) -> dict[str, Any]:
    """What transformers makes of a GGUF's metadata.

    Its reader is given the scalars and tensor names that were parsed already, in a file of their own: the
    vocabulary would take it seconds and a gigabyte, and no config needs it.
    """
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    with tempfile.TemporaryDirectory(prefix="quantscope-") as folder:
        head = str(Path(folder) / "head.gguf")
        try:
            _write_head(head, file, checkpoint)
            config = dict(load_gguf_checkpoint(head, return_tensors=False)["config"])
        except MemoryError:
            raise
        except Exception as problem:  # boundary: transformers' reader of foreign metadata
            raise ModelBuildError(
                f"transformers reads no model from this GGUF: {_short(problem)}"
            ) from None
    rows = [t.shape[-2] for t in checkpoint.opened.tensors if t.name == "token_embd.weight"]
    if rows:
        config["vocab_size"] = rows[0]
    # Not in transformers' table of GGUF keys, so that its default would size the experts.
    kind = file.metadata["general.architecture"]
    width = file.metadata.get(f"{kind}.expert_feed_forward_length")
    if isinstance(width, int) and width > 0:
        config.setdefault("moe_intermediate_size", width)
    return config


def _write_head(path: str, file: OpenedFile, checkpoint: Checkpoint) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, str(file.metadata["general.architecture"]))
    for key, value in file.metadata.items():
        if key.startswith(("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "GGUF.", "split.")):
            continue
        if key == "general.architecture":
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_key_value(key, value, gguf.GGUFValueType.INT64)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value[:4096])
        elif isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
            writer.add_array(key, value)
    for stored in checkpoint.opened.tensors:
        writer.add_tensor(stored.name, np.zeros(1, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def build_config(transformers: Any, values: dict[str, Any]) -> Any:
    """Transformers' own config object.

    Raises:
        ModelBuildError: the model type is unknown, or a value is none that it can have.
    """
    rest = {key: value for key, value in values.items() if key != "model_type"}
    kind = values.get("model_type")
    try:
        config = transformers.AutoConfig.for_model(kind, **rest)
    except MemoryError:
        raise
    except Exception as problem:  # boundary: config classes raise whatever a value provokes
        raise ModelBuildError(
            f"transformers {transformers.__version__} makes no config of model_type {kind!r}: {_short(problem)}",
            source="config.json",
        ) from None
    return config


def build_model(transformers: Any, config: Any, dtype: Any) -> Any:
    """A causal model whose parameters are on the meta device and whose buffers are real.

    Raises:
        ModelBuildError: transformers has no causal model of this type or cannot build it.
    """
    from accelerate import init_empty_weights

    try:
        # Buffers stay real: rotary frequencies are in no checkpoint and could not be restored.
        with init_empty_weights(include_buffers=False):
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=dtype, trust_remote_code=False
            )
    except MemoryError:
        raise
    except Exception as problem:  # boundary: model classes raise whatever a config provokes
        raise ModelBuildError(
            f"transformers {transformers.__version__} builds no causal model: {_short(problem)}",
            source="config.json",
        ) from None
    return model.eval()


def _short(problem: Exception) -> str:
    text = " ".join(f"{type(problem).__name__}: {problem}".split())
    return text[:300]
