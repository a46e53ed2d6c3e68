"""What compressed-tensors configs, and AutoRound's for the same planes, say about a module.

Keys and values: compressed-tensors (config/base.py, quantization/quant_args.py, quantization/quant_config.py,
utils/match.py), AutoRound (export/export_to_autoround/export.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

import msgspec
from quantscope.families.declarations import Declarations, Section
from quantscope.families.modules import pattern_matches
from quantscope.model import Claim, Json

from quantscope_plugins.families import qweight_config

METHODS = ("compressed-tensors", "compressed_tensors", "sparseml")

FLOAT_ELEMENTS = {4: "e2m1", 6: "e2m3", 8: "e4m3fn"}

SCALE_WORDS = {
    "torch.float8_e4m3fn": "e4m3",
    "torch.uint8": "e8m0",
    "torch.float8_e8m0fnu": "e8m0",
    "torch.bfloat16": "bf16",
    "torch.float16": "f16",
    "torch.float32": "f32",
}

EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings")

DATA_TYPES = ("mx_fp", "nv_fp", "int", "fp")


class Scheme(msgspec.Struct, frozen=True, kw_only=True):
    """The config group that applies to a module, or the ignore entry that excludes it."""

    section: Section
    group: str | None
    """Key under `config_groups`, or None."""
    ignored: bool = False

    def at(self, *keys: str) -> tuple[str, ...]:
        """Path of a key of the group inside the section."""
        return ("config_groups", self.group or "", *keys)

    def get(self, *keys: str) -> Any:
        """A value of the group."""
        return self.section.get(*self.at(*keys)) if self.group is not None else None

    @property
    def weights(self) -> dict[str, Any]:
        """Quantization arguments of the weights, or an empty dict."""
        found = self.get("weights")
        return found if isinstance(found, dict) else {}

    @property
    def format(self) -> str | None:
        """Format of the group, or the global one."""
        for written in (self.get("format"), self.section.get("format")):
            if isinstance(written, str):
                return written
        return None


def ct_sections(declared: Declarations) -> list[Section]:
    """Sections of compressed-tensors."""
    return declared.once(
        "ct_config sections",
        lambda: [section for section in declared.sections if section.method in METHODS],
    )


def autoround_sections(declared: Declarations) -> list[Section]:
    """Sections that AutoRound wrote under its own method."""
    return declared.once(
        "auto-round sections",
        lambda: [s for s in declared.sections if s.method in qweight_config.AUTOROUND_METHODS],
    )


def word(declared: Declarations, derived: str) -> str:
    """Report word: the declared global format, AutoRound's packing format, else the shapes' own.

    Args:
        declared: every declaration.
        derived: format that the planes have.
    """
    for section in ct_sections(declared):
        written = section.get("format")
        return f"compressed_tensors:{written if isinstance(written, str) else derived}"
    for section in autoround_sections(declared):
        written = section.get("packing_format")
        if isinstance(written, str):
            return f"autoround:{written}"
    return f"compressed_tensors:{derived}"


def schemes(declared: Declarations, module: str) -> list[Scheme]:
    """What each section says of a module: exact names stand over regexes, these over class names."""
    return declared.once(
        ("ct_config", module),
        lambda: [_scheme(declared, section, module) for section in ct_sections(declared)],
    )


def _scheme(declared: Declarations, section: Section, module: str) -> Scheme:
    kind = "Embedding" if module.rpartition(".")[2] in EMBEDDINGS else "Linear"
    ignored = declared.names(section, "ignore").matches(module, kind)
    best: tuple[int, str] | None = None
    groups = section.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(targets, list) or not isinstance(group.get("weights"), dict):
            continue
        for target in targets:
            if isinstance(target, str) and pattern_matches(target, module, kind):
                rank = 2 if target == kind else 1 if target.startswith("re:") else 0
                if best is None or rank < best[0]:
                    best = (rank, str(name))
    return Scheme(section=section, group=best[1] if best else None, ignored=ignored)


def declared_sizes(declared: Declarations, module: str) -> tuple[int, ...]:
    """Group sizes declared for a module."""
    sizes = [scheme.weights.get("group_size") for scheme in schemes(declared, module)]
    for section in autoround_sections(declared):
        sizes.append(qweight_config.Scope(section, module).value("group_size"))
    return tuple(dict.fromkeys(size for size in sizes if is_int(size) and size > 0))


def declared_blocks(declared: Declarations, module: str) -> tuple[tuple[int, int], ...]:
    """Block structures declared for a module."""
    found = []
    for scheme in schemes(declared, module):
        block = as_block(scheme.weights.get("block_structure"))
        if block is not None:
            found.append(block)
    return tuple(dict.fromkeys(found))


def declared_bits(declared: Declarations, module: str) -> tuple[int, ...]:
    """Widths declared for a module."""
    widths = [scheme.weights.get("num_bits") for scheme in schemes(declared, module)]
    for section in autoround_sections(declared):
        widths.append(qweight_config.Scope(section, module).value("bits"))
    return tuple(dict.fromkeys(width for width in widths if is_int(width) and 1 <= width <= 8))


def claims(module: str, declared: Declarations) -> Iterator[Claim]:
    """Claims of every section on a module's contract."""
    for scheme in schemes(declared, module):
        if scheme.ignored:
            yield scheme.section.claim("element", "plain", "ignore")
        if scheme.group is not None:
            yield from _argument_claims(scheme)
            yield from _format_claims(scheme)
    for section in autoround_sections(declared):
        yield from _autoround_claims(section, module)


def _argument_claims(scheme: Scheme) -> Iterator[Claim]:
    weights, section = scheme.weights, scheme.section

    def claim(field: str, value: Json, key: str) -> Claim:
        return section.claim(field, value, *scheme.at("weights", key))

    width, kind = weights.get("num_bits"), weights.get("type", "int")
    if is_int(width):
        element = element_of(width, kind, scheme.format)
        if element is not None:
            yield claim("element", element, "num_bits")
    strategy = weights.get("strategy")
    size, block = weights.get("group_size"), as_block(weights.get("block_structure"))
    axis = {"tensor": "tensor", "channel": "channel", "block": "block"}.get(str(strategy))
    if strategy in ("group", "tensor_group"):
        yield claim("group", {"axis": "in"}, "strategy")
    elif axis is not None:
        yield claim("group", {"axis": axis}, "strategy")
    if is_int(size) and size > 0:
        yield claim("group", {"axis": "in", "size": size}, "group_size")
    elif is_int(size):
        yield claim("group", {"axis": "channel", "size": None}, "group_size")
    if block is not None:
        yield claim("group", {"axis": "block", "size": list(block)}, "block_structure")
    if isinstance(weights.get("symmetric"), bool):
        yield claim("symmetric", weights["symmetric"], "symmetric")
    scale = SCALE_WORDS.get(str(weights.get("scale_dtype")))
    if scale is not None:
        yield claim("scale", {"dtype": scale}, "scale_dtype")
    order = weights.get("actorder")
    if order in ("group", "weight", "static", True):
        value = "act_order" if order in ("group", True) else "natural"
        yield claim("order", value, "actorder")


def element_of(width: int, kind: Any, format_word: str | None) -> str | None:
    """The stored element of `num_bits` and `type` in a format; packed integers are offset-binary."""
    if kind == "float":
        return FLOAT_ELEMENTS.get(width)
    if not 1 <= width <= 8:
        return None
    return f"s{width}" if format_word in ("int-quantized", "naive-quantized") else f"u{width}"


def _format_claims(scheme: Scheme) -> Iterator[Claim]:
    """What the format's definition fixes, once for the group's word and once for the global one."""
    mixed = scheme.section.get("format") == "mixed-precision"
    for keys in (scheme.at("format"), ("format",)):
        written = scheme.section.get(*keys)
        if not isinstance(written, str):
            continue
        for field, value in format_values(written, scheme.weights, mixed):
            yield scheme.section.claim(field, value, *keys, basis="by_definition")
    order = _order_of_version(scheme)
    if order is not None:
        yield scheme.section.claim("packing", {"order": order}, "version", basis="by_definition")


def _order_of_version(scheme: Scheme) -> str | None:
    """Dense or padded words, where the width makes them differ: 0.18.0 changed from padded to dense.

    Source: compressed-tensors 0.17.1 and 0.18.0, compressors/pack_quantized.
    """
    version, width = scheme.section.get("version"), scheme.weights.get("num_bits")
    if scheme.format != "pack-quantized" or width not in (3, 5, 6, 7):
        return None
    parts = version.split(".") if isinstance(version, str) else []
    numbers = [part for part in parts[:2] if part.isascii() and part.isdigit() and len(part) < 5]
    if len(numbers) != 2:
        return None
    return "bitstream" if (int(numbers[0]), int(numbers[1])) >= (0, 18) else "padded"


def format_values(
    written: str, weights: dict[str, Any], mixed: bool = False
) -> Iterator[tuple[str, Json]]:
    """Contract values that a format word fixes.

    Args:
        written: the format.
        weights: quantization arguments.
        mixed: the checkpoint mixes formats, so that the absence of zeros is a statement of the group's own.

    Source: compressed-tensors, compressors/*/base.py.
    """
    if written == "pack-quantized":
        yield "packing", {"word": "I32", "axis": "in"}
        if weights.get("symmetric", True):
            yield "zero", "fixed"
        else:
            yield "zero", "integer"
            yield "zero_convention", "as_is"
    elif written in ("int-quantized", "float-quantized", "naive-quantized"):
        yield "packing", {"order": "one_per_word"}
        if weights.get("symmetric") is False:
            yield "zero", "integer"
            yield "zero_convention", "as_is"
        elif mixed:
            yield "zero", "none"
    elif written == "nvfp4-pack-quantized":
        yield "packing", {"word": "U8", "order": "low_first"}
        yield "scale", {"dtype": "e4m3", "second_level": {"direction": "divide"}}
    elif written == "mxfp4-pack-quantized":
        yield "packing", {"word": "U8", "order": "low_first"}
        yield "scale", {"dtype": "e8m0"}
    elif written == "mxfp6-pack-quantized":
        yield "packing", {"word": "U8", "order": "bitstream"}
        yield "scale", {"dtype": "e8m0"}
    elif written == "mxfp8-quantized":
        yield "packing", {"order": "one_per_word"}
        yield "scale", {"dtype": "e8m0"}


def _autoround_claims(section: Section, module: str) -> Iterator[Claim]:
    scope = qweight_config.Scope(section, module)
    kind, width = scope.value("data_type"), scope.value("bits")
    text = kind if isinstance(kind, str) else "int"
    float_type = text.startswith(("mx_fp", "nv_fp", "fp"))
    if is_int(width):
        element = element_of(width, "float" if float_type else "int", None)
        if element is not None:
            yield scope.claim("element", element, "bits")
    if float_type and isinstance(kind, str):
        scale = {"mx": "e8m0", "nv": "ue5m3" if "v2" in text else "e4m3"}.get(text[:2])
        if scale is not None:
            yield scope.claim("scale", {"dtype": scale}, "data_type", basis="by_definition")
    layout = section.get("packing_format")
    packed = float_type and width == 4
    if packed and isinstance(layout, str) and layout.startswith("auto_round"):
        yield section.claim(
            "packing", {"order": "low_first"}, "packing_format", basis="by_definition"
        )
    size = scope.value("group_size")
    block = as_block(size) if isinstance(size, list) else None
    if is_int(size):
        yield scope.claim("group", qweight_config.group_value(size), "group_size")
    elif block is not None:
        yield scope.claim("group", {"axis": "block", "size": list(block)}, "group_size")
    if isinstance(scope.value("sym"), bool):
        yield scope.claim("symmetric", scope.value("sym"), "sym")


def as_block(value: Any) -> tuple[int, int] | None:
    """A block structure `[r, c]`, or `"RxC"` as older versions wrote it."""
    if isinstance(value, str):
        rows, _, cols = value.lower().partition("x")
        if not (rows.isascii() and rows.isdigit() and cols.isascii() and cols.isdigit()):
            return None
        value = [int(rows[:9]), int(cols[:9])]
    if not isinstance(value, list) or len(value) != 2 or not all(is_int(v) for v in value):
        return None
    return (value[0], value[1]) if min(value) > 0 else None


def is_int(value: Any) -> TypeGuard[int]:
    """Whether a JSON value is an integer, booleans left out."""
    return isinstance(value, int) and not isinstance(value, bool)
