"""What configs say about bitsandbytes weights.

Keys and values: transformers (utils/quantization_config.py, BitsAndBytesConfig), GPTQModel
(gptqmodel/quantization/config.py, BitsAndBytes formats).
"""

from __future__ import annotations

from collections.abc import Iterator

from quantscope.families.declarations import Declarations, Section
from quantscope.model import Claim

from quantscope_plugins.families.ct_config import is_int

STORAGE_WORDS = {
    "uint8": "U8",
    "int8": "I8",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
}
"""torch dtype name -> stored dtype word."""

ROUNDINGS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def claims(module: str, declared: Declarations) -> Iterator[Claim]:
    """Claims of every bitsandbytes section on a module's contract."""
    for section in declared.with_method("bitsandbytes"):
        if declared.names(section, "llm_int8_skip_modules").matches(module, ""):
            yield section.claim("element", "plain", "llm_int8_skip_modules")
        if section.get("load_in_4bit") is True:
            yield from _four_bit(section)
        elif section.get("load_in_8bit") is True:
            yield section.claim("element", "s8", "load_in_8bit")
        yield from _gptqmodel(section)


def _four_bit(section: Section) -> Iterator[Claim]:
    kind = section.get("bnb_4bit_quant_type")
    if kind in ("nf4", "fp4"):
        yield section.claim("element", kind, "bnb_4bit_quant_type")
    nested = section.get("bnb_4bit_use_double_quant")
    if isinstance(nested, bool):
        yield section.claim(
            "scale", {"dtype": "u8" if nested else "f32"}, "bnb_4bit_use_double_quant"
        )
    storage = STORAGE_WORDS.get(str(section.get("bnb_4bit_quant_storage")).removeprefix("torch."))
    if storage is not None:
        yield section.claim("packing", {"word": storage}, "bnb_4bit_quant_storage")


def _gptqmodel(section: Section) -> Iterator[Claim]:
    """`format`, `block_size` and `compress_statistics`; its `group_size` of -1 says nothing of the blocks."""
    element = {"nf4": "nf4", "fp4": "fp4", "int8": "s8"}.get(str(section.get("format")))
    if element is not None:
        yield section.claim("element", element, "format")
    size, nested = section.get("block_size"), section.get("compress_statistics")
    if is_int(size) and size > 0 and element != "s8":
        yield section.claim("group", {"axis": "flat", "size": size}, "block_size")
    if isinstance(nested, bool) and element != "s8":
        yield section.claim("scale", {"dtype": "u8" if nested else "f32"}, "compress_statistics")
