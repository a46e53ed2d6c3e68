"""A transformers model whose weights come from the engine, one decoder layer resident at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quantscope.checkpoint import Checkpoint
from quantscope.decode.parts import Array
from quantscope.errors import MissingExtraError, QuantscopeError
from quantscope.probes.weights import Fetch, GgufForms, GgufWeights, ModelWeights

QUANT_KEYS = ("quantization_config", "quantization", "compression_config", "quant_config")


class ModelBuildError(QuantscopeError):
    """transformers builds no causal model from this config, or a parameter has no weight."""


class Network:
    """A causal model on the meta device with real buffers.

    Args:
        checkpoint: whose config (or GGUF metadata) describes it.
        dtype: compute dtype name.
        device: where layers run.
        stream: keep one unit resident at a time; otherwise load everything before the first pass.
    """

    def __init__(self, checkpoint: Checkpoint, *, dtype: str, device: str, stream: bool) -> None:
        torch, transformers = _libraries()
        self.torch = torch
        self.dtype = getattr(torch, dtype)
        self.device = torch.device(device)
        self.stream = stream
        self.is_gguf = any(file.kind == "gguf" for file in checkpoint.opened.files)
        self.config_dict = config_of(checkpoint)
        self.config = _config(transformers, self.config_dict)
        self.model = _on_meta(transformers, self.config, self.dtype)
        self.model.eval()
        self.layers = _layers(self.model, torch)
        self._fetch: Fetch | None = None
        self._before_step: Callable[[int], None] = lambda step: None
        self._fetched = 0
        self._handles: list[Any] = []
        self._units = list(_units(self.model, self.layers))
        self._gguf_forms: dict[str, GgufForms] = {}
        self._install()

    @property
    def vocabulary(self) -> int:
        """Rows of the output head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def source(self, weights: ModelWeights) -> Fetch:
        """How parameters are found in a side's checkpoint, with everything fed hashed."""
        if weights.side.is_gguf:
            path = weights.side.checkpoint.opened.path
            if path not in self._gguf_forms:
                self._gguf_forms[path] = GgufForms(self.model, weights.side)
            find = GgufWeights(weights, self._gguf_forms[path]).find
        else:
            find = weights.find

        def fetch(name: str, shape: tuple[int, ...]) -> Array | None:
            values = find(name, shape)
            return None if values is None else weights.hashed(name, values)

        return fetch

    def logits(
        self, fetch: Fetch, ids: tuple[int, ...], on_unit: Callable[[int, int], None]
    ) -> Array:
        """Float32 [len(ids) - 1, V] logits that predict ids[1:].

        Args:
            fetch: the side's weights.
            ids: token ids; the first only conditions.
            on_unit: receives units done and their number.

        Raises:
            ModelBuildError: a parameter has no weight in the checkpoint.
        """
        torch = self.torch
        self._fetch = fetch
        self._fetched = 0
        self._before_step = lambda done: on_unit(done, len(self._units))
        with torch.inference_mode():
            if not self.stream:
                for prefix, unit in self._units:
                    self._load(prefix, unit)
                self._nothing_left_on_meta()
            batch = torch.tensor([ids], device=self.device)
            out = self.model(input_ids=batch, use_cache=False).logits[0, :-1]
            rows: Array = out.to(torch.float32).cpu().numpy()
        return rows

    def layer_io(
        self, fetch: Fetch, ids: tuple[int, ...]
    ) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]]:
        """Arguments and output of every decoder layer in one pass."""
        torch = self.torch
        captured: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []

        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            captured.append((args, kwargs, _hidden(output).detach().clone()))

        handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in self.layers]
        try:
            self.logits(fetch, ids, lambda done, total: None)
        finally:
            for handle in handles:
                handle.remove()
        del torch
        return captured

    def run_layer(
        self, index: int, fetch: Fetch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Output of one layer with a side's weights on given inputs."""
        self._fetch = fetch
        with self.torch.inference_mode():
            return _hidden(self.layers[index](*args, **kwargs))

    def _install(self) -> None:
        if not self.stream:
            return
        for prefix, unit in self._units:
            self._handles.append(
                unit.register_forward_pre_hook(
                    lambda module, args, p=prefix, u=unit: self._load(p, u)
                )
            )
            self._handles.append(
                unit.register_forward_hook(lambda module, args, out, u=unit: self._drop(u))
            )

    def _load(self, prefix: str, unit: Any) -> None:
        torch = self.torch
        assert self._fetch is not None
        state: dict[str, Any] = {}
        for name, parameter in unit.named_parameters():
            full = f"{prefix}.{name}" if prefix else name
            values = self._fetch(full, tuple(parameter.shape))
            if values is None:
                raise ModelBuildError(f"the checkpoint has no weight for {full}", source=full)
            state[name] = torch.from_numpy(np.ascontiguousarray(values)).to(self.device, self.dtype)
        for name, buffer in unit.named_buffers():
            full = f"{prefix}.{name}" if prefix else name
            if name.rpartition(".")[2] in ("weight", "bias", "e_score_correction_bias"):
                values = self._fetch(full, tuple(buffer.shape))
                if values is not None:
                    state[name] = torch.from_numpy(np.ascontiguousarray(values)).to(
                        self.device, buffer.dtype
                    )
        unit.load_state_dict(state, strict=False, assign=True)
        self._fetched += 1
        self._before_step(self._fetched)

    def _drop(self, unit: Any) -> None:
        torch = self.torch
        for module in unit.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = torch.nn.Parameter(
                        torch.empty_like(parameter, device="meta"), requires_grad=False
                    )

    def _nothing_left_on_meta(self) -> None:
        left = [n for n, p in self.model.named_parameters() if p.device.type == "meta"]
        left += [n for n, b in self.model.named_buffers() if b.device.type == "meta"]
        if left:
            raise ModelBuildError(
                f"{left[0]} and {len(left) - 1} more have no values", source=left[0]
            )


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The model's config as a plain dict, quantization declarations taken out.

    Raises:
        ModelBuildError: there is neither a config.json nor GGUF metadata that transformers reads.
    """
    for file in checkpoint.opened.files:
        if file.kind == "gguf" and "general.architecture" in file.metadata:
            return _gguf_config(file.path)
    file_config = checkpoint.declarations.model
    if not file_config.get("model_type"):
        raise ModelBuildError("config.json names no model_type: no model can be built")
    config = json.loads(json.dumps(file_config))
    for key in QUANT_KEYS:
        config.pop(key, None)
    if isinstance(config.get("text_config"), dict):
        config = {**config["text_config"]}
        for key in QUANT_KEYS:
            config.pop(key, None)
    config.pop("auto_map", None)
    return dict(config)


def _gguf_config(path: str) -> dict[str, Any]:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    try:
        parsed = load_gguf_checkpoint(str(Path(path)), return_tensors=False)
    except (ValueError, KeyError, NotImplementedError) as problem:
        raise ModelBuildError(f"transformers reads no model from this GGUF: {problem}") from None
    return dict(parsed["config"])


def _config(transformers: Any, values: dict[str, Any]) -> Any:
    rest = {key: value for key, value in values.items() if key != "model_type"}
    try:
        return transformers.AutoConfig.for_model(values["model_type"], **rest)
    except (KeyError, ValueError, TypeError) as problem:
        raise ModelBuildError(
            f"transformers {transformers.__version__} knows no model_type {values.get('model_type')!r}: {problem}"
        ) from None


def _on_meta(transformers: Any, config: Any, dtype: Any) -> Any:
    from accelerate import init_empty_weights

    try:
        # Buffers stay real: rotary frequencies are in no checkpoint and could not be restored.
        with init_empty_weights(include_buffers=False):
            return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    except ValueError as problem:
        raise ModelBuildError(f"transformers builds no causal model: {problem}") from None


def _layers(model: Any, torch: Any) -> Any:
    wanted = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == wanted]
    if not lists:
        raise ModelBuildError(f"no list of {wanted} decoder layers in {type(model).__name__}")
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def _units(model: Any, layers: Any) -> Iterator[tuple[str, Any]]:
    """Decoder layers, and every other module that holds parameters of its own."""
    inside = {id(m) for layer in layers for m in layer.modules()}
    names = {id(layer) for layer in layers}
    for name, module in model.named_modules():
        own = id(module) in names
        if own or (id(module) not in inside and list(module.parameters(recurse=False))):
            yield name, module


def _hidden(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as problem:
        raise MissingExtraError(
            f"the logits check needs {problem.name}",
            hint="pip install torch, then pip install 'quantscope[probe]'",
        ) from None
    return torch, transformers
