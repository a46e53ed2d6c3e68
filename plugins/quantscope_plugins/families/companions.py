"""Stored tensors that belong to a quantized module or its attention but hold no weight."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quantscope.families.index import TensorIndex
from quantscope.model import Companion

ACTIVATION = {
    "input_scale": "activation scale",
    "input_scale_2": "activation scale, second level",
    "input_zero_point": "activation zero point",
    "input_global_scale": "activation scale, divides",
    "input_scale_ub": "activation scale bound",
    "input_activation_scale": "activation scale",
    "activation_scale": "activation scale",
    "act_scale": "activation scale",
    "output_scale": "activation scale of the output",
    "output_zero_point": "activation zero point of the output",
    "scale_input": "activation scale",
    "qscale_act": "activation scale",
    "pre_quant_scale": "input channels are multiplied by it",
    "comfy_quant": "marker: format of this layer as JSON",
}
"""Suffix under a module -> what it is. Names: compressed-tensors, ModelOpt, Quark, FBGEMM, Mistral, ComfyUI."""

ATTENTION = {
    "k_scale": "key cache scale",
    "v_scale": "value cache scale",
    "q_scale": "query scale",
    "k_zero_point": "key cache zero point",
    "v_zero_point": "value cache zero point",
    "k_global_scale": "key cache scale, second level",
    "v_global_scale": "value cache scale, second level",
    "q_global_scale": "query scale, second level",
    "prob_output_scale": "attention probability scale",
    "kv_scale": "cache scale",
    "k_bmm_quantizer": "key cache quantizer",
    "v_bmm_quantizer": "value cache quantizer",
}
"""Last part of a name anywhere -> what it is. Names: compressed-tensors kv_cache_scheme, ModelOpt, vLLM."""


def module_companions(
    index: TensorIndex, modules: Iterable[str], family: str
) -> Iterator[Companion]:
    """Activation scales, zeros and markers stored under modules."""
    for module in modules:
        for suffix in index.suffixes(module):
            what = ACTIVATION.get(suffix)
            stored = index.get(module, suffix) if what else None
            if what and stored is not None:
                yield Companion(stored_name=stored.name, module=module, what=what, family=family)


def attention_companions(index: TensorIndex, family: str) -> Iterator[Companion]:
    """Cache and query scales of attention modules."""
    for last, what in ATTENTION.items():
        for name in index.names_with_last(last):
            module = name.rpartition(".")[0]
            yield Companion(stored_name=name, module=module, what=what, family=family)
