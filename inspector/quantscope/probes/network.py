"""A transformers model whose weights come from the engine, one decoder layer resident at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quantscope.decode.parts import Array
from quantscope.probes.config import (
    ModelBuildError,
    build_config,
    build_model,
    libraries,
)
from quantscope.probes.conversions import Conversions
from quantscope.probes.gguf_forms import GgufForms, GgufWeights
from quantscope.probes.weights import Fetch, HfWeights, ModelWeights, owner_transposed

STORED_BUFFERS = ("weight", "bias", "e_score_correction_bias")
"""Buffers that checkpoints store; all others are computed when the model is built."""


class Network:
    """A causal model on the meta device with real buffers.

    Args:
        config: what `config_of` gave.
        dtype: compute dtype name.
        device: where layers run.
        stream: keep one unit resident at a time; otherwise load everything before each pass.

    Raises:
        ModelBuildError: no causal model can be built.
    """

    def __init__(self, config: dict[str, Any], *, dtype: str, device: str, stream: bool) -> None:
        torch, transformers = libraries()
        self.torch = torch
        self.dtype = getattr(torch, dtype)
        self.device = _device(torch, device)
        self.stream = stream
        self.config_dict = config
        self.config = build_config(transformers, self.config_dict)
        self.model = build_model(transformers, self.config, self.dtype)
        self.layers = _layers(self.model, torch)
        self._fetch: Fetch | None = None
        self._before_step: Callable[[int], None] = lambda step: None
        self._fetched = 0
        self._handles: list[Any] = []
        self._units = list(_units(self.model, self.layers))
        self._whole = {id(layer) for layer in self.layers}
        self._forms: dict[str, GgufForms | Conversions] = {}
        self._buffers_to_device()
        self._install()

    @property
    def vocabulary(self) -> int:
        """Rows of the output head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def source(self, weights: ModelWeights) -> Fetch:
        """How parameters are found in a side's checkpoint, with everything fed hashed."""
        path = weights.side.checkpoint.opened.path
        if path not in self._forms:
            self._forms[path] = (
                GgufForms(self.model, weights.side)
                if weights.side.is_gguf
                else Conversions(self.model, weights.names)
            )
        forms = self._forms[path]
        if isinstance(forms, GgufForms):
            find = GgufWeights(weights, forms).find
        else:
            find = HfWeights(weights, forms, owner_transposed(self.model)).find

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
            ModelBuildError: a parameter has no weight in the checkpoint, or the model cannot run with one
                unit at a time.
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
            try:
                answer = self.model(input_ids=batch, use_cache=False, return_dict=True)
            except NotImplementedError as problem:
                raise ModelBuildError(
                    f"a module of {type(self.model).__name__} is used before it is loaded: {problem}",
                    hint="try --full-load",
                ) from None
            rows: Array = answer.logits[0, :-1].to(torch.float32).cpu().numpy()
        return rows

    def layer_io(
        self, fetch: Fetch, ids: tuple[int, ...]
    ) -> list[tuple[tuple[Any, ...], dict[str, Any], Any]]:
        """Arguments and output of every decoder layer in one pass."""
        captured: list[tuple[tuple[Any, ...], dict[str, Any], Any]] = []

        def hook(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            captured.append((_cloned(args), dict(kwargs), _hidden(output).detach().clone()))

        handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in self.layers]
        try:
            self.logits(fetch, ids, lambda done, total: None)
        finally:
            for handle in handles:
                handle.remove()
        return captured

    def run_layer(
        self, index: int, fetch: Fetch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Output of one layer with a side's weights on given inputs."""
        self._fetch = fetch
        layer = self.layers[index]
        with self.torch.inference_mode():
            if not self.stream:
                prefix = next(name for name, unit in self._units if unit is layer)
                self._load(prefix, layer)
            return _hidden(layer(*_cloned(args), **kwargs))

    def _buffers_to_device(self) -> None:
        if self.device.type == "cpu":
            return
        for module in self.model.modules():
            for name, buffer in list(module._buffers.items()):
                if buffer is not None and buffer.device.type != "meta":
                    module._buffers[name] = buffer.to(self.device)

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
        whole = id(unit) in self._whole
        state: dict[str, Any] = {}
        for name, parameter in unit.named_parameters(recurse=whole):
            full = f"{prefix}.{name}" if prefix else name
            values = self._fetch(full, tuple(parameter.shape))
            if values is None:
                raise ModelBuildError(f"the checkpoint has no weight for {full}", source=full)
            state[name] = torch.from_numpy(np.ascontiguousarray(values)).to(self.device, self.dtype)
        for name, buffer in unit.named_buffers(recurse=whole):
            full = f"{prefix}.{name}" if prefix else name
            if name.rpartition(".")[2] in STORED_BUFFERS:
                values = self._fetch(full, tuple(buffer.shape))
                if values is not None:
                    state[name] = torch.from_numpy(np.ascontiguousarray(values)).to(
                        self.device, buffer.dtype
                    )
        # Assigned, never copied into: a copy in place would change weights that another pass still holds.
        unit.load_state_dict(state, strict=False, assign=True)
        self._fetched += 1
        self._before_step(self._fetched)

    def _drop(self, unit: Any) -> None:
        torch = self.torch
        for module in unit.modules() if id(unit) in self._whole else (unit,):
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


def _device(torch: Any, name: str) -> Any:
    """The device, if it is one and is there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        raise ModelBuildError(
            f"torch has no device {name!r}: {str(problem).splitlines()[0][:200]}",
            hint="--device cpu",
        ) from None
    return device


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


def _cloned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that a layer which works in place cannot change behind the comparison's back."""
    return tuple(a.clone() if hasattr(a, "clone") else a for a in args)
