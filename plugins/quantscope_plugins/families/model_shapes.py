"""What config.json says about the row length of a linear layer, for formats that store no shape.

Names and keys: transformers, models/*/configuration_*.py and modeling_*.py (Llama and its kin, OPT, GPT-NeoX).
"""

from __future__ import annotations

from quantscope.families.declarations import Declarations
from quantscope.model import Source

_HIDDEN = (
    "q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value", "gate_proj", "up_proj", "gate_up_proj",
    "fc1", "dense_h_to_4h", "embed_tokens", "lm_head", "embed_out", "c_attn", "c_fc", "w1", "w3", "wq", "wk", "wv",
)  # fmt: skip
_INNER = ("down_proj", "fc2", "dense_4h_to_h", "w2")
_HEADS = ("o_proj", "out_proj", "dense", "wo")


def declared_row_length(declared: Declarations, module: str) -> tuple[int, Source] | None:
    """in_features of a module by its name, and the key that says it; None where config.json does not."""
    last = module.rpartition(".")[2]
    for pointer, config in _configs(declared):
        if last in _HIDDEN:
            return _number(config, pointer, "hidden_size")
        if last in _INNER:
            return _number(config, pointer, "intermediate_size") or _number(
                config, pointer, "ffn_dim"
            )
        if last in _HEADS:
            heads = _number(config, pointer, "num_attention_heads")
            size = _number(config, pointer, "head_dim")
            if heads is not None and size is not None:
                return heads[0] * size[0], size[1]
            return _number(config, pointer, "hidden_size")
    return None


def _configs(declared: Declarations) -> list[tuple[str, dict[str, object]]]:
    model = declared.model
    found: list[tuple[str, dict[str, object]]] = [("", model)] if "hidden_size" in model else []
    nested = model.get("text_config")
    if isinstance(nested, dict) and "hidden_size" in nested:
        found.append(("/text_config", nested))
    return found


def _number(config: dict[str, object], pointer: str, key: str) -> tuple[int, Source] | None:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        return None
    return value, Source("config.json", f"{pointer}/{key}")
