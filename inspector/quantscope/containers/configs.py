"""Config files beside the weights: read with size and depth limits, duplicate keys found, bytes hashed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import cache
from typing import Any

from quantscope.containers.issues import IssueLog
from quantscope.containers.records import ConfigFile, ContainerIssue, Json
from quantscope.containers.source import ByteSource
from quantscope.containers.strictjson import JsonText, parse_json
from quantscope.errors import QuantscopeError

MAX_CONFIG_BYTES = 16 << 20
MAX_YAML_BYTES = 1 << 18
MAX_YAML_NODES = 50_000
MAX_YAML_DEPTH = 64
MAX_HASH_BYTES = 8 << 20
"""Larger files are hashed when somebody asks (`sha256_of`), not on open."""

MAX_LATE_HASH_BYTES = 64 << 20

PARSED_NAMES: tuple[str, ...] = (
    "config.json",
    "generation_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "hf_quant_config.json",
    "quanto_qmap.json",
    "quant_model_description.json",
    "params.json",
    "adapter_config.json",
    "tokenizer_config.json",
    "recipe.yaml",
)
"""Files whose content is kept."""

HASHED_NAMES: tuple[str, ...] = ("tokenizer.json", "chat_template.jinja")
"""Files of which only the hash matters; `data` is None."""


def read_configs(
    root: str, names: Iterable[str]
) -> tuple[tuple[ConfigFile, ...], tuple[ContainerIssue, ...]]:
    """Reads the known config files of a folder.

    Args:
        root: the folder.
        names: names that the folder holds.

    Returns:
        Config files in the order of the name lists, and what was odd about them. A file that cannot be
        read is listed with `data` None and an error.
    """
    present = set(names)
    configs: list[ConfigFile] = []
    issues: list[ContainerIssue] = []
    for name in (*PARSED_NAMES, *HASHED_NAMES):
        if name in present:
            log = IssueLog(name)
            configs.append(_read_config(root, name, log))
            issues.extend(log.done())
    return tuple(configs), tuple(issues)


def sha256_of(config: ConfigFile, *, limit: int = MAX_LATE_HASH_BYTES) -> str | None:
    """The hash of a config file's bytes, computed now where opening left it out; None above `limit`.

    Raises:
        QuantscopeError: the file cannot be read any more.
    """
    if config.sha256 is not None:
        return config.sha256
    if config.size > limit:
        return None
    with ByteSource(config.path, name=config.name) as source:
        return _hash(source)


def _hash(source: ByteSource) -> str:
    digest = hashlib.sha256()
    step = 1 << 20
    for offset in range(0, source.size, step):
        digest.update(source.read_at(offset, min(step, source.size - offset)))
    return digest.hexdigest()


def _read_config(root: str, name: str, log: IssueLog) -> ConfigFile:
    path = os.path.join(root, name)
    try:
        with ByteSource(path, name=name) as source:
            return _read_source(source, name, log)
    except QuantscopeError as error:
        log.add("config-unreadable", error.message)
        return ConfigFile(name=name, path=path, size=0, sha256=None, data=None, error=error.message)


def _read_source(source: ByteSource, name: str, log: IssueLog) -> ConfigFile:
    size = source.size
    if name in HASHED_NAMES:
        digest = _hash(source) if size <= MAX_HASH_BYTES else None
        return ConfigFile(name=name, path=source.path, size=size, sha256=digest, data=None)
    limit = MAX_YAML_BYTES if name.endswith(".yaml") else MAX_CONFIG_BYTES
    if size > limit:
        message = f"{name} has {size} bytes, more than the {limit} that are parsed"
        log.add("config-too-large", message, size=size)
        return ConfigFile(
            name=name, path=source.path, size=size, sha256=None, data=None, error=message
        )
    data = source.read_at(0, size)
    result = _parse_yaml(data) if name.endswith(".yaml") else parse_json(data, lenient=True)
    _report(name, result, log)
    return ConfigFile(
        name=name,
        path=source.path,
        size=size,
        sha256=hashlib.sha256(data).hexdigest(),
        data=result.value,
        error=f"{name} {result.error}" if result.error else None,
    )


def _report(name: str, result: JsonText, log: IssueLog) -> None:
    if result.error:
        log.add("config-unreadable", f"{name} {result.error}")
    if result.bom:
        log.add("config-bom", f"{name} begins with a byte order mark, which strict readers refuse")
    for key in dict.fromkeys(result.duplicates):
        message = f"{name} gives the key {key} twice in one object; readers take the last"
        log.add("config-duplicate-key", message, key=key)
    if not result.error and not isinstance(result.value, dict):
        log.add("config-not-object", f"{name} holds no object")


@cache
def _yaml_loader() -> Any:
    """The safe loader, which also takes the enumerations of llm-compressor's recipes for their text.

    llm-compressor 0.14 writes `actorder: !!python/object/apply:compressed_tensors.quantization.quant_args.
    ActivationOrdering [static]`. Nothing is imported; every other tag stays an error.
    """
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("RecipeLoader", (base,), {})

    def text_of(inner: Any, name: str, node: Any) -> str:
        values: list[Any] = node.value if isinstance(node, yaml.SequenceNode) else []
        if len(values) != 1 or not isinstance(values[0], yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, f"{name} is no enumeration")
        return str(values[0].value)

    for package in ("compressed_tensors.", "llmcompressor."):
        loader.add_multi_constructor(f"tag:yaml.org,2002:python/object/apply:{package}", text_of)
    return loader


def _parse_yaml(data: bytes) -> JsonText:
    """A YAML document as plain values; aliases may not blow it up and no tag builds objects."""
    import yaml

    loader = _yaml_loader()
    bom = data.startswith(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8-sig")
        depth = aliases = 0
        for nodes, event in enumerate(yaml.parse(text, Loader=loader), 1):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_YAML_DEPTH:
                return JsonText(error=f"is nested deeper than {MAX_YAML_DEPTH} levels", bom=bom)
            if nodes > MAX_YAML_NODES:
                return JsonText(error=f"holds more than {MAX_YAML_NODES} values", bom=bom)
            if aliases > 100:
                return JsonText(error="holds more than 100 aliases", bom=bom)
        value = yaml.load(text, Loader=loader)
    except UnicodeDecodeError as error:
        return JsonText(error=f"is no UTF-8: byte {error.start} cannot be decoded", bom=bom)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        words = " ".join(str(error).split())[:200]
        return JsonText(error=f"is no plain YAML: {words}", bom=bom)
    if aliases and not _bounded(value):
        return JsonText(error="has aliases that expand without bound", bom=bom)
    return JsonText(value=_plain(value), bom=bom)


def _bounded(value: Json) -> bool:
    """False where following every alias gives more values than are kept, or never ends."""
    budget = MAX_YAML_NODES
    stack: list[Any] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        budget -= 1
        if budget < 0 or depth > MAX_YAML_DEPTH:
            return False
        if isinstance(item, dict):
            stack.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list | set | tuple):
            stack.extend((inner, depth + 1) for inner in item)
    return True


def _plain(value: Any) -> Json:
    """YAML values as JSON has them: keys are strings, dates and bytes become text."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
