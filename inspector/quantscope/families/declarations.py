"""All declarations of a checkpoint with the place where each stands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from quantscope.containers.records import ConfigFile, OpenedFile
from quantscope.families.modules import NameList
from quantscope.model import Basis, Claim, Json, Source

T = TypeVar("T")

QUANT_KEYS = ("quantization_config", "quantization", "compression_config", "quant_config")
"""Keys under which a model config nests its quantization declaration."""

STANDALONE = (
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "quanto_qmap.json",
    "quant_model_description.json",
)
"""Files that are a quantization declaration as a whole."""


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """One quantization declaration: a dict in a file."""

    file: str
    pointer: str
    """JSON pointer of the dict; empty for a whole file."""
    data: dict[str, Json]

    @property
    def method(self) -> str:
        """`quant_method` in lower case, or an empty string."""
        method = self.data.get("quant_method", self.data.get("method", ""))
        return method.lower() if isinstance(method, str) else ""

    def source(self, *keys: str) -> Source:
        """Source of a nested key of this section."""
        return Source(
            self.file,
            "/".join([self.pointer, *(key.replace("~", "~0").replace("/", "~1") for key in keys)]),
        )

    def get(self, *keys: str) -> Json:
        """A nested value, or None where a step is missing."""
        value: Json = self.data
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return value

    def has(self, *keys: str) -> bool:
        """Whether a nested key is written at all, null included."""
        value: Json = self.data
        for key in keys:
            if not isinstance(value, dict) or key not in value:
                return False
            value = value[key]
        return True

    def claim(
        self, field: str, value: Json, *keys: str, basis: Basis = "written", written: Json = None
    ) -> Claim:
        """A claim on a contract field, with the nested key as its source."""
        raw = self.get(*keys) if written is None else written
        return Claim(field=field, value=value, source=self.source(*keys), basis=basis, written=raw)


class Declarations:
    """Config files and container metadata, read as declarations with their sources."""

    def __init__(self, configs: Sequence[ConfigFile], files: Sequence[OpenedFile]) -> None:
        self.configs: dict[str, ConfigFile] = {config.name: config for config in configs}
        self.files: tuple[OpenedFile, ...] = tuple(files)
        self.sections: tuple[Section, ...] = tuple(self._find_sections())
        self._worked_out: dict[Hashable, Any] = {}

    def once(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives, worked out once a checkpoint under `key`; families keep derived facts here.

        Args:
            key: begins with the family's or module's name, so that keys of several families differ.
            work: depends on nothing but these declarations and the key.
        """
        if key not in self._worked_out:
            self._worked_out[key] = work()
        result: T = self._worked_out[key]
        return result

    def names(self, section: Section, *keys: str, shell: bool = False) -> NameList:
        """A list of module names of a section (an ignore list), prepared for matching; empty where it is none.

        Args:
            section: the section.
            keys: where the list stands in it.
            shell: entries with a `*` are shell patterns.
        """

        def prepared() -> NameList:
            listed = section.get(*keys)
            entries = listed if isinstance(listed, list) else []
            return NameList([e for e in entries if isinstance(e, str)], shell=shell)

        return self.once(("names", section.file, section.pointer, keys, shell), prepared)

    @property
    def model(self) -> dict[str, Json]:
        """The model config, or an empty dict."""
        config = self.configs.get("config.json")
        return config.data if config is not None and isinstance(config.data, dict) else {}

    def _find_sections(self) -> Iterator[Section]:
        for name, config in self.configs.items():
            if not isinstance(config.data, dict):
                continue
            if name in STANDALONE:
                yield Section(file=name, pointer="", data=config.data)
            elif name == "hf_quant_config.json":
                nested = config.data.get("quantization")
                if isinstance(nested, dict):
                    yield Section(file=name, pointer="/quantization", data=nested)
            elif name in ("config.json", "params.json"):
                yield from _nested_sections(name, "", config.data)
                for outer, value in config.data.items():
                    if isinstance(value, dict) and outer not in QUANT_KEYS:
                        yield from _nested_sections(name, f"/{outer}", value)

    def with_method(self, *methods: str) -> list[Section]:
        """Sections whose quant_method is one of the given words."""
        return [section for section in self.sections if section.method in methods]

    def metadata(self, key: str) -> Iterator[tuple[Source, Json]]:
        """Every container metadata value under a key, with its source.

        A safetensors key has the pointer `__metadata__/key`, a GGUF key is its own pointer.
        """
        for file in self.files:
            if key in file.metadata:
                pointer = f"__metadata__/{key}" if file.kind == "safetensors" else key
                yield Source(file.name, pointer), file.metadata[key]

    def leaves(self) -> Iterator[tuple[Source, Json]]:
        """Every leaf of every quantization section and all container metadata, null included."""
        for section in self.sections:
            yield from _leaves(section.file, section.pointer, section.data)
        modelopt = self.configs.get("hf_quant_config.json")
        if modelopt is not None and isinstance(modelopt.data, dict):
            rest = {key: value for key, value in modelopt.data.items() if key != "quantization"}
            if rest:
                yield from _leaves(modelopt.name, "", rest)
        for file in self.files:
            prefix = "__metadata__/" if file.kind == "safetensors" else ""
            for key, value in file.metadata.items():
                yield Source(file.name, prefix + key), value


def _nested_sections(file: str, pointer: str, data: dict[str, Json]) -> Iterator[Section]:
    for key in QUANT_KEYS:
        value = data.get(key)
        if isinstance(value, dict):
            yield Section(file=file, pointer=f"{pointer}/{key}", data=value)


def _leaves(file: str, pointer: str, value: Json, depth: int = 0) -> Iterator[tuple[Source, Json]]:
    if isinstance(value, dict) and value and depth < 12:
        for key, nested in value.items():
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from _leaves(file, f"{pointer}/{escaped}", nested, depth + 1)
    else:
        yield Source(file, pointer), value
