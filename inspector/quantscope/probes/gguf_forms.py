"""Weights of a GGUF in the forms of a transformers model: names, rotary row order, norms stored plus one.

transformers' own tables and processors are used (transformers/modeling_gguf_pytorch_utils.py), so that logits equal
those of its own load.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from quantscope.compare.sides import Side
from quantscope.decode.parts import Array
from quantscope.probes.config import ModelBuildError
from quantscope.probes.weights import ModelWeights, fitted


class GgufForms:
    """What transformers knows of a GGUF's names and stored forms; made once, shared by every pass.

    Args:
        model: the model on the meta device, with its config.
        side: the GGUF.

    Raises:
        ModelBuildError: transformers knows no names for this architecture.
    """

    def __init__(self, model: Any, side: Side) -> None:
        from transformers import modeling_gguf_pytorch_utils as gguf_utils

        architecture = str(side.metadata.get("general.architecture", ""))
        kind = gguf_utils.TENSOR_PROCESSORS.get(architecture, gguf_utils.TensorProcessor)
        config = model.config.get_text_config()
        self.processor = kind(config=config.to_dict())
        try:
            self.mapping = _mapping(gguf_utils.get_gguf_hf_weights_map, model, self.processor)
        except NotImplementedError as problem:
            raise ModelBuildError(f"no names for the GGUF's tensors: {problem}") from None
        self.names: dict[str, list[str]] = defaultdict(list)
        stored = {tensor.name for tensor in side.checkpoint.opened.tensors}
        for gguf_name, hf_name in self.mapping.items():
            full = gguf_name if gguf_name in stored else f"{gguf_name}.weight"
            if full in stored:
                self.names[hf_name].append(full)


class _NamesOnly:
    """A model's parameter names without its tree, which transformers' mapping would walk module by module."""

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self._state = model.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._state)

    def named_children(self) -> list[tuple[str, Any]]:
        return []


def _mapping(make: Any, model: Any, processor: Any) -> dict[str, str]:
    """GGUF name -> parameter; the whole tree is walked only where names of the root leave some out."""
    quick: dict[str, str] = make(_NamesOnly(model), processor)
    tied = {"lm_head.weight"}
    if {processor.preprocess_name(n) for n in model.state_dict()} - set(quick.values()) <= tied:
        return quick
    return dict(make(model, processor))


class GgufWeights:
    """Weights of a GGUF by parameter name.

    Args:
        weights: the decoded side.
        forms: names and processors.
    """

    def __init__(self, weights: ModelWeights, forms: GgufForms) -> None:
        self.weights = weights
        self.forms = forms

    def find(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """The weight for a model parameter; None where nothing maps to it."""
        names = self.forms.names.get(name)
        if not names and name.endswith("lm_head.weight"):
            embedding = next(
                (n for n in self.forms.names if n.endswith("embed_tokens.weight")), None
            )
            names = self.forms.names.get(embedding or "")
        if not names:
            return None
        collected: dict[str, Any] = {"tensors": {}}
        values: Array | None = None
        for gguf_name in names:
            result = self.forms.processor.process(
                weights=self.weights.stored(gguf_name),
                name=gguf_name,
                tensor_key_mapping=self.forms.mapping,
                parsed_parameters=collected,
            )
            values = np.asarray(result.weights) if result.name is not None else None
        if values is None:
            values = np.asarray(next(iter(collected["tensors"].values())))
        return fitted(values, shape, name)
