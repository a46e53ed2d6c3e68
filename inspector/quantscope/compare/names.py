"""Which weight of one checkpoint is which of another: exact names, prefixes, GGUF names, fused rows."""

from __future__ import annotations

from collections.abc import Mapping

from quantscope.compare.model import Pair, RowMap
from quantscope.model import Json

PREFIXES = (
    "base_model.model.",
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "text_model.",
    "transformer.",
    "model.",
)
"""Wrappers that producers add to or drop from module names."""

FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "ffn_gate_up": ("ffn_gate", "ffn_up"),
}
"""Fused weight -> the weights that its rows hold, in order."""

Shapes = Mapping[str, tuple[int, ...]]


def bare(name: str) -> str:
    """A name without its wrappers."""
    changed = True
    while changed:
        changed = False
        for prefix in PREFIXES:
            if name.startswith(prefix) and len(name) > len(prefix):
                name, changed = name[len(prefix) :], True
                break
    return name


def gguf_names(hf_names: list[str], architecture: str) -> dict[str, str]:
    """Hugging Face weight name -> GGUF tensor name, by gguf's own table of the architecture."""
    import gguf

    arch = next((a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture), None)
    if arch is None:
        return {}
    blocks = 1 + max((int(p) for n in hf_names for p in n.split(".") if p.isdigit()), default=0)
    table = gguf.get_tensor_name_map(arch, blocks)
    found: dict[str, str] = {}
    for name in hf_names:
        mapped = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if mapped is not None:
            found[name] = mapped
    return found


def rotary_heads(gguf_name: str, metadata: Mapping[str, Json]) -> int:
    """Heads whose rows llama.cpp's converter permuted in this tensor; 0 where it does not.

    Source: llama.cpp, conversion/llama.py (undo_permute) for the llama architecture.
    """
    if metadata.get("general.architecture") != "llama":
        return 0
    heads = metadata.get("llama.attention.head_count")
    kv_heads = metadata.get("llama.attention.head_count_kv", heads)
    last = gguf_name.rsplit(".", 2)[-2] if gguf_name.count(".") >= 2 else ""
    if last == "attn_q" and isinstance(heads, int):
        return heads
    if last == "attn_k" and isinstance(kv_heads, int):
        return kv_heads
    return 0


def pair_names(a: Shapes, b: Shapes) -> tuple[list[Pair], list[str], list[str]]:
    """Pairs of weights, and the names that only one side has.

    Args:
        a: shapes by name on side A.
        b: shapes by name on side B.

    Returns:
        Pairs in A's order, names only in A, names only in B.
    """
    pairs = [Pair(name=name, a=name, b=name, kind="name") for name in a if name in b]
    left_a = [name for name in a if name not in b]
    left_b = [name for name in b if name not in a]
    by_bare = {bare(name): name for name in left_b}
    for name in list(left_a):
        other = by_bare.get(bare(name))
        if other is not None and other in left_b:
            pairs.append(Pair(name=name, a=name, b=other, kind="prefix"))
            left_a.remove(name)
            left_b.remove(other)
    left_b, found = _fused(left_a, left_b, a, b)
    pairs += found
    used = {pair.a for pair in found}
    left_a = [name for name in left_a if name not in used]
    left_a, found = _fused(left_b, left_a, b, a)
    pairs += [
        Pair(name=pair.b, a=pair.b, b=pair.a, kind="fused", rows_a=pair.rows_b, rows_b=pair.rows_a)
        for pair in found
    ]
    used = {pair.a for pair in found}
    left_b = [name for name in left_b if name not in used]
    order = {name: position for position, name in enumerate(a)}
    pairs.sort(key=lambda pair: (order.get(pair.a, len(order)), pair.rows_a.first))
    return pairs, left_a, left_b


def _fused(
    whole: list[str], parts: list[str], whole_shapes: Shapes, part_shapes: Shapes
) -> tuple[list[str], list[Pair]]:
    """Pair fused weights of one side with their parts on the other; returns the parts left and the pairs."""
    left = list(parts)
    by_bare = {bare(name): name for name in parts}
    pairs: list[Pair] = []
    for name in whole:
        module = name.rsplit(".", 2)
        names = FUSED.get(module[-2]) if len(module) > 2 else None
        if names is None:
            continue
        wanted = [by_bare.get(bare(f"{module[0]}.{part}.{module[-1]}")) for part in names]
        if any(part is None for part in wanted):
            continue
        found = [part for part in wanted if part is not None]
        rows = [part_shapes[part][-2] if len(part_shapes[part]) > 1 else 0 for part in found]
        shape = whole_shapes[name]
        if len(shape) < 2 or sum(rows) != shape[-2]:
            continue
        first = 0
        for part, count in zip(found, rows, strict=True):
            pairs.append(
                Pair(
                    name=name,
                    a=name,
                    b=part,
                    kind="fused",
                    rows_a=RowMap(first=first, count=count),
                )
            )
            first += count
            left.remove(part)
    return left, pairs
