"""What names of modules say: layers, experts, siblings that engines fuse, embeddings and heads."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from itertools import islice

import msgspec

_LAYER = re.compile(
    r"^(?P<stack>(?:.*\.)?(?:layers|h|blk|blocks|block|transformer_blocks|double_blocks|"
    r"single_blocks|single_transformer_blocks|resblocks|layer))\.(?P<index>\d{1,6})\.(?P<rest>.+)$"
)
_EXPERT = re.compile(r"^(?P<stack>.*\.?experts)\.(?P<index>\d{1,6})\.(?P<rest>.+)$")

FUSED_TOGETHER: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj"),
    ("to_q", "to_k", "to_v"),
    ("add_q_proj", "add_k_proj", "add_v_proj"),
    ("query", "key", "value"),
    ("attn_q", "attn_k", "attn_v"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("ffn_gate", "ffn_up"),
    ("w1", "w3"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
"""Modules of one parent that serving engines join into one matrix (vLLM packed_modules_mapping)."""

FUSED_ON_DISK: dict[str, int] = {
    "qkv_proj": 3,
    "qkv": 3,
    "Wqkv": 3,
    "c_attn": 3,
    "query_key_value": 3,
    "attn_qkv": 3,
    "to_qkv": 3,
    "gate_up_proj": 2,
    "ffn_gate_up": 2,
    "w13": 2,
    "in_proj_qkvz": 2,
}
"""Last names of matrices that hold several projections, with how many."""

LINEAR_NAMES = frozenset(
    {name for group in FUSED_TOGETHER for name in group}
    | set(FUSED_ON_DISK)
    | {
        "o_proj",
        "out_proj",
        "down_proj",
        "w2",
        "wo",
        "dense",
        "dense_h_to_4h",
        "dense_4h_to_h",
        "fc1",
        "fc2",
        "c_proj",
        "c_fc",
        "kv_b_proj",
        "q_b_proj",
        "in_proj",
        "attn_output",
        "ffn_down",
    }
)
"""Last names of modules that are linear layers in every architecture known here."""

ROUTER_NAMES = frozenset({"gate", "router", "shared_expert_gate", "ffn_gate_inp", "wg"})
"""Modules that producers leave unquantized everywhere."""

EMBEDDING_NAMES = frozenset(
    {
        "embed_tokens",
        "wte",
        "word_embeddings",
        "tok_embeddings",
        "token_embd",
        "embed_in",
        "embeddings",
    }
)
HEAD_NAMES = frozenset({"lm_head", "output", "embed_out", "head"})


class Place(msgspec.Struct, frozen=True):
    """Where a module stands in a stack of layers or experts."""

    stack: str
    index: int
    rest: str


@lru_cache(maxsize=200_000)
def layer_of(name: str) -> Place | None:
    """The innermost layer that a dotted name belongs to, or None."""
    found = _LAYER.match(name[:1000])
    if found is None:
        return None
    return Place(found["stack"], int(found["index"]), found["rest"])


@lru_cache(maxsize=200_000)
def expert_of(name: str) -> Place | None:
    """The expert that a dotted name belongs to, or None."""
    found = _EXPERT.match(name[:1000])
    if found is None:
        return None
    return Place(found["stack"], int(found["index"]), found["rest"])


def last(module: str) -> str:
    """Last dotted part of a module."""
    return module.rpartition(".")[2]


def parent(module: str) -> str:
    """Everything before the last dotted part."""
    return module.rpartition(".")[0]


def role_of(module: str) -> str:
    """The module's name with layer and expert numbers left out: equal for the same place in each layer."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "#", module)


def absent(have: Collection[int], count: int, limit: int = 200) -> tuple[list[int], int]:
    """The first numbers below `count` that are not there, and how many there are; `count` may be any size."""
    first = list(islice((number for number in range(count) if number not in have), limit))
    return first, count - sum(1 for number in have if 0 <= number < count)


def is_embedding(module: str) -> bool:
    """Whether a module is the input embedding."""
    return last(module) in EMBEDDING_NAMES and "position" not in module


def is_head(module: str) -> bool:
    """Whether a module is the output head."""
    name = last(module)
    if name in ("lm_head", "embed_out"):
        return True
    return module in ("output", "head", "model.output", "transformer.output_layer")
