"""What MLX configs (and Hugging Face's `metal`) say about a module.

Keys and values: mlx-lm (mlx_lm/utils.py): `quantization` and its copy under `quantization_config` hold
group_size, bits and mode, and one entry per module path, a dict or false; a null inherits the global value.
transformers (integrations/metal_quantization.py) uses quant_method `metal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantscope.families.declarations import Declarations, Section
from quantscope.families.index import TensorIndex
from quantscope.model import Claim, Json, Orphan

from quantscope_plugins.families.ct_config import is_int

MODES: dict[str, tuple[tuple[str, Json], ...]] = {
    "affine": (("zero", "additive_min"),),
    "mxfp4": (
        ("element", "e2m1"),
        ("scale", {"dtype": "e8m0"}),
        ("group", {"axis": "in", "size": 32}),
    ),
    "mxfp8": (
        ("element", "e4m3fn"),
        ("scale", {"dtype": "e8m0"}),
        ("group", {"axis": "in", "size": 32}),
    ),
    "nvfp4": (
        ("element", "e2m1"),
        ("scale", {"dtype": "e4m3"}),
        ("group", {"axis": "in", "size": 16}),
    ),
}
"""Mode -> contract values that its definition fixes. Source: MLX, python/src/ops.cpp."""


def sections(declared: Declarations) -> list[Section]:
    """Sections that speak about MLX planes: no method and bits with a group size, or `metal`."""
    return [
        section
        for section in declared.sections
        if section.method in ("metal", "mlx")
        or (not section.method and section.has("bits") and section.has("group_size"))
    ]


def claims(module: str, declared: Declarations) -> Iterator[Claim]:
    """Claims of every section on a module's contract, the module's own entry first."""
    for section in sections(declared):
        entry = section.get(module)
        if entry is False:
            yield section.claim("element", "plain", module)
        own: dict[str, Any] = entry if isinstance(entry, dict) else {}
        mode = _value(section, own, "mode")
        yield from _mode_claims(section, own, module)
        for key, field in (("bits", "element"), ("group_size", "group")):
            path = (module, key) if own.get(key) is not None else (key,)
            number = section.get(*path)
            if not is_int(number):
                continue
            value: Json = {"axis": "in", "size": number}
            if field == "element":
                value = _element(number, mode)
            yield section.claim(field, value, *path)


def _value(section: Section, own: dict[str, Any], key: str) -> Any:
    return own[key] if own.get(key) is not None else section.get(key)


def _element(width: int, mode: Any) -> str:
    if mode in ("mxfp4", "nvfp4") and width == 4:
        return "e2m1"
    return "e4m3fn" if mode == "mxfp8" and width == 8 else f"u{width}"


def _mode_claims(section: Section, own: dict[str, Any], module: str) -> Iterator[Claim]:
    written, general = own.get("mode"), section.get("mode")
    places: list[tuple[Any, tuple[str, ...]]] = []
    if written is not None:
        places.append((written, (module, "mode")))
    if written is None or written == general:
        places.append((general, ("mode",)))
    for mode, path in places:
        for field, value in MODES.get(str(mode), ()):
            yield section.claim(field, value, *path, basis="by_definition")


def lonely_weights(index: TensorIndex, family: str) -> Iterator[Orphan]:
    """Packed U32 weights without scales."""
    for module in index.modules_with("weight"):
        weight = index.get(module, "weight")
        if weight is None or weight.dtype != "U32" or len(weight.shape) < 2:
            continue
        if index.get(module, "scales") is None:
            yield Orphan(stored_name=weight.name, module=module, family=family, missing=("scales",))
