"""What ComfyUI files say about a layer: `_quantization_metadata` in the header, or a `comfy_quant` tensor.

Source: ComfyUI, QUANTIZATION.md; comfy-kitchen, comfy_kitchen/tensor/*.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from quantscope.families.declarations import Declarations
from quantscope.families.index import TensorIndex
from quantscope.model import Claim, Json, LogicalTensor, Source

METADATA_KEY = "_quantization_metadata"
MAX_TEXT = 1 << 24

BY_FORMAT: dict[str, tuple[tuple[str, Json], ...]] = {
    "float8_e4m3fn": (("element", "e4m3fn"),),
    "float8_e5m2": (("element", "e5m2"),),
    "nvfp4": (
        ("element", "e2m1"),
        ("group", {"axis": "in", "size": 16}),
        ("packing", {"order": "high_first"}),
        ("placement", "cutlass_128x4"),
    ),
    "mxfp8": (
        ("element", "e4m3fn"),
        ("scale", {"dtype": "e8m0"}),
        ("group", {"axis": "in", "size": 32}),
        ("placement", "cutlass_128x4"),
    ),
    "int8_tensorwise": (("element", "s8"),),
}
"""Format word -> contract values that its definition fixes."""


@lru_cache(maxsize=16)
def _layers(text: str) -> dict[str, Any]:
    if len(text) > MAX_TEXT:
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    layers = parsed.get("layers") if isinstance(parsed, dict) else None
    return layers if isinstance(layers, dict) else {}


def layer_format(declared: Declarations, module: str) -> tuple[str | None, Source | None]:
    """Format word of a layer in `_quantization_metadata`, and its source."""
    for source, text in declared.metadata(METADATA_KEY):
        entry = _layers(text).get(module) if isinstance(text, str) else None
        written = entry.get("format") if isinstance(entry, dict) else None
        if isinstance(written, str):
            return written, source
    return None, None


def marker_format(index: TensorIndex, module: str) -> str | None:
    """Format word inside the layer's `comfy_quant` tensor."""
    stored = index.get(module, "comfy_quant")
    if stored is None:
        return None
    written = _marker(index.small(stored)).get("format")
    return written if isinstance(written, str) else None


def _marker(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data.decode("utf-8").rstrip("\0"))
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def is_comfy(index: TensorIndex, declared: Declarations, module: str) -> bool:
    """Whether a file or a layer marks itself as ComfyUI's."""
    return (
        index.get(module, "comfy_quant") is not None
        or layer_format(declared, module)[0] is not None
        or next(declared.metadata(METADATA_KEY), None) is not None
    )


def claims(tensor: LogicalTensor, declared: Declarations) -> Iterator[Claim]:
    """Claims of the header entry and of the layer's marker, which grouping noted as fact `comfy_quant`."""
    written, source = layer_format(declared, tensor.module)
    if written is not None and source is not None:
        for field, value in BY_FORMAT.get(written, ()):
            yield Claim(
                field=field, value=value, source=source, basis="by_definition", written=written
            )
    marker = tensor.fact("comfy_quant")
    if marker:
        file = next((f.name for f in declared.files if f.file_id == tensor.planes[0].file_id), "")
        place = Source(file, f"{tensor.module}.comfy_quant#/format")
        for field, value in BY_FORMAT.get(marker, ()):
            yield Claim(
                field=field, value=value, source=place, basis="by_definition", written=marker
            )
