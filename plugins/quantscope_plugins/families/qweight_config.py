"""What config files say about modules stored as qweight, qzeros and scales: GPTQ, AWQ and AutoRound.

Keys and values: AutoGPTQ (auto_gptq/quantization/config.py), GPTQModel (gptqmodel/quantization/config.py),
AutoAWQ (awq/models/_config.py), transformers (utils/quantization_config.py), AutoRound
(auto_round/export/export_to_autoround/export.py, auto_round/inference/backend.py).

The same statements are claims on every family with these planes: a GPTQ-shaped plane set under `awq` keeps
its shape's family, and what the tag says shows as a contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quantscope.families.declarations import Declarations, Section
from quantscope.families.modules import compiled, dynamic_key, dynamic_override
from quantscope.model import Claim, Json, Source

AUTOROUND_METHODS = ("auto-round", "intel/auto-round", "auto_round")
METHODS = ("gptq", "awq", "marlin", "inc", *AUTOROUND_METHODS)

ZERO_BY_FORMAT = {
    "gptq": "minus_one",
    "gptq_v2": "as_is",
    "gptq_p": "as_is",
    "auto_gptq": "minus_one",
    "auto_round": "as_is",
    "auto_round:gptqmodel": "as_is",
    "auto_round:auto_gptq": "minus_one",
    "auto_round:auto_awq": "as_is",
    "auto_awq": "as_is",
    "gemm": "as_is",
    "gemv": "as_is",
}
"""Format word -> what a stored zero means. Source: GPTQModel, quantization/config.py; AutoRound, inference/backend.py."""

LAYOUT_BY_FORMAT: dict[str, dict[str, Json]] = {
    "gptq_p": {"axis": "in", "order": "planar"},
    "gemm": {"axis": "out", "order": "awq"},
    "auto_round:auto_awq": {"axis": "out", "order": "awq"},
    "auto_awq": {"axis": "out", "order": "awq"},
    "gemv": {"axis": "in", "order": "sequential"},
    "gemv_fast": {"word": "I16", "axis": "in", "order": "tile"},
    "llm-awq": {"word": "I16", "axis": "in", "order": "tile"},
}
"""Format word -> packing fixed by its definition; planar words of 2, 4 and 8 bits are the sequential ones."""

PLACEMENT_BY_FORMAT = {"marlin": "marlin", "gemv_fast": "gemv_fast", "llm-awq": "gemv_fast"}

ZERO_KIND_BY_FORMAT = {"marlin": "fixed", "gemv_fast": "additive_min", "llm-awq": "additive_min"}

_BITS = ("bits", "w_bit", "wbits")
_SIZES = ("group_size", "q_group_size")
_FORMATS = ("checkpoint_format", "format", "version", "packing_format")


def relevant(section: Section) -> bool:
    """Whether a section speaks about qweight planes: by its method, or by a bare `bits` without any."""
    if section.method:
        return section.method in METHODS
    return any(section.has(key) for key in _BITS) and not section.has("mode")


def sections(declared: Declarations) -> list[Section]:
    """Sections that speak about qweight planes."""
    return declared.once(
        "qweight sections", lambda: [section for section in declared.sections if relevant(section)]
    )


def formats(declared: Declarations) -> set[str]:
    """Every format word of these sections, in lower case."""

    def found() -> set[str]:
        words = (section.get(key) for section in sections(declared) for key in _FORMATS)
        return {word.lower() for word in words if isinstance(word, str)}

    return declared.once("qweight formats", found)


def methods(declared: Declarations) -> set[str]:
    """Every quant_method of these sections."""
    return {section.method for section in sections(declared) if section.method}


def is_autoround(section: Section) -> bool:
    """Whether AutoRound wrote the section, under its own method or as a GPTQ or AWQ export."""
    return section.method in AUTOROUND_METHODS or section.get("provider") == "auto-round"


def is_gptqmodel(section: Section) -> bool:
    """Whether GPTQModel wrote the section: it names itself in `meta.quantizer`."""
    quantizer = section.get("meta", "quantizer")
    names = quantizer if isinstance(quantizer, list) else [quantizer]
    return any(isinstance(name, str) and name.startswith("gptqmodel") for name in names)


def producer(declared: Declarations) -> str:
    """Writers whose weights differ from the common rule.

    `auto-round`: its asymmetric GPTQ export, whose weights it holds in bfloat16. `gptqmodel`: subtracts one from
    whole words of zeros, so that a zero of 0 borrows from its neighbour (gptqmodel 7.7.0, gptqmodel/utils/model.py,
    convert_gptq_v2_to_v1_format_module).
    """
    for section in sections(declared):
        if section.method == "gptq" and is_gptqmodel(section):
            return "gptqmodel"
        if section.method == "gptq" and is_autoround(section) and section.get("sym") is False:
            return "auto-round"
    return ""


def minus_one_producer(declared: Declarations) -> str:
    """Marker of a producer that writes no version and always stores zero - 1."""
    for file in declared.files:
        version = file.metadata.get("auto_gptq_version")
        if isinstance(version, str):
            return f"auto_gptq_version {version[:40]}"
    for section in sections(declared):
        if section.method == "gptq" and section.get("provider") == "auto-round":
            return "provider auto-round"
    return ""


def scopes(module: str, declared: Declarations) -> list[Scope]:
    """Every section about qweight planes as a module sees it."""
    return declared.once(
        ("qweight scopes", module),
        lambda: [Scope(section, module, declared) for section in sections(declared)],
    )


def declared_sizes(module: str, declared: Declarations) -> tuple[int, ...]:
    """Group sizes declared for a module, without repeats."""
    found: list[int] = []
    for scope in scopes(module, declared):
        for key in _SIZES:
            size = scope.value(key)
            if _is_int(size) and size > 0:
                found.append(size)
    return tuple(dict.fromkeys(found))


class Scope:
    """A section as one module sees it: overrides first, then global keys."""

    def __init__(self, section: Section, module: str, declared: Declarations | None = None) -> None:
        self.section = section
        self.excluded: tuple[str, ...] | None = None
        self.path: tuple[str, ...] = ()
        self.overrides: dict[str, Json] = {}
        dynamic = section.get("dynamic")
        found = dynamic_override(dynamic, module)
        if found is False:
            self.excluded = ("dynamic", dynamic_key(dynamic, module) or "")
        elif isinstance(found, dict):
            self.path, self.overrides = ("dynamic", dynamic_key(dynamic, module) or ""), found
        else:
            key = _extra_key(section.get("extra_config"), module)
            extra = section.get("extra_config", key) if key else None
            if isinstance(extra, dict) and key:
                self.path, self.overrides = ("extra_config", key), extra
        if declared is not None and declared.names(section, "modules_to_not_convert").matches(
            module, ""
        ):
            self.excluded = ("modules_to_not_convert",)

    def at(self, key: str) -> tuple[str, ...]:
        """Path of a key inside the section: the override's where the module has one."""
        return (*self.path, key) if key in self.overrides else (key,)

    def value(self, key: str) -> Any:
        """Value of a key for the module."""
        return self.overrides[key] if key in self.overrides else self.section.get(key)

    def claim(self, field: str, value: Json, key: str, **more: Any) -> Claim:
        """A claim whose source is where the module's value of the key stands."""
        return self.section.claim(field, value, *self.at(key), **more)


def qweight_claims(module: str, declared: Declarations) -> Iterator[Claim]:
    """Claims of every section and of the safetensors metadata on a module's contract."""
    for scope in scopes(module, declared):
        section = scope.section
        if scope.excluded is not None:
            yield section.claim("element", "plain", *scope.excluded)
        yield from _numbers(scope)
        yield from _order(scope)
        yield from _format_claims(scope)
        yield from _method_claims(section)
    yield from _metadata_claims(declared)


def _numbers(scope: Scope) -> Iterator[Claim]:
    for key in _BITS:
        width = scope.value(key)
        if _is_int(width):
            yield scope.claim("element", f"u{width}", key)
    for key in _SIZES:
        size = scope.value(key)
        if _is_int(size):
            yield scope.claim("group", group_value(size), key)
    word = _WORDS.get(str(scope.section.get("pack_dtype")))
    if word is not None and scope.section.method == "gptq":
        yield scope.claim("packing", {"word": word}, "pack_dtype")
    if isinstance(scope.value("sym"), bool):
        yield scope.claim("symmetric", scope.value("sym"), "sym")
    zero_point = scope.value("zero_point")
    if isinstance(zero_point, bool):
        yield scope.claim("symmetric", not zero_point, "zero_point")


_WORDS = {"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"}
"""GPTQModel's `pack_dtype` -> stored dtype of qweight (gptqmodel/quantization/config.py)."""


def group_value(size: int) -> dict[str, Json]:
    """A declared group size in contract vocabulary; -1 is one group a row."""
    return {"axis": "channel", "size": None} if size <= 0 else {"axis": "in", "size": size}


def _order(scope: Scope) -> Iterator[Claim]:
    """`desc_act` orders the columns, except with static groups, whose g_idx stays natural.

    One group a row has no order to speak of. GPTQModel keeps `static_groups` in `meta`.
    """
    act, static = scope.value("desc_act"), scope.value("static_groups")
    if static is None:
        static = scope.section.get("meta", "static_groups")
        where: tuple[str, ...] = ("meta", "static_groups")
    else:
        where = scope.at("static_groups")
    whole_row = any(_is_int(scope.value(key)) and scope.value(key) <= 0 for key in _SIZES)
    if isinstance(act, bool) and not (act and whole_row):
        order = "act_order" if act and static is not True else "natural"
        yield scope.claim("order", order, "desc_act")
    if static is True and act is True:
        yield scope.section.claim("order", "natural", *where, basis="by_definition")


def _format_claims(scope: Scope) -> Iterator[Claim]:
    section = scope.section
    width = next((w for w in (scope.value(key) for key in _BITS) if _is_int(w)), None)
    for key in _FORMATS:
        written = section.get(key)
        if not isinstance(written, str):
            continue
        word = written.lower()
        if word in ZERO_BY_FORMAT:
            yield section.claim("zero_convention", ZERO_BY_FORMAT[word], key, basis="by_definition")
        if word in ZERO_KIND_BY_FORMAT:
            yield section.claim("zero", ZERO_KIND_BY_FORMAT[word], key, basis="by_definition")
        if word in LAYOUT_BY_FORMAT:
            layout = LAYOUT_BY_FORMAT[word]
            if word == "gptq_p" and width in (2, 4, 8):
                layout = {"axis": "in", "order": "sequential"}
            yield section.claim("packing", layout, key, basis="by_definition")
        if word in PLACEMENT_BY_FORMAT:
            yield section.claim("placement", PLACEMENT_BY_FORMAT[word], key, basis="by_definition")


def _method_claims(section: Section) -> Iterator[Claim]:
    """What the method's own definition fixes where no format word says more."""
    key = "quant_method" if section.has("quant_method") else "method"
    words = [section.get(name) for name in _FORMATS]
    if section.method == "gptq" and "marlin" not in words:
        yield section.claim("packing", {"axis": "in"}, key, basis="by_definition")
    if section.method == "awq" and not section.has("version"):
        yield section.claim("packing", LAYOUT_BY_FORMAT["gemm"], key, basis="by_definition")
        yield section.claim("zero_convention", "as_is", key, basis="by_definition")


def _metadata_claims(declared: Declarations) -> Iterator[Claim]:
    """AutoGPTQ repeats its config in `__metadata__` as text (auto_gptq/modeling/_base.py)."""
    for file in declared.files:
        for key, field in (
            ("gptq_bits", "element"),
            ("gptq_group_size", "group"),
            ("gptq_desc_act", "order"),
        ):
            written = file.metadata.get(key)
            if not isinstance(written, str):
                continue
            value = _metadata_value(field, written)
            if value is not None:
                yield Claim(
                    field=field,
                    value=value,
                    source=Source(file.name, f"__metadata__/{key}"),
                    written=written,
                )


def _metadata_value(field: str, written: str) -> Json:
    if field == "order":
        return {"True": "act_order", "False": "natural"}.get(written)
    digits = written.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 6):
        return None
    return f"u{written}" if field == "element" else group_value(int(written))


def _extra_key(extra: Json, module: str) -> str | None:
    """The key of AutoRound's `extra_config` for a module: its name, or a regex that matches it whole."""
    if not isinstance(extra, dict):
        return None
    if module in extra:
        return module
    for key in extra:
        regex = compiled(str(key))
        if regex is not None and regex.fullmatch(module):
            return str(key)
    return None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
