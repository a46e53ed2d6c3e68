"""What `general.file_type` means for each tensor: the mixture recipes of llama.cpp's quantize tool.

A file type is a label for a recipe. A tensor's type follows from its role, layer, row length, head sharing, experts,
a tied output and an importance matrix. `expected_types` computes it, so that a Q6_K or Q8_0 tensor in a `Q4_K_M` file
is explained and not an alarm.

Source: ggml-org/llama.cpp, src/llama-quant.cpp (type selection and shape fallback), include/llama.h (numbers),
conversion/base.py (what the converter writes without the tool).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from quantscope.containers.ggml_types import GGML_TYPES

FILE_TYPES: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        0: ("F32", "F32"), 1: ("F16", "F16"), 2: ("Q4_0", "Q4_0"), 3: ("Q4_1", "Q4_1"), 7: ("Q8_0", "Q8_0"),
        8: ("Q5_0", "Q5_0"), 9: ("Q5_1", "Q5_1"), 10: ("Q2_K", "Q2_K"), 11: ("Q3_K_S", "Q3_K"),
        12: ("Q3_K_M", "Q3_K"), 13: ("Q3_K_L", "Q3_K"), 14: ("Q4_K_S", "Q4_K"), 15: ("Q4_K_M", "Q4_K"),
        16: ("Q5_K_S", "Q5_K"), 17: ("Q5_K_M", "Q5_K"), 18: ("Q6_K", "Q6_K"), 19: ("IQ2_XXS", "IQ2_XXS"),
        20: ("IQ2_XS", "IQ2_XS"), 21: ("Q2_K_S", "Q2_K"), 22: ("IQ3_XS", "IQ3_S"),
        23: ("IQ3_XXS", "IQ3_XXS"), 24: ("IQ1_S", "IQ1_S"), 25: ("IQ4_NL", "IQ4_NL"), 26: ("IQ3_S", "IQ3_S"),
        27: ("IQ3_M", "IQ3_S"), 28: ("IQ2_S", "IQ2_XS"), 29: ("IQ2_M", "IQ2_S"), 30: ("IQ4_XS", "IQ4_XS"),
        31: ("IQ1_M", "IQ1_M"), 32: ("BF16", "BF16"), 36: ("TQ1_0", "TQ1_0"), 37: ("TQ2_0", "TQ2_0"),
        38: ("MXFP4_MOE", "MXFP4"), 39: ("NVFP4", "NVFP4"), 40: ("Q1_0", "Q1_0"), 41: ("Q2_0", "Q2_0"),
    }
)  # fmt: skip
"""`general.file_type` -> (recipe's name, type of most tensors)."""

GUESSED_FLAG = 1024
"""Added to a file type that a loader guessed."""

FLOATS = frozenset({"F32", "F16", "BF16"})

_FALLBACK = {
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
    ),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""Type -> what rows that are no whole number of its blocks get instead."""

_LOW_BIT = frozenset({"IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ1_S", "IQ1_M"})
_Q5_OUTPUT = _LOW_BIT | {"IQ3_XXS"}

_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight",
    "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
    "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight", "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.",
    "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
"""Parts of names of tensors that the tool never quantizes."""

_KEPT_NAMES = frozenset({"position_embd.weight", "token_types.weight"})


class MixtureModel(msgspec.Struct, frozen=True, kw_only=True):
    """What of a model a recipe looks at."""

    file_type: int
    n_layer: int
    architecture: str = "llama"
    n_head: int = 1
    n_head_kv: int = 1
    n_expert: int = 0
    imatrix: bool | None = None
    """Whether an importance matrix was used; None where nothing says."""

    @property
    def recipe(self) -> str:
        """Name of the recipe, or an empty string where the number is not known."""
        return FILE_TYPES.get(self.file_type & ~GUESSED_FLAG, ("", ""))[0]

    @property
    def base_type(self) -> str:
        """Type of most tensors, or an empty string."""
        return FILE_TYPES.get(self.file_type & ~GUESSED_FLAG, ("", ""))[1]

    @property
    def shared_heads(self) -> int:
        """Query heads that share a key and value head."""
        return self.n_head // self.n_head_kv if self.n_head_kv else 0

    @property
    def is_70b(self) -> bool:
        """Whether the tool takes it for a 70B Llama: 80 layers with shared heads."""
        return self.n_layer == 80 and self.n_head != self.n_head_kv


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The types that a recipe gives a tensor, and why."""

    types: frozenset[str]
    reason: str


class _Place(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor as the recipe sees it: `index` is its number among `count` of its kind."""

    name: str
    category: str
    shape: tuple[int, ...]
    index: int
    count: int
    tied: bool


_Pick = tuple[str, str]
"""(type, reason)."""


def read_model(metadata: Mapping[str, Any]) -> MixtureModel | None:
    """The facts that a recipe needs from the key-values of a GGUF file; None without a file type."""
    file_type = metadata.get("general.file_type")
    architecture = metadata.get("general.architecture")
    if not isinstance(file_type, int) or not isinstance(architecture, str):
        return None

    def number(key: str, default: int) -> int:
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, list):
            value = next((one for one in value if isinstance(one, int) and one), None)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    n_head = number("attention.head_count", 1)
    return MixtureModel(
        file_type=file_type,
        n_layer=number("block_count", 0),
        architecture=architecture,
        n_head=n_head,
        n_head_kv=number("attention.head_count_kv", n_head),
        n_expert=number("expert_count", 0),
        imatrix=True if "quantize.imatrix.file" in metadata else None,
    )


def expected_types(
    model: MixtureModel, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Explained]:
    """The types that the recipe of a file gives each of its tensors.

    Args:
        model: facts of the file.
        shapes: shape of every tensor of the checkpoint by name, slowest axis first.

    Returns:
        By name. Where nothing says whether an importance matrix was used, the types of both cases; for
        recipes that the converter writes itself, its types too, and for fused q, k and v those of older
        versions. Empty for an unknown file type.
    """
    if not model.base_type:
        return {}
    places = _places(model, shapes)
    explained: dict[str, Explained] = {}
    for name, place in places.items():
        kept = _kept(place)
        if kept:
            explained[name] = Explained(types=FLOATS, reason=kept)
            continue
        cases = (False, True) if model.imatrix is None else (model.imatrix,)
        picks = [
            _with_fallback(_pick(msgspec.structs.replace(model, imatrix=case), place), place)
            for case in cases
        ]
        types = {picked for picked, _ in picks}
        types |= _by_converter(model, place) | _by_older_versions(model, place)
        explained[name] = Explained(types=frozenset(types), reason=picks[0][1])
    return explained


def _places(model: MixtureModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, _Place]:
    """Every tensor with its category and its number among those of its kind, in the tool's order."""
    tied = "output.weight" not in shapes
    ordered = sorted(shapes, key=lambda name: (_layer(name), name))
    n_values = sum(_category(name) in _VALUE_LIKE for name in shapes)
    seen = {"value": 0, "ffn_down": 0, "ffn_gate": 0, "ffn_up": 0}
    places = {}
    for name in ordered:
        category = _category(name)
        counter = "value" if category in _VALUE_LIKE else category
        index = seen.get(counter, 0)
        shape = shapes[name]
        if counter in seen and len(shape) > 1 and _ends_in_weight(name):
            seen[counter] += 1
        count = n_values if counter == "value" else model.n_layer
        low_bit = model.recipe in _LOW_BIT
        if counter != "value" and model.n_expert > 1 and not low_bit:
            index = max(0, _layer(name))
        places[name] = _Place(
            name=name, category=category, shape=shape, index=index, count=count, tied=tied
        )
    return places


def _layer(name: str) -> int:
    found = re.match(r"blk\.(\d{1,6})\.", name)
    return int(found.group(1)) if found else -1


def _ends_in_weight(name: str) -> bool:
    return name.endswith("weight")


_CATEGORIES = (
    ("attn_qkv.weight", "qkv"),
    ("attn_kv_b.weight", "kv_b"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)
_VALUE_LIKE = frozenset({"attn_v", "qkv", "kv_b"})


def _category(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "embedding"
    return next((category for part, category in _CATEGORIES if part in name), "other")


def _kept(place: _Place) -> str:
    """Why the tool leaves a tensor as it is, or an empty string."""
    if len([extent for extent in place.shape if extent > 1]) < 2:
        return "vectors stay unquantized"
    if not _ends_in_weight(place.name):
        return "only weights are quantized"
    if place.name in _KEPT_NAMES or any(part in place.name for part in _KEPT):
        return "norms, routers and small matrices stay unquantized"
    return ""


def _with_fallback(pick: _Pick, place: _Place) -> _Pick:
    """Apply the shape fallback: rows that are no whole number of blocks get a type with smaller ones."""
    wanted = pick[0]
    columns = place.shape[-1]
    size = _block_size(wanted)
    if columns % size == 0:
        return pick
    instead = _FALLBACK.get(wanted, wanted)
    why = f"row length {columns} is not a multiple of {size}: {wanted} falls back to "
    if columns % _block_size(instead):
        return "F16", why + "F16"
    return instead, why + instead


def _block_size(type_name: str) -> int:
    return next((kind.block_size for kind in GGML_TYPES.values() if kind.name == type_name), 1) or 1


def _by_converter(model: MixtureModel, place: _Place) -> set[str]:
    """Types that convert_hf_to_gguf.py gives where it writes the file type itself."""
    if model.recipe not in ("F32", "F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4"):
        return set()
    if model.recipe in FLOATS:
        return set(FLOATS)
    types = {"F16"} if place.category in ("embedding", "output") else set()
    if model.recipe in ("MXFP4_MOE", "NVFP4"):
        return types | set(FLOATS) | {model.base_type, "Q8_0"}
    if place.shape[-1] % _block_size(model.base_type):
        types.add("F16")
    return types | {model.base_type}


def _by_older_versions(model: MixtureModel, place: _Place) -> set[str]:
    """Types of fused q, k and v before the tool treated them like attention values."""
    chosen = {
        "Q3_K_M": "Q4_K",
        "Q3_K_L": "Q4_K",
        "IQ3_M": "Q4_K",
        "Q4_K_M": "Q5_K",
        "Q5_K_M": "Q6_K",
    }
    if place.category != "qkv":
        return set()
    return {_with_fallback((chosen.get(model.recipe, model.base_type), ""), place)[0]}


def _more_bits(index: int, count: int) -> bool:
    """First eighth, last eighth and every third layer between."""
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2


def _pick(model: MixtureModel, place: _Place) -> _Pick:
    """Type and reason before the shape fallback."""
    base = (model.base_type, f"base type of {model.recipe}")
    if model.base_type in FLOATS:
        return base
    category = place.category
    if category == "output" or (place.tied and category == "embedding"):
        return _output(model, place)
    if model.recipe == "MXFP4_MOE":
        expert = len(place.shape) > 2 and place.shape[0] > 1
        return (
            ("MXFP4", "expert matrices") if expert else ("Q8_0", "all but experts stay at 8 bits")
        )
    if category == "embedding":
        return _embedding(model) or base
    if model.recipe in _LOW_BIT:
        return _low_bit(model, place) or base
    if category in _VALUE_LIKE:
        return _value(model, place) or base
    by_category = _BY_CATEGORY.get(category)
    chosen = by_category(model, place) if by_category is not None else None
    return chosen or base


def _output(model: MixtureModel, place: _Place) -> _Pick:
    what = "tied embedding used as output head" if place.category == "embedding" else "output head"
    size = _block_size(model.base_type)
    if model.recipe == "MXFP4_MOE" or model.architecture == "falcon":
        return "Q8_0", f"{what}: Q8_0"
    if place.shape[-1] % size:
        return "Q8_0", (
            f"{what}: row length {place.shape[-1]} is not a multiple of {size}, so Q8_0"
        )
    if model.recipe in _Q5_OUTPUT:
        return "Q5_K", f"{what}: Q5_K"
    if model.base_type == "Q8_0":
        return "Q8_0", "base type of Q8_0"
    return "Q6_K", f"{what}: Q6_K"


def _embedding(model: MixtureModel) -> _Pick | None:
    types = {
        **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"), "Q2_K"),
        **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
        **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), "Q4_K"),
    }
    chosen = types.get(model.recipe)
    return (chosen, f"token embedding of {model.recipe}") if chosen else None


def _low_bit(model: MixtureModel, place: _Place) -> _Pick | None:
    wide = "IQ3_S" if model.recipe in ("IQ2_S", "IQ2_M") else "Q2_K"
    if place.category in _VALUE_LIKE:
        if model.shared_heads >= 4 or model.n_expert >= 4:
            return "Q4_K", "attention values shared by at least 4 heads, or at least 4 experts"
        return wide, "attention values"
    if place.category == "attn_k" and model.n_expert == 8:
        return "Q4_K", "attention keys of an 8-expert model"
    if place.category == "ffn_down" and place.index < model.n_layer // 8:
        return wide, "first eighth of ffn_down"
    if place.category == "attn_output":
        if model.n_expert == 8:
            return "Q5_K", "attention output of an 8-expert model"
        if model.recipe in ("IQ1_S", "IQ1_M"):
            return "IQ2_XXS", "attention output"
        if model.recipe in ("IQ2_S", "IQ2_M"):
            return "IQ3_S", "attention output"
    return None


def _value(model: MixtureModel, place: _Place) -> _Pick | None:
    if model.n_expert == 8:
        return "Q8_0", "attention values of an 8-expert model"
    chosen = _value_by_recipe(model, place)
    picked = chosen[0] if chosen else model.base_type
    if model.is_70b and picked in ("Q3_K", "Q4_K"):
        return "Q5_K", "attention values of a 70B model"
    return chosen


def _value_by_recipe(model: MixtureModel, place: _Place) -> _Pick | None:
    recipe, shared = model.recipe, model.shared_heads >= 4
    index, count = place.index, place.count
    of_shared = "attention values shared by at least 4 heads"
    if recipe == "Q2_K":
        return ("Q4_K", of_shared) if shared else ("Q3_K", "attention values")
    if recipe == "IQ3_XXS":
        if shared:
            return "Q4_K", of_shared
        return ("IQ3_XXS" if model.imatrix else "IQ3_S"), "attention values"
    if recipe in ("Q2_K_S", "IQ3_XS", "IQ3_S") and shared:
        return "Q4_K", of_shared
    if recipe in ("IQ4_NL", "IQ4_XS") and shared:
        return "Q5_K", of_shared
    if recipe == "IQ3_M":
        return "Q4_K", "attention values"
    if recipe == "Q3_K_M":
        return (
            ("Q5_K", "attention values of the first 2 layers")
            if index < 2
            else (
                "Q4_K",
                "attention values",
            )
        )
    if recipe == "Q3_K_L":
        return "Q5_K", "attention values"
    if recipe in ("Q4_K_M", "Q5_K_M") and _more_bits(index, count):
        return "Q6_K", "attention values of a layer that gets more bits"
    if recipe == "Q4_K_S" and index < 4:
        return "Q5_K", "attention values of the first 4 layers"
    return None


def _key(model: MixtureModel, place: _Place) -> _Pick | None:
    if model.n_expert == 8:
        return "Q8_0", "attention keys of an 8-expert model"
    return _query(model, place)


def _query(model: MixtureModel, place: _Place) -> _Pick | None:
    chosen = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(model.recipe)
    return (chosen, "attention queries and keys") if chosen else None


def _attention_output(model: MixtureModel, place: _Place) -> _Pick | None:
    recipe = model.recipe
    if model.architecture == "falcon":
        return ("Q4_K", "attention output") if recipe == "Q3_K_L" else None
    if model.n_expert == 8:
        raised = (
            "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S",
            "IQ3_M", "IQ4_XS",
        )  # fmt: skip
        return ("Q5_K", "attention output of an 8-expert model") if recipe in raised else None
    chosen = {
        "Q2_K": "Q3_K",
        "IQ3_XXS": "IQ3_S",
        "Q3_K_M": "Q4_K",
        "Q3_K_L": "Q5_K",
        "IQ3_M": "Q4_K",
    }.get(recipe)
    return (chosen, "attention output") if chosen else None


def _ffn_down(model: MixtureModel, place: _Place) -> _Pick | None:
    index, count, recipe = place.index, place.count, model.recipe
    falcon, early = model.architecture == "falcon", place.index < place.count // 8
    first = "first eighth of ffn_down"
    if recipe == "Q2_K":
        return "Q3_K", "ffn_down"
    if recipe == "Q2_K_S" and early:
        return "Q4_K", first
    if recipe == "IQ3_XXS" and not model.imatrix:
        return ("Q4_K", first) if early else ("Q3_K", "ffn_down without importance matrix")
    if recipe == "Q3_K_M":
        if index < count // 16:
            return "Q5_K", "first sixteenth of ffn_down"
        return ("Q4_K", "ffn_down") if not falcon or _more_bits(index, count) else None
    if recipe == "Q3_K_L":
        return "Q4_K" if falcon else "Q5_K", "ffn_down"
    if recipe == "IQ3_M" and (early or (model.n_expert == 8 and _more_bits(index, count))):
        return "Q4_K", "ffn_down of a layer that gets more bits"
    if recipe == "Q4_K_M" and falcon:
        if index < count // 16:
            return "Q6_K", "first sixteenth of ffn_down"
        return (
            ("Q5_K", "ffn_down of a layer that gets more bits")
            if _more_bits(index, count)
            else None
        )
    if recipe in ("Q4_K_M", "Q5_K_M") and _more_bits(index, count):
        return "Q6_K", "ffn_down of a layer that gets more bits"
    if recipe in ("IQ4_NL", "IQ4_XS") and early and not model.imatrix:
        return "Q5_K", first
    if recipe == "Q4_K_S" and early and not falcon:
        return "Q5_K", first
    if recipe in ("Q4_0", "Q5_0") and early and model.imatrix:
        return recipe.replace("_0", "_1"), first + " with importance matrix"
    return None


def _ffn_gate_up(model: MixtureModel, place: _Place) -> _Pick | None:
    middle = place.count // 8 <= place.index < 7 * place.count // 8
    if model.recipe == "IQ3_XS" and middle:
        return "IQ3_XXS", "middle layers of ffn_gate and ffn_up"
    return None


_BY_CATEGORY: Mapping[str, Callable[[MixtureModel, _Place], _Pick | None]] = MappingProxyType(
    {
        "attn_k": _key,
        "attn_q": _query,
        "attn_output": _attention_output,
        "ffn_down": _ffn_down,
        "ffn_gate": _ffn_gate_up,
        "ffn_up": _ffn_gate_up,
    }
)
