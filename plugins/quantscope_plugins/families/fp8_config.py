"""What configs say about FP8 weights outside compressed-tensors.

Keys and values: transformers (utils/quantization_config.py, FineGrainedFP8Config, FbgemmFp8Config), GPTQModel
(gptqmodel/quantization/config.py), Mistral (params.json), DeepSeek-V3 (inference/configs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantscope.families.declarations import Declarations, Section
from quantscope.model import Claim, Json

from quantscope_plugins.families import ct_config, modelopt_config

METHODS = ("fp8", "fbgemm_fp8", "deepseek_v4_fp8", "mxfp8", "w8a8_fp8")

ELEMENTS = {
    "e4m3": "e4m3fn",
    "e5m2": "e5m2",
    "fp8_e4m3": "e4m3fn",
    "fp8_e5m2": "e5m2",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
}

SKIP_KEYS = ("modules_to_not_convert", "ignored_layers")


def sections(declared: Declarations) -> list[Section]:
    """Sections that speak about FP8 weights."""
    return declared.once(
        "fp8 sections",
        lambda: [
            section
            for section in declared.sections
            if section.method in METHODS or section.has("qformat_weight")
        ],
    )


def is_gptqmodel(section: Section) -> bool:
    """Whether GPTQModel wrote the section: it alone names the scale's method and semantics."""
    return section.has("weight_scale_semantics") or section.has("weight_scale_method")


def divides(declared: Declarations) -> bool:
    """Whether a section says that weight_scale_inv is the reciprocal of the scale."""
    return any(is_gptqmodel(section) for section in sections(declared))


def says_fp8(declared: Declarations) -> bool:
    """Whether any section says that weights are scaled FP8."""
    if sections(declared) or ct_config.ct_sections(declared):
        return True
    return any(
        str(section.get("quant_algo")).startswith("FP8")
        for section in modelopt_config.modelopt_sections(declared)
    )


def declared_blocks(declared: Declarations, module: str) -> tuple[tuple[int, int], ...]:
    """Block sizes declared for a module."""
    found = [ct_config.as_block(s.get("weight_block_size")) for s in sections(declared)]
    found += list(ct_config.declared_blocks(declared, module))
    return tuple(dict.fromkeys(block for block in found if block is not None))


def claims(module: str, declared: Declarations, suffix: str) -> Iterator[Claim]:
    """Claims of every section on a module's contract.

    Args:
        module: the module.
        declared: every declaration.
        suffix: stored suffix of the scale plane; only weight_scale_inv has two senses.
    """
    for section in sections(declared):
        yield from _section_claims(declared, section, module, suffix)
    yield from ct_config.claims(module, declared)
    yield from modelopt_config.claims(module, declared)


def _section_claims(
    declared: Declarations, section: Section, module: str, suffix: str
) -> Iterator[Claim]:
    for key in SKIP_KEYS:
        if declared.names(section, key).matches(module, ""):
            yield section.claim("element", "plain", key)
    for key in ("fmt", "format", "checkpoint_format", "qformat_weight"):
        element = ELEMENTS.get(str(section.get(key)))
        if element is not None:
            yield section.claim("element", element, key)
    block = ct_config.as_block(section.get("weight_block_size"))
    if block is not None:
        yield section.claim("group", {"axis": "block", "size": list(block)}, "weight_block_size")
    if section.get("scale_fmt") == "ue8m0":
        yield section.claim("scale_rule", "power_of_two", "scale_fmt")
    axis = {"row": "channel", "tensor": "tensor", "block": "block"}.get(
        str(section.get("weight_scale_method"))
    )
    if axis is not None:
        yield section.claim("group", {"axis": axis}, "weight_scale_method")
    yield from _direction(section, suffix)
    if section.method == "fbgemm_fp8":
        values: tuple[tuple[str, Json], ...] = (
            ("element", "e4m3fn"),
            ("group", {"axis": "channel"}),
            ("scale", {"direction": "multiply"}),
        )
        for field, value in values:
            yield section.claim(field, value, "quant_method", basis="by_definition")


def _direction(section: Section, suffix: str) -> Iterator[Claim]:
    """Multiply or divide: GPTQModel's semantics key, else transformers' definition of `fp8`."""
    written: Any = section.get("weight_scale_semantics")
    if isinstance(written, str):
        value = "divide" if written == "inverse" and suffix.endswith("_inv") else "multiply"
        yield section.claim("scale", {"direction": value}, "weight_scale_semantics")
    elif section.method == "fp8" and not is_gptqmodel(section):
        yield section.claim(
            "scale", {"direction": "multiply"}, "quant_method", basis="by_definition"
        )
