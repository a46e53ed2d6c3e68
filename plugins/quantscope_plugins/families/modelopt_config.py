"""What ModelOpt and Quark configs say about a module.

Keys and values: ModelOpt (modelopt/torch/export/convert_hf_config.py, quant_utils.py, layer_utils.py),
Quark (amd-quark 0.13, quark/torch/export/nn/modules/realquantizer.py, config as in quantization_config).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from quantscope.families.declarations import Declarations, Section
from quantscope.families.modules import pattern_matches
from quantscope.model import Claim, Json

from quantscope_plugins.families.ct_config import is_int

METHODS = ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed")

BY_ALGORITHM: dict[str, tuple[tuple[str, Json], ...]] = {
    "FP8": (("element", "e4m3fn"), ("group", {"axis": "tensor"})),
    "FP8_PER_CHANNEL_PER_TOKEN": (("element", "e4m3fn"), ("group", {"axis": "channel"})),
    "FP8_PB_WO": (("element", "e4m3fn"), ("group", {"axis": "block"})),
    "FP8_PB_REAL": (("element", "e4m3fn"), ("group", {"axis": "block"})),
    "MXFP8": (("element", "e4m3fn"), ("scale", {"dtype": "e8m0"}), ("group", {"size": 32})),
    "NVFP4": (
        ("element", "e2m1"),
        ("scale", {"dtype": "e4m3", "second_level": {"direction": "multiply"}}),
        ("group", {"axis": "in"}),
        ("packing", {"order": "low_first"}),
    ),
    "W4A8_MXFP4_FP8": (
        ("element", "e2m1"),
        ("scale", {"dtype": "e8m0"}),
        ("packing", {"order": "low_first"}),
    ),
    "W4A16_AWQ": (("element", "s4"),),
    "W4A8_AWQ": (("element", "s4"),),
    "W8A16": (("element", "s8"),),
    "W8A8_SQ_PER_CHANNEL": (("element", "s8"), ("group", {"axis": "channel"})),
}
"""quant_algo -> contract values that its definition fixes (vLLM, quantization/modelopt.py; ModelOpt, export)."""

ALIASES = {
    "NVFP4_AWQ": "NVFP4",
    "W4A16_NVFP4": "NVFP4",
    "NVFP4_SVD": "NVFP4",
    "W4A8_NVFP4_FP8": "NVFP4",
    "NVFP4_W4A16": "NVFP4",
    "MXFP4": "W4A8_MXFP4_FP8",
}


def modelopt_sections(declared: Declarations) -> list[Section]:
    """Sections of ModelOpt, in config.json and in hf_quant_config.json."""
    return declared.once(
        "modelopt sections",
        lambda: [
            section
            for section in declared.sections
            if section.method in METHODS
            or (section.file == "hf_quant_config.json" and section.has("quant_algo"))
        ],
    )


def quark_sections(declared: Declarations) -> list[Section]:
    """Sections of Quark."""
    return declared.once(
        "quark sections",
        lambda: [section for section in declared.sections if section.method == "quark"],
    )


def algorithm(section: Section, module: str) -> tuple[str | None, tuple[str, ...]]:
    """quant_algo of a module and where it stands: its own entry of `quantized_layers`, else the global one."""
    key = layer_key(section, module)
    if key is not None and section.has("quantized_layers", key, "quant_algo"):
        written = section.get("quantized_layers", key, "quant_algo")
        return (written if isinstance(written, str) else None), (
            "quantized_layers",
            key,
            "quant_algo",
        )
    written = section.get("quant_algo")
    return (written if isinstance(written, str) else None), ("quant_algo",)


def layer_key(section: Section, module: str) -> str | None:
    """The key of `quantized_layers` that names a module, or None."""
    layers = section.get("quantized_layers")
    if not isinstance(layers, dict):
        return None
    if module in layers:
        return module
    return next((str(key) for key in layers if fnmatchcase(module, str(key))), None)


def module_algorithm(declared: Declarations, module: str) -> str | None:
    """quant_algo of a module under the first section that states one."""
    for section in modelopt_sections(declared):
        found, _ = algorithm(section, module)
        if found is not None:
            return found
    return None


def declared_sizes(declared: Declarations, module: str) -> tuple[int, ...]:
    """Group sizes declared for a module."""
    found = [claim.written for claim in claims(module, declared) if claim.field == "group"]
    return tuple(dict.fromkeys(size for size in found if is_int(size) and size > 0))


def claims(module: str, declared: Declarations) -> Iterator[Claim]:
    """Claims of every ModelOpt and Quark section on a module's contract."""

    def stated() -> tuple[Claim, ...]:
        found: list[Claim] = []
        for section in modelopt_sections(declared):
            found.extend(_modelopt_claims(declared, section, module))
        for section in quark_sections(declared):
            found.extend(_quark_claims(declared, section, module))
        return tuple(found)

    return iter(declared.once(("modelopt_config", module), stated))


def _modelopt_claims(declared: Declarations, section: Section, module: str) -> Iterator[Claim]:
    for key in ("exclude_modules", "ignore"):
        if declared.names(section, key, shell=True).matches(module, ""):
            yield section.claim("element", "plain", key)
    algo, keys = algorithm(section, module)
    if algo is not None:
        for field, value in BY_ALGORITHM.get(ALIASES.get(algo, algo), ()):
            yield section.claim(field, value, *keys, basis="by_definition")
    layer = layer_key(section, module)
    size_keys = ("quantized_layers", layer, "group_size") if layer else ("group_size",)
    size = section.get(*size_keys)
    if is_int(size) and size > 0:
        yield section.claim("group", {"axis": "in", "size": size}, *size_keys)
    zero_point = section.get("has_zero_point")
    if isinstance(zero_point, bool):
        yield section.claim("zero", "integer" if zero_point else "none", "has_zero_point")
    yield from _group_claims(section, module)


def _group_claims(section: Section, module: str) -> Iterator[Claim]:
    groups = section.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or not isinstance(targets, list):
            continue
        if not any(isinstance(t, str) and pattern_matches(t, module) for t in targets):
            continue
        path = ("config_groups", str(name), "weights")
        width, kind = weights.get("num_bits"), weights.get("type", "int")
        if is_int(width):
            element = {8: "e4m3fn", 4: "e2m1", 6: "e2m3"}.get(width) if kind == "float" else None
            if kind == "int":
                element = f"s{width}"
            if element is not None:
                yield section.claim("element", element, *path, "num_bits")
        size = weights.get("group_size")
        if is_int(size) and size > 0:
            yield section.claim("group", {"axis": "in", "size": size}, *path, "group_size")


def _excludes(name: str, module: str) -> bool:
    """Exact names, parents and shell patterns (`*lm_head*`)."""
    return pattern_matches(name, module, "") or ("*" in name and fnmatchcase(module, name))


QUARK_MX = {"fp4": "e2m1", "fp6_e2m3": "e2m3", "fp6_e3m2": "e3m2"}
"""mx_element_dtype of Quark's dtype `mx` -> element."""


def quark_mx_element(declared: Declarations, module: str) -> str | None:
    """The element of a module that Quark's config gives the dtype `mx`; None where it does not."""
    for claim in claims(module, declared):
        if claim.field == "element" and claim.source.pointer.endswith("/mx_element_dtype"):
            return str(claim.value)
    return None


def _quark_claims(declared: Declarations, section: Section, module: str) -> Iterator[Claim]:
    if declared.names(section, "exclude", shell=True).matches(module, ""):
        yield section.claim("element", "plain", "exclude")
    path: tuple[str, ...] = ("global_quant_config",)
    layers = section.get("layer_quant_config")
    for name in layers if isinstance(layers, dict) else ():
        if _excludes(str(name), module):
            path = ("layer_quant_config", str(name))
    weight = section.get(*path, "weight")
    steps: list[tuple[Any, tuple[str, ...]]] = (
        [(step, (*path, "weight", str(n))) for n, step in enumerate(weight)]
        if isinstance(weight, list)
        else [(weight, (*path, "weight"))]
    )
    for step, keys in steps[:1]:
        if isinstance(step, dict):
            yield from _quark_tensor(section, step, keys, indexed=isinstance(weight, list))


def _quark_tensor(
    section: Section, step: dict[str, Any], keys: tuple[str, ...], *, indexed: bool
) -> Iterator[Claim]:
    def claim(field: str, value: Json, key: str) -> Claim:
        written = step.get(key) if indexed else None
        return section.claim(field, value, *keys, key, written=written)

    elements = {
        "fp8_e4m3": "e4m3fn",
        "fp8_e5m2": "e5m2",
        "fp4": "e2m1",
        "fp6_e2m3": "e2m3",
        "fp6_e3m2": "e3m2",
        "int8": "s8",
        "uint8": "u8",
        "int4": "s4",
        "uint4": "u4",
        "int2": "s2",
        "uint2": "u2",
        "int3": "s3",
    }
    element = elements.get(str(step.get("dtype")))
    if element is not None:
        yield claim("element", element, "dtype")
    if step.get("dtype") == "mx" and str(step.get("mx_element_dtype")) in QUARK_MX:
        yield claim("element", QUARK_MX[str(step["mx_element_dtype"])], "mx_element_dtype")
        yield claim("scale", {"dtype": "s8_exponent"}, "dtype")
        if is_int(step.get("group_size")):
            yield claim("group", {"axis": "in", "size": step["group_size"]}, "group_size")
    axis = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "in"}.get(
        str(step.get("qscheme"))
    )
    if axis is not None:
        yield claim("group", {"axis": axis}, "qscheme")
    size = step.get("group_size")
    if is_int(size) and size > 0 and axis == "in":
        yield claim("group", {"axis": "in", "size": size}, "group_size")
    scale = {"e8m0": "e8m0", "e4m3": "e4m3", "e5m3": "ue5m3"}.get(str(step.get("scale_format")))
    if scale is not None:
        yield claim("scale", {"dtype": scale}, "scale_format")
    if isinstance(step.get("symmetric"), bool):
        yield claim("symmetric", step["symmetric"], "symmetric")
